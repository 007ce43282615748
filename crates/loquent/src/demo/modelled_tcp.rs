//! The simulator's TCP between real sockets, for machines where sending kernel TCP over a bad link
//! is not possible because it needs root.
//!
//! Each connection to the door is terminated here, and a new one is made to the server. Between the
//! two, the bytes travel as segments of the simulator's TCP, in UDP datagrams that the lossy relay
//! carries. Sender and receiver are the simulator's own, on the real clock, in both directions.
//! That TCP matches Linux's as far as thin streams notice: RACK-TLP, and CUBIC's window.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket as StdUdpSocket};
use std::rc::Rc;
use std::time::{Duration, Instant};

use loquent_sim::link::Link;
use loquent_sim::reader::ReaderBehaviour;
use loquent_sim::scheme::{DeliveryProgress, MAX_TEXT_BYTES, ReceiverEnd, Scheme, SenderEnd};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{mpsc, watch};
use tokio::task::LocalSet;

/// Maximum number of connections of one door; others are closed at once.
const MAX_CONNECTIONS: usize = 64;
/// Maximum segments in flight in one direction before reading pauses: a window of 300 kB.
const MAX_SEGMENTS_UNDER_WAY: usize = 256;
/// Maximum segments of one direction before it ends; the simulator has 65,536 packet numbers.
const MAX_SEGMENTS: usize = 60_000;
/// Maximum datagrams queued for one connection's task; more are lost, as in a full queue.
const MAX_WAITING: usize = 1024;
/// Time limit for a reader to accept the data that has arrived.
const WRITE_LIMIT: Duration = Duration::from_secs(30);
/// Buffer size, larger than any packet of the simulator's TCP with the head of a datagram.
const BUFFER_BYTES: usize = 2048;
/// Bytes of the connection number at the start of a datagram.
const NUMBER_BYTES: usize = 4;
/// Marks a sender's packet, or a receiver's.
const DATA: u8 = 0;
const ACK: u8 = 1;

/// Endpoints of one door's connections.
#[derive(Debug)]
pub struct ModelledDoor {
    /// Listener for clients.
    pub listener: std::net::TcpListener,
    /// Address of the relay for the client's end.
    pub relay: SocketAddr,
    /// Socket of the server's end, to which the relay sends.
    pub far_end: StdUdpSocket,
    /// Address of the server.
    pub server: SocketAddr,
}

/// Carries the connections of `doors` on a separate thread, until `link`'s sender is dropped.
/// Connections use the round-trip time that `link` has when they start.
///
/// # Errors
/// If the system has no thread or descriptor left.
pub fn start(doors: Vec<ModelledDoor>, link: watch::Receiver<Link>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for door in &doors {
        door.listener.set_nonblocking(true)?;
        door.far_end.set_nonblocking(true)?;
    }
    let body = move || {
        let local = LocalSet::new();
        let mut until = link.clone();
        for door in doors {
            let link = link.clone();
            local.spawn_local(async move {
                if let Err(error) = serve(door, link).await {
                    tracing::warn!("the modelled TCP has ended: {error}");
                }
            });
        }
        // The tasks end with the set.
        runtime.block_on(local.run_until(async { while until.changed().await.is_ok() {} }));
    };
    std::thread::Builder::new().name("modelled-tcp".into()).spawn(body)?;
    Ok(())
}

/// Datagrams for each connection at the server's end, by connection number.
type Arrivals = Rc<RefCell<HashMap<u32, mpsc::Sender<(SocketAddr, Vec<u8>)>>>>;

async fn serve(door: ModelledDoor, link: watch::Receiver<Link>) -> io::Result<()> {
    let listener = TcpListener::from_std(door.listener)?;
    let far_end = Rc::new(UdpSocket::from_std(door.far_end)?);
    let arrivals = Arrivals::default();
    tokio::task::spawn_local(hand_out(Rc::clone(&far_end), Rc::clone(&arrivals)));
    for number in 0.. {
        let Ok((client, _)) = listener.accept().await else {
            // Out of descriptors: wait until other connections close theirs.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        if arrivals.borrow().len() >= MAX_CONNECTIONS {
            // Dropping the socket closes it, which tells the client more than a wait would.
            continue;
        }
        let (sender, arriving) = mpsc::channel(MAX_WAITING);
        arrivals.borrow_mut().insert(number, sender);
        let (arrivals, far_end) = (Rc::clone(&arrivals), Rc::clone(&far_end));
        let (link, relay, server) = (link.borrow().clone(), door.relay, door.server);
        tokio::task::spawn_local(async move {
            let opened = Connection::open(number, client, &link, (relay, server), far_end).await;
            if let Ok(mut connection) = opened {
                // Both of its ends see it closed; there is nobody else to tell.
                let _ = connection.run(arriving).await;
            }
            arrivals.borrow_mut().remove(&number);
        });
    }
    Ok(())
}

