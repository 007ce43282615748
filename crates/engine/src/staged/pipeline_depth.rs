//! Pipeline depth: number of batches in flight through the stages at once.
//!
//! With one batch in flight a stage idles while the others work. With two, the sequences are spread
//! over two smaller batches, each of which costs more than half of the large one, but stages and
//! links work at the same time. The best depth depends on the cost of a stage at each batch size,
//! on the links, and on whether stages share processors; the last cannot be queried.
//! [`DepthPolicy`] therefore predicts throughput from measured times, tries a depth that promises a
//! gain, and goes back if the gain does not come.
//!
//! The constants below are of two kinds. Some are based on a measurement, which is named. The
//! others were chosen by hand and are validated by the simulation in
//! `tests/stages/depth_simulation.rs`: within 10 % of the best fixed depth on 2 to 8 machines, and
//! within 3 % of depth 1 if stages share a processor.

use std::collections::BTreeMap;
use std::time::Duration;

use super::MAX_PIPELINE_DEPTH;
use super::wire::StageTiming;

/// The operator's choice of a pipeline depth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PipelineDepth {
    /// Found by measuring, from 1 on.
    #[default]
    Auto,
    /// Fixed at 1 to [`MAX_PIPELINE_DEPTH`].
    Fixed(u8),
}

impl std::str::FromStr for PipelineDepth {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<u8>() {
            Ok(n) if (1..=MAX_PIPELINE_DEPTH as u8).contains(&n) => Ok(Self::Fixed(n)),
            _ if text == "auto" => Ok(Self::Auto),
            _ => Err(format!("use \"auto\" or 1 to {MAX_PIPELINE_DEPTH}")),
        }
    }
}

/// Minimum predicted gain over the current depth for a trial, as a factor. Chosen by hand: a failed
/// trial costs about a second, so a promise within the noise is not worth one.
const WORTH_TRYING: f64 = 1.04;
/// Minimum gain of a trial to be kept, as a factor. Chosen by hand, below [`WORTH_TRYING`]:
/// predictions are slightly too high, since they leave out the server's work between two batches.
const WORTH_KEEPING: f64 = 1.02;
/// Minimum predicted gain of a greater depth over a smaller one, as a factor. Chosen by hand: of
/// equals the smaller wins, because its batches are larger and cost less in total.
const WORTH_DEEPER: f64 = 1.01;
/// Rounds (one batch of every group) in a measurement. Chosen by hand: at the 71 to 78 ms a round
/// of four stages (`bench/stages.sh MODEL four`) a measurement takes under a second.
const ROUNDS: usize = 10;
/// Rounds before a measurement that do not count: batches submitted at the previous depth are still
/// in flight in the first, and the new groups fill the stages one after the other.
const SETTLING_ROUNDS: usize = 2;
/// Counted rounds after which a poor trial ends early.
const FIRST_ROUNDS: usize = 3;
/// Fraction of the speed before the trial below which it counts as poor. Chosen by hand: three
/// rounds are too few to distinguish a small loss from noise.
const BAD: f64 = 0.93;
/// Initial and maximum backoff of a depth that lost; doubled each time it loses again. Chosen by
/// hand: a trial takes about a second, so trials cost less than a hundredth in the long run.
const FIRST_BACKOFF: Duration = Duration::from_secs(4);
const LONGEST_BACKOFF: Duration = Duration::from_secs(120);
/// Ratio of the stage times of a trial's batches to those of earlier batches of their size at which
/// stages count as contending for processors. Two stages that share a processor fairly take twice
/// as long; with compute threads that spin for threads that cannot run they take several times as
/// long. Before this limit existed, such trials held two stages on two cores to 165.6 tokens/s,
/// against 245.7 at depth 1 (`bench/stages.sh MODEL loopback`).
const CONTENTION: f64 = 2.5;
/// Initial and maximum time that depths with contention are avoided, and that a measured
/// parallelism counts; doubled each time. Longer than [`FIRST_BACKOFF`], since the number of
/// processors does not change as load does, and such a trial costs several times as much.
const FIRST_CONTENTION_BACKOFF: Duration = Duration::from_secs(30);
const LONGEST_CONTENTION_BACKOFF: Duration = Duration::from_secs(600);
/// Fraction of the prediction below which stages must have waited for each other. Chosen by hand,
/// to leave room for noise: four stages that take turns, with 10 ms on each link, reach about 0.8
/// of the prediction at depth 2, and less at greater depths.
const AS_PREDICTED: f64 = 0.9;
/// Ratio of the most to the fewest sequences in flight at which a measurement is no longer
/// comparable. Before this limit existed, 16 requests that followed a single one stayed at depth 2
/// and 100 tokens/s, 0.35 of one process (`bench/stages.sh MODEL single`).
const STEADY: usize = 2;
/// Weight of a new measurement in a moving average. Chosen by hand: half of the average comes from
/// the last three batches, so it follows a sequence that grows and smooths single outliers.
const NEW: f64 = 0.2;

