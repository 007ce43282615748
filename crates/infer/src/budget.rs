//! Limits the prefill of a step while other sequences decode.
//!
//! Prefill is compute-bound: every prompt token lengthens the step, and with it the inter-token
//! latency (ITL) of all decoding sequences. [`PrefillBudget`] measures the cost of a prompt token
//! on this machine and spends only the time that the ITL target leaves.

use std::time::Duration;

use crate::speculation::StepCosts;

/// Inter-token latency to keep for decoding sequences while prompts are computed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ItlTarget {
    /// At most this much time between two tokens.
    Fixed(Duration),
    /// At most `factor` times a step without prefill, but never less than `at_least`: where steps
    /// are short, a multiple of one leaves prompts too little.
    Relative {
        /// Multiple of a step without prefill.
        factor: f64,
        /// Minimum of the target.
        at_least: Duration,
    },
    /// No limit: prefill as fast as possible.
    Unbounded,
}

impl ItlTarget {
    /// A target of `factor` times a step without prefill, however short that is.
    pub const fn relative(factor: f64) -> Self {
        Self::Relative { factor, at_least: Duration::ZERO }
    }

    /// The target beside work that nobody reads as it comes: no minimum, as it can wait.
    pub const fn without_minimum(self) -> Self {
        match self {
            Self::Relative { factor, .. } => Self::relative(factor),
            Self::Fixed(_) | Self::Unbounded => self,
        }
    }
}

/// Minimum chunk of a step with prefill, whatever the target: prompts always progress. Behind 1,024
/// to 4,096 tokens of a prompt it makes a step of eight streams 1.6 to 2.2 times as long (`cargo
/// run --release -p loquent-engine --example prefill_beside`).
const MIN_CHUNK_TOKENS: u32 = 4;
/// Maximum chunk of prompts that nobody waits for: large enough for matrix products at nearly full
/// speed, small enough that little is lost when somebody comes and the step is given up.
const SPARE_CHUNK_TOKENS: u32 = 128;
/// Chunk of the first mixed step, before a prompt token's cost is known. Chosen by hand: a larger
/// one would give a better measurement, but makes this one step longer.
const PROBE_CHUNK_TOKENS: u32 = 32;
/// Weight of the newest observation. Chosen by hand: after four steps two thirds of a disturbance
/// are forgotten.
const EWMA_WEIGHT: f64 = 0.25;

#[derive(Debug, Clone, Copy, Default)]
struct Ewma(Option<f64>);

impl Ewma {
    fn observe(&mut self, value: f64) {
        let old = self.0.unwrap_or(value);
        self.0 = Some(old + EWMA_WEIGHT * (value - old));
    }

    /// Like `observe`, but a higher value counts at once: the target was missed.
    fn observe_cost(&mut self, value: f64) {
        match self.0 {
            Some(old) if value > old => self.0 = Some(value),
            _ => self.observe(value),
        }
    }
}

/// A step with more than this multiple of the most rows measured so far carries no prompt, so that
/// it is measured itself. Chosen by hand: a batch that grows to 64 is measured about fifteen times.
const MOST_GROWTH: f64 = 1.25;

/// Prefill tokens that each step may carry.
#[derive(Debug, Clone)]
pub struct PrefillBudget {
    max_tokens: u32,
    target: ItlTarget,
    decode_step_s: Ewma,
    /// Step times by number of rows.
    decode_costs: StepCosts,
    prefill_token_s: Ewma,
}

impl PrefillBudget {
    /// Creates a budget of at most `max_tokens` per step, fewer if `target` requires it.
    pub fn new(max_tokens: u32, target: ItlTarget) -> Self {
        Self {
            max_tokens: max_tokens.max(1),
            target,
            decode_step_s: Ewma::default(),
            decode_costs: StepCosts::default(),
            prefill_token_s: Ewma::default(),
        }
    }

    /// Prefill tokens for a step that also advances `decode_rows` sequences. 0 in the first such
    /// step, whose cost without prefill must be measured first.
    pub fn tokens(&self, decode_rows: usize) -> u32 {
        self.tokens_at(self.target, decode_rows)
    }

    /// Like [`Self::tokens`], for prompts that nobody waits for.
    pub fn spare_tokens(&self, decode_rows: usize) -> u32 {
        self.tokens_at(self.target.without_minimum(), decode_rows).min(SPARE_CHUNK_TOKENS)
    }

