//! The runner's connections to the stages: opened, monitored, reopened after a loss.
//!
//! A thread maintains the session: it connects to all stages, the last first, so that each finds
//! the next one ready; pings them twice a second; and starts over when one does not answer. All KV
//! is lost with a session.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use loquent_infer::remote::{BatchTimes, RemoteStages, RemoteStats, StageStats};

use super::auth::challenge;
use super::connection::{
    CloseHandle, FrameReader, LinkEmulation, MessageSender, StageConnection, dial,
};
use super::stage_stats::BatchHistory;
use super::wire::{
    DialerRole, Done, Dtype, OpenSession, RowFormat, StageMessage, StageTiming, StageTotals,
};
use super::{Key, StageError, StageSizes, StageTrust, places};
use crate::KvType;

/// Interval of pings. Chosen by hand, well below the silence that ends a session.
const PING_EVERY: Duration = Duration::from_millis(500);
/// Time limit for a stage to prepare its layers.
const LOAD_LIMIT: Duration = Duration::from_secs(300);
/// Reason of a session's end when the cluster is stopped.
const STOPPED: &str = "the server stops";
/// Minimum and maximum pause between attempts to connect; it doubles each time.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// Addresses, trust and sizes of a split model's stages.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// Addresses of the stages, `host:port`, in the order of their layers; a stage's replicas are
    /// separated by `|`. A name may resolve to several replicas.
    pub addresses: Vec<String>,
    /// Number of stages, from the first on, that are in this process. Links to these are never
    /// emulated.
    pub own_stages: usize,
    /// Key of the stages in this process.
    pub own_key: Key,
    /// Key and certificates for the other stages.
    pub trust: StageTrust,
    /// Number format of hidden states on the wire.
    pub dtype: Dtype,
    /// Maximum sequences with KV at once.
    pub slots: u16,
    /// KV cells of all slots together.
    pub kv_cells: u32,
    /// Maximum tokens of a sequence.
    pub context_tokens: u32,
    /// Maximum rows of a batch.
    pub batch_tokens: u32,
    /// Element type of the KV caches.
    pub kv_type: KvType,
    /// Emulated delay and rate of links to stages outside this process.
    pub link: LinkEmulation,
    /// Maximum silence of a stage before it counts as lost.
    pub stall_limit: Duration,
    /// Maximum time of a batch in flight before a stage counts as stuck.
    pub batch_limit: Duration,
}

/// Stages of one model, usable from any thread. Clones share the connections.
#[derive(Clone)]
pub struct Cluster(Arc<ClusterShared>);

struct ClusterShared {
    options: ClusterOptions,
    state: Mutex<ClusterState>,
    changed: Condvar,
    wake: Mutex<Option<Box<dyn Fn() + Send + Sync>>>,
    sent_bytes: Arc<AtomicU64>,
}

struct ClusterState {
    session: Option<Arc<ClusterSession>>,
    outage: String,
    /// Sizes in the first session; later ones must have the same.
    sizes: Vec<StageSizes>,
    stages: Vec<StageStatus>,
    /// Place of each stage in the last session: of several replicas the one in use.
    places: Vec<String>,
    /// By the number of the stage: places that accepted an attempt and cannot be used, since the
    /// last session. The next attempt begins behind them.
    dead_ends: BTreeMap<usize, String>,
    link_delay: Duration,
    depth: usize,
    history: BatchHistory,
    is_stopped: bool,
}

impl ClusterState {
    fn new() -> Self {
        Self {
            session: None,
            outage: "the stages are not connected yet".into(),
            sizes: Vec::new(),
            stages: Vec::new(),
            places: Vec::new(),
            dead_ends: BTreeMap::new(),
            link_delay: Duration::ZERO,
            depth: 1,
            history: BatchHistory::default(),
            is_stopped: false,
        }
    }
}

/// Last answer of a stage to a ping.
#[derive(Debug, Clone, Copy)]
struct StageStatus {
    answered: Instant,
    totals: StageTotals,
    round_trip: Duration,
}

/// Connections to all stages, which end together.
pub(super) struct ClusterSession {
    started: Instant,
    /// Senders to the stages, in order.
    senders: Vec<MessageSender>,
    closers: Vec<CloseHandle>,
    mailbox: Mutex<Mailbox>,
    arrived: Condvar,
}

