//! Policy for a reader that is slower than its answer: the same for the engine's completions,
//! upstream servers' answers, and event streams of resumable answers.
//!
//! The producer of an answer never waits for its reader. Content that is due while the reader is
//! behind is held and merged. At a bound production pauses, and a reader that stays behind for too
//! long loses its stream. The caller passes the time and the number of unread bytes, and carries
//! out the returned action.

use crate::Micros;

/// Limits on one reader's unread bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BacklogLimits {
    /// Unread and held bytes at which production pauses. Production resumes below half of that:
    /// with a single threshold, a reader at the bound would pause and resume at every flush.
    pub pause_bytes: usize,
    /// Maximum pause before the stream is ended; `None` if a reader may stay away longer and
    /// something else bounds that.
    pub stall_limit: Option<Micros>,
}

/// Progress of the reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    /// Keeps up: content leaves as soon as it is due.
    Flowing,
    /// Behind: content that is due is held, and merged with later content.
    Blocked,
    /// So far behind that production is paused.
    Paused { since: Micros },
    /// Paused for too long: its stream has ended.
    Stalled,
}

/// Action for the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BacklogAction {
    /// Send the held content.
    Flush,
    /// Hold the content, and ask again once the reader may have read more.
    Hold,
    /// Stop production, hold, and ask again as for [`Self::Hold`].
    Pause,
    /// Restart production, and send the held content.
    Resume,
    /// End the stream with an error.
    End,
}

/// Backlog of one reader.
///
/// ```
/// # use loquent_proto::Micros;
/// # use loquent_proto::backlog::{Backlog, BacklogAction, BacklogLimits};
/// let limits = BacklogLimits { pause_bytes: 100, stall_limit: Some(Micros::from_ms(1_000)) };
/// let mut backlog = Backlog::new(limits);
/// assert_eq!(backlog.handle(Micros::ZERO, 40, 10), BacklogAction::Flush);
/// assert_eq!(backlog.handle(Micros::ZERO, 90, 10), BacklogAction::Pause);
/// assert_eq!(backlog.handle(Micros::from_ms(999), 49, 10), BacklogAction::Resume);
/// ```
#[derive(Debug, Clone)]
pub struct Backlog {
    limits: BacklogLimits,
    reader: Reader,
}

impl Backlog {
    /// Creates the backlog of a reader with nothing unread.
    pub const fn new(limits: BacklogLimits) -> Self {
        Self { limits, reader: Reader::Flowing }
    }

    /// Decides what to do at `now`. Call it when content is due, and again after time has passed
    /// since any action other than [`BacklogAction::Flush`] or [`BacklogAction::Resume`].
    /// `unread_bytes` were sent and not read yet; `held_bytes` would follow.
    #[must_use]
    pub fn handle(&mut self, now: Micros, unread_bytes: usize, held_bytes: usize) -> BacklogAction {
        let limits = self.limits;
        // At least one byte, so that a bound of one byte can be got below at all.
        let caught_up = unread_bytes < (limits.pause_bytes / 2).max(1);
        let full = unread_bytes.saturating_add(held_bytes) >= limits.pause_bytes;
        let (reader, action) = match self.reader {
            Reader::Stalled => (Reader::Stalled, BacklogAction::Hold),
            Reader::Paused { .. } if caught_up => (Reader::Flowing, BacklogAction::Resume),
            Reader::Paused { .. } if self.ends_at().is_some_and(|at| now >= at) => {
                (Reader::Stalled, BacklogAction::End)
            }
            paused @ Reader::Paused { .. } => (paused, BacklogAction::Hold),
            Reader::Flowing | Reader::Blocked if caught_up => {
                (Reader::Flowing, BacklogAction::Flush)
            }
            Reader::Flowing | Reader::Blocked if full => {
                (Reader::Paused { since: now }, BacklogAction::Pause)
            }
            Reader::Flowing | Reader::Blocked => (Reader::Blocked, BacklogAction::Hold),
        };
        self.reader = reader;
        action
    }

    /// Notes that a paused reader has read something at `now`: it is slow, but not stalled.
    pub fn note_progress(&mut self, now: Micros) {
        if let Reader::Paused { since } = &mut self.reader {
            *since = now;
        }
    }

    /// Returns true while content is held or production paused. Then [`Self::handle`] must be
    /// called again even if nothing new is due.
    pub const fn is_behind(&self) -> bool {
        matches!(self.reader, Reader::Blocked | Reader::Paused { .. })
    }

