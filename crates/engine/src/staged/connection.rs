//! Connection between two processes: proof of the key, frames in, frames out.
//!
//! The caller's thread reads with a [`FrameReader`]. A separate thread behind a bounded queue
//! writes, so that computing never waits for the network, and so that an emulated delay does not
//! hold up the frames behind it.

use std::io::{BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::auth::challenge;
use super::places;
use super::tls::{self, StageStream};
use super::wire::{DialerRole, Malformed, RowFormat, StageMessage};
use super::{MAX_PIPELINE_DEPTH, StageError, StageTrust};

/// Time limit for a handshake, and then for the message that opens a session.
pub(super) const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// Time limit for a blocked write before the other end counts as one that has stopped reading.
const WRITE_LIMIT: Duration = Duration::from_secs(20);
/// Maximum messages that wait to be written. Between two batches of one group there may be a few
/// messages for each of its sequences (assign, allow, truncate, fork).
pub(super) const QUEUE_MESSAGES: usize = 64 * MAX_PIPELINE_DEPTH;

/// First bytes of a TLS connection: a handshake record of version 3.
const TLS_HANDSHAKE: [u8; 2] = [22, 3];

/// Delay and rate of an emulated link, for tests and measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinkEmulation {
    /// Delay of every message, one way.
    pub delay: Duration,
    /// Rate in bytes per second; 0 for no limit.
    pub bytes_per_s: u64,
}

/// The reading half of a connection.
#[derive(Debug)]
pub(super) struct FrameReader {
    stream: BufReader<StageStream>,
    peer: String,
    /// Row format of the other end.
    format: RowFormat,
    frame: Vec<u8>,
}

impl FrameReader {
    fn new(stream: StageStream, peer: String) -> Self {
        let stream = BufReader::with_capacity(1 << 16, stream);
        Self { stream, peer, format: RowFormat::CLOSED, frame: Vec::new() }
    }

    /// Name of the other end, for errors.
    pub(super) fn peer(&self) -> &str {
        &self.peer
    }

    /// Waits for the next message.
    ///
    /// # Errors
    /// [`StageError::Io`] if the connection ends, [`StageError::Protocol`] if the frame is not a
    /// message.
    pub(super) fn receive(&mut self) -> Result<StageMessage, StageError> {
        let len = self.frame_len()?;
        self.frame.clear();
        // `take` and `read_to_end` reserve memory as bytes come, and not for what `len` claims.
        let mut rest = (&mut self.stream).take(len as u64);
        let read = rest.read_to_end(&mut self.frame);
        read.map_err(|source| self.io_error(source))?;
        if self.frame.len() < len {
            return Err(self.io_error(ErrorKind::UnexpectedEof.into()));
        }
        let message = StageMessage::decode(&self.frame, &self.format);
        message.map_err(|Malformed(what)| self.protocol_error(what))
    }

    fn frame_len(&mut self) -> Result<usize, StageError> {
        let mut len = [0; 4];
        self.stream.read_exact(&mut len).map_err(|source| self.io_error(source))?;
        let is_tls = len.starts_with(&TLS_HANDSHAKE);
        let len = u32::from_le_bytes(len) as usize;
        let is_too_long = len > self.format.frame_bytes();
        if is_tls && is_too_long {
            // The likeliest cause by far, and the only one that the user can do something about.
            return Err(self.protocol_error("it uses TLS, and this process was started without"));
        }
        if len == 0 || is_too_long {
            return Err(self.protocol_error("a frame of an impossible length"));
        }
        Ok(len)
    }

    /// Creates the error of an end that sent `what` against the protocol.
    pub(super) fn protocol_error(&self, what: &str) -> StageError {
        StageError::Protocol { peer: self.peer.clone(), what: what.to_owned() }
    }

    fn io_error(&self, source: std::io::Error) -> StageError {
        io_error(&self.peer, source)
    }
}

