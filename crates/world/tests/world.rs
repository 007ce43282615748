//! Worlds of fresh seeds, the same seed twice, and the planted faults.

use std::time::{Duration, Instant, SystemTime};

use loquent_world::{PLANTED, WorldPlanting, run};

/// Number of fresh seeds of a test, and time after which no other begins. `make world` runs more.
const SEEDS: u64 = 400;
const SEEDS_LIMIT: Duration = Duration::from_secs(120);

#[test]
fn no_world_breaks_a_law() {
    run_fresh(0);
}

/// The other half, for another processor.
#[test]
fn no_further_world_breaks_a_law() {
    run_fresh(SEEDS);
}

/// Runs fresh seeds, without the first `skipped`.
fn run_fresh(skipped: u64) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let given = std::env::var("LOQUENT_WORLD_SEED").ok().and_then(|seed| seed.parse().ok());
    let first = given.unwrap_or(now.as_secs());
    let first = first + skipped;
    println!("seeds from {first} on; LOQUENT_WORLD_SEED={first} runs them again");
    let (begun, mut takeovers, mut whole) = (Instant::now(), 0, 0);
    for seed in first..first + SEEDS {
        let report = run(seed, &WorldPlanting::default());
        if let Some(broken) = report.broken {
            panic!("{}\nseed {seed}: {broken}", report.history.text());
        }
        takeovers += report.takeovers;
        whole += report.whole;
        if begun.elapsed() > SEEDS_LIMIT {
            break;
        }
    }
    println!("{whole} readers have whole answers, after {takeovers} takeovers");
    assert!(whole > 0, "some worlds have readers");
}

#[test]
fn the_same_seed_has_the_same_history() {
    for seed in 0..10 {
        let none = WorldPlanting::default();
        let (one, other) = (run(seed, &none), run(seed, &none));
        assert_eq!(one.history.text(), other.history.text(), "seed {seed}");
        assert_eq!(one.history.fingerprint(), other.history.fingerprint(), "seed {seed}");
    }
}

#[test]
fn planted_faults_are_found() {
    for fault in PLANTED {
        let found = fault.search();
        let (seed, law) = found.unwrap_or_else(|| panic!("{} is not found", fault.name));
        println!("| {} | {law} | {} |", fault.name, seed + 1);
        let is_expected = fault.breaks.iter().any(|part| law.contains(part));
        assert!(is_expected, "{}: {law}", fault.name);
    }
}
