//! One kept answer: a task that owns its flushes, its log, and the path to its reader.
//!
//! It waits for a flush, an order, room on the path, or a time; whatever came, it then sends
//! what the protocol's [`Sender`] says is due. Time goes into the sender as an argument.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use loquent_proto::chunk::ChunkWriter;
use loquent_proto::delta::MAX_RECORD_BYTES;
use loquent_proto::{
    AnswerHandle, Delta, Error, Micros, ReliableFallback, Sender, SenderConfig, SenderEvent,
    SenderState,
};
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep};

use super::landmarks::Landmarks;
use super::records::Records;
use super::{Aside, Order, Path, PathId, Piece, Place, Streams};
use crate::answering::Answering;
use crate::error::ApiError;
use crate::flush::Flush;
use crate::metrics::ActivePath;

/// Largest datagram that leaves; what browsers take.
const DATAGRAM_BYTES: usize = 1150;
/// Log bytes in one piece of an event stream, or one frame beside the datagrams.
const PIECE_BYTES: u64 = 16 * 1024;
/// Flushes to a reader in no hurry are gathered for so long.
const LAZY_GATHER: Micros = Micros::from_ms(200);
/// Flushes taken at once before what is due is sent.
const MAX_FLUSHES: usize = 64;
/// Timers fire up to a millisecond after their time, a fifth of the gap between alarms on a short
/// path (`spec/delivery.md`, section 7). So they are set this much before it, and what is due
/// within this time counts as due.
const EARLY: Micros = Micros::from_ms(1);
/// Times of appends remembered for the acknowledgement's latency.
const MAX_APPENDS: usize = 256;

/// The path in use.
struct Attached {
    id: PathId,
    path: Path,
    _counted: ActivePath,
}

/// What woke the task.
enum Woken {
    Order(Option<Order>),
    Flush(Option<Flush>),
    Room(bool),
    Time,
}

/// See the module's documentation.
pub struct Keeper {
    streams: Arc<Streams>,
    place: Place,
    name: AnswerHandle,
    /// `None` once the log has its last record.
    answering: Option<Box<Answering>>,
    records: Records,
    /// Records that the log has no room for yet.
    waiting: VecDeque<Delta>,
    landmarks: Landmarks,
    sender: Sender,
    path: Option<Attached>,
    fallback: ReliableFallback,
    /// Everything below has left by datagram: what leaves again is redundant.
    sent: u64,
    /// The log's last record is an error.
    failed: bool,
    /// Handed to the event stream, and since when it takes no more.
    handed: u64,
    stuck_since: Option<Micros>,
    /// Nobody has read since then.
    unread_since: Option<Micros>,
    /// A reader in no hurry: flushes wait until then.
    gather_until: Micros,
    /// What the timer is set for.
    armed: Option<Micros>,
    /// The latest time by which anything was done.
    time: Micros,
    appends: VecDeque<(u64, Micros)>,
    datagram: Vec<u8>,
}

impl Keeper {
    /// Keeps `answering`, whose first records are `waiting`, and delivers it over `path`.
    pub fn new(
        streams: Arc<Streams>,
        place: Place,
        name: AnswerHandle,
        answering: Answering,
        records: Records,
        waiting: VecDeque<Delta>,
        path: (PathId, Path),
    ) -> Self {
        let now = micros(streams.clock.now());
        let max_log_bytes = streams.limits.log_bytes;
        let sender = Sender::new(now, 0, SenderConfig { max_log_bytes, ..SenderConfig::default() });
        let mut keeper = Self {
            streams,
            place,
            name,
            answering: Some(Box::new(answering)),
            records,
            waiting,
            landmarks: Landmarks::default(),
            sender,
            path: None,
            fallback: ReliableFallback::default(),
            sent: 0,
            failed: false,
            handed: 0,
            stuck_since: None,
            unread_since: None,
            gather_until: Micros::ZERO,
            armed: None,
            time: now,
            appends: VecDeque::new(),
            datagram: Vec::new(),
        };
        keeper.landmarks.note_place(0);
        keeper.append(now);
        let attached = keeper.attach(now, path.0, path.1, 0);
        debug_assert!(attached.is_some(), "a fresh log begins at 0");
        keeper
    }

