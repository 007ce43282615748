//! One path that a receiver reads: its packets, its acknowledgements, its silence.

use crate::Micros;
use crate::frame::ACK_WINDOW;

/// Maximum unanswered probes, each after twice the silence of the one before (D-9.4).
const MAX_PROBES: u32 = 5;
/// ACK frames that wake a quiet path, if none is answered: with every other packet lost, one in a
/// thousand wakes fails, and then the probes of D-9.4 go on.
const WAKE_ACKS: u32 = 5;
/// Gap between them: a stall is noticed after 200 ms, in which four fit.
const WAKE_GAP: Micros = Micros::from_ms(40);
/// Silence after which news from another path is reported here only every [`WORD_GAP`].
const SILENT: Micros = Micros::from_ms(1_000);
/// See [`SILENT`].
const WORD_GAP: Micros = Micros::from_ms(200);

/// Received packets, as an acknowledgement reports them (D-5.4).
#[derive(Debug, Clone, Default)]
pub(super) struct ArrivedPackets {
    pub largest: Option<u64>,
    largest_at: Micros,
    /// Bit i: packet `largest - 1 - i` has arrived.
    before: u64,
}

impl ArrivedPackets {
    fn note(&mut self, now: Micros, packet: u64) {
        let Some(largest) = self.largest else {
            *self = Self { largest: Some(packet), largest_at: now, before: 0 };
            return;
        };
        if packet > largest {
            let shift = packet - largest;
            self.before = shifted(self.before, shift) | shifted(1, shift - 1);
            (self.largest, self.largest_at) = (Some(packet), now);
        } else if packet < largest {
            self.before |= shifted(1, largest - packet - 1);
        }
    }

    /// Time since the largest arrived (D-5.5). Zero before the first: any other value would reveal
    /// when this program started.
    pub fn hold(&self, now: Micros) -> Micros {
        self.largest.map_or(Micros::ZERO, |_| now.since(self.largest_at))
    }

    pub fn missing(&self) -> u64 {
        let reported = self.largest.unwrap_or(0).min(u64::from(ACK_WINDOW)) as u32;
        !self.before & ((1u64 << reported) - 1)
    }
}

fn shifted(bits: u64, by: u64) -> u64 {
    u32::try_from(by).ok().and_then(|by| bits.checked_shl(by)).unwrap_or(0)
}

/// One path of a receiver.
#[derive(Debug, Clone)]
pub(super) struct ReadingPath {
    pub channel: u64,
    pub arrived: ArrivedPackets,
    pub next_ack: u64,
    pub ack_at: Option<Micros>,
    last_ack: Option<Micros>,
    silent_since: Micros,
    /// Probes since the last frame.
    pub probes: u32,
    /// The silence was reported.
    pub silent_said: bool,
    /// The silence was not asked for yet.
    pub silent_untold: bool,
    /// The sender is told that nobody looks at what comes here.
    pub is_quiet: bool,
    /// ACK frames that may still be sent to wake the path.
    wakes: u32,
}

impl ReadingPath {
    pub const fn new(now: Micros, channel: u64) -> Self {
        Self {
            channel,
            arrived: ArrivedPackets { largest: None, largest_at: Micros::ZERO, before: 0 },
            next_ack: 0,
            ack_at: None,
            last_ack: None,
            silent_since: now,
            probes: 0,
            silent_said: false,
            silent_untold: false,
            is_quiet: false,
            wakes: 0,
        }
    }

    /// Notes a DATA frame, which is a sign of life.
    pub fn note_packet(&mut self, now: Micros, packet: u64) {
        self.begin_silence(now);
        self.arrived.note(now, packet);
        self.wakes = 0;
    }

    /// Restarts the silence timer at `now`: a frame arrived, a path began, or the reader is no
    /// longer behind and needs the sender again (D-9.4, D-9.6).
    pub const fn begin_silence(&mut self, now: Micros) {
        (self.silent_since, self.probes) = (now, 0);
        (self.silent_said, self.silent_untold) = (false, false);
    }

    /// Plans the acknowledgement of a frame from this path, with or without news (D-9.2).
    pub fn plan_ack(&mut self, now: Micros, has_news: bool, ack_gap: Micros) {
        let quiet_until = self.last_ack.map_or(now, |at| at + ack_gap);
        self.plan_ack_at(if has_news { now } else { quiet_until.max(now) });
    }

    /// Plans the acknowledgement of bytes that came over another path. A quiet path's sender has
    /// time: the next probe tells it.
    pub fn plan_word(&mut self, now: Micros) {
        if self.is_quiet {
            return;
        }
        let is_silent = now.since(self.silent_since) > SILENT;
        let earliest = self.last_ack.filter(|_| is_silent).map_or(now, |at| at + WORD_GAP);
        self.plan_ack_at(earliest.max(now));
    }

    fn plan_ack_at(&mut self, at: Micros) {
        self.ack_at = Some(self.ack_at.map_or(at, |before| before.min(at)));
    }

    /// Makes the path quiet, or wakes it; the sender learns of it at once.
    pub fn set_quiet(&mut self, now: Micros, is_quiet: bool) {
        if self.is_quiet != is_quiet {
            self.is_quiet = is_quiet;
            self.wakes = if is_quiet { 0 } else { WAKE_ACKS };
            self.ack_at = Some(now);
        }
    }

    /// True if the next ACK asks for a sign of life to learn whether the path is awake.
    pub const fn is_waking(&self) -> bool {
        self.wakes > 0
    }

    /// Notes that an ACK frame is sent, as a probe of D-9.4 or not.
    pub fn note_ack(&mut self, now: Micros, is_probe: bool) {
        self.probes += u32::from(is_probe);
        self.next_ack += 1;
        self.wakes = self.wakes.saturating_sub(1);
        (self.ack_at, self.last_ack) = (self.is_waking().then(|| now + WAKE_GAP), Some(now));
    }

    /// When the next probe is due, if the receiver needs its sender (D-9.4).
    pub fn probe_at(&self, probe_after: Micros) -> Option<Micros> {
        let due = self.silent_since + probe_after.times(1 << self.probes);
        (self.probes < MAX_PROBES).then_some(due)
    }

    /// When the path counts as silent, unless that was reported (D-9.6).
    pub fn silent_at(&self, silent_after: Micros) -> Option<Micros> {
        (!self.silent_said).then(|| self.silent_since + silent_after)
    }
}
