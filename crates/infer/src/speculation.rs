//! How many guessed tokens a step should check, decided by measurement.
//!
//! A guess costs a row in the step and saves a step where it is right. Both sides are
//! measured: [`StepCosts`] learns what steps of so many rows take on this machine, a [`Record`]
//! how often a sequence's guesses are right. [`Speculator::cut`] weighs them and guesses as far
//! as it pays, which is not at all where texts do not repeat or rows are dear. A guess
//! that was not computed is still compared with the token that came, which costs nothing: so
//! a text that begins to repeat itself is noticed without trials.

use std::time::Duration;

/// Whether tokens are guessed ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Speculation {
    /// Never.
    #[default]
    Off,
    /// As far as it pays by what was measured.
    Auto,
    /// Always so many, whatever it costs: to measure and to test with.
    Fixed(u32),
}

/// Most guesses of one sequence in one step.
pub const MOST_GUESSES: usize = 16;
/// Least gain worth a change: measured times scatter by some percent.
const LEAST_GAIN: f64 = 1.05;

/// How a sequence's guesses fared; the recent ones count most.
#[derive(Debug, Clone, Copy, Default)]
pub struct Record {
    right: f64,
    wrong: f64,
}

impl Record {
    /// Weight that earlier outcomes keep at each new one.
    const MEMORY: f64 = 0.8;
    /// What other sequences' record counts for, in guesses.
    const PRIOR_GUESSES: f64 = 2.0;

    fn observe(&mut self, guessed: u32, agreed: u32, memory: f64) {
        self.right = self.right * memory + f64::from(agreed);
        // What follows the first wrong guess was not tried.
        self.wrong = self.wrong * memory + f64::from(u8::from(agreed < guessed));
    }

    /// The chance that a guess is right if those before it are.
    fn rate(&self, prior: f64) -> f64 {
        let total = self.right + self.wrong + Self::PRIOR_GUESSES;
        (self.right + prior * Self::PRIOR_GUESSES) / total
    }
}

/// What decode steps of so many rows take.
#[derive(Debug, Clone, Default)]
struct StepCosts {
    /// By rows: seconds, and the step at which they were last measured.
    measured: Vec<Option<(f64, u64)>>,
    steps: u64,
}

impl StepCosts {
    /// Weight of the newest measurement.
    const WEIGHT: f64 = 0.25;
    /// A disturbed step counts as at most so many times what was known.
    const MOST_SURPRISE: f64 = 2.0;
    /// Measurements older than this many steps are forgotten: contexts grow, machines get busy.
    const MEMORY_STEPS: u64 = 256;
    /// Larger steps are not learnt.
    const MOST_ROWS: usize = 512;

    fn observe(&mut self, rows: usize, took: Duration) {
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

    /// Seconds of a step of `rows` rows as measured lately.
    fn known(&self, rows: usize) -> Option<f64> {
        let (seconds, at) = (*self.measured.get(rows)?)?;
        (self.steps - at <= Self::MEMORY_STEPS).then_some(seconds)
    }

    /// The same, between and beyond what is known on a straight line; from a single
    /// measurement, that further rows cost nothing, so that they are tried. `None` for steps
    /// more than twice as large as any known: those in between are tried first.
    fn expected(&self, rows: usize) -> Option<f64> {
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
        Some(low.1 + slope.max(0.0) * (rows as f64 - low.0))
    }
}

/// What the engine has learnt about guessing.
#[derive(Debug, Clone)]
pub struct Speculator {
    mode: Speculation,
    costs: StepCosts,
    /// Of all sequences.
    record: Record,
    guessed_tokens: u64,
    agreed_tokens: u64,
}

impl Speculator {
    /// Weight that all sequences' earlier outcomes keep.
    const MEMORY: f64 = 0.98;

    /// Knows nothing yet, and takes guesses for right half of the time.
    pub fn new(mode: Speculation) -> Self {
        let record = Record { right: 1.0, wrong: 1.0 };
        Self { mode, costs: StepCosts::default(), record, guessed_tokens: 0, agreed_tokens: 0 }
    }

    /// Most guesses of a sequence, 0 where nothing is ever guessed.
    pub fn most_guesses(&self) -> usize {
        match self.mode {
            Speculation::Off => 0,
            Speculation::Auto => MOST_GUESSES,
            Speculation::Fixed(most) => most as usize,
        }
    }

    /// Guessed tokens that were computed so far, and those of them that were right.
    pub fn totals(&self) -> (u64, u64) {
        (self.guessed_tokens, self.agreed_tokens)
    }