    /// Returns true while production is paused.
    pub const fn is_paused(&self) -> bool {
        matches!(self.reader, Reader::Paused { .. })
    }

    /// Deadline for the reader to catch up before the stream ends; `None` while production is not
    /// paused, or without a stall limit.
    pub fn ends_at(&self) -> Option<Micros> {
        match self.reader {
            Reader::Paused { since } => self.limits.stall_limit.map(|limit| since + limit),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use BacklogAction::{End, Flush, Hold, Pause, Resume};
    use proptest::prelude::*;

    const SECOND: Micros = Micros::from_ms(1_000);

    fn limited(stall_limit: Option<Micros>) -> Backlog {
        Backlog::new(BacklogLimits { pause_bytes: 100, stall_limit })
    }

    /// Steps of (time in ms, unread, held) with the expected action of each.
    fn check(mut backlog: Backlog, steps: &[(u64, usize, usize, BacklogAction)]) {
        for (at, &(ms, unread, held, expected)) in steps.iter().enumerate() {
            let action = backlog.handle(Micros::from_ms(ms), unread, held);
            assert_eq!(action, expected, "step {at}");
        }
    }

    #[test]
    fn a_reader_goes_through_all_states() {
        let table = [
            (0, 0, 10, Flush),
            (1, 49, 10, Flush),
            // Behind: what is due waits until less than half of the bound is unread.
            (2, 50, 10, Hold),
            (3, 50, 49, Hold),
            (4, 49, 50, Flush),
            // At the bound nothing more is produced, however the bytes are shared out.
            (5, 50, 50, Pause),
            (6, 50, 50, Hold),
            (7, 49, 50, Resume),
            (8, 100, 0, Pause),
            // The limit counts from the pause, not from when the reader fell behind.
            (1_007, 100, 0, Hold),
            (1_008, 100, 0, End),
            // Ended once; nothing more is asked of the caller.
            (1_009, 0, 0, Hold),
        ];
        check(limited(Some(SECOND)), &table);
    }

    #[test]
    fn catching_up_in_the_last_moment_wins() {
        let table = [(0, 100, 0, Pause), (1_000, 49, 0, Resume), (2_000, 100, 0, Pause)];
        check(limited(Some(SECOND)), &table);
    }

    #[test]
    fn without_a_limit_a_reader_may_stay_away() {
        let table = [(0, 100, 0, Pause), (u64::MAX / 1_000, 100, 0, Hold)];
        check(limited(None), &table);
    }

    #[test]
    fn a_bound_of_one_byte_pauses_at_anything_unread() {
        let limits = BacklogLimits { pause_bytes: 1, stall_limit: Some(SECOND) };
        check(Backlog::new(limits), &[(0, 0, 5, Flush), (1, 1, 0, Pause), (2, 0, 0, Resume)]);
    }

    #[test]
    fn progress_puts_the_end_off() {
        let mut backlog = limited(Some(SECOND));
        backlog.note_progress(Micros::ZERO);
        assert_eq!((backlog.ends_at(), backlog.is_behind()), (None, false));
        assert_eq!(backlog.handle(Micros::ZERO, 100, 0), Pause);
        backlog.note_progress(Micros::from_ms(600));
        assert_eq!(backlog.ends_at(), Some(Micros::from_ms(1_600)));
        assert_eq!(backlog.handle(Micros::from_ms(1_599), 80, 0), Hold);
        assert!(backlog.is_paused() && backlog.is_behind());
        assert_eq!(backlog.handle(Micros::from_ms(1_600), 80, 0), End);
        assert!(!backlog.is_behind());
    }

    proptest! {
        /// Every pause is followed by one resume or one end; nothing is sent in between.
        #[test]
        fn pauses_and_resumes_alternate(
            steps in proptest::collection::vec((0u64..500, 0usize..150, 0usize..50), 1..100)
        ) {
            let (mut backlog, mut now, mut paused) = (limited(Some(SECOND)), Micros::ZERO, false);
            for (ms, unread, held) in steps {
                now += Micros::from_ms(ms);
                let action = backlog.handle(now, unread, held);
                match action {
                    Flush => prop_assert!(!paused && unread < 50),
                    Hold => prop_assert!(paused || unread >= 50),
                    Pause => prop_assert!(!std::mem::replace(&mut paused, true)),
                    Resume => prop_assert!(std::mem::replace(&mut paused, false)),
                    End => { prop_assert!(paused); break; }
                }
                prop_assert_eq!(backlog.is_paused(), paused);
            }
        }
    }
}
