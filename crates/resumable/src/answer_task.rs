//! One resumable answer: a task that owns its flushes, its log, and the paths to its readers.
//!
//! The task waits for a flush, a command, an event stream's body, or a timer. After each it sends
//! to the readers concerned whatever is due. Time is always passed as an argument.
//!
//! The furthest reader sets the pace: generation continues while one reader keeps up, and a full
//! log drops the bytes that this reader has acknowledged. A reader that still needs dropped bytes
//! is cut off (S-5.4).

use std::ops::ControlFlow;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use loquent_proto::chunk::ChunkWriter;
use loquent_proto::message::Code;
use loquent_proto::position::MAX_EPOCH;
use loquent_proto::{
    AnswerHandle, AnswerLog, Delivery, Log, Micros, Position, SenderConfig, SentSoFar,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, Sleep};

use super::datagram_reader::DatagramReader;
use super::event_reader::{EventReader, PieceCutter};
use super::events_slot::ReadyBodies;
use super::log_pump::{LogPump, PumpEnd, PumpInput};
use super::reader_status::ReaderEnd;
use super::readers::{LogSource, MAX_READERS, Reader, ReaderKind, Readers};
use super::shared::epochs::Epochs;
use super::shared::followed::{FollowedPiece, whole_records};
use super::shared::lookup::AHEAD_LIMIT;
use super::shared::slot::LogSlot;
use super::shared::state::{GivenBack, LogState, StoreNews};
use super::shared::takeover::TakeoverOutcome;
use super::{
    AnswerCommand, AttachRequest, HandOverRequest, PathId, ReaderPath, Reservation,
    ResumableAnswers, Unreachable,
};
use crate::log_snapshots::{PendingSnapshot, PendingSnapshots, SnapshotRequest};
use crate::reader_pace::ReaderPace;
use loquent_serving::clock::unix_time_ms;
use loquent_serving::metrics::StreamCarrier;

/// Time for which flushes to readers in no hurry are gathered: fewer chunks and records, but more
/// delay. A background reader gets a packet a second anyway (`spec/delivery.md`, section 8), and a
/// reader behind its own pace shows nothing sooner.
const BACKGROUND_GATHER: Micros = Micros::from_ms(200);
/// Maximum flushes or commands taken at once before due data is sent.
const MAX_AT_ONCE: usize = 64;
/// Timers fire up to a millisecond late, which is a fifth of the gap between repetitions on a short
/// path (`spec/delivery.md`, section 8). They are therefore set early by this much, and work due
/// within this time counts as due.
const EARLY: Micros = Micros::from_ms(1);
/// Duration of the timer while nothing is due.
const NEVER: Duration = Duration::from_hours(24);
/// Takeovers of an answer after which a failure of the engine ends it: a request that makes engines
/// fail does not come to all replicas.
const MOST_FAILED_TAKEOVERS: usize = 2;
/// Maximum readers waiting for a mirror to catch up with them.
const MAX_AHEAD: usize = 1024;

/// Event that woke the task.
enum TaskEvent {
    Command(Option<AnswerCommand>),
    Input(PumpInput),
    Bodies,
    Time,
}

/// A reader that has more of the log than this mirror, which is behind the store.
struct AheadReader {
    until: Micros,
    wish: AheadWish,
}

enum AheadWish {
    Attach(AttachRequest),
    Look(SnapshotRequest),
}

impl AheadWish {
    fn position(&self) -> Position {
        match self {
            Self::Attach(request) => request.position,
            Self::Look(look) => Position::of(look.from),
        }
    }
}

/// Sends an answer's log to the store that replicas share.
struct LogSharing {
    slot: Arc<LogSlot>,
    /// Log offset below which everything was given to `slot`.
    handed: u64,
}

impl LogSharing {
    /// Gives the new bytes of `log` to the slot; returns false if the log has already dropped some.
    fn hand_on(&mut self, log: &Log, is_awaited: bool) -> bool {
        let state = if log.is_ended() { LogState::Ended } else { LogState::Running };
        if self.handed == log.head() {
            return true;
        }
        if self.handed < log.base() {
            return false;
        }
        let from = self.handed;
        self.handed += self.slot.put(state, is_awaited, |room, bytes| {
            let (before, to) = (bytes.len(), log.head().min(from + room as u64));
            log.read(from..to, bytes).expect("kept, as was checked");
            if to < log.head() {
                // Whoever goes on from there begins with a whole record.
                let (whole, _) = whole_records(&bytes[before..]);
                bytes.truncate(before + whole);
            }
            to == log.head()
        }) as u64;
        true
    }
}

