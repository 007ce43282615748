//! The runner's connections to the stages: opened, watched, opened again.
//!
//! A thread keeps the session: it connects to all stages, the last first, so that each
//! finds the next one ready; asks them twice a second whether they are there; and starts
//! again when one is not. All KV is lost with a session.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use loquent_infer::remote::{BatchTimes, RemoteFigures, RemoteStages, StageFigures};

use super::auth::challenge;
use super::link::{Closer, Connection, Incoming, Outgoing, Shape, dial};
use super::stays::History;
use super::wire::{Done, Dtype, Format, Lap, Message, Open, Role, Totals};
use super::{BUSY, Key, StageError, StageSizes, Trust};
use crate::KvType;

/// How often stages are asked.
const PING_EVERY: Duration = Duration::from_millis(500);
/// How long a stage may take to make its layers ready.
const LOAD_LIMIT: Duration = Duration::from_secs(300);
/// Pauses between attempts to connect.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// What the runner wants of the stages.
#[derive(Debug, Clone)]
pub struct HeadOptions {
    /// Where they listen, `host:port`, in the order of their layers.
    pub addresses: Vec<String>,
    /// So many of the first are in this process: links to them are never artificial.
    pub own_stages: usize,
    /// What those are reached with.
    pub own_key: Key,
    /// What the others are reached with.
    pub trust: Trust,
    /// How hidden states travel.
    pub dtype: Dtype,
    /// Sequences with KV at once.
    pub slots: u16,
    /// KV cells of all slots together.
    pub kv_cells: u32,
    /// Longest sequence in tokens.
    pub context_tokens: u32,
    /// Most rows in one batch.
    pub batch_tokens: u32,
    /// Element type of the KV caches.
    pub kv_type: KvType,
    /// Artificial links.
    pub shape: Shape,
    /// A stage that does not answer for so long is lost.
    pub stall_limit: Duration,
    /// A batch that is not back after so long means that a stage is stuck.
    pub batch_limit: Duration,
}

/// The stages as one, seen from outside the engine's thread. Clones are the same.
#[derive(Clone)]
pub struct Cluster(Arc<Shared>);

struct Shared {
    options: HeadOptions,
    state: Mutex<State>,
    changed: Condvar,
    wake: Mutex<Option<Box<dyn Fn() + Send + Sync>>>,
    sent_bytes: Arc<AtomicU64>,
}

struct State {
    session: Option<Arc<Session>>,
    outage: String,
    /// Of the first session; later ones must have the same.
    sizes: Vec<StageSizes>,
    watched: Vec<Watched>,
    hop: Duration,
    groups: usize,
    history: History,
    is_stopped: bool,
}

/// What is known of a stage.
#[derive(Debug, Clone, Copy)]
struct Watched {
    heard: Instant,
    totals: Totals,
    round_trip: Duration,
}

/// One life of the connections.
pub(super) struct Session {
    started: Instant,
    /// To the stages, in order.
    links: Vec<Outgoing>,
    closers: Vec<Closer>,
    mailbox: Mutex<Mailbox>,
    arrived: Condvar,
}

#[derive(Default)]
struct Mailbox {
    done: VecDeque<Done>,
    /// Why the session ended.
    lost: Option<String>,
    /// When the oldest batch in flight was submitted.
    waiting_since: Option<Instant>,
}

impl Session {
    /// Sends `message` down the stages.
    pub(super) fn send(&self, message: Message) {
        self.links[0].send(message);
    }

    /// Notes since when the oldest batch is in flight.
    pub(super) fn expect(&self, since: Option<Instant>) {
        self.lock().waiting_since = since;
    }

    /// The next answer; an error when the session has ended.
    pub(super) fn try_next(&self) -> Result<Option<Done>, String> {
        let mut mailbox = self.lock();
        match (mailbox.done.pop_front(), &mailbox.lost) {
            (Some(done), _) => Ok(Some(done)),
            (None, None) => Ok(None),
            (None, Some(why)) => Err(why.clone()),
        }
    }

    /// Waits until [`Session::try_next`] has something.
    pub(super) fn wait(&self) {
        let mailbox = self.lock();
        let idle = |mailbox: &mut Mailbox| mailbox.done.is_empty() && mailbox.lost.is_none();
        drop(self.arrived.wait_while(mailbox, idle).expect("nobody panics with it"));
    }

