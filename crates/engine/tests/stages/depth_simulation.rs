//! A simulation of stages in virtual time: what the depth policy does on machines that are not
//! here. Deterministic; `--example pipeline_depth` uses it too and prints a table.

use std::collections::VecDeque;
use std::time::Duration;

use loquent_engine::staged::pipeline_depth::{BatchObservation, DepthPolicy, PipelineDepth};
use loquent_engine::staged::wire::StageTiming;

/// Stages, the processors that they compute on, and the links between them.
#[derive(Debug, Clone)]
pub struct Machines {
    /// Number of stages.
    pub stages: usize,
    /// Delay of a link, one way, in seconds; the way back from the last stage is one link.
    pub link_s: f64,
    /// Step times of the whole model: rising pairs of rows and seconds, with linear interpolation
    /// between them. Each stage takes an equal part of a step.
    pub step_s: Vec<(usize, f64)>,
    /// Whether stages share processors.
    pub processors: Processors,
}

/// The processors that stages compute on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Processors {
    /// A machine for each stage.
    Own,
    /// One processor for all: two stages that compute at once take twice as long each, times
    /// this factor. 1 is fair sharing; threads that spin for threads which cannot run take several
    /// times as long.
    Shared(f64),
    /// One processor for all, used by one stage after the other.
    InTurns,
}

/// Result of a simulated run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SimulationResult {
    /// Tokens per second over the second half of the run.
    pub tokens_per_s: f64,
    /// Pipeline depth at its end.
    pub depth: usize,
}

/// A batch in batch.
#[derive(Debug, Clone)]
struct SimulatedBatch {
    rows: usize,
    sequences: usize,
    submitted_s: f64,
    timings: Vec<StageTiming>,
    stage: usize,
}

#[derive(Debug)]
struct PipelineState {
    now_s: f64,
    /// For each stage the batches that wait, with the time of their arrival.
    queues: Vec<VecDeque<(SimulatedBatch, f64)>>,
    /// For each stage the batch that it computes, the seconds left, and the time of its start.
    working: Vec<Option<(SimulatedBatch, f64, f64)>>,
    /// Batches on links, with the time of their arrival.
    travelling: Vec<(f64, SimulatedBatch)>,
}

impl Machines {
    /// Step times measured with the Qwen3-0.6B shape in Q4_K_M and 2 threads.
    pub fn measured(stages: usize, link_s: f64) -> Self {
        let step_s = vec![(1, 0.029), (2, 0.041), (4, 0.049), (8, 0.078), (16, 0.093)];
        Self { stages, link_s, step_s, processors: Processors::Own }
    }

    /// Decodes with `sequences` that never end, for `seconds` of virtual time.
    pub fn run(&self, depth: PipelineDepth, sequences: usize, seconds: f64) -> SimulationResult {
        let mut policy = DepthPolicy::new(depth, self.stages);
        let mut state = PipelineState {
            now_s: 0.0,
            queues: vec![VecDeque::new(); self.stages],
            working: vec![None; self.stages],
            travelling: Vec::new(),
        };
        let (mut ready, mut in_flight, mut tokens) = (sequences, 0, 0usize);
        while state.now_s < seconds {
            while ready > 0 && in_flight < policy.depth() {
                let rows = ready.min(sequences.div_ceil(policy.depth()));
                (ready, in_flight) = (ready - rows, in_flight + 1);
                let submitted_s = state.now_s;
                let timings = Vec::new();
                let in_stages = sequences - ready;
                let batch =
                    SimulatedBatch { rows, sequences: in_stages, submitted_s, timings, stage: 0 };
                state.travelling.push((state.now_s + self.link_s, batch));
            }
            let Some(batch) = self.advance(&mut state) else { continue };
            (ready, in_flight) = (ready + batch.rows, in_flight - 1);
            tokens += if state.now_s > seconds / 2.0 { batch.rows } else { 0 };
            policy.observe(&self.observation(&state, &batch));
        }
        SimulationResult { tokens_per_s: tokens as f64 / (seconds / 2.0), depth: policy.depth() }
    }

