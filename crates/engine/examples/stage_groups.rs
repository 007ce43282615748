//! What the grouping policy does on 2 to 8 machines with modelled stage times:
//!
//!     cargo run --release -p loquent-engine --example stage_groups
//!
//! Tokens a second with one batch in flight, with the number that the policy finds, and
//! with the best fixed number.

use loquent_engine::staged::groups::Groups;
use loquent_engine::staged::model::{Machines, Processors};

/// Virtual seconds of each run.
const SECONDS: f64 = 120.0;

fn main() {
    println!("| stages | hop | sequences | 1 group | auto (groups) | best (groups) | auto / 1 |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for stages in [2, 3, 4, 6, 8] {
        for hop_ms in [0.2, 5.0, 10.0] {
            for sequences in [1, 4, 8, 16, 32] {
                row(&Machines::measured(stages, hop_ms / 1e3), hop_ms, sequences, "");
            }
        }
    }
    for stages in [2, 4] {
        let own = Machines::measured(stages, 0.0001);
        let machines = Machines { processors: Processors::Shared(1.0), ..own };
        row(&machines, 0.1, 16, " on one machine");
        let own = Machines::measured(stages, 0.010);
        let machines = Machines { processors: Processors::InTurns, ..own };
        row(&machines, 10.0, 16, " in turns");
    }
}

fn row(machines: &Machines, hop_ms: f64, sequences: usize, place: &str) {
    let one = machines.run(Groups::Fixed(1), sequences, SECONDS);
    let auto = machines.run(Groups::Auto, sequences, SECONDS);
    let fixed = (1..=16).map(|n| machines.run(Groups::Fixed(n), sequences, SECONDS));
    let best = fixed.max_by(|a, b| a.tokens_per_s.total_cmp(&b.tokens_per_s));
    let best = best.expect("sixteen were tried");
    println!(
        "| {}{place} | {hop_ms} ms | {sequences} | {:.0} | {:.0} ({}) | {:.0} ({}) | {:.2} |",
        machines.stages,
        one.tokens_per_s,
        auto.tokens_per_s,
        auto.groups,
        best.tokens_per_s,
        best.groups,
        auto.tokens_per_s / one.tokens_per_s
    );
}
