//! When a prompt will be computed: the engine's next steps, played through with what its latest
//! ones took.
//!
//! Nothing here reads a clock or knows a request. The scheduler's rules are followed in outline:
//! places in turn, one token of every answer per step, the rest of a step to the prompts, half of
//! it to the oldest. Prefix hits and the end of answers cannot be known: their means stand in.

use std::time::Duration;

use loquent_infer::request::Step;
use loquent_infer::scheduler::share_prefill;

/// Weight of the newest observation, of steps and of answers alike. Chosen by hand: a few tens of
/// steps, a second or so, are remembered.
const EWMA_WEIGHT: f64 = 0.1;
/// Most steps that are played through: minutes of computing, in less than a millisecond.
const MAX_STEPS: usize = 2048;
/// Length of an answer, tokens, before any has ended.
const UNKNOWN_ANSWER_TOKENS: f64 = 256.0;

#[derive(Debug, Clone, Copy, Default)]
struct MovingAverage(Option<f64>);

impl MovingAverage {
    fn observe(&mut self, value: f64) {
        let old = self.0.unwrap_or(value);
        self.0 = Some(old + EWMA_WEIGHT * (value - old));
    }
}

/// What a step with prompts takes, by their tokens in it: a straight line through the latest steps.
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

    /// Seconds of a step with so many prompt tokens; `None` before the first was observed.
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

/// What is left of one completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// Tokens of its prompt that are to be computed.
    pub prompt: u32,
    /// Most tokens that its answer may still have.
    pub answer: u32,
}

/// What the engine may do in one step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepRoom {
    /// Places in the batch.
    pub places: usize,
    /// Prompt tokens in a step that also carries answers.
    pub shared_tokens: u32,
    /// Prompt tokens in a step without answers.
    pub prefill_tokens: u32,
}

/// What the latest steps and answers were like.
#[derive(Debug, Clone, Default)]
pub struct Forecast {
    /// Steps of prompts alone.
    prefill: StepCost,
    /// Steps of prompts and answers.
    mixed: StepCost,
    /// Seconds of a step of answers alone.
    decode_s: MovingAverage,
    /// Tokens of an answer.
    answer_tokens: MovingAverage,
    /// Part of the answers that had all the tokens that they might have.
    full_part: MovingAverage,
    /// Part of a prompt that the prefix cache held.
    cached_part: MovingAverage,
    /// When the latest step ended, and what it took.
    latest: Option<(Duration, Duration)>,
}

impl Forecast {
    /// Learns from a step.
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

    /// Learns from an answer of so many tokens that has ended. `is_full`: it might have had no
    /// more.
    pub fn observe_answer(&mut self, tokens: u32, is_full: bool) {
        self.answer_tokens.observe(f64::from(tokens));
        self.full_part.observe(f64::from(u8::from(is_full)));
    }

    /// Learns from a prompt of which the prefix cache held a part.
    pub fn observe_prompt(&mut self, tokens: u32, cached: u32) {
        self.cached_part.observe(f64::from(cached) / f64::from(tokens.max(1)));
    }

    /// Tokens to be computed of a prompt that is not looked up in the prefix cache yet.
    pub fn uncached(&self, prompt: u32) -> u32 {
        let part = 1.0 - self.cached_part.0.unwrap_or(0.0);
        ((f64::from(prompt) * part).ceil() as u32).max(1)
    }

    /// What is left at `now` of the step that is under way, if one is.
    pub fn rest_of_step(&self, now: Duration) -> Duration {
        // The step under way is taken to last as long as the one before it.
        let rest = |(ended, took): (Duration, Duration)| (ended + took).saturating_sub(now);
        self.latest.map_or(Duration::ZERO, rest)
    }

    /// For each of `jobs`, the time until its prompt is computed: those with a place first, then
    /// the others in the order in which they will get one. `None` where nothing can be said.
    pub fn first_tokens(&self, room: StepRoom, jobs: &[Job]) -> Vec<Option<Duration>> {
        let mut play = Play::new(self, room, jobs);
        for _ in 0..MAX_STEPS {
            if !play.step() {
                break;
            }
        }
        play.first_tokens
    }

    /// Seconds of a step with `tokens` of prompts, and answers if `decodes`.
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

    /// Tokens to come of an answer that may have `most`.
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

/// The engine's future, played step by step.
struct Play<'a> {
    forecast: &'a Forecast,
    room: StepRoom,
    jobs: Vec<Job>,
    /// Those with a place, in the order in which they got it.
    placed: Vec<usize>,
    /// The first that has not had a place.
    next: usize,
    seconds: f64,
    first_tokens: Vec<Option<Duration>>,
    /// Prompts that are not computed.
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

    /// Plays one step; false if nothing is left to find out, or nothing can be.
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

    /// Adds tokens to the answers that have begun, and ends those that have all of theirs.
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

    /// A machine where a step takes 10 ms and each prompt token in it 1 ms more.
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