/// The task of one resumable answer.
pub struct AnswerTask {
    answers: Arc<ResumableAnswers>,
    reservation: Reservation,
    handle: AnswerHandle,
    pump: LogPump,
    config: SenderConfig,
    answer: AnswerLog,
    readers: Readers,
    /// Estimates the unread text of the only reader.
    reading: ReaderPace,
    cutter: PieceCutter,
    /// List in which event streams' bodies report.
    ready: Arc<ReadyBodies>,
    /// Requests without a path that wait for more of the log.
    looks: PendingSnapshots,
    /// Sends the log to the store that replicas share.
    sharing: Option<LogSharing>,
    /// Owners that the log has had.
    epochs: Epochs,
    /// True if this replica generates the answer.
    is_owned: Arc<AtomicBool>,
    /// Readers that have more of the log than this mirror.
    ahead: Vec<AheadReader>,
    /// Dropped when the task has ended, so that the answer can continue at another replica.
    handed_over: Option<oneshot::Sender<()>>,
    /// True if a client has stopped the answer, for all readers of all replicas.
    is_stopped: bool,
    /// Time since which nobody has read.
    unread_since: Option<Micros>,
    /// While no reader is in a hurry, time until which flushes wait.
    gather_until: Micros,
    /// Time for which the timer is set.
    armed: Option<Micros>,
    /// Number of waits so far: which of several events comes first changes in turns.
    turn: usize,
    /// Latest time at which the task acted.
    time: Micros,
}

impl AnswerTask {
    /// Creates a task that fills a log from `pump` and delivers it as `config` specifies.
    pub fn new(
        answers: Arc<ResumableAnswers>,
        reservation: Reservation,
        handle: AnswerHandle,
        pump: LogPump,
        config: SenderConfig,
    ) -> Self {
        let now = Micros::from(answers.clock.now());
        let is_owned = Arc::new(AtomicBool::new(!pump.is_mirror()));
        let mut task = Self {
            reservation,
            handle,
            pump,
            answer: AnswerLog::new(now, config.max_log_bytes),
            config,
            readers: Readers::default(),
            reading: ReaderPace::new(answers.limits.token_time),
            cutter: PieceCutter::default(),
            ready: Arc::default(),
            looks: PendingSnapshots::default(),
            sharing: None,
            epochs: Epochs::default(),
            is_owned,
            ahead: Vec::new(),
            handed_over: None,
            is_stopped: false,
            unread_since: None,
            gather_until: Micros::ZERO,
            armed: None,
            turn: 0,
            time: now,
            answers,
        };
        task.append(now);
        task
    }

    /// Adds a first reader.
    pub fn with_reader(mut self, id: PathId, path: ReaderPath) -> Self {
        let attached = self.attach(self.time, id, path, 0, SentSoFar::default());
        debug_assert!(attached.is_some(), "a fresh log begins at 0");
        self
    }

    /// Also sends the log to `slot`.
    pub fn shared_by(mut self, slot: Arc<LogSlot>) -> Self {
        self.sharing = Some(LogSharing { slot, handed: 0 });
        self
    }

    /// Sets the owners that the log has had.
    pub fn with_epochs(mut self, epochs: Epochs) -> Self {
        self.set_epochs(epochs);
        self
    }

    /// Returns the flag that is set once this replica generates the answer.
    pub fn is_owned(&self) -> Arc<AtomicBool> {
        self.is_owned.clone()
    }

    /// Appends records of another replica's log before anybody reads them here. Bytes below
    /// `offset` may be dropped when the log is full. Returns whether the records could be appended.
    pub fn preload(&mut self, bytes: &[u8], offset: u64) -> bool {
        let taken = self.pump.take_records(self.time, bytes, &mut self.answer);
        let head = self.answer.log().head();
        self.answer.acknowledge(offset.min(head)).expect("not beyond the log");
        // What had to wait for that has room now.
        self.append(self.time);
        taken
    }

