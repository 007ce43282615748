//! The link model applied to packets: decides which are lost and when the others are delivered.
//!
//! Uses no clock and no sockets: the same seed and the same packets at the same times give the same
//! result as in the simulator, because the same code decides.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use loquent_sim::channel::{Channel, Direction, LossSchedule};
use loquent_sim::link::{HEADER_BYTES, Link, LinkState};

use super::packet_stats::{Fate, PacketStats};

/// Maximum bytes of packets in flight, so that a flood cannot exhaust memory; packets beyond are
/// dropped.
const MAX_HELD_BYTES: usize = 64 << 20;

/// Parameters and draws that decide the fate of one path's packets.
#[derive(Debug, Clone)]
pub struct PathSchedule {
    link: Link,
    clean: Link,
    schedule: LossSchedule,
    clean_schedule: LossSchedule,
    outages_us: Vec<(u64, u64)>,
    seed: u64,
    length_us: u64,
}

impl PathSchedule {
    /// Creates the schedule of `link` from `seed`. Losses are drawn for `length_us` and repeat
    /// after that. During `outages_us`, pairs of start and end, nothing gets through.
    pub fn new(link: Link, seed: u64, length_us: u64, outages_us: Vec<(u64, u64)>) -> Self {
        let mut clean = link.clone();
        (clean.channel, clean.migrate_every_ms) = (Channel::Clean, None);
        (clean.duplicate, clean.corrupt) = (0.0, 0.0);
        Self {
            schedule: LossSchedule::new(&link.channel, seed, length_us),
            clean_schedule: LossSchedule::new(&Channel::Clean, seed, length_us),
            link,
            clean,
            outages_us,
            seed,
            length_us,
        }
    }

    /// Returns the link as given.
    pub fn link(&self) -> &Link {
        &self.link
    }
}

/// Assignment of links to the paths of a relay.
#[derive(Debug, Clone)]
pub enum PathLinks {
    /// Each path has its own link.
    Own(Vec<PathSchedule>),
    /// All paths share one bottleneck, whose schedule never begins: only its full queue loses
    /// packets. The paths are counted separately.
    Shared {
        /// The bottleneck.
        bottleneck: Box<PathSchedule>,
        /// Number of paths.
        paths: usize,
    },
}

impl PathLinks {
    /// Returns the number of paths.
    pub fn paths(&self) -> usize {
        match self {
            Self::Own(schedules) => schedules.len(),
            Self::Shared { paths, .. } => *paths,
        }
    }
}

/// A link with its state.
struct Crossing<'a> {
    schedule: &'a PathSchedule,
    /// State before the schedule begins, when nothing is lost: connections are set up then.
    before: LinkState<'a>,
    during: LinkState<'a>,
    began_us: Option<u64>,
}

/// Packet counts of a path, and the period in which it is counted.
#[derive(Debug, Clone, Default)]
struct PathCount {
    began_us: Option<u64>,
    ended: bool,
    stats: [PacketStats; 2],
}

/// A packet in flight.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct QueuedPacket {
    due_us: u64,
    order: u64,
    route: PacketRoute,
    packet: Vec<u8>,
}

/// Path, conversation and direction of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PacketRoute {
    /// Number of the path.
    pub path: usize,
    /// Number of the conversation, for wires that carry several over one path.
    pub flow: usize,
    /// True for packets from the client to the server.
    pub up: bool,
}

impl PacketRoute {
    /// Returns the direction in the model's terms.
    pub fn direction(self) -> Direction {
        if self.up { Direction::Up } else { Direction::Down }
    }
}

/// A packet that leaves the link.
#[derive(Debug, PartialEq, Eq)]
pub struct DuePacket {
    /// Time at which it is due to leave, in µs.
    pub due_us: u64,
    /// Path, conversation and direction.
    pub route: PacketRoute,
    /// The packet's bytes.
    pub packet: Vec<u8>,
}

/// A set of paths with the packets in flight on them.
pub struct Emulator<'a> {
    /// One link for each path, or one for all.
    links: Vec<Crossing<'a>>,
    is_shared: bool,
    counts: Vec<PathCount>,
    held: BinaryHeap<Reverse<QueuedPacket>>,
    held_bytes: usize,
    order: u64,
}

impl<'a> Emulator<'a> {
    /// Creates paths whose schedules have not begun: they delay, limit and queue packets, but lose
    /// none.
    pub fn new(links: &'a PathLinks) -> Self {
        let (crossings, is_shared) = match links {
            PathLinks::Own(schedules) => (schedules.iter().map(Crossing::new).collect(), false),
            PathLinks::Shared { bottleneck, .. } => (vec![Crossing::new(bottleneck)], true),
        };
        Self {
            links: crossings,
            is_shared,
            counts: vec![PathCount::default(); links.paths()],
            held: BinaryHeap::new(),
            held_bytes: 0,
            order: 0,
        }
    }

    /// Begins the schedule of `path` at `at_us`: its losses and packet counts start then.
    pub fn begin(&mut self, path: usize, at_us: u64) {
        self.counts[path].began_us.get_or_insert(at_us);
        if !self.is_shared {
            self.links[path].began_us.get_or_insert(at_us);
        }
    }