/// Dispatches each datagram that reaches the server's end to its connection.
async fn hand_out(far_end: Rc<UdpSocket>, arrivals: Arrivals) {
    let mut buffer = [0; BUFFER_BYTES];
    loop {
        let Ok((len, from)) = far_end.recv_from(&mut buffer).await else { continue };
        let Some((number, rest)) = buffer[..len].split_first_chunk() else { continue };
        if let Some(connection) = arrivals.borrow().get(&u32::from_be_bytes(*number)) {
            // Waiting for one connection would hold up all others.
            let _ = connection.try_send((from, rest.to_vec()));
        }
    }
}

/// One direction of a connection: converts the bytes of a socket to segments, and back.
struct Stream {
    sender: Box<dyn SenderEnd>,
    receiver: Box<dyn ReceiverEnd>,
    from: OwnedReadHalf,
    to: OwnedWriteHalf,
    /// Number of segments read, the last one included.
    segments: usize,
    is_read_out: bool,
    is_closed: bool,
}

impl Stream {
    fn new(link: &Link, from: OwnedReadHalf, to: OwnedWriteHalf) -> Self {
        let ends = Scheme::TCP.ends(link, &ReaderBehaviour::default());
        let (sender, receiver) = ends.expect("only the oracle has no ends");
        Self { sender, receiver, from, to, segments: 0, is_read_out: false, is_closed: false }
    }

    fn may_read(&self) -> bool {
        let under_way = self.segments.saturating_sub(self.receiver.arrived());
        !self.is_read_out && under_way < MAX_SEGMENTS_UNDER_WAY
    }

    /// Handles bytes that were read; empty at the stream's end.
    fn handle_read(&mut self, now_us: u64, bytes: &[u8]) {
        self.segments += 1;
        // Out of numbers is the end as well: the client sees a cut answer and asks for the rest.
        self.is_read_out = bytes.is_empty() || self.segments >= MAX_SEGMENTS;
        self.sender.handle_token(now_us, bytes, self.is_read_out);
    }

    /// Writes the bytes that have arrived in order.
    async fn deliver(&mut self) -> io::Result<()> {
        let mut shown = Vec::new();
        self.receiver.take_shown(&mut shown);
        let writing = async {
            self.to.write_all(&shown).await?;
            if self.receiver.finished() && !self.is_closed {
                self.is_closed = true;
                self.to.shutdown().await?;
            }
            Ok(())
        };
        tokio::time::timeout(WRITE_LIMIT, writing).await?
    }

    fn handle_due_timers(&mut self, now_us: u64) {
        let due = |at_us: Option<u64>| at_us.is_some_and(|at_us| at_us <= now_us);
        if due(self.sender.poll_timeout()) {
            self.sender.handle_timeout(now_us);
        }
        if due(self.receiver.poll_timeout()) {
            self.receiver.handle_timeout(now_us);
        }
    }

    fn poll_timeout(&self) -> Option<u64> {
        [self.sender.poll_timeout(), self.receiver.poll_timeout()].into_iter().flatten().min()
    }

    fn is_over(&self) -> bool {
        match self.sender.progress() {
            DeliveryProgress::Active => false,
            DeliveryProgress::Complete => self.is_closed,
            DeliveryProgress::Suspended => true,
        }
    }
}

/// A connection with both ends, which are in this process.
struct Connection {
    number: u32,
    start: Instant,
    /// Streams from the client to the server, and back.
    up: Stream,
    down: Stream,
    near_end: UdpSocket,
    far_end: Rc<UdpSocket>,
    /// Source address of the client's datagrams; the relay has a socket for each client.
    peer: Option<SocketAddr>,
    datagram: Vec<u8>,
}

impl Connection {
    async fn open(
        number: u32,
        client: TcpStream,
        link: &Link,
        (relay, server): (SocketAddr, SocketAddr),
        far_end: Rc<UdpSocket>,
    ) -> io::Result<Self> {
        let near_end = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        near_end.connect(relay).await?;
        let server = TcpStream::connect(server).await?;
        // Nagle's algorithm would hold a token back until the one before is acknowledged.
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        // The handshake takes a round trip; losses would only make it longer.
        tokio::time::sleep(Duration::from_secs_f64(link.rtt_ms / 1e3)).await;
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        Ok(Self {
            number,
            start: Instant::now(),
            up: Stream::new(link, from_client, to_server),
            down: Stream::new(link, from_server, to_client),
            near_end,
            far_end,
            peer: None,
            datagram: Vec::with_capacity(BUFFER_BYTES),
        })
    }

