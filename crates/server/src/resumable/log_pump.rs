//! To the answer's log: from a request's flushes, or for an answer of another replica, from the log
//! that this one stores.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use loquent_infer::reading::ReaderReport;
use loquent_proto::chunk::ChunkWriter;
use loquent_proto::{AnswerLog, Delta, Differs, Error, Micros, Replay};

use super::fit_record::fit_record;
use super::resume_points::ResumePoints;
use super::shared::followed::{FollowedPiece, Follower};
use super::shared::takeover::SecondAnswer;
use crate::active_request::ActiveRequest;
use crate::error::ApiError;
use crate::flush::Flush;
use crate::metrics::StreamCarrier;
use crate::records::{RecordContext, RecordWriter};

/// Takes an answer's flushes, turns them into records, and appends those as the log has room.
pub struct LogPump {
    source: PumpSource,
    /// Records that the log has no room for yet.
    waiting: VecDeque<Delta>,
    points: ResumePoints,
    /// What the log has of an answer that is generated once more.
    replay: Option<Known>,
    /// Tokens of the flushes so far.
    tokens: u32,
    /// The log's last record is an error.
    failed: bool,
}

/// What the log has of an answer that is generated once more.
struct Known {
    replay: Replay,
    /// If the answer differs, it ends with an error: no other replica has had more luck.
    is_last: bool,
    differs: bool,
}

/// Where the log comes from.
enum PumpSource {
    /// The request's output.
    Request(Box<ActiveRequest>, RecordWriter),
    /// The log of the replica that generates the answer.
    Mirror(Follower),
    /// Nowhere yet: the replica that generated the answer has ended.
    Orphan,
    /// Nowhere any more: the log has its last record.
    Over,
}

/// What goes into the log next.
pub enum PumpInput {
    /// The request's next flush, or that there is none any more.
    Flush(Option<Flush>),
    /// The next piece of another replica's log.
    Piece(FollowedPiece),
}

/// Why an answer cannot go on, as far as its source knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PumpEnd {
    /// It was stopped at another replica.
    Stopped,
    /// It is lost.
    Lost,
    /// It needs another owner: the pump waits until it has one.
    Orphaned,
    /// It is another answer than its readers have: another replica may have theirs.
    Differs,
}

impl LogPump {
    /// A pump for the answer to `request`, whose first records are waiting.
    pub fn new(request: ActiveRequest, context: &RecordContext<'_>) -> Self {
        let mut waiting = VecDeque::new();
        let records = RecordWriter::open(&request, context, &mut |delta| waiting.push_back(delta));
        Self { waiting, ..Self::of(PumpSource::Request(Box::new(request), records)) }
    }

    /// A pump for an answer of another replica, whose log has the same records.
    pub fn mirror(follower: Follower) -> Self {
        Self::of(PumpSource::Mirror(follower))
    }

    fn of(source: PumpSource) -> Self {
        let mut points = ResumePoints::default();
        points.note_point(0);
        Self { source, waiting: VecDeque::new(), points, replay: None, tokens: 0, failed: false }
    }

    /// Whether another replica generates the answer, or did.
    pub const fn is_mirror(&self) -> bool {
        matches!(self.source, PumpSource::Mirror(_) | PumpSource::Orphan)
    }

    /// Follows another owner's log, from where this one ends.
    pub fn follow(&mut self, follower: Follower) {
        self.source = PumpSource::Mirror(follower);
    }

    /// Takes the answer over, which is generated once more from its beginning. If it differs from
    /// what the log has, it ends with an error if this `is_last`.
    pub fn adopt(&mut self, answer: SecondAnswer, replay: Option<Replay>, is_last: bool) {
        let SecondAnswer { request, records, first } = answer;
        self.source = PumpSource::Request(request, records);
        self.replay = replay.map(|replay| Known { replay, is_last, differs: false });
        first.into_iter().for_each(|delta| queue(&mut self.waiting, &mut self.replay, delta));
    }

