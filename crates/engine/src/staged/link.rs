//! A connection between two processes: proof of the key, frames in, frames out.
//!
//! Reading is done by whoever owns [`Incoming`]; writing by a thread of its own behind a
//! bounded queue, so that computing never waits for the network, and so that an artificial
//! delay does not stop what follows.

use std::io::{BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use super::auth::challenge;
use super::tls::{self, Stream};
use super::wire::{Format, Malformed, Message, Role};
use super::{MAX_GROUPS, StageError, Trust};

/// How long a connection may take until its session is open, but for the loading of layers.
pub(super) const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// How long a write may block: the other end has stopped reading.
const WRITE_LIMIT: Duration = Duration::from_secs(20);
/// Messages that wait to be written: batches in flight and what happens between two.
const QUEUE_MESSAGES: usize = 64 * MAX_GROUPS;

/// How a TLS connection begins: a handshake record of version 3.
const TLS_HANDSHAKE: [u8; 2] = [22, 3];

/// An artificial link, for tests and measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shape {
    /// Added to every message, one way.
    pub delay: Duration,
    /// Bytes per second; 0 for no limit.
    pub bytes_per_s: u64,
}

/// The reading half.
#[derive(Debug)]
pub(super) struct Incoming {
    stream: BufReader<Stream>,
    peer: String,
    /// How the other end writes.
    pub(super) format: Format,
    frame: Vec<u8>,
}

impl Incoming {
    fn new(stream: Stream, peer: String) -> Self {
        let stream = BufReader::with_capacity(1 << 16, stream);
        Self { stream, peer, format: Format::CLOSED, frame: Vec::new() }
    }

    /// The other end's name in messages.
    pub(super) fn peer(&self) -> &str {
        &self.peer
    }

    /// Waits for the next message.
    ///
    /// # Errors
    /// [`StageError::Io`] when the connection ends, [`StageError::Protocol`] when what comes
    /// is no message. Of a frame only as many bytes are kept as have come.
    pub(super) fn receive(&mut self) -> Result<Message, StageError> {
        let mut len = [0; 4];
        self.stream.read_exact(&mut len).map_err(|source| self.broken(source))?;
        let is_tls = len.starts_with(&TLS_HANDSHAKE);
        let len = u32::from_le_bytes(len) as usize;
        if is_tls && len > self.format.frame_bytes() {
            return Err(self.protocol("it speaks TLS, and this end was started without"));
        }
        if len == 0 || len > self.format.frame_bytes() {
            return Err(self.protocol("a frame of an impossible length"));
        }
        self.frame.clear();
        let mut rest = (&mut self.stream).take(len as u64);
        let read = rest.read_to_end(&mut self.frame);
        read.map_err(|source| self.broken(source))?;
        if self.frame.len() < len {
            return Err(self.broken(std::io::ErrorKind::UnexpectedEof.into()));
        }
        let message = Message::decode(&self.frame, &self.format);
        message.map_err(|Malformed(what)| self.protocol(what))
    }

    /// The error of an end that sent what it must not.
    pub(super) fn protocol(&self, what: &str) -> StageError {
        StageError::Protocol { peer: self.peer.clone(), what: what.to_owned() }
    }

    fn broken(&self, source: std::io::Error) -> StageError {
        broken(&self.peer, source)
    }
}

/// The error of a connection that broke.
fn broken(peer: &str, source: std::io::Error) -> StageError {
    match tls::complaint(&source) {
        Some(what) => StageError::Tls { peer: peer.to_owned(), what },
        None => StageError::Io { peer: peer.to_owned(), source },
    }
}

/// The writing half.
#[derive(Debug, Clone)]
pub(super) struct Outgoing {
    queue: SyncSender<(Instant, Message)>,
}

impl Outgoing {
    /// Starts the thread that writes to `stream`; it counts what it writes in `sent_bytes`.
    /// When it cannot write, it closes the connection, which the reading half notices.
    fn start(stream: Stream, format: Format, shape: Shape, sent_bytes: Arc<AtomicU64>) -> Self {
        let (queue, messages) = sync_channel(QUEUE_MESSAGES);
        let writer = Writer { stream, format, shape, sent_bytes };
        thread::spawn(move || writer.run(&messages));
        Self { queue }
    }

