//! Estimates the unread text of an answer's reader for the scheduler, from its acknowledgements and
//! its reading speed.
//!
//! A client that holds text back reports the speed at which it shows it. For others the operator
//! may configure a reading speed: each token then lasts that long from its acknowledgement, or from
//! when the tokens before it were read. Without either, nothing is known or reported.

use std::collections::VecDeque;
use std::time::Duration;

use loquent_infer::reading::ReaderReport;
use loquent_proto::{Micros, ReaderState};

/// Minimum error of the scheduler's estimate that is worth another report: half the time that a
/// fast reader takes for a token. Between reports the scheduler extrapolates.
const WORTH_TELLING: Duration = Duration::from_millis(50);
/// Maximum number of flush ends remembered. Flushes beyond it are merged.
const MAX_APPENDS: usize = 256;

/// Reading progress of an answer's reader.
#[derive(Debug, Default)]
pub struct ReaderPace {
    /// Time per token to assume if the reader's client reports none.
    assumed: Option<Duration>,
    /// Time per token that the client last reported.
    said: Option<Duration>,
    /// Log offset and token count after each append, oldest first.
    appends: VecDeque<(u64, u32)>,
    /// Bytes and tokens of the whole log.
    head: (u64, u32),
    /// Tokens that the reader has acknowledged.
    acked_tokens: u32,
    /// Time when the reader will have read them.
    dry_at: Micros,
    told: Option<ReaderReport>,
}

/// News for the scheduler: the reader's unread text, or `None` if it is no longer known.
pub type News = Option<ReaderReport>;

impl ReaderPace {
    /// Creates a clock for a reader that takes `assumed` per token, unless its client reports
    /// another time.
    pub fn new(assumed: Option<Duration>) -> Self {
        Self { assumed, ..Self::default() }
    }

    /// Records that the log ends at `end`, after `tokens` tokens of the answer.
    pub fn note_append(&mut self, end: u64, tokens: u32) {
        self.head = (end, tokens);
        let is_full = self.appends.len() >= MAX_APPENDS;
        match self.appends.back_mut() {
            Some(last) if is_full || last.1 == tokens => *last = (end, tokens),
            _ => self.appends.push_back((end, tokens)),
        }
    }

    /// Records that nothing is known of a reader any more: there is none, there are several, or it
    /// does not look.
    pub fn lose_sight(&mut self) -> Option<News> {
        self.told.take().map(|_| None)
    }

    /// Records that the reader has acknowledged everything below `acked` and is in `state`, at the
    /// end of a path with this round-trip time.
    pub fn note_reader(
        &mut self,
        now: Micros,
        acked: u64,
        state: ReaderState,
        rtt: Micros,
    ) -> Option<News> {
        if state.hidden {
            return self.lose_sight();
        }
        let before = self.acked_tokens;
        while let Some((_, tokens)) = self.appends.front().filter(|(end, _)| *end <= acked) {
            self.acked_tokens = *tokens;
            self.appends.pop_front();
        }
        if let Some(said) = self.time_for_token(state.pace_bytes_per_s) {
            self.said = Some(said);
            self.dry_at = state.shows_until;
        } else if let Some(time) = self.said.or(self.assumed) {
            // Without a new token nothing has changed: what is over is over.
            let more = u64::from(self.acked_tokens - before);
            let begins = if more > 0 { self.dry_at.max(now) } else { self.dry_at };
            self.dry_at = begins + Micros::from(time).times(more);
        }
        let token_time = self.said.or(self.assumed)?;
        // An acknowledgement tells of half a round trip ago, and the next token takes the other
        // half.
        let lasts_until = Duration::from(Micros(self.dry_at.0.saturating_sub(rtt.0)));
        self.tell(ReaderReport { tokens: self.acked_tokens, lasts_until, token_time })
    }

    /// Returns the time per token at a pace in log bytes; `None` at pace 0.
    fn time_for_token(&self, pace_bytes_per_s: u64) -> Option<Duration> {
        let (bytes, tokens) = self.head;
        let micros = (bytes.saturating_mul(1_000_000) / u64::from(tokens.max(1)))
            .checked_div(pace_bytes_per_s)?;
        (tokens > 0).then(|| Duration::from_micros(micros))
    }

