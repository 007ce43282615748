//! Checks the clock: on its own by the year, or against a server's by the date of its responses.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::diagnosis::Diagnosis;

/// A time before any release of this program, in Unix seconds: 1 January 2025.
const PAST_S: u64 = 1_735_689_600;
/// Difference that is noticeable in logs and in times on pages.
const NOTABLE: Duration = Duration::from_secs(30);
/// Difference at which certificates and dated keys are refused.
const HARMFUL: Duration = Duration::from_secs(300);
const ADVICE: &str = "synchronise the clocks: timedatectl set-ntp true";

/// Checks this machine's clock on its own, which shows `now`.
pub(super) fn diagnose(now: SystemTime) -> Diagnosis {
    let time = httpdate::fmt_http_date(now.max(UNIX_EPOCH));
    match now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()) < PAST_S {
        true => Diagnosis::failure("clock", format!("it is not {time}"), ADVICE),
        false => Diagnosis::fine("clock", time),
    }
}

/// A reading of a server's clock, bracketed by this machine's.
pub(super) struct ClockReading {
    /// Times before the request was sent, and after the response arrived.
    pub(super) between: [SystemTime; 2],
    /// `Date` of the response, in whole seconds.
    pub(super) date: SystemTime,
}

impl ClockReading {
    pub(super) fn diagnose(&self) -> Diagnosis {
        let [before, after] = self.between;
        // The server wrote the date somewhere in between, and cut off less than a second.
        let (is_ahead, off) =
            if let Ok(ahead) = before.duration_since(self.date + Duration::from_secs(1)) {
                (true, ahead)
            } else {
                (false, self.date.duration_since(after).unwrap_or_default())
            };
        let side = if is_ahead { "ahead of" } else { "behind" };
        let what = format!("this machine is {} {side} the server", words(off));
        if off >= HARMFUL {
            let what =
                format!("{what}: certificates and keys may count as expired or not yet valid");
            Diagnosis::failure("clock", what, ADVICE)
        } else if off >= NOTABLE {
            Diagnosis::warning("clock", what, ADVICE)
        } else {
            Diagnosis::fine("clock", "agrees with the server's")
        }
    }
}

/// Formats a time span for people.
pub(super) fn words(span: Duration) -> String {
    match span.as_secs() {
        s @ 0..120 => format!("{s} s"),
        s @ 120..7_200 => format!("{} min", s / 60),
        s @ 7_200..172_800 => format!("{} h", s / 3_600),
        s => format!("{} days", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::super::diagnosis::Severity;
    use super::*;

    #[test]
    fn a_clock_that_was_never_set_is_found() {
        assert_eq!(diagnose(UNIX_EPOCH).severity, Severity::Failure);
        assert_eq!(diagnose(UNIX_EPOCH - Duration::from_secs(9)).severity, Severity::Failure);
        let later = UNIX_EPOCH + Duration::from_secs(PAST_S + 1);
        assert_eq!(diagnose(later).severity, Severity::Fine);
    }

    #[test]
    fn clocks_that_differ_are_found_whichever_is_wrong() {
        let base = UNIX_EPOCH + Duration::from_secs(2_000_000_000);
        let at = |offset_s: i64| {
            let shift = Duration::from_secs(offset_s.unsigned_abs());
            let date = if offset_s < 0 { base - shift } else { base + shift };
            // The answer took 10 s, within which the date may lie anywhere.
            ClockReading { between: [base, base + Duration::from_secs(10)], date }.diagnose()
        };
        for (offset_s, severity) in [
            (0, Severity::Fine),
            (39, Severity::Fine),
            (40, Severity::Warning),
            (310, Severity::Failure),
            (-30, Severity::Fine),
            (-31, Severity::Warning),
            (-400, Severity::Failure),
        ] {
            assert_eq!(at(offset_s).severity, severity, "{offset_s}");
        }
        assert!(at(-7_300).what.contains("2 h ahead"), "{}", at(-7_300).what);
        assert!(at(7_300).what.contains("behind"));
    }
}
