//! News about the packets on the demonstration's link, for its front ends.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use loquent_bench::link::observer::{PacketObserver, SeenPacket};
use loquent_bench::link::packet_stats::Fate;
use serde::Serialize;
use tokio::sync::broadcast;

/// Maximum packets that a slow watcher may be behind before it misses some.
const MAX_BEHIND: usize = 8192;

/// One of the two columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DemoLane {
    /// Server-sent events over TCP.
    Tcp = 0,
    /// Loquent's delivery over QUIC.
    Loquent = 1,
}

impl DemoLane {
    /// Both lanes, in display order.
    pub const ALL: [Self; 2] = [Self::Tcp, Self::Loquent];

    /// Returns the lane that a path of the link belongs to. Without namespaces Loquent's HTTP,
    /// through which its client discovers QUIC, has a separate path after the two others.
    fn of_path(path: usize) -> Self {
        if path == 0 { Self::Tcp } else { Self::Loquent }
    }
}

/// A packet and its column.
#[derive(Debug, Clone, Copy)]
pub struct LanePacket {
    /// Run that the packet belongs to.
    pub run: u64,
    /// Column of the packet.
    pub lane: DemoLane,
    /// The packet and its fate.
    pub packet: SeenPacket,
}

impl LanePacket {
    /// Returns the packet in the page's format: column, 1 if it goes up, departure in ms after the
    /// run's start, bytes, and arrival, which is -1 if it is lost.
    pub fn row(&self) -> [f64; 5] {
        let SeenPacket { at_us, route, bytes, fate } = self.packet;
        let ms = |us: u64| us as f64 / 1e3;
        let arrives_ms = match fate {
            Fate::Delivered { due_us, .. } => ms(due_us),
            _ => -1.0,
        };
        let up = f64::from(u8::from(route.up));
        [f64::from(self.lane as u8), up, ms(at_us), bytes as f64, arrives_ms]
    }
}

/// Counts of one column since its run began, both directions together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct LaneCounts {
    /// Packets sent.
    pub packets: u64,
    /// Bytes of these packets, including all headers.
    pub bytes: u64,
    /// Packets that did not arrive.
    pub lost: u64,
}

#[derive(Debug, Default)]
struct Counted {
    run: u64,
    lanes: [LaneCounts; 2],
}

/// Publishes and counts packets. Clones share the same state.
#[derive(Debug, Clone)]
pub struct LinkNews {
    packets: broadcast::Sender<LanePacket>,
    counted: Arc<Mutex<Counted>>,
}

impl Default for LinkNews {
    fn default() -> Self {
        Self { packets: broadcast::Sender::new(MAX_BEHIND), counted: Arc::default() }
    }
}

impl LinkNews {
    /// Subscribes to the packets from now on.
    pub fn watch(&self) -> broadcast::Receiver<LanePacket> {
        self.packets.subscribe()
    }

    /// Returns the counts of both columns.
    pub fn counts(&self) -> [LaneCounts; 2] {
        self.counted().lanes
    }

    /// Resets the counts for run number `run`.
    pub fn begin_run(&self, run: u64) {
        *self.counted() = Counted { run, lanes: Default::default() };
    }

    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PacketObserver for LinkNews {
    fn handle_packet(&mut self, packet: SeenPacket) -> io::Result<()> {
        let lane = DemoLane::of_path(packet.route.path);
        // The lock is gone before anybody is told: this thread must not wait for a reader.
        let run = {
            let mut counted = self.counted();
            let counts = &mut counted.lanes[lane as usize];
            counts.packets += 1;
            counts.bytes += packet.bytes as u64;
            counts.lost += u64::from(!matches!(packet.fate, Fate::Delivered { .. }));
            counted.run
        };
        // Nobody watching is no error.
        let _ = self.packets.send(LanePacket { run, lane, packet });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use loquent_bench::link::emulator::PacketRoute;

    use super::*;

    #[test]
    fn packets_are_counted_by_column_and_told() {
        let mut news = LinkNews::default();
        let mut watch = news.watch();
        news.begin_run(3);
        let packet = |path, fate| SeenPacket {
            at_us: 2_500,
            route: PacketRoute { path, flow: 0, up: path == 2 },
            bytes: 100,
            fate,
        };
        let delivered = Fate::Delivered { due_us: 5_000, twice: false };
        for (path, fate) in [(0, Fate::Lost), (1, delivered), (2, Fate::QueueFull)] {
            news.handle_packet(packet(path, fate)).unwrap();
        }
        let [tcp, loquent] = news.counts();
        assert_eq!(tcp, LaneCounts { packets: 1, bytes: 100, lost: 1 });
        assert_eq!(loquent, LaneCounts { packets: 2, bytes: 200, lost: 1 });
        let told = [(); 3].map(|()| watch.try_recv().unwrap());
        assert!(told.iter().all(|packet| packet.run == 3));
        let rows = told.map(|packet| packet.row());
        assert_eq!(rows[0], [0.0, 0.0, 2.5, 100.0, -1.0]);
        assert_eq!(rows[1], [1.0, 0.0, 2.5, 100.0, 5.0]);
        assert_eq!(rows[2], [1.0, 1.0, 2.5, 100.0, -1.0]);
        news.begin_run(4);
        assert_eq!(news.counts(), [LaneCounts::default(); 2]);
    }
}