/// One finished decode batch.
#[derive(Debug, Clone, Copy)]
pub struct BatchObservation<'a> {
    /// Time of its return, since any fixed moment.
    pub now: Duration,
    /// Rows of the batch: one for each of its sequences.
    pub rows: usize,
    /// Sequences in all batches in flight at its submission, its own included.
    pub sequences: usize,
    /// Wait and computation in each stage.
    pub timings: &'a [StageTiming],
    /// Time outside the stages: on links, and in the server.
    pub link_time: Duration,
}

/// Chooses the pipeline depth from the times of finished batches.
#[derive(Debug)]
pub struct DepthPolicy {
    choice: PipelineDepth,
    current: usize,
    /// For each stage, seconds of a batch by its size class.
    costs: Vec<BTreeMap<u32, f64>>,
    links_s: f64,
    window: MeasurementWindow,
    trial: Option<DepthTrial>,
    /// Backoffs by size class of the sequences and depth.
    backoffs: BTreeMap<(u32, usize), DepthBackoff>,
    contention: Option<Contention>,
    effective: Option<EffectiveParallelism>,
}

/// Time until which a measurement counts, and the length of that period.
#[derive(Debug, Clone, Copy)]
struct DepthBackoff {
    until: Duration,
    length: Duration,
}

impl DepthBackoff {
    /// Starts a period at `now`, twice as long as `last`.
    fn after(last: Option<Self>, now: Duration, first: Duration, longest: Duration) -> Self {
        let length = last.map_or(first, |last| last.length * 2).min(longest);
        Self { until: now + length, length }
    }
}

/// Depths at which stages are expected to contend for processors.
#[derive(Debug, Clone, Copy)]
struct Contention {
    /// The smallest of these depths.
    depth: usize,
    backoff: DepthBackoff,
}

/// Effective parallelism of stages that do not slow each other down and yet yield less than
/// predicted: they take turns.
#[derive(Debug, Clone, Copy)]
struct EffectiveParallelism {
    /// Average number of stages that compute at once, at least 1.
    stages: f64,
    backoff: DepthBackoff,
}

/// A measurement in progress.
#[derive(Debug, Default)]
struct MeasurementWindow {
    batches: usize,
    rows: usize,
    /// Sum of the computation in all stages.
    busy_s: f64,
    /// Most and fewest sequences in flight.
    sequences: usize,
    fewest: Option<usize>,
    since: Duration,
}

impl MeasurementWindow {
    fn is_steady(&self) -> bool {
        self.fewest.is_some_and(|fewest| self.sequences < STEADY * fewest)
    }

    fn seconds(&self, now: Duration) -> f64 {
        now.saturating_sub(self.since).as_secs_f64().max(1e-9)
    }

    fn rows_per_s(&self, now: Duration) -> f64 {
        self.rows as f64 / self.seconds(now)
    }