/// Creates the error of a connection that broke.
fn io_error(peer: &str, source: std::io::Error) -> StageError {
    match tls::complaint(&source) {
        Some(what) => StageError::Tls { peer: peer.to_owned(), what },
        None => StageError::Io { peer: peer.to_owned(), source },
    }
}

/// A message and the time at which it was queued.
type QueuedMessage = (Instant, StageMessage);

/// The writing half of a connection: a queue to the thread that writes. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct MessageSender {
    /// `None` wakes the writer for `first`.
    queue: SyncSender<Option<QueuedMessage>>,
    /// Message that goes before those in the queue.
    first: Arc<Mutex<Option<QueuedMessage>>>,
}

impl MessageSender {
    /// Starts the thread that writes to `stream` and counts the bytes in `sent_bytes`. If it cannot
    /// write, it closes the connection, and the reading half sees the end.
    fn start(
        stream: StageStream,
        format: RowFormat,
        link: LinkEmulation,
        sent_bytes: Arc<AtomicU64>,
    ) -> Self {
        let (queue, messages) = sync_channel(QUEUE_MESSAGES);
        let first = Arc::<Mutex<Option<QueuedMessage>>>::default();
        let line_free = Instant::now();
        let writer = WriterThread { stream, format, link, sent_bytes, line_free };
        let urgent = first.clone();
        thread::spawn(move || writer.run(&messages, &urgent));
        Self { queue, first }
    }

    /// Sends `message`, waiting while the queue is full; drops it if the connection has ended.
    pub(super) fn send(&self, message: StageMessage) {
        // The reading half reports the end of the connection.
        let _ = self.queue.send(Some((Instant::now(), message)));
    }

    /// Sends `message` before all that wait in the queue, and in place of an earlier one that still
    /// does: rows of several batches may take a slow link longer than a stage may be silent.
    pub(super) fn send_first(&self, message: StageMessage) {
        let mut first = self.first.lock().expect("no thread panics with this lock");
        *first = Some((Instant::now(), message));
        drop(first);
        match self.queue.try_send(None) {
            // With a full queue the writer is awake.
            Ok(()) | Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
        }
    }

    /// Sends `message`, or drops it if the queue is full.
    pub(super) fn offer(&self, message: StageMessage) {
        match self.queue.try_send(Some((Instant::now(), message))) {
            Ok(()) | Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
        }
    }
}

struct WriterThread {
    stream: StageStream,
    format: RowFormat,
    link: LinkEmulation,
    sent_bytes: Arc<AtomicU64>,
    /// When an emulated link has sent all frames so far.
    line_free: Instant,
}

impl WriterThread {
    fn run(
        mut self,
        messages: &Receiver<Option<QueuedMessage>>,
        first: &Mutex<Option<QueuedMessage>>,
    ) {
        let mut frame = Vec::new();
        while let Ok(next) = messages.recv() {
            let urgent = first.lock().expect("no thread panics with this lock").take();
            let mut due = urgent.into_iter().chain(next);
            if !due.all(|message| self.write(message, &mut frame).is_ok()) {
                break;
            }
        }
        // Closing both directions at once could discard the last message, which may be a refusal
        // with its reason.
        let _ = self.stream.finish();
    }

    fn write(&mut self, message: QueuedMessage, frame: &mut Vec<u8>) -> std::io::Result<()> {
        let (queued, message) = message;
        frame.clear();
        message.encode(&self.format, frame);
        // The rate holds up the frames behind this one, the delay does not: that is why the delay
        // counts from the time at which the message was queued.
        self.line_free = self.line_free.max(queued) + self.transmission(frame.len());
        let arrives = self.line_free + self.link.delay;
        thread::sleep(arrives.saturating_duration_since(Instant::now()));
        self.sent_bytes.fetch_add(frame.len() as u64, Ordering::Relaxed);
        self.stream.write_all(frame)
    }

    fn transmission(&self, bytes: usize) -> Duration {
        match self.link.bytes_per_s {
            0 => Duration::ZERO,
            rate => Duration::from_secs_f64(bytes as f64 / rate as f64),
        }
    }
}

