//! Explores the model, and prints how many states it has.

use script_model::*;

fn main() {
    let args: Vec<u8> = std::env::args().skip(1).map(|a| a.parse().unwrap()).collect();
    let b = FaultBudget { all: args[2], deaths: 2, leaves: 1, pauses: 1, cuts: 1, store_pauses: 1, failovers: 1, lost_calls: 1, refusals: 1, moves: args[3], stops: args[4] };
    let scope = ExploredScope { name: "x", replicas: args[0].into(), readers: args[1].into(), bytes: args[5].into(), budget: b, most_steps: 200 };
    let rules = CallerRules { repeats_releases: args[6] == 1, stops_for_all: args[8] == 1, asks_after_the_end: args[7] == 1, waits_for_epochs: args[9]==1, ..Default::default() };
    let e = explore(&scope, &ScriptTexts::default(), rules);
    println!("{} states {} transitions depth {} complete {} runs {} took {:?}", e.states, e.transitions, e.depth, e.is_complete, e.script_runs, e.took);
    if let Some(c) = e.counter_example { println!("{}\n  {}", c.broken, c.story.join("\n  ")); }
}
