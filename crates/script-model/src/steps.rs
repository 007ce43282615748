//! The steps that may follow in a state, and what each costs of the fault budget.

use crate::model::ModelStep;
use crate::world::{FaultBudget, MirrorNews, ModelWorld, ReplicaHealth, ReplicaRole};

/// Returns the steps to try in `world`, each with the budget that is left after it.
pub fn steps(world: &ModelWorld) -> Vec<(ModelStep, FaultBudget)> {
    let mut found = Vec::new();
    for at in 0..world.replicas.len() as u8 {
        replica_steps(world, at, &mut found);
        fault_steps(world, at, &mut found);
    }
    for reader in 0..world.readers.len() as u8 {
        reader_steps(world, reader, &mut found);
    }
    store_steps(world, &mut found);
    found
}

type Steps = Vec<(ModelStep, FaultBudget)>;

/// Adds `step`, which uses one unit of `of` and, if it is a fault, one of all faults.
fn spend(
    world: &ModelWorld,
    found: &mut Steps,
    step: ModelStep,
    of: impl Fn(&mut FaultBudget) -> &mut u8,
) {
    let mut left = world.budget;
    let is_fault = !matches!(step, ModelStep::Detach(_) | ModelStep::Stop { lost: false, .. });
    if *of(&mut left) == 0 || is_fault && left.all == 0 {
        return;
    }
    *of(&mut left) -= 1;
    left.all -= u8::from(is_fault);
    found.push((step, left));
}

fn replica_steps(world: &ModelWorld, at: u8, found: &mut Steps) {
    let replica = &world.replicas[usize::from(at)];
    if !matches!(replica.health, ReplicaHealth::Live | ReplicaHealth::Cut) {
        return;
    }
    let mut call = |step: &dyn Fn(bool) -> ModelStep| {
        found.push((step(false), world.budget));
        if world.late.is_none() && replica.health == ReplicaHealth::Live {
            spend(world, found, step(true), |left| &mut left.lost_calls);
        }
    };
    match &replica.role {
        ReplicaRole::Owner(owned) => {
            call(&|lost| ModelStep::Append { by: at, lost });
            if !owned.log.is_whole() {
                found.push((ModelStep::Generate(at), world.budget));
            }
            if !owned.epochs.is_empty() {
                refusals(world, at, found);
            }
        }
        ReplicaRole::Mirror(mirrored) if mirrored.news != MirrorNews::Whole => {
            call(&|lost| ModelStep::Read { by: at, lost });
            if mirrored.news == MirrorNews::Orphaned {
                call(&|lost| ModelStep::Take { by: at, lost });
            }
            if mirrored.news == MirrorNews::Missing {
                found.push((ModelStep::Forget(at), world.budget));
            }
        }
        ReplicaRole::Mirror(_) | ReplicaRole::Idle => {}
    }
    if replica.repeats.is_some() {
        found.push((ModelStep::Repeat(at), world.budget));
    }
    spend(world, found, ModelStep::Stop { at, lost: false }, |left| &mut left.stops);
    if world.budget.stops > 0 && world.late.is_none() {
        spend(world, found, ModelStep::Stop { at, lost: true }, |left| &mut left.lost_calls);
    }
}

/// Adds the ways in which a new owner gives the answer back.
fn refusals(world: &ModelWorld, at: u8, found: &mut Steps) {
    for differs in [false, true] {
        let step = |lost| ModelStep::GiveBack { by: at, differs, lost };
        spend(world, found, step(false), |left| &mut left.refusals);
        if world.budget.refusals > 0 && world.late.is_none() {
            spend(world, found, step(true), |left| &mut left.lost_calls);
        }
    }
}

fn fault_steps(world: &ModelWorld, at: u8, found: &mut Steps) {
    match world.replicas[usize::from(at)].health {
        ReplicaHealth::Dead => {}
        ReplicaHealth::Live => {
            spend(world, found, ModelStep::Pause(at), |left| &mut left.pauses);
            spend(world, found, ModelStep::Cut(at), |left| &mut left.cuts);
            end_steps(world, at, found);
        }
        ReplicaHealth::Paused | ReplicaHealth::Cut => {
            found.push((ModelStep::Mend(at), world.budget));
            end_steps(world, at, found);
        }
    }
}

/// Adds the ends of replica `at`, unless it is the last one.
fn end_steps(world: &ModelWorld, at: u8, found: &mut Steps) {
    let living = world.replicas.iter().filter(|it| it.health != ReplicaHealth::Dead).count();
    if living > 1 {
        spend(world, found, ModelStep::Die(at), |left| &mut left.deaths);
        spend(world, found, ModelStep::Retire(at), |left| &mut left.leaves);
    }
}

fn reader_steps(world: &ModelWorld, reader: u8, found: &mut Steps) {
    let known = &world.readers[usize::from(reader)];
    if known.shown.is_whole() {
        return;
    }
    if known.at.is_some() {
        found.push((ModelStep::Show(reader), world.budget));
        spend(world, found, ModelStep::Detach(reader), |left| &mut left.moves);
        return;
    }
    for to in 0..world.replicas.len() as u8 {
        found.push((ModelStep::Attach { reader, to }, world.budget));
    }
}

fn store_steps(world: &ModelWorld, found: &mut Steps) {
    found.push((ModelStep::Tick, world.budget));
    if world.late.is_some() {
        found.push((ModelStep::LateCall, world.budget));
    }
    spend(world, found, ModelStep::StorePause, |left| &mut left.store_pauses);
    if world.standby.is_none() {
        // Paid when the writes stop: a standby that is never needed is no fault, and costs states.
        spend(world, found, ModelStep::Lag, |left| &mut left.failovers);
    } else {
        found.push((ModelStep::Failover, world.budget));
    }
}
