//! Loquent's own scheme: the `Sender` and `Receiver` of `proto`, which server and clients ship.
//!
//! Only their driver is simulated here. A client that receives nothing for a while, or whose path
//! has changed, resumes the answer on a new channel (spec, D-6).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use loquent_proto::frame::{Frame, Resume};
use loquent_proto::{
    ACK_STEP_BYTES, Delta, Micros, Receiver, ReceiverConfig, ReceiverEvent, Sender, SenderConfig,
    SenderState,
};
use serde::{Deserialize, Serialize};

use super::{Budget, DeliveryProgress, ReceiverEnd, SenderEnd, Volume};
use crate::link::HEADER_BYTES;
use crate::reader::ReaderBehaviour;

/// Differences from the shipped parameters, to study them.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tuning(BTreeMap<Parameter, u64>);

/// A parameter of [`SenderConfig`] that a plan may change, with the field that it sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Parameter {
    /// `new_text_gap` in ms.
    NewTextGapMs,
    /// `fast_text_gap` in ms.
    FastTextGapMs,
    /// `max_gap` in ms.
    MaxGapMs,
    /// `retransmit_gap_max` in ms.
    RetransmitGapMaxMs,
    /// `queue_tolerance` in ms.
    QueueToleranceMs,
    /// All gaps between copies but the first of a path, in ms.
    CopyGapMs,
    /// `start_copy_gap` in ms.
    StartCopyGapMs,
    /// `burst_memory` in ms.
    BurstMemoryMs,
    /// `bucket_bytes_per_s`.
    BucketBytesPerS,
    /// `max_datagram_bytes`.
    MaxDatagramBytes,
    /// `padding_step_bytes`.
    PaddingStepBytes,
    /// `padding_memory_frames`.
    PaddingMemoryFrames,
}

impl Parameter {
    fn set(self, config: &mut SenderConfig, value: u64) {
        let ms = Micros::from_ms(value);
        match self {
            Self::NewTextGapMs => config.new_text_gap = ms,
            Self::FastTextGapMs => config.fast_text_gap = ms,
            Self::MaxGapMs => config.max_gap = ms,
            Self::RetransmitGapMaxMs => config.retransmit_gap_max = ms,
            Self::QueueToleranceMs => config.queue_tolerance = ms,
            Self::CopyGapMs => {
                (config.copy_gap, config.first_copy_gap) = ([ms; 2], ms);
                (config.run_copy_gap, config.run_first_copy_gap) = ([ms; 2], ms);
            }
            Self::StartCopyGapMs => config.start_copy_gap = ms,
            Self::BurstMemoryMs => config.burst_memory = ms,
            Self::BucketBytesPerS => config.bucket_bytes_per_s = value,
            Self::MaxDatagramBytes => config.max_datagram_bytes = value as usize,
            Self::PaddingMemoryFrames => config.padding_memory_frames = value as usize,
            Self::PaddingStepBytes => config.padding_step_bytes = value as usize,
        }
    }
}

impl Tuning {
    /// Returns the shipped parameters, including padding.
    pub fn padded() -> Self {
        Self::with_padding(SenderConfig::default().padding_step_bytes as u64)
    }

    /// Returns the shipped parameters, but padded to multiples of `step_bytes`; 0 disables padding.
    pub fn with_padding(step_bytes: u64) -> Self {
        Self(BTreeMap::from([(Parameter::PaddingStepBytes, step_bytes)]))
    }

    /// Returns the shipped parameters with these differences. Padding is off unless set: no other
    /// scheme has it, and `plans/padding.toml` measures its cost.
    pub fn config(&self) -> SenderConfig {
        let mut config = SenderConfig { padding_step_bytes: 0, ..SenderConfig::default() };
        for (parameter, &value) in &self.0 {
            parameter.set(&mut config, value);
        }
        config
    }

    /// Returns the sender's budget for packets without new text.
    pub fn budget(&self) -> Budget {
        let config = self.config();
        Budget { burst_bytes: config.bucket_depth_bytes, bytes_per_s: config.bucket_bytes_per_s }
    }
}

/// Log offset after each token, shared by both ends only for the measurement.
type TokenEnds = Rc<RefCell<Vec<u64>>>;

