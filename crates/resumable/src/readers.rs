//! The readers of one answer. Each has its own path, log position and pace; none waits for another
//! (S-5.4).

use std::sync::Arc;

use loquent_proto::message::Code;
use loquent_proto::{AnswerLog, Micros, SentSoFar};

use super::datagram_reader::DatagramReader;
use super::event_reader::{EventReader, PieceCutter};
use super::events_slot::ReadyBodies;
use super::reader_status::{ReaderEnd, ReaderStatus};
use super::{PathId, ReaderPermit, StreamFrame};
use loquent_serving::metrics::{GaugeGuard, Metrics};

/// Maximum number of readers of one answer.
pub const MAX_READERS: usize = 1024;

/// Transport of a reader.
pub enum ReaderKind {
    /// Datagrams.
    Datagrams(Box<DatagramReader>),
    /// Server-sent events.
    Events(EventReader),
}

/// One reader.
pub struct Reader {
    kind: ReaderKind,
    status: ReaderStatus,
    _counted: [GaugeGuard; 2],
    _place: Option<ReaderPermit>,
}

impl Reader {
    /// Creates a reader that occupies `place`, if it needs one, and is counted by `counted`.
    pub fn new(kind: ReaderKind, place: Option<ReaderPermit>, counted: [GaugeGuard; 2]) -> Self {
        Self { kind, status: ReaderStatus::Reading, _counted: counted, _place: place }
    }

    /// Returns the datagram path, if the reader has one.
    pub fn datagrams(&mut self) -> Option<&mut DatagramReader> {
        match &mut self.kind {
            ReaderKind::Datagrams(reader) => Some(reader),
            ReaderKind::Events(_) => None,
        }
    }

    /// Returns the log offset below which the reader has everything.
    fn acknowledged(&self) -> u64 {
        match &self.kind {
            ReaderKind::Datagrams(reader) => reader.delivery().cumulative(),
            ReaderKind::Events(reader) => reader.taken(),
        }
    }

    /// Returns the time when the reader last acknowledged or took something.
    fn heard(&self) -> Micros {
        match &self.kind {
            ReaderKind::Datagrams(reader) => reader.delivery().last_heard(),
            ReaderKind::Events(reader) => reader.heard(),
        }
    }

    fn is_reading(&self) -> bool {
        self.status == ReaderStatus::Reading
    }

    fn is_events(&self) -> bool {
        matches!(self.kind, ReaderKind::Events(_))
    }

    /// True if the reader can wait for new text.
    fn is_background(&self, answer: &AnswerLog) -> bool {
        match &self.kind {
            ReaderKind::Datagrams(reader) => reader.delivery().is_background(answer),
            ReaderKind::Events(_) => false,
        }
    }

    fn drive(
        &mut self,
        now: Micros,
        source: &mut LogSource<'_>,
        metrics: &Metrics,
    ) -> ReaderStatus {
        self.status = match &mut self.kind {
            ReaderKind::Datagrams(reader) => reader.drive(now, source.answer, metrics),
            ReaderKind::Events(reader) => {
                let log = (source.answer.log(), source.visible);
                reader.drive(now, log, source.has_failed, source.cutter)
            }
        };
        self.status
    }

    fn poll_timeout(&self, answer: &AnswerLog) -> Option<Micros> {
        match &self.kind {
            ReaderKind::Datagrams(reader) => reader.poll_timeout(answer),
            ReaderKind::Events(reader) => reader.poll_timeout(),
        }
    }

    /// Tells the other end why the path is over. An event stream is broken off; its body can tell
    /// whether a client has stopped the answer.
    fn end(self, end: ReaderEnd) {
        let is_stopped = matches!(end, ReaderEnd::Stopped | ReaderEnd::Broken(Code::Stopped));
        let reader = match self.kind {
            ReaderKind::Datagrams(reader) => reader,
            ReaderKind::Events(reader) if is_stopped => return reader.stop(),
            // It learns of any other end as its path is dropped.
            ReaderKind::Events(_) => return,
        };
        reader.end(match end {
            ReaderEnd::Complete => StreamFrame::End(Code::None),
            ReaderEnd::Stopped => StreamFrame::End(Code::Stopped),
            ReaderEnd::FellBehind => StreamFrame::Gone,
            ReaderEnd::Broken(code) => StreamFrame::End(code),
            ReaderEnd::Left => return,
        });
    }
}