    /// Most tokens of a guess to compute, in a step that has `rows` rows without guesses.
    /// `guesses`: for each sequence that has one, its length and how the earlier ones fared.
    pub fn cut(&self, rows: usize, guesses: &[(usize, Record)]) -> usize {
        match self.mode {
            Speculation::Auto => self.best_length(rows, guesses).unwrap_or(0),
            _ => self.most_guesses(),
        }
    }

    /// The bound on all guesses that makes streams fastest in the geometric mean, so that
    /// what one gains weighs against the longer steps of all. `None` before a plain step of
    /// this size was measured, with which all else is compared.
    fn best_length(&self, rows: usize, guesses: &[(usize, Record)]) -> Option<usize> {
        let plain_s = self.costs.known(rows)?;
        let prior = self.record.rate(0.5);
        let mut best = (0, rows as f64 * LEAST_GAIN.ln());
        let longest = guesses.iter().map(|(len, _)| *len).max().unwrap_or(0);
        for most in 1..=longest {
            let total: usize = guesses.iter().map(|(len, _)| *len.min(&most)).sum();
            let Some(step_s) = self.costs.expected(rows + total) else {
                continue;
            };
            let faster = |(len, record): &(usize, Record)| {
                expected_tokens(record.rate(prior), *len.min(&most)).ln()
            };
            let gain =
                guesses.iter().map(faster).sum::<f64>() - rows as f64 * (step_s / plain_s).ln();
            if gain > best.1 {
                best = (most, gain);
            }
        }
        Some(best.0)
    }

    /// Learns from a step of `rows` rows, guesses included, without prompts.
    pub fn observe_step(&mut self, rows: usize, took: Duration) {
        if self.mode == Speculation::Auto {
            self.costs.observe(rows, took);
        }
    }

    /// Learns whether a guess that was not computed was right.
    pub fn observe_unchecked(&mut self, record: &mut Record, right: bool) {
        self.record.observe(1, right.into(), Self::MEMORY);
        record.observe(1, right.into(), Record::MEMORY);
    }

    /// Learns that of `guessed` tokens the first `agreed` were right.
    pub fn observe_guesses(&mut self, record: &mut Record, guessed: u32, agreed: u32) {
        self.guessed_tokens += u64::from(guessed);
        self.agreed_tokens += u64::from(agreed);
        self.record.observe(guessed, agreed, Self::MEMORY);
        record.observe(guessed, agreed, Record::MEMORY);
    }
}

/// Tokens that a step brings a sequence with `len` guesses, each right at `rate` if those before it are.
fn expected_tokens(rate: f64, len: usize) -> f64 {
    (0..=len as i32).map(|i| rate.powi(i)).sum()
}

#[cfg(test)]
mod tests {
    //! What the policy does on machines and texts with known costs.
    use super::*;

    /// A stream alone, on a machine where a step takes `step_ms(rows)`, whose guesses are right as `right`
    /// says: ms per token over `steps` steps, divided by that without guesses.
    fn slowdown(
        step_ms: impl Fn(usize) -> f64,
        right: impl Fn(u64, usize) -> bool,
        steps: u64,
    ) -> f64 {
        let mut speculator = Speculator::new(Speculation::Auto);
        let mut record = Record::default();
        let (mut took_ms, mut tokens) = (0.0, 0u64);
        for step in 0..steps {
            let len = speculator.cut(1, &[(MOST_GUESSES, record)]);
            let agreed = (0..len).take_while(|&i| right(step, i)).count();
            took_ms += step_ms(1 + len);
            tokens += 1 + agreed as u64;
            speculator.observe_step(1 + len, Duration::from_secs_f64(step_ms(1 + len) / 1e3));
            match len {
                0 => speculator.observe_unchecked(&mut record, right(step, 0)),
                _ => speculator.observe_guesses(&mut record, len as u32, agreed as u32),
            }
        }
        took_ms / tokens as f64 / step_ms(1)
    }

    /// A cheap stand-in for chance.
    fn often(percent: u64) -> impl Fn(u64, usize) -> bool {
        move |step, i| {
            (step * 31 + i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40
                < percent * (1 << 24) / 100
        }
    }

    /// Memory-bound: a row more costs a sixth of a step.
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
    fn middling_guesses_pay_where_rows_are_cheap_only() {
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
        let sure = (4, Record { right: 5.0, wrong: 0.1 });
        // Rows cost their whole share of a step: nothing is to be had.
        assert_eq!(speculator.cut(4, &[sure; 4]), 0);
        assert_eq!(speculator.cut(4, &[sure]), 0);
        // Nearly free, they are.
        for rows in [2, 4, 8, 16] {
            (0..50).for_each(|_| {
                speculator.observe_step(rows, Duration::from_micros(1000 + rows as u64))
            });
        }
        assert_eq!(speculator.cut(4, &[sure]), 4);
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
