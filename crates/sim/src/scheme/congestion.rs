//! A model of QUIC's congestion control around a scheme's two ends.
//!
//! Packets get numbers, the receiver acknowledges them as QUIC does, and the sender holds packets
//! back while the window is full. The model shows how a thin lossy stream fares behind a controller
//! that takes every loss for congestion (RFC 9002, sections 6 and 7).

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::{DeliveryProgress, ReceiverEnd, SenderEnd, Volume};

/// Datagrams are admitted in units of a full packet, as quinn does.
const MTU_BYTES: f64 = 1_200.0;
const MAX_ACK_DELAY_US: u64 = 25_000;
/// Limit of the back-off. QUIC backs off without a limit until the connection idles out; a client
/// would then reconnect, which this model leaves out.
const MAX_PROBE_WAIT_US: f64 = 5e6;
const PACKET_THRESHOLD: u32 = 3;
/// Bytes of the QUIC ACK that precedes the payload: largest number and a bitmap.
const ACK_BYTES: usize = 12;

/// A congestion controller as written in a plan.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Congestion {
    /// The control law of the window.
    pub control: CongestionControl,
    /// Minimum window in bytes; two packets in RFC 9002.
    #[serde(default = "two_packets")]
    pub floor_bytes: f64,
}

fn two_packets() -> f64 {
    2.0 * MTU_BYTES
}

/// The control law of a congestion window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CongestionControl {
    /// RFC 9002, section 7.
    NewReno,
    /// RFC 9438, without its fast convergence.
    Cubic,
}

/// A congestion window with the state of its control law.
#[derive(Debug)]
struct CongestionWindow {
    congestion: Congestion,
    bytes: f64,
    threshold: f64,
    recovery_since_us: u64,
    /// The window before the last loss, and the start of growth after it (CUBIC).
    peak: f64,
    epoch_us: u64,
}

impl CongestionWindow {
    fn new(congestion: Congestion) -> Self {
        let bytes = (10.0 * MTU_BYTES).max(congestion.floor_bytes);
        Self {
            congestion,
            bytes,
            threshold: f64::INFINITY,
            recovery_since_us: 0,
            peak: bytes,
            epoch_us: 0,
        }
    }

    /// Grows the window after a packet of `bytes` was acknowledged while the window was fully used.
    fn grow(&mut self, now_us: u64, bytes: f64) {
        if self.bytes < self.threshold {
            self.bytes += bytes;
            return;
        }
        let reno = MTU_BYTES * bytes / self.bytes;
        self.bytes += match self.congestion.control {
            CongestionControl::NewReno => reno,
            CongestionControl::Cubic => {
                let t_s = now_us.saturating_sub(self.epoch_us) as f64 / 1e6;
                let peak = self.peak / MTU_BYTES;
                let k_s = (peak * (1.0 - CUBIC_BETA) / CUBIC_C).cbrt();
                let target = (CUBIC_C * (t_s - k_s).powi(3) + peak) * MTU_BYTES;
                ((target - self.bytes) * bytes / self.bytes).max(reno)
            }
        };
    }

    /// Shrinks the window, once per recovery period, after the loss of a packet sent at `sent_us`.
    fn shrink(&mut self, now_us: u64, sent_us: u64) {
        if sent_us < self.recovery_since_us {
            return;
        }
        self.recovery_since_us = now_us;
        self.epoch_us = now_us;
        self.peak = self.bytes;
        let factor = match self.congestion.control {
            CongestionControl::NewReno => 0.5,
            CongestionControl::Cubic => CUBIC_BETA,
        };
        self.bytes = (self.bytes * factor).max(self.congestion.floor_bytes);
        self.threshold = self.bytes;
    }

    /// Handles persistent congestion (RFC 9002, section 7.6).
    fn collapse(&mut self) {
        self.bytes = self.congestion.floor_bytes;
    }
}

const CUBIC_BETA: f64 = 0.7;
const CUBIC_C: f64 = 0.4;

#[derive(Debug, Clone, Copy)]
struct InFlight {
    number: u32,
    sent_us: u64,
    bytes: f64,
}

/// The server's end: holds packets back while the window is full.
pub struct CongestedSender {
    inner: Box<dyn SenderEnd>,
    window: CongestionWindow,
    in_flight: VecDeque<InFlight>,
    next_number: u32,
    srtt_us: f64,
    var_us: f64,
    probes: u32,
    /// True if a probe may be sent although the window is full.
    probe_due: bool,
    last_sent_us: u64,
}

