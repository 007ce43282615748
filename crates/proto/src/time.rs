//! Time as an argument: microseconds since an epoch chosen by the caller.

use core::fmt;
use core::ops::{Add, AddAssign};
use core::time::Duration;

/// A point in time or a span, in microseconds.
///
/// A point counts monotonically from any epoch; only differences matter. Sums saturate: an
/// unreachable time is `Micros::MAX`, never a wrapped one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(pub u64);

impl Micros {
    /// The epoch, or an empty span.
    pub const ZERO: Self = Self(0);
    /// Later than any time a caller passes.
    pub const MAX: Self = Self(u64::MAX);

    /// Creates a time of `ms` milliseconds.
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000))
    }

    /// Whole milliseconds, rounded down.
    pub const fn as_ms(self) -> u64 {
        self.0 / 1_000
    }

    /// Span from `earlier` to `self`; zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// `self` times `n`, saturating.
    pub const fn times(self, n: u64) -> Self {
        Self(self.0.saturating_mul(n))
    }
}

impl From<Duration> for Micros {
    /// Rounded down; a span of more than 584,000 years saturates.
    fn from(span: Duration) -> Self {
        Self(u64::try_from(span.as_micros()).unwrap_or(u64::MAX))
    }
}

impl From<Micros> for Duration {
    fn from(span: Micros) -> Self {
        Self::from_micros(span.0)
    }
}

impl Add for Micros {
    type Output = Self;
    fn add(self, span: Self) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl AddAssign for Micros {
    fn add_assign(&mut self, span: Self) {
        *self = *self + span;
    }
}

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03} ms", self.0 / 1_000, self.0 % 1_000)
    }
}
