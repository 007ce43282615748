//! What a TCP connection may take: places and time.

use std::net::IpAddr;
use std::time::Duration;

use crate::peer::TrustedProxies;

/// Bounds on TCP connections. Every wait for a client has one.
#[derive(Debug, Clone)]
pub struct TcpLimits {
    /// Connections served at once. Those beyond are told so.
    pub max_connections: usize,
    /// Connections from one IPv4 address or one IPv6 /64, except this machine's own address and
    /// proxies: behind those are many clients.
    pub max_connections_per_address: usize,
    /// The proxies.
    pub trusted_proxies: TrustedProxies,
    /// How long a client may take for its TLS handshake and first bytes, for the head of its
    /// first request, and for each body beyond what [`Self::body_bytes_per_s`] gives it.
    pub request_timeout: Duration,
    /// Received bytes of a body that give its sender one second more.
    pub body_bytes_per_s: u64,
    /// How long a connection may be without a request.
    pub idle_timeout: Duration,
    /// How long a client may leave what was sent to it unread. It should not be shorter than
    /// the time after which a slow reader's answer is ended, so that the answer can say so.
    pub write_timeout: Duration,
    /// How long connections may take to close when nothing but their clients is waited for.
    pub close_timeout: Duration,
    /// How long a connection that came when all places were taken may last.
    pub reserve_timeout: Duration,
    /// How often an HTTP/2 client is asked whether it is there, and how soon it must answer.
    pub ping_interval: Duration,
    /// Most requests at once on one HTTP/2 connection.
    pub max_streams: u32,
}

impl TcpLimits {
    /// The shortest time after which a connection may have to be closed.
    pub fn shortest(&self) -> Duration {
        self.request_timeout.min(self.idle_timeout).min(self.write_timeout)
    }
}

impl Default for TcpLimits {
    fn default() -> Self {
        Self {
            max_connections: 4096,
            max_connections_per_address: 1024,
            trusted_proxies: TrustedProxies::default(),
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

/// Whether `address` is that of this machine, from which local proxies connect.
pub fn is_this_machine(address: IpAddr) -> bool {
    // Of 127.0.0.0/8 only the address that programs use by themselves.
    let address = address.to_canonical();
    address == IpAddr::from([127, 0, 0, 1]) || address == IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1])
}
