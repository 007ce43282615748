//! A UDP socket shared by many connections, whose datagrams are sent together at the end of a turn
//! of the runtime.

use std::future::Future;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll, Waker, ready};

use quinn::udp::{RecvMeta, Transmit, UdpSocketState};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio::io::Interest;
use tokio::net::UdpSocket;

use super::outbox::Outbox;
use crate::after_ready_tasks::AfterReadyTasks;

/// See the module's documentation.
#[derive(Debug)]
pub struct GatheringSocket {
    io: UdpSocket,
    state: UdpSocketState,
    queue: Mutex<GatheredDatagrams>,
}

/// Datagrams queued until the end of the turn, and the tasks waiting for them.
#[derive(Debug, Default)]
struct GatheredDatagrams {
    outbox: Outbox,
    /// Waker of the task that empties the outbox, while it sleeps because the outbox is empty.
    sender: Option<Waker>,
    /// Connections whose datagrams did not fit into the outbox.
    blocked: Vec<Waker>,
}

impl GatheringSocket {
    /// Wraps `socket`; a task on the current runtime sends the gathered datagrams.
    ///
    /// # Errors
    /// When the operating system refuses a socket option that QUIC needs.
    pub fn start(socket: std::net::UdpSocket) -> io::Result<Arc<Self>> {
        let state = UdpSocketState::new((&socket).into())?;
        let io = UdpSocket::from_std(socket)?;
        let socket = Arc::new(Self { io, state, queue: Mutex::default() });
        tokio::spawn(AfterReadyTasks::new(OutboxTask(Arc::downgrade(&socket))));
        Ok(socket)
    }

    /// Sends the gathered datagrams, and has the task of `context` woken when there are more.
    fn poll_send(&self, context: &mut Context<'_>) {
        let queue = &mut *self.queue();
        while self.send(queue).is_err() {
            if self.io.poll_send_ready(context).is_pending() {
                return;
            }
        }
        queue.sender = Some(context.waker().clone());
    }

    fn send(&self, queue: &mut GatheredDatagrams) -> io::Result<()> {
        let GatheredDatagrams { outbox, blocked, .. } = queue;
        if !outbox.is_empty() {
            self.io.try_io(Interest::WRITABLE, || outbox.send(&self.io, &self.state))?;
            blocked.drain(..).for_each(Waker::wake);
        }
        Ok(())
    }

    fn queue(&self) -> MutexGuard<'_, GatheredDatagrams> {
        self.queue.lock().expect("nothing panics under this lock")
    }
}

impl AsyncUdpSocket for GatheringSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(RoomPoller(self))
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let queue = &mut *self.queue();
        if queue.outbox.is_full() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        queue.outbox.push(transmit);
        if queue.outbox.has_enough() {
            // What the socket does not take now, the task sends when it does.
            let _ = self.send(queue);
        }
        if let Some(sender) = queue.sender.take_if(|_| !queue.outbox.is_empty()) {
            sender.wake();
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.io.poll_recv_ready(context))?;
            let mut received = None;
            // What fails is tried again once the socket is readable.
            let _ = self.io.try_io(Interest::READABLE, || {
                let count = self.state.recv((&self.io).into(), buffers, meta)?;
                received = Some(count);
                // Fewer than there was room for: asking again would find nothing, and what comes
                // from now on is reported.
                if count < buffers.len() { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
            });
            if let Some(count) = received {
                return Poll::Ready(Ok(count));
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.local_addr()
    }

    fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }

    fn max_transmit_segments(&self) -> usize {
        self.state.max_gso_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.state.gro_segments()
    }
}

impl Drop for GatheringSocket {
    /// Sends the connections' last datagrams, and ends the task.
    fn drop(&mut self) {
        let queue = self.queue.get_mut().expect("nothing panics under this lock");
        let _ = queue.outbox.send(&self.io, &self.state);
        if let Some(sender) = queue.sender.take() {
            sender.wake();
        }
    }
}

/// Task that sends the gathered datagrams.
struct OutboxTask(Weak<GatheringSocket>);

impl Future for OutboxTask {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(socket) = self.0.upgrade() else { return Poll::Ready(()) };
        socket.poll_send(context);
        Poll::Pending
    }
}

/// Notifies a connection when there is room for its datagrams.
#[derive(Debug)]
struct RoomPoller(Arc<GatheringSocket>);

impl UdpPoller for RoomPoller {
    fn poll_writable(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut queue = self.0.queue();
        if !queue.outbox.is_full() {
            return Poll::Ready(Ok(()));
        }
        if !queue.blocked.iter().any(|waker| waker.will_wake(context.waker())) {
            queue.blocked.push(context.waker().clone());
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use quinn::udp::EcnCodepoint;

    use super::*;

    /// Longer than any test waits.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn start(address: &str) -> Arc<GatheringSocket> {
        GatheringSocket::start(std::net::UdpSocket::bind((address, 0)).unwrap()).unwrap()
    }

    fn transmit(destination: SocketAddr, contents: &[u8]) -> Transmit<'_> {
        Transmit {
            destination,
            ecn: Some(EcnCodepoint::Ect0),
            contents,
            segment_size: None,
            src_ip: None,
        }
    }

