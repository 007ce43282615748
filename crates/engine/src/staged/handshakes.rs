//! Handshakes in progress: a few for each address, none of which waits for another.
//!
//! Until its handshake is done, a connection may be a stranger's. When no place is left, the oldest
//! handshake gives way: an honest one takes a few round trips, so old ones are silent ones.
//! Strangers that keep reconnecting displace each other, but each gets enough time for an honest
//! handshake first: until then newcomers wait in the system's queue, where an honest one gets its
//! turn.

use std::io;
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maximum handshakes at once.
const MAX_HANDSHAKES: usize = 64;
/// Maximum handshakes at once with one address.
const MAX_PER_ADDRESS: usize = 16;
/// Maximum threads for handshakes, including those that were cut off and are about to end.
const MAX_THREADS: usize = 2 * MAX_HANDSHAKES;
/// Time that every handshake has before it must give way; far more than an honest one takes.
const FAIR_TIME: Duration = Duration::from_millis(100);
/// Minimum time between two warnings about strangers.
const WARNING_GAP: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Handshake {
    number: u64,
    source: IpAddr,
    since: Instant,
    /// Closed if the handshake must give way.
    socket: TcpStream,
}

#[derive(Debug, Default)]
struct HandshakeList {
    next: u64,
    /// Handshakes, oldest first.
    under_way: Vec<Handshake>,
    /// Number of places handed out and not yet given back.
    threads: usize,
}

/// Handshakes of one listener.
#[derive(Debug, Default)]
pub(super) struct Handshakes {
    list: Mutex<HandshakeList>,
    left: Condvar,
}

/// Place of one handshake, given back when dropped.
#[derive(Debug)]
pub(super) struct HandshakePermit {
    handshakes: Arc<Handshakes>,
    number: u64,
}

impl Handshakes {
    /// Returns a place for a handshake on `socket`. If there is none, the oldest of the same
    /// address, or of the address with the most, is cut off.
    ///
    /// # Errors
    /// Error of the operating system if the socket is already closed.
    pub(super) fn enter(self: &Arc<Self>, socket: &TcpStream) -> io::Result<HandshakePermit> {
        let source = network(socket.peer_addr()?.ip());
        let socket = socket.try_clone()?;
        let mut list = self.lock();
        loop {
            let now = Instant::now();
            let oldest = list.must_give_way(source);
            let since = oldest.map(|index| now - list.under_way[index].since);
            match (oldest, since) {
                // Half of the threads are of those that were cut off, which end at once.
                _ if list.threads >= MAX_THREADS => list = self.wait(list, FAIR_TIME),
                (_, Some(since)) if since < FAIR_TIME => list = self.wait(list, FAIR_TIME - since),
                (oldest, _) => {
                    oldest.into_iter().for_each(|index| list.cut_off(index));
                    break;
                }
            }
        }
        let (number, since) = (list.next, Instant::now());
        list.next += 1;
        list.threads += 1;
        list.under_way.push(Handshake { number, source, since, socket });
        Ok(HandshakePermit { handshakes: self.clone(), number })
    }

    /// Waits until a handshake ends, at most for `limit`.
    fn wait<'a>(
        &self,
        list: MutexGuard<'a, HandshakeList>,
        limit: Duration,
    ) -> MutexGuard<'a, HandshakeList> {
        let waited = self.left.wait_timeout(list, limit);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn lock(&self) -> MutexGuard<'_, HandshakeList> {
        // Each holder makes one change, which a panic cannot cut in half.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HandshakeList {
    fn count(&self, source: IpAddr) -> usize {
        self.under_way.iter().filter(|one| one.source == source).count()
    }

    /// Returns the handshake that must end before one with `source` begins.
    fn must_give_way(&self, source: IpAddr) -> Option<usize> {
        let loser = if self.count(source) >= MAX_PER_ADDRESS {
            source
        } else if self.under_way.len() >= MAX_HANDSHAKES {
            // The first of those that have equally many: the one with the oldest handshake.
            self.under_way.iter().rev().max_by_key(|one| self.count(one.source))?.source
        } else {
            return None;
        };
        self.under_way.iter().position(|one| one.source == loser)
    }

    fn cut_off(&mut self, index: usize) {
        // It fails if the other end has closed the connection already.
        let _ = self.under_way.remove(index).socket.shutdown(Shutdown::Both);
    }
}