/// A connection whose other end has proved that it may use it.
#[derive(Debug)]
pub(super) struct StageConnection {
    stream: StageStream,
    reader: FrameReader,
}

/// A connection in use: both halves, and the handle that closes it.
pub(super) type ConnectionHalves = (FrameReader, MessageSender, CloseHandle);

impl StageConnection {
    fn new(stream: StageStream, peer: String) -> Self {
        Self { reader: FrameReader::new(stream.clone(), peer), stream }
    }

    /// Writes `message` on this thread: the connection has no writer thread yet.
    pub(super) fn send(&mut self, message: &StageMessage) -> Result<(), StageError> {
        let mut frame = Vec::new();
        message.encode(&RowFormat::CLOSED, &mut frame);
        self.stream.write_all(&frame).map_err(|source| self.reader.io_error(source))
    }

    /// Waits for a message; a refusal is an error.
    fn receive(&mut self) -> Result<StageMessage, StageError> {
        match self.reader.receive()? {
            StageMessage::Refused(why) => {
                Err(StageError::Refused { peer: self.reader.peer.clone(), why })
            }
            message => Ok(message),
        }
    }

    /// Waits at most `limit` for a message.
    pub(super) fn receive_within(&mut self, limit: Duration) -> Result<StageMessage, StageError> {
        let deadline = Deadline::start(self.stream.socket(), limit);
        let deadline = deadline.map_err(|source| self.reader.io_error(source))?;
        self.receive().map_err(|error| deadline.explain(error))
    }

    /// Creates the error of an end that sent `what` against the protocol.
    pub(super) fn protocol_error(&self, what: &str) -> StageError {
        self.reader.protocol_error(what)
    }

    /// Starts the writer thread and separates the two halves.
    pub(super) fn split(
        mut self,
        format: RowFormat,
        link: LinkEmulation,
        sent_bytes: &Arc<AtomicU64>,
    ) -> ConnectionHalves {
        let closer = CloseHandle(self.stream.clone());
        self.reader.format = format;
        let sender = MessageSender::start(self.stream, format, link, sent_bytes.clone());
        (self.reader, sender, closer)
    }
}

/// Closes a connection from any thread; also when dropped.
#[derive(Debug)]
pub(super) struct CloseHandle(StageStream);

impl CloseHandle {
    /// Closes both directions: both halves see the end.
    pub(super) fn close(&self) {
        // It fails if the other end has closed the connection already.
        let _ = self.0.close();
    }
}

impl Drop for CloseHandle {
    fn drop(&mut self) {
        self.close();
    }
}

/// Closes a socket after some time, unless dropped before. It limits a whole handshake, which a
/// limit for each read would not: a stranger may send a byte at a time.
struct Deadline {
    limit: Duration,
    has_expired: Arc<AtomicBool>,
    /// Dropping it ends the thread, which then closes nothing.
    _guard: SyncSender<()>,
}

impl Deadline {
    fn start(socket: &TcpStream, limit: Duration) -> std::io::Result<Self> {
        let socket = socket.try_clone()?;
        let (guard, dropped) = sync_channel(0);
        let has_expired = Arc::new(AtomicBool::new(false));
        let expired = has_expired.clone();
        thread::Builder::new().name("deadline".into()).spawn(move || {
            if dropped.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                expired.store(true, Ordering::Relaxed);
                // It fails if the other end has closed the connection already.
                let _ = socket.shutdown(Shutdown::Both);
            }
        })?;
        Ok(Self { limit, has_expired, _guard: guard })
    }

    /// Replaces the error that closing the socket caused: "end of file" would hide the cause.
    fn explain(&self, error: StageError) -> StageError {
        match error {
            StageError::Io { peer, .. } if self.has_expired.load(Ordering::Relaxed) => {
                let what = format!("no complete answer within {} s", self.limit.as_secs());
                StageError::Io { peer, source: std::io::Error::new(ErrorKind::TimedOut, what) }
            }
            error => error,
        }
    }
}

