//! An answer's log and the timing of its growth: shared by all its readers.

use crate::{Delta, Error, Log, Micros};

/// Timing of a log's growth.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rhythm {
    /// Offset after the first delta with tokens.
    pub first_token: Option<u64>,
    /// When the last token was generated, and the smoothed gap between tokens.
    pub last_push: Micros,
    pub push_gap: Micros,
}

impl Rhythm {
    pub fn new(now: Micros) -> Self {
        Self {
            first_token: None,
            last_push: now,
            // Ten tokens per second, the paper's generator, until the real one is known.
            push_gap: Micros::from_ms(100),
        }
    }

    /// Notes that a token was generated; its record ends at `end`. Pauses count as a second at
    /// most, or a single one would distort the estimated speed for a long time.
    fn on_token(&mut self, now: Micros, end: u64) {
        let gap = now.since(self.last_push).0.min(1_000_000);
        self.push_gap = Micros((7 * self.push_gap.0 + gap) / 8);
        self.last_push = now;
        self.first_token.get_or_insert(end);
    }
}

/// Log of one answer, sent by any number of [`Delivery`](super::Delivery)s.
#[derive(Debug, Clone)]
pub struct AnswerLog {
    log: Log,
    rhythm: Rhythm,
}

impl AnswerLog {
    /// Creates an empty log of at most `max_bytes`.
    pub fn new(now: Micros, max_bytes: usize) -> Self {
        Self { log: Log::new(max_bytes), rhythm: Rhythm::new(now) }
    }

    /// Appends a delta and returns the offset after it. Every delivery must be notified with
    /// [`Delivery::note_append`](super::Delivery::note_append).
    ///
    /// # Errors
    /// Same as [`Log::push`].
    pub fn push(&mut self, now: Micros, delta: &Delta) -> Result<u64, Error> {
        let end = self.log.push(delta)?.end;
        if delta.tokens() > 0 {
            self.rhythm.on_token(now, end);
        }
        Ok(end)
    }

    /// The underlying log.
    pub const fn log(&self) -> &Log {
        &self.log
    }

    /// See [`Log::acknowledge`]. With several readers, the furthest one counts.
    ///
    /// # Errors
    /// Same as [`Log::acknowledge`].
    pub fn acknowledge(&mut self, offset: u64) -> Result<(), Error> {
        self.log.acknowledge(offset)
    }

    /// See [`Log::rewind`].
    ///
    /// # Errors
    /// Same as [`Log::rewind`].
    pub fn rewind(&mut self, offset: u64) -> Result<(), Error> {
        self.log.rewind(offset)
    }

    pub(super) const fn rhythm(&self) -> &Rhythm {
        &self.rhythm
    }
}
