//! Stages as a model in virtual time: what the grouping policy does on machines that are
//! not here. Deterministic; `--example stage_groups` prints a table.

use std::collections::VecDeque;
use std::time::Duration;

use super::groups::{Groups, Observation, Policy};
use super::wire::Lap;

/// Machines, each with one stage, and the links between them.
#[derive(Debug, Clone)]
pub struct Machines {
    /// Stages.
    pub stages: usize,
    /// One way of a hop, in seconds; the way back from the last stage is one hop.
    pub hop_s: f64,
    /// A step of the whole model by its rows, in seconds: pairs (rows, seconds), rising;
    /// between them it is a straight line. A stage takes its equal part.
    pub step_s: Vec<(usize, f64)>,
    /// Whether they are machines at all.
    pub processors: Processors,
}

/// Where stages compute.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Processors {
    /// Each on a machine of its own.
    Own,
    /// All on one machine's processor: two that work take twice as long each, times this. 1 is
    /// fair; threads that spin for others which cannot run take several times that.
    Shared(f64),
    /// All on one machine's processor, one after the other.
    InTurns,
}

/// What came of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// Tokens a second over the second half of the run.
    pub tokens_per_s: f64,
    /// Groups at its end.
    pub groups: usize,
}

/// A batch on its way.
#[derive(Debug, Clone)]
struct Flight {
    rows: usize,
    sequences: usize,
    submitted_s: f64,
    trace: Vec<Lap>,
    stage: usize,
}

#[derive(Debug)]
struct World {
    now_s: f64,
    /// Batches that wait at each stage, and the one that is computed with the work left.
    queues: Vec<VecDeque<(Flight, f64)>>,
    working: Vec<Option<(Flight, f64, f64)>>,
    /// Arrival times of what is on links.
    travelling: Vec<(f64, Flight)>,
}

impl Machines {
    /// The measured steps of the Qwen3-0.6B shape in Q4_K_M with 2 threads.
    pub fn measured(stages: usize, hop_s: f64) -> Self {
        let step_s = vec![(1, 0.029), (2, 0.041), (4, 0.049), (8, 0.078), (16, 0.093)];
        Self { stages, hop_s, step_s, processors: Processors::Own }
    }

    /// Decodes with `sequences` that never end, for `seconds`.
    pub fn run(&self, groups: Groups, sequences: usize, seconds: f64) -> Outcome {
        let mut policy = Policy::new(groups, self.stages);
        let mut world = World {
            now_s: 0.0,
            queues: vec![VecDeque::new(); self.stages],
            working: vec![None; self.stages],
            travelling: Vec::new(),
        };
        let (mut ready, mut in_flight, mut tokens) = (sequences, 0, 0usize);
        while world.now_s < seconds {
            while ready > 0 && in_flight < policy.groups() {
                let rows = ready.min(sequences.div_ceil(policy.groups()));
                (ready, in_flight) = (ready - rows, in_flight + 1);
                let submitted_s = world.now_s;
                let trace = Vec::new();
                let flying = sequences - ready;
                let flight = Flight { rows, sequences: flying, submitted_s, trace, stage: 0 };
                world.travelling.push((world.now_s + self.hop_s, flight));
            }
            let Some(flight) = self.advance(&mut world) else { continue };
            (ready, in_flight) = (ready + flight.rows, in_flight - 1);
            tokens += if world.now_s > seconds / 2.0 { flight.rows } else { 0 };
            policy.observe(&self.observation(&world, &flight));
        }
        Outcome { tokens_per_s: tokens as f64 / (seconds / 2.0), groups: policy.groups() }
    }

    fn observation<'a>(&self, world: &World, flight: &'a Flight) -> Observation<'a> {
        let inside: u64 =
            flight.trace.iter().map(|lap| u64::from(lap.wait_us) + u64::from(lap.compute_us)).sum();
        let all = Duration::from_secs_f64(world.now_s - flight.submitted_s);
        Observation {
            now: Duration::from_secs_f64(world.now_s),
            rows: flight.rows,
            sequences: flight.sequences,
            trace: &flight.trace,
            on_links: all.saturating_sub(Duration::from_micros(inside)),
        }
    }

    /// Goes to the next event; gives a batch that has come back.
    fn advance(&self, world: &mut World) -> Option<Flight> {
        let busy = world.working.iter().flatten().count();
        let slowdown = match self.processors {
            Processors::Shared(loss) if busy > 1 => busy as f64 * loss,
            _ => 1.0,
        };
        let ends = world.working.iter().flatten().map(|(_, left, _)| left * slowdown);
        let arrivals = world.travelling.iter().map(|(at, _)| at - world.now_s);
        let step = ends.chain(arrivals).fold(f64::INFINITY, f64::min).max(0.0);
        assert!(step.is_finite(), "somebody works or travels");
        world.now_s += step;
        for (_, left, _) in world.working.iter_mut().flatten() {
            *left -= step / slowdown;
        }
        self.finish(world);
        let home = self.arrive(world);
        self.start(world);
        home
    }

    fn finish(&self, world: &mut World) {
        for stage in 0..self.stages {
            if world.working[stage].as_ref().is_some_and(|(_, left, _)| *left <= 1e-9) {
                let (mut flight, _, started) = world.working[stage].take().expect("just seen");
                let lap = flight.trace.last_mut().expect("it was started");
                lap.compute_us = ((world.now_s - started) * 1e6) as u32;
                flight.stage = stage + 1;
                world.travelling.push((world.now_s + self.hop_s, flight));
            }
        }
    }

    /// At most one batch comes back at a time: the next call has the next.
    fn arrive(&self, world: &mut World) -> Option<Flight> {
        let is_here = |(at, _): &(f64, Flight)| *at <= world.now_s + 1e-12;
        while let Some(index) = world.travelling.iter().position(is_here) {
            let (_, flight) = world.travelling.remove(index);
            if flight.stage == self.stages {
                return Some(flight);
            }
            world.queues[flight.stage].push_back((flight, world.now_s));
        }
        None
    }

    fn start(&self, world: &mut World) {
        for stage in 0..self.stages {
            let is_free = match self.processors {
                Processors::InTurns => world.working.iter().all(Option::is_none),
                _ => world.working[stage].is_none(),
            };
            if is_free && let Some((mut flight, queued)) = world.queues[stage].pop_front() {
                let wait_us = ((world.now_s - queued) * 1e6) as u32;
                flight.trace.push(Lap { wait_us, compute_us: 0 });
                let work = self.step(flight.rows) / self.stages as f64;
                world.working[stage] = Some((flight, work, world.now_s));
            }
        }
    }

    fn step(&self, rows: usize) -> f64 {
        let after = self.step_s.iter().position(|(known, _)| *known >= rows);
        let (&(r1, s1), &(r0, s0)) = match after {
            Some(0) | None => {
                return self.step_s.last().filter(|_| after.is_none()).map_or_else(
                    || self.step_s[0].1,
                    |(most, seconds)| seconds * rows as f64 / *most as f64,
                );
            }
            Some(index) => (&self.step_s[index], &self.step_s[index - 1]),
        };
        s0 + (s1 - s0) * (rows - r0) as f64 / (r1 - r0) as f64
    }
}