    /// Runs until the answer is forgotten.
    pub async fn run(mut self, mut inbox: mpsc::Receiver<AnswerCommand>) {
        let mut timer = std::pin::pin!(tokio::time::sleep(Duration::ZERO));
        let code = loop {
            let now = self.now();
            if let ControlFlow::Break(code) = self.drive(now) {
                break code;
            }
            if self.is_over(now) {
                break Code::Stopped;
            }
            let wake_at = self.wake_at(now);
            // Setting the timer has its cost, and most turns leave the time as it was.
            if wake_at != self.armed {
                let left = wake_at.map(|at| at.since(self.clock() + EARLY).into());
                set_timer(timer.as_mut(), left);
                self.armed = wake_at;
            }
            let timer = wake_at.is_some().then_some(timer.as_mut());
            let event = self.wait(now, &mut inbox, timer).await;
            if let ControlFlow::Break(code) = self.handle(event, &mut inbox) {
                break code;
            }
        };
        self.readers.end_all(code);
        self.answers.forget(&self.handle);
        self.end_sharing(code);
        drop(self.handed_over);
        tracing::debug!(bytes = self.answer.log().head(), "an answer is forgotten");
    }

    /// Waits for the first event; `timer` is set if anything is due at a time.
    async fn wait(
        &mut self,
        now: Micros,
        inbox: &mut mpsc::Receiver<AnswerCommand>,
        timer: Option<Pin<&mut Sleep>>,
    ) -> TaskEvent {
        let takes_flushes = self.takes_flushes(now);
        let ready = self.readers.has_events().then_some(&self.ready);
        let bodies = async {
            match ready {
                Some(ready) => ready.wait().await,
                None => std::future::pending().await,
            }
        };
        let pump = &mut self.pump;
        let input = async {
            match takes_flushes {
                true => pump.next().await,
                false => std::future::pending().await,
            }
        };
        let time = async {
            match timer {
                Some(timer) => timer.await,
                None => std::future::pending().await,
            }
        };
        self.turn = self.turn.wrapping_add(1);
        let command = async { TaskEvent::Command(inbox.recv().await) };
        let input = async { TaskEvent::Input(input.await) };
        let bodies = async {
            bodies.await;
            TaskEvent::Bodies
        };
        let time = async {
            time.await;
            TaskEvent::Time
        };
        let events: [Pin<&mut (dyn Future<Output = TaskEvent> + Send)>; 4] =
            [pin!(command), pin!(input), pin!(bodies), pin!(time)];
        first_ready(events, self.turn).await
    }

    /// Handles the event that woke the task; breaks with the reason if the answer is over.
    fn handle(
        &mut self,
        event: TaskEvent,
        inbox: &mut mpsc::Receiver<AnswerCommand>,
    ) -> ControlFlow<Code> {
        let now = self.now();
        match event {
            TaskEvent::Command(first) => {
                let Some(first) = first else { return ControlFlow::Break(Code::Stopped) };
                self.handle_command(now, first)?;
                // Many readers acknowledge the same token, and what is due is looked for once.
                for _ in 0..MAX_AT_ONCE {
                    let Ok(next) = inbox.try_recv() else { break };
                    self.handle_command(now, next)?;
                }
            }
            TaskEvent::Input(first) => self.handle_inputs(now, first)?,
            TaskEvent::Bodies => self.readers.touch_all(&self.ready),
            TaskEvent::Time => {}
        }
        ControlFlow::Continue(())
    }

    fn handle_command(&mut self, now: Micros, command: AnswerCommand) -> ControlFlow<Code> {
        match command {
            AnswerCommand::Attach(request) => self.handle_reader(now, AheadWish::Attach(request)),
            AnswerCommand::Look(look) => self.handle_reader(now, AheadWish::Look(look)),
            // Without a reader, they are of a path that is over (D-6.3).
            AnswerCommand::Frame(id, frame) => {
                if let Some(reader) = self.readers.touch(id).and_then(Reader::datagrams) {
                    reader.handle_frame(now, &self.answer, &frame, &self.answers.metrics);
                }
            }
            AnswerCommand::Leave(id) => drop(self.readers.remove(id, ReaderEnd::Left)),
            // One reader's wish is enough, as DELETE is (S-4.5).
            AnswerCommand::Cancel(id) if self.readers.remove(id, ReaderEnd::Left) => {
                self.is_stopped = true;
                return ControlFlow::Break(Code::Stopped);
            }
            AnswerCommand::Cancel(_) => {}
            AnswerCommand::Succeed(succession) => return self.handle_succession(now, succession),
            AnswerCommand::Store(news) => return self.handle_news(news),
            AnswerCommand::HandOver(request) => return self.hand_over(now, request),
            AnswerCommand::End(code) => {
                self.is_stopped = code == Code::Stopped;
                return ControlFlow::Break(code);
            }
        }
        ControlFlow::Continue(())
    }

