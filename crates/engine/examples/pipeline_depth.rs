//! What the depth policy does on 2 to 8 simulated machines:
//!
//!     cargo run --release -p loquent-engine --example pipeline_depth
//!
//! Prints tokens per second with one batch in flight, with the depth that the policy finds, and
//! with the best fixed depth.

#[path = "../tests/stages/depth_simulation.rs"]
mod depth_simulation;

use depth_simulation::{Machines, Processors};
use loquent_engine::staged::PipelineDepth;

/// Length of each run in virtual time.
const SECONDS: f64 = 120.0;

fn main() {
    println!("| stages | link | sequences | depth 1 | auto (depth) | best (depth) | auto / 1 |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for stages in [2, 3, 4, 6, 8] {
        for link_ms in [0.2, 5.0, 10.0] {
            for sequences in [1, 4, 8, 16, 32] {
                row(&Machines::measured(stages, link_ms / 1e3), link_ms, sequences, "");
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

fn row(machines: &Machines, link_ms: f64, sequences: usize, place: &str) {
    let one = machines.run(PipelineDepth::Fixed(1), sequences, SECONDS);
    let auto = machines.run(PipelineDepth::Auto, sequences, SECONDS);
    let fixed = (1..=16).map(|n| machines.run(PipelineDepth::Fixed(n), sequences, SECONDS));
    let best = fixed.max_by(|a, b| a.tokens_per_s.total_cmp(&b.tokens_per_s));
    let best = best.expect("sixteen were tried");
    println!(
        "| {}{place} | {link_ms} ms | {sequences} | {:.0} | {:.0} ({}) | {:.0} ({}) | {:.2} |",
        machines.stages,
        one.tokens_per_s,
        auto.tokens_per_s,
        auto.depth,
        best.tokens_per_s,
        best.depth,
        auto.tokens_per_s / one.tokens_per_s
    );
}
