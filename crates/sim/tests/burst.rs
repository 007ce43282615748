//! The plan of bursts: what it claims holds, no order of service exceeds its bound, and it repeats.

use loquent_sim::burst::{self, BurstPlan, BurstReport, Policy};

fn plan() -> BurstPlan {
    BurstPlan::parse("burst", burst::BUILT_IN).expect("the plan parses")
}

/// The plan with the prompts of its claims alone, so that the test takes seconds.
fn claimed() -> BurstPlan {
    let mut plan = plan();
    let claimed: Vec<u32> = plan.claim.iter().map(|claim| claim.prompt_tokens).collect();
    plan.prompt_tokens.retain(|tokens| claimed.contains(tokens));
    plan.batch_sizes.retain(|size| *size <= 128);
    plan
}

#[test]
fn what_the_plan_claims_holds() {
    let plan = claimed();
    let report = BurstReport::new(plan.clone(), burst::run(&plan, &()));
    assert!(report.is_good(), "{}", report.table());
    for row in report.json()["rows"].as_array().expect("a list") {
        for policy in ["first_come", "by_need"] {
            assert!(row[policy]["readers"].as_u64() <= row["bound"].as_u64(), "{row}");
        }
    }
    assert!(report.figure().starts_with("<svg"), "a picture");
}

#[test]
fn a_burst_repeats_and_everybody_gets_the_whole_answer() {
    let plan = plan();
    let play = |policy| burst::play(&plan, &plan.machine[0], 64, policy, 16, 24);
    for policy in Policy::ALL {
        let outcome = play(policy);
        assert_eq!(outcome, play(policy));
        assert_eq!(outcome.readers.len(), 24);
        assert!(outcome.readers.iter().all(|one| one.ttft_s > 0.0), "all have begun");
    }
}

#[test]
fn a_burst_that_is_no_trouble_is_none_for_either() {
    let plan = plan();
    for policy in Policy::ALL {
        let outcome = burst::play(&plan, &plan.machine[0], 16, policy, 16, 4);
        assert_eq!(plan.content.share(&outcome.readers), 1.0, "{policy:?}");
    }
}
