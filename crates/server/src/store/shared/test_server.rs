//! A Redis server for one test, which stops when the test ends.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::address::SharedAddress;

/// A running server that stores nothing on disk.
pub struct RedisServer {
    process: Child,
    port: u16,
    _folder: tempfile::TempDir,
    /// Address of the server.
    pub address: SharedAddress,
}

impl RedisServer {
    /// Starts a server on a free port. If none is installed, reports that and returns `None`.
    pub async fn start() -> Option<Self> {
        // Somebody else may take the port before the server does; then the next one is tried.
        for _ in 0..20 {
            let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let port = free.local_addr().unwrap().port();
            drop(free);
            let folder = tempfile::tempdir().unwrap();
            let started = Command::new("redis-server")
                .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--dir"])
                .arg(folder.path())
                .stdout(Stdio::null())
                .spawn();
            let Ok(process) = started else {
                loquent_needs::Need::Redis.lack("redis-server is not installed (tools/setup e2e)");
                return None;
            };
            let address = SharedAddress::parse(&format!("redis://127.0.0.1:{port}")).unwrap();
            let mut server = Self { process, port, _folder: folder, address };
            if server.is_up().await {
                return Some(server);
            }
        }
        panic!("no free port");
    }

    /// Returns the server's own address.
    pub fn socket_address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// Suspends the server, which then accepts connections and calls but answers none, or resumes
    /// it.
    pub fn mute(&self, is_mute: bool) {
        let signal = if is_mute { "-STOP" } else { "-CONT" };
        let id = self.process.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }

    /// Waits until the server answers; returns false if it exits instead.
    async fn is_up(&mut self) -> bool {
        let begun = Instant::now();
        while self.process.try_wait().unwrap().is_none() {
            if self.address.client.get_multiplexed_async_connection().await.is_ok() {
                return true;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "redis-server does not answer");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        false
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