    fn tokens_at(&self, target: ItlTarget, decode_rows: usize) -> u32 {
        if decode_rows == 0 || target == ItlTarget::Unbounded {
            return self.max_tokens;
        }
        // Learning takes two steps: one without prefill, then one with a probe.
        let Some(step_s) = self.decode_s(decode_rows) else { return 0 };
        let Some(token_s) = self.prefill_token_s.0 else {
            return PROBE_CHUNK_TOKENS.min(self.max_tokens);
        };
        let target_s = match target {
            ItlTarget::Fixed(target) => target.as_secs_f64(),
            ItlTarget::Relative { factor, at_least } => {
                (step_s * factor).max(at_least.as_secs_f64())
            }
            ItlTarget::Unbounded => return self.max_tokens,
        };
        let affordable = ((target_s - step_s) / token_s.max(1e-9)).max(0.0) as u32;
        affordable.clamp(MIN_CHUNK_TOKENS.min(self.max_tokens), self.max_tokens)
    }

    /// Prefill tokens for a step of `decode_rows` rows that may take `step`, whatever the target.
    pub fn tokens_within(&self, decode_rows: usize, step: Duration) -> u32 {
        // An estimate will do, where a step without prompts would cost more than it tells.
        let (Some(rows_s), Some(token_s)) = (self.estimate_s(decode_rows), self.prefill_token_s.0)
        else {
            return self.tokens(decode_rows);
        };
        let rows_s = if decode_rows > 0 { rows_s } else { 0.0 };
        let affordable = ((step.as_secs_f64() - rows_s) / token_s.max(1e-9)).max(0.0) as u32;
        affordable.clamp(MIN_CHUNK_TOKENS.min(self.max_tokens), self.max_tokens)
    }

    /// Recent duration of steps without prefill.
    pub fn decode_step(&self) -> Option<Duration> {
        self.decode_step_s.0.map(Duration::from_secs_f64)
    }

    /// Seconds of a step of `rows` rows without prefill; `None` if it has to be measured. In a
    /// burst, steps carry prompts while the number of rows grows: an unknown cost of rows would be
    /// attributed to prompts.
    fn decode_s(&self, rows: usize) -> Option<f64> {
        let rows = rows.min(StepCosts::MOST_ROWS);
        let largest = self.decode_costs.largest()?;
        if rows as f64 > largest as f64 * MOST_GROWTH + 1.0 {
            return None;
        }
        self.estimate_s(rows)
    }

    /// Like `decode_s`, also for numbers of rows that were not measured; `None` far beyond all
    /// measured ones.
    fn estimate_s(&self, rows: usize) -> Option<f64> {
        let rows = rows.min(StepCosts::MOST_ROWS);
        self.decode_costs.expected(rows).or_else(|| self.decode_costs.next_larger(rows))
    }

    /// [`Self::tokens`] once both costs are known.
    pub fn usual_tokens(&self, decode_rows: usize) -> u32 {
        match self.tokens(decode_rows) {
            0 => PROBE_CHUNK_TOKENS.min(self.max_tokens),
            tokens => tokens,
        }
    }

