//! Addresses from which QUIC handshakes began recently. A client whose packets arrive while the
//! server's replies are lost can only find that out here.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Number of remembered handshakes. A flood evicts the others, and does no other harm.
const REMEMBERED: usize = 256;

/// Latest starts of handshakes. Their addresses are not verified.
#[derive(Debug, Default)]
pub struct Arrivals(Mutex<VecDeque<(IpAddr, Duration)>>);

impl Arrivals {
    /// Records that a handshake began from `address` at `now`.
    pub fn note(&self, address: IpAddr, now: Duration) {
        // Each holder makes one change, which is whole or not made.
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.truncate(REMEMBERED - 1);
        all.push_front((address.to_canonical(), now));
    }

    /// Returns when the last handshake from `address` began.
    pub fn last(&self, address: IpAddr) -> Option<Duration> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = all.iter().find(|(one, _)| *one == address.to_canonical());
        found.map(|(_, at)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_are_remembered() {
        let arrivals = Arrivals::default();
        let address = |last: u8| IpAddr::from([10, 0, 0, last]);
        arrivals.note(address(1), Duration::from_secs(1));
        arrivals.note("::ffff:10.0.0.1".parse().unwrap(), Duration::from_secs(2));
        assert_eq!(arrivals.last(address(1)), Some(Duration::from_secs(2)));
        assert_eq!(arrivals.last(address(2)), None);
        (0..REMEMBERED).for_each(|_| arrivals.note(address(3), Duration::from_secs(3)));
        assert_eq!(arrivals.last(address(1)), None, "the number is bounded");
    }
}
