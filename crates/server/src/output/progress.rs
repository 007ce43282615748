//! What readers are told before the first token: their place in the queue, how much of the prompt is
//! computed, and when the first token may be expected.
//!
//! The engine says now and then where prompts stand ([`Standing`]); a [`Forecast`] says what that
//! means in time. What a reader is told is bounded in rate, and nothing is told to one that has not
//! read the last news.

use std::time::Duration;

use loquent_infer::request::{SequenceEvent, Standing, Tag};
use loquent_proto::{Delta, Progress};

use super::{OutputProcessor, RunningCompletion};
use crate::flush::Flush;
use crate::forecast::{Forecast, Job, StepRoom};

/// Least time between two reports to a reader.
const PERIOD: Duration = Duration::from_millis(500);
/// Reports become rarer, up to this part of the time that has passed, so that an hour in the queue
/// costs a log a few kilobytes at most.
const PERIOD_PART: u32 = 20;
/// Least time between two forecasts for all that wait.
const FORECAST_PERIOD: Duration = Duration::from_millis(250);
/// A reader who did not ask is told nothing of waits shorter than this.
const WORTH_TELLING: Duration = Duration::from_millis(250);

/// What a reader is told before the first token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProgressWish {
    /// Nothing: it gets the answer in one piece, or another completion's progress is its own.
    #[default]
    Nothing,
    /// Waits that are worth it.
    LongWaits,
    /// Everything: it asked.
    Everything,
}

/// A completion's turn in the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    /// Its prompt is being computed, as the so-manieth.
    Computing(usize),
    /// It has its first token.
    Answering,
    /// It is the so-manieth of those who wait.
    Waiting(usize),
    /// The engine has not said anything of it: it is behind all those who wait.
    Fresh(u32),
}

/// Where one completion stands.
#[derive(Debug)]
pub(super) struct PromptProgress {
    wish: ProgressWish,
    turn: Turn,
    prompt: u32,
    cached: u32,
    known: u32,
    /// Most tokens that its answer may still have.
    answer_left: u32,
    generated: u32,
    started: Duration,
    told: Option<Duration>,
    /// The first forecast: when the first token was expected.
    expected: Option<Duration>,
}

impl PromptProgress {
    /// Of a completion that starts `now`, with a number that grows from one to the next.
    pub fn new(wish: ProgressWish, prompt: usize, answer: u32, number: u32, now: Duration) -> Self {
        Self {
            wish,
            turn: Turn::Fresh(number),
            prompt: u32::try_from(prompt).unwrap_or(u32::MAX),
            cached: 0,
            known: 0,
            answer_left: answer,
            generated: 0,
            started: now,
            told: None,
            expected: None,
        }
    }

    fn job(&self, forecast: &Forecast) -> Job {
        let prompt = match self.turn {
            Turn::Answering => 0,
            Turn::Computing(_) => self.prompt.saturating_sub(self.known).max(1),
            Turn::Waiting(_) | Turn::Fresh(_) => forecast.uncached(self.prompt),
        };
        Job { prompt, answer: self.answer_left }
    }

    /// Whether the reader should be told at `now` that the first token is `eta` away, and there are
    /// so many before it in the queue.
    fn is_due(&self, now: Duration, queued: u32, eta: Option<Duration>) -> bool {
        let waited = now.saturating_sub(self.started);
        let is_worth = queued > 0
            || self.told.is_some()
            || waited.max(eta.unwrap_or_default()) >= WORTH_TELLING;
        let rested = match self.told {
            None => true,
            Some(told) => now.saturating_sub(told) >= PERIOD.max(waited / PERIOD_PART),
        };
        rested
            && match self.wish {
                ProgressWish::Nothing => false,
                ProgressWish::LongWaits => is_worth,
                ProgressWish::Everything => true,
            }
    }

    fn tell(&self, now: Duration, queued: u32, eta: Option<Duration>) -> Delta {
        let millis = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        Delta::Progress(Progress {
            queued,
            eta_ms: eta.map(millis),
            total: self.prompt,
            cached: self.cached,
            processed: self.known,
            elapsed_ms: millis(now.saturating_sub(self.started)),
        })
    }
}

/// What is known of all completions together.
#[derive(Debug, Default)]
pub(super) struct ProgressBoard {
    forecast: Forecast,
    room: StepRoom,
    forecast_at: Option<Duration>,
}

impl ProgressBoard {
    pub fn forecast_mut(&mut self) -> &mut Forecast {
        &mut self.forecast
    }
}

/// A completion without its first token, in its turn.
struct Expected {
    tag: Tag,
    /// Place in the queue, from 1; 0 with a place in the batch, or one that is free.
    queued: u32,
    eta: Option<Duration>,
}

impl OutputProcessor {
    /// Tells a request that has just started where it stands. Its completions share their prompt's
    /// fate, so the first one speaks for all.
    pub(super) fn greet(&mut self, now: Duration, tag: Tag) {
        let wish = self.find(tag).map(|running| running.progress.wish);
        if wish.is_none_or(|wish| wish == ProgressWish::Nothing) {
            return;
        }
        // The engine is amid a step, of which the newcomer has no part.
        let rest = self.board.forecast.rest_of_step(now);
        let all = self.expect(rest);
        if let Some(expected) = all.iter().find(|expected| expected.tag == tag) {
            self.tell(now, expected);
        }
    }

