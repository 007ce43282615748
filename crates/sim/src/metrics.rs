//! Smoothness of a session's tokens as seen by the reader.
//!
//! All definitions follow the paper (section 4.1) as far as it gives them: times are relative, gaps
//! above 200 ms are stalls, tokens more than 400 ms after generation are late.

use serde::Serialize;

/// Gap above which it is a stall (paper, footnote 2).
pub const STALL_MS: f64 = 200.0;
/// Time after generation at which a shown token is late (paper, section 4.3).
pub const LATE_MS: f64 = 400.0;

/// The figures of one session, or their means over sessions.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Smoothness {
    /// Sum of the gaps above 200 ms, divided by the span from the first possible rendering to the
    /// last one: the paper's stall ratio.
    pub full: f64,
    /// Sum of the parts of those gaps beyond 200 ms, divided by the same span.
    pub excess: f64,
    /// Share of tokens shown more than 400 ms after their generation.
    pub late: f64,
    /// Mean time from generation to display in ms.
    pub delay_ms: f64,
}

/// Compares display times `shown_us` (in order) with generation times. Tokens that were never shown
/// count as late, and the span ends before them. The part of a gap in which the page is hidden
/// (`hidden_us`, start and end) does not count, since nobody waits then.
pub fn smoothness(
    generated_us: &[u64],
    shown_us: &[u64],
    rtt_us: u64,
    hidden_us: Option<(u64, u64)>,
) -> Smoothness {
    assert!(shown_us.len() <= generated_us.len());
    let Some((&first_us, &last_us)) = generated_us.first().zip(shown_us.last()) else {
        // No token was shown: there is no span, and every token is late.
        return Smoothness { late: 1.0, ..Smoothness::default() };
    };
    // The earliest moment at which any scheme could show the first token: a delay that nobody can
    // avoid is not a stall.
    let start_us = first_us + rtt_us / 2;
    let span_ms = last_us.saturating_sub(start_us).max(1) as f64 / 1e3;
    let (mut full_ms, mut excess_ms) = (0.0, 0.0);
    let mut previous_us = start_us;
    for &at_us in shown_us {
        let (from_us, to_us) = hidden_us.unwrap_or((0, 0));
        let unseen_us = at_us.min(to_us).saturating_sub(previous_us.max(from_us));
        let gap_ms = at_us.saturating_sub(previous_us).saturating_sub(unseen_us) as f64 / 1e3;
        if gap_ms > STALL_MS {
            // The paper counts the whole gap, which jumps at the threshold; the excess does not.
            full_ms += gap_ms;
            excess_ms += gap_ms - STALL_MS;
        }
        previous_us = at_us;
    }
    let delays_ms = shown_us
        .iter()
        .zip(generated_us)
        .map(|(shown, generated)| shown.saturating_sub(*generated) as f64 / 1e3);
    let missing = generated_us.len() - shown_us.len();
    let late = delays_ms.clone().filter(|&delay| delay > LATE_MS).count() + missing;
    Smoothness {
        full: full_ms / span_ms,
        excess: excess_ms / span_ms,
        late: late as f64 / generated_us.len() as f64,
        delay_ms: delays_ms.sum::<f64>() / shown_us.len() as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_gap_of_300_ms_in_one_second() {
        let generated: Vec<u64> = (0..11).map(|i| i * 100_000).collect();
        let mut shown: Vec<u64> = generated.iter().map(|t| t + 50_000).collect();
        // Tokens 4 and 5 wait for token 6: a gap of 300 ms after token 3.
        shown[4] = shown[6];
        shown[5] = shown[6];
        let result = smoothness(&generated, &shown, 100_000, None);
        assert!((result.full - 0.3).abs() < 1e-9, "{result:?}");
        assert!((result.excess - 0.1).abs() < 1e-9, "{result:?}");
        assert_eq!(result.late, 0.0);
        assert!((result.delay_ms - 50.0 - 300.0 / 11.0).abs() < 1e-9);
    }

    #[test]
    fn a_gap_of_exactly_200_ms_is_no_stall() {
        let result = smoothness(&[0, 100_000], &[50_000, 250_000], 100_000, None);
        assert_eq!(result.full, 0.0);
    }

    #[test]
    fn nothing_shown_is_all_late() {
        assert_eq!(smoothness(&[0, 1], &[], 0, None).late, 1.0);
    }
}