    /// Sends `message`, waiting while the queue is full; lost when the connection is.
    pub(super) fn send(&self, message: Message) {
        let _ = self.queue.send((Instant::now(), message));
    }

    /// Sends `message` unless the queue is full.
    pub(super) fn offer(&self, message: Message) {
        match self.queue.try_send((Instant::now(), message)) {
            Ok(()) | Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
        }
    }
}

struct Writer {
    stream: Stream,
    format: Format,
    shape: Shape,
    sent_bytes: Arc<AtomicU64>,
}

impl Writer {
    fn run(mut self, messages: &Receiver<(Instant, Message)>) {
        let mut frame = Vec::new();
        let mut line_free = Instant::now();
        while let Ok((queued, message)) = messages.recv() {
            frame.clear();
            message.encode(&self.format, &mut frame);
            line_free = line_free.max(queued) + self.transmission(frame.len());
            thread::sleep((line_free + self.shape.delay).saturating_duration_since(Instant::now()));
            self.sent_bytes.fetch_add(frame.len() as u64, Ordering::Relaxed);
            if self.stream.write_all(&frame).is_err() {
                break;
            }
        }
        // The last messages (a refusal) still leave; the reading half sees the end.
        let _ = self.stream.finish();
    }

    fn transmission(&self, bytes: usize) -> Duration {
        match self.shape.bytes_per_s {
            0 => Duration::ZERO,
            rate => Duration::from_secs_f64(bytes as f64 / rate as f64),
        }
    }
}

/// A connection whose other end has proved itself.
#[derive(Debug)]
pub(super) struct Connection {
    stream: Stream,
    pub(super) incoming: Incoming,
}

impl Connection {
    fn new(stream: Stream, peer: String) -> Self {
        Self { incoming: Incoming::new(stream.clone(), peer), stream }
    }

    /// Sends `message` before the connection has a thread for that.
    pub(super) fn send(&mut self, message: &Message) -> Result<(), StageError> {
        let mut frame = Vec::new();
        message.encode(&Format::CLOSED, &mut frame);
        self.stream.write_all(&frame).map_err(|source| self.incoming.broken(source))
    }

    /// Waits for a message within `limit`.
    pub(super) fn receive(&mut self, limit: Duration) -> Result<Message, StageError> {
        let limited = self.stream.set_read_timeout(Some(limit));
        limited.map_err(|source| self.incoming.broken(source))?;
        match self.incoming.receive()? {
            Message::Refused(why) => {
                Err(StageError::Refused { peer: self.incoming.peer.clone(), why })
            }
            message => Ok(message),
        }
    }

    /// Parts the connection into its halves: from now on it waits without limit.
    pub(super) fn open(
        mut self,
        format: Format,
        shape: Shape,
        sent_bytes: &Arc<AtomicU64>,
    ) -> Result<(Incoming, Outgoing, Closer), StageError> {
        let unlimited = self.stream.set_read_timeout(None);
        unlimited.map_err(|source| self.incoming.broken(source))?;
        let closer = Closer(self.stream.clone());
        self.incoming.format = format;
        let outgoing = Outgoing::start(self.stream, format, shape, sent_bytes.clone());
        Ok((self.incoming, outgoing, closer))
    }
}

/// Ends a connection from anywhere; also when dropped.
#[derive(Debug)]
pub(super) struct Closer(Stream);

impl Closer {
    /// Both halves see the end.
    pub(super) fn close(&self) {
        // It may have ended by itself.
        let _ = self.0.close();
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        self.close();
    }
}

/// Sets what every connection has, before its first byte.
fn prepare(socket: &TcpStream) -> std::io::Result<()> {
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(HANDSHAKE_LIMIT))?;
    socket.set_write_timeout(Some(WRITE_LIMIT))
}