    /// Whether the answer goes on and its last flush is in the log. Otherwise flushes stay in
    /// their channel, whose bound pauses generation.
    pub fn is_ready(&self) -> bool {
        self.is_open() && self.waiting.is_empty()
    }

    /// Whether the log lacks its last record.
    pub fn is_open(&self) -> bool {
        !matches!(self.source, PumpSource::Over)
    }

    /// Tokens of the flushes so far.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Tells the scheduler what the answer's reader has in hand; `None` if that is not known any
    /// more.
    pub fn note_reader(&mut self, report: Option<ReaderReport>) {
        if let PumpSource::Request(request, _) = &mut self.source {
            request.note_reader(report);
        }
    }

    /// Notes what carries the answer to a reader.
    pub fn note_carrier(&mut self, carrier: StreamCarrier) {
        if let PumpSource::Request(request, _) = &mut self.source {
            request.note_carrier(carrier);
        }
    }

    /// Whether the answer ended with an error.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// What goes into the log next; never if [`Self::is_ready`] is false.
    pub async fn next(&mut self) -> PumpInput {
        match &mut self.source {
            _ if !self.waiting.is_empty() => std::future::pending().await,
            PumpSource::Request(request, _) => PumpInput::Flush(request.next_flush().await),
            PumpSource::Mirror(follower) => PumpInput::Piece(follower.next().await),
            PumpSource::Orphan | PumpSource::Over => std::future::pending().await,
        }
    }

    /// [`Self::next`] if it is there already.
    pub fn ready(&mut self) -> Option<PumpInput> {
        match &mut self.source {
            _ if !self.waiting.is_empty() => None,
            PumpSource::Request(request, _) => request.ready_flush().map(PumpInput::Flush),
            PumpSource::Mirror(follower) => follower.ready().map(PumpInput::Piece),
            PumpSource::Orphan | PumpSource::Over => None,
        }
    }

    /// Appends what `input` adds to the log; breaks if the answer cannot go on.
    pub fn handle(
        &mut self,
        now: Micros,
        input: PumpInput,
        answer: &mut AnswerLog,
    ) -> ControlFlow<PumpEnd> {
        match input {
            PumpInput::Flush(flush) => {
                self.handle_flush(now, flush, answer);
                if self.differs() {
                    return ControlFlow::Break(PumpEnd::Differs);
                }
            }
            // The task's business.
            PumpInput::Piece(FollowedPiece::Epochs(_)) => {}
            PumpInput::Piece(FollowedPiece::Records(bytes)) => {
                if !self.take_records(now, &bytes, answer) {
                    tracing::error!("another replica's log has what this one cannot write");
                    return ControlFlow::Break(PumpEnd::Lost);
                }
            }
            PumpInput::Piece(FollowedPiece::Orphaned) => {
                self.source = PumpSource::Orphan;
                return ControlFlow::Break(PumpEnd::Orphaned);
            }
            PumpInput::Piece(FollowedPiece::Stopped) => {
                return ControlFlow::Break(PumpEnd::Stopped);
            }
            PumpInput::Piece(FollowedPiece::Lost(why)) => {
                tracing::warn!("another replica's answer does not go on here: {why}");
                return ControlFlow::Break(PumpEnd::Lost);
            }
        }
        ControlFlow::Continue(())
    }

    /// Appends whole records as they are in another log, so that both have the same offsets;
    /// whether that is so.
    pub fn take_records(&mut self, now: Micros, bytes: &[u8], answer: &mut AnswerLog) -> bool {
        let (mut at, mut again) = (0, Vec::new());
        while let Ok(Some((len, delta))) = Delta::decode(&bytes[at..]) {
            let Some(delta) = delta else { return false };
            again.clear();
            // A record that would be written otherwise would shift all that follow.
            if delta.encode(&mut again).is_err() || again != bytes[at..at + len] {
                return false;
            }
            self.waiting.push_back(delta);
            at += len;
        }
        self.append(now, answer);
        true
    }