    fn lock(&self) -> MutexGuard<'_, Mailbox> {
        self.mailbox.lock().expect("nobody panics with it")
    }
}

impl Cluster {
    /// Connects to the stages, however long it takes them to be there; `report` hears why it
    /// is not done yet.
    ///
    /// # Errors
    /// What waiting cannot cure: another key, a refusal, stages that do not make a model.
    pub fn connect(
        options: HeadOptions,
        mut report: impl FnMut(&StageError),
    ) -> Result<Self, StageError> {
        assert!(!options.addresses.is_empty(), "a model has stages");
        let state = State {
            session: None,
            outage: "the stages are not connected yet".into(),
            sizes: Vec::new(),
            watched: Vec::new(),
            hop: Duration::ZERO,
            groups: 1,
            history: History::default(),
            is_stopped: false,
        };
        let cluster = Self(Arc::new(Shared {
            options,
            state: Mutex::new(state),
            changed: Condvar::new(),
            wake: Mutex::new(None),
            sent_bytes: Arc::default(),
        }));
        let mut pause = RETRY.0;
        while let Err(error) = cluster.open() {
            let may_pass = match &error {
                StageError::Io { .. } | StageError::Stalled { .. } => true,
                StageError::Refused { why, .. } => why == BUSY,
                _ => false,
            };
            if !may_pass {
                return Err(error);
            }
            report(&error);
            thread::sleep(pause);
            pause = (pause * 2).min(RETRY.1);
        }
        let keeper = cluster.clone();
        thread::Builder::new()
            .name("stages".into())
            .spawn(move || keeper.keep())
            .map_err(|source| StageError::Io { peer: "this process".into(), source })?;
        Ok(cluster)
    }

    /// What the stages hold, in order.
    pub fn sizes(&self) -> Vec<StageSizes> {
        self.lock().sizes.clone()
    }

    /// Ends the session and does not begin another.
    pub fn stop(&self) {
        self.lock().is_stopped = true;
        self.0.changed.notify_all();
        if let Some(session) = self.session() {
            self.lose(&session, "the server stops".into());
        }
    }

    /// The present session.
    pub(super) fn session(&self) -> Option<Arc<Session>> {
        self.lock().session.clone()
    }

    /// `wake` is called when an answer has come or the session has ended.
    pub(super) fn on_arrival(&self, wake: Box<dyn Fn() + Send + Sync>) {
        *self.0.wake.lock().expect("nobody panics with it") = Some(wake);
    }

    /// For metrics and traces: a batch that came back, its mean delay on a hop, and the batches
    /// that may be in flight now.
    pub(super) fn note(&self, trace: Vec<Lap>, hop: Duration, groups: usize) {
        let mut state = self.lock();
        (state.hop, state.groups) = (hop, groups);
        state.history.note(Instant::now(), trace, hop);
    }

    /// Ends `session`, because of `why`.
    pub(super) fn lose(&self, session: &Arc<Session>, why: String) {
        {
            let mut mailbox = session.lock();
            if mailbox.lost.is_some() {
                return;
            }
            mailbox.lost = Some(why.clone());
        }
        session.closers.iter().for_each(Closer::close);
        session.arrived.notify_all();
        let mut state = self.lock();
        if state.session.as_ref().is_some_and(|current| Arc::ptr_eq(current, session)) {
            tracing::warn!("the stages are lost: {why}");
            state.session = None;
            state.outage = why;
        }
        drop(state);
        self.0.changed.notify_all();
        self.wake();
    }

