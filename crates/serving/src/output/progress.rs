//! Progress reports to readers before the first token: the place in the queue, the computed part of
//! the prompt, and the expected time of the first token.
//!
//! From time to time the engine reports the state of its prompts ([`QueueStanding`]); a
//! [`Forecast`]
//! converts that to times. Reports to a reader are limited in rate, and a reader who has not read
//! the latest report gets no further one.

use std::time::Duration;

use loquent_infer::request::{Admitted, QueueStanding, Step, Tag};
use loquent_proto::Progress;

use crate::forecast::{Forecast, Job, StepRoom};

/// Minimum time between two reports to a reader.
const PERIOD: Duration = Duration::from_millis(500);
/// Reports become less frequent: the pause grows to this fraction of the elapsed time, so that an
/// hour in the queue adds at most a few kilobytes to a log.
const PERIOD_PART: u32 = 20;
/// Minimum time between two forecasts for all waiting completions.
const FORECAST_PERIOD: Duration = Duration::from_millis(250);
/// Shortest wait that is reported to a reader who did not ask for progress.
const WORTH_TELLING: Duration = Duration::from_millis(250);

/// Progress reports that a reader gets before the first token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProgressWish {
    /// None: the reader gets the answer in one piece, or another completion of the request reports
    /// instead.
    #[default]
    Nothing,
    /// Reports of long waits only.
    LongWaits,
    /// All reports, because the reader asked for them.
    Everything,
}

/// A completion's position in the engine, in the order of computing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Turn {
    /// The prompt is being computed; lower numbers got their places earlier.
    Computing(usize),
    /// The first token exists.
    Answering,
    /// Waiting for a place, behind those with lower numbers.
    Waiting(usize),
    /// The engine has not reported on it yet: it is behind all waiting completions.
    Fresh(u32),
}

/// Progress of one completion.
#[derive(Debug)]
pub struct PromptProgress {
    wish: ProgressWish,
    turn: Turn,
    prompt: u32,
    cached: u32,
    known: u32,
    /// Maximum number of tokens left in its answer.
    answer_left: u32,
    generated: u32,
    started: Duration,
    told: Option<Duration>,
    /// First forecast of the time of the first token.
    expected: Option<Duration>,
}

impl PromptProgress {
    /// Creates the progress of a completion that starts `now`; `number` grows from one completion
    /// to the next.
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

    /// Returns true if the reader gets any reports.
    pub fn is_wanted(&self) -> bool {
        self.wish != ProgressWish::Nothing
    }

    /// Records the turn that the engine reported.
    pub fn take_turn(&mut self, turn: Turn) {
        // One put back amid its answer waits for nobody's first token.
        if self.turn != Turn::Answering {
            self.turn = turn;
        }
    }

    /// Records how much of the prompt the engine has computed.
    pub fn note_known(&mut self, cached: u32, known: u32) {
        (self.cached, self.known) = (cached, known);
    }

    /// Counts a token. Returns true if it is the first.
    pub fn note_token(&mut self) -> bool {
        self.generated += 1;
        self.answer_left = self.answer_left.saturating_sub(1);
        std::mem::replace(&mut self.turn, Turn::Answering) != Turn::Answering
    }

    /// Records the first token. Returns a final report, with the prompt complete, for a reader who
    /// asked.
    pub fn complete(&mut self, now: Duration, admitted: Option<Admitted>) -> Option<Progress> {
        self.known = self.prompt;
        self.cached = admitted.map_or(self.cached, |admitted| admitted.cached_tokens);
        let asked = self.wish == ProgressWish::Everything;
        asked.then(|| self.report(now, 0, Some(Duration::ZERO)))
    }

    /// Returns the error of the first forecast if the first token arrives `now`.
    pub fn forecast_error(&self, now: Duration) -> Option<Duration> {
        self.expected.map(|expected| expected.abs_diff(now))
    }

    /// Returns the report due at `now`, if any. `is_read`: the reader has received the previous
    /// report.
    pub fn tell(&mut self, now: Duration, news: &Expected, is_read: bool) -> Option<Progress> {
        if self.expected.is_none() {
            self.expected = news.eta.map(|eta| now + eta);
        }
        // Whoever has not read the last news needs no more, and cannot fill the server with it.
        if !is_read || !self.is_due(now, news) {
            return None;
        }
        self.told = Some(now);
        Some(self.report(now, news.queued, news.eta))
    }