    /// Answers a reader, or lets it wait while this mirror is behind the store.
    fn handle_reader(&mut self, now: Micros, wish: AheadWish) {
        let is_ahead = self.is_ahead(wish.position());
        if is_ahead && self.pump.is_mirror() && self.pump.is_open() && self.ahead.len() < MAX_AHEAD
        {
            return self.ahead.push(AheadReader { until: now + AHEAD_LIMIT.into(), wish });
        }
        self.answer_reader(now, wish);
    }

    /// True if the log may come to `position`.
    fn is_ahead(&self, position: Position) -> bool {
        match self.epochs.offset_of(position) {
            Some(offset) => offset > self.answer.log().head(),
            // Of an owner that this replica has not heard of yet.
            None => (self.epochs.current() + 1..=MAX_EPOCH).contains(&position.epoch),
        }
    }

    fn answer_reader(&mut self, now: Micros, wish: AheadWish) {
        match wish {
            AheadWish::Attach(AttachRequest { id, path, position, reply }) => {
                let sent = self.sent_elsewhere();
                let offset = self.epochs.offset_of(position);
                let chunks = offset.and_then(|offset| self.attach(now, id, path, offset, sent));
                self.answers.metrics.on_resume(chunks.is_some());
                let attached = chunks.map(|chunks| (chunks, self.epochs.current()));
                let _ = reply.send(attached.ok_or_else(|| self.refusal(position)));
            }
            AheadWish::Look(look) => {
                let position = Position::of(look.from);
                let from = self.epochs.offset_of(position).filter(|_| look.from != u64::MAX);
                if let Some(from) = from {
                    self.note_look(now, from, look.waits);
                }
                self.looks.handle(
                    PendingSnapshot { look, from },
                    &self.pump,
                    &self.answer,
                    &self.epochs,
                );
            }
        }
    }

    /// Returns why no reader can go on at `position`: there is none, or this mirror is behind the
    /// store and cannot tell (S-5.2).
    fn refusal(&self, position: Position) -> Unreachable {
        let can_come = self.pump.is_mirror() && self.pump.is_open();
        match can_come && self.is_ahead(position) {
            true => Unreachable::Away,
            false => Unreachable::Unknown,
        }
    }

    /// Answers the readers waiting for this mirror once it has caught up or no longer can.
    fn check_ahead(&mut self, now: Micros) {
        let can_come = self.pump.is_mirror() && self.pump.is_open();
        for reader in std::mem::take(&mut self.ahead) {
            if can_come && now < reader.until && self.is_ahead(reader.wish.position()) {
                self.ahead.push(reader);
            } else {
                self.answer_reader(now, reader.wish);
            }
        }
    }

    /// Sets the owners of the log from here on. A datagram path belongs to one epoch: it ends, and
    /// its reader resumes in the new one.
    fn set_epochs(&mut self, epochs: Epochs) {
        if self.epochs == epochs {
            return;
        }
        self.epochs = epochs;
        self.cutter.epoch = self.epochs.current();
        self.readers.end_datagrams(Code::BrokenOff);
    }

    /// Releases the answer to another replica, if one can take it: this replica is shutting down,
    /// or its engine has failed.
    fn hand_over(&mut self, now: Micros, request: HandOverRequest) -> ControlFlow<Code> {
        let (HandOverRequest { others, reply }, is_open) = (request, self.pump.is_open());
        if let Some(sharing) = self.sharing.as_ref().filter(|_| is_open) {
            if sharing.slot.can_be_taken_by(&others) {
                self.share();
                self.handed_over = Some(reply);
                return ControlFlow::Break(Code::BrokenOff);
            }
        } else if self.pump.is_mirror() && is_open {
            self.handed_over = Some(reply);
            return ControlFlow::Break(Code::BrokenOff);
        }
        self.pump.give_up(now, &mut self.answer);
        ControlFlow::Continue(())
    }

    /// Lets another replica go on with the answer, since this one's engine has failed. If the
    /// engines of several owners failed, the request may be why: it ends with the error.
    fn handle_engine_failure(&mut self, now: Micros) {
        match self.sharing.is_some() && self.epochs.takeovers() < MOST_FAILED_TAKEOVERS {
            true => self.answers.leave_failed(self.handle),
            false => self.pump.give_up(now, &mut self.answer),
        }
    }