    fn tell(&mut self, report: ReaderReport) -> Option<News> {
        let is_expected = self.told.is_some_and(|told| {
            let since = report.tokens.saturating_sub(told.tokens);
            let expected = told.lasts_until + told.token_time.saturating_mul(since);
            let differs = expected.abs_diff(report.lasts_until);
            let time_differs = told.token_time.abs_diff(report.token_time);
            differs < WORTH_TELLING && time_differs * 4 < report.token_time
        });
        // The engine would have to look at each message between two steps.
        if is_expected {
            return None;
        }
        self.told = Some(report);
        Some(Some(report))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Micros = Micros::from_ms(40);

    fn shows_at_once() -> ReaderState {
        ReaderState::default()
    }

    fn paced(bytes_per_s: u64, until_ms: u64) -> ReaderState {
        let shows_until = Micros::from_ms(until_ms);
        ReaderState { pace_bytes_per_s: bytes_per_s, shows_until, ..ReaderState::default() }
    }

    fn report(tokens: u32, lasts_until_ms: u64, token_ms: u64) -> ReaderReport {
        ReaderReport {
            tokens,
            lasts_until: Duration::from_millis(lasts_until_ms),
            token_time: Duration::from_millis(token_ms),
        }
    }

    #[test]
    fn nothing_is_known_of_a_reader_without_a_speed() {
        let mut clock = ReaderPace::new(None);
        clock.note_append(100, 10);
        assert_eq!(clock.note_reader(Micros::from_ms(50), 100, shows_at_once(), RTT), None);
    }

    #[test]
    fn tokens_last_from_when_they_are_there() {
        let mut clock = ReaderPace::new(Some(Duration::from_millis(100)));
        let first = clock.note_reader(Micros::from_ms(1_000), 0, shows_at_once(), RTT);
        assert_eq!(first, Some(Some(report(0, 0, 100))), "it has nothing, and reads like that");
        let waits = clock.note_reader(Micros::from_ms(1_400), 0, shows_at_once(), RTT);
        assert_eq!(waits, None, "nothing new");
        clock.note_append(50, 5);
        let five = clock.note_reader(Micros::from_ms(1_500), 50, shows_at_once(), RTT);
        assert_eq!(five, Some(Some(report(5, 1_960, 100))));
        // As the scheduler expects.
        clock.note_append(60, 6);
        assert_eq!(clock.note_reader(Micros::from_ms(1_900), 60, shows_at_once(), RTT), None);
        // It has run dry meanwhile.
        clock.note_append(70, 7);
        let late = clock.note_reader(Micros::from_ms(3_000), 70, shows_at_once(), RTT);
        assert_eq!(late, Some(Some(report(7, 3_060, 100))));
    }

    #[test]
    fn a_client_that_paces_knows_better() {
        let mut clock = ReaderPace::new(Some(Duration::from_millis(100)));
        // Ten bytes a token, fifty a second.
        clock.note_append(200, 20);
        let news = clock.note_reader(Micros::from_ms(500), 200, paced(50, 2_500), RTT);
        assert_eq!(news, Some(Some(report(20, 2_460, 200))));
        // Its speed stays known when it has shown everything.
        clock.note_append(210, 21);
        let news = clock.note_reader(Micros::from_ms(5_000), 210, shows_at_once(), RTT);
        assert_eq!(news, Some(Some(report(21, 5_160, 200))));
    }

    #[test]
    fn nobody_looks_at_a_hidden_page() {
        let mut clock = ReaderPace::new(Some(Duration::from_millis(100)));
        let hidden = ReaderState { hidden: true, ..ReaderState::default() };
        assert_eq!(clock.note_reader(Micros::ZERO, 0, hidden, RTT), None, "nothing was told");
        assert!(clock.note_reader(Micros::ZERO, 0, shows_at_once(), RTT).is_some());
        assert_eq!(clock.note_reader(Micros::ZERO, 0, hidden, RTT), Some(None));
        assert_eq!(clock.lose_sight(), None, "it is told once");
    }

    #[test]
    fn many_flushes_take_bounded_memory() {
        let mut clock = ReaderPace::new(None);
        (0..10_000).for_each(|n| clock.note_append(n * 10, n as u32));
        assert_eq!(clock.appends.len(), MAX_APPENDS);
    }
}
