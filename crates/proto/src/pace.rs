//! When a receiver shows what it has: smoothing stalls away, and a reader's own speed.
//!
//! A small buffer on the reader's side hides what no sender can prevent (the paper,
//! §5.2 and §5.3). The pacer fills it by showing a little slower than tokens come, never
//! by delaying the first one.

use alloc::collections::VecDeque;

use crate::Micros;

/// Parameters of a [`Pacer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Text to hold back, as time; zero shows everything at once. Default 0.
    pub buffer: Micros,
    /// Show at most so many tokens per second; `None`: no limit. Default none.
    pub max_tokens_per_s: Option<u32>,
}

impl Pace {
    /// Everything at once.
    pub const OFF: Self = Self {
        buffer: Micros::ZERO,
        max_tokens_per_s: None,
    };
    /// Hold back 200 ms: hides most stalls of a lossy path.
    pub const SMOOTH: Self = Self {
        buffer: Micros::from_ms(200),
        max_tokens_per_s: None,
    };

    /// Whether anything is ever held back.
    pub const fn is_off(&self) -> bool {
        self.buffer.0 == 0 && self.max_tokens_per_s.is_none()
    }
}

impl Default for Pace {
    fn default() -> Self {
        Self::OFF
    }
}

/// Arrivals remembered for the generator's speed, and their least distance.
const MEASURED: usize = 32;
const MEASURE_GAP: Micros = Micros::from_ms(125);

/// Decides when the next delta is shown.
#[derive(Debug, Clone)]
pub struct Pacer {
    pace: Pace,
    arrived_tokens: u64,
    /// (when, tokens arrived by then), for the generator's speed.
    arrivals: VecDeque<(Micros, u64)>,
    next_at: Option<Micros>,
}

impl Pacer {
    /// A pacer that has shown nothing yet.
    pub const fn new(pace: Pace) -> Self {
        Self {
            pace,
            arrived_tokens: 0,
            arrivals: VecDeque::new(),
            next_at: None,
        }
    }

    /// The parameters in use.
    pub const fn pace(&self) -> Pace {
        self.pace
    }

    /// Other parameters from now on.
    pub fn set_pace(&mut self, pace: Pace) {
        self.pace = pace;
        self.next_at = None;
    }

    /// `tokens` have arrived at `now`.
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

    /// The generator's time per token, as far as arrivals tell; `None` at first.
    pub fn token_gap(&self) -> Option<Micros> {
        let ((from, first), (to, last)) = (self.arrivals.front()?, self.arrivals.back()?);
        let tokens = last - first;
        (tokens > 0).then(|| Micros(to.since(*from).0 / tokens))
    }

    /// When the next delta may be shown; `None`: at once.
    pub const fn next_at(&self) -> Option<Micros> {
        self.next_at
    }

    /// A delta of `tokens` was shown at `now`, with `waiting` tokens left to show.
    pub fn on_shown(&mut self, now: Micros, tokens: u32, waiting: u64) {
        if self.pace.is_off() || tokens == 0 {
            return;
        }
        let step = self.step(waiting).times(u64::from(tokens));
        self.next_at = Some(now + step);
    }

    /// Time per token shown at present; zero if nothing is held back.
    pub fn step(&self, waiting: u64) -> Micros {
        let limit = self
            .pace
            .max_tokens_per_s
            .map_or(0, |rate| 1_000_000 / u64::from(rate.max(1)));
        let smooth = match self.token_gap() {
            Some(gap) if self.pace.buffer > Micros::ZERO => self.smooth_step(gap, waiting),
            _ => Micros::ZERO,
        };
        smooth.max(Micros(limit))
    }

    /// Slower than the generator while the buffer is short, faster while it is long.
    fn smooth_step(&self, gap: Micros, waiting: u64) -> Micros {
        let buffered = gap.times(waiting);
        if buffered < self.pace.buffer {
            Micros(gap.0 * 3 / 2)
        } else if buffered <= self.pace.buffer + gap {
            gap
        } else {
            Micros(gap.0 / 2)
        }
    }
}