    fn handle_succession(&mut self, now: Micros, succession: TakeoverOutcome) -> ControlFlow<Code> {
        match succession {
            TakeoverOutcome::Owned(owned) => {
                tracing::info!("an answer of another replica is generated here from now on");
                let handed = self.answer.log().head();
                self.sharing = Some(LogSharing { slot: owned.slot, handed });
                self.is_owned.store(true, Ordering::Relaxed);
                self.set_epochs(owned.epochs);
                self.pump.adopt(owned.answer, owned.replay, owned.is_last);
                owned.claim.keep();
                if self.pump.differs() {
                    return self.give_back();
                }
                self.append(now);
            }
            TakeoverOutcome::Follow(follower) => self.pump.follow(follower),
            TakeoverOutcome::Lost(why) => {
                tracing::warn!("the answer of a replica that has ended does not go on: {why}");
                return ControlFlow::Break(Code::BrokenOff);
            }
        }
        ControlFlow::Continue(())
    }

    /// Gives back an answer that was taken over but came out differently here.
    fn give_back(&mut self) -> ControlFlow<Code> {
        tracing::warn!("an answer that was taken over is another one here, and is given back");
        if let Some(LogSharing { slot, .. }) = self.sharing.take() {
            slot.let_go();
            self.answers.give_back(slot, GivenBack::Differs);
        }
        ControlFlow::Break(Code::BrokenOff)
    }

    fn handle_news(&mut self, news: StoreNews) -> ControlFlow<Code> {
        let Some(sharing) = &mut self.sharing else { return ControlFlow::Continue(()) };
        match news {
            StoreNews::Progress => self.readers.touch_everyone(),
            // From its beginning again, as far as that is kept here.
            StoreNews::Lost => {
                sharing.slot.restart();
                sharing.handed = 0;
            }
            // Its readers come back, and read what the other one writes.
            StoreNews::Taken => {
                tracing::warn!("another replica has taken over an answer of this one");
                self.sharing = None;
                return ControlFlow::Break(Code::BrokenOff);
            }
            StoreNews::Stopped => {
                self.sharing = None;
                return ControlFlow::Break(Code::Stopped);
            }
        }
        ControlFlow::Continue(())
    }

    /// Returns the log offset up to which event streams may read. Their readers resume with an
    /// offset alone, so one that had more than the store would be lost with this replica. Bytes
    /// that the store does not have yet are therefore held back, as long as the store works.
    fn visible(&self) -> u64 {
        let head = self.answer.log().head();
        match &self.sharing {
            Some(sharing) if self.readers.has_events() => sharing.slot.visible(head),
            _ => head,
        }
    }

    /// Gives the new bytes of the log to the store.
    fn share(&mut self) {
        let is_awaited = self.readers.has_events();
        let Some(sharing) = &mut self.sharing else { return };
        if !sharing.hand_on(self.answer.log(), is_awaited) {
            tracing::warn!(
                "an answer is not shared any more: the store was away for longer than its log lasts"
            );
            sharing.slot.give_up();
            self.sharing = None;
        }
    }

    /// Tells other replicas the outcome of the answer, which is forgotten here because of `code`.
    fn end_sharing(&mut self, code: Code) {
        let is_ended = self.answer.log().is_ended();
        if self.pump.is_mirror() || is_ended && self.sharing.is_none() {
            // Its owner goes on, unless a client wants nobody to.
            if self.is_stopped {
                self.answers.stop_elsewhere(self.handle);
            }
            return;
        }
        let Some(sharing) = self.sharing.take() else { return };
        if self.handed_over.is_some() {
            return self.answers.hand_on(sharing.slot);
        }
        if self.is_stopped {
            // Another replica may have taken it over meanwhile.
            self.answers.stop_elsewhere(self.handle);
        }
        if self.is_stopped || !is_ended && code != Code::ShuttingDown {
            sharing.slot.stop();
        }
    }

    /// Returns a bound on what other replicas may have sent of the answer: packet numbers continue
    /// (D-6.3), and no sender reaches a thousand a second.
    fn sent_elsewhere(&self) -> SentSoFar {
        if !self.answers.is_shared() {
            return SentSoFar::default();
        }
        let since_ms = self
            .pump
            .created_s()
            .map(|created_s| unix_time_ms().saturating_sub(created_s.saturating_mul(1000)));
        SentSoFar::below(since_ms.unwrap_or_default())
    }

