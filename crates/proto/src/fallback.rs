//! Decides when the log is also sent over the QUIC stream, and when the path is given up: rules
//! S-4.4 and S-4.11 of `spec/session.md`.
//!
//! Some networks carry a connection but drop its datagrams, or the client's acknowledgements in
//! them. [`ReliableFallback`] notices that acknowledgements of datagrams are missing although the
//! layer below still receives its own. It then hands out the log as frames for the QUIC stream,
//! until a datagram is acknowledged. If even those frames are not acknowledged, the sender stops
//! (D-7.2), and the path is broken off rather than left silent: its reader can resume on another
//! one.

use alloc::vec::Vec;
use core::ops::Range;

use crate::sender::{AnswerLog, Delivery};
use crate::{Micros, SenderState};

/// Time, beyond a round trip, that acknowledgements may be missing on a path that has had none yet.
/// Both times are fixed by S-4.4. A new path is given up sooner: a network that drops datagrams
/// drops the first ones already, while the reader is waiting for its first token.
const MISSING_AT_START: Micros = Micros::from_ms(500);
/// Same time limit after the first acknowledgement.
const MISSING: Micros = Micros::from_ms(1_000);
/// Time limit for an ACK frame once the layer below gets through (S-4.11).
const LAST_WAIT: Micros = Micros::from_ms(1_000);
/// Interval at which the layer below is asked whether it gets through: nothing that it receives
/// wakes the driver.
const CHECK_GAP: Micros = Micros::from_ms(1_000);
/// Maximum time by which the layer's own acknowledgements trail the last ACK frame.
const SETTLED: Micros = Micros::from_ms(1_000);

/// Knowledge of the layer below the datagrams (QUIC) about the path.
pub trait LowerLayer {
    /// Number of acknowledgements that layer has received so far. While it grows, packets get
    /// through in both directions.
    fn acks(&self) -> u64;
}

/// State of the fallback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FallbackState {
    /// Datagrams are acknowledged, or have not been missing for long.
    Idle,
    /// Acknowledgements are missing; the layer below had received `acks` of its own at `since`.
    Suspected { since: Micros, acks: u64 },
    /// The log has also been sent over the QUIC stream since `since`. The layer below had received
    /// `acks` shortly after the last ACK frame.
    Active { since: Micros, acks: u64 },
    /// The sender has stopped, and the layer below had received no more than `acks` when last
    /// asked.
    Silent { asked: Micros, acks: u64 },
    /// The sender has stopped although the layer below gets through.
    Waiting { until: Micros },
    /// The path is given up.
    BrokenOff,
}

/// Decision of [`ReliableFallback::handle_timeout`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FallbackEvent {
    /// From now on the log is also sent over the QUIC stream (S-4.4).
    Began,
    /// The reader acknowledges nothing although the connection works: reset the QUIC stream with
    /// the code for "broken off", and keep the answer for a resume (S-4.11).
    BrokenOff,
}

/// Decides whether the log is also sent over the QUIC stream, and which bytes of it.
///
/// Call [`Self::handle_timeout`] after every call of the sender and when [`Self::poll_timeout`] has
/// come, then [`Self::poll_transmit`] while that stream has room. Every new path needs a new
/// fallback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReliableFallback {
    state: FallbackState,
    /// Offset below which log bytes were handed out on this path.
    next: u64,
}

impl Default for ReliableFallback {
    fn default() -> Self {
        Self { state: FallbackState::Idle, next: 0 }
    }
}

/// State of the sender as the rules see it.
#[derive(Debug, Clone, Copy)]
struct DeliveryHealth {
    state: SenderState,
    takes_datagrams: bool,
    /// When the oldest unacknowledged byte was first sent; `None` while no acknowledgement is
    /// expected.
    unacked_since: Option<Micros>,
    /// When a datagram was last acknowledged.
    last_arrival: Option<Micros>,
    /// When the last ACK frame arrived, of datagrams or not.
    last_heard: Micros,
    rtt: Micros,
}