    fn count(&mut self, seen: &BatchObservation<'_>) {
        self.rows += seen.rows;
        self.busy_s += seen.timings.iter().map(compute_s).sum::<f64>();
        self.sequences = self.sequences.max(seen.sequences);
        self.fewest = Some(self.fewest.map_or(seen.sequences, |n| n.min(seen.sequences)));
    }
}

/// A depth on trial, and the speed that it must exceed.
#[derive(Debug, Clone, Copy)]
struct DepthTrial {
    before: usize,
    rows_per_s: f64,
    class: u32,
    /// Batches of the trial so far, their time in the stages, and the time expected for them.
    batches: usize,
    actual_s: f64,
    expected_s: f64,
}

/// Size class of a batch: two for each doubling. Batches of one class cost about the same.
fn class(rows: usize) -> u32 {
    (rows.max(1) as f64).log2().mul_add(2.0, 0.5) as u32
}

fn compute_s(timing: &StageTiming) -> f64 {
    f64::from(timing.compute_us) / 1e6
}

impl DepthPolicy {
    /// Creates a policy for a model of `stages` stages.
    pub fn new(choice: PipelineDepth, stages: usize) -> Self {
        let current = match choice {
            PipelineDepth::Auto => 1,
            PipelineDepth::Fixed(n) => usize::from(n).clamp(1, MAX_PIPELINE_DEPTH),
        };
        Self {
            choice,
            current,
            costs: vec![BTreeMap::new(); stages],
            links_s: 0.0,
            window: MeasurementWindow::default(),
            trial: None,
            backoffs: BTreeMap::new(),
            contention: None,
            effective: None,
        }
    }

    /// Maximum batches in flight now, at least 1.
    pub fn depth(&self) -> usize {
        self.current
    }

    /// Learns from a decode batch, and may change the depth.
    pub fn observe(&mut self, seen: &BatchObservation<'_>) {
        if self.is_contended(seen) {
            // Its times describe the contention and not the stages, so they are not averaged.
            return self.end_contended_trial(seen.now);
        }
        self.average(seen);
        if self.choice != PipelineDepth::Auto {
            return;
        }
        let window = &mut self.window;
        window.batches += 1;
        if window.batches <= SETTLING_ROUNDS * self.current {
            window.since = seen.now;
            return;
        }
        window.count(seen);
        let rounds = window.batches / self.current;
        if rounds >= SETTLING_ROUNDS + ROUNDS {
            self.judge(seen.now);
        } else if rounds == SETTLING_ROUNDS + FIRST_ROUNDS {
            self.end_bad_trial(seen.now);
        }
    }

    fn average(&mut self, seen: &BatchObservation<'_>) {
        for (costs, timing) in self.costs.iter_mut().zip(seen.timings) {
            let seconds = compute_s(timing);
            let cost = costs.entry(class(seen.rows)).or_insert(seconds);
            *cost += NEW * (seconds - *cost);
        }
        self.links_s += NEW * (seen.link_time.as_secs_f64() - self.links_s);
    }

    /// Returns true if the depth on trial makes stages slow each other down.
    fn is_contended(&mut self, seen: &BatchObservation<'_>) -> bool {
        let Some(trial) = &mut self.trial else { return false };
        let stages = self.costs.iter().zip(seen.timings);
        for (costs, timing) in stages {
            trial.expected_s += cost(costs, seen.rows);
            trial.actual_s += compute_s(timing);
        }
        trial.batches += 1;
        // A whole round, since a single batch may have met a busy moment of the machine; but no
        // more: five rounds of contention cost a third of a short run of `bench/stages.sh`.
        trial.batches >= self.current && trial.actual_s > CONTENTION * trial.expected_s
    }

    fn end_contended_trial(&mut self, now: Duration) {
        let trial = self.trial.take().expect("contention is looked for in trials only");
        let last = self.contention.map(|last| last.backoff);
        let backoff =
            DepthBackoff::after(last, now, FIRST_CONTENTION_BACKOFF, LONGEST_CONTENTION_BACKOFF);
        // Half of the depth may still win: some links are long, and some processors are free.
        self.contention = Some(Contention { depth: self.current / 2 + 1, backoff });
        self.window = MeasurementWindow::default();
        self.current = trial.before;
    }

