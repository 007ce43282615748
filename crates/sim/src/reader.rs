//! The reader: the display of tokens by its client, and the time in which its page is hidden.

use serde::{Deserialize, Serialize};

use loquent_proto::playout::PlayoutClock;
use loquent_proto::{Micros, Playout};

/// A reader as written in a plan. By default everything is shown on arrival.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReaderBehaviour {
    /// Text that the client holds back to display it evenly, in ms.
    #[serde(default)]
    pub buffer_ms: f64,
    /// Maximum number of tokens that the client shows per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens_per_s: Option<u32>,
    /// Start and end of the time in which the page is hidden, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hidden_s: Option<(f64, f64)>,
}

impl ReaderBehaviour {
    /// Returns the pace, for the production code.
    pub fn pace(&self) -> Playout {
        Playout {
            buffer: Micros((self.buffer_ms * 1e3) as u64),
            max_tokens_per_s: self.max_tokens_per_s,
        }
    }

    /// Returns true if any text may be shown later than it could be.
    pub fn holds_back(&self) -> bool {
        !self.pace().is_immediate()
    }

    /// Returns the start and end of the time in which the page is hidden, in µs.
    pub fn hidden_us(&self) -> Option<(u64, u64)> {
        self.hidden_s.map(|(from, to)| ((from * 1e6) as u64, (to * 1e6) as u64))
    }

    /// Describes the first parameter that is out of range, if there is one.
    pub fn fault(&self) -> Option<String> {
        let buffer = (!(0.0..=60_000.0).contains(&self.buffer_ms))
            .then(|| format!("buffer_ms = {} is not in 0..=60000", self.buffer_ms));
        let rate = self
            .max_tokens_per_s
            .filter(|rate| *rate == 0)
            .map(|_| "max_tokens_per_s is 0".to_owned());
        let hidden = self
            .hidden_s
            .filter(|(from, to)| !(*from >= 0.0 && from < to))
            .map(|_| "hidden_s must be a time and a later one".to_owned());
        buffer.or(rate).or(hidden)
    }
}

/// Paces a baseline's tokens with the production code's rule, so that schemes differ in delivery
/// and not in display.
#[derive(Debug)]
pub struct Shower {
    pacer: PlayoutClock,
    hidden: bool,
    arrived: u64,
    shown: u64,
}

impl Shower {
    /// Creates a client that has shown nothing yet.
    pub fn new(pace: Playout) -> Self {
        Self { pacer: PlayoutClock::new(pace), hidden: false, arrived: 0, shown: 0 }
    }

    /// Marks the page as hidden or visible.
    pub fn set_hidden(&mut self, hidden: bool) {
        self.hidden = hidden;
    }

    /// Records that `tokens` more have arrived in order.
    pub fn handle_arrival(&mut self, now_us: u64, tokens: u32) {
        self.arrived += u64::from(tokens);
        if tokens > 0 {
            self.pacer.on_arrival(Micros(now_us), tokens);
        }
    }

    /// Returns the number of tokens to show now.
    pub fn take_due(&mut self, now_us: u64) -> usize {
        let mut due = 0;
        while self.shown < self.arrived {
            let held_back = !self.hidden && self.pacer.next_at().is_some_and(|at| at.0 > now_us);
            if held_back {
                break;
            }
            self.shown += 1;
            due += 1;
            self.pacer.on_shown(Micros(now_us), 1, self.arrived - self.shown);
        }
        due
    }

    /// Returns the time of the next call to [`Self::take_due`].
    pub fn poll_timeout(&self) -> Option<u64> {
        let waiting = self.shown < self.arrived;
        waiting.then(|| self.pacer.next_at().map(|at| at.0)).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_hides_a_gap_that_is_shorter_than_it() {
        let reader = ReaderBehaviour { buffer_ms: 300.0, ..ReaderBehaviour::default() };
        let mut shower = Shower::new(reader.pace());
        let mut shown_us = Vec::new();
        for now_ms in 0..10_000 {
            // A token every 100 ms, but between 5.0 s and 5.3 s nothing comes.
            let arrives = match now_ms {
                5_000..5_300 => 0,
                5_300 => 4,
                _ => u32::from(now_ms % 100 == 0),
            };
            shower.handle_arrival(now_ms * 1_000, arrives);
            let due = shower.take_due(now_ms * 1_000);
            shown_us.extend(std::iter::repeat_n(now_ms * 1_000, due));
        }
        assert_eq!(shown_us[0], 0, "the first token is never held back");
        let longest = shown_us.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert!(longest <= Some(200_000), "{longest:?}");
    }

    #[test]
    fn without_a_pace_everything_is_due_at_once() {
        let mut shower = Shower::new(Playout::IMMEDIATE);
        shower.handle_arrival(5, 3);
        assert_eq!(shower.take_due(5), 3);
        assert_eq!(shower.poll_timeout(), None);
    }
}