/// Connects to the stage that listens at `address`.
pub(super) fn dial(
    address: &str,
    trust: &Trust,
    role: Role,
    session: u64,
) -> Result<Connection, StageError> {
    let stream = connect(address, trust).map_err(|source| broken(address, source))?;
    let mut connection = Connection::new(stream, address.to_owned());
    let theirs = match connection.receive(HANDSHAKE_LIMIT)? {
        Message::Greeting(theirs) => theirs,
        _ => return Err(connection.incoming.protocol("no greeting")),
    };
    let ours = challenge().map_err(|source| broken(address, source))?;
    let purpose = purpose(role, session);
    let proof = trust.key.prove(&[b"dial", &purpose, &theirs]);
    connection.send(&Message::Hello { role, session, proof, challenge: ours })?;
    match connection.receive(HANDSHAKE_LIMIT)? {
        Message::Welcome(proof) if trust.key.verifies(&proof, &[b"accept", &purpose, &ours]) => {
            Ok(connection)
        }
        _ => Err(StageError::Key { peer: address.to_owned() }),
    }
}

fn connect(address: &str, trust: &Trust) -> std::io::Result<Stream> {
    let found = address.to_socket_addrs()?.next().ok_or(std::io::ErrorKind::NotFound)?;
    let socket = TcpStream::connect_timeout(&found, HANDSHAKE_LIMIT)?;
    prepare(&socket)?;
    match &trust.tls {
        None => Ok(Stream::plain(socket)),
        Some(tls) => tls.connect(socket, address),
    }
}

/// Receives whoever dialled; gives its role and session.
pub(super) fn accept(
    socket: TcpStream,
    trust: &Trust,
) -> Result<(Connection, Role, u64), StageError> {
    let peer = socket.peer_addr().map_or("unknown".into(), |address| address.to_string());
    let failed = |source| broken(&peer, source);
    prepare(&socket).map_err(failed)?;
    let _deadline = close_after(&socket, HANDSHAKE_LIMIT).map_err(failed)?;
    let stream = match &trust.tls {
        None => Stream::plain(socket),
        Some(_) if waits_for_us(&socket).map_err(failed)? => {
            let mut connection = Connection::new(Stream::plain(socket), peer.clone());
            connection.send(&Message::Refused("it takes TLS only (--stage-tls-cert)".into()))?;
            return Err(connection.incoming.protocol("it does not speak TLS"));
        }
        Some(tls) => tls.accept(socket).map_err(failed)?,
    };
    let mut connection = Connection::new(stream, peer.clone());
    let ours = challenge().map_err(failed)?;
    connection.send(&Message::Greeting(ours))?;
    let Message::Hello { role, session, proof, challenge } = connection.receive(HANDSHAKE_LIMIT)?
    else {
        return Err(connection.incoming.protocol("no hello"));
    };
    let purpose = purpose(role, session);
    if !trust.key.verifies(&proof, &[b"dial", &purpose, &ours]) {
        connection.send(&Message::Refused("the key is another".into()))?;
        return Err(StageError::Key { peer });
    }
    connection.send(&Message::Welcome(trust.key.prove(&[b"accept", &purpose, &challenge])))?;
    Ok((connection, role, session))
}

/// Closes the connection after `limit`, unless what is returned is dropped before. A limit for each
/// read would not do: somebody may send a byte at a time.
fn close_after(socket: &TcpStream, limit: Duration) -> std::io::Result<SyncSender<()>> {
    let socket = socket.try_clone()?;
    let (guard, dropped) = sync_channel(0);
    thread::Builder::new().name("deadline".into()).spawn(move || {
        if dropped.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            // It may have ended by itself.
            let _ = socket.shutdown(Shutdown::Both);
        }
    })?;
    Ok(guard)
}

/// Whether the other end says nothing: with TLS it speaks first, without it waits for a
/// greeting. It waits twice as long, and so can be told.
fn waits_for_us(socket: &TcpStream) -> std::io::Result<bool> {
    socket.set_read_timeout(Some(HANDSHAKE_LIMIT / 2))?;
    let heard = socket.peek(&mut [0]);
    socket.set_read_timeout(Some(HANDSHAKE_LIMIT))?;
    match heard {
        Ok(_) => Ok(false),
        // Which of them depends on the system.
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            Ok(true)
        }
        Err(error) => Err(error),
    }
}

/// What a proof is bound to.
fn purpose(role: Role, session: u64) -> [u8; 9] {
    let mut bytes = [u8::from(role == Role::Peer); 9];
    bytes[1..].copy_from_slice(&session.to_le_bytes());
    bytes
}