/// Creates both ends of an answer whose handshake has measured `rtt_us`. `checked` frames carry
/// checksums, for links that corrupt packets.
pub fn ends(
    tuning: &Tuning,
    rtt_us: u64,
    checked: bool,
    reader: &ReaderBehaviour,
) -> (LoquentSender, LoquentReceiver) {
    let config = SenderConfig { initial_rtt: Micros(rtt_us), checked, ..tuning.config() };
    let receiver_config = ReceiverConfig {
        playout: reader.pace(),
        checked,
        ack_step_bytes: if config.padding_step_bytes > 0 { ACK_STEP_BYTES } else { 0 },
        ..ReceiverConfig::default()
    };
    let token_ends = TokenEnds::default();
    let sender = LoquentSender {
        inner: Sender::new(Micros(0), 0, config),
        channels: 0,
        checked,
        opened: false,
        token_ends: Rc::clone(&token_ends),
        volume: Volume::default(),
        repeated_bytes: 0,
        sent_end: 0,
        text_start: 0,
        last_range: 0..0,
    };
    let receiver = LoquentReceiver {
        inner: Receiver::new(Micros(0), 0, 0, receiver_config),
        checked,
        token_ends,
        shown: Vec::new(),
        finished: false,
        channel: 0,
        resume_at: None,
    };
    (sender, receiver)
}

/// Drives the shipped sender.
#[derive(Debug)]
pub struct LoquentSender {
    inner: Sender,
    channels: u64,
    checked: bool,
    opened: bool,
    token_ends: TokenEnds,
    volume: Volume,
    repeated_bytes: u64,
    /// Log offset below which everything has been sent.
    sent_end: u64,
    /// Log offset of the first token.
    text_start: u64,
    /// Log offsets in the packet sent last.
    last_range: Range<u64>,
}

impl LoquentSender {
    fn push(&mut self, now_us: u64, delta: &Delta) -> u64 {
        let before = self.inner.log().head();
        let end = self.inner.push(Micros(now_us), delta);
        let end = end.expect("an answer of a study fits the log");
        self.volume.once += end - before;
        end
    }
}

impl SenderEnd for LoquentSender {
    fn handle_token(&mut self, now_us: u64, text: &[u8], last: bool) {
        if !self.opened {
            self.opened = true;
            let meta = "{}".to_owned();
            self.text_start = self.push(now_us, &Delta::Open { meta });
        }
        let text = String::from_utf8(text.to_vec()).expect("tokens are letters");
        let end = self.push(now_us, &Delta::text(text));
        self.token_ends.borrow_mut().push(end);
        if last {
            let reason = "stop".to_owned();
            self.push(now_us, &Delta::Finish { choice: 0, reason });
            self.push(now_us, &Delta::Done);
        }
    }

    fn handle_packet(&mut self, now_us: u64, packet: &[u8]) {
        match Frame::decode(packet, self.checked) {
            Ok(Frame::Resume(resume)) if resume.channel > self.channels => {
                // The server has checked id and token by now; a stale offset is refused.
                if self.inner.resume(Micros(now_us), resume.channel, resume.offset).is_ok() {
                    self.channels = resume.channel;
                }
            }
            // A packet that the link corrupted is an error without effect (spec, D-5).
            _ => drop(self.inner.handle_datagram(Micros(now_us), packet)),
        }
    }

    fn handle_timeout(&mut self, now_us: u64) {
        self.inner.handle_timeout(Micros(now_us));
    }

    fn poll_transmit(&mut self, now_us: u64, packet: &mut Vec<u8>) -> bool {
        let Some(sent) = self.inner.poll_transmit(Micros(now_us), packet) else {
            return false;
        };
        self.volume.sent += sent.range.end - sent.range.start;
        self.sent_end = self.sent_end.max(sent.range.end);
        self.last_range = sent.range.clone();
        if !sent.new_text {
            self.repeated_bytes += (sent.len + HEADER_BYTES) as u64;
        }
        true
    }

    fn poll_timeout(&self) -> Option<u64> {
        self.inner.poll_timeout().map(|at| at.0)
    }

    fn progress(&self) -> DeliveryProgress {
        match self.inner.state() {
            SenderState::Active if self.inner.cumulative() == self.inner.log().head() => {
                // Everything generated so far has arrived; the answer is complete only if no more
                // will be generated.
                match self.inner.log().is_ended() {
                    true => DeliveryProgress::Complete,
                    false => DeliveryProgress::Active,
                }
            }
            SenderState::Active => DeliveryProgress::Active,
            SenderState::Suspended => DeliveryProgress::Suspended,
            SenderState::Finished | SenderState::Stopped => DeliveryProgress::Complete,
        }
    }

    fn volume(&self) -> Volume {
        self.volume
    }

    fn repeated_bytes(&self) -> u64 {
        self.repeated_bytes
    }

