//! The server's only clock: the time since it started, passed to all code that decides by time.
//!
//! It is the clock of tokio's timers, so that in a paused runtime both are one virtual time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use time::OffsetDateTime;
use tokio::time::Instant;

/// Reads time since a common start; cheap to copy.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// Starts a clock now.
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Returns the time since the start.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }
}

/// Returns Unix time. Nothing that must not go back or jump is decided by it.
fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Returns the time of day as Unix time in seconds, for values shown to clients and for the expiry
/// dates of keys.
pub fn unix_time_s() -> u64 {
    since_epoch().as_secs()
}

/// Returns Unix time in milliseconds.
pub fn unix_time_ms() -> u64 {
    u64::try_from(since_epoch().as_millis()).unwrap_or(u64::MAX)
}

/// Returns the time of day in the format of RFC 3339, to the microsecond.
pub fn timestamp() -> String {
    let since = since_epoch();
    format!("{}.{:06}Z", date_time(since.as_secs()), since.subsec_micros())
}

/// Formats Unix time in seconds as in RFC 3339.
pub fn rfc3339(unix_s: u64) -> String {
    format!("{}Z", date_time(unix_s))
}

fn date_time(unix_s: u64) -> String {
    let time = OffsetDateTime::from_unix_timestamp(unix_s as i64);
    let time = time.unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (year, month, day) = time.to_calendar_date();
    let (hour, minute, second) = time.to_hms();
    format!("{year:04}-{:02}-{day:02}T{hour:02}:{minute:02}:{second:02}", u8::from(month))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_rfc_3339_has_them() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(1_709_210_096), "2024-02-29T12:34:56Z");
        assert_eq!(timestamp().len(), "2024-02-29T12:34:56.000000Z".len());
    }
}
