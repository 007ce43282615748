//! Forecasts when prompts will be computed, by simulating the engine's next steps with the
//! durations of its latest ones.
//!
//! Nothing here reads a clock or knows a request. The simulation follows the scheduler's rules in
//! outline: places in turn, one token of every answer per step, the rest of a step for the prompts,
//! half of it for the oldest. Prefix hits and the lengths of answers are unknown: their means are
//! used.

use std::time::Duration;

use loquent_infer::request::Step;
use loquent_infer::scheduler::share_prefill;

/// Weight of the newest observation, for steps and answers alike. Chosen by hand: the average
/// covers a few tens of steps, a second or so.
const EWMA_WEIGHT: f64 = 0.1;
/// Maximum number of simulated steps: minutes of computing, in less than a millisecond.
const MAX_STEPS: usize = 2048;
/// Assumed length of an answer in tokens, before any has ended.
const UNKNOWN_ANSWER_TOKENS: f64 = 256.0;

#[derive(Debug, Clone, Copy, Default)]
struct MovingAverage(Option<f64>);

impl MovingAverage {
    fn observe(&mut self, value: f64) {
        let old = self.0.unwrap_or(value);
        self.0 = Some(old + EWMA_WEIGHT * (value - old));
    }
}

/// Cost of a step with prompts as a function of its prompt tokens: a linear fit to the latest
/// steps.
#[derive(Debug, Clone, Copy, Default)]
struct StepCost {
    tokens: MovingAverage,
    seconds: MovingAverage,
    squares: MovingAverage,
    products: MovingAverage,
}

impl StepCost {
    fn observe(&mut self, tokens: f64, seconds: f64) {
        self.tokens.observe(tokens);
        self.seconds.observe(seconds);
        self.squares.observe(tokens * tokens);
        self.products.observe(tokens * seconds);
    }

    /// Returns the seconds of a step with `tokens` prompt tokens; `None` before the first
    /// observation.
    fn of(&self, tokens: f64) -> Option<f64> {
        let (x, y) = (self.tokens.0?, self.seconds.0?);
        let variance = self.squares.0? - x * x;
        // Steps that are all alike tell nothing about others: then time goes with tokens. So it
        // does at most, or a step without any would take less than no time.
        let slope = match variance > 0.01 * x * x {
            true => (self.products.0? - x * y) / variance,
            false => y / x.max(1.0),
        };
        let slope = slope.clamp(0.0, y / x.max(1.0));
        Some(y + slope * (tokens - x))
    }
}

/// Remaining work of one completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// Prompt tokens left to compute.
    pub prompt: u32,
    /// Maximum number of tokens left in its answer.
    pub answer: u32,
}

/// Limits of one step of the engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepRoom {
    /// Places in the batch.
    pub places: usize,
    /// Prompt tokens in a step that also carries answers.
    pub shared_tokens: u32,
    /// Prompt tokens in a step without answers.
    pub prefill_tokens: u32,
}

/// Averages over the latest steps and answers.
#[derive(Debug, Clone, Default)]
pub struct Forecast {
    /// Cost of a step that computes only prompts.
    prefill: StepCost,
    /// Cost of a step with prompts and answers.
    mixed: StepCost,
    /// Seconds of a step with answers only.
    decode_s: MovingAverage,
    /// Tokens per answer.
    answer_tokens: MovingAverage,
    /// Fraction of answers that reached their token limit.
    full_part: MovingAverage,
    /// Fraction of a prompt found in the prefix cache.
    cached_part: MovingAverage,
    /// End and duration of the latest step.
    latest: Option<(Duration, Duration)>,
}

impl Forecast {
    /// Updates the averages with a step.
    pub fn observe(&mut self, step: &Step) {
        if step.rows == 0 {
            return;
        }
        // In a pipeline a step begins before the one before it has ended.
        let before = self.latest.map_or(Duration::ZERO, |(ended, _)| ended);
        let took = step.finished.saturating_sub(step.started.max(before));
        self.latest = Some((step.finished, took));
        let (tokens, seconds) = (f64::from(step.prefill_tokens), took.as_secs_f64());
        match (step.prefills, step.rows - step.prefills) {
            (0, _) => self.decode_s.observe(seconds),
            (_, 0) => self.prefill.observe(tokens, seconds),
            _ => self.mixed.observe(tokens, seconds),
        }
    }

    /// Updates the averages with a finished answer of `tokens`. `is_full`: it reached its token
    /// limit.
    pub fn observe_answer(&mut self, tokens: u32, is_full: bool) {
        self.answer_tokens.observe(f64::from(tokens));
        self.full_part.observe(f64::from(u8::from(is_full)));
    }

    /// Updates the averages with a prompt, `cached` tokens of which were in the prefix cache.
    pub fn observe_prompt(&mut self, tokens: u32, cached: u32) {
        self.cached_part.observe(f64::from(cached) / f64::from(tokens.max(1)));
    }

