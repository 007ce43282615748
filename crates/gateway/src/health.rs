//! Health of one upstream server according to its health checks.

/// Consecutive failed checks before a server counts as down: one check may be lost in the network,
/// and a server busy with a long prompt may answer late.
const FAILURES: u32 = 2;

/// Health according to the latest checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// Up, as far as known.
    Up {
        /// Consecutive failed checks.
        failures: u32,
    },
    /// Down.
    Down,
}

impl Default for Health {
    fn default() -> Self {
        Self::Up { failures: 0 }
    }
}

impl Health {
    /// Returns the state after another check.
    #[must_use]
    pub fn after(self, passed: bool) -> Self {
        match self {
            _ if passed => Self::default(),
            Self::Up { failures } if failures + 1 < FAILURES => Self::Up { failures: failures + 1 },
            Self::Up { .. } | Self::Down => Self::Down,
        }
    }

    /// Returns true if the server gets requests.
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