impl HandshakePermit {
    /// Ends the handshake successfully: from here on the connection cannot be cut off. Returns
    /// false if it was already cut off.
    pub(super) fn finish(self) -> bool {
        let mut list = self.handshakes.lock();
        let before = list.under_way.len();
        list.under_way.retain(|one| one.number != self.number);
        list.under_way.len() < before
        // Dropping it tells who waits.
    }
}

impl Drop for HandshakePermit {
    fn drop(&mut self) {
        let mut list = self.handshakes.lock();
        list.under_way.retain(|one| one.number != self.number);
        list.threads -= 1;
        drop(list);
        self.handshakes.left.notify_one();
    }
}

/// Returns the network that one user may own: an IPv4 address, or the /64 of an IPv6 address.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(six) => IpAddr::V6((u128::from(six) & (u128::MAX << 64)).into()),
        four => four,
    }
}

/// Allows one warning per second, and counts the suppressed ones.
#[derive(Debug, Default)]
pub(super) struct WarningLimit(Mutex<(Option<Instant>, u64)>);

impl WarningLimit {
    /// Returns the number of warnings suppressed since the last one; `None` to suppress this one
    /// too.
    pub(super) fn allow(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, left_out) = &mut *state;
        if last.is_some_and(|last| now.saturating_duration_since(last) < WARNING_GAP) {
            *left_out += 1;
            return None;
        }
        *last = Some(now);
        Some(std::mem::take(left_out))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use super::*;

    struct Door {
        listener: TcpListener,
        handshakes: Arc<Handshakes>,
    }

    impl Door {
        fn open() -> Self {
            let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
            Self { listener, handshakes: Arc::default() }
        }

        /// Returns both ends of a connection, and its place.
        fn come(&self) -> (TcpStream, TcpStream, HandshakePermit) {
            let dialled = TcpStream::connect(self.listener.local_addr().unwrap()).unwrap();
            let accepted = self.listener.accept().unwrap().0;
            let place = self.handshakes.enter(&accepted).unwrap();
            (dialled, accepted, place)
        }
    }

    fn is_cut_off(dialled: &mut TcpStream) -> bool {
        dialled.set_nonblocking(true).unwrap();
        matches!(dialled.read(&mut [0]), Ok(0))
    }

    #[test]
    fn the_oldest_handshake_of_an_address_gives_way() {
        let door = Door::open();
        let mut all: Vec<_> = (0..MAX_PER_ADDRESS).map(|_| door.come()).collect();
        assert!(all.iter_mut().all(|(dialled, ..)| !is_cut_off(dialled)));
        let (mut last, _accepted, place) = door.come();
        assert!(is_cut_off(&mut all[0].0) && !is_cut_off(&mut all[1].0));
        assert!(!is_cut_off(&mut last) && place.finish());
        assert!(!all.remove(0).2.finish(), "it has given way");
        // Those that have finished take no place.
        let _next = door.come();
        assert!(!is_cut_off(&mut all[0].0));
    }

    #[test]
    fn places_come_back_however_a_handshake_ends() {
        let door = Door::open();
        for _ in 0..4 * MAX_THREADS {
            let (_dialled, _accepted, place) = door.come();
            drop(place);
        }
        let list = door.handshakes.lock();
        assert_eq!((list.threads, list.under_way.len()), (0, 0));
    }

    #[test]
    fn an_address_is_a_users_network() {
        let same = |one: &str, other: &str| {
            network(one.parse().unwrap()) == network(other.parse().unwrap())
        };
        assert!(same("2001:db8::1", "2001:db8::ffff:1"));
        assert!(!same("2001:db8::1", "2001:db8:0:1::1"));
        assert!(same("::ffff:10.0.0.1", "10.0.0.1") && !same("10.0.0.1", "10.0.0.2"));
    }

    #[test]
    fn strangers_fill_no_log() {
        let (limit, start) = (WarningLimit::default(), Instant::now());
        assert_eq!(limit.allow(start), Some(0));
        assert!((1..1000).all(|ms| limit.allow(start + Duration::from_millis(ms)).is_none()));
        assert_eq!(limit.allow(start + WARNING_GAP), Some(999));
    }
}