    /// Takes in where the prompts stand, and tells those who are due for news.
    pub(super) fn handle_standing(&mut self, now: Duration, standing: &Standing) {
        let Standing { places, shared_tokens, prefill_tokens, .. } = *standing;
        self.board.room = StepRoom { places, shared_tokens, prefill_tokens };
        for (at, &tag) in standing.waiting.iter().enumerate() {
            self.take_turn(tag, Turn::Waiting(at));
        }
        for (at, prompt) in standing.computing.iter().enumerate() {
            self.take_turn(prompt.tag, Turn::Computing(at));
            if let Some(running) = self.find(prompt.tag) {
                (running.progress.cached, running.progress.known) = (prompt.cached, prompt.known);
            }
        }
        let last = self.board.forecast_at;
        if last.is_some_and(|last| now.saturating_sub(last) < FORECAST_PERIOD) {
            return;
        }
        self.board.forecast_at = Some(now);
        for expected in self.expect(Duration::ZERO) {
            self.tell(now, &expected);
        }
    }

    /// One put back amid its answer waits for nobody's first token.
    fn take_turn(&mut self, tag: Tag, turn: Turn) {
        if let Some(running) = self.find(tag)
            && running.progress.turn != Turn::Answering
        {
            running.progress.turn = turn;
        }
    }

    /// Forecasts the first tokens of all completions without one. The next step begins after
    /// `rest`.
    fn expect(&self, rest: Duration) -> Vec<Expected> {
        let mut all: Vec<(Turn, Tag, &PromptProgress)> = self
            .running
            .iter()
            .map(|(index, running)| (running.progress.turn, running.tag(index), &running.progress))
            .collect();
        all.sort_unstable_by_key(|(turn, ..)| *turn);
        let forecast = &self.board.forecast;
        let jobs: Vec<Job> = all.iter().map(|(.., progress)| progress.job(forecast)).collect();
        let etas = forecast.first_tokens(self.board.room, &jobs);
        let placed = |turn: &Turn| matches!(turn, Turn::Computing(_) | Turn::Answering);
        let mut free =
            self.board.room.places.saturating_sub(all.iter().filter(|all| placed(&all.0)).count());
        if self.board.room == StepRoom::default() {
            free = usize::MAX;
        }
        let mut ahead = 0;
        let expected =
            |((turn, tag, _), eta): (&(Turn, Tag, &PromptProgress), Option<Duration>)| {
                let queued = match turn {
                    Turn::Computing(_) | Turn::Answering => 0,
                    // Nobody is before it, and a place is free: it is in the next step.
                    Turn::Fresh(_) if ahead == 0 && free > 0 => {
                        free -= 1;
                        0
                    }
                    Turn::Waiting(_) | Turn::Fresh(_) => {
                        ahead += 1;
                        ahead
                    }
                };
                Expected { tag: *tag, queued, eta: eta.map(|eta| eta + rest) }
            };
        let unanswered = |((turn, ..), _): &(&(Turn, Tag, &PromptProgress), Option<Duration>)| {
            *turn != Turn::Answering
        };
        all.iter().zip(etas).filter(unanswered).map(expected).collect()
    }

    fn tell(&mut self, now: Duration, expected: &Expected) {
        let Expected { tag, queued, eta } = *expected;
        let Some(running) = self.find(tag) else { return };
        let progress = &mut running.progress;
        if progress.expected.is_none() {
            progress.expected = eta.map(|eta| now + eta);
        }
        // Whoever has not read the last news needs no more, and cannot fill the server with it.
        if progress.is_due(now, queued, eta) && running.flushes.unread_bytes() == 0 {
            progress.told = Some(now);
            let deltas = vec![progress.tell(now, queued, eta)];
            let choice = running.completion.choice();
            running.flushes.send(Flush { choice, deltas, ..Flush::default() });
        }
    }
}

impl RunningCompletion {
    /// Counts a token. With the first, whoever asked learns that the prompt is complete; returns by
    /// how much the first forecast was wrong.
    pub(super) fn note_token(
        &mut self,
        now: Duration,
        event: &SequenceEvent,
        forecast: &mut Forecast,
    ) -> Option<Duration> {
        let progress = &mut self.progress;
        progress.generated += 1;
        progress.answer_left = progress.answer_left.saturating_sub(1);
        if std::mem::replace(&mut progress.turn, Turn::Answering) == Turn::Answering {
            return None;
        }
        progress.known = progress.prompt;
        if let Some(admitted) = event.admitted {
            progress.cached = admitted.cached_tokens;
            forecast.observe_prompt(progress.prompt, progress.cached);
        }
        if progress.wish == ProgressWish::Everything {
            let deltas = vec![progress.tell(now, 0, Some(Duration::ZERO))];
            let choice = self.completion.choice();
            self.flushes.send(Flush { choice, deltas, ..Flush::default() });
        }
        self.progress.expected.map(|expected| expected.abs_diff(now))
    }

    /// Teaches the forecast how long the answer was.
    pub(super) fn note_end(&self, forecast: &mut Forecast) {
        if self.progress.generated > 0 {
            forecast.observe_answer(self.progress.generated);
        }
    }
}
