//! Limits on the number and duration of TCP connections.

use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Limits on TCP connections. Every wait for a client is bounded. The time limits of requests and
/// responses also apply to QUIC streams.
#[derive(Debug, Clone)]
pub struct TcpLimits {
    /// Maximum number of connections served at once. Those beyond it get an error.
    pub max_connections: usize,
    /// Maximum number of connections from one IPv4 address or one IPv6 /64. This machine's own
    /// address and trusted proxies are exempt, since many clients may be behind them.
    pub max_connections_per_address: usize,
    /// Time limit for a client's TLS handshake and first bytes, for the head of its first request,
    /// and for each body while it comes slower than [`Self::body_bytes_per_s`].
    pub request_timeout: Duration,
    /// Number of received body bytes that extend the time limit by one second.
    pub body_bytes_per_s: u64,
    /// Time limit for a connection without a request.
    pub idle_timeout: Duration,
    /// Maximum time for which a client may leave sent data unread. It should not be shorter than
    /// the time after which a slow reader's answer is ended, so that the answer can report that.
    pub write_timeout: Duration,
    /// Time limit for closing a connection when only its client is waited for.
    pub close_timeout: Duration,
    /// Time limit for a connection that arrived when all places were taken.
    pub reserve_timeout: Duration,
    /// Interval between pings to an HTTP/2 client, and the time limit for its reply.
    pub ping_interval: Duration,
    /// Maximum number of concurrent requests on one HTTP/2 connection.
    pub max_streams: u32,
}

impl TcpLimits {
    /// Returns the shortest time after which a connection may have to be closed.
    pub fn shortest(&self) -> Duration {
        self.request_timeout.min(self.idle_timeout).min(self.write_timeout)
    }
}

impl Default for TcpLimits {
    fn default() -> Self {
        Self {
            max_connections: 4096,
            max_connections_per_address: 1024,
            request_timeout: Duration::from_secs(30),
            body_bytes_per_s: 16 * 1024,
            idle_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(60),
            close_timeout: Duration::from_secs(2),
            reserve_timeout: Duration::from_secs(5),
            ping_interval: Duration::from_secs(20),
            max_streams: 100,
        }
    }
}

/// Deadline for the rest of a request's body. Received bytes extend it, but never beyond the
/// longest wait from now: what came fast earns no long silence, since it is held in memory
/// meanwhile.
pub struct BodyPace {
    due: Instant,
    longest_wait: Duration,
    bytes_per_s: u64,
}

impl BodyPace {
    /// Returns the deadline of a body whose request's head has just arrived.
    pub fn begin(limits: &TcpLimits) -> Self {
        let longest_wait = limits.request_timeout;
        let bytes_per_s = limits.body_bytes_per_s.max(1);
        Self { due: Instant::now() + longest_wait, longest_wait, bytes_per_s }
    }

    /// Returns the deadline.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// Notes that `bytes` have arrived.
    pub fn note(&mut self, bytes: usize) {
        let earned =
            Duration::from_micros((bytes as u64).saturating_mul(1_000_000) / self.bytes_per_s);
        self.due = (self.due + earned).min(Instant::now() + self.longest_wait);
    }

    /// Notes that the server has kept the client waiting since `since`.
    pub fn forgive(&mut self, since: Instant) {
        self.due += since.elapsed();
    }
}

/// Returns true if `address` belongs to this machine, from which local proxies connect.
pub fn is_this_machine(address: IpAddr) -> bool {
    // Of 127.0.0.0/8 only the address that programs use by themselves.
    let address = address.to_canonical();
    address == IpAddr::from([127, 0, 0, 1]) || address == IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1])
}