    /// Ends a trial early if its first rounds are much slower than the previous depth.
    fn end_bad_trial(&mut self, now: Duration) {
        let rows_per_s = self.window.rows_per_s(now);
        if let Some(trial) = self.trial.filter(|trial| rows_per_s < trial.rows_per_s * BAD) {
            let window = std::mem::take(&mut self.window);
            self.learn_parallelism(now, &window);
            self.back_off(now, trial);
        }
    }

    /// Ends a measurement: keeps or drops the depth on trial, and possibly begins another trial.
    fn judge(&mut self, now: Duration) {
        let window = std::mem::take(&mut self.window);
        let rows_per_s = window.rows_per_s(now);
        let class = class(window.sequences);
        match self.trial.take() {
            // The load has changed, so the two speeds cannot be compared.
            Some(trial) if trial.class != class || !window.is_steady() => {
                return self.current = trial.before;
            }
            Some(trial) => {
                self.learn_parallelism(now, &window);
                if rows_per_s < trial.rows_per_s * WORTH_KEEPING {
                    return self.back_off(now, trial);
                }
            }
            None => {}
        }
        // A trial would be compared with the speed of another load, and kept though it loses.
        if !window.is_steady() {
            return;
        }
        if let Some(effective) = &mut self.effective
            && effective.backoff.until <= now
        {
            // Only its effect ends: its length is kept, so that the next one counts longer.
            effective.stages = f64::INFINITY;
        }
        let (best, promise) = self.best(window.sequences, rows_per_s, now);
        if best != self.current && promise > rows_per_s * WORTH_TRYING {
            self.begin_trial(best, rows_per_s, class);
        } else if self.current > window.sequences.max(1) {
            self.current = window.sequences.max(1);
        }
    }

    fn begin_trial(&mut self, depth: usize, rows_per_s: f64, class: u32) {
        let before = self.current;
        let (batches, actual_s, expected_s) = (0, 0.0, 0.0);
        self.trial = Some(DepthTrial { before, rows_per_s, class, batches, actual_s, expected_s });
        self.current = depth;
    }

    /// Returns to the depth before `trial`, and does not try this one again for a while.
    fn back_off(&mut self, now: Duration, trial: DepthTrial) {
        self.trial = None;
        let key = (trial.class, self.current);
        let last = self.backoffs.get(&key).copied();
        self.backoffs.insert(key, DepthBackoff::after(last, now, FIRST_BACKOFF, LONGEST_BACKOFF));
        self.current = trial.before;
    }

    /// Records how many stages compute at once, if a trial fell short of its prediction. By now its
    /// batch sizes are measured, so the shortfall is not due to their costs.
    fn learn_parallelism(&mut self, now: Duration, window: &MeasurementWindow) {
        let promise = self.predict(window.sequences, self.current);
        if window.is_steady() && window.rows_per_s(now) < promise * AS_PREDICTED {
            let last = self.effective.map(|last| last.backoff);
            let backoff = DepthBackoff::after(
                last,
                now,
                FIRST_CONTENTION_BACKOFF,
                LONGEST_CONTENTION_BACKOFF,
            );
            // At least 1: below that the links were the limit, and they are predicted already.
            let stages = (window.busy_s / window.seconds(now)).max(1.0);
            self.effective = Some(EffectiveParallelism { stages, backoff });
        }
    }

