//! Events of a session, for observers that follow it live.

use std::ops::Range;

use crate::channel::Direction;
use crate::metrics::STALL_MS;

/// An event of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionEvent {
    /// A packet left.
    Sent {
        /// Number over both directions, from 0.
        packet: u64,
        /// Direction of the packet.
        direction: Direction,
        /// Bytes on the wire, headers included.
        bytes: u64,
        /// Tokens in the packet as runs of their numbers; none in an acknowledgement.
        carried: Vec<Range<usize>>,
    },
    /// A packet arrived.
    Arrived {
        /// Number of the packet.
        packet: u64,
    },
    /// A packet that has just left will be lost.
    Lost {
        /// Number of the packet.
        packet: u64,
    },
    /// The reader sees more of the answer.
    Shown {
        /// Number of tokens shown so far.
        tokens: usize,
    },
    /// The reader has waited longer than an unnoticeable pause.
    Stalled {
        /// Start of the wait, in µs.
        since_us: u64,
    },
    /// The wait is over.
    Resumed,
    /// The reader sees the whole answer.
    Complete,
}

/// The pending events of one session.
#[derive(Debug)]
pub struct SessionLog {
    events: Vec<(u64, SessionEvent)>,
    tokens: usize,
    shown: usize,
    /// Time since which the reader has been waiting for text.
    waiting_since_us: u64,
    is_stalled: bool,
}

impl SessionLog {
    /// Creates the log of an answer of `tokens` tokens. The first can be shown at `start_us` at the
    /// earliest.
    pub fn new(tokens: usize, start_us: u64) -> Self {
        let waiting_since_us = start_us;
        Self { events: Vec::new(), tokens, shown: 0, waiting_since_us, is_stalled: false }
    }

    /// Adds any other event that happens now.
    pub fn on(&mut self, now_us: u64, event: SessionEvent) {
        self.events.push((now_us, event));
    }

    /// Advances the time to `now_us`: a wait may have become a stall in the meantime.
    pub fn pass(&mut self, now_us: u64) {
        let noticed_us = self.waiting_since_us + (STALL_MS * 1e3) as u64;
        if !self.is_stalled && self.shown < self.tokens && now_us > noticed_us {
            self.is_stalled = true;
            let since_us = self.waiting_since_us;
            self.events.push((noticed_us, SessionEvent::Stalled { since_us }));
        }
    }

    /// Records that `tokens` tokens are shown now.
    pub fn on_shown(&mut self, now_us: u64, tokens: usize) {
        if tokens == self.shown {
            return;
        }
        self.shown = tokens;
        self.waiting_since_us = now_us;
        if std::mem::take(&mut self.is_stalled) {
            self.on(now_us, SessionEvent::Resumed);
        }
        self.on(now_us, SessionEvent::Shown { tokens });
        if tokens == self.tokens {
            self.on(now_us, SessionEvent::Complete);
        }
    }

    /// Returns the events since the last call.
    pub fn take(&mut self) -> Vec<(u64, SessionEvent)> {
        std::mem::take(&mut self.events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_becomes_a_stall_when_it_is_noticed_and_ends_with_text() {
        let mut log = SessionLog::new(2, 50_000);
        log.pass(250_000);
        assert_eq!(log.take(), [], "exactly 200 ms is no stall");
        log.pass(300_000);
        log.on_shown(300_000, 1);
        let stalled = (250_000, SessionEvent::Stalled { since_us: 50_000 });
        let shown = |at_us, tokens| (at_us, SessionEvent::Shown { tokens });
        assert_eq!(log.take(), [stalled, (300_000, SessionEvent::Resumed), shown(300_000, 1)]);
        log.pass(400_000);
        log.on_shown(400_000, 2);
        log.pass(9_000_000);
        let complete = (400_000, SessionEvent::Complete);
        assert_eq!(log.take(), [shown(400_000, 2), complete], "nobody waits beyond the answer");
    }
}
