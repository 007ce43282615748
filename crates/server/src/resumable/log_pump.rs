//! From a request's flushes to the answer's log.

use std::collections::VecDeque;

use loquent_proto::chunk::ChunkWriter;
use loquent_proto::{AnswerLog, Delta, Error, Micros};

use super::fit_record::fit_record;
use super::resume_points::ResumePoints;
use crate::active_request::ActiveRequest;
use crate::error::ApiError;
use crate::flush::Flush;
use crate::records::{RecordContext, RecordWriter};

/// Takes an answer's flushes, turns them into records, and appends those as the log has room.
pub struct LogPump {
    /// `None` once the log has its last record.
    request: Option<Box<ActiveRequest>>,
    records: RecordWriter,
    /// Records that the log has no room for yet.
    waiting: VecDeque<Delta>,
    points: ResumePoints,
    /// The log's last record is an error.
    failed: bool,
}

impl LogPump {
    /// A pump for the answer to `request`, whose first records are waiting.
    pub fn new(request: ActiveRequest, context: &RecordContext<'_>) -> Self {
        let mut waiting = VecDeque::new();
        let mut points = ResumePoints::default();
        points.note_point(0);
        let records = RecordWriter::open(&request, context, &mut |delta| waiting.push_back(delta));
        Self { request: Some(Box::new(request)), records, waiting, points, failed: false }
    }

    /// Whether the answer goes on and its last flush is in the log. Otherwise flushes stay in
    /// their channel, whose bound pauses generation.
    pub fn is_ready(&self) -> bool {
        self.request.is_some() && self.waiting.is_empty()
    }

    /// Whether the log lacks its last record.
    pub fn is_open(&self) -> bool {
        self.request.is_some()
    }

    /// Whether the answer ended with an error.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// The next flush; never if [`Self::is_ready`] is false.
    pub async fn next_flush(&mut self) -> Option<Flush> {
        match &mut self.request {
            Some(request) if self.waiting.is_empty() => request.next_flush().await,
            _ => std::future::pending().await,
        }
    }

    /// [`Self::next_flush`] if there is one already.
    pub fn ready_flush(&mut self) -> Option<Option<Flush>> {
        match &mut self.request {
            Some(request) if self.waiting.is_empty() => request.ready_flush(),
            _ => None,
        }
    }

    /// Appends the records of a flush, or those of the answer's end.
    pub fn handle_flush(&mut self, now: Micros, flush: Option<Flush>, answer: &mut AnswerLog) {
        let Some(request) = &self.request else { return };
        self.points.note_point(answer.log().head());
        let waiting = &mut self.waiting;
        let mut put = |delta: Delta| waiting.push_back(delta);
        let end = match flush {
            Some(flush) => {
                let error = flush.error();
                self.records.flush(flush, || request.usage(), &mut put);
                error.map(|error| RecordWriter::fail(&error))
            }
            None if request.is_complete() => {
                self.records.finish(request, &mut put);
                None
            }
            None => Some(RecordWriter::fail(&ApiError::internal("The engine has stopped."))),
        };
        self.waiting.extend(end);
        self.append(now, answer);
    }

    /// Appends what waits, as far as the log has room.
    pub fn append(&mut self, now: Micros, answer: &mut AnswerLog) {
        while let Some(delta) = self.waiting.pop_front() {
            let delta = fit_record(delta);
            match answer.push(now, &delta) {
                Ok(end) => {
                    self.points.note_record(end, &delta);
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
            self.request = None;
        }
    }

    /// The state of the chunks at `offset`; `None` if the log cannot be read from there.
    pub fn chunks_at(&self, answer: &AnswerLog, offset: u64) -> Option<ChunkWriter> {
        self.points.chunks_at(answer.log(), offset)
    }
}
