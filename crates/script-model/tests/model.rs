//! The scripts keep their laws in every state of the small scopes, and each planted fault breaks
//! one.

use script_model::{CallerRules, PLANTED, SCOPES, ScriptTexts, explore};

#[test]
fn the_scripts_keep_their_laws_in_every_state() {
    for scope in SCOPES {
        let explored = explore(scope, &ScriptTexts::default(), CallerRules::default());
        assert_eq!(explored.counter_example, None, "{}", scope.name);
        assert!(explored.is_complete, "{}: states were left out", scope.name);
        // Fewer would mean that most steps have become impossible.
        assert!(explored.states > 50_000, "{}: {} states", scope.name, explored.states);
    }
}

#[test]
fn each_planted_fault_breaks_its_law() {
    for fault in PLANTED {
        let explored = explore(&fault.scope, &fault.texts(), fault.rules());
        let Some(found) = explored.counter_example else { panic!("{}: not found", fault.name) };
        assert!(found.broken.contains(fault.breaks), "{}: {}", fault.name, found.broken);
    }
}
