//! The congestion window: CUBIC (RFC 9438), reduced proportionally during recovery (RFC 6937); a
//! simplified BBR; or none.

use serde::{Deserialize, Serialize};

/// Limit on TCP's segments in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TcpControl {
    /// CUBIC, Linux's default.
    #[default]
    Cubic,
    /// BBR's reaction to losses: one round trip of packet conservation, then the previous window.
    /// Its pacing and its model of the path are left out.
    Bbr,
    /// No limit: losses are detected and repaired as in Linux, but never taken for congestion.
    None,
}

/// Initial window (RFC 6928).
const INITIAL_SEGMENTS: u32 = 10;
const MIN_SEGMENTS: u32 = 2;
/// Factor of the window after a loss, and scale of its growth in segments/s³ (RFC 9438, section
/// 4.1).
const BETA: f64 = 0.7;
const C: f64 = 0.4;
/// BBR's minimum window outside packet conservation.
const BBR_MIN_SEGMENTS: f64 = 4.0;

/// State saved for the end of recovery and for an undo.
#[derive(Debug, Clone, Copy)]
struct Saved {
    segments: f64,
    threshold: f64,
}

/// A period of growth: its start, and the time until the peak is reached.
#[derive(Debug, Clone, Copy)]
struct Epoch {
    began_us: u64,
    until_peak_s: f64,
    peak: f64,
}

/// A window in segments.
#[derive(Debug)]
pub(super) struct Window {
    control: TcpControl,
    segments: f64,
    threshold: f64,
    /// The window before the last loss.
    peak: f64,
    epoch: Option<Epoch>,
    before: Option<Saved>,
    delivered: u32,
    sent: u32,
    /// True if the sender has wanted to send more than the window allows.
    is_full: bool,
    /// Maximum number of outstanding segments since the token of this number was new.
    most_out: u32,
    most_out_until: u32,
    /// Token whose acknowledgement ends BBR's packet conservation.
    conserves_until: Option<u32>,
}

impl Window {
    pub(super) fn new(control: TcpControl) -> Self {
        Self {
            control,
            conserves_until: None,
            segments: f64::from(INITIAL_SEGMENTS),
            threshold: f64::INFINITY,
            peak: 0.0,
            epoch: None,
            before: None,
            delivered: 0,
            sent: 0,
            is_full: false,
            most_out: 0,
            most_out_until: 0,
        }
    }

    /// Returns the number of segments that may be in flight.
    pub(super) fn segments(&self) -> u32 {
        match self.control {
            TcpControl::None => u32::MAX,
            TcpControl::Cubic | TcpControl::Bbr => self.segments as u32,
        }
    }

    /// Records a sent segment.
    pub(super) fn on_sent(&mut self) {
        self.sent += 1;
    }

    /// Records that data waits for the window.
    pub(super) fn note_blocked(&mut self) {
        self.is_full = true;
    }

    /// Records the use of the window after a segment with new tokens. An unused window does not
    /// grow (`tcp_cwnd_validate`).
    pub(super) fn note_use(&mut self, in_flight: u32, out: u32, acked_below: u32, next: u32) {
        self.is_full = in_flight >= self.segments();
        if acked_below >= self.most_out_until {
            self.most_out = 0;
            self.most_out_until = next;
        }
        self.most_out = self.most_out.max(out);
    }

    fn reduce_threshold(&mut self) {
        self.before = Some(Saved { segments: self.segments, threshold: self.threshold });
        // Fast convergence (RFC 9438, section 4.7).
        let is_lower = self.segments < self.peak;
        self.peak = if is_lower { self.segments * (1.0 + BETA) / 2.0 } else { self.segments };
        self.epoch = None;
        self.threshold = (self.segments * BETA).floor().max(f64::from(MIN_SEGMENTS));
    }

    /// Begins recovery after a loss.
    pub(super) fn begin_recovery(&mut self, next: u32) {
        self.reduce_threshold();
        self.conserves_until = Some(next);
        (self.delivered, self.sent) = (0, 0);
    }