    fn tokens_sent(&self) -> Option<usize> {
        Some(self.token_ends.borrow().partition_point(|&end| end <= self.sent_end))
    }

    fn acked_tokens(&self) -> Option<usize> {
        let cumulative = self.inner.cumulative();
        Some(self.token_ends.borrow().partition_point(|&end| end <= cumulative))
    }

    fn carried(&self, _packet: &[u8]) -> Vec<Range<usize>> {
        let (ends, Range { start, end }) = (self.token_ends.borrow(), self.last_range.clone());
        if start >= end || end <= self.text_start {
            return Vec::new();
        }
        let first = ends.partition_point(|&other| other <= start);
        let last = (ends.partition_point(|&other| other < end) + 1).min(ends.len());
        // Behind the last token there is the answer's finish, which is no text.
        Vec::from_iter((first < last).then_some(first..last))
    }
}

/// Wait for the effect of a resume before the client repeats it.
const RESUME_RETRY_US: u64 = 1_000_000;

/// Drives the shipped receiver.
#[derive(Debug)]
pub struct LoquentReceiver {
    inner: Receiver,
    checked: bool,
    token_ends: TokenEnds,
    shown: Vec<u8>,
    finished: bool,
    channel: u64,
    resume_at: Option<u64>,
}

impl LoquentReceiver {
    fn drain(&mut self, now_us: u64) {
        while let Some(event) = self.inner.poll_event() {
            match event {
                ReceiverEvent::Delta { delta, .. } => {
                    if let Delta::Text { text, .. } = delta {
                        self.shown.extend_from_slice(text.as_bytes());
                    }
                }
                ReceiverEvent::Complete => self.finished = true,
                ReceiverEvent::Failed(error) => panic!("the log cannot be read: {error:?}"),
                ReceiverEvent::Silent => self.reconnect(now_us),
            }
        }
    }

    fn reconnect(&mut self, now_us: u64) {
        self.channel += 1;
        self.inner.migrate(Micros(now_us), self.channel);
        self.resume_at = Some(now_us);
    }
}

impl ReceiverEnd for LoquentReceiver {
    fn handle_packet(&mut self, now_us: u64, packet: &[u8]) {
        // A packet that the link corrupted is an error without effect (spec, D-5).
        if self.inner.handle_datagram(Micros(now_us), packet).is_ok() {
            self.resume_at = None;
        }
        self.drain(now_us);
    }

    fn handle_timeout(&mut self, now_us: u64) {
        self.inner.handle_timeout(Micros(now_us));
        self.drain(now_us);
    }

    fn handle_hidden(&mut self, now_us: u64, hidden: bool) {
        self.inner.set_hidden(Micros(now_us), hidden);
        self.drain(now_us);
    }

    fn handle_new_path(&mut self, now_us: u64) {
        if !self.finished {
            self.reconnect(now_us);
        }
    }

    fn poll_transmit(&mut self, now_us: u64, packet: &mut Vec<u8>) -> bool {
        if self.resume_at.is_some_and(|at| at <= now_us) {
            self.resume_at = Some(now_us + RESUME_RETRY_US);
            let resume = Resume {
                channel: self.channel,
                id: [1; 16],
                token: [2; 16],
                offset: self.inner.cumulative(),
            };
            Frame::Resume(resume).encode(self.checked, packet);
            return true;
        }
        self.inner.poll_transmit(Micros(now_us), packet).is_some()
    }

    fn poll_timeout(&self) -> Option<u64> {
        let inner = self.inner.poll_timeout().map(|at| at.0);
        inner.into_iter().chain(self.resume_at).min()
    }

    fn take_shown(&mut self, text: &mut Vec<u8>) {
        text.append(&mut self.shown);
    }

    fn arrived(&self) -> usize {
        let cumulative = self.inner.cumulative();
        self.token_ends.borrow().partition_point(|&end| end <= cumulative)
    }

    fn finished(&self) -> bool {
        self.finished
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_changes_parameters_by_name() {
        let text = "copy_gap_ms = 12\nbucket_bytes_per_s = 6000\n";
        let config = toml::from_str::<Tuning>(text).expect("two parameters").config();
        let gap = Micros::from_ms(12);
        assert_eq!((config.copy_gap, config.first_copy_gap), ([gap; 2], gap));
        assert_eq!(config.bucket_bytes_per_s, 6000);
        let unchanged = SenderConfig::default();
        assert_eq!(config.start_copy_gap, unchanged.start_copy_gap);
        assert!(toml::from_str::<Tuning>("copy_gap = 12").is_err());
    }
}