    /// Learns from a step of `decode_rows` rows and `prefill_tokens` that took `took`.
    pub fn observe(&mut self, decode_rows: usize, prefill_tokens: u32, took: Duration) {
        let took_s = took.as_secs_f64();
        if prefill_tokens == 0 {
            self.decode_step_s.observe(took_s);
            self.decode_costs.observe(decode_rows, took);
            return;
        }
        // Only mixed steps are learnt from: among hundreds of its kind a prompt token costs less
        // than next to decode rows, since weights are read once for all of them.
        let (1.., Some(decode_s)) = (decode_rows, self.decode_s(decode_rows)) else { return };
        let extra_s = (took_s - decode_s).max(0.0);
        self.prefill_token_s.observe_cost(extra_s / f64::from(prefill_tokens));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A budget that has learned that a decode step takes 50 ms and a prompt token 5 ms.
    fn learned(target: ItlTarget) -> PrefillBudget {
        let mut budget = PrefillBudget::new(512, target);
        for _ in 0..20 {
            budget.observe(4, 0, Duration::from_millis(50));
            let chunk = budget.tokens(4);
            budget.observe(4, chunk, Duration::from_millis(50 + 5 * u64::from(chunk)));
        }
        budget
    }

    #[test]
    fn a_minimum_is_for_prompts_alone() {
        let auto = ItlTarget::Relative { factor: 2.0, at_least: Duration::from_millis(500) };
        let (prompts, others) =
            (learned(auto).tokens(4), learned(auto.without_minimum()).tokens(4));
        assert!((85..=95).contains(&prompts), "450 ms at 5 ms each: {prompts}");
        assert!((8..=12).contains(&others), "50 ms at 5 ms each: {others}");
        assert_eq!(learned(auto).spare_tokens(4), others);
        assert_eq!(learned(auto).spare_tokens(0), SPARE_CHUNK_TOKENS);
    }

    #[test]
    fn spends_what_the_target_leaves() {
        let tokens = learned(ItlTarget::Fixed(Duration::from_millis(150))).tokens(4);
        assert!((18..=21).contains(&tokens), "{tokens}");
        let tokens = learned(ItlTarget::relative(2.0)).tokens(4);
        assert!((9..=11).contains(&tokens), "{tokens}");
    }

    #[test]
    fn short_steps_leave_prompts_what_nobody_notices() {
        let at_least = Duration::from_millis(100);
        let tokens = learned(ItlTarget::Relative { factor: 1.1, at_least }).tokens(4);
        assert!((9..=11).contains(&tokens), "{tokens} tokens in 50 of 100 ms");
        let tokens = learned(ItlTarget::Relative { factor: 3.0, at_least }).tokens(4);
        assert!((18..=21).contains(&tokens), "{tokens}: a longer target counts");
    }

    #[test]
    fn a_dearer_token_counts_at_once_a_cheaper_one_slowly() {
        let mut budget = learned(ItlTarget::relative(2.0));
        budget.observe(4, 10, Duration::from_millis(50 + 200));
        assert_eq!(budget.tokens(4), MIN_CHUNK_TOKENS);
        for _ in 0..30 {
            budget.observe(4, 10, Duration::from_millis(50 + 20));
        }
        assert!((20..=25).contains(&budget.tokens(4)), "{}", budget.tokens(4));
    }

    #[test]
    fn rows_that_were_not_measured_lie_on_the_line_of_those_that_were() {
        let mut budget = PrefillBudget::new(512, ItlTarget::relative(2.0));
        let step =
            |rows: usize, tokens: u64| Duration::from_millis(10 + 4 * rows as u64 + 2 * tokens);
        for rows in [2, 4, 8, 16] {
            budget.observe(rows, 0, step(rows, 0));
        }
        budget.observe(4, 20, step(4, 20));
        for (rows, tokens) in [(12, 29), (16, 37), (20, 45)] {
            let got = budget.tokens(rows);
            assert!(got.abs_diff(tokens) <= 1, "{rows} rows take as long as {tokens}, not {got}");
            budget.observe(rows, tokens, step(rows, tokens.into()));
        }
        let few = budget.tokens(1);
        assert!(few.abs_diff(9) <= 1, "{few}: fewer rows cost no more than the fewest known");
        assert_eq!(budget.tokens(32), 0, "so many are measured first");
    }

    #[test]
    fn two_steps_teach_what_a_prompt_may_have() {
        let mut budget = PrefillBudget::new(512, ItlTarget::Fixed(Duration::from_millis(100)));
        assert_eq!(budget.tokens(4), 0);
        budget.observe(4, 0, Duration::from_millis(50));
        assert_eq!(budget.tokens(4), PROBE_CHUNK_TOKENS);
        budget.observe(4, 32, Duration::from_millis(50 + 16));
        assert_eq!(budget.tokens(4), 100, "though prompts leave no step alone");
    }

    #[test]
    fn what_a_prompt_costs_alone_is_no_measure() {
        let mut budget = PrefillBudget::new(512, ItlTarget::relative(2.0));
        budget.observe(0, 512, Duration::from_millis(100));
        budget.observe(4, 0, Duration::from_millis(50));
        assert_eq!(budget.tokens(4), PROBE_CHUNK_TOKENS);
    }

    #[test]
    fn an_impossible_target_still_makes_progress() {
        assert_eq!(learned(ItlTarget::Fixed(Duration::from_millis(1))).tokens(4), MIN_CHUNK_TOKENS);
    }

    #[test]
    fn alone_a_prompt_gets_everything() {
        assert_eq!(learned(ItlTarget::relative(2.0)).tokens(0), 512);
        assert_eq!(learned(ItlTarget::Unbounded).tokens(16), 512);
    }
}
