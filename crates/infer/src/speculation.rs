//! Decides by measurement how many draft tokens a step should verify.
//!
//! A draft token costs a row in the step and saves a step if it is accepted. Both sides are
//! measured: `StepCosts` learns step times by number of rows on this machine, an
//! [`AcceptanceStats`] how often a sequence's draft tokens are accepted. [`Speculator::limit`]
//! weighs them and drafts as far as it pays, which is not at all if texts do not repeat or rows are
//! expensive. A draft that was not computed is still compared with the next token, at no cost, so a
//! text that starts to repeat itself is noticed without trials.

use std::time::Duration;

/// Drafting mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Speculation {
    /// One token per sequence and step.
    #[default]
    Off,
    /// As many draft tokens as pay according to measurements.
    Auto,
    /// Always this many draft tokens, whatever they cost: for measurements and tests.
    Fixed(u32),
}

/// Maximum draft tokens of one sequence in one step. Chosen by hand: even at an acceptance rate of
/// 0.9 a seventeenth would bring 0.17 tokens.
pub const MAX_DRAFT_TOKENS: usize = 16;
/// Minimum gain worth a change: measured times vary by some percent.
const LEAST_GAIN: f64 = 1.05;

/// Numbers of a sequence's accepted and rejected draft tokens; recent ones count most.
#[derive(Debug, Clone, Copy, Default)]
pub struct AcceptanceStats {
    accepted: f64,
    rejected: f64,
}

impl AcceptanceStats {
    /// Weight that earlier outcomes keep at each new one: about five outcomes count. Chosen by
    /// hand: less follows a text faster, more is steadier.
    const MEMORY: f64 = 0.8;
    /// Weight of the rate of all sequences, in draft tokens.
    const PRIOR_TOKENS: f64 = 2.0;

    fn observe(&mut self, drafted: u32, accepted: u32, memory: f64) {
        self.accepted = self.accepted * memory + f64::from(accepted);
        // At most one rejection per draft: what follows the first rejected token was not tried.
        self.rejected = self.rejected * memory + f64::from(u8::from(accepted < drafted));
    }

    /// Probability that a draft token is accepted if those before it are.
    fn rate(&self, prior: f64) -> f64 {
        let total = self.accepted + self.rejected + Self::PRIOR_TOKENS;
        (self.accepted + prior * Self::PRIOR_TOKENS) / total
    }
}

/// Times of decode steps by their number of rows.
#[derive(Debug, Clone, Default)]
pub(crate) struct StepCosts {
    /// By rows: seconds, and the number of the step at which they were last measured.
    measured: Vec<Option<(f64, u64)>>,
    steps: u64,
}

impl StepCosts {
    /// Weight of the newest measurement.
    const WEIGHT: f64 = 0.25;
    /// A step slower than this multiple of the known time counts as this multiple: something else
    /// on the machine disturbed it.
    const MOST_SURPRISE: f64 = 2.0;
    /// Measurements older than this many steps are ignored: contexts grow, machines get busy.
    const MEMORY_STEPS: u64 = 256;
    /// Larger steps are not recorded, which bounds the table.
    pub const MOST_ROWS: usize = 512;

    pub fn observe(&mut self, rows: usize, took: Duration) {
        if rows > Self::MOST_ROWS {
            return;
        }
        self.steps += 1;
        if self.measured.len() <= rows {
            self.measured.resize(rows + 1, None);
        }
        let took_s = took.as_secs_f64();
        let old = self.known(rows).unwrap_or(took_s);
        let seconds = old + Self::WEIGHT * (took_s.min(old * Self::MOST_SURPRISE) - old);
        self.measured[rows] = Some((seconds, self.steps));
    }

    /// Recently measured seconds of a step of `rows` rows.
    fn known(&self, rows: usize) -> Option<f64> {
        let (seconds, at) = (*self.measured.get(rows)?)?;
        (self.steps - at <= Self::MEMORY_STEPS).then_some(seconds)
    }

    /// Most rows of a recently measured step.
    pub fn largest(&self) -> Option<usize> {
        (0..self.measured.len()).rev().find(|&rows| self.known(rows).is_some())
    }

    /// Seconds of the smallest recently measured step of more than `rows` rows.
    pub fn next_larger(&self, rows: usize) -> Option<f64> {
        (rows + 1..self.measured.len()).find_map(|rows| self.known(rows))
    }

