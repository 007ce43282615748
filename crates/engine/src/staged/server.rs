//! A stage as a process of its own: connections in, work to one thread, results out.
//!
//! Threads that read connections put events into one bounded queue; the stage's thread takes
//! them one by one. There is one session at a time: a runner opens it and it ends when any
//! of its connections does. Whoever sends nonsense loses its connection, and with it the
//! session, never the process.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::link::{Closer, Connection, HANDSHAKE_LIMIT, Incoming, Outgoing, Shape, accept, dial};
use super::wire::{Format, Message, Open, Role, Totals};
use super::{BUSY, Key, Layers, MAX_GROUPS, Stage, StageError, Trust};

/// Most connections that are being proved at once; further ones wait in the listener.
const MAX_HANDSHAKES: usize = 32;
/// Events that may wait: each group's batch and what comes with it.
const QUEUED_EVENTS: usize = 4 * MAX_GROUPS;
/// A runner that was silent for so long is gone; it asks twice a second.
const SILENCE_LIMIT: Duration = Duration::from_secs(10);
/// The same before its first question: other stages are still getting ready.
const OPENING_LIMIT: Duration = Duration::from_secs(600);
/// Most stages of one model.
const MAX_STAGES: u16 = 256;

/// Makes layers of the sizes that a runner wants, or says why not. The second argument is
/// what it made the last time, to be used again where the sizes are the same.
pub type MakeLayers =
    Box<dyn FnMut(&Open, Option<Box<dyn Layers>>) -> Result<Box<dyn Layers>, String> + Send>;

/// A listening stage.
pub struct StageServer {
    listener: TcpListener,
    accepts: Trust,
    dials: Trust,
    make: MakeLayers,
}

/// The way to stop a stage that runs.
#[derive(Debug, Clone)]
pub struct StopHandle {
    events: SyncSender<Event>,
    stopping: Arc<AtomicBool>,
    address: SocketAddr,
}

impl StopHandle {
    /// Ends the session and the server, after the present native call.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        let _ = self.events.send(Event::Stop);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect_timeout(&self.address, HANDSHAKE_LIMIT);
    }
}

#[derive(Debug)]
enum Event {
    Arrived(Box<Connection>, Role, u64),
    Work(u64, Message, Instant),
    Lost(u64, StageError),
    Stop,
}

impl StageServer {
    /// A stage that accepts on `listener` whom it may trust.
    pub fn new(listener: TcpListener, trust: Trust, make: MakeLayers) -> Self {
        Self { listener, accepts: trust.clone(), dials: trust, make }
    }

    /// A stage in the runner's own process: `own` is known nowhere else, so links inside
    /// need no certificates; stages elsewhere are reached with `dials`.
    pub fn inside(listener: TcpListener, own: Key, dials: Trust, make: MakeLayers) -> Self {
        Self { listener, accepts: Trust::of_key(own), dials, make }
    }

    /// Serves sessions until the handle says stop, on this thread; `started` gets the handle.
    ///
    /// # Errors
    /// When the listener is broken.
    pub fn run(self, started: impl FnOnce(StopHandle)) -> io::Result<()> {
        let (events, inbox) = sync_channel(QUEUED_EVENTS);
        let stopping = Arc::new(AtomicBool::new(false));
        let address = self.listener.local_addr()?;
        let handle = StopHandle { events: events.clone(), stopping: stopping.clone(), address };
        let (listener, trust, accepting) = (self.listener, self.accepts.clone(), events.clone());
        let acceptor = thread::spawn(move || accept_all(&listener, &trust, &accepting, &stopping));
        started(handle);
        let mut driver = Driver {
            events,
            accepts: self.accepts,
            dials: self.dials,
            make: self.make,
            idle: None,
            session: None,
            totals: Totals::default(),
            sent_bytes: Arc::default(),
            since: Instant::now(),
        };
        driver.serve(&inbox);
        drop(inbox);
        acceptor.join().unwrap_or_else(|_| Err(io::Error::other("accepting panicked")))
    }
}

