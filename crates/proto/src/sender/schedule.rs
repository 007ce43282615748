//! Decides when the next packet is sent: section 8 of `spec/delivery.md`, one function per rule.
//!
//! Everything here is a pure function of a [`Schedule`], which borrows the sender's state.

use super::answer_log::Rhythm;
use super::config::SenderConfig;
use super::progress::{LogProgress, ReaderState, RecentLengths, SendTimes};
use crate::Micros;
use crate::pacing::SendPacer;
use crate::path::PathEstimate;
use crate::token_bucket::TokenBucket;

/// Log bytes of a repetition that is always worth its headers, however low the bucket. Chosen by
/// hand: slightly more than the headers (up to 89 bytes) cost.
pub(super) const SPARE_BYTES_MIN: u64 = 128;

/// Maximum gap between tokens that counts as fast (§8, first rule).
const FAST_TEXT: Micros = Micros::from_ms(50);

/// Gap between copies times the round trip, in µs², on a path that loses in runs: 60 ms at a round
/// trip of 200 ms, 30 ms at 400. The sooner a loss is known, the less the copies before it save.
const RUN_COPY: u64 = 12_000_000_000;

/// Time per byte of a link of 20 kbit/s, which a path may be as long as it has acknowledged
/// nothing. Over 16 kbit/s, an answer's head of 200 bytes and its copies stood in the first token's
/// way for 800 ms, and in that of all text for 7 s if the first acknowledgements were lost. On a
/// fast path the first token's copies then come later, if its first packet is lost; at 16 kbit/s
/// they would come later still.
const BLIND_US_PER_BYTE: u64 = 400;

/// Bytes sent on such a path from which on new text waits for the link too. Chosen by hand: what a
/// path of 400 ms is sent within its first round trip.
const BLIND_BYTES: u64 = 1_500;

/// Reason for sending a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SendReason {
    /// Text that was never sent.
    NewText,
    /// Repetition of unacknowledged bytes.
    Repeat,
    /// The reader asked for a sign of life (D-5.7).
    ProbeReply,
}

/// Time at which the reader needs text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReaderUrgency {
    /// At once.
    Eager,
    /// Not before `needed_at`: the reader still has text to show.
    Behind { needed_at: Micros },
    /// Not soon: the page is hidden.
    Hidden,
}

/// Recent losses on the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LossPattern {
    /// The path is too new to know.
    Unknown,
    /// No losses, or single ones.
    Steady,
    /// Runs of losses.
    Bursty,
}

/// State that decides when packets are sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Schedule<'a> {
    pub config: &'a SenderConfig,
    pub path: &'a PathEstimate,
    pub pacer: &'a SendPacer,
    pub bucket: &'a TokenBucket,
    pub progress: &'a LogProgress,
    pub times: &'a SendTimes,
    pub rhythm: &'a Rhythm,
    pub reader: &'a ReaderState,
    /// End of the bytes that may be sent now: limited by the log and by the bytes in flight
    /// (D-7.1).
    pub head: u64,
    /// The log has its last record.
    pub is_ended: bool,
    /// Maximum bytes of the next frame around its log bytes.
    pub header_bytes: usize,
    pub lengths: &'a RecentLengths,
}