impl DeliveryHealth {
    fn of(sender: &Delivery) -> Self {
        let active = sender.state() == SenderState::Active;
        Self {
            state: sender.state(),
            takes_datagrams: sender.takes_datagrams(),
            unacked_since: sender.unacked_since().filter(|_| active),
            last_arrival: sender.last_arrival(),
            last_heard: sender.last_heard(),
            rtt: sender.rtt().smoothed(),
        }
    }

    /// Time at which acknowledgements have been missing for half of S-4.4's limit. During the other
    /// half, the fallback observes whether the layer below receives its own.
    fn missing_at(&self) -> Option<Micros> {
        let oldest = self.unacked_since?;
        let since = self.last_arrival.map_or(oldest, |arrival| arrival.max(oldest));
        Some(since + self.half_patience() + self.rtt)
    }

    fn half_patience(&self) -> Micros {
        let is_known = self.last_arrival.is_some();
        let missing = if is_known { MISSING } else { MISSING_AT_START };
        Micros(missing.0 / 2)
    }
}

impl FallbackState {
    fn next(
        self,
        now: Micros,
        health: &DeliveryHealth,
        lower: &(impl LowerLayer + ?Sized),
    ) -> Self {
        match (self, health.state) {
            // The reader was told to resume: what still arrives here is of a dead path.
            (Self::BrokenOff, _) => self,
            (_, SenderState::Suspended) => self.next_while_stopped(now, lower),
            // A late ACK frame continues the answer.
            (Self::Silent { .. } | Self::Waiting { .. }, _) => Self::Idle,
            _ => self.next_while_sending(now, health, lower),
        }
    }

    /// Next state by rule S-4.4.
    fn next_while_sending(
        self,
        now: Micros,
        health: &DeliveryHealth,
        lower: &(impl LowerLayer + ?Sized),
    ) -> Self {
        match (self, health.missing_at()) {
            (Self::Active { since, .. }, _) if health.last_arrival > Some(since) => Self::Idle,
            // What the layer below receives later than this is no trailing part of the same
            // arrival: it shows that packets get through although no ACK frame does.
            (Self::Active { since, .. }, _) if now < health.last_heard + SETTLED => {
                Self::Active { since, acks: lower.acks() }
            }
            (Self::Active { .. }, _) => self,
            // Nothing has to be missing: no datagram will ever leave.
            _ if !health.takes_datagrams => Self::Active { since: now, acks: lower.acks() },
            (_, None) => Self::Idle,
            (_, Some(at)) if now < at => Self::Idle,
            (Self::Suspected { since, acks }, _) => {
                if now < since + health.half_patience() {
                    return self;
                }
                match lower.acks() {
                    // The path is down for both layers, and the one below would only queue what
                    // it gets.
                    same if same == acks => Self::Suspected { since: now, acks },
                    acks => Self::Active { since: now, acks },
                }
            }
            _ => Self::Suspected { since: now, acks: lower.acks() },
        }
    }

    /// Next state by rule S-4.11.
    fn next_while_stopped(self, now: Micros, lower: &(impl LowerLayer + ?Sized)) -> Self {
        match self {
            Self::Waiting { until } if now >= until => Self::BrokenOff,
            Self::Waiting { .. } | Self::BrokenOff => self,
            Self::Silent { asked, .. } if now < asked + CHECK_GAP => self,
            // Nobody has asked the layer before, so that its count says nothing yet.
            Self::Idle => Self::Silent { asked: now, acks: lower.acks() },
            Self::Suspected { acks, .. }
            | Self::Active { acks, .. }
            | Self::Silent { acks, .. } => match lower.acks() {
                same if same == acks => Self::Silent { asked: now, acks },
                _ => Self::Waiting { until: now + LAST_WAIT },
            },
        }
    }
}

impl ReliableFallback {
    /// Returns true while the log is also sent over the QUIC stream.
    pub const fn is_active(&self) -> bool {
        matches!(self.state, FallbackState::Active { .. })
    }