    fn wake(&self) {
        if let Some(wake) = &*self.0.wake.lock().expect("nobody panics with it") {
            wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().expect("nobody panics with it")
    }

    /// Watches the session and opens a new one when it has ended.
    fn keep(&self) {
        let mut pause = RETRY.0;
        loop {
            let state = self.lock();
            let wait = if state.session.is_some() { PING_EVERY } else { pause };
            let (state, _) =
                self.0.changed.wait_timeout(state, wait).expect("nobody panics with it");
            if state.is_stopped {
                return;
            }
            let session = state.session.clone();
            drop(state);
            match session {
                Some(session) => {
                    pause = RETRY.0;
                    self.watch(&session);
                }
                None => {
                    if let Err(error) = self.open() {
                        self.lock().outage = error.to_string();
                        pause = (pause * 2).min(RETRY.1);
                    } else {
                        tracing::info!("the stages are connected again");
                    }
                }
            }
        }
    }

    /// Asks every stage, and ends the session when one is silent or stuck.
    fn watch(&self, session: &Arc<Session>) {
        let options = &self.0.options;
        let number = session.started.elapsed().as_micros() as u64;
        session.links.iter().for_each(|link| link.offer(Message::Ping(number)));
        let watched = self.lock().watched.clone();
        for (peer, watched) in options.addresses.iter().zip(&watched) {
            let silent = watched.heard.elapsed();
            if silent > options.stall_limit + options.shape.delay * 2 {
                let silent_ms = silent.as_millis() as u64;
                let error = StageError::Stalled { peer: peer.clone(), silent_ms };
                return self.lose(session, error.to_string());
            }
        }
        let waiting = session.lock().waiting_since;
        if waiting.is_some_and(|since| since.elapsed() > options.batch_limit) {
            let seconds = options.batch_limit.as_secs();
            self.lose(session, format!("a batch did not come back within {seconds} s"));
        }
    }

    /// Connects to all stages.
    fn open(&self) -> Result<(), StageError> {
        let options = &self.0.options;
        // Random: what is left of an earlier session must not end this one.
        let source = |source| StageError::Io { peer: "this process".into(), source };
        let random = challenge().map_err(source)?;
        let number = u64::from_le_bytes(*random.first_chunk().expect("it is longer"));
        let mut opened = Vec::new();
        for (index, address) in options.addresses.iter().enumerate().rev() {
            let own = Trust::of_key(options.own_key.clone());
            let trust = if index < options.own_stages { &own } else { &options.trust };
            let mut connection = dial(address, trust, Role::Head, number)?;
            connection.send(&Message::Open(Box::new(self.request(index))))?;
            match connection.receive(LOAD_LIMIT)? {
                Message::Opened(sizes) => opened.push((connection, sizes)),
                _ => return Err(connection.incoming.protocol("no answer to an opening")),
            }
        }
        opened.reverse();
        let sizes: Vec<StageSizes> = opened.iter().map(|(_, sizes)| *sizes).collect();
        check(&sizes, &self.lock().sizes)?;
        let connections = opened.into_iter().map(|(connection, _)| connection).collect();
        self.start(connections, sizes)
    }

    /// What the link to stage `index` is made to be; the runner comes after the last stage.
    fn shape_to(&self, index: usize) -> Shape {
        let options = &self.0.options;
        if index < options.own_stages { Shape::default() } else { options.shape }
    }

    fn request(&self, index: usize) -> Open {
        let options = &self.0.options;
        let shape = self.shape_to(index + 1);
        Open {
            index: index as u16,
            count: options.addresses.len() as u16,
            next: options.addresses.get(index + 1).cloned().unwrap_or_default(),
            next_is_inside: index + 1 < options.own_stages,
            dtype: options.dtype,
            slots: options.slots,
            kv_cells: options.kv_cells,
            context_tokens: options.context_tokens,
            batch_tokens: options.batch_tokens,
            kv_type: options.kv_type,
            delay_us: shape.delay.as_micros() as u32,
            bytes_per_s: shape.bytes_per_s,
        }
    }

    fn start(
        &self,
        connections: Vec<Connection>,
        sizes: Vec<StageSizes>,
    ) -> Result<(), StageError> {
        let options = &self.0.options;
        let batch_tokens = least(&sizes, |sizes| sizes.batch_tokens) as usize;
        let (mut readers, mut links, mut closers) = (Vec::new(), Vec::new(), Vec::new());
        for (index, (connection, sizes)) in connections.into_iter().zip(&sizes).enumerate() {
            let format = Format { dtype: options.dtype, width: sizes.width, batch_tokens };
            let sent_bytes = &self.0.sent_bytes;
            let (incoming, outgoing, closer) =
                connection.open(format, self.shape_to(index), sent_bytes)?;
            readers.push(incoming);
            links.push(outgoing);
            closers.push(closer);
        }
        let session = Arc::new(Session {
            started: Instant::now(),
            links,
            closers,
            mailbox: Mutex::default(),
            arrived: Condvar::new(),
        });
        let fresh = Watched {
            heard: Instant::now(),
            totals: Totals::default(),
            round_trip: Duration::ZERO,
        };
        {
            let mut state = self.lock();
            state.watched = vec![fresh; sizes.len()];
            state.sizes = sizes;
            state.session = Some(session.clone());
        }
        for (index, incoming) in readers.into_iter().enumerate() {
            let (cluster, session) = (self.clone(), session.clone());
            thread::spawn(move || cluster.read(&session, index, incoming));
        }
        Ok(())
    }

    /// Reads one stage's answers until the session ends.
    fn read(&self, session: &Arc<Session>, index: usize, mut incoming: Incoming) {
        let is_last = index + 1 == session.links.len();
        let why = loop {
            match incoming.receive() {
                Ok(Message::Pong(number, totals)) => {
                    let now_us = session.started.elapsed().as_micros() as u64;
                    let round_trip = Duration::from_micros(now_us.saturating_sub(number));
                    let heard = Instant::now();
                    self.lock().watched[index] = Watched { heard, totals, round_trip };
                }
                Ok(Message::Done(done)) if is_last => {
                    session.lock().done.push_back(done);
                    session.arrived.notify_all();
                    self.wake();
                }
                Ok(Message::Refused(why)) => {
                    break StageError::Refused { peer: incoming.peer().to_owned(), why };
                }
                Ok(_) => break incoming.protocol("a message out of place"),
                Err(error) => break error,
            }
        };
        self.lose(session, why.to_string());
    }
}

impl RemoteStages for Cluster {
    fn outage(&self) -> Option<String> {
        let state = self.lock();
        state.session.is_none().then(|| state.outage.clone())
    }