    /// Stops counting packets of `path`.
    pub fn end(&mut self, path: usize) {
        self.counts[path].ended = true;
    }

    /// Handles a packet of `wire_bytes` that enters the link, and returns its fate.
    ///
    /// # Panics
    /// If there is no such path.
    pub fn handle_packet(
        &mut self,
        now_us: u64,
        route: PacketRoute,
        wire_bytes: usize,
        packet: &[u8],
    ) -> Fate {
        let link = if self.is_shared { 0 } else { route.path };
        let (fate, arrivals) = self.links[link].send(now_us, route.direction(), wire_bytes);
        let mut fate = fate;
        for (due_us, corrupted) in arrivals.into_iter().flatten() {
            // After the model has decided: its draws must not depend on this machine's memory.
            if self.held_bytes + packet.len() > MAX_HELD_BYTES {
                fate = Fate::Overflow;
                continue;
            }
            let mut packet = packet.to_vec();
            if let Some(bits) = corrupted {
                flip_bit(&mut packet, bits);
            }
            self.held_bytes += packet.len();
            self.order += 1;
            self.held.push(Reverse(QueuedPacket { due_us, order: self.order, route, packet }));
        }
        let count = &mut self.counts[route.path];
        if count.began_us.is_some_and(|began| began <= now_us) && !count.ended {
            count.stats[route.direction() as usize].count(now_us, wire_bytes, fate);
        }
        fate
    }

    /// Returns the time at which the next packet leaves the link, in µs.
    pub fn poll_timeout(&self) -> Option<u64> {
        self.held.peek().map(|Reverse(held)| held.due_us)
    }

    /// Returns the next packet that has left the link by `now_us`.
    pub fn poll_packet(&mut self, now_us: u64) -> Option<DuePacket> {
        if self.poll_timeout()? > now_us {
            return None;
        }
        let Reverse(QueuedPacket { due_us, route, packet, .. }) = self.held.pop()?;
        self.held_bytes -= packet.len();
        Some(DuePacket { due_us, route, packet })
    }

    /// Returns the statistics of each path since it began: server to client, and client to server.
    pub fn stats(&self) -> Vec<[PacketStats; 2]> {
        self.counts.iter().map(|count| count.stats.clone()).collect()
    }
}

type Arrivals = [Option<(u64, Option<u64>)>; 2];

impl<'a> Crossing<'a> {
    fn new(schedule: &'a PathSchedule) -> Self {
        Self {
            schedule,
            before: LinkState::new(
                &schedule.clean,
                &schedule.clean_schedule,
                schedule.seed,
                schedule.length_us,
            ),
            during: LinkState::new(
                &schedule.link,
                &schedule.schedule,
                schedule.seed,
                schedule.length_us,
            ),
            began_us: None,
        }
    }

    fn has_begun(&self, now_us: u64) -> bool {
        self.began_us.is_some_and(|began| began <= now_us)
    }

    /// Returns the model's decision, in this clock's time.
    fn send(&mut self, now_us: u64, direction: Direction, wire_bytes: usize) -> (Fate, Arrivals) {
        let begun = self.has_begun(now_us);
        let (path, zero_us) = match begun {
            true => (&mut self.during, self.began_us.unwrap_or(0)),
            false => (&mut self.before, 0),
        };
        let at_us = now_us - zero_us;
        // The model adds headers of its own, which a real packet already has.
        let payload = wire_bytes.saturating_sub(HEADER_BYTES);
        // The model reports a loss without its cause; the counter tells a full queue from the rest.
        let queue_drops = path.queue_drops(direction);
        let arrivals = path.send(at_us, payload, direction).arrivals;
        let queue_full = path.queue_drops(direction) > queue_drops;
        let out =
            begun && self.schedule.outages_us.iter().any(|&(from, to)| (from..to).contains(&at_us));
        // An outage takes the packet after it has occupied the queue, as a dead radio link would.
        if out {
            return (Fate::Outage, [None; 2]);
        }
        let arrivals = arrivals.map(|a| a.map(|a| (a.at_us + zero_us, a.corrupted)));
        let fate = match arrivals[0] {
            _ if queue_full => Fate::QueueFull,
            None => Fate::Lost,
            Some((due_us, _)) => Fate::Delivered { due_us, twice: arrivals[1].is_some() },
        };
        (fate, arrivals)
    }
}

