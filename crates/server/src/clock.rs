//! The server's only clock: the time since it started, passed to everything that decides by
//! time.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Reads time since a common start; cheap to copy.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock that starts now.
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// The time since the start.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }
}

/// The time of day as Unix time in seconds, for what clients see and for dates on which keys
/// expire.
pub fn unix_time_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
