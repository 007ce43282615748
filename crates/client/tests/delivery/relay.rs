//! A bad network in a test: a UDP relay that drops packets by a seed, delays them, changes
//! the client's address, or stops passing anything.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::net::UdpSocket;

/// What the relay does to packets, in both directions.
#[derive(Debug, Clone, Copy)]
pub struct NetworkConditions {
    /// Probability that a packet is lost.
    pub loss: f64,
    /// How long each takes.
    pub delay: Duration,
    /// Seed of the losses.
    pub seed: u64,
}

impl NetworkConditions {
    /// Everything arrives at once.
    pub const FINE: NetworkConditions =
        NetworkConditions { loss: 0.0, delay: Duration::ZERO, seed: 0 };
}

struct Shared {
    weather: NetworkConditions,
    random: Mutex<SmallRng>,
    cut: AtomicBool,
    /// Counts the client's addresses as the server sees them.
    generation: AtomicU64,
    dropped: AtomicU64,
    /// Packets that came while the relay was cut.
    stopped: AtomicU64,
    /// Bytes of the client's longest packet.
    longest: AtomicU64,
    /// Addresses that packets came from.
    clients: AtomicUsize,
}

impl Shared {
    fn passes(&self) -> bool {
        let lost = self.random.lock().unwrap().random_bool(self.weather.loss);
        let is_cut = self.cut.load(Ordering::Relaxed);
        self.dropped.fetch_add(u64::from(lost), Ordering::Relaxed);
        self.stopped.fetch_add(u64::from(is_cut), Ordering::Relaxed);
        !lost && !is_cut
    }
}

/// A running relay; it ends with the test's runtime.
pub struct Relay {
    /// Where clients send to.
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

impl Relay {
    /// Relays to `server`.
    pub async fn start(server: SocketAddr, weather: NetworkConditions) -> Relay {
        let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
        let address = socket.local_addr().unwrap();
        let shared = Arc::new(Shared {
            weather,
            random: Mutex::new(SmallRng::seed_from_u64(weather.seed)),
            cut: AtomicBool::new(false),
            generation: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            stopped: AtomicU64::new(0),
            longest: AtomicU64::new(0),
            clients: AtomicUsize::new(0),
        });
        tokio::spawn(forward(socket, server, Arc::clone(&shared)));
        Relay { address, shared }
    }

    /// From now on nothing passes.
    pub fn cut(&self) {
        self.shared.cut.store(true, Ordering::Relaxed);
    }

    /// Everything passes again as the weather has it.
    pub fn mend(&self) {
        self.shared.cut.store(false, Ordering::Relaxed);
    }

    /// The server sees the client at a new address, and its packets to the old one are lost.
    pub fn move_client(&self) {
        self.shared.generation.fetch_add(1, Ordering::Relaxed);
    }

    /// Packets that came while the relay was cut.
    pub fn stopped(&self) -> u64 {
        self.shared.stopped.load(Ordering::Relaxed)
    }

    /// Bytes of the client's longest packet.
    pub fn longest(&self) -> u64 {
        self.shared.longest.load(Ordering::Relaxed)
    }

    /// Addresses from which the client has sent.
    pub fn clients(&self) -> usize {
        self.shared.clients.load(Ordering::Relaxed)
    }

    /// Packets lost by chance.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }
}

async fn forward(socket: Arc<UdpSocket>, server: SocketAddr, shared: Arc<Shared>) {
    let mut ups: HashMap<SocketAddr, (u64, Arc<UdpSocket>)> = HashMap::new();
    let mut packet = vec![0; 2048];
    while let Ok((bytes, client)) = socket.recv_from(&mut packet).await {
        shared.longest.fetch_max(bytes as u64, Ordering::Relaxed);
        if !shared.passes() {
            continue;
        }
        let generation = shared.generation.load(Ordering::Relaxed);
        if ups.get(&client).is_none_or(|(known, _)| *known != generation) {
            let up = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
            up.connect(server).await.unwrap();
            ups.insert(client, (generation, Arc::clone(&up)));
            shared.clients.store(ups.len(), Ordering::Relaxed);
            let back = Back { up, generation, socket: Arc::clone(&socket), client };
            tokio::spawn(back.run(Arc::clone(&shared)));
        }
        let (up, packet) = (Arc::clone(&ups[&client].1), packet[..bytes].to_vec());
        let delay = shared.weather.delay;
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            let _ = up.send(&packet).await;
        });
    }
}

/// The way back to one client's address.
struct Back {
    up: Arc<UdpSocket>,
    generation: u64,
    socket: Arc<UdpSocket>,
    client: SocketAddr,
}

impl Back {
    async fn run(self, shared: Arc<Shared>) {
        let mut packet = vec![0; 2048];
        while let Ok(bytes) = self.up.recv(&mut packet).await {
            if shared.generation.load(Ordering::Relaxed) != self.generation {
                return;
            }
            if !shared.passes() {
                continue;
            }
            let (socket, client, packet) =
                (Arc::clone(&self.socket), self.client, packet[..bytes].to_vec());
            let delay = shared.weather.delay;
            tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                let _ = socket.send_to(&packet, client).await;
            });
        }
    }
}
