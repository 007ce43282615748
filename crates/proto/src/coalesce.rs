//! Decides when to flush: the stream interval.
//!
//! A [`Coalescer`] holds no text; it only decides when the caller should flush its buffer. The
//! first visible content leaves at once. Afterwards `Every(n)` flushes at most once every n tokens
//! (tokens without text count), and `Auto` holds nothing while delivery keeps up. At the end of a
//! stream the caller flushes the rest.

use core::fmt;
use core::num::NonZeroU32;
use core::str::FromStr;

use crate::{Error, Micros};

/// Number of tokens merged into one flush.
///
/// Written `1`, `8` or `auto` on command lines and in requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StreamInterval {
    /// At most one flush per this number of tokens; 1 flushes each token.
    Every(NonZeroU32),
    /// Flush at once while delivery keeps up, merge tokens while it does not.
    Auto,
}

impl Default for StreamInterval {
    fn default() -> Self {
        Self::Every(NonZeroU32::MIN)
    }
}

impl FromStr for StreamInterval {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "auto" => Ok(Self::Auto),
            number => number.parse().map(Self::Every).map_err(|_| Error::BadInterval),
        }
    }
}

impl fmt::Display for StreamInterval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Every(n) => write!(f, "{n}"),
            Self::Auto => f.write_str("auto"),
        }
    }
}

/// Decides for one stream, token by token, whether to flush.
///
/// The caller appends a token's content to its own buffer and calls [`Self::on_token`]. If that
/// returns true, or once [`Self::deadline`] has come, the caller flushes and calls
/// [`Self::on_flush`]. Without a flush, [`Self::on_token`] returns true again at the next token, so
/// a caller that cannot write yet loses nothing.
#[derive(Debug, Clone)]
pub struct Coalescer {
    interval: StreamInterval,
    max_delay: Option<Micros>,
    flushed_any: bool,
    tokens: u32,
    held_since: Option<Micros>,
}

impl Coalescer {
    /// Creates a coalescer for one stream; content is never held longer than `max_delay`.
    pub const fn new(interval: StreamInterval, max_delay: Option<Micros>) -> Self {
        Self { interval, max_delay, flushed_any: false, tokens: 0, held_since: None }
    }

    /// Notes that a token was generated at `now`; returns true if the caller should flush now.
    ///
    /// `payload`: the token has content visible to a client (text, a tool call's arguments, log
    /// probabilities); false for one that has none yet, such as half of a character. `clear`: the
    /// socket is writable and delivery has caught up; used only by [`StreamInterval::Auto`].
    #[must_use]
    pub fn on_token(&mut self, now: Micros, payload: bool, clear: bool) -> bool {
        self.tokens = self.tokens.saturating_add(1);
        if payload && self.held_since.is_none() {
            self.held_since = Some(now);
        }
        let overdue = self.deadline().is_some_and(|deadline| now >= deadline);
        let due = match self.interval {
            StreamInterval::Every(n) => self.tokens >= n.get(),
            StreamInterval::Auto => clear,
        };
        self.held_since.is_some() && (!self.flushed_any || due || overdue)
    }

    /// Returns true if [`Self::on_token`] takes `clear` into account ([`StreamInterval::Auto`]).
    pub fn minds_backlog(&self) -> bool {
        self.interval == StreamInterval::Auto
    }

    /// Notes that the backlog has cleared; returns true if the caller should flush now
    /// ([`StreamInterval::Auto`] with content held).
    #[must_use]
    pub fn on_clear(&mut self) -> bool {
        self.minds_backlog() && self.held_since.is_some()
    }

    /// Notes that everything held was flushed: on request, at the deadline, or at the end.
    pub fn on_flush(&mut self) {
        self.flushed_any |= self.held_since.is_some();
        self.held_since = None;
        self.tokens = 0;
    }

    /// Deadline for flushing held content; `None` if nothing is held or no delay is set.
    pub fn deadline(&self) -> Option<Micros> {
        Some(self.held_since? + self.max_delay?)
    }

    /// Returns true if some content was not flushed yet.
    pub fn is_holding(&self) -> bool {
        self.held_since.is_some()
    }
}
