//! The plans of the repository: they parse, they repeat byte for byte, and what they claim holds.

use loquent_sim::{BUILT_IN_PLANS, Plan, Report, check, run_plan, study, sweep, world};

fn plan(name: &str, sessions: u32) -> Plan {
    let (_, text) =
        BUILT_IN_PLANS.iter().find(|(known, _)| *known == name).expect("the plan is built in");
    let mut plan = Plan::parse(name, text).expect("the plan parses");
    plan.sessions = sessions;
    plan
}

fn assert_good(report: &Report) {
    assert_eq!(report.study().findings, []);
    let failed: Vec<_> = report.verdicts().into_iter().filter(|verdict| !verdict.holds()).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn every_plan_of_the_folder_is_built_in_and_parses() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../plans");
    let mut files: Vec<String> = std::fs::read_dir(folder)
        .expect("the folder is there")
        .map(|entry| entry.expect("readable").file_name().into_string().expect("plain names"))
        .filter_map(|name| Some(name.strip_suffix(".toml")?.to_owned()))
        .collect();
    // Of other kinds: see burst.rs and qoe.rs beside this file.
    files.retain(|name| name != "burst" && name != "qoe");
    files.sort();
    let built_in: Vec<&str> = BUILT_IN_PLANS.iter().map(|(name, _)| *name).collect();
    assert_eq!(files, built_in);
    for name in built_in {
        plan(name, 1);
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes_on_any_number_of_threads() {
    for name in ["fig5", "campaign", "hidden-tab"] {
        let plan = plan(name, 5);
        let (one, three) = (run_plan(&plan, 1, &()), run_plan(&plan, 3, &()));
        assert_eq!(one.json(), three.json());
        assert_eq!(one.csv(), three.csv());
        assert_eq!(one.table(), three.table());
        assert_eq!(one.figures(), three.figures());
        let mut other = plan;
        other.seed += 1;
        assert_ne!(run_plan(&other, 1, &()).csv(), one.csv());
    }
}

/// Runs a plan with all of its cases, schemes and claims, in a part of its sessions.
fn assert_plan_good(name: &str, sessions: u32) {
    let plan = plan(name, sessions);
    assert!(!plan.claim.is_empty(), "{name} claims nothing");
    assert_good(&run_plan(&plan, 2, &()));
}

#[test]
fn the_papers_figure_5_reproduces() {
    assert_plan_good("fig5", 180);
}

#[test]
fn half_of_the_papers_figure_6_reproduces() {
    assert_plan_good("fig6", 180);
}

#[test]
fn figure_7_on_our_own_recordings() {
    assert_plan_good("fig7", 180);
}

#[test]
fn on_none_of_the_eighteen_channels_ours_stalls_more() {
    assert_eq!(plan("channels", 1).case.len(), 18);
    assert_plan_good("channels", 120);
}

#[test]
fn narrow_links_keep_their_claims() {
    assert_plan_good("narrow-links", 60);
}

#[test]
fn pacing_keeps_its_claims() {
    assert_plan_good("pacing", 60);
}

#[test]
fn fast_generators_keep_their_claims() {
    assert_plan_good("fast-generators", 60);
}

#[test]
fn the_pareto_curve_lies_below_the_papers_schemes() {
    assert_plan_good("pareto", 60);
}

#[test]
fn readers_in_no_hurry_cost_little() {
    assert_plan_good("hidden-tab", 60);
}

#[test]
fn bad_weather_keeps_its_claims() {
    assert_plan_good("bad-weather", 60);
}

#[test]
fn padding_hides_the_lengths_of_tokens() {
    let mut plan = plan("padding", 30);
    let kept = |name: &str| ["clean, RTT 400", "default, RTT 100"].contains(&name);
    plan.case.retain(|case| kept(&case.name));
    plan.claim.retain(|claim| claim.case.as_deref().is_none_or(kept));
    plan.scheme.retain(|entry| ["none", "24", "24, client paces"].contains(&&*entry.label()));
    assert_good(&run_plan(&plan, 2, &()));
}

#[test]
fn random_links_break_nothing() {
    assert_good(&run_plan(&plan("campaign", 1_500), 2, &()));
}

/// Session `number` of the campaign under `seed`, alone.
fn assert_session_good(seed: u64, number: u32) {
    let plan = Plan { seed, ..plan("campaign", number + 1) };
    let entry = &plan.scheme[0];
    study::with_setting(&plan, &plan.case[0], entry, number, |setting| {
        let trace = world::run(&entry.send, setting);
        assert_eq!(check::violations(&trace, entry.send.budget()), [], "{setting:?}");
    });
}

/// On 24 kbit/s with a queue of 20 s each new path began behind what the one before had left there,
/// and what was repeated on it kept the queue full until the reader tried the next one.
#[test]
fn a_reader_that_tries_path_after_path_does_not_keep_a_thin_link_full() {
    assert_session_good(987_654, 43_009);
}

/// Two seeds on which blackouts of 5 s broke a claim that left no room for chance.
#[test]
fn blackouts_keep_their_claims_on_seeds_that_broke_one() {
    for seed in [77, 987_654] {
        assert_good(&run_plan(&Plan { seed, ..plan("outages", 120) }, 2, &()));
    }
}

#[test]
fn a_sweep_finds_the_seed_that_breaks_a_claim() {
    let mut plan = plan("outages", 4);
    plan.case.truncate(1);
    plan.claim.truncate(1);
    let kept = sweep::run(&plan, 10, 3, 2, &());
    assert!(kept.good(), "{}", kept.table());
    plan.claim[0].at_most = Some(0.0);
    let broken = sweep::run(&plan, 10, 3, 2, &());
    assert!(!broken.good());
    let table = broken.table();
    assert!(table.contains("3 seeds, 10 to 12") && table.contains("0/3  FAILS"), "{table}");
    let sessions = 3 * 4 * plan.scheme.len();
    assert!(table.contains(&format!("0 of {sessions} sessions broke a guarantee")), "{table}");
}

#[test]
fn a_sweep_of_one_seed_says_what_the_plan_says() {
    let plan = plan("hidden-tab", 3);
    let report = run_plan(&plan, 2, &());
    let sweep = sweep::run(&plan, plan.seed, 1, 2, &());
    assert_eq!(sweep.good(), report.good());
    for verdict in report.verdicts() {
        assert!(sweep.table().contains(&verdict.subject), "{}", sweep.table());
    }
}