    /// Delivers the answer over `path` too, from `offset` on. `sent` covers readers unknown to this
    /// task. Returns `None` if the log cannot be read from there.
    fn attach(
        &mut self,
        now: Micros,
        id: PathId,
        path: ReaderPath,
        offset: u64,
        sent: SentSoFar,
    ) -> Option<ChunkWriter> {
        // Everything that can refuse comes first: a refused reader must not disturb the others.
        self.answer.log().check(offset).ok()?;
        let (kind, chunks) = match path {
            ReaderPath::Events(path) => {
                let chunks = self.pump.chunks_at(&self.answer, offset)?;
                let stall_limit = self.answers.limits.stall_limit;
                let reader = EventReader::new(now, path, offset, stall_limit);
                reader.report_to(self.ready.clone(), id);
                (ReaderKind::Events(reader), chunks)
            }
            ReaderPath::Datagrams { channel, link, frames } => {
                let mut delivery = Delivery::new(now, channel, self.config.clone());
                delivery.set_initial_rtt(link.rtt().into());
                delivery.continue_after(self.readers.sent_so_far().or(sent));
                delivery.resume(now, &self.answer, channel, offset).ok()?;
                let reader = DatagramReader::new(link, frames, delivery);
                (ReaderKind::Datagrams(Box::new(reader)), ChunkWriter::new())
            }
        };
        self.gather_until = Micros::ZERO;
        self.add_reader(id, kind);
        Some(chunks)
    }

    fn add_reader(&mut self, id: PathId, kind: ReaderKind) {
        if self.readers.len() >= MAX_READERS {
            // Not the new one: it may be a reader that comes back, and the silent one what it left.
            self.readers.supersede();
        }
        // The first reader's place is the answer's own.
        let mut place = None;
        while self.readers.len() > 0 && place.is_none() {
            place = self.answers.place_reader();
            if place.is_none() {
                self.readers.supersede();
            }
        }
        let transport = match &kind {
            ReaderKind::Datagrams(reader) => reader.transport(),
            ReaderKind::Events(_) => StreamCarrier::Http,
        };
        self.pump.note_carrier(transport);
        let counted = self.answers.metrics.active_path(transport);
        self.readers.insert(id, Reader::new(kind, place, counted));
        self.reservation.reopen();
        self.cutter.is_shared = self.readers.len() > 1;
        self.keep_for_furthest();
    }

    /// Takes a flush, or a piece of another replica's log, and those queued behind it.
    fn handle_inputs(&mut self, now: Micros, first: PumpInput) -> ControlFlow<Code> {
        let (mut next, mut taken) = (Some(first), 0);
        while let Some(input) = next {
            if let PumpInput::Piece(FollowedPiece::Epochs(epochs)) = &input {
                self.set_epochs(epochs.clone());
            }
            match self.pump.handle(now, input, &mut self.answer) {
                ControlFlow::Continue(()) => {}
                ControlFlow::Break(PumpEnd::Stopped) => return ControlFlow::Break(Code::Stopped),
                ControlFlow::Break(PumpEnd::Lost) => return ControlFlow::Break(Code::BrokenOff),
                ControlFlow::Break(PumpEnd::Orphaned) => {
                    tracing::warn!("the replica that generates an answer has ended");
                    let head = self.answer.log().head();
                    self.answers.take_over(self.handle, head, self.epochs.clone());
                }
                ControlFlow::Break(PumpEnd::Differs) => return self.give_back(),
                ControlFlow::Break(PumpEnd::EngineFailed) => self.handle_engine_failure(now),
            }
            self.readers.note_append(now, self.answer.log().head());
            taken += 1;
            // Not beyond the bound: what is taken from the channel is in no other place.
            next = if taken < MAX_AT_ONCE { self.pump.ready() } else { None };
        }
        if self.readers.are_background(&self.answer) {
            self.gather_until = now + BACKGROUND_GATHER;
        }
        ControlFlow::Continue(())
    }

    fn append(&mut self, now: Micros) {
        self.pump.append(now, &mut self.answer);
        self.readers.note_append(now, self.answer.log().head());
    }

