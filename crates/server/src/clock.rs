//! The one clock of the server: time since it started, handed to everything that decides.

use std::time::{Duration, Instant};

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

    /// Time since the start.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }
}