    /// Examines the delivery of `sender` at `now`; returns what has changed for the driver.
    ///
    /// Asks `lower` only while acknowledgements are outstanding, since that may take a lock.
    pub fn handle_timeout(
        &mut self,
        now: Micros,
        sender: &Delivery,
        lower: &(impl LowerLayer + ?Sized),
    ) -> Option<FallbackEvent> {
        let before = core::mem::replace(&mut self.state, FallbackState::Idle);
        self.state = before.next(now, &DeliveryHealth::of(sender), lower);
        match (before, self.state) {
            (FallbackState::Active { .. }, FallbackState::Active { .. }) => None,
            (_, FallbackState::Active { .. }) => Some(FallbackEvent::Began),
            (FallbackState::BrokenOff, _) => None,
            (_, FallbackState::BrokenOff) => Some(FallbackEvent::BrokenOff),
            _ => None,
        }
    }

    /// Time for the next call of [`Self::handle_timeout`]; `None` if only another event requires
    /// one.
    pub fn poll_timeout(&self, sender: &Delivery) -> Option<Micros> {
        let health = DeliveryHealth::of(sender);
        match self.state {
            FallbackState::Idle => health.missing_at(),
            FallbackState::Suspected { since, .. } => Some(since + health.half_patience()),
            FallbackState::Silent { asked, .. } => Some(asked + CHECK_GAP),
            FallbackState::Waiting { until } => Some(until),
            FallbackState::Active { .. } | FallbackState::BrokenOff => None,
        }
    }

