//! When the log also leaves over the QUIC stream: rule S-4.4 of `spec/session.md`.
//!
//! Some networks carry a connection but drop its datagrams, or the client's acknowledgements in
//! them. [`ReliableFallback`] notices that acknowledgements of datagrams are missing although the
//! layer below still receives its own, and then hands out the log as frames for the QUIC stream, until
//! a datagram is acknowledged.

use alloc::vec::Vec;
use core::ops::Range;

use crate::{Micros, Sender, SenderState};

/// How long acknowledgements may be missing, beyond a round trip, before the first one has come on
/// a path. S-4.4 fixes both times: a new path is given up sooner, because a network that drops
/// datagrams drops the first ones already, while the reader is waiting for its first token.
const MISSING_AT_START: Micros = Micros::from_ms(500);
/// The same once an acknowledgement has come.
const MISSING: Micros = Micros::from_ms(1_000);

/// What the layer below the datagrams (QUIC) knows about the path.
pub trait LowerLayer {
    /// Whether the peer takes datagrams at all.
    fn takes_datagrams(&self) -> bool;
    /// How many acknowledgements that layer has received so far. While this grows, packets get
    /// through in both directions.
    fn acks(&self) -> u64;
}

/// Where the fallback stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FallbackState {
    /// Datagrams are acknowledged, or have not been missing for long.
    Idle,
    /// Acknowledgements are missing; the layer below had received `acks` of its own at `since`.
    Suspected { since: Micros, acks: u64 },
    /// The log leaves over the QUIC stream too: since when, and from which offset on.
    Active { since: Micros, next: u64 },
}

/// Decides whether the log also leaves over the QUIC stream, and which bytes of it.
///
/// Call [`Self::handle_timeout`] after every call of the sender and when [`Self::poll_timeout`] has
/// come, then [`Self::poll_transmit`] while that stream has room. A new path needs a new fallback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReliableFallback {
    state: FallbackState,
}

impl Default for ReliableFallback {
    fn default() -> Self {
        Self { state: FallbackState::Idle }
    }
}

/// What the rule looks at on the datagrams' side.
#[derive(Debug, Clone, Copy)]
struct DatagramHealth {
    /// When the oldest unacknowledged byte first left; `None` while nothing is due an answer.
    unacked_since: Option<Micros>,
    last_arrival: Option<Micros>,
    rtt: Micros,
    cumulative: u64,
}

impl DatagramHealth {
    fn of(sender: &Sender) -> Self {
        let active = sender.state() == SenderState::Active;
        Self {
            unacked_since: sender.unacked_since().filter(|_| active),
            last_arrival: sender.last_arrival(),
            rtt: sender.rtt().smoothed(),
            cumulative: sender.cumulative(),
        }
    }

    /// When acknowledgements have been missing for half of S-4.4's time. The other half is for
    /// watching whether the layer below receives its own.
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
        health: &DatagramHealth,
        lower: &(impl LowerLayer + ?Sized),
    ) -> Self {
        let active = Self::Active { since: now, next: health.cumulative };
        match (self, health.missing_at()) {
            (Self::Active { since, .. }, _) if health.last_arrival > Some(since) => Self::Idle,
            (Self::Active { .. }, _) => self,
            (Self::Idle, Some(_)) if !lower.takes_datagrams() => active,
            (_, None) => Self::Idle,
            (_, Some(at)) if now < at => Self::Idle,
            (Self::Idle, Some(_)) => Self::Suspected { since: now, acks: lower.acks() },
            (Self::Suspected { since, .. }, _) if now < since + health.half_patience() => self,
            // The path is down for both layers, and the one below would only queue what it gets.
            (Self::Suspected { acks, .. }, _) if lower.acks() == acks => {
                Self::Suspected { since: now, acks }
            }
            (Self::Suspected { .. }, _) => active,
        }
    }
}

impl ReliableFallback {
    /// Whether the log leaves over the QUIC stream too.
    pub const fn is_active(&self) -> bool {
        matches!(self.state, FallbackState::Active { .. })
    }

    /// Looks at the datagrams of `sender` at `now`; returns whether the fallback begins now.
    ///
    /// `lower` is asked only while acknowledgements are outstanding, since that may cost a lock.
    pub fn handle_timeout(
        &mut self,
        now: Micros,
        sender: &Sender,
        lower: &(impl LowerLayer + ?Sized),
    ) -> bool {
        let was_active = self.is_active();
        self.state = self.state.next(now, &DatagramHealth::of(sender), lower);
        self.is_active() && !was_active
    }

