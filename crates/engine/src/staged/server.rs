//! A stage as a process of its own: connections in, work to one thread, results out.
//!
//! Threads that read connections put events into one bounded queue; the stage's thread takes them
//! one by one. There is one session at a time: a runner opens it and it ends when any of its
//! connections does. A peer that violates the protocol loses its connection, and with it the
//! session, but never ends the process.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::connection::{
    CloseHandle, FrameReader, HANDSHAKE_LIMIT, LinkEmulation, MessageSender, QUEUE_MESSAGES,
    StageConnection, accept, dial,
};
use super::handshakes::{HandshakePermit, Handshakes, WarningLimit};
use super::wire::{DialerRole, OpenSession, RowFormat, StageMessage, StageTotals};
use super::{BUSY, Key, Layers, Stage, StageError, StageTrust};

/// Maximum events in the queue: each group's batch and the messages that come with it. Whoever puts
/// them there also answers pings, and must not wait for a long batch to end.
const QUEUED_EVENTS: usize = QUEUE_MESSAGES;
/// Maximum silence of a runner before it counts as gone; it pings twice a second.
const SILENCE_LIMIT: Duration = Duration::from_secs(10);
/// Same limit before its first ping, while it waits for other stages, which load their weights one
/// after the other.
const OPENING_LIMIT: Duration = Duration::from_secs(600);
/// Maximum stages of one model.
const MAX_STAGES: u16 = 256;

/// Makes layers of the sizes that a runner requests; the error is the reason for the runner. The
/// second argument is the layers of the last session, to be reused if the sizes are the same.
pub type MakeLayers =
    Box<dyn FnMut(&OpenSession, Option<Box<dyn Layers>>) -> Result<Box<dyn Layers>, String> + Send>;

/// A stage that listens for a runner and for the previous stage.
pub struct StageServer {
    listener: TcpListener,
    accepts: StageTrust,
    dials: StageTrust,
    make: MakeLayers,
}

/// Stops a running [`StageServer`] from another thread.
#[derive(Debug, Clone)]
pub struct StopHandle {
    events: SyncSender<StageEvent>,
    stopping: Arc<AtomicBool>,
    address: SocketAddr,
}

impl StopHandle {
    /// Ends the session and the server after the current native call.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        // It fails if the stage has ended by itself.
        let _ = self.events.send(StageEvent::Stop);
        // The accepting thread sees the flag only after a connection.
        let _ = TcpStream::connect_timeout(&self.address, HANDSHAKE_LIMIT);
    }
}

#[derive(Debug)]
enum StageEvent {
    Arrived(Box<StageConnection>, DialerRole, u64),
    Work(u64, StageMessage, Instant),
    Lost(u64, StageError),
    Stop,
}

impl StageServer {
    /// Creates a stage that accepts connections on `listener` from processes that `trust` allows.
    pub fn new(listener: TcpListener, trust: StageTrust, make: MakeLayers) -> Self {
        Self { listener, accepts: trust.clone(), dials: trust, make }
    }

    /// Creates a stage in the runner's own process. No other process knows `own`, so links within
    /// this one need no certificates; stages elsewhere are dialled with `dials`.
    pub fn inside(listener: TcpListener, own: Key, dials: StageTrust, make: MakeLayers) -> Self {
        Self { listener, accepts: StageTrust::of_key(own), dials, make }
    }

    /// Serves sessions on this thread until stopped by the handle passed to `started`.
    ///
    /// # Errors
    /// Error of the operating system if the listener does not work.
    pub fn run(self, started: impl FnOnce(StopHandle)) -> io::Result<()> {
        let (events, inbox) = sync_channel(QUEUED_EVENTS);
        let stopping = Arc::new(AtomicBool::new(false));
        let address = self.listener.local_addr()?;
        let handle = StopHandle { events: events.clone(), stopping: stopping.clone(), address };
        let (listener, trust, accepting) = (self.listener, self.accepts.clone(), events.clone());
        let acceptor = thread::spawn(move || accept_all(&listener, &trust, &accepting, &stopping));
        started(handle);
        let mut driver = StageDriver {
            events,
            accepts: self.accepts,
            dials: self.dials,
            make: self.make,
            idle: None,
            session: None,
            totals: StageTotals::default(),
            sent_bytes: Arc::default(),
            since: Instant::now(),
        };
        driver.serve(&inbox);
        // Threads that wait for room in the queue see its end, and end too.
        drop(inbox);
        acceptor.join().unwrap_or_else(|_| Err(io::Error::other("accepting panicked")))
    }
}

