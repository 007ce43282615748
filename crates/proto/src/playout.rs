//! Decides when a receiver shows received text: smooths stalls and keeps to the reader's own speed.
//!
//! A small buffer on the reader's side hides stalls that no sender can prevent (the paper, §5.2 and
//! §5.3). The clock fills it by showing tokens slightly more slowly than they arrive, never by
//! delaying the first one.

use alloc::collections::VecDeque;

use crate::Micros;

/// Parameters of a [`PlayoutClock`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Playout {
    /// Amount of text to hold back, as time, beyond what a steady flow leaves waiting. Zero shows
    /// everything at once. Default 0.
    pub buffer: Micros,
    /// Maximum tokens shown per second. Default no limit.
    pub max_tokens_per_s: Option<u32>,
}

impl Playout {
    /// Shows everything as it arrives.
    pub const IMMEDIATE: Self = Self { buffer: Micros::ZERO, max_tokens_per_s: None };
    /// Holds back enough text to hide nearly all stalls of a lossy path with this round trip.
    ///
    /// On the paper's default channel this leaves at most 1 % displayed stalls, at a mean delay
    /// below 250 ms (round trip of 400 ms) and of about 180 ms (100 ms): `plans/pacing.toml`.
    pub const fn smooth(rtt: Micros) -> Self {
        let buffer = (rtt.0 * 3 / 10).saturating_sub(8_000);
        let least = if buffer < 5_000 { 5_000 } else { buffer };
        Self { buffer: Micros(least), max_tokens_per_s: None }
    }

    /// Returns true if nothing is ever held back.
    pub const fn is_immediate(&self) -> bool {
        self.buffer.0 == 0 && self.max_tokens_per_s.is_none()
    }
}

impl Default for Playout {
    fn default() -> Self {
        Self::IMMEDIATE
    }
}

/// Slowdown at an empty buffer, and maximum speed-up at a long one, in thousandths of the
/// generator's gap. Adjusting the speed in proportion to the buffer halves the delay for a given
/// share of displayed stalls (`plans/pacing.toml`).
const SLOPE_PERMILLE: u64 = 450;
const FASTEST_PERMILLE: u64 = 500;

/// Longest gap that readers do not notice as a stall (the paper, §2.2: 200 ms), with a margin for
/// timers.
const NOT_A_STALL: Micros = Micros::from_ms(190);

/// Number of arrivals used to measure the generator's speed, and their minimum distance: together 4
/// s, which covers the stalls of a lossy path. Chosen by hand.
const MEASURED: usize = 32;
const MEASURE_GAP: Micros = Micros::from_ms(125);

/// Decides when the next delta is shown.
#[derive(Debug, Clone)]
pub struct PlayoutClock {
    playout: Playout,
    arrived_tokens: u64,
    /// (time, tokens arrived by then), for the generator's speed.
    arrivals: VecDeque<(Micros, u64)>,
    next_at: Option<Micros>,
}

impl PlayoutClock {
    /// Creates a clock that has shown nothing yet.
    pub const fn new(playout: Playout) -> Self {
        Self { playout, arrived_tokens: 0, arrivals: VecDeque::new(), next_at: None }
    }

    /// Current parameters.
    pub const fn playout(&self) -> Playout {
        self.playout
    }

    /// Changes the parameters; the next delta is due at once.
    pub fn set_playout(&mut self, playout: Playout) {
        self.playout = playout;
        self.next_at = None;
    }

    /// Notes that `tokens` arrived at `now`.
    pub fn on_arrival(&mut self, now: Micros, tokens: u32) {
        self.arrived_tokens += u64::from(tokens);
        let measured = self.arrivals.len();
        match self.arrivals.back_mut() {
            Some((at, count)) if measured > 1 && now.since(*at) < MEASURE_GAP => {
                *count = self.arrived_tokens;
            }
            _ => self.arrivals.push_back((now, self.arrived_tokens)),
        }
        if self.arrivals.len() > MEASURED {
            self.arrivals.pop_front();
        }
    }

    /// Generator's time per token, estimated from arrivals; `None` before the second.
    pub fn token_gap(&self) -> Option<Micros> {
        let ((from, first), (to, last)) = (self.arrivals.front()?, self.arrivals.back()?);
        let tokens = last - first;
        (tokens > 0).then(|| Micros(to.since(*from).0 / tokens))
    }

    /// Earliest time to show the next delta; `None` means at once.
    pub const fn next_at(&self) -> Option<Micros> {
        self.next_at
    }

    /// Notes that a delta of `tokens` was shown at `now`, with `waiting` tokens left to show.
    pub fn on_shown(&mut self, now: Micros, tokens: u32, waiting: u64) {
        if self.playout.is_immediate() || tokens == 0 {
            return;
        }
        let step = self.step(now, waiting).times(u64::from(tokens));
        self.next_at = Some(now + step);
    }

    /// Time per shown token at `now`, with `waiting` tokens left to show; zero if nothing is held
    /// back.
    pub fn step(&self, now: Micros, waiting: u64) -> Micros {
        let limit =
            self.playout.max_tokens_per_s.map_or(0, |rate| 1_000_000 / u64::from(rate.max(1)));
        let smooth = match self.token_gap() {
            Some(gap) if self.playout.buffer > Micros::ZERO => self.smooth_step(now, gap, waiting),
            _ => Micros::ZERO,
        };
        smooth.max(Micros(limit))
    }

    /// Adjusts the speed in proportion to the buffer's deficit: slower than the generator while the
    /// buffer is short (but never slow enough to look like a stall), faster while it is long.
    fn smooth_step(&self, now: Micros, gap: Micros, waiting: u64) -> Micros {
        let last_arrival = self.arrivals.back().map_or(now, |(at, _)| *at);
        let due = now.since(last_arrival).min(gap);
        let buffered = gap.times(waiting).since(due);
        let target = self.playout.buffer.0;
        let permille =
            (1_000 + SLOPE_PERMILLE).saturating_sub(SLOPE_PERMILLE * buffered.0 / target);
        let step = Micros(gap.0 * permille.max(FASTEST_PERMILLE) / 1_000);
        step.min(NOT_A_STALL.max(gap))
    }
}
