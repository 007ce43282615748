//! When to flush: the stream interval.
//!
//! A [`Coalescer`] holds no text, it only says when the caller should flush what it
//! holds. The first visible content leaves at once; afterwards `Every(n)` flushes at
//! most every n tokens (tokens without text count), and `Auto` holds nothing as long as
//! delivery keeps up. At the end of a stream the caller flushes everything that is left.

use core::fmt;
use core::num::NonZeroU32;
use core::str::FromStr;

use crate::{Error, Micros};

/// How many tokens are merged into one flush.
///
/// Written `1`, `8`, `auto` on command lines and in requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StreamInterval {
    /// At most one flush for this number of tokens; 1 flushes each token.
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
/// The caller appends a token's content to its own buffer, asks [`Self::on_token`], and
/// if the answer is yes (or [`Self::deadline`] has come) flushes and says so with
/// [`Self::on_flush`]. A yes that is not followed by a flush is repeated at the next
/// token, so a caller that cannot write yet loses nothing.
#[derive(Debug, Clone)]
pub struct Coalescer {
    interval: StreamInterval,
    max_delay: Option<Micros>,
    flushed_any: bool,
    tokens: u32,
    held_since: Option<Micros>,
}

impl Coalescer {
    /// A coalescer for one stream; content is never held longer than `max_delay`.
    pub const fn new(interval: StreamInterval, max_delay: Option<Micros>) -> Self {
        Self { interval, max_delay, flushed_any: false, tokens: 0, held_since: None }
    }

    /// A token was generated at `now`; returns whether to flush now.
    ///
    /// `payload`: the token yielded content that a client sees (text, a tool call's
    /// arguments, log probabilities), rather than nothing yet, as half of a character
    /// does. `clear`: the socket is writable and delivery has caught up; only
    /// [`StreamInterval::Auto`] asks.
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

    /// Whether [`Self::on_token`] minds if delivery has caught up ([`StreamInterval::Auto`]).
    pub fn minds_backlog(&self) -> bool {
        self.interval == StreamInterval::Auto
    }

    /// The backlog has cleared; returns whether to flush now ([`StreamInterval::Auto`]
    /// with content held).
    #[must_use]
    pub fn on_clear(&mut self) -> bool {
        self.minds_backlog() && self.held_since.is_some()
    }

    /// Everything held was flushed: after a yes, at the deadline, or at the end.
    pub fn on_flush(&mut self) {
        self.flushed_any |= self.held_since.is_some();
        self.held_since = None;
        self.tokens = 0;
    }

    /// When held content must be flushed; `None` if nothing is held or no delay is set.
    pub fn deadline(&self) -> Option<Micros> {
        Some(self.held_since? + self.max_delay?)
    }

    /// Whether there is content that was not flushed yet.
    pub fn is_holding(&self) -> bool {
        self.held_since.is_some()
    }
}
