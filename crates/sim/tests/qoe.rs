//! The plan of QoE: bursts repeat, the seed decides the losses, and light bursts trouble nobody.

use loquent_sim::qoe::{self, BurstSetting, QoePlan, QoePolicy, QoeReport, ReaderQoe};

fn plan() -> QoePlan {
    QoePlan::parse("qoe", qoe::BUILT_IN).expect("the plan parses")
}

fn play(plan: &QoePlan, contender: usize, readers: usize) -> Vec<ReaderQoe> {
    let case = plan.case.iter().position(|case| case.lossy_share > 0.0).expect("links lose");
    let (case, contender) = (&plan.case[case], &plan.contender[contender]);
    qoe::play(BurstSetting { plan, case, contender, batch_size: 16, readers })
}

fn mean(readers: &[ReaderQoe]) -> f64 {
    readers.iter().map(|reader| reader.qoe).sum::<f64>() / readers.len() as f64
}

#[test]
fn a_burst_repeats_and_its_seed_decides_the_losses() {
    let plan = plan();
    let other = QoePlan { seed: plan.seed + 1, ..plan.clone() };
    for contender in 0..plan.contender.len() {
        let played = play(&plan, contender, 12);
        assert_eq!(played, play(&plan, contender, 12));
        assert_ne!(played, play(&other, contender, 12));
        assert!(played.iter().all(|reader| reader.last_s.is_finite()), "all answers arrive");
    }
}

#[test]
fn a_light_burst_is_served_well_by_all() {
    let plan = plan();
    for contender in 0..plan.contender.len() {
        assert!(mean(&play(&plan, contender, 6)) > 0.99, "{:?}", plan.contender[contender]);
    }
}

#[test]
fn schedulers_that_know_readers_serve_more_than_there_are_places() {
    let plan = plan();
    let of = |policy| {
        let is_meant = |one: &qoe::Contender| one.policy == policy && one.send.kind() == "loquent";
        let contender = plan.contender.iter().position(is_meant).expect("the plan has it");
        // The batch has a third as many places.
        mean(&play(&plan, contender, 48))
    };
    let first_come = of(QoePolicy::FirstCome);
    let (andes, by_need) = (of(QoePolicy::Andes), of(QoePolicy::ByNeed));
    assert!(andes > first_come + 0.02, "{andes} {first_come}");
    assert!(by_need > first_come + 0.02, "{by_need} {first_come}");
}

#[test]
fn the_number_of_threads_changes_nothing_and_claims_are_checked() {
    let mut plan = plan();
    plan.readers = vec![4];
    plan.batch_sizes = vec![16];
    plan.case.retain(|case| plan.claim.iter().any(|claim| claim.case == case.name));
    let curves = qoe::run(&plan, 1, &());
    assert_eq!(curves, qoe::run(&plan, 3, &()));
    plan.claim.iter_mut().for_each(|claim| claim.ratio_at_least = 1.0);
    let report = QoeReport::new(plan.clone(), curves.clone());
    assert!(report.is_good() && report.table().contains("holds: "), "{}", report.table());
    assert!(report.figure().starts_with("<svg"), "a picture");
    plan.claim[0].ratio_at_least = 1.5;
    let failed = QoeReport::new(plan, curves);
    assert!(!failed.is_good() && failed.table().contains("FAILS: "), "{}", failed.table());
}