    /// Expected seconds of a step of `rows` rows, interpolated or extrapolated on a straight line.
    ///
    /// From a single measurement it assumes that further rows cost nothing, so that they are tried.
    /// `None` for steps more than twice as large as any known: those in between are tried first.
    pub fn expected(&self, rows: usize) -> Option<f64> {
        if let Some(seconds) = self.known(rows) {
            return Some(seconds);
        }
        let point = |r: usize| self.known(r).map(|seconds| (r as f64, seconds));
        let mut below = (1..rows).rev().filter_map(point);
        let low = below.next()?;
        let above = (rows + 1..self.measured.len()).find_map(point);
        let slope = match (above, below.next()) {
            (Some(high), _) => (high.1 - low.1) / (high.0 - low.0),
            (None, Some(lower)) => (low.1 - lower.1) / (low.0 - lower.0),
            (None, None) => 0.0,
        };
        if above.is_none() && rows as f64 > 2.0 * low.0 {
            return None;
        }
        // More rows never take less time; a falling line is noise of the measurements.
        Some(low.1 + slope.max(0.0) * (rows as f64 - low.0))
    }
}

/// Measurements about drafting.
#[derive(Debug, Clone)]
pub struct Speculator {
    mode: Speculation,
    costs: StepCosts,
    /// Acceptance of all sequences together.
    acceptance: AcceptanceStats,
    draft_tokens: u64,
    accepted_tokens: u64,
}

impl Speculator {
    /// Weight that earlier outcomes of all sequences keep: about fifty count.
    const MEMORY: f64 = 0.98;

    /// Creates a speculator that expects half of the draft tokens to be accepted until measured.
    pub fn new(mode: Speculation) -> Self {
        let acceptance = AcceptanceStats { accepted: 1.0, rejected: 1.0 };
        let costs = StepCosts::default();
        Self { mode, costs, acceptance, draft_tokens: 0, accepted_tokens: 0 }
    }

    /// Maximum draft tokens of a sequence in one step; 0 if speculation is off.
    pub fn max_draft_tokens(&self) -> usize {
        match self.mode {
            Speculation::Off => 0,
            Speculation::Auto => MAX_DRAFT_TOKENS,
            Speculation::Fixed(most) => most as usize,
        }
    }

    /// Draft tokens computed so far, and the number of accepted ones.
    pub fn totals(&self) -> (u64, u64) {
        (self.draft_tokens, self.accepted_tokens)
    }

    /// Maximum draft tokens per sequence worth computing in a step that has `rows` rows without
    /// them. `drafts`: for each sequence with a draft, its length and the acceptance of earlier
    /// ones.
    pub fn limit(&self, rows: usize, drafts: &[(usize, AcceptanceStats)]) -> usize {
        match self.mode {
            Speculation::Auto => self.best_length(rows, drafts).unwrap_or(0),
            _ => self.max_draft_tokens(),
        }
    }

    /// The limit on all drafts that makes streams fastest in the geometric mean, so that the gain
    /// of one is weighed against longer steps for all. `None` until a plain step of this size, the
    /// basis of comparison, was measured.
    fn best_length(&self, rows: usize, drafts: &[(usize, AcceptanceStats)]) -> Option<usize> {
        let plain_s = self.costs.known(rows)?;
        let prior = self.acceptance.rate(0.5);
        // Gains are sums of logarithms over all rows: the geometric mean's exponent.
        let mut best = (0, rows as f64 * LEAST_GAIN.ln());
        let longest = drafts.iter().map(|(len, _)| *len).max().unwrap_or(0);
        for most in 1..=longest {
            let total: usize = drafts.iter().map(|(len, _)| *len.min(&most)).sum();
            let Some(step_s) = self.costs.expected(rows + total) else {
                continue;
            };
            let faster = |(len, acceptance): &(usize, AcceptanceStats)| {
                expected_tokens(acceptance.rate(prior), *len.min(&most)).ln()
            };
            // Every row pays for the longer step, also those of sequences without a draft.
            let gain =
                drafts.iter().map(faster).sum::<f64>() - rows as f64 * (step_s / plain_s).ln();
            if gain > best.1 {
                best = (most, gain);
            }
        }
        Some(best.0)
    }

    /// Learns from a step without prompts of `rows` rows, draft tokens included.
    pub fn observe_step(&mut self, rows: usize, took: Duration) {
        if self.mode == Speculation::Auto {
            self.costs.observe(rows, took);
        }
    }

    /// Learns whether a draft token that was not computed would have been accepted.
    pub fn observe_unverified(&mut self, acceptance: &mut AcceptanceStats, right: bool) {
        self.acceptance.observe(1, right.into(), Self::MEMORY);
        acceptance.observe(1, right.into(), AcceptanceStats::MEMORY);
    }

    /// Learns that the first `accepted` of `drafted` tokens were accepted.
    pub fn observe_draft(&mut self, acceptance: &mut AcceptanceStats, drafted: u32, accepted: u32) {
        self.draft_tokens += u64::from(drafted);
        self.accepted_tokens += u64::from(accepted);
        self.acceptance.observe(drafted, accepted, Self::MEMORY);
        acceptance.observe(drafted, accepted, AcceptanceStats::MEMORY);
    }
}

/// Expected tokens of a step for a sequence with a draft of `len` tokens, each accepted with
/// probability `rate` if those before it are.
fn expected_tokens(rate: f64, len: usize) -> f64 {
    (0..=len as i32).map(|i| rate.powi(i)).sum()
}