    /// Handles an acknowledgement in recovery (RFC 6937, section 3, as in `tcp_cwnd_reduction`).
    pub(super) fn reduce(&mut self, in_flight: u32, delivered: u32, lost: u32, advanced: bool) {
        if delivered == 0 {
            return;
        }
        if self.control == TcpControl::Bbr {
            let conserved = f64::from(in_flight + delivered);
            self.segments = match self.conserves_until {
                Some(_) => (self.segments - f64::from(lost)).max(conserved),
                None => self.segments.max(BBR_MIN_SEGMENTS) + f64::from(delivered),
            };
            return;
        }
        self.delivered += delivered;
        let prior = self.before.map_or(self.segments, |saved| saved.segments);
        let room = self.threshold - f64::from(in_flight);
        let owed = f64::from(self.delivered) - f64::from(self.sent);
        let mut may_send = if room < 0.0 {
            (self.threshold * f64::from(self.delivered) / prior).ceil() - f64::from(self.sent)
        } else {
            let bonus = f64::from(u8::from(advanced && lost == 0));
            (owed.max(f64::from(delivered)) + bonus).min(room)
        };
        // The first retransmission leaves in any case.
        if self.sent == 0 {
            may_send = may_send.max(1.0);
        }
        self.segments = f64::from(in_flight) + may_send.max(0.0);
    }

    /// Records that everything below `acked_below` has arrived.
    pub(super) fn note_acked(&mut self, acked_below: u32) {
        if self.conserves_until.is_some_and(|until| acked_below >= until) {
            self.conserves_until = None;
        }
    }

    /// Ends recovery: the lost segments have arrived.
    pub(super) fn end_recovery(&mut self) {
        match self.control {
            TcpControl::Bbr => self.restore(),
            TcpControl::Cubic | TcpControl::None => self.segments = self.threshold,
        }
    }

    /// Ends the repair after a timeout: the lost segments have arrived.
    pub(super) fn end_loss(&mut self) {
        if self.control == TcpControl::Bbr {
            self.restore();
        }
    }

    fn restore(&mut self) {
        let before = self.before.map_or(self.segments, |saved| saved.segments);
        self.segments = self.segments.max(before).max(BBR_MIN_SEGMENTS);
        self.conserves_until = None;
    }

    /// Handles a timeout; `began` is false if it belongs to the same losses as before
    /// (`tcp_enter_loss`).
    pub(super) fn time_out(&mut self, began: bool, in_flight: u32) {
        if began {
            self.reduce_threshold();
        }
        self.conserves_until = None;
        self.peak = 0.0;
        self.epoch = None;
        self.segments = f64::from(in_flight + 1);
    }

    /// Undoes the reduction: nothing was lost after all.
    pub(super) fn undo(&mut self) {
        if let Some(saved) = self.before.take() {
            self.segments = self.segments.max(saved.segments);
            self.threshold = self.threshold.max(saved.threshold);
        }
    }

    /// Grows the window after `delivered` segments were acknowledged outside recovery.
    pub(super) fn grow(&mut self, now_us: u64, delivered: u32) {
        if self.control == TcpControl::Bbr {
            let grown = self.segments + f64::from(delivered);
            self.segments = grown.clamp(BBR_MIN_SEGMENTS, f64::from(INITIAL_SEGMENTS));
            return;
        }
        let slow_start = self.segments < self.threshold;
        let used = match slow_start {
            true => self.is_full || self.segments < 2.0 * f64::from(self.most_out),
            false => self.is_full,
        };
        if !used || delivered == 0 {
            return;
        }
        if slow_start {
            self.segments = (self.segments + f64::from(delivered)).min(self.threshold);
            return;
        }
        let epoch = *self.epoch.get_or_insert_with(|| Epoch {
            began_us: now_us,
            until_peak_s: ((self.peak - self.segments).max(0.0) / C).cbrt(),
            peak: self.peak.max(self.segments),
        });
        let t_s = (now_us - epoch.began_us) as f64 / 1e6;
        let target = C * (t_s - epoch.until_peak_s).powi(3) + epoch.peak;
        let delivered = f64::from(delivered);
        // At least what Reno would add (RFC 9438, section 4.3).
        let friendly = 3.0 * (1.0 - BETA) / (1.0 + BETA) * delivered / self.segments;
        let cubic = (target - self.segments) * delivered / self.segments;
        self.segments += cubic.max(friendly);
    }
}
