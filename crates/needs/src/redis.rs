//! A Redis server for one test, which stops when the test ends.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::Need;

/// Time limit for a new server to answer.
const START_LIMIT: Duration = Duration::from_secs(60);

/// A running server that stores nothing on disk.
pub struct RedisServer {
    process: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl RedisServer {
    /// Starts a server on a free port. If none is installed, reports that and returns `None`.
    ///
    /// # Panics
    /// If the server does not start.
    #[must_use]
    pub fn start() -> Option<Self> {
        // Somebody else may take the port before the server does; then the next one is tried.
        for _ in 0..20 {
            let free = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
            let port = free.local_addr().expect("it is bound").port();
            drop(free);
            let folder = tempfile::tempdir().expect("a folder for temporary files");
            let started = Command::new("redis-server")
                .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--dir"])
                .arg(folder.path())
                .stdout(Stdio::null())
                .spawn();
            let Ok(process) = started else {
                Need::Redis.lack("redis-server is not installed (tools/setup e2e)");
                return None;
            };
            let mut server = Self { process, port, _folder: folder };
            if server.is_up() {
                return Some(server);
            }
        }
        panic!("no free port");
    }

    /// Returns the server's own address.
    #[must_use]
    pub fn socket_address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// Returns the server's address as clients take it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.socket_address())
    }

    /// Suspends the server, which then accepts connections and calls but answers none, or resumes
    /// it.
    ///
    /// # Panics
    /// If the server is gone.
    pub fn mute(&self, is_mute: bool) {
        let signal = if is_mute { "-STOP" } else { "-CONT" };
        let sent = Command::new("kill").args([signal, &self.process.id().to_string()]).status();
        assert!(sent.is_ok_and(|status| status.success()), "the server is gone");
    }

    /// Waits until the server answers; returns false if it exits instead.
    fn is_up(&mut self) -> bool {
        let begun = Instant::now();
        while self.process.try_wait().is_ok_and(|end| end.is_none()) {
            if answers(self.socket_address()) {
                return true;
            }
            assert!(begun.elapsed() < START_LIMIT, "redis-server does not answer");
            sleep(Duration::from_millis(10));
        }
        false
    }
}

/// Returns true if a server at `address` answers a PING.
fn answers(address: SocketAddr) -> bool {
    let Ok(mut socket) = TcpStream::connect(address) else { return false };
    let mut reply = [0; 7];
    socket.set_read_timeout(Some(Duration::from_secs(5))).is_ok()
        && socket.write_all(b"PING\r\n").is_ok()
        && socket.read_exact(&mut reply).is_ok()
        && &reply == b"+PONG\r\n"
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