#[cfg(test)]
mod tests {
    //! Behavior of the policy on machines and texts with known costs.
    use super::*;

    /// A single stream on a machine where a step takes `step_ms(rows)`, and whose draft tokens are
    /// accepted according to `right`: returns ms per token over `steps` steps, divided by that
    /// without drafts.
    fn slowdown(
        step_ms: impl Fn(usize) -> f64,
        right: impl Fn(u64, usize) -> bool,
        steps: u64,
    ) -> f64 {
        let mut speculator = Speculator::new(Speculation::Auto);
        let mut stats = AcceptanceStats::default();
        let (mut took_ms, mut tokens) = (0.0, 0u64);
        for step in 0..steps {
            let len = speculator.limit(1, &[(MAX_DRAFT_TOKENS, stats)]);
            let accepted = (0..len).take_while(|&i| right(step, i)).count();
            took_ms += step_ms(1 + len);
            tokens += 1 + accepted as u64;
            speculator.observe_step(1 + len, Duration::from_secs_f64(step_ms(1 + len) / 1e3));
            match len {
                0 => speculator.observe_unverified(&mut stats, right(step, 0)),
                _ => speculator.observe_draft(&mut stats, len as u32, accepted as u32),
            }
        }
        took_ms / tokens as f64 / step_ms(1)
    }

    /// A cheap substitute for random numbers.
    fn often(percent: u64) -> impl Fn(u64, usize) -> bool {
        move |step, i| {
            (step * 31 + i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40
                < percent * (1 << 24) / 100
        }
    }

    /// Memory-bound: each further row costs a sixth of a step.
    fn cheap(rows: usize) -> f64 {
        12.5 + 2.5 * rows as f64
    }

    /// llama.cpp's own kernels: two rows cost nearly twice one.
    fn dear(rows: usize) -> f64 {
        15.0 * rows.min(4) as f64 + 4.0 * rows as f64
    }

    #[test]
    fn a_text_that_repeats_itself_is_several_times_as_fast() {
        let ratio = slowdown(cheap, |_, _| true, 300);
        assert!(ratio < 0.25, "{ratio}");
    }

    #[test]
    fn a_text_that_never_does_loses_next_to_nothing() {
        for costs in [cheap, dear] {
            let ratio = slowdown(costs, |_, _| false, 300);
            assert!((1.0..1.03).contains(&ratio), "{ratio}");
        }
    }

    #[test]
    fn middling_drafts_pay_where_rows_are_cheap_only() {
        let ratio = slowdown(cheap, often(50), 1000);
        assert!(ratio < 0.85, "{ratio}");
        let ratio = slowdown(dear, often(50), 1000);
        assert!(ratio < 1.05, "{ratio}");
    }

    #[test]
    fn a_text_that_begins_to_repeat_itself_is_noticed() {
        let late = slowdown(cheap, |step, _| step > 300, 900);
        assert!(late < 0.5, "{late}");
    }

    #[test]
    fn a_neighbour_is_not_held_up_for_little() {
        let mut speculator = Speculator::new(Speculation::Auto);
        for rows in [1, 2, 4, 8, 16] {
            speculator.observe_step(rows, Duration::from_secs_f64(rows as f64 / 1e3));
        }
        let sure = (4, AcceptanceStats { accepted: 5.0, rejected: 0.1 });
        // Rows cost their whole share of a step: nothing is to be had.
        assert_eq!(speculator.limit(4, &[sure; 4]), 0);
        assert_eq!(speculator.limit(4, &[sure]), 0);
        // Nearly free, drafts pay.
        for rows in [2, 4, 8, 16] {
            (0..50).for_each(|_| {
                speculator.observe_step(rows, Duration::from_micros(1000 + rows as u64))
            });
        }
        assert_eq!(speculator.limit(4, &[sure]), 4);
    }

    #[test]
    fn costs_are_read_off_a_line_and_forgotten() {
        let mut costs = StepCosts::default();
        assert_eq!(costs.expected(1), None);
        costs.observe(1, Duration::from_millis(10));
        assert_eq!(costs.expected(2), Some(0.01), "tried before it is known");
        assert_eq!(costs.expected(3), None, "but not at once");
        costs.observe(3, Duration::from_millis(14));
        assert!((costs.expected(2).unwrap() - 0.012).abs() < 1e-9);
        assert!((costs.expected(5).unwrap() - 0.018).abs() < 1e-9);
        costs.observe(3, Duration::from_millis(1000));
        assert!((costs.known(3).unwrap() - 0.0175).abs() < 1e-9, "a disturbed step counts little");
        (0..=StepCosts::MEMORY_STEPS).for_each(|_| costs.observe(1, Duration::from_millis(10)));
        assert_eq!(costs.known(3), None);
    }
}