#[derive(Default)]
struct Mailbox {
    done: VecDeque<Done>,
    /// Reason why the session ended.
    lost: Option<String>,
    /// When the oldest batch in flight was submitted.
    waiting_since: Option<Instant>,
}

impl ClusterSession {
    /// Sends `message` to the first stage, which passes it on.
    pub(super) fn send(&self, message: StageMessage) {
        self.senders[0].send(message);
    }

    /// Notes when the oldest batch in flight was submitted: its deadline counts from then.
    pub(super) fn expect(&self, since: Option<Instant>) {
        self.lock().waiting_since = since;
    }

    /// Returns the next answer; an error if the session has ended.
    pub(super) fn try_next(&self) -> Result<Option<Done>, String> {
        let mut mailbox = self.lock();
        // Answers that came before the end are still good.
        match (mailbox.done.pop_front(), &mailbox.lost) {
            (Some(done), _) => Ok(Some(done)),
            (None, None) => Ok(None),
            (None, Some(why)) => Err(why.clone()),
        }
    }

    /// Waits until [`ClusterSession::try_next`] has an answer or an error.
    pub(super) fn wait(&self) {
        let mailbox = self.lock();
        let idle = |mailbox: &mut Mailbox| mailbox.done.is_empty() && mailbox.lost.is_none();
        drop(self.arrived.wait_while(mailbox, idle).expect("no thread panics with this lock"));
    }

    fn lock(&self) -> MutexGuard<'_, Mailbox> {
        self.mailbox.lock().expect("no thread panics with this lock")
    }
}

impl Cluster {
    /// Connects to the stages and waits until all of them are ready. While it waits, it calls
    /// `report` with the error of each attempt.
    ///
    /// # Errors
    /// Errors that waiting cannot resolve: another key, a refusal, stages that do not make a model.
    ///
    /// # Panics
    /// If `options` has no addresses.
    pub fn connect(
        options: ClusterOptions,
        mut report: impl FnMut(&StageError),
    ) -> Result<Self, StageError> {
        assert!(!options.addresses.is_empty(), "a model has stages");
        let cluster = Self::unconnected(options);
        let mut pause = RETRY.0;
        while let Err(error) = cluster.open() {
            // A stage may start after the server; a wrong key will not become right.
            if !error.may_pass() {
                return Err(error);
            }
            report(&error);
            thread::sleep(pause);
            pause = (pause * 2).min(RETRY.1);
        }
        let maintained = cluster.clone();
        thread::Builder::new()
            .name("stages".into())
            .spawn(move || maintained.maintain())
            .map_err(|source| StageError::Io { peer: "this process".into(), source })?;
        Ok(cluster)
    }

    fn unconnected(options: ClusterOptions) -> Self {
        Self(Arc::new(ClusterShared {
            options,
            state: Mutex::new(ClusterState::new()),
            changed: Condvar::new(),
            wake: Mutex::new(None),
            sent_bytes: Arc::default(),
        }))
    }

    /// Sizes of the stages, in order.
    pub fn sizes(&self) -> Vec<StageSizes> {
        self.lock().sizes.clone()
    }

    /// Ends the session permanently.
    pub fn stop(&self) {
        // Before the session ends: otherwise the thread would open another.
        self.lock().is_stopped = true;
        self.0.changed.notify_all();
        if let Some(session) = self.session() {
            self.lose(&session, STOPPED.into());
        }
    }

    /// The session, unless it is lost and not yet reopened.
    pub(super) fn session(&self) -> Option<Arc<ClusterSession>> {
        self.lock().session.clone()
    }

    /// Sets the function to call when an answer has arrived or the session has ended.
    pub(super) fn on_arrival(&self, wake: Box<dyn Fn() + Send + Sync>) {
        *self.0.wake.lock().expect("no thread panics with this lock") = Some(wake);
    }

    /// Records a batch that returned, its mean delay on a link, and the current pipeline depth.
    pub(super) fn record_batch(
        &self,
        timings: Vec<StageTiming>,
        link_delay: Duration,
        depth: usize,
    ) {
        let mut state = self.lock();
        (state.link_delay, state.depth) = (link_delay, depth);
        state.history.add(Instant::now(), timings, link_delay);
    }