    /// Returns the expected number of tokens to compute for a prompt that was not looked up in the
    /// prefix cache yet.
    pub fn uncached(&self, prompt: u32) -> u32 {
        let part = 1.0 - self.cached_part.0.unwrap_or(0.0);
        ((f64::from(prompt) * part).ceil() as u32).max(1)
    }

    /// Returns the remaining time at `now` of the current step, if there is one.
    pub fn rest_of_step(&self, now: Duration) -> Duration {
        // The step under way is taken to last as long as the one before it.
        let rest = |(ended, took): (Duration, Duration)| (ended + took).saturating_sub(now);
        self.latest.map_or(Duration::ZERO, rest)
    }

    /// Returns for each of `jobs` the time until its prompt is computed. The jobs with a place come
    /// first, then the others in the order in which they will get one. `None` if unknown.
    pub fn first_tokens(&self, room: StepRoom, jobs: &[Job]) -> Vec<Option<Duration>> {
        let mut play = Play::new(self, room, jobs);
        for _ in 0..MAX_STEPS {
            if !play.step() {
                break;
            }
        }
        play.first_tokens
    }

    /// Returns the seconds of a step with `tokens` of prompts, and with answers if `decodes`.
    fn step_s(&self, tokens: u32, decodes: bool) -> Option<f64> {
        let x = f64::from(tokens);
        match (tokens, decodes) {
            (0, _) => self.decode_s.0.or_else(|| self.mixed.of(1.0)),
            (_, true) => self
                .mixed
                .of(x)
                .or_else(|| Some(self.decode_s.0.unwrap_or(0.0) + self.prefill.of(x)?)),
            (_, false) => self.prefill.of(x).or_else(|| self.mixed.of(x)),
        }
    }

    /// Returns the expected number of tokens left in an answer that may have `most`.
    fn answer(&self, most: u32) -> u32 {
        let mean = self.answer_tokens.0.unwrap_or(UNKNOWN_ANSWER_TOKENS);
        let most = f64::from(most);
        // An answer that ends by itself is expected to have as many tokens again as any has in all,
        // whatever it has had. One that is cut off has all that it may have.
        let full = self.full_part.0.unwrap_or(0.0);
        let expected = full * most + (1.0 - full) * most.min(mean);
        (expected.round() as u32).max(1)
    }
}

/// Simulation of the engine's future, step by step.
struct Play<'a> {
    forecast: &'a Forecast,
    room: StepRoom,
    jobs: Vec<Job>,
    /// Jobs with a place, in the order in which they got it.
    placed: Vec<usize>,
    /// First job that has not had a place.
    next: usize,
    seconds: f64,
    first_tokens: Vec<Option<Duration>>,
    /// Number of prompts not computed yet.
    open: usize,
}

impl<'a> Play<'a> {
    fn new(forecast: &'a Forecast, room: StepRoom, jobs: &[Job]) -> Self {
        let expected = |job: &Job| Job { answer: forecast.answer(job.answer), ..*job };
        Self {
            forecast,
            room,
            jobs: jobs.iter().map(expected).collect(),
            placed: Vec::new(),
            next: 0,
            seconds: 0.0,
            first_tokens: vec![None; jobs.len()],
            open: jobs.iter().filter(|job| job.prompt > 0).count(),
        }
    }

    /// Simulates one step. Returns false if all first tokens are known, or no more can be forecast.
    fn step(&mut self) -> bool {
        // As the scheduler does, whoever is next gets a place before the step is planned.
        while self.placed.len() < self.room.places.max(1) && self.next < self.jobs.len() {
            self.placed.push(self.next);
            self.next += 1;
        }
        if self.open == 0 {
            return false;
        }
        let is_prompt = |&&at: &&usize| self.jobs[at].prompt > 0;
        let prompts: Vec<usize> = self.placed.iter().filter(is_prompt).copied().collect();
        let decoding = self.placed.len() - prompts.len();
        let steps = match prompts.is_empty() {
            false => 1,
            // Until the first answer ends, all steps are alike.
            true => self.placed.iter().map(|&at| self.jobs[at].answer).min().unwrap_or(1).max(1),
        };
        // Prompts may not slow down those who read; without readers they have all of the step.
        let budget = if decoding > 0 { self.room.shared_tokens } else { self.room.prefill_tokens };
        let pending: Vec<u32> = prompts.iter().map(|&at| self.jobs[at].prompt).collect();
        let parts = share_prefill(budget.max(1), &pending);
        let Some(step_s) = self.forecast.step_s(parts.iter().sum(), decoding > 0) else {
            return false;
        };
        self.seconds += step_s * f64::from(steps);
        // Before the prompts: one that ends in this step samples once, and does not decode in it.
        self.decode(steps);
        for (at, part) in prompts.into_iter().zip(parts) {
            self.prefill(at, part);
        }
        true
    }