    fn now_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    async fn run(&mut self, mut arriving: mpsc::Receiver<(SocketAddr, Vec<u8>)>) -> io::Result<()> {
        let (mut text, mut more, mut packet) =
            ([0; MAX_TEXT_BYTES], [0; MAX_TEXT_BYTES], [0; BUFFER_BYTES]);
        while !(self.up.is_over() && self.down.is_over()) {
            let now_us = self.now_us();
            self.up.handle_due_timers(now_us);
            self.down.handle_due_timers(now_us);
            self.transmit();
            let wake = self.wake_at();
            tokio::select! {
                read = self.up.from.read(&mut text), if self.up.may_read() => {
                    let now_us = self.now_us();
                    self.up.handle_read(now_us, &text[..read?]);
                }
                read = self.down.from.read(&mut more), if self.down.may_read() => {
                    let now_us = self.now_us();
                    self.down.handle_read(now_us, &more[..read?]);
                }
                received = self.near_end.recv(&mut packet) => {
                    // An error is that of an earlier datagram, which counts as lost.
                    let len = received.unwrap_or(0);
                    self.handle_packet(packet.get(NUMBER_BYTES..len), TcpSide::Client).await?;
                }
                Some((from, packet)) = arriving.recv() => {
                    // Anew each time, as the relay gives a client that was silent another socket.
                    self.peer = Some(from);
                    self.handle_packet(Some(&packet), TcpSide::Server).await?;
                }
                () = tokio::time::sleep_until(wake.into()) => {}
            }
        }
        Ok(())
    }

    /// Handles a packet, without its connection number, of a sender or a receiver.
    async fn handle_packet(&mut self, packet: Option<&[u8]>, side: TcpSide) -> io::Result<()> {
        let now_us = self.now_us();
        let Some((&kind, packet)) = packet.and_then(<[u8]>::split_first) else { return Ok(()) };
        match (side, kind) {
            (TcpSide::Client, DATA) => self.down.receiver.handle_packet(now_us, packet),
            (TcpSide::Server, DATA) => self.up.receiver.handle_packet(now_us, packet),
            (TcpSide::Client, _) => self.up.sender.handle_packet(now_us, packet),
            (TcpSide::Server, _) => self.down.sender.handle_packet(now_us, packet),
        }
        match side {
            TcpSide::Client => self.down.deliver().await,
            TcpSide::Server => self.up.deliver().await,
        }
    }

    /// Sends the pending packets of both ends.
    fn transmit(&mut self) {
        let now_us = self.now_us();
        let mut packet = Vec::new();
        while next(&mut packet, |out| self.up.sender.poll_transmit(now_us, out)) {
            self.send(TcpSide::Client, DATA, &packet);
        }
        while next(&mut packet, |out| self.down.receiver.poll_transmit(now_us, out)) {
            self.send(TcpSide::Client, ACK, &packet);
        }
        while next(&mut packet, |out| self.down.sender.poll_transmit(now_us, out)) {
            self.send(TcpSide::Server, DATA, &packet);
        }
        while next(&mut packet, |out| self.up.receiver.poll_transmit(now_us, out)) {
            self.send(TcpSide::Server, ACK, &packet);
        }
    }

    /// Sends a packet from one side to the other. A full socket drops it, as a full queue would.
    fn send(&mut self, from: TcpSide, kind: u8, packet: &[u8]) {
        self.datagram.clear();
        self.datagram.extend_from_slice(&self.number.to_be_bytes());
        self.datagram.push(kind);
        self.datagram.extend_from_slice(packet);
        let _ = match (from, self.peer) {
            (TcpSide::Client, _) => self.near_end.try_send(&self.datagram),
            (TcpSide::Server, Some(peer)) => self.far_end.try_send_to(&self.datagram, peer),
            // Before the client's first datagram there is no way back.
            (TcpSide::Server, None) => Ok(0),
        };
    }

    fn wake_at(&self) -> Instant {
        let timers = [self.up.poll_timeout(), self.down.poll_timeout()];
        let wake_us = timers.into_iter().flatten().min();
        self.start
            + wake_us.map_or(self.start.elapsed() + Duration::from_secs(1), Duration::from_micros)
    }
}

/// Polls for the next packet of a sender or receiver, which write into an empty buffer.
fn next(packet: &mut Vec<u8>, poll: impl FnOnce(&mut Vec<u8>) -> bool) -> bool {
    packet.clear();
    poll(packet)
}

/// An end of a connection.
#[derive(Debug, Clone, Copy)]
enum TcpSide {
    Client,
    Server,
}
