//! File descriptors, of which every connection needs one: raises their limit as far as possible,
//! and keeps the number of connections within it.

use loquent_server::TcpLimits;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Descriptors for everything but admitted connections: standard streams, event loops, ports,
/// certificates, stages, and connections that are being refused.
pub(crate) const OWN_DESCRIPTORS: u64 = 96;

/// Raises the limit of open files to the maximum that the system allows; returns the new limit, if
/// known.
pub fn raise_limit() -> Option<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    let raised = soft < hard && setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok();
    Some(if raised { hard } else { soft })
}

/// Lowers the number of connections to what `descriptors` allow, at `per_connection` each, and logs
/// it.
pub fn fit(limits: &mut TcpLimits, descriptors: u64, per_connection: u64) {
    let most = (descriptors.saturating_sub(OWN_DESCRIPTORS) / per_connection).max(1);
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    if limits.max_connections <= most {
        return;
    }
    tracing::warn!(
        "at most {most} connections instead of --max-connections {}: the process may open only \
         {descriptors} files; raise its limit (ulimit -n)",
        limits.max_connections
    );
    limits.max_connections = most;
    // One address must not get all of them.
    let quarter = most.div_ceil(4);
    limits.max_connections_per_address = limits.max_connections_per_address.min(quarter);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fitted(descriptors: u64, per_connection: u64) -> (usize, usize) {
        let mut limits = TcpLimits::default();
        fit(&mut limits, descriptors, per_connection);
        (limits.max_connections, limits.max_connections_per_address)
    }

    #[test]
    fn connections_fit_the_descriptors() {
        assert_eq!(fitted(1 << 20, 1), (4096, 1024));
        assert_eq!(fitted(4096 + OWN_DESCRIPTORS, 1), (4096, 1024));
        assert_eq!(fitted(1024, 1), (928, 232));
        assert_eq!(fitted(1024, 2), (464, 116), "half of them go to an upstream server");
        assert_eq!(fitted(10, 1), (1, 1));
    }

    #[test]
    fn the_limit_is_as_high_as_it_may_be() {
        let raised = raise_limit().unwrap();
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert_eq!((soft, raised), (hard, hard));
    }
}