impl CongestedSender {
    /// Puts `inner` behind a controller on a path of `rtt_us`.
    pub fn new(inner: Box<dyn SenderEnd>, congestion: Congestion, rtt_us: u64) -> Self {
        Self {
            inner,
            window: CongestionWindow::new(congestion),
            in_flight: VecDeque::new(),
            next_number: 0,
            srtt_us: rtt_us as f64,
            var_us: rtt_us as f64 / 2.0,
            probes: 0,
            probe_due: false,
            last_sent_us: 0,
        }
    }

    fn used(&self) -> f64 {
        self.in_flight.iter().map(|packet| packet.bytes).sum()
    }

    fn blocked(&self) -> bool {
        !self.probe_due && self.used() + MTU_BYTES > self.window.bytes
    }

    fn probe_timeout_us(&self) -> f64 {
        self.srtt_us + (4.0 * self.var_us).max(1e3) + MAX_ACK_DELAY_US as f64
    }

    fn probe_at(&self) -> Option<u64> {
        let backed_off_us = self.probe_timeout_us() * f64::from(1u32 << self.probes.min(10));
        let wait_us = backed_off_us.min(MAX_PROBE_WAIT_US);
        (!self.in_flight.is_empty()).then(|| self.last_sent_us + wait_us as u64)
    }

    fn handle_ack(&mut self, now_us: u64, largest: u32, before: u64) {
        let acked = |number: u32| {
            number == largest
                || number < largest
                    && (largest - number) <= 64
                    && before >> (largest - number - 1) & 1 == 1
        };
        // A window that is not used must not grow (RFC 9002, section 7.8). More than half
        // of it counts as used.
        let full = self.used() * 2.0 > self.window.bytes;
        let mut kept = VecDeque::with_capacity(self.in_flight.len());
        for packet in std::mem::take(&mut self.in_flight) {
            if !acked(packet.number) {
                kept.push_back(packet);
                continue;
            }
            // Any acknowledgement shows that the path works, so the back-off starts over.
            self.probes = 0;
            if full {
                self.window.grow(now_us, packet.bytes);
            }
            // Only the largest newly acknowledged packet gives a sample (RFC 9002, section 5.1):
            // the ACK of an earlier one may have been delayed on purpose.
            if packet.number == largest {
                let rtt_us = (now_us - packet.sent_us) as f64;
                self.var_us = 0.75 * self.var_us + 0.25 * (self.srtt_us - rtt_us).abs();
                self.srtt_us = 0.875 * self.srtt_us + 0.125 * rtt_us;
            }
        }
        self.in_flight = kept;
        self.detect_losses(now_us, largest);
    }

    fn detect_losses(&mut self, now_us: u64, largest: u32) {
        // Lost by time as well as by count: the last packets before a pause have no later ones
        // (RFC 9002, section 6.1.2; 9/8 is its recommended threshold).
        let late_us = (self.srtt_us * 9.0 / 8.0) as u64;
        let lost = |packet: &InFlight| {
            packet.number + PACKET_THRESHOLD <= largest
                || packet.number < largest && packet.sent_us + late_us <= now_us
        };
        let gone: Vec<InFlight> = self.in_flight.iter().copied().filter(lost).collect();
        self.in_flight.retain(|packet| !lost(packet));
        for packet in &gone {
            self.window.shrink(now_us, packet.sent_us);
        }
        if let (Some(first), Some(last)) = (gone.first(), gone.last())
            && (last.sent_us - first.sent_us) as f64 > 3.0 * self.probe_timeout_us()
        {
            self.window.collapse();
        }
    }
}

impl SenderEnd for CongestedSender {
    fn handle_token(&mut self, now_us: u64, text: &[u8], last: bool) {
        self.inner.handle_token(now_us, text, last);
    }

    fn handle_packet(&mut self, now_us: u64, packet: &[u8]) {
        let Some((head, payload)) = packet.split_first_chunk::<ACK_BYTES>() else {
            return;
        };
        let largest = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
        let before = head[4..].iter().fold(0, |bits, byte| bits << 8 | u64::from(*byte));
        self.handle_ack(now_us, largest, before);
        if !payload.is_empty() {
            self.inner.handle_packet(now_us, payload);
        }
    }

    fn handle_timeout(&mut self, now_us: u64) {
        if self.probe_at().is_some_and(|at_us| at_us <= now_us) {
            self.probes += 1;
            self.probe_due = true;
            // Restarts the timer even if the inner sender has nothing to probe with.
            self.last_sent_us = now_us;
            // While blocked its own timers wait for this one: it may want to give up.
            self.inner.handle_timeout(now_us);
        }
        if self.inner.poll_timeout().is_some_and(|at_us| at_us <= now_us) {
            self.inner.handle_timeout(now_us);
        }
    }

