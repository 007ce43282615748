//! The server's side: a [`Runner`] whose batches another process computes.

use std::io::{BufReader, ErrorKind, Write};
use std::mem;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use loquent_infer::runner::{
    Batch, Capacity, Interrupt, Recovery, RunError, Runner, Sampled, Slot,
};
use loquent_infer::sampling::{Constraint, Sampler};

use super::restarts::Restarts;
use super::wire::{Allowed, EngineFacts, EngineOrder, EngineReport, read_frame};
use super::{Launch, LaunchedEngine, ProcessError, lock};

/// Bytes of orders that are sent before the next batch: orders left behind by ended sequences.
const ORDER_BYTES: usize = 1 << 16;

/// Batched decoding in another process.
pub struct ProcessRunner {
    launch: Arc<Mutex<Launch>>,
    facts: EngineFacts,
    state: ProcessState,
    present: Arc<Mutex<PresentEngine>>,
    pub(super) restarts: Restarts,
    /// Maximum silence of an engine that reloads the model, before it counts as hung.
    silence_limit: Duration,
    /// Grammar of each slot, followed here.
    constraints: Vec<Option<Box<dyn Constraint>>>,
    verify_rows: Option<u32>,
    /// Orders not sent yet.
    orders: Vec<u8>,
}

/// State of the engine's process.
enum ProcessState {
    Up(EngineLink),
    /// The process ended for this reason, and will be restarted at this time.
    Down(String, Instant),
    /// The process is loading the model.
    Starting(String, Receiver<Result<EngineLink, ProcessError>>),
    /// The process will not be restarted.
    Failed(String),
}

/// Connection to a ready engine.
struct EngineLink {
    stream: Arc<UnixStream>,
    reader: BufReader<UnixStream>,
    frame: Vec<u8>,
    process: OwnedProcess,
}

/// The current engine, as seen by a thread that interrupts a hanging one.
#[derive(Debug)]
struct PresentEngine {
    /// Dead once the engine is gone.
    stream: Weak<UnixStream>,
    /// Reason for an interrupt.
    hung: Option<String>,
}

impl PresentEngine {
    fn of(link: &EngineLink) -> Self {
        Self { stream: Arc::downgrade(&link.stream), hung: None }
    }