impl Schedule<'_> {
    /// Returns when the next packet is due and why; `None` if there is nothing to send.
    pub fn when_next(&self) -> Option<(Micros, SendReason)> {
        let probe = self.times.probed_at.map(|at| (at, SendReason::ProbeReply));
        if self.progress.cumulative == self.head {
            return probe.and_then(|due| self.when_affordable(due, 0));
        }
        let unsent = self.times.unsent_since.filter(|_| self.progress.sent_head < self.head);
        let text = unsent.and_then(|since| self.when_new_text(since));
        let text = text.map(|at| (at, SendReason::NewText));
        let repeat = self.when_repeat().map(|at| (at, SendReason::Repeat));
        // Only what carries no new text is paid from the bucket (D-7.3).
        let spare = [repeat, probe].into_iter().flatten().min_by_key(|(at, _)| *at);
        let free = self.times.last_send.map_or(Micros::ZERO, |last| last + self.blind_gap());
        let spare = spare.map(|(at, reason)| (at.max(free), reason));
        let spare = spare.and_then(|due| self.when_affordable(due, self.spare_bytes()));
        // The first of those that are due at the same time.
        // New text carries what it can of the old, so that it is usually worth more than a copy.
        let order = if self.is_repair_due() { [spare, text] } else { [text, spare] };
        order.into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    /// Returns true if much was sent on a path that has acknowledged nothing: a queue may stand
    /// there unseen.
    pub fn is_blind(&self) -> bool {
        self.path.unanswered_bytes() > BLIND_BYTES
    }

    /// Time that a thin link takes for the last packet, as long as the path has not answered.
    fn blind_gap(&self) -> Micros {
        let is_answered = self.path.unanswered_bytes() == 0;
        Micros(if is_answered { 0 } else { self.path.last_wire_bytes() * BLIND_US_PER_BYTE })
    }

    /// Returns true if, in a queue of others, a repetition takes the place of new text: text cannot
    /// be shown while bytes before it are missing.
    fn is_repair_due(&self) -> bool {
        let last_text = self.times.last_new_text.filter(|at| self.times.last_send == Some(*at));
        let is_overdue =
            |last: Micros| self.overdue_at().is_some_and(|at| at <= last + self.pacer.gap());
        self.pacer.is_crowded() && last_text.is_some_and(is_overdue)
    }

    /// Postpones `due` until the bucket can pay for a packet with `log_bytes`.
    fn when_affordable(
        &self,
        due: (Micros, SendReason),
        log_bytes: u64,
    ) -> Option<(Micros, SendReason)> {
        let ready = self.bucket.ready_at(self.cost(self.frame_bytes(log_bytes)));
        ready.map(|ready| (due.0.max(ready), due.1))
    }

    /// Cost of a datagram in bytes of the bucket.
    pub fn cost(&self, datagram_bytes: usize) -> u64 {
        datagram_bytes as u64 + self.config.packet_overhead_bytes
    }

    /// Log bytes that the bucket must be able to pay for before anything is repeated.
    fn spare_bytes(&self) -> u64 {
        self.progress.unacked_bytes().min(self.unpadded_bytes(SPARE_BYTES_MIN))
    }

    /// When text that is unsent since `since` is sent; `None` while the path is down.
    fn when_new_text(&self, since: Micros) -> Option<Micros> {
        // It waits for other new text only, never for a repetition; but among others' packets a
        // repetition takes its place.
        let Some(last_text) = self.times.last_new_text else {
            return Some(since);
        };
        let last = if self.pacer.is_crowded() {
            self.times.last_send.map_or(last_text, |last| last.max(last_text))
        } else {
            last_text
        };
        if let Some(at) = self.when_in_background(last) {
            return Some(at.max(since));
        }
        // The first token waits for nothing: the answer's head before it fills no link.
        if self.rhythm.first_token.is_some_and(|end| self.progress.sent_most < end) {
            return Some(since);
        }
        let mut at = since.max(last + self.new_text_gap());
        if self.is_blind() {
            at = at.max(self.times.last_send.unwrap_or(last) + self.blind_gap());
        }
        (!self.is_path_down(at)).then_some(at)
    }

    fn new_text_gap(&self) -> Micros {
        let fast = self.rhythm.push_gap < FAST_TEXT;
        let gap = if fast { self.config.fast_text_gap } else { self.config.new_text_gap };
        gap.max(self.pacer.gap())
    }

    /// Returns true if the path counts as down at `at`: an acknowledgement has long been overdue,
    /// and no queue explains that.
    fn is_path_down(&self, at: Micros) -> bool {
        let overdue = self.overdue_at().filter(|_| !self.is_queueing());
        overdue.is_some_and(|overdue| at > overdue + self.config.path_down_after)
    }

    /// When sent and unacknowledged bytes are repeated.
    fn when_repeat(&self) -> Option<Micros> {
        let last = self.times.last_send?;
        if self.progress.unacked_bytes() == 0 {
            return None;
        }
        if let Some(at) = self.when_in_background(last) {
            return Some(at.max(last + self.path.rtt.overdue_after()));
        }
        let times =
            [Some(self.when_gap_is_longest(last)), self.when_copy(last), self.when_overdue(last)];
        times.into_iter().flatten().min()
    }

    /// §8, last rule: the time at which a packet is sent if no other rule applies.
    fn when_gap_is_longest(&self, last: Micros) -> Micros {
        last + self.config.max_gap.max(self.pacer.gap())
    }

    /// When the acknowledgement of the oldest unacknowledged byte becomes overdue.
    fn overdue_at(&self) -> Option<Micros> {
        Some(self.progress.unacked_since()? + self.path.rtt.overdue_after())
    }

    /// §8, second rule: a repetition because an acknowledgement is overdue.
    fn when_overdue(&self, last: Micros) -> Option<Micros> {
        let overdue = self.overdue_at()?;
        if self.pacer.is_crowded() {
            return Some(overdue.max(last + self.pacer.gap()));
        }
        // A queue delays acknowledgements, and what is repeated into it makes it longer.
        if self.is_queueing() {
            return None;
        }
        let [least, most] = self.config.retransmit_gap;
        // Within a run of losses most repetitions are lost too: it takes many. Otherwise the first
        // is likely to arrive, and what leaves until its acknowledgement is wasted.
        let part = if self.path.loses_in_runs() { 20 } else { 3 };
        let least = Micros(self.path.rtt.smoothed().0 / part).clamp(least, most);
        // An outage of a second is not over sooner for a packet every 5 ms: the longer it lasts,
        // the longer the gap, which loses at most a tenth of the outage once it ends.
        let growing = least.max(Micros(last.since(overdue).0 / 10));
        let most = match self.is_silent(last) {
            true => self.config.max_gap,
            false => self.config.retransmit_gap_max,
        };
        let gap = growing.min(most).max(self.pacer.gap()).max(self.link_gap(last));
        Some(overdue.max(last + gap))
    }

    /// Gap after the packet at `last` in which a thin link carries a repetition. Faster ones wait
    /// for each other, and then new text waits for them: at 20 tokens per second on 16 kbit/s, text
    /// came twice as late (`plans/narrow-links.toml`).
    fn link_gap(&self, last: Micros) -> Micros {
        self.path.link.of(last, self.cost(self.frame_bytes(self.spare_bytes())))
    }

    /// Returns true if the path has acknowledged nothing yet at `now`, although it should have.
    ///
    /// It may be a thin link behind a full queue. Repetitions at the bucket's full rate would keep
    /// the queue full, and nothing would arrive before the reader tries the next path.
    pub fn is_silent(&self, now: Micros) -> bool {
        let is_overdue = self.overdue_at().is_some_and(|at| at < now);
        is_overdue && self.path.last_arrival().is_none()
    }

    /// §8, third rule: a copy sent before its need can be known.
    fn when_copy(&self, last: Micros) -> Option<Micros> {
        let gap = match self.loss_pattern(last) {
            LossPattern::Bursty => self.burst_copy_gap(last)?,
            LossPattern::Unknown => self.config.start_copy_gap,
            LossPattern::Steady => return None,
        };
        let gap = gap.max(self.pacer.gap()).max(self.link_gap(last));
        // A queue of 40 ms doubles the gap, and one of 60 ms doubles it again. At 80 ms the gap
        // would be eight times as long, up to 200 ms: a packet leaves after `max_gap` anyway.
        let exponent = (self.path.rtt.queue().as_ms() / 20).saturating_sub(1);
        if exponent > 2 {
            return None;
        }
        let at = self.clear_of_new_text(last + gap.times(1 << exponent), gap);
        let cost = self.cost(self.frame_bytes(self.spare_bytes()));
        let ready = self.bucket.ready_at(cost + self.config.copy_reserve_bytes);
        ready.map(|ready| at.max(ready))
    }

    /// Losses of the path as known when the packet at `last` was sent.
    fn loss_pattern(&self, last: Micros) -> LossPattern {
        let bursty_until = self.path.last_burst().map(|at| at + self.config.burst_memory);
        if bursty_until.is_some_and(|until| last < until) {
            LossPattern::Bursty
        } else if last < self.times.opened + self.config.start {
            LossPattern::Unknown
        } else {
            LossPattern::Steady
        }
    }

    /// Gap after the packet at `last` on a path with bursts of losses; `None` if its losses come in
    /// runs and are known so soon that copies before that save nothing.
    fn burst_copy_gap(&self, last: Micros) -> Option<Micros> {
        let rtt = self.path.rtt.smoothed();
        let (gap, first) = if self.path.loses_in_runs() {
            if self.path.rtt.overdue_after() < self.config.copies_from {
                return None;
            }
            let [least, most] = self.config.run_copy_gap;
            (Micros(RUN_COPY / rtt.0.max(1)).clamp(least, most), self.config.run_first_copy_gap)
        } else {
            let [least, most] = self.config.copy_gap;
            (Micros(rtt.0 / 6).clamp(least, most), self.config.first_copy_gap)
        };
        let after_new_text = self.times.last_new_text == Some(last);
        Some(if after_new_text { gap.max(first) } else { gap })
    }

    /// Moves a copy at `at` away from expected new text, which carries everything that the copy
    /// does.
    ///
    /// The copy is sent afterwards, if the text has not come. The window begins only a quarter of
    /// the gap before the expected time, because a copy shortly before the text divides the time
    /// between two texts best; with half a gap, stalls were a tenth higher at a round trip of 100
    /// ms for the same bytes. It ends half a gap after that time: until then the text is likely to
    /// come any moment.
    fn clear_of_new_text(&self, at: Micros, gap: Micros) -> Micros {
        let expected = self.rhythm.last_push + self.rhythm.push_gap;
        let after = Micros(gap.0 / 2);
        let is_close = at + Micros(gap.0 / 4) > expected && at < expected + after;
        if is_close { expected + after } else { at }
    }

    /// Returns true if packets of this answer wait in a queue on the path, its own or that of
    /// others.
    pub fn is_queueing(&self) -> bool {
        self.pacer.is_standing(self.path.rtt.queue()) || self.pacer.is_crowded()
    }

    /// Urgency of text for the reader after the packet at `last`.
    pub fn urgency(&self, last: Micros) -> ReaderUrgency {
        if self.reader.hidden {
            return ReaderUrgency::Hidden;
        }
        if self.reader.pace_bytes_per_s == 0 {
            return ReaderUrgency::Eager;
        }
        let margin = self.path.rtt.smoothed() + self.config.background_margin;
        let needed_at = Micros(self.reader.shows_until.0.saturating_sub(margin.0));
        if needed_at > last { ReaderUrgency::Behind { needed_at } } else { ReaderUrgency::Eager }
    }

    /// §8, last paragraph: when to send to a reader that needs nothing soon; `None` for any other
    /// reader.
    pub fn when_in_background(&self, last: Micros) -> Option<Micros> {
        match self.urgency(last) {
            ReaderUrgency::Eager => None,
            ReaderUrgency::Behind { needed_at } => {
                let [least, most] = self.config.background_gap;
                Some(needed_at.clamp(last + least, last + most))
            }
            // The end leaves at once, so that the answer and its connection can be given up.
            ReaderUrgency::Hidden if self.is_ended && self.progress.sent_head < self.head => {
                Some(last)
            }
            ReaderUrgency::Hidden => Some(last + self.config.hidden_gap),
        }
    }
}

#[cfg(test)]
mod tests;