    async fn receive(socket: &UdpSocket) -> (Vec<u8>, SocketAddr) {
        let mut contents = vec![0; 65536];
        let received = tokio::time::timeout(PATIENCE, socket.recv_from(&mut contents));
        let (bytes, from) = received.await.expect("a datagram").unwrap();
        contents.truncate(bytes);
        (contents, from)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn the_datagrams_of_a_turn_leave_with_one_system_call() {
        for address in ["127.0.0.1", "::1"] {
            if UdpSocket::bind((address, 0)).await.is_err() {
                loquent_needs::Need::Ipv6.lack(format!("this machine has no address {address}"));
                continue;
            }
            let socket = start(address);
            let from = socket.local_addr().unwrap();
            let mut readers = Vec::new();
            for _ in 0..40 {
                readers.push(UdpSocket::bind((address, 0)).await.unwrap());
            }
            for step in 1..=3 {
                let (sender, to): (_, Vec<_>) =
                    (socket.clone(), readers.iter().map(|one| one.local_addr().unwrap()).collect());
                // A task for each reader, on the thread that runs the connections.
                tokio::spawn(async move {
                    for to in to {
                        let sender = sender.clone();
                        tokio::spawn(async move {
                            let contents = [step; 80];
                            let source =
                                Transmit { src_ip: Some(from.ip()), ..transmit(to, &contents) };
                            sender.try_send(&source).unwrap();
                        });
                    }
                });
                for reader in &readers {
                    assert_eq!(receive(reader).await, (vec![step; 80], from));
                }
                let calls = socket.queue().outbox.calls;
                // One, or two where the runtime looked at the network amid the turn.
                let most = if cfg!(target_os = "linux") { 2 } else { 40 };
                assert!(calls <= most * usize::from(step), "{address}: {calls} calls");
            }
        }
    }

    #[tokio::test]
    async fn segments_of_one_peer_and_datagrams_of_others_all_arrive() {
        let socket = start("127.0.0.1");
        let (first, second) = (
            UdpSocket::bind("127.0.0.1:0").await.unwrap(),
            UdpSocket::bind("127.0.0.1:0").await.unwrap(),
        );
        let (one, two) = (first.local_addr().unwrap(), second.local_addr().unwrap());
        socket.try_send(&transmit(one, b"before")).unwrap();
        // Where the system has no segments, quinn never asks for them.
        if socket.max_transmit_segments() > 1 {
            let segments = Transmit { segment_size: Some(4), ..transmit(one, b"aaaabbbbcc") };
            socket.try_send(&segments).unwrap();
            socket.try_send(&Transmit { destination: two, ..segments }).unwrap();
        }
        socket.try_send(&transmit(two, b"after")).unwrap();
        let expected = match socket.max_transmit_segments() > 1 {
            true => vec!["before", "aaaa", "bbbb", "cc"],
            false => vec!["before"],
        };
        for contents in expected {
            assert_eq!(receive(&first).await.0, contents.as_bytes());
        }
        if socket.max_transmit_segments() > 1 {
            for contents in ["aaaa", "bbbb", "cc"] {
                assert_eq!(receive(&second).await.0, contents.as_bytes());
            }
        }
        assert_eq!(receive(&second).await.0, b"after");
    }

    #[tokio::test]
    async fn a_full_outbox_makes_connections_wait_and_loses_nothing_of_theirs() {
        let socket = start("127.0.0.1");
        // A peer that cannot be sent to keeps nobody: its datagrams are lost.
        let nowhere = "255.255.255.255:9".parse().unwrap();
        let reader = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let mut poller = socket.clone().create_io_poller();
        let contents = [7; 60_000];
        let mut taken = 0;
        while socket.try_send(&transmit(nowhere, &contents)).is_ok() {
            taken += 1;
            assert!(taken < 10, "the outbox is bounded");
        }
        let mut context = Context::from_waker(Waker::noop());
        assert!(poller.as_mut().poll_writable(&mut context).is_pending());
        // The task has its turn, and there is room.
        let room = std::future::poll_fn(|context| poller.as_mut().poll_writable(context));
        tokio::time::timeout(PATIENCE, room).await.expect("room").unwrap();
        let to = reader.local_addr().unwrap();
        socket.try_send(&transmit(to, b"and on")).unwrap();
        assert_eq!(receive(&reader).await.0, b"and on");
    }

    #[tokio::test]
    async fn last_words_leave_when_the_socket_is_dropped() {
        let (socket, reader) = (start("127.0.0.1"), UdpSocket::bind("127.0.0.1:0").await.unwrap());
        socket.try_send(&transmit(reader.local_addr().unwrap(), b"closing")).unwrap();
        drop(socket);
        assert_eq!(receive(&reader).await.0, b"closing");
    }
}