    /// Ends the connection. The thread that waits on it notices, and kills the process: only that
    /// thread knows whether the number is still that process's.
    fn interrupt(&mut self, why: &str) {
        self.hung = Some(why.to_owned());
        if let Some(stream) = self.stream.upgrade() {
            // An error means that the connection has ended already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// A child process that ends with its owner.
#[derive(Debug)]
struct OwnedProcess(Option<Child>);

impl OwnedProcess {
    /// Kills it and returns its exit status as text.
    fn end(&mut self) -> String {
        let Some(mut child) = self.0.take() else { return "it was a thread".into() };
        // It may have ended: then this changes nothing, and its own status is what is returned.
        let _ = child.kill();
        child.wait().map_or_else(|error| error.to_string(), |status| status.to_string())
    }
}

impl Drop for OwnedProcess {
    fn drop(&mut self) {
        self.end();
    }
}

impl ProcessRunner {
    /// Starts an engine with `launch` and waits until it is ready. `progress` gets the loaded
    /// percentage of the model.
    ///
    /// When an engine has to reload the model, and is silent for `patience` and for twice the
    /// longest silence of the first one, it is killed and started again.
    ///
    /// # Errors
    /// [`ProcessError`] if it cannot be started, or cannot load the model.
    pub fn start(
        mut launch: Launch,
        patience: Duration,
        mut progress: impl FnMut(u8),
    ) -> Result<Self, ProcessError> {
        let mut silence = Silence::default();
        let mut note = |percent| {
            silence.end();
            progress(percent);
        };
        let (link, facts) = EngineLink::open(launch()?, None, &mut note)?;
        silence.end();
        Ok(Self {
            silence_limit: patience.max(2 * silence.longest),
            launch: Arc::new(Mutex::new(launch)),
            constraints: (0..facts.capacity.slots).map(|_| None).collect(),
            verify_rows: facts.verify_rows,
            facts,
            present: Arc::new(Mutex::new(PresentEngine::of(&link))),
            state: ProcessState::Up(link),
            restarts: Restarts::default(),
            orders: Vec::new(),
        })
    }

    /// Facts about the engine.
    pub fn facts(&self) -> &EngineFacts {
        &self.facts
    }

    /// Queues an order. Orders for an engine that is gone are dropped: the next one starts empty.
    fn order(&mut self, order: &EngineOrder) {
        if let ProcessState::Up(link) = &mut self.state {
            order.encode(&mut self.orders);
            // An engine that is gone is noticed with the next batch.
            if self.orders.len() > ORDER_BYTES {
                let _ = (&*link.stream).write_all(&self.orders);
                self.orders.clear();
            }
        }
    }

    /// Sends the batch and waits for its result.
    fn exchange(&mut self, order: &EngineOrder) -> Result<Vec<Sampled>, RunError> {
        order.encode(&mut self.orders);
        let orders = mem::take(&mut self.orders);
        let ProcessState::Up(link) = &mut self.state else {
            return Err(RunError::Lost(self.outage().unwrap_or_default()));
        };
        let report = (&*link.stream).write_all(&orders).map_err(ProcessError::Io);
        let report = report.and_then(|()| link.receive());
        self.orders = orders;
        self.orders.clear();
        match report {
            Ok(EngineReport::Done { outcome, verify_rows }) => {
                self.verify_rows = verify_rows;
                outcome
            }
            Ok(_) => Err(self.lose(&ProcessError::Protocol("a message out of place"))),
            Err(error) => Err(self.lose(&error)),
        }
    }

    /// Ends the rest of the engine.
    fn lose(&mut self, error: &ProcessError) -> RunError {
        let hung = lock(&self.present).hung.take();
        let why = match (&mut self.state, hung) {
            (_, Some(why)) => ProcessError::Hung(why).to_string(),
            // How it ended says more than that its connection did.
            (ProcessState::Up(link), None) if matches!(error, ProcessError::Io(_)) => {
                ProcessError::Ended(link.process.end()).to_string()
            }
            _ => error.to_string(),
        };
        self.orders.clear();
        self.verify_rows = self.facts.verify_rows;
        self.fall(why.clone());
        RunError::Lost(why)
    }

    /// Schedules a restart after the engine is gone, or gives up.
    fn fall(&mut self, why: String) {
        self.state = match self.restarts.next(Instant::now()) {
            Some(at) => ProcessState::Down(why, at),
            None => ProcessState::Failed(format!("{why}, again and again; it is given up")),
        };
    }

    fn outage(&self) -> Option<String> {
        match &self.state {
            ProcessState::Up(_) => None,
            ProcessState::Down(why, _)
            | ProcessState::Starting(why, _)
            | ProcessState::Failed(why) => Some(why.clone()),
        }
    }

    /// Reloads the model, on a thread: that takes seconds.
    fn start_again(&mut self, why: String) {
        let (launch, facts) = (self.launch.clone(), self.facts.clone());
        let limit = Some(self.silence_limit);
        let (sender, ready) = channel();
        let start = move || {
            let launched = lock(&launch)().map_err(ProcessError::Io);
            let opened =
                launched.and_then(|launched| EngineLink::open(launched, limit, &mut |_| ()));
            let same = opened.and_then(|(link, now)| match now == facts {
                true => Ok(link),
                false => Err(ProcessError::Changed),
            });
            // A server that has ended meanwhile wants no engine: it is dropped, and so ends.
            let _ = sender.send(same);
        };
        match thread::Builder::new().name("engine-start".into()).spawn(start) {
            Ok(_) => self.state = ProcessState::Starting(why, ready),
            Err(error) => self.fall(format!("the engine cannot be started: {error}")),
        }
    }

    /// Handles the result of a start.
    fn take_start(&mut self, started: Result<EngineLink, ProcessError>) {
        match started {
            Ok(link) => {
                *lock(&self.present) = PresentEngine::of(&link);
                self.state = ProcessState::Up(link);
            }
            Err(error @ ProcessError::Changed) => {
                self.state = ProcessState::Failed(error.to_string());
            }
            Err(error) => self.fall(error.to_string()),
        }
    }

    /// Prepares the batch for the engine: adds the tokens that its grammars allow, and removes the
    /// rows whose grammar has failed, which go to `failed`.
    fn prepare(&mut self, batch: &Batch, failed: &mut Vec<Sampled>) -> EngineOrder {
        let (mut batch, mut allowed) = (batch.clone(), Vec::new());
        for span in batch.spans.iter_mut().filter(|span| span.sample) {
            let Some(constraint) = &mut self.constraints[span.slot.index()] else { continue };
            match constraint.allowed().map(<[u32]>::to_vec) {
                Ok(tokens) => allowed.push(Allowed { slot: span.slot, tokens }),
                Err(error) => {
                    span.sample = false;
                    failed.push(Sampled { slot: span.slot, outcome: Err(error) });
                }
            }
        }
        EngineOrder::Run { batch, allowed }
    }

    /// Advances the grammars by the chosen tokens. Rows of scored prompts come first, and are
    /// skipped.
    fn advance_constraints(&mut self, batch: &Batch, sampled: &[Sampled]) {
        let mut rest = sampled;
        for (index, span) in batch.spans.iter().enumerate() {
            let count = rest.iter().take_while(|row| row.slot == span.slot).count();
            let (own, others) = rest.split_at(count);
            rest = others;
            let scored = batch.scores_of(index).map_or(0, |scores| scores.targets.len());
            let Some(constraint) = &mut self.constraints[span.slot.index()] else { continue };
            for choice in own.iter().skip(scored).filter_map(|row| row.outcome.as_ref().ok()) {
                constraint.accept(choice.token);
            }
        }
    }
}

/// Silence of an engine that loads its model.
struct Silence {
    since: Instant,
    longest: Duration,
}

impl Default for Silence {
    fn default() -> Self {
        Self { since: Instant::now(), longest: Duration::ZERO }
    }
}

impl Silence {
    /// Notes that the engine sent something.
    fn end(&mut self) {
        self.longest = self.longest.max(self.since.elapsed());
        self.since = Instant::now();
    }
}

/// Checks an answer to `batch`.
fn check(batch: &Batch, sampled: &[Sampled], vocab_tokens: u32) -> Result<(), ProcessError> {
    let rows: usize = (0..batch.spans.len()).map(|index| batch.rows_of(index) + 1).sum();
    let known = |row: &Sampled| batch.spans.iter().any(|span| span.slot == row.slot);
    let real = |row: &Sampled| row.outcome.as_ref().is_ok_and(|one| one.token < vocab_tokens);
    match sampled {
        rows_given if rows_given.len() > rows => Err(ProcessError::Protocol("too many rows")),
        rows_given if !rows_given.iter().all(known) => {
            Err(ProcessError::Protocol("rows of other sequences"))
        }
        rows_given if !rows_given.iter().all(|row| row.outcome.is_err() || real(row)) => {
            Err(ProcessError::Protocol("a token outside the vocabulary"))
        }
        _ => Ok(()),
    }
}

impl EngineLink {
    /// Waits until the engine is ready, as long as it is never silent for `limit`.
    fn open(
        launched: LaunchedEngine,
        limit: Option<Duration>,
        progress: &mut dyn FnMut(u8),
    ) -> Result<(Self, EngineFacts), ProcessError> {
        let LaunchedEngine { stream, process } = launched;
        // Of both halves, since the socket is one.
        stream.set_read_timeout(limit)?;
        let reader = BufReader::with_capacity(1 << 16, stream.try_clone()?);
        let process = OwnedProcess(process);
        let mut link = Self { stream: Arc::new(stream), reader, frame: Vec::new(), process };
        loop {
            match link.receive() {
                Ok(EngineReport::Loading(percent)) => progress(percent),
                Ok(EngineReport::Ready(facts)) => {
                    link.stream.set_read_timeout(None)?;
                    return Ok((link, *facts));
                }
                Ok(EngineReport::Refused(why)) => return Err(ProcessError::Refused(why)),
                Ok(_) => return Err(ProcessError::Protocol("a message out of place")),
                // What a read that took too long is depends on the system.
                Err(ProcessError::Io(error))
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    let limit_s = limit.unwrap_or_default().as_secs_f64();
                    let why = format!("it said nothing for {limit_s:.1} s while loading the model");
                    // Dropped with the link, and so killed.
                    return Err(ProcessError::Hung(why));
                }
                Err(ProcessError::Io(_)) => return Err(ProcessError::Ended(link.process.end())),
                Err(error) => return Err(error),
            }
        }
    }

    fn receive(&mut self) -> Result<EngineReport, ProcessError> {
        read_frame(&mut self.reader, &mut self.frame)?;
        EngineReport::decode(&self.frame).map_err(|malformed| ProcessError::Protocol(malformed.0))
    }
}

impl Runner for ProcessRunner {
    fn capacity(&self) -> Capacity {
        self.facts.capacity
    }

    fn assign(&mut self, slot: Slot, mut sampler: Sampler) {
        let constraint = sampler.constrain(None);
        let has_grammar = constraint.is_some();
        self.constraints[slot.index()] = constraint;
        let sampler = Box::new((&sampler).into());
        self.order(&EngineOrder::Assign { slot, has_grammar, sampler });
    }

    fn is_ready(&mut self, slot: Slot) -> bool {
        self.constraints[slot.index()].as_mut().is_none_or(|constraint| constraint.is_ready())
    }

    fn run(&mut self, batch: &Batch, sampled: &mut Vec<Sampled>) -> Result<(), RunError> {
        let before = sampled.len();
        let order = self.prepare(batch, sampled);
        let rows = self.exchange(&order)?;
        if let Err(error) = check(batch, &rows, self.facts.vocab_tokens) {
            return Err(self.lose(&error));
        }
        self.restarts.note_success();
        self.advance_constraints(batch, &rows);
        let any_failed = sampled.len() > before;
        sampled.extend(rows);
        if any_failed {
            // Rows of one sequence keep their order: the sort is stable.
            let place = |slot| batch.spans.iter().position(|span| span.slot == slot);
            sampled[before..].sort_by_key(|row| place(row.slot));
        }
        Ok(())
    }

    fn poll_recovery(&mut self) -> Recovery {
        match mem::replace(&mut self.state, ProcessState::Failed(String::new())) {
            ProcessState::Down(why, at) if Instant::now() >= at => self.start_again(why),
            ProcessState::Starting(why, ready) => match ready.try_recv() {
                Ok(started) => self.take_start(started),
                Err(TryRecvError::Empty) => self.state = ProcessState::Starting(why, ready),
                Err(TryRecvError::Disconnected) => self.fall(why),
            },
            state => self.state = state,
        }
        match &self.state {
            ProcessState::Up(_) => Recovery::Ready,
            ProcessState::Failed(why) => Recovery::Never(why.clone()),
            ProcessState::Down(why, _) | ProcessState::Starting(why, _) => {
                Recovery::Pending(why.clone())
            }
        }
    }

    fn interrupt(&self) -> Option<Interrupt> {
        let present = self.present.clone();
        Some(Arc::new(move |why| lock(&present).interrupt(why)))
    }

    fn fork(&mut self, from: Slot, to: Slot, len: u32) {
        self.order(&EngineOrder::Fork { from, to, len });
    }

    fn truncate(&mut self, slot: Slot, len: u32) {
        self.order(&EngineOrder::Truncate { slot, len });
    }

    fn verify_rows(&self) -> Option<u32> {
        self.verify_rows
    }

    fn score_rows(&self) -> Option<u32> {
        self.facts.score_rows
    }
}
