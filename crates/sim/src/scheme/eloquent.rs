//! Eloquent, Algorithm 1 of the paper: each packet carries the new token and unacknowledged ones.
//!
//! The algorithm is implemented as intended. It differs from the paper's text where that fails:
//!
//! - A wake-up by the timer has no new token; as written, it sends the previous one again. Here
//!   such a packet holds only unacknowledged tokens.
//! - The first size test leaves out the new token; here it counts.
//! - The loop over `unacked` runs one past its end; here it does not.
//! - "Slept for 200 ms" restarts with every token, so while tokens come every 100 ms only a new
//!   token causes a packet. That is kept, since it defines the scheme.
//! - "While the EOS token is not acked" can stop while earlier tokens are missing; here the loop
//!   continues until everything is acknowledged.

use std::collections::VecDeque;
use std::ops::Range;

use super::ending::FinishMark;
use super::packet::{self, Token};
use super::{DeliveryProgress, SenderEnd, Volume};

/// The server's end: sends the new token with unacknowledged ones.
#[derive(Debug)]
pub struct EloquentSender {
    max_tokens: usize,
    resend_after_us: u64,
    unacked: VecDeque<Token>,
    fresh: VecDeque<Token>,
    /// Token indices in each packet, by packet number.
    sent: Vec<Vec<u32>>,
    next_index: u32,
    last_sent_us: u64,
    timer_fired: bool,
    ending: FinishMark,
    volume: Volume,
}

impl EloquentSender {
    /// Creates a sender of at most `max_tokens` in one packet.
    pub fn new(max_tokens: usize, resend_after_us: u64) -> Self {
        assert!(max_tokens > 0, "a packet holds at least one token");
        Self {
            max_tokens,
            resend_after_us,
            unacked: VecDeque::new(),
            fresh: VecDeque::new(),
            sent: Vec::new(),
            next_index: 0,
            last_sent_us: 0,
            timer_fired: false,
            ending: FinishMark::default(),
            volume: Volume::default(),
        }
    }

    fn put(&mut self, out: &mut Vec<u8>, token: &Token, indices: &mut Vec<u32>) {
        packet::put_token(out, token);
        self.volume.sent += token.text.len() as u64;
        indices.push(token.index);
    }
}

impl SenderEnd for EloquentSender {
    fn handle_token(&mut self, now_us: u64, text: &[u8], last: bool) {
        self.volume.once += text.len() as u64;
        self.fresh.push_back(Token { index: self.next_index, last, text: text.to_vec() });
        self.next_index += 1;
        if last {
            self.ending.end(now_us);
        }
    }

    fn handle_packet(&mut self, _now_us: u64, packet: &[u8]) {
        let number = packet::number(packet).map(|number| number as usize);
        if let Some(indices) = number.and_then(|number| self.sent.get(number)) {
            self.unacked.retain(|token| !indices.contains(&token.index));
        }
    }

    fn handle_timeout(&mut self, now_us: u64) {
        self.ending.handle_timeout(now_us);
        self.timer_fired = !self.unacked.is_empty();
    }

    fn poll_transmit(&mut self, now_us: u64, out: &mut Vec<u8>) -> bool {
        let fresh = self.fresh.pop_front();
        let fired = std::mem::take(&mut self.timer_fired);
        if fresh.is_none() && (!fired || self.unacked.is_empty()) {
            return false;
        }
        packet::put_number(out, self.sent.len() as u32);
        let mut indices = Vec::new();
        // The new token always, then the oldest unacknowledged ones (section 3.3).
        let room = self.max_tokens - usize::from(fresh.is_some());
        let old = std::mem::take(&mut self.unacked);
        for token in old.iter().take(room) {
            self.put(out, token, &mut indices);
        }
        self.unacked = old;
        if let Some(token) = fresh {
            self.put(out, &token, &mut indices);
            self.unacked.push_back(token);
        }
        self.sent.push(indices);
        self.last_sent_us = now_us;
        true
    }

    fn poll_timeout(&self) -> Option<u64> {
        (self.progress() == DeliveryProgress::Active && !self.unacked.is_empty())
            .then_some(self.last_sent_us + self.resend_after_us)
    }

    fn progress(&self) -> DeliveryProgress {
        let settled = self.unacked.is_empty() && self.fresh.is_empty();
        self.ending.progress(settled)
    }

    fn volume(&self) -> Volume {
        self.volume
    }

    fn carried(&self, packet: &[u8]) -> Vec<Range<usize>> {
        packet::token_runs(packet)
    }
}