    /// Returns the most promising depth and its rows per second; the current one has `rows_per_s`.
    fn best(&self, sequences: usize, rows_per_s: f64, now: Duration) -> (usize, f64) {
        let class = class(sequences);
        let contends = |depth: usize| {
            self.contention.is_some_and(|it| depth >= it.depth && it.backoff.until > now)
        };
        let backs_off =
            |depth: usize| self.backoffs.get(&(class, depth)).is_some_and(|it| it.until > now);
        let promise = |depth: usize| match depth {
            _ if depth == self.current => Some((depth, rows_per_s)),
            _ if contends(depth) || backs_off(depth) => None,
            _ => Some((depth, self.predict(sequences, depth))),
        };
        let promises = (1..=sequences.clamp(1, MAX_PIPELINE_DEPTH)).filter_map(promise);
        promises
            .fold((1, 0.0), |best, next| if next.1 > best.1 * WORTH_DEEPER { next } else { best })
    }

    /// Predicted rows per second of `sequences` in `depth` groups, if stages do not slow each other
    /// down.
    fn predict(&self, sequences: usize, depth: usize) -> f64 {
        let rows = sequences.div_ceil(depth);
        let costs: Vec<f64> = self.costs.iter().map(|costs| cost(costs, rows)).collect();
        let slowest = costs.iter().copied().fold(0.0, f64::max);
        let all = costs.iter().sum::<f64>();
        let at_once = self.effective.map_or(f64::INFINITY, |effective| effective.stages);
        // A round takes as long as the tightest of three limits: the slowest stage serves every
        // group; one group goes through all stages and links; all the computation is done by the
        // stages that compute at once.
        let round =
            (slowest * depth as f64).max(all + self.links_s).max(all * depth as f64 / at_once);
        sequences as f64 / round.max(1e-9)
    }
}

/// Seconds of a batch of `rows`: measured at this size, or inferred from the nearest one.
fn cost(costs: &BTreeMap<u32, f64>, rows: usize) -> f64 {
    let wanted = class(rows);
    let nearest = costs.iter().min_by_key(|(known, _)| known.abs_diff(wanted));
    nearest.map_or(0.0, |(&known, &seconds)| {
        let ratio = ((f64::from(wanted) - f64::from(known)) / 2.0).exp2();
        // A step reads the weights whatever its size, so half of the cost is taken for constant.
        // It only has to be good enough for a trial, which then measures the size itself.
        seconds * (0.5 + 0.5 * ratio)
    })
}

#[cfg(test)]
mod tests {
    //! Tests which measurements are comparable; `tests/stages/depth_simulation.rs` tests the rest.
    use super::*;

    /// Feeds a policy of two stages with `rounds` batches of `rows`, each 20 ms in both stages.
    fn decode(policy: &mut DepthPolicy, now: &mut Duration, rows: usize, rounds: usize) {
        let timing = StageTiming { wait_us: 0, compute_us: 20_000 };
        for _ in 0..rounds {
            *now += Duration::from_millis(50);
            policy.observe(&BatchObservation {
                now: *now,
                rows,
                sequences: rows,
                timings: &[timing, timing],
                link_time: Duration::from_millis(10),
            });
        }
    }

    #[test]
    fn a_trial_does_not_begin_while_the_load_grows() {
        let (mut policy, mut now) = (DepthPolicy::new(PipelineDepth::Auto, 2), Duration::ZERO);
        decode(&mut policy, &mut now, 1, SETTLING_ROUNDS + ROUNDS / 2);
        decode(&mut policy, &mut now, 16, ROUNDS / 2);
        assert_eq!(policy.depth(), 1, "it would compare with the speed of another load");
        decode(&mut policy, &mut now, 16, SETTLING_ROUNDS + ROUNDS);
        assert!(policy.depth() > 1, "the load is steady, and two stages idle half of the time");
    }

    #[test]
    fn a_backoff_doubles_up_to_its_maximum() {
        let s = Duration::from_secs;
        let first = DepthBackoff::after(None, s(10), s(4), s(10));
        assert_eq!((first.until, first.length), (s(14), s(4)));
        let second = DepthBackoff::after(Some(first), s(20), s(4), s(10));
        assert_eq!((second.until, second.length), (s(28), s(8)));
        assert_eq!(DepthBackoff::after(Some(second), s(30), s(4), s(10)).length, s(10));
    }
}