    fn figures(&self) -> RemoteFigures {
        let state = self.lock();
        RemoteFigures {
            connected: state.session.is_some(),
            hop: state.hop,
            batches_in_flight: state.groups,
            stages: state.watched.iter().map(Watched::figures).collect(),
        }
    }

    fn batch_times(&self, from_ago: Duration, to_ago: Duration) -> Option<BatchTimes> {
        let now = Instant::now();
        let from = now.checked_sub(from_ago)?;
        self.lock().history.between(from, now.checked_sub(to_ago)?)
    }
}

impl Watched {
    fn figures(&self) -> StageFigures {
        let totals = &self.totals;
        StageFigures {
            batches: totals.batches,
            batch_rows: totals.spans,
            batch_rows_max: totals.most_spans,
            busy: Duration::from_micros(totals.busy_us),
            up: Duration::from_micros(totals.up_us),
            wait: Duration::from_micros(totals.wait_us),
            wait_max: Duration::from_micros(totals.longest_wait_us),
            sent_bytes: totals.sent_bytes,
            round_trip: self.round_trip,
        }
    }
}

fn least(sizes: &[StageSizes], of: impl Fn(&StageSizes) -> u32) -> u32 {
    sizes.iter().map(of).min().unwrap_or(0)
}

/// Whether the stages make one model, and the same as `before` if there was one.
fn check(sizes: &[StageSizes], before: &[StageSizes]) -> Result<(), StageError> {
    let refuse = |what: String| Err(StageError::Mismatch(what));
    let first = &sizes[0];
    let mut next = 0;
    for (index, stage) in sizes.iter().enumerate() {
        let keys = stage.keys;
        if keys.fingerprint != first.keys.fingerprint || stage.width != first.width {
            return refuse(format!("stage {} is of another model than stage 1", index + 1));
        }
        if keys.first_layer != next {
            let (number, begins) = (index + 1, keys.first_layer);
            return refuse(format!("stage {number} begins at layer {begins} instead of {next}"));
        }
        next += keys.layers;
    }
    if next != first.keys.all_layers {
        return refuse(format!("they have {next} of {} layers", first.keys.all_layers));
    }
    if !before.is_empty() && before != sizes {
        return refuse("they are others than before; start the server anew".into());
    }
    Ok(())
}