    /// Appends the records of a flush, or those of the answer's end.
    fn handle_flush(&mut self, now: Micros, flush: Option<Flush>, answer: &mut AnswerLog) {
        let PumpSource::Request(request, records) = &self.source else { return };
        self.points.note_point(answer.log().head());
        let tokens = flush.as_ref().map_or(0, |flush| flush.tokens);
        self.tokens = self.tokens.saturating_add(tokens);
        let (waiting, replay) = (&mut self.waiting, &mut self.replay);
        let mut put = |delta: Delta| queue(waiting, replay, delta);
        let end = match flush {
            Some(flush) => {
                let error = flush.error();
                records.flush(flush, || request.usage(), &mut put);
                error.map(|error| RecordWriter::fail(&error))
            }
            None if request.is_complete() => {
                records.finish(request, &mut put);
                None
            }
            None => Some(RecordWriter::fail(&ApiError::internal("The engine has stopped."))),
        };
        if self.differs() {
            // Nothing of it is in the log, and nothing will be.
            self.waiting.clear();
            return;
        }
        self.waiting.extend(end);
        self.append(now, answer);
    }

    /// Whether the answer is another one than its readers have, and may be theirs elsewhere.
    pub fn differs(&self) -> bool {
        self.replay.as_ref().is_some_and(|known| known.differs)
    }

    /// Appends what waits, as far as the log has room.
    pub fn append(&mut self, now: Micros, answer: &mut AnswerLog) {
        while let Some(delta) = self.waiting.pop_front() {
            let delta = if self.is_mirror() { delta } else { fit_record(delta) };
            match answer.push(now, &delta) {
                Ok(end) => {
                    self.points.note_record(end, &delta);
                    if self.is_mirror() && matches!(delta, Delta::Text { .. }) {
                        // Text has its chunk at once, and takes along what was waiting for it.
                        self.points.note_point(end);
                    }
                    self.failed |= matches!(delta, Delta::Error { .. });
                }
                // A reader has to acknowledge something first. The record goes back to the
                // front, and `is_ready` is false until it fits.
                Err(Error::LogFull) => {
                    self.waiting.push_front(delta);
                    return;
                }
                // The record itself is invalid, which none of ours is. A log without it must
                // not look complete, so an error takes its place and ends the log.
                Err(error) => {
                    tracing::error!(%error, "a record cannot be written");
                    self.waiting.clear();
                    let broken = RecordWriter::fail(&ApiError::internal("A record was too long."));
                    self.waiting.extend((!answer.log().is_ended()).then_some(broken));
                }
            }
        }
        if answer.log().is_ended() {
            self.source = PumpSource::Over;
        }
    }

    /// When the answer began, Unix time in seconds, as its log says.
    pub fn created_s(&self) -> Option<u64> {
        self.points.created_s()
    }

    /// The state of the chunks at `offset`; `None` if the log cannot be read from there.
    pub fn chunks_at(&self, answer: &AnswerLog, offset: u64) -> Option<ChunkWriter> {
        self.points.chunks_at(answer.log(), offset)
    }
}

/// Adds what the log lacks of `delta`.
fn queue(waiting: &mut VecDeque<Delta>, replay: &mut Option<Known>, delta: Delta) {
    let Some(known) = replay else { return waiting.push_back(delta) };
    if known.differs || matches!(waiting.back(), Some(Delta::Error { .. })) {
        // It has failed, and nothing follows.
        return;
    }
    match known.replay.rest_of(delta) {
        Ok(rest) => waiting.extend(rest),
        Err(Differs) if !known.is_last => known.differs = true,
        Err(Differs) => {
            tracing::error!("an answer that was taken over differs from what its readers have");
            let message = "The replica that generated this answer has ended, and another one has \
                           another answer to the same request.";
            waiting.push_back(RecordWriter::fail(&ApiError::internal(message)));
        }
    }
}
