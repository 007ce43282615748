//! One resumable answer: a task that owns its flushes, its log, and the path to its reader.
//!
//! It waits for a flush, a command, room on the path, or a time; after each it sends what the
//! protocol's [`Sender`] has due. Time goes into everything here as an argument.

use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use loquent_proto::chunk::ChunkWriter;
use loquent_proto::message::Code;
use loquent_proto::{AnswerHandle, Micros, Sender, SenderConfig, SenderEvent, SenderState};
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep};

use super::datagram_reader::DatagramReader;
use super::event_reader::{BodyEvent, EventReader};
use super::log_pump::LogPump;
use super::looks::WaitingLooks;
use super::{AnswerCommand, PathId, ReaderPath, Reservation, ResumableAnswers};
use crate::flush::Flush;
use crate::metrics::GaugeGuard;

/// How long flushes to a reader in no hurry are gathered. It trades chunks and records against
/// delay; a reader in the background gets a packet a second anyway (`spec/delivery.md`,
/// section 8), and one that is behind its own pace shows nothing sooner.
const BACKGROUND_GATHER: Micros = Micros::from_ms(200);
/// Flushes taken at once before what is due is sent.
const MAX_FLUSHES: usize = 64;
/// Timers fire up to a millisecond after their time, a fifth of the gap between repetitions on a
/// short path (`spec/delivery.md`, section 8). So they are set this much before it, and what is due
/// within this time counts as due.
const EARLY: Micros = Micros::from_ms(1);

/// The path in use.
struct AttachedPath {
    id: PathId,
    kind: PathKind,
    _counted: GaugeGuard,
}

enum PathKind {
    Datagrams(Box<DatagramReader>),
    Events(EventReader),
}

impl AttachedPath {
    /// Tells the other end why this path is over. An event stream just breaks off.
    fn end(self, code: Code) {
        if let PathKind::Datagrams(path) = self.kind {
            path.end(code);
        }
    }
}

/// What woke the task.
enum TaskEvent {
    Command(Option<AnswerCommand>),
    Flush(Option<Flush>),
    Body(BodyEvent),
    Time,
}

/// See the module's documentation.
pub struct AnswerTask {
    answers: Arc<ResumableAnswers>,
    reservation: Reservation,
    handle: AnswerHandle,
    pump: LogPump,
    sender: Sender,
    path: Option<AttachedPath>,
    /// Readers without a path that wait for more.
    looks: WaitingLooks,
    /// Nobody has read since then.
    unread_since: Option<Micros>,
    /// The reader is in no hurry: flushes wait until then.
    gather_until: Micros,
    /// What the timer is set for.
    armed: Option<Micros>,
    /// The latest time by which anything was done.
    time: Micros,
}

impl AnswerTask {
    /// A task that fills a log from `pump` and delivers it over `path`, as `config` says.
    pub fn new(
        answers: Arc<ResumableAnswers>,
        reservation: Reservation,
        handle: AnswerHandle,
        pump: LogPump,
        config: SenderConfig,
        path: (PathId, ReaderPath),
    ) -> Self {
        let now = Micros::from(answers.clock.now());
        let sender = Sender::new(now, 0, config);
        let mut task = Self {
            answers,
            reservation,
            handle,
            pump,
            sender,
            path: None,
            looks: WaitingLooks::default(),
            unread_since: None,
            gather_until: Micros::ZERO,
            armed: None,
            time: now,
        };
        task.append(now);
        let attached = task.attach(now, path.0, path.1, 0);
        debug_assert!(attached.is_some(), "a fresh log begins at 0");
        task
    }

    /// Runs until the answer is forgotten.
    pub async fn run(mut self, mut inbox: mpsc::Receiver<AnswerCommand>) {
        let mut timer = std::pin::pin!(tokio::time::sleep(Duration::ZERO));
        let code = loop {
            let now = self.now();
            self.drive(now);
            if self.is_over(now) {
                break Code::Stopped;
            }
            let wake_at = self.wake_at(now);
            if let Some(at) = wake_at.filter(|_| wake_at != self.armed) {
                let left = at.since(self.clock() + EARLY);
                timer.as_mut().reset(Instant::now() + Duration::from(left));
                self.armed = wake_at;
            }
            let timer = wake_at.is_some().then_some(timer.as_mut());
            let event = self.wait(now, &mut inbox, timer).await;
            if let ControlFlow::Break(code) = self.handle(event) {
                break code;
            }
        };
        self.end_path(code);
        self.answers.forget(&self.handle);
        tracing::debug!(bytes = self.sender.log().head(), "an answer is forgotten");
    }

