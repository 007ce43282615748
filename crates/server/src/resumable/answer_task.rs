//! One resumable answer: a task that owns its flushes, its log, and the paths to its readers.
//!
//! It waits for a flush, a command, an event stream's body, or a time; after each it gives the
//! readers whom that concerns what they have due. Time goes into everything here as an argument.
//!
//! The furthest reader sets the pace: generation goes on while one of them keeps up, and the log
//! drops what that one has acknowledged once it is full. One that needs what was dropped is gone
//! (S-5.4).

use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use loquent_proto::chunk::ChunkWriter;
use loquent_proto::message::Code;
use loquent_proto::{AnswerHandle, AnswerLog, Delivery, Micros, SenderConfig};
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep};

use super::datagram_reader::DatagramReader;
use super::event_reader::{EventReader, PieceCutter};
use super::events_slot::ReadyBodies;
use super::log_pump::LogPump;
use super::looks::WaitingLooks;
use super::reader_status::ReaderEnd;
use super::readers::{LogSource, MAX_READERS, Reader, ReaderKind, Readers};
use super::{AnswerCommand, PathId, ReaderPath, Reservation, ResumableAnswers};
use crate::flush::Flush;
use crate::metrics::StreamCarrier;

/// How long flushes to a reader in no hurry are gathered. It trades chunks and records against
/// delay; a reader in the background gets a packet a second anyway (`spec/delivery.md`,
/// section 8), and one that is behind its own pace shows nothing sooner.
const BACKGROUND_GATHER: Micros = Micros::from_ms(200);
/// Flushes, or commands, taken at once before what is due is sent.
const MAX_AT_ONCE: usize = 64;
/// Timers fire up to a millisecond after their time, a fifth of the gap between repetitions on a
/// short path (`spec/delivery.md`, section 8). So they are set this much before it, and what is due
/// within this time counts as due.
const EARLY: Micros = Micros::from_ms(1);

/// What woke the task.
enum TaskEvent {
    Command(Option<AnswerCommand>),
    Flush(Option<Flush>),
    Bodies,
    Time,
}

/// See the module's documentation.
pub struct AnswerTask {
    answers: Arc<ResumableAnswers>,
    reservation: Reservation,
    handle: AnswerHandle,
    pump: LogPump,
    config: SenderConfig,
    answer: AnswerLog,
    readers: Readers,
    cutter: PieceCutter,
    /// Where event streams' bodies report.
    ready: Arc<ReadyBodies>,
    /// Readers without a path that wait for more.
    looks: WaitingLooks,
    /// Nobody has read since then.
    unread_since: Option<Micros>,
    /// No reader is in a hurry: flushes wait until then.
    gather_until: Micros,
    /// What the timer is set for.
    armed: Option<Micros>,
    /// The latest time by which anything was done.
    time: Micros,
}

impl AnswerTask {
    /// A task that fills a log from `pump` and delivers it, first over `path`, as `config` says.
    pub fn new(
        answers: Arc<ResumableAnswers>,
        reservation: Reservation,
        handle: AnswerHandle,
        pump: LogPump,
        config: SenderConfig,
        path: (PathId, ReaderPath),
    ) -> Self {
        let now = Micros::from(answers.clock.now());
        let mut task = Self {
            answers,
            reservation,
            handle,
            pump,
            answer: AnswerLog::new(now, config.max_log_bytes),
            config,
            readers: Readers::default(),
            cutter: PieceCutter::default(),
            ready: Arc::default(),
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
            if let ControlFlow::Break(code) = self.drive(now) {
                break code;
            }
            if self.is_over(now) {
                break Code::Stopped;
            }
            let wake_at = self.wake_at(now);
            // Setting the timer has its cost, and most turns leave the time as it was.
            if let Some(at) = wake_at.filter(|_| wake_at != self.armed) {
                let left = at.since(self.clock() + EARLY);
                timer.as_mut().reset(Instant::now() + Duration::from(left));
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
        tracing::debug!(bytes = self.answer.log().head(), "an answer is forgotten");
    }

    /// Waits for what comes first; `timer` is there if anything is due at a time.
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
            () = bodies => TaskEvent::Bodies,
            () = time => TaskEvent::Time,
        }
    }