#[cfg(test)]
mod tests {
    //! The policy finds what a search over all numbers finds, and never stays with a loss.
    use super::*;

    const SECONDS: f64 = 120.0;

    fn best_fixed(machines: &Machines, sequences: usize) -> Outcome {
        let all = (1..=16u8).map(|n| machines.run(Groups::Fixed(n), sequences, SECONDS));
        all.max_by(|a, b| a.tokens_per_s.total_cmp(&b.tokens_per_s)).unwrap()
    }

    #[test]
    fn on_machines_of_their_own_it_comes_near_the_best() {
        for stages in [2, 3, 4, 6, 8] {
            for (sequences, hop_s) in [(8, 0.005), (16, 0.0002), (16, 0.010), (32, 0.010)] {
                let machines = Machines::measured(stages, hop_s);
                let auto = machines.run(Groups::Auto, sequences, SECONDS);
                let best = best_fixed(&machines, sequences);
                let share = auto.tokens_per_s / best.tokens_per_s;
                assert!(
                    share > 0.9,
                    "{stages} stages, {sequences} sequences: {auto:?} of {best:?}"
                );
            }
        }
    }

    #[test]
    fn groups_win_where_each_stage_has_its_own_machine() {
        let machines = Machines::measured(2, 0.005);
        let off = machines.run(Groups::Fixed(1), 8, SECONDS);
        let on = machines.run(Groups::Auto, 8, SECONDS);
        assert!(on.groups > 1);
        assert!(on.tokens_per_s > 1.4 * off.tokens_per_s, "{on:?} against {off:?}");
    }

    #[test]
    fn on_a_shared_machine_it_goes_back_to_one() {
        for stages in [2, 4] {
            let machines = Machines {
                processors: Processors::Shared(1.0),
                ..Machines::measured(stages, 0.00005)
            };
            let one = machines.run(Groups::Fixed(1), 16, SECONDS);
            let auto = machines.run(Groups::Auto, 16, SECONDS);
            assert!(auto.tokens_per_s > 0.97 * one.tokens_per_s, "{auto:?} against {one:?}");
        }
    }

    #[test]
    fn stages_that_take_turns_are_soon_known_to() {
        for (stages, sequences) in [(2, 8), (4, 16), (4, 8)] {
            let own = Machines::measured(stages, 0.010);
            let machines = Machines { processors: Processors::InTurns, ..own };
            // Soon: the first number that was tried in vain shows that they take turns.
            let auto = machines.run(Groups::Auto, sequences, 20.0);
            let best = best_fixed(&machines, sequences);
            let share = auto.tokens_per_s / best.tokens_per_s;
            assert!(share > 0.9, "{stages} stages, {sequences} sequences: {auto:?} of {best:?}");
        }
    }

    #[test]
    fn stages_that_fight_for_a_processor_are_parted_at_once() {
        for stages in [2, 4] {
            let machines = Machines {
                processors: Processors::Shared(4.0),
                ..Machines::measured(stages, 0.00005)
            };
            // Settled within ten seconds: a trial costs some batches, and is not soon repeated.
            let one = machines.run(Groups::Fixed(1), 16, 20.0);
            let auto = machines.run(Groups::Auto, 16, 20.0);
            assert_eq!(auto.groups, 1);
            assert!(auto.tokens_per_s > 0.99 * one.tokens_per_s, "{auto:?} against {one:?}");
        }
    }

    #[test]
    fn one_sequence_is_one_group() {
        let outcome = Machines::measured(4, 0.01).run(Groups::Auto, 1, 20.0);
        assert_eq!(outcome.groups, 1);
        let expected = 1.0 / (0.029 + 5.0 * 0.01);
        assert!((outcome.tokens_per_s / expected - 1.0).abs() < 0.02, "{outcome:?}");
    }
}
