//! The plans of the repository: they parse, they repeat byte for byte, and what they claim holds.

use loquent_sim::{BUILT_IN_PLANS, Plan, Report, run_plan};

fn plan(name: &str, sessions: u32) -> Plan {
    let (_, text) =
        BUILT_IN_PLANS.iter().find(|(known, _)| *known == name).expect("the plan is built in");
    let mut plan = Plan::parse(name, text).expect("the plan parses");
    plan.sessions = sessions;
    plan
}

fn assert_good(report: &Report) {
    assert_eq!(report.study().findings, []);
    let failed: Vec<_> = report.verdicts().into_iter().filter(|verdict| !verdict.holds).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn every_plan_of_the_folder_is_built_in_and_parses() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../plans");
    let mut files: Vec<String> = std::fs::read_dir(folder)
        .expect("the folder is there")
        .map(|entry| entry.expect("readable").file_name().into_string())
        .map(|name| name.expect("plain names").replace(".toml", ""))
        .collect();
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

#[test]
fn the_papers_figure_5_reproduces() {
    assert_good(&run_plan(&plan("fig5", 120), 2, &()));
}

#[test]
fn ours_keeps_its_claims_on_the_default_channel() {
    let mut plan = plan("channels", 60);
    let kept = |name: &str| name.starts_with("default, RTT") || name == "clean";
    plan.case.retain(|case| kept(&case.name));
    plan.claim.retain(|claim| claim.case.as_deref().is_none_or(kept));
    assert_good(&run_plan(&plan, 2, &()));
}

#[test]
fn random_links_break_nothing() {
    assert_good(&run_plan(&plan("campaign", 1_500), 2, &()));
}