fn accept_all(
    listener: &TcpListener,
    trust: &StageTrust,
    events: &SyncSender<StageEvent>,
    stopping: &AtomicBool,
) -> io::Result<()> {
    let handshakes = Arc::new(Handshakes::default());
    let warnings = Arc::new(WarningLimit::default());
    loop {
        let accepted = listener.accept();
        if stopping.load(Ordering::Relaxed) {
            return Ok(());
        }
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn_of_stranger(&warnings, &error);
                // Mostly a lack of file descriptors: a pause keeps this from spinning.
                thread::sleep(Duration::from_millis(50));
                continue;
            }
        };
        // It fails if the other end has left already.
        let Ok(place) = handshakes.enter(&stream) else { continue };
        let (trust, events, warned) = (trust.clone(), events.clone(), warnings.clone());
        let greeting = move || greet(stream, &trust, &events, place, &warned);
        if let Err(error) = thread::Builder::new().name("handshake".into()).spawn(greeting) {
            warn_of_stranger(&warnings, &error);
        }
    }
}

/// Authenticates a new connection.
fn greet(
    stream: TcpStream,
    trust: &StageTrust,
    events: &SyncSender<StageEvent>,
    place: HandshakePermit,
    warnings: &WarningLimit,
) {
    match accept(stream, trust) {
        // Given back first: the queue may be full for as long as a batch takes.
        Ok((connection, role, session)) if place.finish() => {
            let _ = events.send(StageEvent::Arrived(Box::new(connection), role, session));
        }
        Ok(_) => {}
        Err(error) => warn_of_stranger(warnings, &error),
    }
}

fn warn_of_stranger(warnings: &WarningLimit, error: &dyn std::error::Error) {
    if let Some(left_out) = warnings.allow(Instant::now()) {
        tracing::warn!(%error, left_out, "a connection was cut off");
    }
}

/// A session with a runner.
struct StageSession {
    number: u64,
    index: u16,
    stage: Stage,
    format: RowFormat,
    to_runner: MessageSender,
    /// Includes the handle that closes the connection when dropped.
    to_next: Option<(MessageSender, CloseHandle)>,
    /// The previous stage, once it has connected. The first stage gets work from the runner.
    from_previous: Option<(MessageSender, CloseHandle)>,
    liveness: Arc<Mutex<RunnerLiveness>>,
}

/// Layers and the connection to the next stage, ready for a session.
struct PreparedSession {
    open: OpenSession,
    stage: Stage,
    format: RowFormat,
    to_next: Option<(MessageSender, CloseHandle)>,
}

/// Time of the runner's last ping, and the answer to its next one. Shared by the thread that
/// answers pings and the stage's thread.
#[derive(Debug)]
struct RunnerLiveness {
    last_ping: Instant,
    limit: Duration,
    totals: StageTotals,
}

/// The state of the stage's thread.
struct StageDriver {
    events: SyncSender<StageEvent>,
    accepts: StageTrust,
    dials: StageTrust,
    make: MakeLayers,
    /// Layers of the last session, kept because allocating a KV cache takes time.
    idle: Option<Box<dyn Layers>>,
    session: Option<StageSession>,
    /// Totals of sessions that have ended.
    totals: StageTotals,
    sent_bytes: Arc<AtomicU64>,
    since: Instant,
}

impl StageDriver {
    fn serve(&mut self, inbox: &Receiver<StageEvent>) {
        loop {
            match inbox.recv_timeout(SILENCE_LIMIT / 4) {
                Ok(StageEvent::Stop) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(StageEvent::Arrived(connection, role, number)) => {
                    self.handle_arrival(*connection, role, number);
                }
                Ok(StageEvent::Work(number, message, arrived)) => {
                    self.handle_work(number, message, arrived);
                }
                Ok(StageEvent::Lost(number, error)) => self.handle_loss(number, &error),
                Err(RecvTimeoutError::Timeout) => self.end_if_silent(),
            }
        }
        self.end("the stage stops");
    }

    fn handle_arrival(&mut self, mut connection: StageConnection, role: DialerRole, number: u64) {
        let outcome = match role {
            DialerRole::Runner => {
                // A runner that was killed may leave its session open; the next need not wait.
                self.end_if_silent();
                self.open(connection, number)
            }
            DialerRole::Peer if self.expects_peer(number) => {
                self.join(connection, number);
                Ok(())
            }
            DialerRole::Peer => {
                connection.send(&StageMessage::Refused("no session expects this connection".into()))
            }
        };
        if let Err(error) = outcome {
            tracing::warn!(%error, "a session was not opened");
        }
    }

