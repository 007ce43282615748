//! Explores the model of the scripts, and prints how many states it has; or plants faults, and
//! prints how each breaks a law.

use script_model::{
    CallerRules, Exploration, ExploredScope, PLANTED, SCOPES, ScriptTexts, deep_scopes, explore,
};

const USAGE: &str = "usage: script-model small|deep|planted [WORD]\n\
                     small and deep explore the scripts as they are, planted explores faults \
                     whose name has WORD";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["small"] => explore_all(SCOPES),
        ["deep"] => explore_all(&deep_scopes()),
        ["planted"] => planted(""),
        ["planted", word] => planted(word),
        _ => {
            eprintln!("{USAGE}");
            std::process::exit(2);
        }
    }
}

fn explore_all(scopes: &[ExploredScope]) {
    let mut is_sound = true;
    for scope in scopes {
        let explored = explore(scope, &ScriptTexts::default(), CallerRules::default());
        print(scope.name, &explored);
        is_sound &= explored.counter_example.is_none();
    }
    std::process::exit(i32::from(!is_sound));
}

fn planted(word: &str) {
    for fault in PLANTED.iter().filter(|fault| fault.name.contains(word)) {
        print(fault.name, &explore(&fault.scope, &fault.texts(), fault.rules()));
    }
}

fn print(name: &str, explored: &Exploration) {
    let Exploration { states, transitions, depth, script_runs, took, .. } = explored;
    let visited = if explored.is_complete { "all states" } else { "states" };
    println!(
        "{name}: {states} {visited}, {transitions} steps, {depth} deep, {script_runs} runs of \
         scripts, {:.1} s",
        took.as_secs_f64()
    );
    if let Some(found) = &explored.counter_example {
        println!("  {}", found.story.join("\n  "));
        println!("  broken: {}", found.broken);
    }
}
