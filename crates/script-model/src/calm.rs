//! The calm after the faults: from every state, once nothing fails any more, every reader must get
//! a whole answer.
//!
//! In the calm all that can work works in turn: owners generate and write, mirrors read and take
//! over, a second passes, readers connect to the first replica that has the answer. That is one
//! fair continuation of each state, and it has no choices, so it ends well or runs in a circle.

use crate::fingerprint::{Fingerprints, fingerprint};
use crate::model::{BrokenLaw, ModelStep, ScriptModel};
use crate::world::{FaultBudget, ModelWorld, ReplicaHealth};

/// States whose calm ends well.
#[derive(Default)]
pub struct Calm(Fingerprints);

impl Calm {
    /// Checks that every reader of `world` gets a whole answer once nothing fails any more. A call
    /// that was not answered runs before, or never.
    ///
    /// # Errors
    /// [`BrokenLaw`], if one never does, or if a step of the calm breaks a law.
    pub fn check(&mut self, model: &mut ScriptModel, world: &ModelWorld) -> Result<(), BrokenLaw> {
        for late in late_calls(world) {
            self.check_with(model, world, late)?;
        }
        Ok(())
    }

    fn check_with(
        &mut self,
        model: &mut ScriptModel,
        world: &ModelWorld,
        late: LateCall,
    ) -> Result<(), BrokenLaw> {
        let mut world = begin(model, world, late)?;
        let mut way = Fingerprints::new();
        loop {
            let print = fingerprint(&world);
            let is_well = is_well(model, &world);
            if is_well {
                model.check_stop(&world)?;
            }
            if is_well || self.0.contains(&print) {
                self.0.extend(way);
                return Ok(());
            }
            if !way.insert(print) {
                return Err(BrokenLaw(
                    "nothing fails any more, and a reader never gets the whole answer".to_owned(),
                ));
            }
            world = round(model, world)?;
        }
    }

    /// Tells the calm of `world` that breaks a law.
    pub fn tell(&mut self, model: &mut ScriptModel, world: &ModelWorld) {
        let story = model.story.take();
        let is_broken = |late: &LateCall| self.check_with(model, world, *late).is_err();
        let late = late_calls(world).into_iter().find(is_broken);
        model.story = story;
        if let (Some(story), Some(late)) = (&mut model.story, late) {
            story.push("nothing fails any more:".to_owned());
            if late == LateCall::Never && world.late.is_some() {
                story.push("the call that was not answered never runs".to_owned());
            }
            tell(model, world, late);
        }
    }
}

/// The fate of a call that was not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LateCall {
    Runs,
    Never,
}

fn late_calls(world: &ModelWorld) -> Vec<LateCall> {
    match world.late {
        Some(_) => vec![LateCall::Runs, LateCall::Never],
        None => vec![LateCall::Never],
    }
}

/// Does the calm after `world` once more, for the model's story.
fn tell(model: &mut ScriptModel, world: &ModelWorld, late: LateCall) {
    let Ok(mut world) = begin(model, world, late) else { return };
    let mut way = Fingerprints::new();
    while way.insert(fingerprint(&world)) {
        let Ok(after) = round(model, world) else { return };
        world = after;
        if is_well(model, &world) {
            return;
        }
    }
    if let Some(story) = &mut model.story {
        story.push("and so on".to_owned());
    }
}

/// Mends what is broken. The standby is up to date.
fn begin(
    model: &mut ScriptModel,
    world: &ModelWorld,
    late: LateCall,
) -> Result<ModelWorld, BrokenLaw> {
    let mut world = world.clone();
    (world.budget, world.standby) = (FaultBudget::default(), None);
    for at in 0..world.replicas.len() as u8 {
        let health = world.replicas[usize::from(at)].health;
        if matches!(health, ReplicaHealth::Paused | ReplicaHealth::Cut) {
            world = step(model, world, ModelStep::Mend(at))?;
        }
    }
    if late == LateCall::Never {
        world.late = None;
    }
    step(model, world, ModelStep::LateCall)
}

fn is_well(model: &ScriptModel, world: &ModelWorld) -> bool {
    let is_whole = world.readers.iter().all(|reader| reader.shown.is_whole());
    let is_settled = world.replicas.iter().all(|replica| replica.repeats.is_none());
    is_settled && (is_whole || model.is_excused(world) || model.is_gone(world))
}

/// Lets every replica and every reader do what it can, and a second pass.
fn round(model: &mut ScriptModel, mut world: ModelWorld) -> Result<ModelWorld, BrokenLaw> {
    for at in 0..world.replicas.len() as u8 {
        if world.replicas[usize::from(at)].health == ReplicaHealth::Dead {
            continue;
        }
        let duties = [
            ModelStep::Repeat(at),
            ModelStep::Generate(at),
            ModelStep::Append { by: at, lost: false },
            ModelStep::Read { by: at, lost: false },
            ModelStep::Take { by: at, lost: false },
            ModelStep::Forget(at),
        ];
        for duty in duties {
            world = step(model, world, duty)?;
        }
    }
    for reader in 0..world.readers.len() as u8 {
        for to in 0..world.replicas.len() as u8 {
            world = step(model, world, ModelStep::Attach { reader, to })?;
        }
        world = step(model, world, ModelStep::Show(reader))?;
    }
    step(model, world, ModelStep::Tick)
}

/// Does a step if it is possible.
fn step(
    model: &mut ScriptModel,
    world: ModelWorld,
    step: ModelStep,
) -> Result<ModelWorld, BrokenLaw> {
    Ok(model.step(&world, step)?.unwrap_or(world))
}