    fn is_due(&self, now: Duration, news: &Expected) -> bool {
        let waited = now.saturating_sub(self.started);
        let rested = self
            .told
            // The longer the wait, the less a second of it matters.
            .is_none_or(|told| now.saturating_sub(told) >= PERIOD.max(waited / PERIOD_PART));
        // Once told of a wait, a reader is told how it goes on, however short the rest is.
        let is_long = news.queued > 0
            || self.told.is_some()
            || waited.max(news.eta.unwrap_or_default()) >= WORTH_TELLING;
        match self.wish {
            ProgressWish::Nothing => false,
            ProgressWish::LongWaits => rested && is_long,
            ProgressWish::Everything => rested,
        }
    }

    fn report(&self, now: Duration, queued: u32, eta: Option<Duration>) -> Progress {
        let millis = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        Progress {
            queued,
            eta_ms: eta.map(millis),
            total: self.prompt,
            cached: self.cached,
            processed: self.known,
            elapsed_ms: millis(now.saturating_sub(self.started)),
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
}

/// Forecast for a completion without its first token.
#[derive(Debug)]
pub struct Expected {
    /// Tag of the completion.
    pub tag: Tag,
    /// Place in the queue, from 1; 0 if the completion has, or can take, a place in the batch.
    queued: u32,
    /// Time to the first token; `None` if unknown.
    eta: Option<Duration>,
}

/// Forecast for all completions together.
#[derive(Debug, Default)]
pub struct ProgressBoard {
    forecast: Forecast,
    room: Option<StepRoom>,
    forecast_at: Option<Duration>,
}

impl ProgressBoard {
    /// Updates the forecast from a step.
    pub fn note_step(&mut self, step: &Step) {
        self.forecast.observe(step);
    }

    /// Updates the forecast with the cached part of a prompt.
    pub fn note_prompt(&mut self, prompt: &PromptProgress) {
        self.forecast.observe_prompt(prompt.prompt, prompt.cached);
    }

    /// Updates the forecast with the length of an answer.
    pub fn note_end(&mut self, prompt: &PromptProgress) {
        // One without any token was given up, or failed: it tells nothing of others.
        if prompt.generated > 0 {
            self.forecast.observe_answer(prompt.generated, prompt.answer_left == 0);
        }
    }

    /// Records the room in a step. Returns true if a forecast for all completions is due.
    pub fn note_standing(&mut self, now: Duration, standing: &QueueStanding) -> bool {
        let QueueStanding { places, shared_tokens, prefill_tokens, .. } = *standing;
        self.room = Some(StepRoom { places, shared_tokens, prefill_tokens });
        let last = self.forecast_at;
        let is_due = last.is_none_or(|last| now.saturating_sub(last) >= FORECAST_PERIOD);
        if is_due {
            self.forecast_at = Some(now);
        }
        is_due
    }

    /// Returns the rest of the current step at `now`: newcomers are not part of that step.
    pub fn rest_of_step(&self, now: Duration) -> Duration {
        self.forecast.rest_of_step(now)
    }

    /// Forecasts the first tokens of all completions that have none. The next step begins after
    /// `rest`.
    pub fn expect<'a>(
        &self,
        rest: Duration,
        all: impl Iterator<Item = (Tag, &'a PromptProgress)>,
    ) -> Vec<Expected> {
        let mut all: Vec<(Tag, &PromptProgress)> = all.collect();
        all.sort_unstable_by_key(|(_, prompt)| prompt.turn);
        let jobs: Vec<Job> = all.iter().map(|(_, prompt)| prompt.job(&self.forecast)).collect();
        let etas = self.forecast.first_tokens(self.room.unwrap_or_default(), &jobs);
        let placed = |prompt: &PromptProgress| prompt.turn <= Turn::Answering;
        let taken = all.iter().filter(|(_, prompt)| placed(prompt)).count();
        // Before the engine's first word nobody is known to have to wait.
        let places = self.room.map_or(usize::MAX, |room| room.places);
        let mut queue = Queue { free: places.saturating_sub(taken), ahead: 0 };
        let mut expected = Vec::with_capacity(all.len() - taken);
        for ((tag, prompt), eta) in all.into_iter().zip(etas) {
            if prompt.turn != Turn::Answering {
                let queued = queue.place(prompt.turn);
                expected.push(Expected { tag, queued, eta: eta.map(|eta| eta + rest) });
            }
        }
        expected
    }
}

/// Counter of the waiting completions.
struct Queue {
    /// Free places in the batch.
    free: usize,
    ahead: u32,
}

impl Queue {
    /// Returns the place of the next completion in turn: 0 with a place in the batch.
    fn place(&mut self, turn: Turn) -> u32 {
        match turn {
            Turn::Computing(_) | Turn::Answering => 0,
            // Nobody is before it, and a place is free: it is in the next step.
            Turn::Fresh(_) if self.ahead == 0 && self.free > 0 => {
                self.free -= 1;
                0
            }
            Turn::Waiting(_) | Turn::Fresh(_) => {
                self.ahead += 1;
                self.ahead
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn news(queued: u32, eta_ms: Option<u32>) -> Expected {
        Expected { tag: Tag(0), queued, eta: eta_ms.map(|eta_ms| eta_ms * MS) }
    }

    fn told(wish: ProgressWish, every_ms: u32, for_s: u32, news: &Expected) -> usize {
        let mut prompt = PromptProgress::new(wish, 100, 10, 1, Duration::ZERO);
        let times = (0..for_s * 1000 / every_ms).map(|at| at * every_ms * MS);
        times.filter(|&now| prompt.tell(now, news, true).is_some()).count()
    }

    #[test]
    fn a_reader_is_told_twice_a_second_and_later_less() {
        assert_eq!(told(ProgressWish::Everything, 100, 5, &news(0, Some(9000))), 10);
        let hour = told(ProgressWish::LongWaits, 100, 3600, &news(7, None));
        assert!((50..200).contains(&hour), "{hour} reports in an hour");
        assert_eq!(told(ProgressWish::Nothing, 100, 5, &news(7, None)), 0);
    }

    #[test]
    fn only_who_asked_is_told_of_a_short_wait() {
        assert_eq!(told(ProgressWish::LongWaits, 10, 0, &news(0, Some(20))), 0);
        let mut prompt = PromptProgress::new(ProgressWish::LongWaits, 9, 9, 1, Duration::ZERO);
        assert!(prompt.tell(Duration::ZERO, &news(0, Some(20)), true).is_none());
        assert!(prompt.tell(Duration::ZERO, &news(1, Some(20)), true).is_some());
        let mut prompt = PromptProgress::new(ProgressWish::Everything, 9, 9, 1, Duration::ZERO);
        assert!(prompt.tell(Duration::ZERO, &news(0, Some(20)), true).is_some());
    }

    #[test]
    fn whoever_does_not_read_is_told_nothing_more() {
        let mut prompt = PromptProgress::new(ProgressWish::Everything, 9, 9, 1, Duration::ZERO);
        assert!(prompt.tell(Duration::ZERO, &news(1, None), true).is_some());
        assert!(prompt.tell(9000 * MS, &news(1, None), false).is_none());
        assert!(prompt.tell(9001 * MS, &news(1, None), true).is_some());
    }

    #[test]
    fn the_first_forecast_is_the_one_that_is_scored() {
        let mut prompt = PromptProgress::new(ProgressWish::Nothing, 9, 9, 1, Duration::ZERO);
        prompt.tell(Duration::ZERO, &news(1, None), true);
        prompt.tell(100 * MS, &news(1, Some(1000)), true);
        prompt.tell(200 * MS, &news(1, Some(5000)), true);
        assert!(prompt.note_token() && !prompt.note_token());
        assert_eq!(prompt.forecast_error(900 * MS), Some(200 * MS));
    }

    #[test]
    fn places_are_counted_behind_those_that_are_free() {
        let prompt = |turn| {
            let mut prompt = PromptProgress::new(ProgressWish::Nothing, 9, 9, 7, Duration::ZERO);
            prompt.take_turn(turn);
            prompt
        };
        let queued = |board: &ProgressBoard, turns: &[Turn]| -> Vec<(u64, u32)> {
            let all: Vec<PromptProgress> = turns.iter().map(|turn| prompt(*turn)).collect();
            let all = all.iter().enumerate().map(|(at, prompt)| (Tag(at as u64), prompt));
            board.expect(MS, all).into_iter().map(|one| (one.tag.0, one.queued)).collect()
        };
        let mut board = ProgressBoard::default();
        assert_eq!(queued(&board, &[Turn::Fresh(1), Turn::Fresh(2)]), [(0, 0), (1, 0)]);
        board.note_standing(MS, &QueueStanding { places: 3, ..QueueStanding::default() });
        let all = [Turn::Fresh(8), Turn::Answering, Turn::Computing(0), Turn::Fresh(9)];
        assert_eq!(queued(&board, &all), [(2, 0), (0, 0), (3, 1)]);
        let all = [Turn::Fresh(8), Turn::Waiting(1), Turn::Waiting(0), Turn::Computing(0)];
        assert_eq!(queued(&board, &all), [(3, 0), (2, 1), (1, 2), (0, 3)]);
    }
}
