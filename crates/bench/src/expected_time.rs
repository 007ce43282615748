//! The time that a long benchmark takes, in words.

/// Returns `seconds` in words: exact enough to decide whether to wait.
pub fn about(seconds: f64) -> String {
    match seconds {
        ..90.0 => format!("about {:.0} s", seconds.max(1.0)),
        ..5_400.0 => format!("about {:.0} min", seconds / 60.0),
        _ => format!("about {:.1} h", seconds / 3_600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_told_in_the_unit_that_one_waits_by() {
        let told = [0.0, 20.4, 120.0, 5_000.0, 9_000.0].map(about);
        assert_eq!(told, ["about 1 s", "about 20 s", "about 2 min", "about 83 min", "about 2.5 h"]);
    }
}