    fn poll_transmit(&mut self, now_us: u64, packet: &mut Vec<u8>) -> bool {
        if self.blocked() {
            return false;
        }
        // The number goes in front before it is known whether a packet follows; without one it is
        // taken back.
        let number = self.next_number;
        packet.extend_from_slice(&number.to_be_bytes());
        if !self.inner.poll_transmit(now_us, packet) && !self.probe_due {
            packet.clear();
            return false;
        }
        self.probe_due = false;
        self.next_number += 1;
        self.last_sent_us = now_us;
        self.in_flight.push_back(InFlight {
            number,
            sent_us: now_us,
            bytes: (packet.len() + crate::link::HEADER_BYTES) as f64,
        });
        true
    }

    fn poll_timeout(&self) -> Option<u64> {
        if self.progress() != DeliveryProgress::Active {
            return None;
        }
        // While blocked, only an acknowledgement or a probe can help.
        let inner = self.inner.poll_timeout().filter(|_| !self.blocked());
        inner.into_iter().chain(self.probe_at()).min()
    }

    fn progress(&self) -> DeliveryProgress {
        self.inner.progress()
    }

    fn volume(&self) -> Volume {
        self.inner.volume()
    }

    fn repeated_bytes(&self) -> u64 {
        self.inner.repeated_bytes()
    }

    fn tokens_sent(&self) -> Option<usize> {
        self.inner.tokens_sent()
    }
}

/// The receiving end: acknowledges every second packet, or after 25 ms, or together with the
/// payload.
pub struct CongestedReceiver {
    inner: Box<dyn ReceiverEnd>,
    largest: u32,
    before: u64,
    unacked: u32,
    ack_at: Option<u64>,
}

impl CongestedReceiver {
    /// Adds QUIC's acknowledgements to `inner`.
    pub fn new(inner: Box<dyn ReceiverEnd>) -> Self {
        Self { inner, largest: 0, before: 0, unacked: 0, ack_at: None }
    }

    fn note(&mut self, number: u32) {
        if number > self.largest {
            let by = number - self.largest;
            self.before = self.before.checked_shl(by).unwrap_or(0);
            self.before |= 1u64.checked_shl(by - 1).unwrap_or(0);
            self.largest = number;
        } else if number < self.largest {
            self.before |= 1u64.checked_shl(self.largest - number - 1).unwrap_or(0);
        }
    }
}

impl ReceiverEnd for CongestedReceiver {
    fn handle_packet(&mut self, now_us: u64, packet: &[u8]) {
        let Some((head, payload)) = packet.split_first_chunk::<4>() else {
            return;
        };
        self.note(u32::from_be_bytes(*head));
        self.unacked += 1;
        self.ack_at.get_or_insert(now_us + MAX_ACK_DELAY_US);
        if !payload.is_empty() {
            self.inner.handle_packet(now_us, payload);
        }
    }

    fn handle_timeout(&mut self, now_us: u64) {
        if self.inner.poll_timeout().is_some_and(|at_us| at_us <= now_us) {
            self.inner.handle_timeout(now_us);
        }
    }

    fn handle_hidden(&mut self, now_us: u64, hidden: bool) {
        self.inner.handle_hidden(now_us, hidden);
    }

    fn handle_new_path(&mut self, now_us: u64) {
        self.inner.handle_new_path(now_us);
    }

    fn poll_transmit(&mut self, now_us: u64, packet: &mut Vec<u8>) -> bool {
        packet.extend_from_slice(&self.largest.to_be_bytes());
        packet.extend_from_slice(&self.before.to_be_bytes());
        let due = self.unacked >= 2 || self.ack_at.is_some_and(|at_us| at_us <= now_us);
        if !self.inner.poll_transmit(now_us, packet) && !due {
            packet.clear();
            return false;
        }
        (self.unacked, self.ack_at) = (0, None);
        true
    }

    fn poll_timeout(&self) -> Option<u64> {
        self.inner.poll_timeout().into_iter().chain(self.ack_at).min()
    }

    fn take_shown(&mut self, text: &mut Vec<u8>) {
        self.inner.take_shown(text);
    }

    fn arrived(&self) -> usize {
        self.inner.arrived()
    }

    fn finished(&self) -> bool {
        self.inner.finished()
    }
}