    /// Does everything due at `now`; breaks with the reason if the answer is over.
    fn drive(&mut self, now: Micros) -> ControlFlow<Code> {
        self.drive_readers(now)?;
        if self.is_waiting() {
            // Event streams do not say by themselves how far they are.
            self.readers.ask_for_word(now);
            self.keep_for_furthest();
        }
        // Acknowledgements may have made room in the log.
        if !self.pump.is_ready() && self.pump.is_open() {
            self.append(now);
            self.drive_readers(now)?;
        }
        self.share();
        self.check_ahead(now);
        self.looks.check(&self.pump, &self.answer, &self.epochs);
        self.note_reading(now);
        self.note_readers(now);
        ControlFlow::Continue(())
    }

    /// Reports the reader's unread text to the scheduler if it differs from the scheduler's
    /// estimate.
    fn note_reading(&mut self, now: Micros) {
        self.reading.note_append(self.answer.log().head(), self.pump.tokens());
        let news = match self.readers.only_by_datagrams().map(DatagramReader::delivery) {
            Some(delivery) => {
                let (acked, rtt) = (delivery.cumulative(), delivery.rtt().smoothed());
                self.reading.note_reader(now, acked, delivery.reader(), rtt)
            }
            None => self.reading.lose_sight(),
        };
        if let Some(report) = news {
            self.pump.note_reader(report);
        }
    }

    fn drive_readers(&mut self, now: Micros) -> ControlFlow<Code> {
        loop {
            let has_failed = self.pump.has_failed();
            let visible = self.visible();
            let cutter = &mut self.cutter;
            let mut source = LogSource { answer: &self.answer, visible, has_failed, cutter };
            let over = self.readers.drive(now, &mut source, &self.answers.metrics);
            self.keep_for_furthest();
            let Some((id, end)) = over else { return ControlFlow::Continue(()) };
            // The rest is driven after it: one reader's end is nothing to the others.
            tracing::debug!(?end, "a reader's path is over");
            self.readers.remove(id, end);
            self.keep_for_furthest();
            self.cutter.is_shared = self.readers.len() > 1;
            if end == ReaderEnd::Stopped {
                self.is_stopped = true;
                return ControlFlow::Break(Code::Stopped);
            }
        }
    }

    /// Makes the log keep, while it has room, everything that the furthest reader has not
    /// acknowledged. While nobody reads, the position of the last reader counts.
    fn keep_for_furthest(&mut self) {
        let ahead = self.ahead.iter().map(|reader| reader.wish.position().offset).max();
        let ahead = ahead.map(|offset| offset.min(self.answer.log().head()));
        if let Some(furthest) = self.readers.furthest().max(ahead) {
            let kept = furthest.max(self.answer.log().base());
            self.answer.rewind(kept).expect("acknowledged, and so a part of the log");
        } else if let Some(sharing) = self.sharing.as_ref().filter(|it| it.slot.is_read()) {
            // Who reads elsewhere has it from the store, and nobody here needs it.
            let stored = sharing.slot.stored().min(self.answer.log().head());
            self.answer.acknowledge(stored).expect("not beyond the log");
        }
    }

    /// True if anybody reads, here or at another replica.
    fn is_read(&self) -> bool {
        self.readers.is_reading() || self.sharing.as_ref().is_some_and(|it| it.slot.is_read())
    }

    /// Records the time since which nobody reads. An ended answer without a reader releases its
    /// unused reservation.
    fn note_readers(&mut self, now: Micros) {
        let is_read = self.is_read();
        self.unread_since = if is_read { None } else { self.unread_since.or(Some(now)) };
        if !is_read && self.answer.log().is_ended() {
            let log = self.answer.log();
            self.reservation.settle((log.head() - log.base()) as usize);
        }
    }

    /// True if even the furthest reader has reached the limit on unacknowledged bytes.
    fn are_behind(&self) -> bool {
        let limit = self.answers.limits.unacked_bytes as u64;
        let head = self.answer.log().head();
        self.readers.furthest().is_some_and(|furthest| head - furthest >= limit)
    }

    /// True if generation waits for readers' acknowledgements.
    fn is_waiting(&self) -> bool {
        self.pump.is_open() && (self.are_behind() || !self.pump.is_ready())
    }