    /// Adds tokens to the answers that have begun, and ends those that are complete.
    fn decode(&mut self, steps: u32) {
        let jobs = &mut self.jobs;
        self.placed.retain(|&at| {
            let job = &mut jobs[at];
            if job.prompt == 0 {
                job.answer = job.answer.saturating_sub(steps);
            }
            job.prompt > 0 || job.answer > 0
        });
    }

    fn prefill(&mut self, at: usize, tokens: u32) {
        let job = &mut self.jobs[at];
        job.prompt -= tokens;
        if job.prompt == 0 {
            // The step that computes a prompt's end samples the first token.
            job.answer = job.answer.saturating_sub(1).max(1);
            self.first_tokens[at] = Duration::try_from_secs_f64(self.seconds).ok();
            self.open -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: StepRoom = StepRoom { places: 2, shared_tokens: 10, prefill_tokens: 100 };

    fn step(at_ms: &mut u64, took_ms: u64, rows: u32, prefills: u32, prefill_tokens: u32) -> Step {
        let started = Duration::from_millis(*at_ms);
        *at_ms += took_ms;
        let finished = Duration::from_millis(*at_ms);
        Step { started, finished, rows, prefills, prefill_tokens, ..Step::default() }
    }

    /// Creates the forecast of a machine on which a step takes 10 ms plus 1 ms per prompt token.
    fn learned() -> Forecast {
        let (mut forecast, mut now) = (Forecast::default(), 0);
        for round in 0..50 {
            let tokens = 20 + 20 * (round % 5);
            forecast.observe(&step(&mut now, 10, 2, 0, 0));
            forecast.observe(&step(&mut now, 10 + u64::from(tokens), 1, 1, tokens));
            forecast.observe(&step(&mut now, 10 + u64::from(tokens), 3, 1, tokens));
            forecast.observe_answer(50, false);
        }
        forecast
    }

    fn first_tokens_ms(jobs: &[(u32, u32)]) -> Vec<Option<u128>> {
        let jobs: Vec<Job> = jobs.iter().map(|&(prompt, answer)| Job { prompt, answer }).collect();
        let found = learned().first_tokens(ROOM, &jobs);
        found.into_iter().map(|time| time.map(|time| time.as_millis())).collect()
    }

    fn near(found: Option<u128>, expected: u128) -> bool {
        found.is_some_and(|found| found.abs_diff(expected) <= expected / 20 + 1)
    }

    #[test]
    fn a_prompt_alone_takes_as_long_as_its_chunks() {
        let found = first_tokens_ms(&[(250, 10)]);
        assert!(near(found[0], 3 * 10 + 250), "{found:?}");
    }

    #[test]
    fn beside_an_answer_a_prompt_has_what_the_target_leaves() {
        let found = first_tokens_ms(&[(0, 1000), (40, 10)]);
        assert_eq!(found[0], None, "its first token was there before");
        assert!(near(found[1], 4 * 20), "{found:?}");
    }

    #[test]
    fn who_waits_for_a_place_waits_for_an_end() {
        // Two answers with 5 and 100 tokens to go; the mean of 50 counts where it is less.
        let found = first_tokens_ms(&[(0, 5), (0, 100), (10, 10), (10, 10)]);
        assert!(near(found[2], 5 * 10 + 20), "{found:?}");
        // The third has its place until its answer ends: 9 more tokens, the second has 44.
        assert!(near(found[3], 5 * 10 + 20 + 9 * 10 + 20), "{found:?}");
    }

    #[test]
    fn where_answers_are_cut_off_the_limit_counts() {
        let mut forecast = learned();
        assert_eq!([forecast.answer(20), forecast.answer(400)], [20, 50]);
        (0..100).for_each(|_| forecast.observe_answer(50, true));
        assert_eq!([forecast.answer(20), forecast.answer(400)], [20, 400]);
    }

    #[test]
    fn nothing_is_said_before_anything_was_seen() {
        let forecast = Forecast::default();
        assert_eq!(forecast.first_tokens(ROOM, &[Job { prompt: 5, answer: 5 }]), [None]);
    }

    #[test]
    fn what_the_cache_held_lately_is_not_expected_to_be_computed() {
        let mut forecast = Forecast::default();
        assert_eq!(forecast.uncached(100), 100);
        (0..100).for_each(|_| forecast.observe_prompt(400, 300));
        assert_eq!(forecast.uncached(100), 25);
        assert_eq!(forecast.uncached(0), 1);
    }

    #[test]
    fn a_step_under_way_ends_when_it_would() {
        let mut forecast = Forecast::default();
        assert_eq!(forecast.rest_of_step(Duration::ZERO), Duration::ZERO);
        forecast.observe(&step(&mut 100, 40, 1, 0, 0));
        assert_eq!(forecast.rest_of_step(Duration::from_millis(150)), Duration::from_millis(30));
        assert_eq!(forecast.rest_of_step(Duration::from_millis(500)), Duration::ZERO);
    }
}
