//! Visits every state that steps can reach, breadth first, and so finds the shortest way to one
//! that breaks a law.
//!
//! A visited state is remembered by its fingerprint ([`crate::fingerprint`]).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::calm::Calm;
use crate::fingerprint::fingerprint;
use crate::model::{BrokenLaw, CallerRules, ModelStep, ScriptModel};
use crate::scripts::ScriptTexts;
use crate::steps::steps;
use crate::store::ModelStore;
use crate::world::{FaultBudget, ModelWorld};

/// The part of the world that is explored.
#[derive(Debug, Clone, Copy)]
pub struct ExploredScope {
    /// A word for the scope.
    pub name: &'static str,
    /// Number of replicas.
    pub replicas: usize,
    /// Number of readers.
    pub readers: usize,
    /// Length of the answer.
    pub bytes: usize,
    /// Faults and other rare events.
    pub budget: FaultBudget,
    /// Maximum number of steps.
    pub most_steps: usize,
}

/// The result of an exploration.
#[derive(Debug)]
pub struct Exploration {
    /// Number of states.
    pub states: usize,
    /// Number of steps tried that were possible.
    pub transitions: usize,
    /// Greatest number of steps to a state.
    pub depth: usize,
    /// True if every state within the budget was visited, and none cut off by the number of steps.
    pub is_complete: bool,
    /// Number of times that a script ran; other calls repeat one with the same keys.
    pub script_runs: usize,
    /// Duration.
    pub took: Duration,
    /// The shortest way to a broken law.
    pub counter_example: Option<CounterExample>,
}

/// A way to a broken law.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CounterExample {
    /// The law.
    pub broken: String,
    /// A sentence for each step.
    pub story: Vec<String>,
}

struct Explorer {
    model: ScriptModel,
    calm: Calm,
    /// Every visited state, with the state and the step that led to it first.
    visited: HashMap<u64, Option<(u64, ModelStep)>>,
    transitions: usize,
}

/// A law that was broken, by `step` after the state `at`, or in that state's calm.
struct FoundBreach {
    at: u64,
    step: Option<ModelStep>,
    broken: BrokenLaw,
}

/// Explores `scope` with the scripts `texts` and callers that follow `rules`.
pub fn explore(scope: &ExploredScope, texts: &ScriptTexts, rules: CallerRules) -> Exploration {
    let begun = Instant::now();
    let store = ModelStore::new(texts);
    let model = ScriptModel { store, rules, bytes: scope.bytes, story: None };
    let mut explorer =
        Explorer { model, calm: Calm::default(), visited: HashMap::new(), transitions: 0 };
    let mut first = explorer.model.first(scope.replicas, scope.readers);
    first.budget = scope.budget;
    let (mut level, mut depth, mut finding) = (vec![first.clone()], 0, None);
    explorer.visited.insert(fingerprint(&first), None);
    while !level.is_empty() && depth < scope.most_steps && finding.is_none() {
        match explorer.next_level(&level) {
            Ok(next) => level = next,
            Err(found) => finding = Some(found),
        }
        depth += 1;
    }
    Exploration {
        states: explorer.visited.len(),
        transitions: explorer.transitions,
        depth,
        is_complete: level.is_empty(),
        script_runs: explorer.model.store.runs(),
        counter_example: finding.map(|finding| explorer.tell(&first, &finding)),
        took: begun.elapsed(),
    }
}

impl Explorer {
    /// Returns the states that are one step further than those of `level` and new.
    fn next_level(&mut self, level: &[ModelWorld]) -> Result<Vec<ModelWorld>, FoundBreach> {
        let mut next = Vec::new();
        for world in level {
            let at = fingerprint(world);
            for (step, left) in steps(world) {
                let broken = |broken| FoundBreach { at, step: Some(step), broken };
                let Some(mut after) = self.model.step(world, step).map_err(broken)? else {
                    continue;
                };
                self.transitions += 1;
                after.budget = left;
                let print = fingerprint(&after);
                if self.visited.contains_key(&print) {
                    continue;
                }
                self.visited.insert(print, Some((at, step)));
                let calm = self.calm.check(&mut self.model, &after);
                calm.map_err(|broken| FoundBreach { at: print, step: None, broken })?;
                next.push(after);
            }
        }
        Ok(next)
    }

    /// Tells how `finding` comes about, by doing its steps once more.
    fn tell(&mut self, first: &ModelWorld, finding: &FoundBreach) -> CounterExample {
        let mut way: Vec<ModelStep> = finding.step.into_iter().collect();
        let mut at = finding.at;
        while let Some((before, step)) = self.visited[&at] {
            way.push(step);
            at = before;
        }
        self.model.story = Some(Vec::new());
        let mut world = first.clone();
        for step in way.into_iter().rev() {
            let budget = steps(&world).into_iter().find(|(known, _)| *known == step);
            // The last step breaks the law, and has no state after it.
            let Ok(Some(after)) = self.model.step(&world, step) else { break };
            world = after;
            world.budget = budget.expect("it was tried").1;
        }
        if finding.step.is_none() {
            self.calm.tell(&mut self.model, &world);
        }
        let story = self.model.story.take().unwrap_or_default();
        CounterExample { broken: finding.broken.0.clone(), story }
    }
}