    /// Ends `session` with `why` as the reason.
    pub(super) fn lose(&self, session: &Arc<ClusterSession>, why: String) {
        {
            let mut mailbox = session.lock();
            if mailbox.lost.is_some() {
                // Each connection's end is reported: the first reason is the cause.
                return;
            }
            mailbox.lost = Some(why.clone());
        }
        session.closers.iter().for_each(CloseHandle::close);
        session.arrived.notify_all();
        let mut state = self.lock();
        // A late report about an earlier session must not end its successor.
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
        if let Some(wake) = &*self.0.wake.lock().expect("no thread panics with this lock") {
            wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, ClusterState> {
        self.0.state.lock().expect("no thread panics with this lock")
    }

    /// Monitors the session, and opens a new one after it has ended, until the cluster is stopped.
    fn maintain(&self) {
        let mut pause = RETRY.0;
        loop {
            let state = self.lock();
            let wait = if state.session.is_some() { PING_EVERY } else { pause };
            let (state, _) =
                self.0.changed.wait_timeout(state, wait).expect("no thread panics with this lock");
            if state.is_stopped {
                return;
            }
            let session = state.session.clone();
            // Connecting may take minutes, and others need the state meanwhile.
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

    /// Pings every stage, and ends the session if one is silent or stuck.
    fn watch(&self, session: &Arc<ClusterSession>) {
        let options = &self.0.options;
        // The number is the time, so that the answer gives the round trip.
        let number = session.started.elapsed().as_micros() as u64;
        // Not `send`: a stage that has stopped reading must not block the watch over it.
        session.senders.iter().for_each(|sender| sender.send_first(StageMessage::Ping(number)));
        let (stages, places) = {
            let state = self.lock();
            (state.stages.clone(), state.places.clone())
        };
        for (peer, stage) in places.iter().zip(&stages) {
            let silent = stage.answered.elapsed();
            // A ping and its answer cross an emulated link too.
            if silent > options.stall_limit + options.link.delay * 2 {
                let silent_ms = silent.as_millis() as u64;
                let error = StageError::Stalled { peer: peer.clone(), silent_ms };
                return self.lose(session, error.to_string());
            }
        }
        // A stage answers pings on a thread of its own, so it may be stuck without being silent.
        let waiting = session.lock().waiting_since;
        if waiting.is_some_and(|since| since.elapsed() > options.batch_limit) {
            let seconds = options.batch_limit.as_secs();
            self.lose(session, format!("a batch did not come back within {seconds} s"));
        }
    }

    /// Connects to all stages and opens a session.
    fn open(&self) -> Result<(), StageError> {
        let options = &self.0.options;
        // Random, so that messages left over from an earlier session cannot end this one.
        let source = |source| StageError::Io { peer: "this process".into(), source };
        let random = challenge().map_err(source)?;
        let number = u64::from_le_bytes(*random.first_chunk().expect("a challenge is longer"));
        let (mut opened, mut places) = (Vec::new(), Vec::<String>::new());
        // The last first: to open a session, a stage dials the next one, which must expect it.
        for index in (0..options.addresses.len()).rev() {
            let next = places.last().cloned().unwrap_or_default();
            let (connection, sizes, place) = match self.open_stage(index, number, &next) {
                Ok(stage) => stage,
                Err(error) => {
                    if !error.may_pass() {
                        // It may be the place of the next one that this stage cannot reach.
                        self.lock().dead_ends.insert(index + 1, next);
                    }
                    return Err(error);
                }
            };
            self.check_same(index, &place, sizes)?;
            opened.push((connection, sizes));
            places.push(place);
        }
        opened.reverse();
        places.reverse();
        let sizes: Vec<StageSizes> = opened.iter().map(|(_, sizes)| *sizes).collect();
        check(&sizes)?;
        let connections = opened.into_iter().map(|(connection, _)| connection).collect();
        self.start(connections, sizes, places);
        Ok(())
    }

    /// Checks that the replica of stage `index` at `place` is the same as in earlier sessions: it
    /// may still have the file of another split. One that is not has taken the place of a good one
    /// at the next stage, so that the attempt is over.
    fn check_same(&self, index: usize, place: &str, sizes: StageSizes) -> Result<(), StageError> {
        let mut state = self.lock();
        if state.sizes.get(index).is_none_or(|before| *before == sizes) {
            return Ok(());
        }
        state.dead_ends.insert(index, place.to_owned());
        let number = index + 1;
        let what = format!("stage {number} at {place} is another one than when the server started");
        Err(StageError::Mismatch(what))
    }

    /// Opens the session with the first replica of stage `index` that accepts it, starting with the
    /// one in use, or behind one that cannot be used. `next` is the place of the following stage;
    /// returns the connection, the sizes and the place of this one.
    fn open_stage(
        &self,
        index: usize,
        number: u64,
        next: &str,
    ) -> Result<(StageConnection, StageSizes, String), StageError> {
        let options = &self.0.options;
        let own = StageTrust::of_key(options.own_key.clone());
        let trust = if index < options.own_stages { &own } else { &options.trust };
        let (last, dead_end) = {
            let state = self.lock();
            let last = state.places.get(index).cloned().unwrap_or_default();
            (last, state.dead_ends.get(&index).cloned())
        };
        let mut failure = None;
        for place in places::of_stage(&options.addresses[index], &last, dead_end.as_deref()) {
            match self.open_replica(&place, trust, index, number, next) {
                Ok((connection, sizes)) => return Ok((connection, sizes, place)),
                // The first error counts, unless a later one cannot be waited out.
                Err(error) => match &failure {
                    Some(_) if error.may_pass() => {}
                    _ => failure = Some(error),
                },
            }
        }
        Err(failure.expect("an address has at least one place"))
    }

    fn open_replica(
        &self,
        place: &str,
        trust: &StageTrust,
        index: usize,
        number: u64,
        next: &str,
    ) -> Result<(StageConnection, StageSizes), StageError> {
        let mut connection = dial(place, trust, DialerRole::Runner, number)?;
        connection.send(&StageMessage::Open(Box::new(self.request(index, next))))?;
        match connection.receive_within(LOAD_LIMIT)? {
            StageMessage::Opened(sizes) => Ok((connection, sizes)),
            _ => Err(connection.protocol_error("another answer than an opened session")),
        }
    }

    /// Emulation of the link to stage `index`; after the last stage comes the runner.
    fn link_to(&self, index: usize) -> LinkEmulation {
        let options = &self.0.options;
        if index < options.own_stages { LinkEmulation::default() } else { options.link }
    }

    fn request(&self, index: usize, next: &str) -> OpenSession {
        let options = &self.0.options;
        let link = self.link_to(index + 1);
        OpenSession {
            index: index as u16,
            count: options.addresses.len() as u16,
            next: next.to_owned(),
            next_is_inside: index + 1 < options.own_stages,
            dtype: options.dtype,
            slots: options.slots,
            kv_cells: options.kv_cells,
            context_tokens: options.context_tokens,
            batch_tokens: options.batch_tokens,
            kv_type: options.kv_type,
            delay_us: link.delay.as_micros() as u32,
            bytes_per_s: link.bytes_per_s,
        }
    }

    /// Starts the threads of a session over opened connections to the stages at `places`.
    fn start(
        &self,
        connections: Vec<StageConnection>,
        sizes: Vec<StageSizes>,
        places: Vec<String>,
    ) {
        let dtype = self.0.options.dtype;
        // The smallest counts: a batch goes through all stages.
        let batch_tokens = least(&sizes, |sizes| sizes.batch_tokens) as usize;
        let (mut readers, mut senders, mut closers) = (Vec::new(), Vec::new(), Vec::new());
        for (index, (connection, sizes)) in connections.into_iter().zip(&sizes).enumerate() {
            let format = RowFormat { dtype, width: sizes.width, batch_tokens };
            let halves = connection.split(format, self.link_to(index), &self.0.sent_bytes);
            readers.push(halves.0);
            senders.push(halves.1);
            closers.push(halves.2);
        }
        let session = Arc::new(ClusterSession {
            started: Instant::now(),
            senders,
            closers,
            mailbox: Mutex::default(),
            arrived: Condvar::new(),
        });
        let is_stopped = {
            let mut state = self.lock();
            // Before the readers start: they find their stage in this list.
            state.stages = vec![StageStatus::fresh(); sizes.len()];
            (state.sizes, state.places) = (sizes, places);
            state.dead_ends.clear();
            state.session = Some(session.clone());
            state.is_stopped
        };
        self.wake();
        for (index, reader) in readers.into_iter().enumerate() {
            let (cluster, session) = (self.clone(), session.clone());
            thread::spawn(move || cluster.read(&session, index, reader));
        }
        if is_stopped {
            // It was opened meanwhile, and whoever stopped the cluster did not see it.
            self.lose(&session, STOPPED.into());
        }
    }

    /// Reads one stage's answers until the session ends.
    fn read(&self, session: &Arc<ClusterSession>, index: usize, mut reader: FrameReader) {
        let is_last = index + 1 == session.senders.len();
        let why = loop {
            match reader.receive() {
                Ok(StageMessage::Pong(number, totals)) => {
                    let now_us = session.started.elapsed().as_micros() as u64;
                    let round_trip = Duration::from_micros(now_us.saturating_sub(number));
                    let answered = Instant::now();
                    self.lock().stages[index] = StageStatus { answered, totals, round_trip };
                }
                Ok(StageMessage::Done(done)) if is_last => {
                    session.lock().done.push_back(done);
                    session.arrived.notify_all();
                    self.wake();
                }
                Ok(StageMessage::Refused(why)) => {
                    break StageError::Refused { peer: reader.peer().to_owned(), why };
                }
                Ok(_) => break reader.protocol_error("a message out of place"),
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

    fn figures(&self) -> RemoteStats {
        let state = self.lock();
        RemoteStats {
            connected: state.session.is_some(),
            link_delay: state.link_delay,
            pipeline_depth: state.depth,
            stages: state.stages.iter().map(StageStatus::figures).collect(),
        }
    }

    fn batch_times(&self, from_ago: Duration, to_ago: Duration) -> Option<BatchTimes> {
        let now = Instant::now();
        let from = now.checked_sub(from_ago)?;
        self.lock().history.between(from, now.checked_sub(to_ago)?)
    }
}

impl StageStatus {
    /// Creates the status of a newly connected stage: its silence counts from now.
    fn fresh() -> Self {
        let (totals, round_trip) = (StageTotals::default(), Duration::ZERO);
        Self { answered: Instant::now(), totals, round_trip }
    }

    fn figures(&self) -> StageStats {
        let totals = &self.totals;
        StageStats {
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

/// Checks that the stages make one model.
fn check(sizes: &[StageSizes]) -> Result<(), StageError> {
    let refuse = |what: String| Err(StageError::Mismatch(what));
    let first = &sizes[0];
    let mut next = 0;
    for (index, stage) in sizes.iter().enumerate() {
        let keys = stage.keys;
        if keys.fingerprint != first.keys.fingerprint || stage.width != first.width {
            return refuse(format!("stage {} belongs to another model than stage 1", index + 1));
        }
        if keys.first_layer != next {
            let (number, begins) = (index + 1, keys.first_layer);
            return refuse(format!("stage {number} begins at layer {begins} instead of {next}"));
        }
        // Numbers of another machine: they may be any.
        let Some(end) = u32::checked_add(next, keys.layers) else {
            return refuse(format!("stage {} claims {} layers", index + 1, keys.layers));
        };
        next = end;
    }
    if next != first.keys.all_layers {
        return refuse(format!("they have only {next} of {} layers", first.keys.all_layers));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_opens_while_the_cluster_stops_ends() {
        let cluster = Cluster::unconnected(ClusterOptions {
            addresses: Vec::new(),
            own_stages: 0,
            own_key: Key::default(),
            trust: StageTrust::of_key(Key::default()),
            dtype: Dtype::F32,
            slots: 1,
            kv_cells: 1,
            context_tokens: 1,
            batch_tokens: 1,
            kv_type: KvType::F16,
            link: LinkEmulation::default(),
            stall_limit: Duration::ZERO,
            batch_limit: Duration::ZERO,
        });
        // A session of no stages, opened before and then after the end.
        cluster.start(Vec::new(), Vec::new(), Vec::new());
        let before = cluster.session().expect("a session");
        cluster.stop();
        cluster.start(Vec::new(), Vec::new(), Vec::new());
        assert!(before.try_next().is_err() && cluster.session().is_none());
    }
}