fn accept_all(
    listener: &TcpListener,
    trust: &Trust,
    events: &SyncSender<Event>,
    stopping: &AtomicBool,
) -> io::Result<()> {
    let handshakes = Arc::new(AtomicUsize::new(0));
    loop {
        let accepted = listener.accept();
        if stopping.load(Ordering::Relaxed) {
            return Ok(());
        }
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                thread::sleep(Duration::from_millis(50));
                continue;
            }
        };
        while handshakes.load(Ordering::Relaxed) >= MAX_HANDSHAKES {
            thread::sleep(Duration::from_millis(5));
        }
        handshakes.fetch_add(1, Ordering::Relaxed);
        let (trust, events, handshakes) = (trust.clone(), events.clone(), handshakes.clone());
        thread::spawn(move || {
            match accept(stream, &trust) {
                Ok((connection, role, session)) => {
                    let _ = events.send(Event::Arrived(Box::new(connection), role, session));
                }
                Err(error) => tracing::warn!(%error, "a connection was cut off"),
            }
            handshakes.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

/// One runner's work here.
struct Session {
    number: u64,
    open: Open,
    stage: Stage,
    format: Format,
    to_head: Outgoing,
    /// With its closer: dropping it ends the connection.
    to_next: Option<(Outgoing, Closer)>,
    /// The stage before, once it has come; the first stage is told by the runner itself.
    from_previous: Option<(Outgoing, Closer)>,
    heard: Arc<Mutex<Heard>>,
}

/// What the thread that answers the runner's questions shares with the stage's thread.
#[derive(Debug)]
struct Heard {
    last: Instant,
    limit: Duration,
    totals: Totals,
}

struct Driver {
    events: SyncSender<Event>,
    accepts: Trust,
    dials: Trust,
    make: MakeLayers,
    /// Layers of the session before.
    idle: Option<Box<dyn Layers>>,
    session: Option<Session>,
    /// Of sessions that have ended.
    totals: Totals,
    sent_bytes: Arc<AtomicU64>,
    since: Instant,
}

impl Driver {
    fn serve(&mut self, inbox: &Receiver<Event>) {
        loop {
            match inbox.recv_timeout(SILENCE_LIMIT / 4) {
                Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(Event::Arrived(connection, role, number)) => {
                    self.handle_arrival(*connection, role, number);
                }
                Ok(Event::Work(number, message, arrived)) => {
                    self.handle_work(number, message, arrived);
                }
                Ok(Event::Lost(number, error)) => self.handle_loss(number, &error),
                Err(RecvTimeoutError::Timeout) => self.end_if_silent(),
            }
        }
        self.end("the stage stops");
    }

    fn handle_arrival(&mut self, mut connection: Connection, role: Role, number: u64) {
        let outcome = match role {
            Role::Head => {
                self.end_if_silent();
                self.open(connection, number)
            }
            Role::Peer if self.expects_peer(number) => self.join(connection, number),
            Role::Peer => connection.send(&Message::Refused("no session expects you".into())),
        };
        if let Err(error) = outcome {
            tracing::warn!(%error, "a session was not opened");
        }
    }

    fn expects_peer(&self, number: u64) -> bool {
        self.session.as_ref().is_some_and(|session| {
            session.number == number && session.open.index > 0 && session.from_previous.is_none()
        })
    }

    /// Opens the session that a runner wants.
    fn open(&mut self, mut connection: Connection, number: u64) -> Result<(), StageError> {
        let Message::Open(open) = connection.receive(HANDSHAKE_LIMIT)? else {
            return Err(connection.incoming.protocol("a session that is not opened"));
        };
        if self.session.is_some() {
            return connection.send(&Message::Refused(BUSY.into()));
        }
        let made = check(&open).and_then(|()| (self.make)(&open, self.idle.take()));
        let layers = match made {
            Ok(layers) => layers,
            Err(why) => return connection.send(&Message::Refused(why)),
        };
        let stage = Stage::new(layers);
        let sizes = stage.sizes();
        let format = Format {
            dtype: open.dtype,
            width: sizes.width,
            batch_tokens: sizes.batch_tokens as usize,
        };
        let shape = shape(&open);
        let to_next = match self.dial_next(&open, number, format, shape) {
            Ok(to_next) => to_next,
            Err(error) => {
                self.idle = Some(stage.into_layers());
                return connection.send(&Message::Refused(error.to_string()));
            }
        };
        connection.send(&Message::Opened(sizes))?;
        let (incoming, to_head, closer) = connection.open(format, shape, &self.sent_bytes)?;
        let heard = Arc::new(Mutex::new(Heard {
            last: Instant::now(),
            limit: OPENING_LIMIT,
            totals: self.totals,
        }));
        let tells_work = open.index == 0;
        let control = Control { to_head: to_head.clone(), heard: heard.clone(), _closer: closer };
        self.read(number, incoming, tells_work, Some(control));
        tracing::info!(index = open.index, count = open.count, "a session begins");
        self.session = Some(Session {
            number,
            open: *open,
            stage,
            format,
            to_head,
            to_next,
            from_previous: None,
            heard,
        });
        Ok(())
    }

    fn dial_next(
        &self,
        open: &Open,
        number: u64,
        format: Format,
        shape: Shape,
    ) -> Result<Option<(Outgoing, Closer)>, StageError> {
        if open.index + 1 == open.count {
            return Ok(None);
        }
        let trust = if open.next_is_inside { &self.accepts } else { &self.dials };
        let connection = dial(&open.next, trust, Role::Peer, number)?;
        let (incoming, outgoing, closer) = connection.open(format, shape, &self.sent_bytes)?;
        self.read(number, incoming, false, None);
        Ok(Some((outgoing, closer)))
    }

    /// The stage before has connected.
    fn join(&mut self, connection: Connection, number: u64) -> Result<(), StageError> {
        let format = self.session.as_ref().expect("it expects a peer").format;
        let opened = connection.open(format, Shape::default(), &self.sent_bytes)?;
        let (incoming, outgoing, closer) = opened;
        self.read(number, incoming, true, None);
        let session = self.session.as_mut().expect("it expects a peer");
        session.from_previous = Some((outgoing, closer));
        Ok(())
    }

    /// Starts the thread that reads a connection of session `number`.
    fn read(
        &self,
        number: u64,
        mut incoming: Incoming,
        tells_work: bool,
        control: Option<Control>,
    ) {
        let events = self.events.clone();
        thread::spawn(move || {
            let error = loop {
                match (incoming.receive(), &control) {
                    (Ok(Message::Ping(number)), Some(control)) => control.answer(number),
                    (Ok(message), _) if tells_work && is_work(&message) => {
                        let event = Event::Work(number, message, Instant::now());
                        if events.send(event).is_err() {
                            return;
                        }
                    }
                    (Ok(Message::Refused(why)), _) => {
                        break StageError::Refused { peer: incoming.peer().to_owned(), why };
                    }
                    (Ok(_), _) => break incoming.protocol("a message out of place"),
                    (Err(error), _) => break error,
                }
            };
            let _ = events.send(Event::Lost(number, error));
        });
    }

    fn handle_work(&mut self, number: u64, message: Message, arrived: Instant) {
        let Some(session) = self.session.as_mut().filter(|session| session.number == number) else {
            return;
        };
        let Some(onward) = session.stage.handle(message, arrived) else { return };
        match (&session.to_next, &onward) {
            (None, _) | (_, Message::Done(_)) => session.to_head.send(onward),
            (Some((next, _)), _) => next.send(onward),
        }
        let mut totals = add(&self.totals, &session.stage.totals());
        totals.sent_bytes = self.sent_bytes.load(Ordering::Relaxed);
        totals.up_us = self.since.elapsed().as_micros() as u64;
        session.heard.lock().expect("nobody panics with it").totals = totals;
    }

    fn handle_loss(&mut self, number: u64, error: &StageError) {
        if self.session.as_ref().is_some_and(|session| session.number == number) {
            tracing::warn!(%error, "the session ends");
            self.end(&error.to_string());
        }
    }

    fn end_if_silent(&mut self) {
        let silent = self.session.as_ref().is_some_and(|session| {
            let heard = session.heard.lock().expect("nobody panics with it");
            heard.last.elapsed() > heard.limit
        });
        if silent {
            self.end("the runner has fallen silent");
        }
    }

    /// Ends the session and tells the runner why; keeps the layers for the next one.
    fn end(&mut self, why: &str) {
        if let Some(session) = self.session.take() {
            session.to_head.offer(Message::Refused(why.to_owned()));
            self.totals = add(&self.totals, &session.stage.totals());
            self.idle = Some(session.stage.into_layers());
        }
    }
}

/// How the runner's connection answers by itself.
struct Control {
    to_head: Outgoing,
    heard: Arc<Mutex<Heard>>,
    _closer: Closer,
}

impl Control {
    fn answer(&self, number: u64) {
        let mut heard = self.heard.lock().expect("nobody panics with it");
        (heard.last, heard.limit) = (Instant::now(), SILENCE_LIMIT);
        let totals = heard.totals;
        drop(heard);
        self.to_head.offer(Message::Pong(number, totals));
    }
}

fn is_work(message: &Message) -> bool {
    matches!(
        message,
        Message::Rows(_)
            | Message::Aborted { .. }
            | Message::Fork { .. }
            | Message::Truncate { .. }
            | Message::Assign { .. }
            | Message::Allow { .. }
            | Message::Wipe
    )
}

fn shape(open: &Open) -> Shape {
    Shape { delay: Duration::from_micros(open.delay_us.into()), bytes_per_s: open.bytes_per_s }
}

fn check(open: &Open) -> Result<(), String> {
    let sound = open.count <= MAX_STAGES
        && open.index < open.count
        && open.slots > 0
        && (1..=1 << 16).contains(&open.batch_tokens)
        && open.batch_tokens >= open.slots.into()
        && open.context_tokens > 1
        && open.kv_cells >= open.context_tokens
        && open.delay_us <= 10_000_000;
    if sound { Ok(()) } else { Err("impossible sizes".into()) }
}

fn add(a: &Totals, b: &Totals) -> Totals {
    Totals {
        batches: a.batches + b.batches,
        spans: a.spans + b.spans,
        busy_us: a.busy_us + b.busy_us,
        wait_us: a.wait_us + b.wait_us,
        longest_wait_us: a.longest_wait_us.max(b.longest_wait_us),
        most_spans: a.most_spans.max(b.most_spans),
        ..*a
    }
}