/// Flips one bit after the IP header. A flip in the header would change the packet's route; in the
/// body, the receiver's checksum must detect it.
fn flip_bit(packet: &mut [u8], bits: u64) {
    const IP_HEADER_BYTES: usize = 20;
    let body = packet.get_mut(IP_HEADER_BYTES..).filter(|body| !body.is_empty());
    if let Some(body) = body {
        let at = bits as usize % (body.len() * 8);
        body[at / 8] ^= 1 << (at % 8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOWN: PacketRoute = PacketRoute { path: 0, flow: 0, up: false };
    const DEFAULT: Channel =
        Channel::Markov { stay_good: 0.9, stay_lossy: 0.5, loss: 0.9, state_ms: 100.0 };

    fn schedule(link: Link) -> PathSchedule {
        PathSchedule::new(link, 7, 60_000_000, Vec::new())
    }

    fn own(schedule: PathSchedule) -> PathLinks {
        PathLinks::Own(vec![schedule])
    }

    #[test]
    fn the_same_seed_drops_the_same_packets_as_the_simulator() {
        let link = Link::new(400.0, DEFAULT);
        let losses = LossSchedule::new(&link.channel, 7, 60_000_000);
        let mut path = LinkState::new(&link, &losses, 7, 60_000_000);
        let links = own(schedule(link.clone()));
        let mut emulator = Emulator::new(&links);
        // Its clock began earlier than the session's.
        emulator.begin(0, 5_000_000);
        let mut lost = 0;
        for i in 0..2_000 {
            let at_us = i * 20_000;
            let direction = if i % 3 == 0 { Direction::Up } else { Direction::Down };
            let expected =
                path.send(at_us, 100, direction).arrivals[0].map(|a| a.at_us + 5_000_000);
            let route = PacketRoute { up: direction == Direction::Up, ..DOWN };
            let fate = emulator.handle_packet(5_000_000 + at_us, route, 160, &[0; 160]);
            let got = match fate {
                Fate::Delivered { due_us, .. } => Some(due_us),
                _ => None,
            };
            assert_eq!(got, expected, "packet {i}");
            lost += u32::from(got.is_none());
        }
        assert!((150..450).contains(&lost), "{lost} of 2000");
    }

    #[test]
    fn nothing_is_lost_before_the_course_begins() {
        let links = own(schedule(Link::new(100.0, Channel::Random { loss: 1.0 })));
        let mut emulator = Emulator::new(&links);
        let delivered = Fate::Delivered { due_us: 50_000, twice: false };
        assert_eq!(emulator.handle_packet(0, DOWN, 100, &[1; 100]), delivered);
        emulator.begin(0, 10);
        assert_eq!(emulator.handle_packet(10, DOWN, 100, &[2; 100]), Fate::Lost);
        assert_eq!(emulator.poll_packet(49_999), None);
        let out = emulator.poll_packet(50_000).map(|delivery| delivery.packet);
        assert_eq!(out, Some(vec![1; 100]));
        let [down, up] = &emulator.stats()[0];
        assert_eq!((down.packets, down.lost, up.packets), (1, 1, 0));
    }

    #[test]
    fn queue_and_outage_are_told_apart() {
        let mut link = Link::new(100.0, Channel::Clean);
        (link.rate_kbps, link.queue_bytes) = (Some(16.0), 250);
        let outages = vec![(1_000_000, 2_000_000)];
        let links = own(PathSchedule::new(link, 7, 60_000_000, outages));
        let mut emulator = Emulator::new(&links);
        emulator.begin(0, 0);
        // 100 bytes take 50 ms at 16 kbit/s.
        let mut send = |at_us| emulator.handle_packet(at_us, DOWN, 100, &[0; 100]);
        assert_eq!(send(0), Fate::Delivered { due_us: 100_000, twice: false });
        assert_eq!(send(0), Fate::Delivered { due_us: 150_000, twice: false });
        assert_eq!(send(0), Fate::Delivered { due_us: 200_000, twice: false });
        assert_eq!(send(1), Fate::QueueFull);
        assert_eq!(send(1_500_000), Fate::Outage);
        assert!(matches!(send(2_000_000), Fate::Delivered { .. }));
    }

    #[test]
    fn paths_over_a_bottleneck_share_its_queue_and_are_counted_apart() {
        let mut link = Link::new(100.0, Channel::Clean);
        (link.rate_kbps, link.queue_bytes) = (Some(16.0), 250);
        let links = PathLinks::Shared { bottleneck: Box::new(schedule(link)), paths: 3 };
        let mut emulator = Emulator::new(&links);
        let mut send = |at_us, path| {
            emulator.begin(1, 10);
            let route = PacketRoute { path, ..DOWN };
            emulator.handle_packet(at_us, route, 100, &[0; 100])
        };
        // 100 bytes take 50 ms at 16 kbit/s, whichever path they are of.
        assert_eq!(send(0, 1), Fate::Delivered { due_us: 100_000, twice: false });
        assert_eq!(send(10, 2), Fate::Delivered { due_us: 150_000, twice: false });
        assert_eq!(send(10, 1), Fate::Delivered { due_us: 200_000, twice: false });
        assert_eq!(send(10, 1), Fate::QueueFull);
        let down: Vec<_> = emulator.stats().into_iter().map(|[down, _]| down).collect();
        let counted = |path: usize| (down[path].packets, down[path].delivered_bytes);
        assert_eq!([counted(0), counted(1), counted(2)], [(0, 0), (2, 100), (0, 0)]);
    }

    #[test]
    fn corruption_spares_the_ip_header() {
        let mut packet = vec![0; 40];
        flip_bit(&mut packet, 12_345);
        assert_eq!(packet.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
        assert!(packet[..20].iter().all(|&byte| byte == 0));
        flip_bit(&mut packet[..10], 1);
    }
}