/// The log as its readers see it.
pub struct LogSource<'a> {
    /// The log.
    pub answer: &'a AnswerLog,
    /// Log offset below which event streams may read.
    pub visible: u64,
    /// True if the answer ended with an error.
    pub has_failed: bool,
    /// Cuts pieces of the log.
    pub cutter: &'a mut PieceCutter,
}

/// All readers, by the ids of their paths.
#[derive(Default)]
pub struct Readers {
    /// Ascending; `due` and `readers` are in the same order.
    ids: Vec<PathId>,
    /// Time at which each reader is due. Contiguous, because the earliest is often looked up.
    due: Vec<Micros>,
    readers: Vec<Reader>,
    /// Number of readers that are event streams.
    events: usize,
    /// Log offset acknowledged by the furthest active reader; `None` if nobody reads.
    reached: Option<u64>,
    /// Record of what was sent to readers that have left.
    sent: SentSoFar,
    /// Log offset below which everything was sent to some reader.
    sent_end: u64,
}

/// Due time of a reader with nothing to do.
const NEVER: Micros = Micros(u64::MAX);

impl Readers {
    /// Returns the number of readers.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Adds a reader, due at once.
    pub fn insert(&mut self, id: PathId, reader: Reader) {
        let at = self.ids.partition_point(|known| *known < id);
        self.events += usize::from(reader.is_events());
        self.reached = self.reached.max(Some(reader.acknowledged()));
        self.ids.insert(at, id);
        self.due.insert(at, Micros::ZERO);
        self.readers.insert(at, reader);
    }

    /// Returns the reader at path `id` and marks it as due.
    pub fn touch(&mut self, id: PathId) -> Option<&mut Reader> {
        let at = self.ids.binary_search(&id).ok()?;
        self.due[at] = Micros::ZERO;
        let reader = &mut self.readers[at];
        if let ReaderKind::Datagrams(reader) = &mut reader.kind {
            reader.note_sent_elsewhere(self.sent_end);
        }
        Some(reader)
    }

    /// Removes the reader at path `id` and tells it why; returns whether there was one.
    pub fn remove(&mut self, id: PathId, end: ReaderEnd) -> bool {
        let at = self.ids.binary_search(&id).ok();
        at.into_iter().for_each(|at| self.remove_at(at, end));
        at.is_some()
    }

    /// Removes the reader heard from least recently, to make room.
    pub fn supersede(&mut self) {
        let heard = self.readers.iter().map(Reader::heard);
        if let Some((at, _)) = heard.enumerate().min_by_key(|(_, heard)| *heard) {
            self.remove_at(at, ReaderEnd::Broken(Code::Superseded));
        }
    }

    /// Removes all readers.
    pub fn end_all(&mut self, code: Code) {
        while !self.readers.is_empty() {
            // From the back, so that the lists are not moved up each time.
            self.remove_at(self.readers.len() - 1, ReaderEnd::Broken(code));
        }
    }

    /// Removes the datagram readers, whose paths carry one epoch each.
    pub fn end_datagrams(&mut self, code: Code) {
        for at in (0..self.readers.len()).rev() {
            if !self.readers[at].is_events() {
                self.remove_at(at, ReaderEnd::Broken(code));
            }
        }
    }

    fn remove_at(&mut self, at: usize, end: ReaderEnd) {
        self.ids.remove(at);
        self.due.remove(at);
        let reader = self.readers.remove(at);
        self.events -= usize::from(reader.is_events());
        // Its packet numbers stay used.
        self.sent = self.sent.or(Self::sent_to(&reader));
        self.find_furthest();
        reader.end(end);
    }

    fn find_furthest(&mut self) {
        let reading = self.readers.iter().filter(|reader| reader.is_reading());
        self.reached = reading.map(Reader::acknowledged).max();
    }

    fn sent_to(reader: &Reader) -> SentSoFar {
        match &reader.kind {
            ReaderKind::Datagrams(reader) => reader.delivery().sent_so_far(),
            ReaderKind::Events(_) => SentSoFar::default(),
        }
    }