    fn observation<'a>(
        &self,
        state: &PipelineState,
        batch: &'a SimulatedBatch,
    ) -> BatchObservation<'a> {
        let inside: u64 = batch
            .timings
            .iter()
            .map(|timing| u64::from(timing.wait_us) + u64::from(timing.compute_us))
            .sum();
        let all = Duration::from_secs_f64(state.now_s - batch.submitted_s);
        BatchObservation {
            now: Duration::from_secs_f64(state.now_s),
            rows: batch.rows,
            sequences: batch.sequences,
            timings: &batch.timings,
            link_time: all.saturating_sub(Duration::from_micros(inside)),
        }
    }

    /// Goes to the next event; returns a batch that has come back.
    fn advance(&self, state: &mut PipelineState) -> Option<SimulatedBatch> {
        let busy = state.working.iter().flatten().count();
        let slowdown = match self.processors {
            Processors::Shared(loss) if busy > 1 => busy as f64 * loss,
            _ => 1.0,
        };
        let ends = state.working.iter().flatten().map(|(_, left, _)| left * slowdown);
        let arrivals = state.travelling.iter().map(|(at, _)| at - state.now_s);
        let step = ends.chain(arrivals).fold(f64::INFINITY, f64::min).max(0.0);
        assert!(step.is_finite(), "a batch is computed or on a link");
        state.now_s += step;
        for (_, left, _) in state.working.iter_mut().flatten() {
            *left -= step / slowdown;
        }
        self.finish(state);
        let home = self.arrive(state);
        self.start(state);
        home
    }

    fn finish(&self, state: &mut PipelineState) {
        for stage in 0..self.stages {
            if state.working[stage].as_ref().is_some_and(|(_, left, _)| *left <= 1e-9) {
                let (mut batch, _, started) =
                    state.working[stage].take().expect("it was just seen");
                let timing = batch.timings.last_mut().expect("it was started");
                timing.compute_us = ((state.now_s - started) * 1e6) as u32;
                batch.stage = stage + 1;
                state.travelling.push((state.now_s + self.link_s, batch));
            }
        }
    }

    /// Returns at most one batch that has come back: the next call returns the next.
    fn arrive(&self, state: &mut PipelineState) -> Option<SimulatedBatch> {
        let is_here = |(at, _): &(f64, SimulatedBatch)| *at <= state.now_s + 1e-12;
        while let Some(index) = state.travelling.iter().position(is_here) {
            let (_, batch) = state.travelling.remove(index);
            if batch.stage == self.stages {
                return Some(batch);
            }
            state.queues[batch.stage].push_back((batch, state.now_s));
        }
        None
    }

    fn start(&self, state: &mut PipelineState) {
        for stage in 0..self.stages {
            let is_free = match self.processors {
                Processors::InTurns => state.working.iter().all(Option::is_none),
                _ => state.working[stage].is_none(),
            };
            if is_free && let Some((mut batch, queued)) = state.queues[stage].pop_front() {
                let wait_us = ((state.now_s - queued) * 1e6) as u32;
                batch.timings.push(StageTiming { wait_us, compute_us: 0 });
                let work = self.step(batch.rows) / self.stages as f64;
                state.working[stage] = Some((batch, work, state.now_s));
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
    //! The policy finds what a search over all depths finds, and never stays with a loss.
    use super::*;

    const SECONDS: f64 = 120.0;

    fn best_fixed(machines: &Machines, sequences: usize) -> SimulationResult {
        let all = (1..=16u8).map(|n| machines.run(PipelineDepth::Fixed(n), sequences, SECONDS));
        all.max_by(|a, b| a.tokens_per_s.total_cmp(&b.tokens_per_s)).unwrap()
    }

    #[test]
    fn on_separate_machines_it_comes_near_the_best() {
        for stages in [2, 3, 4, 6, 8] {
            for (sequences, link_s) in [(8, 0.005), (16, 0.0002), (16, 0.010), (32, 0.010)] {
                let machines = Machines::measured(stages, link_s);
                let auto = machines.run(PipelineDepth::Auto, sequences, SECONDS);
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
    fn depth_wins_where_each_stage_has_its_own_machine() {
        let machines = Machines::measured(2, 0.005);
        let off = machines.run(PipelineDepth::Fixed(1), 8, SECONDS);
        let on = machines.run(PipelineDepth::Auto, 8, SECONDS);
        assert!(on.depth > 1);
        assert!(on.tokens_per_s > 1.4 * off.tokens_per_s, "{on:?} against {off:?}");
    }

    #[test]
    fn on_a_shared_machine_it_goes_back_to_depth_1() {
        for stages in [2, 4] {
            let machines = Machines {
                processors: Processors::Shared(1.0),
                ..Machines::measured(stages, 0.00005)
            };
            let one = machines.run(PipelineDepth::Fixed(1), 16, SECONDS);
            let auto = machines.run(PipelineDepth::Auto, 16, SECONDS);
            assert!(auto.tokens_per_s > 0.97 * one.tokens_per_s, "{auto:?} against {one:?}");
        }
    }

    #[test]
    fn stages_that_take_turns_are_soon_recognised() {
        for (stages, sequences) in [(2, 8), (4, 16), (4, 8)] {
            let own = Machines::measured(stages, 0.010);
            let machines = Machines { processors: Processors::InTurns, ..own };
            // Soon: the first trial that fails shows that they take turns.
            let auto = machines.run(PipelineDepth::Auto, sequences, 20.0);
            let best = best_fixed(&machines, sequences);
            let share = auto.tokens_per_s / best.tokens_per_s;
            assert!(share > 0.9, "{stages} stages, {sequences} sequences: {auto:?} of {best:?}");
        }
    }

    #[test]
    fn contention_for_a_processor_ends_a_trial_at_once() {
        for stages in [2, 4] {
            let machines = Machines {
                processors: Processors::Shared(4.0),
                ..Machines::measured(stages, 0.00005)
            };
            // A trial costs some batches and is not soon repeated, so half of 20 s is lossless.
            let one = machines.run(PipelineDepth::Fixed(1), 16, 20.0);
            let auto = machines.run(PipelineDepth::Auto, 16, 20.0);
            assert_eq!(auto.depth, 1);
            assert!(auto.tokens_per_s > 0.99 * one.tokens_per_s, "{auto:?} against {one:?}");
        }
    }

    #[test]
    fn one_sequence_needs_depth_1() {
        let outcome = Machines::measured(4, 0.01).run(PipelineDepth::Auto, 1, 20.0);
        assert_eq!(outcome.depth, 1);
        let expected = 1.0 / (0.029 + 5.0 * 0.01);
        assert!((outcome.tokens_per_s / expected - 1.0).abs() < 0.02, "{outcome:?}");
    }
}