    /// Runs until the answer is forgotten.
    pub async fn run(mut self, mut inbox: mpsc::Receiver<Order>) {
        let mut timer = std::pin::pin!(tokio::time::sleep(Duration::ZERO));
        loop {
            let now = self.now();
            self.drive(now);
            if self.is_over(now) {
                break;
            }
            let wake_at = self.wake_at(now);
            if let Some(at) = wake_at.filter(|_| wake_at != self.armed) {
                let left = at.since(self.clock() + EARLY);
                timer.as_mut().reset(Instant::now() + Duration::from_micros(left.0));
                self.armed = wake_at;
            }
            let timer = wake_at.is_some().then_some(timer.as_mut());
            let woken = self.wait(now, &mut inbox, timer).await;
            if self.handle(woken).is_break() {
                break;
            }
        }
        self.streams.forget(&self.name);
        tracing::debug!(bytes = self.sender.log().head(), "an answer is forgotten");
    }

    /// Waits for what comes first; `timer` is set if anything is due at a time.
    async fn wait(
        &mut self,
        now: Micros,
        inbox: &mut mpsc::Receiver<Order>,
        timer: Option<Pin<&mut Sleep>>,
    ) -> Woken {
        let takes_flushes = self.takes_flushes(now);
        let log = self.sender.log();
        let has_news = self.handed < log.head() || log.is_ended();
        let events = match way(&self.path) {
            Some(Path::Events(pieces)) => Some(pieces),
            _ => None,
        };
        let room = async {
            match events {
                Some(pieces) if has_news => pieces.reserve().await.is_ok(),
                Some(pieces) => {
                    pieces.closed().await;
                    false
                }
                None => std::future::pending().await,
            }
        };
        let answering = &mut self.answering;
        let flush = async {
            match answering {
                Some(answering) if takes_flushes => answering.next_flush().await,
                _ => std::future::pending().await,
            }
        };
        let time = async {
            match timer {
                Some(timer) => timer.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            order = inbox.recv() => Woken::Order(order),
            flush = flush => Woken::Flush(flush),
            open = room => Woken::Room(open),
            () = time => Woken::Time,
        }
    }

    fn handle(&mut self, woken: Woken) -> ControlFlow<()> {
        let now = self.now();
        match woken {
            Woken::Order(Some(order)) => return self.handle_order(now, order),
            Woken::Order(None) => return ControlFlow::Break(()),
            Woken::Flush(flush) => self.handle_flushes(now, flush),
            Woken::Room(true) => self.hand_on(now),
            Woken::Room(false) => self.path = None,
            Woken::Time => {}
        }
        ControlFlow::Continue(())
    }

    fn handle_order(&mut self, now: Micros, order: Order) -> ControlFlow<()> {
        match order {
            Order::Attach { id, path, offset, reply } => {
                let chunks = self.attach(now, id, path, offset);
                self.streams.metrics.on_resume(chunks.is_some());
                let _ = reply.send(chunks);
            }
            Order::Frame(path, frame) if self.is_at(path) => self.handle_frame(now, &frame),
            Order::Leave(path) if self.is_at(path) => {
                self.sender.suspend();
                self.path = None;
            }
            Order::Cancel(path) if self.is_at(path) => return ControlFlow::Break(()),
            Order::Frame(..) | Order::Leave(_) | Order::Cancel(_) => {} // of an older path
            Order::Forget => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    fn path(&self) -> Option<&Path> {
        way(&self.path)
    }

    fn is_at(&self, path: PathId) -> bool {
        self.path.as_ref().is_some_and(|attached| attached.id == path)
    }

    /// Goes on over `path` from `offset`; the older path is dead (D-6.3, S-5.4).
    fn attach(&mut self, now: Micros, id: PathId, path: Path, offset: u64) -> Option<ChunkWriter> {
        let chunks = match &path {
            Path::Events(_) => self.landmarks.chunks_at(self.sender.log(), offset)?,
            Path::Datagrams { link, .. } => {
                self.sender.set_initial_rtt(micros(link.rtt()));
                ChunkWriter::new()
            }
        };
        let stream = match path {
            Path::Datagrams { stream, .. } => stream,
            Path::Events(_) => 0,
        };
        self.sender.resume(now, stream, offset).ok()?;
        if matches!(path, Path::Events(_)) {
            self.sender.suspend();
        }
        while self.sender.poll_event().is_some() {} // of the older path
        (self.sent, self.handed) = (offset, offset);
        (self.stuck_since, self.fallback) = (None, ReliableFallback::default());
        self.appends.clear();
        self.gather_until = Micros::ZERO;
        let _counted = self.streams.metrics.active_path();
        self.path = Some(Attached { id, path, _counted });
        Some(chunks)
    }

    fn handle_frame(&mut self, now: Micros, frame: &[u8]) {
        if let Err(error) = self.sender.handle_datagram(now, frame) {
            tracing::trace!(%error, "a frame was ignored");
        }
        let cumulative = self.sender.cumulative();
        while let Some((_, at)) =
            self.appends.front().copied().filter(|(end, _)| *end <= cumulative)
        {
            self.appends.pop_front();
            self.streams.metrics.on_client_ack(Duration::from_micros(now.since(at).0));
        }
    }

    /// Takes a flush and those that wait behind it.
    fn handle_flushes(&mut self, now: Micros, first: Option<Flush>) {
        let mut next = Some(first);
        for _ in 0..MAX_FLUSHES {
            let Some(flush) = next else { break };
            self.handle_flush(now, flush);
            next = match &mut self.answering {
                Some(answering) if self.waiting.is_empty() => answering.ready_flush(),
                _ => None,
            };
        }
        if self.sender.is_background() && self.is_by_datagram() {
            self.gather_until = now + LAZY_GATHER;
        }
    }

    fn handle_flush(&mut self, now: Micros, flush: Option<Flush>) {
        let Some(answering) = &self.answering else { return };
        self.landmarks.note_place(self.sender.log().head());
        let end = match flush {
            Some(flush) => {
                let error = flush.end.as_ref().and_then(|end| end.reason.error());
                self.records.flush(flush, &answering.usage(), &mut self.waiting);
                error.map(|error| Records::fail(&error))
            }
            None if answering.is_complete() => {
                self.records.finish(answering, &mut self.waiting);
                None
            }
            None => Some(Records::fail(&ApiError::internal("The engine has stopped."))),
        };
        self.waiting.extend(end);
        self.append(now);
    }

    /// Appends what waits, as far as the log has room.
    fn append(&mut self, now: Micros) {
        while let Some(delta) = self.waiting.pop_front() {
            match self.sender.push(now, &delta) {
                Ok(end) => {
                    self.landmarks.note_record(end, &delta);
                    self.failed |= matches!(delta, Delta::Error { .. });
                }
                Err(Error::LogFull) => {
                    self.waiting.push_front(delta);
                    return;
                }
                // Broken in itself, which no record of ours is: the answer must not look whole.
                Err(error) => {
                    tracing::error!(%error, "a record cannot be written");
                    self.waiting.clear();
                    let broken = Records::fail(&ApiError::internal("A record was too long."));
                    self.waiting.extend((!self.sender.log().is_ended()).then_some(broken));
                }
            }
        }
        let head = self.sender.log().head();
        if self.is_by_datagram() && self.appends.len() < MAX_APPENDS {
            self.appends.push_back((head, now));
        }
        if self.sender.log().is_ended() {
            self.answering = None;
        }
    }

    /// Gives the event stream its next piece. There is room for it.
    fn hand_on(&mut self, now: Micros) {
        let Some(Path::Events(pieces)) = way(&self.path) else { return };
        let log = self.sender.log();
        let head = log.head();
        let offset = self.handed;
        let most = PIECE_BYTES + MAX_RECORD_BYTES as u64 + 2;
        let mut bytes = Vec::new();
        log.read(offset..head.min(offset + most), &mut bytes).expect("kept until handed on");
        if bytes.len() as u64 > PIECE_BYTES {
            bytes.truncate(whole_records(&bytes, PIECE_BYTES as usize));
        }
        self.handed += bytes.len() as u64;
        let all = self.handed == head && log.is_ended();
        // Who had all of a broken answer already gets no clean end now.
        let nothing = bytes.is_empty() && self.failed;
        let piece = Piece { offset, bytes, is_last: all };
        let gone = nothing || pieces.try_send(piece).is_err();
        self.stuck_since = None;
        // TCP has it: the log may forget it when it needs the room.
        self.sender.acknowledge(self.handed).expect("handed on from the log");
        if gone || all {
            self.path = None;
        }
        self.append(now);
    }

    /// Sends what is due at `now`.
    fn drive(&mut self, now: Micros) {
        self.sender.handle_timeout(now);
        self.transmit(now);
        self.transmit_reliable(now);
        while let Some(event) = self.sender.poll_event() {
            match (event, self.path()) {
                (SenderEvent::Finished, Some(Path::Datagrams { aside, .. })) => {
                    let _ = aside.try_send(Aside::End);
                    self.path = None;
                }
                _ => tracing::trace!(?event, "delivery"),
            }
        }
        if !self.waiting.is_empty() {
            self.append(now);
        }
        self.note_stuck(now);
        let is_read = match self.path() {
            None => false,
            Some(Path::Events(_)) => true,
            Some(Path::Datagrams { .. }) => self.sender.state() == SenderState::Active,
        };
        self.unread_since = if is_read { None } else { self.unread_since.or(Some(now)) };
        if !is_read && self.sender.log().is_ended() {
            let log = self.sender.log();
            self.place.settle((log.head() - log.base()) as usize);
        }
    }

    fn transmit(&mut self, now: Micros) {
        let Some(Path::Datagrams { link, .. }) = way(&self.path) else { return };
        if self.sender.poll_timeout().is_none_or(|at| at > now) {
            return;
        }
        let max_bytes = link.max_bytes();
        if max_bytes > 0 {
            self.sender.set_max_datagram_bytes(max_bytes.min(DATAGRAM_BYTES));
        }
        while let Some(sent) = self.sender.poll_transmit(now, &mut self.datagram) {
            let fresh = sent.range.end.saturating_sub(self.sent.max(sent.range.start));
            let redundant = sent.range.end - sent.range.start - fresh;
            self.sent = self.sent.max(sent.range.end);
            if max_bytes > 0 {
                self.streams.metrics.on_datagram(sent.len, redundant);
                link.send(Bytes::copy_from_slice(&self.datagram));
            }
            self.datagram.clear();
        }
    }

    /// Sends the log over the reliable stream too while datagrams are not acknowledged (S-4.4).
    fn transmit_reliable(&mut self, now: Micros) {
        let Some(Path::Datagrams { link, aside, .. }) = way(&self.path) else { return };
        if self.fallback.handle_timeout(now, &self.sender, link.as_ref()) {
            self.streams.metrics.on_fallback();
        }
        // The last place in the queue is kept for the end of the stream.
        while aside.capacity() > 1 {
            let mut frame = Vec::new();
            if self.fallback.poll_transmit(&mut self.sender, PIECE_BYTES, &mut frame).is_none() {
                break;
            }
            let _ = aside.try_send(Aside::Frame(frame));
        }
    }

    /// Cuts off an event stream that takes nothing.
    fn note_stuck(&mut self, now: Micros) {
        let events = matches!(self.path(), Some(Path::Events(_)));
        if !events || self.handed == self.sender.log().head() {
            self.stuck_since = None;
            return;
        }
        let since = *self.stuck_since.get_or_insert(now);
        if now >= since + micros(self.streams.limits.stall_limit) {
            self.path = None;
        }
    }

    fn is_by_datagram(&self) -> bool {
        matches!(self.path(), Some(Path::Datagrams { .. }))
    }

    /// Whether the log wants more: bounded by what the reader has not acknowledged, or by the
    /// log itself where nobody reads (S-5.5).
    fn takes_flushes(&self, now: Micros) -> bool {
        let log = self.sender.log();
        let unacked = (log.head() - self.sender.cumulative()) as usize;
        let behind = self.unread_since.is_none() && unacked >= self.streams.limits.unacked_bytes;
        self.answering.is_some() && self.waiting.is_empty() && !behind && now >= self.gather_until
    }

    fn is_over(&self, now: Micros) -> bool {
        let stopped = self.sender.state() == SenderState::Stopped;
        stopped || self.forget_at().is_some_and(|at| now >= at)
    }

    fn forget_at(&self) -> Option<Micros> {
        self.unread_since.map(|since| since + micros(self.streams.limits.grace))
    }

    fn wake_at(&self, now: Micros) -> Option<Micros> {
        let sender = self.sender.poll_timeout().filter(|_| self.is_by_datagram());
        let gather = Some(self.gather_until).filter(|at| *at > now && self.answering.is_some());
        let stuck = self.stuck_since.map(|since| since + micros(self.streams.limits.stall_limit));
        let watch = self.fallback.poll_timeout(&self.sender).filter(|_| self.is_by_datagram());
        [sender, gather, stuck, watch, self.forget_at()].into_iter().flatten().min()
    }

    /// The time by which to act: what the timer is set for, from shortly before it on.
    fn now(&mut self) -> Micros {
        let clock = self.clock();
        let due = self.armed.filter(|at| *at <= clock + EARLY);
        self.time = self.time.max(due.map_or(clock, |at| at.max(clock)));
        self.time
    }

    fn clock(&self) -> Micros {
        micros(self.streams.clock.now())
    }
}

/// The path, where only that field may be borrowed.
fn way(attached: &Option<Attached>) -> Option<&Path> {
    attached.as_ref().map(|attached| &attached.path)
}

/// The length of the whole records at the front of `bytes`, at most `most` but at least one.
fn whole_records(bytes: &[u8], most: usize) -> usize {
    let mut end = 0;
    while let Ok(Some((len, _))) = Delta::decode(&bytes[end..]) {
        if end > 0 && end + len > most {
            break;
        }
        end += len;
    }
    end
}

fn micros(time: Duration) -> Micros {
    Micros(time.as_micros() as u64)
}
