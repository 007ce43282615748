//! Runtime of quinn: tokio, with drivers that run once per turn for all their wakeups, and a socket
//! that sends the datagrams of a turn together.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};

use super::gathering_socket::GatheringSocket;
use crate::after_ready_tasks::AfterReadyTasks;

/// tokio, for connections that the steps of an engine write to.
#[derive(Debug, Clone, Copy)]
pub struct TurnRuntime;

impl Runtime for TurnRuntime {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        TokioRuntime.new_timer(at)
    }

    /// Spawns a driver. A connection's driver is woken by each of its answers, and by the
    /// endpoint's driver for each packet; running it once per turn puts the data of all answers
    /// into one packet.
    fn spawn(&self, driver: Pin<Box<dyn Future<Output = ()> + Send>>) {
        tokio::spawn(AfterReadyTasks::new(driver));
    }

    fn wrap_udp_socket(&self, socket: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        Ok(GatheringSocket::start(socket)?)
    }

    fn now(&self) -> Instant {
        TokioRuntime.now()
    }
}
