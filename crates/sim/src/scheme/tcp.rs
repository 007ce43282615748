//! Retransmission as in TCP, which chat services use today.
//!
//! One segment for each token, selective acknowledgements, fast retransmit after three later
//! acknowledgements, a retransmission timer of srtt + max(200 ms, 4 var) with back-off per
//! segment. It has no congestion window, so it is faster than a kernel's TCP (see RESULTS.md).

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use super::ending::FinishMark;
use super::packet::{self, Token};
use super::{DeliveryProgress, SenderEnd, Volume};

const MIN_RTO_MARGIN_US: f64 = 200_000.0;
const MAX_BACKOFF: u32 = 6;
/// Acknowledgements of later packets that mark one as lost (RFC 5681, section 3.2).
const REORDERING_THRESHOLD: u32 = 3;

#[derive(Debug)]
struct SentSegment {
    token: Token,
    /// Packet number of the latest transmission.
    number: u32,
    sent_us: u64,
    transmissions: u32,
    later_acks: u32,
}

/// The server's end: one segment for each token.
#[derive(Debug)]
pub struct TcpSender {
    unacked: BTreeMap<u32, SentSegment>,
    queue: VecDeque<u32>,
    next_number: u32,
    /// Send time of each packet by number, for RTT samples as TCP timestamps give them.
    sent_us: Vec<(u32, u64)>,
    srtt_us: f64,
    var_us: f64,
    next_index: u32,
    ending: FinishMark,
    volume: Volume,
}

impl TcpSender {
    /// A sender whose handshake has measured `rtt_us`.
    pub fn new(rtt_us: u64) -> Self {
        Self {
            unacked: BTreeMap::new(),
            queue: VecDeque::new(),
            next_number: 0,
            sent_us: Vec::new(),
            srtt_us: rtt_us as f64,
            var_us: 0.0,
            next_index: 0,
            ending: FinishMark::default(),
            volume: Volume::default(),
        }
    }

    fn deadline_us(&self, segment: &SentSegment) -> u64 {
        // Linux adds the 200 ms to srtt instead of raising the sum to them, and backs off by
        // doubling. The limit keeps the shift in range; sessions end long before it matters.
        let rto_us = self.srtt_us + MIN_RTO_MARGIN_US.max(4.0 * self.var_us);
        segment.sent_us
            + (rto_us as u64) * (1 << segment.transmissions.saturating_sub(1).min(MAX_BACKOFF))
    }

    /// RFC 6298, section 2.
    fn sample(&mut self, rtt_us: f64) {
        self.var_us = 0.75 * self.var_us + 0.25 * (self.srtt_us - rtt_us).abs();
        self.srtt_us = 0.875 * self.srtt_us + 0.125 * rtt_us;
    }

    fn retransmit(&mut self, index: u32) {
        if !self.queue.contains(&index) {
            self.queue.push_back(index);
        }
    }
}

impl SenderEnd for TcpSender {
    fn handle_token(&mut self, now_us: u64, text: &[u8], last: bool) {
        self.volume.once += text.len() as u64;
        let index = self.next_index;
        self.next_index += 1;
        let token = Token { index, last, text: text.to_vec() };
        self.unacked.insert(
            index,
            SentSegment { token, number: 0, sent_us: now_us, transmissions: 0, later_acks: 0 },
        );
        self.queue.push_back(index);
        if last {
            self.ending.end(now_us);
        }
    }

    fn handle_packet(&mut self, now_us: u64, packet: &[u8]) {
        let Some(number) = packet::number(packet) else {
            return;
        };
        let Some(&(index, sent_us)) = self.sent_us.get(number as usize) else {
            return;
        };
        // Each transmission has its own number, so a retransmission gives a valid sample too, as
        // TCP timestamps allow.
        self.sample((now_us - sent_us) as f64);
        self.unacked.remove(&index);
        self.queue.retain(|&queued| queued != index);
        let mut lost = Vec::new();
        for (&index, segment) in &mut self.unacked {
            // Counted by packet number and not by offset: a retransmission is judged by the
            // acknowledgements of packets that left after it.
            if segment.number < number {
                segment.later_acks += 1;
                // Equality: at four and more it is in the queue or in flight again already.
                if segment.later_acks == REORDERING_THRESHOLD {
                    lost.push(index);
                }
            }
        }
        for index in lost {
            self.retransmit(index);
        }
    }

    fn handle_timeout(&mut self, now_us: u64) {
        self.ending.handle_timeout(now_us);
        let expired: Vec<u32> = self
            .unacked
            .iter()
            .filter(|(_, segment)| self.deadline_us(segment) <= now_us)
            .map(|(&index, _)| index)
            .collect();
        for index in expired {
            self.retransmit(index);
        }
    }

    fn poll_transmit(&mut self, now_us: u64, out: &mut Vec<u8>) -> bool {
        let Some(index) = self.queue.pop_front() else {
            return false;
        };
        let number = self.next_number;
        let segment = self.unacked.get_mut(&index).expect("queued means unacknowledged");
        segment.transmissions += 1;
        segment.later_acks = 0;
        segment.number = number;
        segment.sent_us = now_us;
        packet::put_number(out, number);
        packet::put_token(out, &segment.token);
        self.volume.sent += segment.token.text.len() as u64;
        self.sent_us.push((index, now_us));
        self.next_number += 1;
        true
    }

    fn poll_timeout(&self) -> Option<u64> {
        if self.progress() != DeliveryProgress::Active {
            return None;
        }
        let resend = self.unacked.values().map(|s| self.deadline_us(s)).min()?;
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