    /// Waits for what comes first; `timer` is there if anything is due at a time.
    async fn wait(
        &mut self,
        now: Micros,
        inbox: &mut mpsc::Receiver<AnswerCommand>,
        timer: Option<Pin<&mut Sleep>>,
    ) -> TaskEvent {
        let takes_flushes = self.takes_flushes(now);
        let log = self.sender.log();
        let body = async {
            match &mut self.path {
                Some(AttachedPath { kind: PathKind::Events(events), .. }) => {
                    events.wait(events.has_news(log)).await
                }
                _ => std::future::pending().await,
            }
        };
        let pump = &mut self.pump;
        let flush = async {
            match takes_flushes {
                true => pump.next_flush().await,
                false => std::future::pending().await,
            }
        };
        let time = async {
            match timer {
                Some(timer) => timer.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            command = inbox.recv() => TaskEvent::Command(command),
            flush = flush => TaskEvent::Flush(flush),
            event = body => TaskEvent::Body(event),
            () = time => TaskEvent::Time,
        }
    }

    fn end_path(&mut self, code: Code) {
        if let Some(path) = self.path.take() {
            path.end(code);
        }
    }

    /// Handles what woke the task; breaks with the reason why the answer is over.
    fn handle(&mut self, event: TaskEvent) -> ControlFlow<Code> {
        let now = self.now();
        match event {
            TaskEvent::Command(Some(command)) => return self.handle_command(now, command),
            TaskEvent::Command(None) => return ControlFlow::Break(Code::Stopped),
            TaskEvent::Flush(flush) => self.handle_flushes(now, flush),
            TaskEvent::Body(BodyEvent::Room) => self.hand_on(now),
            TaskEvent::Body(BodyEvent::Taken) => self.acknowledge_taken(),
            TaskEvent::Body(BodyEvent::Gone) => self.path = None,
            TaskEvent::Time => {}
        }
        ControlFlow::Continue(())
    }

    fn handle_command(&mut self, now: Micros, command: AnswerCommand) -> ControlFlow<Code> {
        match command {
            AnswerCommand::Attach { id, path, offset, reply } => {
                let chunks = self.attach(now, id, path, offset);
                self.answers.metrics.on_resume(chunks.is_some());
                let _ = reply.send(chunks);
            }
            AnswerCommand::Look(look) => {
                // Whoever asks reads: the answer is kept for its next visit.
                self.unread_since = self.unread_since.map(|_| now);
                self.looks.handle(look, &self.pump, &self.sender);
            }
            AnswerCommand::Frame(path, frame) if self.is_at(path) => {
                if let Some(AttachedPath { kind: PathKind::Datagrams(path), .. }) = &mut self.path {
                    path.handle_frame(now, &frame, &mut self.sender, &self.answers.metrics);
                }
            }
            AnswerCommand::Leave(path) if self.is_at(path) => {
                self.sender.suspend();
                self.path = None;
            }
            AnswerCommand::Cancel(path) if self.is_at(path) => {
                return ControlFlow::Break(Code::Stopped);
            }
            // Of an older path: the reader has moved on (D-6.3).
            AnswerCommand::Frame(..) | AnswerCommand::Leave(_) | AnswerCommand::Cancel(_) => {}
            AnswerCommand::End(code) => return ControlFlow::Break(code),
        }
        ControlFlow::Continue(())
    }

    fn is_at(&self, path: PathId) -> bool {
        self.path.as_ref().is_some_and(|attached| attached.id == path)
    }

    /// Goes on over `path` from `offset`; the older path is dead (D-6.3, S-5.4).
    fn attach(
        &mut self,
        now: Micros,
        id: PathId,
        path: ReaderPath,
        offset: u64,
    ) -> Option<ChunkWriter> {
        // Everything that can refuse comes first: a refused reader must not end the older one.
        let (chunks, channel) = match &path {
            ReaderPath::Events(_) => (self.pump.chunks_at(&self.sender, offset)?, 0),
            ReaderPath::Datagrams { channel, link, .. } => {
                self.sender.set_initial_rtt(link.rtt().into());
                (ChunkWriter::new(), *channel)
            }
        };
        self.sender.resume(now, channel, offset).ok()?;
        let kind = match path {
            ReaderPath::Events(path) => {
                // Its bytes leave with the connection; the sender only keeps the log.
                self.sender.suspend();
                let stall_limit = self.answers.limits.stall_limit;
                PathKind::Events(EventReader::new(path, offset, stall_limit))
            }
            ReaderPath::Datagrams { link, frames, .. } => {
                let reader = DatagramReader::new(link, frames, offset, &mut self.sender);
                PathKind::Datagrams(Box::new(reader))
            }
        };
        self.gather_until = Micros::ZERO;
        self.end_path(Code::Superseded);
        let _counted = self.answers.metrics.active_path();
        self.path = Some(AttachedPath { id, kind, _counted });
        Some(chunks)
    }

    /// Takes a flush and those that wait behind it.
    fn handle_flushes(&mut self, now: Micros, first: Option<Flush>) {
        let mut next = Some(first);
        let mut taken = 0;
        while let Some(flush) = next {
            self.pump.handle_flush(now, flush, &mut self.sender);
            self.note_append(now);
            taken += 1;
            // The count comes first: a flush that is taken here and not handled is lost.
            next = if taken < MAX_FLUSHES { self.pump.ready_flush() } else { None };
        }
        if self.sender.is_background() && self.is_by_datagram() {
            self.gather_until = now + BACKGROUND_GATHER;
        }
    }

    fn append(&mut self, now: Micros) {
        self.pump.append(now, &mut self.sender);
        self.note_append(now);
    }

    fn note_append(&mut self, now: Micros) {
        if let Some(AttachedPath { kind: PathKind::Datagrams(path), .. }) = &mut self.path {
            path.note_append(now, self.sender.log().head());
        }
    }

    /// Gives the event stream its next piece. There is room for it.
    fn hand_on(&mut self, now: Micros) {
        let Some(AttachedPath { kind: PathKind::Events(path), .. }) = &mut self.path else {
            return;
        };
        if !path.hand_on(now, self.sender.log(), self.pump.has_failed()) {
            self.path = None;
        }
    }

    /// The connection has more of the event stream, so that the log needs less of it.
    fn acknowledge_taken(&mut self) {
        if let Some(AttachedPath { kind: PathKind::Events(path), .. }) = &mut self.path {
            path.acknowledge(&mut self.sender);
        }
    }

    /// Does what is due at `now`.
    fn drive(&mut self, now: Micros) {
        self.sender.handle_timeout(now);
        let alive = match self.path.as_mut().map(|attached| &mut attached.kind) {
            Some(PathKind::Datagrams(path)) => {
                path.transmit(now, &mut self.sender, &self.answers.metrics)
            }
            Some(PathKind::Events(path)) => path.check(now, self.sender.log()),
            None => true,
        };
        if !alive {
            self.end_path(Code::BrokenOff);
        }
        while let Some(event) = self.sender.poll_event() {
            match (event, &self.path) {
                (
                    SenderEvent::Finished,
                    Some(AttachedPath { kind: PathKind::Datagrams(path), .. }),
                ) => {
                    path.end(Code::None);
                    self.path = None;
                }
                _ => tracing::trace!(?event, "delivery"),
            }
        }
        // Acknowledgements may have made room in the log.
        if !self.pump.is_ready() && self.pump.is_open() {
            self.append(now);
        }
        self.looks.check(&self.pump, &self.sender);
        self.note_reader(now);
    }

    /// Notes since when nobody reads; an ended answer without a reader frees what it can.
    fn note_reader(&mut self, now: Micros) {
        let is_read = match self.path.as_ref().map(|attached| &attached.kind) {
            None => false,
            Some(PathKind::Events(_)) => true,
            Some(PathKind::Datagrams(_)) => self.sender.state() == SenderState::Active,
        };
        self.unread_since = if is_read { None } else { self.unread_since.or(Some(now)) };
        if !is_read && self.sender.log().is_ended() {
            let log = self.sender.log();
            self.reservation.settle((log.head() - log.base()) as usize);
        }
    }

    fn is_by_datagram(&self) -> bool {
        matches!(&self.path, Some(AttachedPath { kind: PathKind::Datagrams(_), .. }))
    }

    /// Whether the log wants more. A reader bounds it by what it has not acknowledged; while
    /// nobody reads, the log's own size does (S-5.5). Flushes that are not taken fill their
    /// channel, which pauses generation.
    fn takes_flushes(&self, now: Micros) -> bool {
        let unacked = (self.sender.log().head() - self.sender.cumulative()) as usize;
        let behind = self.unread_since.is_none() && unacked >= self.answers.limits.unacked_bytes;
        self.pump.is_ready() && !behind && now >= self.gather_until
    }

    fn is_over(&self, now: Micros) -> bool {
        let stopped = self.sender.state() == SenderState::Stopped;
        stopped || self.forget_at().is_some_and(|at| now >= at)
    }

    fn forget_at(&self) -> Option<Micros> {
        self.unread_since.map(|since| since + Micros::from(self.answers.limits.grace))
    }

    fn wake_at(&self, now: Micros) -> Option<Micros> {
        let path = match self.path.as_ref().map(|attached| &attached.kind) {
            Some(PathKind::Datagrams(path)) => path.poll_timeout(&self.sender),
            Some(PathKind::Events(path)) => path.poll_timeout(),
            None => None,
        };
        let gather = Some(self.gather_until).filter(|at| *at > now && self.pump.is_open());
        [path, gather, self.forget_at()].into_iter().flatten().min()
    }

    /// The time by which to act: what the timer is set for, from shortly before it on.
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
