//! Limits on the number and duration of TCP connections.

use std::net::IpAddr;
use std::time::Duration;

/// Limits on TCP connections. Every wait for a client is bounded.
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

/// Returns true if `address` belongs to this machine, from which local proxies connect.
pub fn is_this_machine(address: IpAddr) -> bool {
    // Of 127.0.0.0/8 only the address that programs use by themselves.
    let address = address.to_canonical();
    address == IpAddr::from([127, 0, 0, 1]) || address == IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1])
}