/// Sets the options of every socket, before its first byte.
fn prepare(socket: &TcpStream) -> std::io::Result<()> {
    // Batches are small and latency is all: nothing must wait for an acknowledgement.
    socket.set_nodelay(true)?;
    socket.set_write_timeout(Some(WRITE_LIMIT))
}

/// Connects to the stage that listens at `address`.
pub(super) fn dial(
    address: &str,
    trust: &StageTrust,
    role: DialerRole,
    session: u64,
) -> Result<StageConnection, StageError> {
    let failed = |source| io_error(address, source);
    let socket = connect(address).map_err(failed)?;
    check_plaintext(&socket, address, trust)?;
    let deadline = Deadline::start(&socket, HANDSHAKE_LIMIT).map_err(failed)?;
    let stream = match &trust.tls {
        None => Ok(StageStream::plain(socket)),
        Some(tls) => tls.connect(socket, places::name(address)),
    };
    let dialled = stream.map_err(failed).and_then(|stream| {
        let connection = StageConnection::new(stream, address.to_owned());
        introduce(connection, trust, role, session)
    });
    dialled.map_err(|error| deadline.explain(error))
}

fn check_plaintext(socket: &TcpStream, peer: &str, trust: &StageTrust) -> Result<(), StageError> {
    let address = socket.peer_addr().map_err(|source| io_error(peer, source))?;
    if trust.suits(address.ip()) {
        return Ok(());
    }
    let what = "it is on another machine, and prompts would go there unencrypted; set \
                --stage-tls-cert, or --stage-key and --stage-plaintext on a network that only you \
                can reach";
    Err(StageError::Tls { peer: peer.to_owned(), what: what.to_owned() })
}

/// Connects to the first of the places where a process listens.
fn connect(address: &str) -> std::io::Result<TcpStream> {
    let mut outcome = Err(ErrorKind::NotFound.into());
    for place in places::resolve(address)? {
        outcome = TcpStream::connect_timeout(&place, HANDSHAKE_LIMIT);
        if outcome.is_ok() {
            break;
        }
    }
    let socket = outcome?;
    prepare(&socket)?;
    Ok(socket)
}

/// The dialler's side of the handshake: each end proves that it knows the key.
fn introduce(
    mut connection: StageConnection,
    trust: &StageTrust,
    role: DialerRole,
    session: u64,
) -> Result<StageConnection, StageError> {
    let StageMessage::Greeting(theirs) = connection.receive()? else {
        return Err(connection.protocol_error("no greeting"));
    };
    let ours = challenge().map_err(|source| connection.reader.io_error(source))?;
    let purpose = purpose(role, session);
    let proof = trust.key.prove(&[b"dial", &purpose, &theirs]);
    connection.send(&StageMessage::Hello { role, session, proof, challenge: ours })?;
    match connection.receive()? {
        StageMessage::Welcome(proof)
            if trust.key.verifies(&proof, &[b"accept", &purpose, &ours]) =>
        {
            Ok(connection)
        }
        _ => Err(StageError::Key { peer: connection.reader.peer }),
    }
}

/// Accepts a connection; also returns the dialler's role and session.
pub(super) fn accept(
    socket: TcpStream,
    trust: &StageTrust,
) -> Result<(StageConnection, DialerRole, u64), StageError> {
    let peer = socket.peer_addr().map_or("unknown".into(), |address| address.to_string());
    let failed = |source| io_error(&peer, source);
    check_plaintext(&socket, &peer, trust)?;
    prepare(&socket).map_err(failed)?;
    let deadline = Deadline::start(&socket, HANDSHAKE_LIMIT).map_err(failed)?;
    let accepted = accept_stream(socket, &peer, trust).and_then(|stream| {
        let connection = StageConnection::new(stream, peer.clone());
        identify(connection, trust)
    });
    accepted.map_err(|error| deadline.explain(error))
}