    /// Returns a record of what was sent to any reader, past or present.
    pub fn sent_so_far(&self) -> SentSoFar {
        self.readers.iter().map(Self::sent_to).fold(self.sent, SentSoFar::or)
    }

    /// Records that the log was appended to, up to `head`; all readers become due.
    pub fn note_append(&mut self, now: Micros, head: u64) {
        for reader in &mut self.readers {
            if let ReaderKind::Datagrams(reader) = &mut reader.kind {
                reader.note_append(now, head);
            }
        }
        self.due.fill(Micros::ZERO);
    }

    /// Drives the readers due at `now`. Returns the first whose path is over, and why: the caller
    /// removes it and drives the rest again.
    pub fn drive(
        &mut self,
        now: Micros,
        source: &mut LogSource<'_>,
        metrics: &Metrics,
    ) -> Option<(PathId, ReaderEnd)> {
        // A scan, where a heap would have to be kept in order for each acknowledgement: a thousand
        // times are eight kilobytes.
        for at in 0..self.due.len() {
            if self.due[at] > now {
                continue;
            }
            let reader = &mut self.readers[at];
            let status = reader.drive(now, source, metrics);
            if let ReaderKind::Datagrams(reader) = &reader.kind {
                self.sent_end = self.sent_end.max(reader.delivery().sent_end());
            }
            match status {
                ReaderStatus::Reading => {
                    self.reached = self.reached.max(Some(reader.acknowledged()));
                }
                // It may have been the furthest.
                ReaderStatus::Mute => self.find_furthest(),
                ReaderStatus::Over(end) => return Some((self.ids[at], end)),
            }
            self.due[at] = self.readers[at].poll_timeout(source.answer).unwrap_or(NEVER);
        }
        None
    }

    /// Returns the next time at which [`Self::drive`] has work.
    pub fn poll_timeout(&self) -> Option<Micros> {
        self.due.iter().copied().min().filter(|at| *at < NEVER)
    }

    /// Returns the only reader that looks at what comes, if it is active and acknowledges
    /// datagrams. Beside it there may be hidden ones, such as the spare path of the same client.
    pub fn only_by_datagrams(&self) -> Option<&DatagramReader> {
        let mut looking = self.readers.iter().filter(|reader| match &reader.kind {
            ReaderKind::Datagrams(reader) => !reader.delivery().reader().hidden,
            ReaderKind::Events(_) => true,
        });
        match (looking.next(), looking.next()) {
            (
                Some(Reader {
                    kind: ReaderKind::Datagrams(reader),
                    status: ReaderStatus::Reading,
                    ..
                }),
                None,
            ) => Some(reader),
            _ => None,
        }
    }

    /// True if anybody reads.
    pub const fn is_reading(&self) -> bool {
        self.reached.is_some()
    }

    /// Returns the log offset acknowledged by the furthest active reader; `None` if nobody reads.
    pub const fn furthest(&self) -> Option<u64> {
        self.reached
    }

    /// True if there are readers and all of them can wait for new text.
    pub fn are_background(&self, answer: &AnswerLog) -> bool {
        !self.readers.is_empty() && self.readers.iter().all(|reader| reader.is_background(answer))
    }

    /// Reads the progress of all event streams, and requests a notification of their next.
    pub fn ask_for_word(&mut self, now: Micros) {
        for reader in &mut self.readers {
            if let ReaderKind::Events(reader) = &mut reader.kind {
                reader.ask_for_word(now);
                self.reached = self.reached.max(Some(reader.taken()));
            }
        }
    }

    /// True if there are event streams to wait for.
    pub const fn has_events(&self) -> bool {
        self.events > 0
    }

    /// Marks all readers as due.
    pub fn touch_everyone(&mut self) {
        self.due.fill(Micros::ZERO);
    }

    /// Marks the readers in `ready` as due.
    pub fn touch_all(&mut self, ready: &Arc<ReadyBodies>) {
        for id in ready.take() {
            // One that was removed meanwhile is not found, and nothing is lost with it.
            self.touch(id);
        }
    }
}