    /// Appends the next frame for the QUIC stream to `out`, with at most `max_bytes` of the log.
    /// Returns their range, or `None` if there is nothing to send on that stream. Every byte is
    /// handed out once, and none that is already acknowledged; the range is empty in reply to a
    /// probe.
    pub fn poll_transmit(
        &mut self,
        now: Micros,
        sender: &mut Delivery,
        answer: &AnswerLog,
        max_bytes: u64,
        out: &mut Vec<u8>,
    ) -> Option<Range<u64>> {
        if !self.is_active() {
            return None;
        }
        // A stream that is reliable needs nothing twice, even if the fallback ended in between.
        let from = sender.cumulative().max(self.next);
        let range = sender.transmit_reliable(now, answer, from, max_bytes, out)?;
        self.next = self.next.max(range.end);
        Some(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Quic {
        acks: u64,
    }

    impl LowerLayer for Quic {
        fn acks(&self) -> u64 {
            self.acks
        }
    }

    const fn ms(ms: u64) -> Micros {
        Micros::from_ms(ms)
    }

    /// Unacknowledged since 1 s, on a path with a round trip of 100 ms that began at that time.
    const HEALTH: DeliveryHealth = DeliveryHealth {
        state: SenderState::Active,
        takes_datagrams: true,
        unacked_since: Some(ms(1_000)),
        last_arrival: None,
        last_heard: ms(1_000),
        rtt: ms(100),
    };
    const SUSPECTED: FallbackState = FallbackState::Suspected { since: ms(1_350), acks: 3 };
    const ACTIVE: FallbackState = FallbackState::Active { since: ms(1_350), acks: 4 };

    const fn suspected(at_ms: u64) -> FallbackState {
        FallbackState::Suspected { since: ms(at_ms), acks: 3 }
    }

    const fn active(at_ms: u64, acks: u64) -> FallbackState {
        FallbackState::Active { since: ms(at_ms), acks }
    }

    const fn silent(at_ms: u64) -> FallbackState {
        FallbackState::Silent { asked: ms(at_ms), acks: 4 }
    }

    const fn waiting(until_ms: u64) -> FallbackState {
        FallbackState::Waiting { until: ms(until_ms) }
    }

    /// Table row: state, delivery, time in ms, the layer's acknowledgements, next state.
    type Row = (FallbackState, DeliveryHealth, u64, u64, FallbackState);

    fn check(rows: &[Row]) {
        for (state, health, at_ms, acks, next) in rows {
            let case = format!("{state:?} at {at_ms} ms with {health:?} and {acks}");
            assert_eq!(state.next(ms(*at_ms), health, &Quic { acks: *acks }), *next, "{case}");
        }
    }

    #[test]
    fn the_fallback_as_a_table() {
        use FallbackState::Idle;
        let known = DeliveryHealth { last_arrival: Some(ms(900)), ..HEALTH };
        let later = DeliveryHealth { last_arrival: Some(ms(1_351)), ..HEALTH };
        let all_acked = DeliveryHealth { unacked_since: None, ..HEALTH };
        let heard = DeliveryHealth { last_heard: ms(8_500), ..HEALTH };
        check(&[
            (Idle, HEALTH, 1_349, 3, Idle),      // 250 ms and a round trip
            (Idle, HEALTH, 1_350, 3, SUSPECTED), // are over
            (Idle, known, 1_599, 3, Idle),       // 500 ms on a known path
            (Idle, known, 1_600, 3, suspected(1_600)),
            (Idle, later, 1_950, 3, Idle), // counted from the arrival
            (Idle, all_acked, 9_000, 3, Idle), // nothing is outstanding
            (SUSPECTED, HEALTH, 1_599, 4, SUSPECTED), // the other half of the time
            (SUSPECTED, HEALTH, 1_600, 4, active(1_600, 4)), // QUIC gets through
            (SUSPECTED, HEALTH, 1_600, 3, suspected(1_600)), // QUIC does not either
            (SUSPECTED, known, 1_849, 4, SUSPECTED),
            (SUSPECTED, known, 1_850, 4, active(1_850, 4)),
            (SUSPECTED, all_acked, 1_600, 4, Idle),
            (SUSPECTED, later, 1_600, 4, Idle), // a datagram is acknowledged
            (ACTIVE, HEALTH, 9_000, 9, ACTIVE),
            (ACTIVE, all_acked, 9_000, 9, ACTIVE), // only a datagram ends it
            (ACTIVE, later, 9_000, 9, Idle),
            (ACTIVE, heard, 9_000, 9, active(1_350, 9)), // QUIC's count beside an ACK frame
            (ACTIVE, heard, 9_500, 9, ACTIVE),
        ]);
    }

    #[test]
    fn the_breaking_off_as_a_table() {
        use FallbackState::{BrokenOff, Idle};
        let stopped =
            DeliveryHealth { state: SenderState::Suspended, unacked_since: None, ..HEALTH };
        check(&[
            (ACTIVE, stopped, 11_000, 9, waiting(12_000)), // QUIC got through meanwhile
            (ACTIVE, stopped, 11_000, 4, silent(11_000)),  // QUIC did not either
            (SUSPECTED, stopped, 11_000, 4, waiting(12_000)),
            (Idle, stopped, 11_000, 4, silent(11_000)), // nobody asked it before
            (silent(11_000), stopped, 11_999, 9, silent(11_000)),
            (silent(11_000), stopped, 12_000, 4, silent(12_000)),
            (silent(11_000), stopped, 12_000, 5, waiting(13_000)), // the path is back
            (waiting(12_000), stopped, 11_999, 9, waiting(12_000)),
            (waiting(12_000), stopped, 12_000, 9, BrokenOff),
            (waiting(12_000), stopped, 12_000, 4, BrokenOff),
            (silent(11_000), HEALTH, 11_500, 4, Idle), // an ACK frame came late
            (waiting(12_000), HEALTH, 11_500, 9, Idle),
            (BrokenOff, stopped, 20_000, 9, BrokenOff),
            (BrokenOff, HEALTH, 20_000, 9, BrokenOff), // a broken path stays so
        ]);
    }

    #[test]
    fn a_path_without_datagrams_uses_the_quic_stream_before_anything_has_left() {
        let health = DeliveryHealth { takes_datagrams: false, unacked_since: None, ..HEALTH };
        check(&[(FallbackState::Idle, health, 1_000, 2, active(1_000, 2))]);
    }
}
