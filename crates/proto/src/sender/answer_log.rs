//! An answer's log and the rhythm in which it grows: what all its readers share.

use crate::{Delta, Error, Log, Micros};

/// How the log of an answer has grown.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rhythm {
    /// The end of the first delta with tokens.
    pub first_token: Option<u64>,
    /// The last token was generated, and the smoothed gap between tokens.
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

    /// A token was generated; its record ends at `end`. Pauses count as a second at most, or one
    /// of them would hide the generator's speed for long after it.
    fn on_token(&mut self, now: Micros, end: u64) {
        let gap = now.since(self.last_push).0.min(1_000_000);
        self.push_gap = Micros((7 * self.push_gap.0 + gap) / 8);
        self.last_push = now;
        self.first_token.get_or_insert(end);
    }
}

/// The log of one answer, which any number of [`Delivery`](super::Delivery)s send.
#[derive(Debug, Clone)]
pub struct AnswerLog {
    log: Log,
    rhythm: Rhythm,
}

impl AnswerLog {
    /// An empty log that keeps at most `max_bytes`.
    pub fn new(now: Micros, max_bytes: usize) -> Self {
        Self { log: Log::new(max_bytes), rhythm: Rhythm::new(now) }
    }

    /// Appends a delta and returns the offset after it. Every delivery must be told:
    /// [`Delivery::note_append`](super::Delivery::note_append).
    ///
    /// # Errors
    /// Those of [`Log::push`].
    pub fn push(&mut self, now: Micros, delta: &Delta) -> Result<u64, Error> {
        let end = self.log.push(delta)?.end;
        if delta.tokens() > 0 {
            self.rhythm.on_token(now, end);
        }
        Ok(end)
    }

    /// The log itself.
    pub const fn log(&self) -> &Log {
        &self.log
    }

    /// See [`Log::acknowledge`]. Of several readers, the furthest one counts.
    ///
    /// # Errors
    /// Those of [`Log::acknowledge`].
    pub fn acknowledge(&mut self, offset: u64) -> Result<(), Error> {
        self.log.acknowledge(offset)
    }

    /// See [`Log::rewind`].
    ///
    /// # Errors
    /// Those of [`Log::rewind`].
    pub fn rewind(&mut self, offset: u64) -> Result<(), Error> {
        self.log.rewind(offset)
    }

    pub(super) const fn rhythm(&self) -> &Rhythm {
        &self.rhythm
    }
}