    fn expects_peer(&self, number: u64) -> bool {
        self.session.as_ref().is_some_and(|session| {
            session.number == number && session.index > 0 && session.from_previous.is_none()
        })
    }

    /// Opens a session for a runner, or refuses it.
    fn open(&mut self, mut connection: StageConnection, number: u64) -> Result<(), StageError> {
        let StageMessage::Open(open) = connection.receive_within(HANDSHAKE_LIMIT)? else {
            return Err(connection.protocol_error("no request to open a session"));
        };
        if self.session.is_some() {
            return connection.send(&StageMessage::Refused(BUSY.into()));
        }
        match self.prepare(*open, number) {
            Ok(prepared) => self.begin(connection, number, prepared),
            Err(why) => connection.send(&StageMessage::Refused(why)),
        }
    }

    /// Makes the layers and connects to the next stage; the error is the reason to refuse.
    fn prepare(&mut self, open: OpenSession, number: u64) -> Result<PreparedSession, String> {
        check(&open)?;
        let stage = Stage::new((self.make)(&open, self.idle.take())?);
        let sizes = stage.sizes();
        let batch_tokens = sizes.batch_tokens as usize;
        let format = RowFormat { dtype: open.dtype, width: sizes.width, batch_tokens };
        match self.dial_next(&open, number, format) {
            Ok(to_next) => Ok(PreparedSession { open, stage, format, to_next }),
            Err(error) => {
                self.idle = Some(stage.into_layers());
                Err(error.to_string())
            }
        }
    }

    fn begin(
        &mut self,
        mut connection: StageConnection,
        number: u64,
        prepared: PreparedSession,
    ) -> Result<(), StageError> {
        let PreparedSession { open, stage, format, to_next } = prepared;
        // Only now: by this answer the runner knows that all later stages are connected too.
        connection.send(&StageMessage::Opened(stage.sizes()))?;
        let (reader, to_runner, closer) = connection.split(format, link(&open), &self.sent_bytes);
        let liveness = Arc::new(Mutex::new(RunnerLiveness {
            last_ping: Instant::now(),
            limit: OPENING_LIMIT,
            totals: self.totals,
        }));
        let control = ControlConnection {
            to_runner: to_runner.clone(),
            liveness: liveness.clone(),
            sent_bytes: self.sent_bytes.clone(),
            _closer: closer,
        };
        // The first stage has no previous one: its work comes from the runner.
        let carries_work = open.index == 0;
        self.read(number, reader, carries_work, Some(control));
        tracing::info!(index = open.index, count = open.count, "a session begins");
        self.session = Some(StageSession {
            number,
            index: open.index,
            stage,
            format,
            to_runner,
            to_next,
            from_previous: None,
            liveness,
        });
        Ok(())
    }

    fn dial_next(
        &self,
        open: &OpenSession,
        number: u64,
        format: RowFormat,
    ) -> Result<Option<(MessageSender, CloseHandle)>, StageError> {
        if open.index + 1 == open.count {
            return Ok(None);
        }
        let trust = if open.next_is_inside { &self.accepts } else { &self.dials };
        let connection = dial(&open.next, trust, DialerRole::Peer, number)?;
        let (reader, to_next, closer) = connection.split(format, link(open), &self.sent_bytes);
        // It is read only to notice its end, and a refusal.
        self.read(number, reader, false, None);
        Ok(Some((to_next, closer)))
    }

    /// Adds the connection of the previous stage to the session.
    fn join(&mut self, connection: StageConnection, number: u64) {
        let format = self.session.as_ref().expect("it expects a peer").format;
        // Nothing is sent on it, so there is no link to emulate.
        let link = LinkEmulation::default();
        let (reader, to_previous, closer) = connection.split(format, link, &self.sent_bytes);
        self.read(number, reader, true, None);
        let session = self.session.as_mut().expect("it expects a peer");
        session.from_previous = Some((to_previous, closer));
    }

    /// Starts the thread that reads a connection of session `number`. Work is accepted only if
    /// `carries_work` is true.
    fn read(
        &self,
        number: u64,
        mut reader: FrameReader,
        carries_work: bool,
        control: Option<ControlConnection>,
    ) {
        let events = self.events.clone();
        thread::spawn(move || {
            let error = loop {
                match (reader.receive(), &control) {
                    (Ok(StageMessage::Ping(number)), Some(control)) => control.answer(number),
                    (Ok(message), _) if carries_work && is_work(&message) => {
                        // A full queue blocks here, so TCP holds the sender back.
                        let event = StageEvent::Work(number, message, Instant::now());
                        if events.send(event).is_err() {
                            return;
                        }
                    }
                    (Ok(StageMessage::Refused(why)), _) => {
                        break StageError::Refused { peer: reader.peer().to_owned(), why };
                    }
                    (Ok(_), _) => break reader.protocol_error("a message out of place"),
                    (Err(error), _) => break error,
                }
            };
            let _ = events.send(StageEvent::Lost(number, error));
        });
    }