    /// Handles what woke the task; breaks with the reason why the answer is over.
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
            TaskEvent::Flush(flush) => self.handle_flushes(now, flush),
            TaskEvent::Bodies => self.readers.touch_all(&self.ready),
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
                self.note_look(now, look.from, look.waits);
                self.looks.handle(look, &self.pump, &self.answer);
            }
            // Without a reader, they are of a path that is over (D-6.3).
            AnswerCommand::Frame(id, frame) => {
                if let Some(reader) = self.readers.touch(id).and_then(Reader::datagrams) {
                    reader.handle_frame(now, &self.answer, &frame, &self.answers.metrics);
                }
            }
            AnswerCommand::Leave(id) => drop(self.readers.remove(id, ReaderEnd::Left)),
            // One reader's wish is enough, as DELETE is (S-4.5).
            AnswerCommand::Cancel(id) if self.readers.remove(id, ReaderEnd::Left) => {
                return ControlFlow::Break(Code::Stopped);
            }
            AnswerCommand::Cancel(_) => {}
            AnswerCommand::End(code) => return ControlFlow::Break(code),
        }
        ControlFlow::Continue(())
    }

    /// Delivers the answer over `path` too, from `offset` on.
    fn attach(
        &mut self,
        now: Micros,
        id: PathId,
        path: ReaderPath,
        offset: u64,
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
                delivery.continue_after(self.readers.sent_so_far());
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
        let counted = self.answers.metrics.active_path(transport);
        self.readers.insert(id, Reader::new(kind, place, counted));
        self.cutter.is_shared = self.readers.len() > 1;
        self.keep_for_furthest();
    }

    /// Takes a flush and those that wait behind it.
    fn handle_flushes(&mut self, now: Micros, first: Option<Flush>) {
        let (mut next, mut taken) = (Some(first), 0);
        while let Some(flush) = next {
            self.pump.handle_flush(now, flush, &mut self.answer);
            self.readers.note_append(now, self.answer.log().head());
            taken += 1;
            // Not beyond the bound: what is taken from the channel is in no other place.
            next = if taken < MAX_AT_ONCE { self.pump.ready_flush() } else { None };
        }
        if self.readers.are_background(&self.answer) {
            self.gather_until = now + BACKGROUND_GATHER;
        }
    }

    fn append(&mut self, now: Micros) {
        self.pump.append(now, &mut self.answer);
        self.readers.note_append(now, self.answer.log().head());
    }

    /// Does what is due at `now`; breaks with the reason why the answer is over.
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
        self.looks.check(&self.pump, &self.answer);
        self.note_readers(now);
        ControlFlow::Continue(())
    }

    fn drive_readers(&mut self, now: Micros) -> ControlFlow<Code> {
        loop {
            let has_failed = self.pump.has_failed();
            let mut source =
                LogSource { answer: &self.answer, has_failed, cutter: &mut self.cutter };
            let over = self.readers.drive(now, &mut source, &self.answers.metrics);
            self.keep_for_furthest();
            let Some((id, end)) = over else { return ControlFlow::Continue(()) };
            // The rest is driven after it: one reader's end is nothing to the others.
            tracing::debug!(?end, "a reader's path is over");
            self.readers.remove(id, end);
            self.keep_for_furthest();
            self.cutter.is_shared = self.readers.len() > 1;
            if end == ReaderEnd::Stopped {
                return ControlFlow::Break(Code::Stopped);
            }
        }
    }

    /// The log keeps, while it has room, all that the furthest reader has not acknowledged. While
    /// nobody reads, that is where the last one was.
    fn keep_for_furthest(&mut self) {
        if let Some(furthest) = self.readers.furthest() {
            let kept = furthest.max(self.answer.log().base());
            self.answer.rewind(kept).expect("acknowledged, and so a part of the log");
        }
    }

    /// Notes since when nobody reads; an ended answer without a reader frees what it can.
    fn note_readers(&mut self, now: Micros) {
        let is_read = self.readers.is_reading();
        self.unread_since = if is_read { None } else { self.unread_since.or(Some(now)) };
        if !is_read && self.answer.log().is_ended() {
            let log = self.answer.log();
            self.reservation.settle((log.head() - log.base()) as usize);
        }
    }

    /// Whether even the furthest reader has as much to acknowledge as one may have.
    fn are_behind(&self) -> bool {
        let limit = self.answers.limits.unacked_bytes as u64;
        let head = self.answer.log().head();
        self.readers.furthest().is_some_and(|furthest| head - furthest >= limit)
    }

    /// Whether generation waits for what readers acknowledge.
    fn is_waiting(&self) -> bool {
        self.pump.is_open() && (self.are_behind() || !self.pump.is_ready())
    }

    /// A reader without a path has all before `from`, so that the log may drop it. Whoever reads
    /// on, or waits for more, has the answer kept for its next visit; asking again and again for
    /// the same keeps nothing.
    fn note_look(&mut self, now: Micros, from: u64, waits: bool) {
        let reads_on = from > self.answer.log().acked();
        let waits_for_more = waits && from == self.answer.log().head() && self.pump.is_open();
        // An offset that the log does not have acknowledges nothing.
        let is_known = !reads_on || self.answer.acknowledge(from).is_ok();
        if is_known && (reads_on || waits_for_more) {
            self.unread_since = self.unread_since.map(|_| now);
        }
    }

    /// Whether the log wants more. Readers bound it by what the furthest of them has not
    /// acknowledged; while nobody reads, the log's own size does (S-5.5). Flushes that are not
    /// taken fill their channel, which pauses generation.
    fn takes_flushes(&self, now: Micros) -> bool {
        self.pump.is_ready() && !self.are_behind() && now >= self.gather_until
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
        [readers, gather, self.forget_at()].into_iter().flatten().min()
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
