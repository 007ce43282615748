//! Cursors, by which caches distinguish responses to clients that wait for the same offset at
//! different times. A cursor never repeats, so that no client is served from a cache forever.

/// Time from which intervals are counted: 9 October 2024, Unix time in seconds.
const EPOCH_S: u64 = 1_728_432_000;
/// Time in seconds for which all clients without a cursor get the same one.
const INTERVAL_S: u64 = 20;
/// Maximum advance of a repeated cursor, in seconds.
const MAX_JITTER_S: u64 = 3600;

/// Returns the cursor of a response at `now_s`, Unix time in seconds, to a client that sent
/// `known`. `random` is any number.
pub fn next_cursor(now_s: u64, known: Option<&str>, random: u64) -> u64 {
    let current = now_s.saturating_sub(EPOCH_S) / INTERVAL_S;
    match known.and_then(|known| known.parse::<u64>().ok()) {
        Some(known) if known >= current => {
            let jitter_s = 1 + random % MAX_JITTER_S;
            // The client's number may be anything, the largest of all included.
            known.saturating_add(jitter_s.div_ceil(INTERVAL_S))
        }
        _ => current,
    }
}

/// Formats an offset for clients: offsets compared as text have the order of the numbers.
pub fn shown(offset: u64) -> String {
    format!("{offset:020}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_moves_on() {
        let now_s = EPOCH_S + 100 * INTERVAL_S + 3;
        assert_eq!(next_cursor(now_s, None, 7), 100);
        assert_eq!(next_cursor(now_s, Some("99"), 7), 100);
        assert_eq!(next_cursor(now_s, Some("no number"), 7), 100);
        for random in [0, 7, u64::MAX] {
            assert!(next_cursor(now_s, Some("100"), random) > 100);
            assert!(next_cursor(now_s, Some("5000"), random) > 5000);
        }
        assert_eq!(next_cursor(0, None, 0), 0);
    }
}