    /// Records that a reader without a path has everything before `from`, so that the log may drop
    /// it. Reading further, or waiting for more, keeps the answer for the next visit; repeated
    /// requests for the same bytes do not.
    fn note_look(&mut self, now: Micros, from: u64, waits: bool) {
        let reads_on = from > self.answer.log().acked();
        let waits_for_more = waits && from == self.answer.log().head() && self.pump.is_open();
        // An offset that the log does not have acknowledges nothing.
        let is_known = !reads_on || self.answer.acknowledge(from).is_ok();
        if is_known && (reads_on || waits_for_more) {
            self.unread_since = self.unread_since.map(|_| now);
        }
    }

    /// True if the log takes another flush. With readers, the limit is the unacknowledged bytes of
    /// the furthest one; without, the log's own size (S-5.5). Flushes that are not taken fill their
    /// channel, which pauses generation.
    fn takes_flushes(&self, now: Micros) -> bool {
        // Whoever is ahead of this mirror is its furthest reader.
        let is_behind = self.ahead.is_empty() && self.are_behind();
        self.pump.is_ready() && !is_behind && now >= self.gather_until
    }

    /// Returns the time until which another replica counts as reading an ended answer.
    fn read_until(&self, now: Micros) -> Option<Micros> {
        let sharing = self.sharing.as_ref().filter(|_| self.answer.log().is_ended())?;
        Some(now + sharing.slot.read_for()?.into())
    }

    fn is_over(&self, now: Micros) -> bool {
        self.forget_at().is_some_and(|at| now >= at)
    }

    fn forget_at(&self) -> Option<Micros> {
        self.unread_since.map(|since| since + Micros::from(self.answers.limits.grace))
    }

    fn wake_at(&self, now: Micros) -> Option<Micros> {
        let readers = self.readers.poll_timeout();
        let gather = Some(self.gather_until).filter(|at| *at > now && self.pump.is_open());
        let ahead = self.ahead.iter().map(|reader| reader.until).min();
        [readers, gather, ahead, self.read_until(now), self.forget_at()].into_iter().flatten().min()
    }

    /// Returns the time to act at: the timer's time once it is at most [`EARLY`] away, otherwise
    /// the clock's.
    fn now(&mut self) -> Micros {
        let clock = self.clock();
        let due = self.armed.filter(|at| *at <= clock + EARLY);
        self.time = self.time.max(due.map_or(clock, |at| at.max(clock)));
        self.time
    }

    fn clock(&self) -> Micros {
        self.answers.clock.now().into()
    }
}

/// Waits for the first of `futures`. If several are ready, the first from number `turn` on counts,
/// so that none waits for the others for ever, and the order is always the same.
async fn first_ready<T, const N: usize>(
    mut futures: [Pin<&mut (dyn Future<Output = T> + Send)>; N],
    turn: usize,
) -> T {
    futures.rotate_left(turn % N);
    std::future::poll_fn(|context| {
        for future in &mut futures {
            if let Poll::Ready(first) = future.as_mut().poll(context) {
                return Poll::Ready(first);
            }
        }
        Poll::Pending
    })
    .await
}

/// Sets `timer` to fire after `left`, or not at all. If it were left unchanged while nothing is
/// due, it would wake an idle task once for each token acknowledged in time.
fn set_timer(timer: Pin<&mut Sleep>, left: Option<Duration>) {
    timer.reset(Instant::now() + left.unwrap_or(NEVER));
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test]
    async fn events_that_are_ready_at_once_come_first_in_turns() {
        for turn in 0..6 {
            let (one, never) = (async { 0 }, std::future::pending());
            let (two, three) = (async { 2 }, async { 3 });
            let futures: [Pin<&mut (dyn Future<Output = usize> + Send)>; 4] =
                [pin!(one), pin!(never), pin!(two), pin!(three)];
            let expected = [0, 2, 2, 3][turn % 4];
            assert_eq!(first_ready(futures, turn).await, expected, "turn {turn}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_timer_for_which_nothing_waits_any_more_wakes_nobody() {
        let mut timer = std::pin::pin!(tokio::time::sleep(Duration::ZERO));
        set_timer(timer.as_mut(), Some(Duration::from_millis(60)));
        let mut polls = 0;
        let task = poll_fn(|context| {
            polls += 1;
            // What it waited for comes at once.
            assert!(timer.as_mut().poll(context).is_pending());
            set_timer(timer.as_mut(), None);
            Poll::<()>::Pending
        });
        assert!(tokio::time::timeout(Duration::from_secs(1), task).await.is_err());
        assert_eq!(polls, 2, "once at the beginning, and once by the timeout itself");
    }
}
