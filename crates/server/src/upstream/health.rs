//! Whether one upstream server passes its health checks.

/// Checks in a row that have to fail before a server counts as down: one may be lost on the way,
/// and a server that reads a long prompt may be late.
const FAILURES: u32 = 2;

/// What the latest checks say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// It is up, as far as anybody knows.
    Up {
        /// Checks that have failed since the last one that did not.
        failures: u32,
    },
    /// It is down.
    Down,
}

impl Default for Health {
    fn default() -> Self {
        Self::Up { failures: 0 }
    }
}

impl Health {
    /// The state after another check.
    #[must_use]
    pub fn after(self, passed: bool) -> Self {
        match self {
            _ if passed => Self::default(),
            Self::Up { failures } if failures + 1 < FAILURES => Self::Up { failures: failures + 1 },
            Self::Up { .. } | Self::Down => Self::Down,
        }
    }

    /// Whether the server gets requests.
    pub fn is_up(self) -> bool {
        self != Self::Down
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_failures_take_a_server_out_and_one_success_brings_it_back() {
        let after = |checks: &[bool]| checks.iter().fold(Health::default(), |it, &ok| it.after(ok));
        assert!(after(&[]).is_up());
        assert!(after(&[false]).is_up());
        assert!(after(&[false, true, false]).is_up());
        assert!(!after(&[false, false]).is_up());
        assert!(!after(&[false, false, false]).is_up());
        assert!(after(&[false, false, true]).is_up());
    }
}
