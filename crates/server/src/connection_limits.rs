//! Limits on connections, in total and per network. The rule is the same for TCP and for QUIC, each
//! of which has separate places.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use loquent_serving::peer::network;

/// Counts connections, in total and per network.
pub struct Places {
    most: usize,
    most_per_network: usize,
    taken: Mutex<OpenConnections>,
}

#[derive(Default)]
struct OpenConnections {
    all: usize,
    by_network: HashMap<IpAddr, usize>,
}

/// Reason why a connection gets no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionRefusal {
    /// All places are taken.
    Full,
    /// The network has reached its limit.
    NetworkFull,
}

impl Places {
    /// Creates room for `most` connections, of which one network gets at most `most_per_network`.
    pub fn new(most: usize, most_per_network: usize) -> Arc<Self> {
        Arc::new(Self { most, most_per_network, taken: Mutex::default() })
    }

    /// Returns true if [`Self::enter`] would succeed for a connection from `address`.
    pub fn has_room(&self, address: IpAddr) -> bool {
        self.check(&self.taken(), Some(network(address))).is_ok()
    }

    /// Takes a place for a connection from `address`, counted for its network.
    ///
    /// # Errors
    /// When there is none.
    pub fn enter(self: &Arc<Self>, address: IpAddr) -> Result<ConnectionPermit, ConnectionRefusal> {
        self.take(Some(network(address)))
    }

    /// Takes a place that is not counted for a network: for a proxy, which is one address and many
    /// clients.
    ///
    /// # Errors
    /// When all places are taken.
    pub fn enter_uncounted(self: &Arc<Self>) -> Result<ConnectionPermit, ConnectionRefusal> {
        self.take(None)
    }

    fn take(
        self: &Arc<Self>,
        network: Option<IpAddr>,
    ) -> Result<ConnectionPermit, ConnectionRefusal> {
        let mut taken = self.taken();
        self.check(&taken, network)?;
        taken.all += 1;
        if let Some(network) = network {
            *taken.by_network.entry(network).or_default() += 1;
        }
        Ok(ConnectionPermit { places: self.clone(), network })
    }

    fn check(
        &self,
        taken: &OpenConnections,
        network: Option<IpAddr>,
    ) -> Result<(), ConnectionRefusal> {
        let of_network = network.and_then(|network| taken.by_network.get(&network));
        match of_network.copied().unwrap_or(0) {
            _ if taken.all >= self.most => Err(ConnectionRefusal::Full),
            of_network if network.is_some() && of_network >= self.most_per_network => {
                Err(ConnectionRefusal::NetworkFull)
            }
            _ => Ok(()),
        }
    }

    fn taken(&self) -> MutexGuard<'_, OpenConnections> {
        self.taken.lock().expect("nothing panics under this lock")
    }
}

/// A connection's place, freed on drop.
pub struct ConnectionPermit {
    places: Arc<Places>,
    network: Option<IpAddr>,
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        taken.all -= 1;
        let Some(network) = self.network else { return };
        if let Some(count) = taken.by_network.get_mut(&network) {
            *count -= 1;
            if *count == 0 {
                taken.by_network.remove(&network);
            }
        }
    }
}

/// Maximum number of concurrent probe streams (`probe.rs`).
const MAX_PROBES: usize = 32;

/// Places for probe streams, separate from those of answers, so that a diagnosis works while all of
/// those are taken.
#[derive(Debug, Clone)]
pub struct ProbePermits(Arc<Semaphore>);

impl Default for ProbePermits {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_PROBES)))
    }
}

impl ProbePermits {
    /// Takes a place until it is dropped; `None` if all are taken.
    pub fn take(&self) -> Option<OwnedSemaphorePermit> {
        self.0.clone().try_acquire_owned().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_for_all_and_for_one_and_come_back() {
        let (one, other) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let places = Places::new(3, 2);
        let mut held = vec![places.enter(one).ok(), places.enter(one).ok()];
        assert_eq!(places.enter(one).err(), Some(ConnectionRefusal::NetworkFull));
        assert!(!places.has_room(one) && places.has_room(other));
        held.push(places.enter_uncounted().ok());
        assert_eq!(places.enter(other).err(), Some(ConnectionRefusal::Full));
        assert_eq!(places.enter_uncounted().err(), Some(ConnectionRefusal::Full));
        held.clear();
        assert!(places.enter(one).is_ok(), "all of them are free again");
        assert!(places.taken().by_network.is_empty(), "nothing is kept for those who left");
    }
}
