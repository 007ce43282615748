//! All open QUIC connections, as shown by the dashboard, with packet loss and round-trip times.

pub mod arrivals;

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use slab::Slab;

use crate::quic_links::arrivals::Arrivals;
use loquent_serving::metrics::StreamCarrier;

/// Packet loss and round-trip times of one kind of connection.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LinkStats {
    /// Open connections.
    pub open: usize,
    /// Packets sent since the start, including closed connections.
    pub sent: u64,
    /// Packets lost, of those sent.
    pub lost: u64,
    /// Median of the open connections' smoothed round-trip times; `None` without connections.
    pub rtt_p50: Option<Duration>,
    /// 95th percentile of the smoothed round-trip times.
    pub rtt_p95: Option<Duration>,
}

/// Open connections of a server, and the latest handshakes.
#[derive(Debug, Default)]
pub struct QuicLinks {
    /// Latest handshakes and their addresses.
    pub arrivals: Arrivals,
    links: Mutex<Links>,
}

#[derive(Debug, Default)]
struct Links {
    open: Slab<(StreamCarrier, quinn::Connection)>,
    closed: Vec<(StreamCarrier, PacketCounts)>,
}

#[derive(Debug, Clone, Copy, Default)]
struct PacketCounts {
    sent: u64,
    lost: u64,
}

/// A connection that is watched until this guard is dropped.
#[derive(Debug)]
pub struct WatchedLink {
    links: Arc<QuicLinks>,
    at: usize,
}

impl QuicLinks {
    /// Watches `connection` until the guard is dropped.
    pub fn enter(
        self: &Arc<Self>,
        transport: StreamCarrier,
        connection: quinn::Connection,
    ) -> WatchedLink {
        let at = self.links().open.insert((transport, connection));
        WatchedLink { links: self.clone(), at }
    }

    /// Returns the statistics of all connections of the kind `transport`.
    pub fn figures(&self, transport: StreamCarrier) -> LinkStats {
        // Each connection has a lock of its own, which is not asked for under this one.
        let (open, mut counts) = {
            let links = self.links();
            let of_kind = links.open.iter().filter(|(_, link)| link.0 == transport);
            let open: Vec<_> = of_kind.map(|(_, link)| link.1.clone()).collect();
            (open, links.closed_counts(transport))
        };
        let mut rtts = Vec::with_capacity(open.len());
        for connection in &open {
            let path = connection.stats().path;
            counts = counts.and(path.sent_packets, path.lost_packets);
            rtts.push(path.rtt);
        }
        rtts.sort_unstable();
        let at =
            |share: f64| rtts.get(((rtts.len() as f64 - 1.0) * share).round() as usize).copied();
        let (rtt_p50, rtt_p95) = (at(0.5), at(0.95));
        LinkStats { open: open.len(), sent: counts.sent, lost: counts.lost, rtt_p50, rtt_p95 }
    }

    fn links(&self) -> MutexGuard<'_, Links> {
        self.links.lock().expect("nothing panics under this lock")
    }
}

impl Links {
    fn closed_counts(&self, transport: StreamCarrier) -> PacketCounts {
        let found = self.closed.iter().find(|(kind, _)| *kind == transport);
        found.map(|(_, counts)| *counts).unwrap_or_default()
    }

    fn note_closed(&mut self, transport: StreamCarrier, sent: u64, lost: u64) {
        let counts = self.closed_counts(transport).and(sent, lost);
        self.closed.retain(|(kind, _)| *kind != transport);
        self.closed.push((transport, counts));
    }
}

impl PacketCounts {
    const fn and(self, sent: u64, lost: u64) -> Self {
        Self { sent: self.sent + sent, lost: self.lost + lost }
    }
}

impl Drop for WatchedLink {
    fn drop(&mut self) {
        let (transport, connection) = self.links.links().open.remove(self.at);
        let path = connection.stats().path;
        self.links.links().note_closed(transport, path.sent_packets, path.lost_packets);
    }
}