fn accept_stream(
    socket: TcpStream,
    peer: &str,
    trust: &StageTrust,
) -> Result<StageStream, StageError> {
    let failed = |source| io_error(peer, source);
    let Some(tls) = &trust.tls else { return Ok(StageStream::plain(socket)) };
    if awaits_greeting(&socket).map_err(failed)? {
        let mut connection = StageConnection::new(StageStream::plain(socket), peer.to_owned());
        let why = "it takes TLS only; start this process with --stage-tls-cert";
        connection.send(&StageMessage::Refused(why.into()))?;
        return Err(connection.protocol_error("it does not speak TLS"));
    }
    tls.accept(socket).map_err(failed)
}

/// Returns true if the dialler is silent. With TLS the dialler speaks first, without TLS it waits
/// for a greeting; silence is all that distinguishes the two. Half of the limit leaves time for the
/// refusal.
fn awaits_greeting(socket: &TcpStream) -> std::io::Result<bool> {
    socket.set_read_timeout(Some(HANDSHAKE_LIMIT / 2))?;
    let peeked = socket.peek(&mut [0]);
    socket.set_read_timeout(None)?;
    match peeked {
        Ok(_) => Ok(false),
        // Which of the two a timeout is depends on the system.
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            Ok(true)
        }
        Err(error) => Err(error),
    }
}

/// The accepting side of the handshake: each end proves that it knows the key.
fn identify(
    mut connection: StageConnection,
    trust: &StageTrust,
) -> Result<(StageConnection, DialerRole, u64), StageError> {
    let ours = challenge().map_err(|source| connection.reader.io_error(source))?;
    connection.send(&StageMessage::Greeting(ours))?;
    let StageMessage::Hello { role, session, proof, challenge } = connection.receive()? else {
        return Err(connection.protocol_error("no hello"));
    };
    let purpose = purpose(role, session);
    if !trust.key.verifies(&proof, &[b"dial", &purpose, &ours]) {
        connection.send(&StageMessage::Refused("the key is another".into()))?;
        return Err(StageError::Key { peer: connection.reader.peer });
    }
    // Only now: a stranger gets no proof on which to try keys.
    let proof = trust.key.prove(&[b"accept", &purpose, &challenge]);
    connection.send(&StageMessage::Welcome(proof))?;
    Ok((connection, role, session))
}

/// Role and session as bytes: a proof holds for this purpose only and cannot be replayed.
fn purpose(role: DialerRole, session: u64) -> [u8; 9] {
    let mut bytes = [u8::from(role == DialerRole::Peer); 9];
    bytes[1..].copy_from_slice(&session.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    //! A deadline closes a silent connection and names the reason; a dropped one does nothing.
    use std::net::TcpListener;

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let dialled = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (dialled, listener.accept().unwrap().0)
    }

    fn connection(socket: TcpStream) -> StageConnection {
        StageConnection::new(StageStream::plain(socket), "the peer".into())
    }

    #[test]
    fn a_deadline_ends_a_silent_connection_with_the_reason() {
        let (ours, _theirs) = pair();
        let error = connection(ours).receive_within(Duration::from_millis(20)).unwrap_err();
        let StageError::Io { peer, source } = error else { panic!("{error:?}") };
        assert_eq!((peer.as_str(), source.kind()), ("the peer", ErrorKind::TimedOut));
        assert!(source.to_string().contains("no complete answer"), "{source}");
    }

    #[test]
    fn a_deadline_that_was_met_leaves_the_connection_open() {
        let ((ours, theirs), limit) = (pair(), Duration::from_millis(200));
        let (mut ours, mut theirs) = (connection(ours), connection(theirs));
        theirs.send(&StageMessage::Wipe).unwrap();
        assert_eq!(ours.receive_within(limit).unwrap(), StageMessage::Wipe);
        thread::sleep(2 * limit);
        theirs.send(&StageMessage::Ping(7)).unwrap();
        assert_eq!(ours.receive().unwrap(), StageMessage::Ping(7));
    }
}