    /// When to call [`Self::handle_timeout`] next; `None`: only after something else happened.
    pub fn poll_timeout(&self, sender: &Sender) -> Option<Micros> {
        let health = DatagramHealth::of(sender);
        match self.state {
            FallbackState::Idle => health.missing_at(),
            FallbackState::Suspected { since, .. } => Some(since + health.half_patience()),
            FallbackState::Active { .. } => None,
        }
    }

    /// Appends the next frame for the QUIC stream to `out`, with at most `max_bytes` of the log;
    /// returns their range, or `None` if that stream has nothing to carry. Every byte is handed out
    /// once, and none that is already acknowledged.
    pub fn poll_transmit(
        &mut self,
        sender: &mut Sender,
        max_bytes: u64,
        out: &mut Vec<u8>,
    ) -> Option<Range<u64>> {
        let FallbackState::Active { next, .. } = &mut self.state else { return None };
        let from = sender.cumulative().max(*next);
        let range = sender.transmit_reliable(from, max_bytes, out)?;
        *next = range.end;
        Some(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Quic {
        takes_datagrams: bool,
        acks: u64,
    }

    impl LowerLayer for Quic {
        fn takes_datagrams(&self) -> bool {
            self.takes_datagrams
        }
        fn acks(&self) -> u64 {
            self.acks
        }
    }

    const fn ms(ms: u64) -> Micros {
        Micros::from_ms(ms)
    }

    /// Unacknowledged since 1 s on a path with a round trip of 100 ms.
    const HEALTH: DatagramHealth = DatagramHealth {
        unacked_since: Some(ms(1_000)),
        last_arrival: None,
        rtt: ms(100),
        cumulative: 7,
    };
    const SUSPECTED: FallbackState = FallbackState::Suspected { since: ms(1_350), acks: 3 };
    const ACTIVE: FallbackState = FallbackState::Active { since: ms(1_350), next: 9 };

    fn active_at(at_ms: u64) -> FallbackState {
        FallbackState::Active { since: ms(at_ms), next: 7 }
    }

    #[test]
    fn the_rule_as_a_table() {
        use FallbackState::Idle;
        let known = DatagramHealth { last_arrival: Some(ms(900)), ..HEALTH };
        let later = DatagramHealth { last_arrival: Some(ms(1_351)), ..HEALTH };
        let all_acked = DatagramHealth { unacked_since: None, ..HEALTH };
        let suspected_at = |at_ms, acks| FallbackState::Suspected { since: ms(at_ms), acks };
        // (state, datagrams, time in ms, QUIC's acknowledgements, next state)
        let rows = [
            (Idle, HEALTH, 1_349, 3, Idle),      // 250 ms and a round trip
            (Idle, HEALTH, 1_350, 3, SUSPECTED), // are over
            (Idle, known, 1_599, 3, Idle),       // 500 ms on a known path
            (Idle, known, 1_600, 3, suspected_at(1_600, 3)),
            (Idle, later, 1_950, 3, Idle), // counted from the arrival
            (Idle, all_acked, 9_000, 3, Idle), // nothing is outstanding
            (SUSPECTED, HEALTH, 1_599, 4, SUSPECTED), // the other half of the time
            (SUSPECTED, HEALTH, 1_600, 4, active_at(1_600)), // QUIC gets through
            (SUSPECTED, HEALTH, 1_600, 3, suspected_at(1_600, 3)), // QUIC does not either
            (SUSPECTED, known, 1_849, 4, SUSPECTED),
            (SUSPECTED, known, 1_850, 4, active_at(1_850)),
            (SUSPECTED, all_acked, 1_600, 4, Idle),
            (SUSPECTED, later, 1_600, 4, Idle), // a datagram is acknowledged
            (ACTIVE, HEALTH, 9_000, 4, ACTIVE),
            (ACTIVE, all_acked, 9_000, 4, ACTIVE), // only a datagram ends it
            (ACTIVE, later, 9_000, 4, Idle),
        ];
        for (state, health, at_ms, acks, next) in rows {
            let lower = Quic { takes_datagrams: true, acks };
            let case = format!("{state:?} at {at_ms} ms with {health:?} and {acks}");
            assert_eq!(state.next(ms(at_ms), &health, &lower), next, "{case}");
        }
    }

    #[test]
    fn a_client_without_datagrams_gets_the_stream_at_once() {
        let lower = Quic { takes_datagrams: false, acks: 0 };
        assert_eq!(FallbackState::Idle.next(ms(1_000), &HEALTH, &lower), active_at(1_000));
        let all_acked = DatagramHealth { unacked_since: None, ..HEALTH };
        let next = FallbackState::Idle.next(ms(1_000), &all_acked, &lower);
        assert_eq!(next, FallbackState::Idle, "nothing has left yet");
    }
}
