//! Looks the name of a host up for all connections that wait for it.
//!
//! The system's look-up holds a thread until it returns, which takes tens of seconds where no DNS
//! server answers, however long ago the connection has been given up. With one at a time for each
//! host, a dead DNS server takes one thread and not all that there are for blocking work.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use hyper_util::client::legacy::connect::dns::Name;
use tokio::sync::oneshot;
use tower_service::Service;

/// Addresses of a host, or the reason why there are none.
type FoundAddresses = Result<Vec<SocketAddr>, String>;
/// Connections that wait for the look-up in progress; `None` while there is none.
type WaitingConnections = Mutex<Option<Vec<oneshot::Sender<FoundAddresses>>>>;

/// Looks up one host. Clones share the look-up in progress.
#[derive(Clone)]
pub(crate) struct HostLookUp {
    resolve: fn(&str) -> io::Result<Vec<SocketAddr>>,
    waiting: Arc<WaitingConnections>,
}

impl HostLookUp {
    /// Creates a look-up by the operating system. Asks nothing yet.
    pub(crate) fn system() -> Self {
        // The connector sets the port.
        Self::by(|host| Ok((host, 0).to_socket_addrs()?.collect()))
    }

    fn by(resolve: fn(&str) -> io::Result<Vec<SocketAddr>>) -> Self {
        Self { resolve, waiting: Arc::default() }
    }

    /// Joins the look-up of `host` in progress, or begins one.
    fn join(&self, host: &str) -> oneshot::Receiver<FoundAddresses> {
        let (sender, found) = oneshot::channel();
        // Its holders only push and take, which a panic cannot cut in half.
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *waiting {
            Some(others) => {
                others.retain(|other| !other.is_closed());
                others.push(sender);
            }
            None => {
                *waiting = Some(vec![sender]);
                let (one, host) = (self.clone(), host.to_owned());
                tokio::task::spawn_blocking(move || one.run(&host));
            }
        }
        found
    }

    /// Looks `host` up, and tells all that wait by then.
    fn run(&self, host: &str) {
        let found = (self.resolve)(host).map_err(|error| error.to_string());
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
        for one in waiting.into_iter().flatten() {
            let _ = one.send(found.clone());
        }
    }
}

impl Service<Name> for HostLookUp {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let found = self.join(name.as_str());
        Box::pin(async move {
            let lost = |_| Err("the look-up was lost".to_owned());
            let addresses = found.await.unwrap_or_else(lost);
            addresses.map(Vec::into_iter).map_err(io::Error::other)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    /// True while the DNS server does not answer.
    static IS_DEAD: AtomicBool = AtomicBool::new(true);
    static ASKED: AtomicUsize = AtomicUsize::new(0);

    fn ask(_: &str) -> io::Result<Vec<SocketAddr>> {
        ASKED.fetch_add(1, Ordering::Relaxed);
        while IS_DEAD.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(vec![here()])
    }

    fn here() -> SocketAddr {
        ([127, 0, 0, 1], 0).into()
    }

    /// Runs `test` where two threads do all blocking work.
    fn with_two_threads(test: impl Future<Output = ()>) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.max_blocking_threads(2).enable_time().build().unwrap().block_on(test);
    }

    #[test]
    fn a_dead_dns_server_takes_one_thread_and_all_hear_of_its_return() {
        let look_up = HostLookUp::by(ask);
        with_two_threads(async {
            let mut given_up: Vec<_> = (0..40).map(|_| look_up.join("name")).collect();
            let still_there = given_up.split_off(38);
            drop(given_up);
            let other_work = tokio::task::spawn_blocking(|| 7);
            let other_work = tokio::time::timeout(Duration::from_secs(20), other_work).await;
            assert_eq!(other_work.expect("a thread is free").unwrap(), 7);
            IS_DEAD.store(false, Ordering::Relaxed);
            for found in still_there {
                assert_eq!(found.await.unwrap(), Ok(vec![here()]));
            }
            assert_eq!(ASKED.load(Ordering::Relaxed), 1);
            assert_eq!(look_up.join("name").await.unwrap(), Ok(vec![here()]));
            assert_eq!(ASKED.load(Ordering::Relaxed), 2, "an answer is not kept");
        });
    }

    #[test]
    fn the_system_knows_this_machine_and_says_why_it_knows_no_other() {
        with_two_threads(async {
            let found = HostLookUp::system().join("localhost").await.unwrap().unwrap();
            assert!(found.iter().any(|address| address.ip().is_loopback()), "{found:?}");
            let nobody = HostLookUp::system().join("\0").await.unwrap();
            assert!(!nobody.unwrap_err().is_empty());
        });
    }
}
