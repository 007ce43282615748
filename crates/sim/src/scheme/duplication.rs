//! Plain duplication: sends every packet several times at once, whatever the network does.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use super::ending::FinishMark;
use super::packet::{self, Token};
use super::{DeliveryProgress, SenderEnd, Volume};

#[derive(Debug)]
struct Waiting {
    token: Token,
    resend_us: u64,
}

/// The server's end: sends each packet several times at once.
#[derive(Debug)]
pub struct DuplicationSender {
    copies: u32,
    resend_after_us: u64,
    unacked: BTreeMap<u32, Waiting>,
    /// (token, copies left to send).
    queue: VecDeque<(u32, u32)>,
    next_index: u32,
    ending: FinishMark,
    volume: Volume,
}

impl DuplicationSender {
    /// Creates a sender of `copies` of each packet that repeats them every `resend_after_us`.
    pub fn new(copies: u32, resend_after_us: u64) -> Self {
        assert!(copies > 0, "a token is sent at least once");
        Self {
            copies,
            resend_after_us,
            unacked: BTreeMap::new(),
            queue: VecDeque::new(),
            next_index: 0,
            ending: FinishMark::default(),
            volume: Volume::default(),
        }
    }
}

impl SenderEnd for DuplicationSender {
    fn handle_token(&mut self, now_us: u64, text: &[u8], last: bool) {
        self.volume.once += text.len() as u64;
        let index = self.next_index;
        self.next_index += 1;
        let token = Token { index, last, text: text.to_vec() };
        let resend_us = now_us + self.resend_after_us;
        self.unacked.insert(index, Waiting { token, resend_us });
        self.queue.push_back((index, self.copies));
        if last {
            self.ending.end(now_us);
        }
    }

    fn handle_packet(&mut self, _now_us: u64, packet: &[u8]) {
        // Here a packet's number is its token's: copies are alike.
        if let Some(index) = packet::number(packet) {
            self.unacked.remove(&index);
        }
    }

    fn handle_timeout(&mut self, now_us: u64) {
        self.ending.handle_timeout(now_us);
        for (&index, waiting) in &mut self.unacked {
            if waiting.resend_us <= now_us {
                waiting.resend_us = now_us + self.resend_after_us;
                self.queue.push_back((index, self.copies));
            }
        }
    }

    fn poll_transmit(&mut self, _now_us: u64, out: &mut Vec<u8>) -> bool {
        while let Some((index, left)) = self.queue.pop_front() {
            let Some(waiting) = self.unacked.get(&index) else {
                continue;
            };
            if left > 1 {
                self.queue.push_front((index, left - 1));
            }
            packet::put_number(out, index);
            packet::put_token(out, &waiting.token);
            self.volume.sent += waiting.token.text.len() as u64;
            return true;
        }
        false
    }

    fn poll_timeout(&self) -> Option<u64> {
        if self.progress() != DeliveryProgress::Active {
            return None;
        }
        let resend = self.unacked.values().map(|w| w.resend_us).min()?;
        Some(self.ending.or_give_up(resend))
    }

    fn progress(&self) -> DeliveryProgress {
        self.ending.progress(self.unacked.is_empty())
    }

    fn volume(&self) -> Volume {
        self.volume
    }

    fn carried(&self, packet: &[u8]) -> Vec<Range<usize>> {
        packet::token_runs(packet)
    }
}