    fn handle_work(&mut self, number: u64, message: StageMessage, arrived: Instant) {
        // Work of a session that has ended may still be in the queue.
        let Some(session) = self.session.as_mut().filter(|session| session.number == number) else {
            return;
        };
        let Some(onward) = session.stage.handle(message, arrived) else { return };
        // The last stage answers the runner directly, past the other stages.
        match (&session.to_next, &onward) {
            (None, _) | (_, StageMessage::Done(_)) => session.to_runner.send(onward),
            (Some((next, _)), _) => next.send(onward),
        }
        // For the answer to the next ping, which another thread sends.
        let mut totals = add(&self.totals, &session.stage.totals());
        totals.up_us = self.since.elapsed().as_micros() as u64;
        session.liveness.lock().expect("no thread panics with this lock").totals = totals;
    }

    fn handle_loss(&mut self, number: u64, error: &StageError) {
        if self.session.as_ref().is_some_and(|session| session.number == number) {
            tracing::warn!(%error, "the session ends");
            self.end(&error.to_string());
        }
    }

    fn end_if_silent(&mut self) {
        let silent = self.session.as_ref().is_some_and(|session| {
            let liveness = session.liveness.lock().expect("no thread panics with this lock");
            liveness.last_ping.elapsed() > liveness.limit
        });
        if silent {
            self.end("the runner has stopped sending pings");
        }
    }

    /// Ends the session and sends the runner the reason; keeps the layers for the next session.
    fn end(&mut self, why: &str) {
        if let Some(session) = self.session.take() {
            // Not `send`: a runner that has stopped reading must not keep this stage.
            session.to_runner.offer(StageMessage::Refused(why.to_owned()));
            self.totals = add(&self.totals, &session.stage.totals());
            self.idle = Some(session.stage.into_layers());
        }
    }
}

/// Answers pings on the thread that reads the runner's connection, so that a long native call does
/// not look like a dead stage.
struct ControlConnection {
    to_runner: MessageSender,
    liveness: Arc<Mutex<RunnerLiveness>>,
    sent_bytes: Arc<AtomicU64>,
    _closer: CloseHandle,
}

impl ControlConnection {
    fn answer(&self, number: u64) {
        let mut liveness = self.liveness.lock().expect("no thread panics with this lock");
        (liveness.last_ping, liveness.limit) = (Instant::now(), SILENCE_LIMIT);
        let mut totals = liveness.totals;
        drop(liveness);
        // Counted by the writer threads, which may be behind the batch that the totals end with.
        totals.sent_bytes = self.sent_bytes.load(Ordering::Relaxed);
        self.to_runner.offer(StageMessage::Pong(number, totals));
    }
}

fn is_work(message: &StageMessage) -> bool {
    matches!(
        message,
        StageMessage::Rows(_)
            | StageMessage::Aborted { .. }
            | StageMessage::Fork { .. }
            | StageMessage::Truncate { .. }
            | StageMessage::Assign { .. }
            | StageMessage::Allow { .. }
            | StageMessage::Wipe
    )
}

fn link(open: &OpenSession) -> LinkEmulation {
    LinkEmulation {
        delay: Duration::from_micros(open.delay_us.into()),
        bytes_per_s: open.bytes_per_s,
    }
}

fn check(open: &OpenSession) -> Result<(), String> {
    // The runner proved the key, but a mistake of its version must not make this process panic.
    let sound = open.count <= MAX_STAGES
        && open.index < open.count
        && open.slots > 0
        && (1..=1 << 16).contains(&open.batch_tokens)
        && open.batch_tokens >= open.slots.into()
        && open.context_tokens > 1
        && open.kv_cells >= open.context_tokens
        && open.delay_us <= 10_000_000;
    if sound { Ok(()) } else { Err("sizes that no stage can have".into()) }
}

fn add(a: &StageTotals, b: &StageTotals) -> StageTotals {
    StageTotals {
        batches: a.batches + b.batches,
        spans: a.spans + b.spans,
        busy_us: a.busy_us + b.busy_us,
        wait_us: a.wait_us + b.wait_us,
        longest_wait_us: a.longest_wait_us.max(b.longest_wait_us),
        most_spans: a.most_spans.max(b.most_spans),
        ..*a
    }
}
