//! Responses as event streams: generated for a single reader, generated in the background, or read
//! from the store.

use std::task::{Context, Poll};

use bytes::Bytes;
use loquent_proto::Delta;

use crate::generation::ResponseGeneration;
use crate::live::LiveReader;
use crate::record_log::{RecordLog, read_records};
use crate::storing::{KeptRecords, ResponseRecorder, Saving, write};
use loquent_dialects::responses::events::{EventRange, ResponseEvents, takeover_gap};
use loquent_dialects::responses::object::{ResponseStatus, ResponseTemplate};
use loquent_resumable::generation::Generated;
use loquent_serving::error::ApiError;
use loquent_serving::event_writer::{EventSource, EventWriter, StreamStatus};
use loquent_serving::memory::MemoryCharge;

/// Bytes of events gathered into one frame.
const FRAME_BYTES: usize = 16 * 1024;

/// A response generated for a single reader: generation ends when it is dropped.
pub struct DirectResponse {
    generation: ResponseGeneration,
    events: ResponseEvents,
    recording: KeptRecords,
    ending: Option<ResponseEnding>,
}

/// The end of a response, held back until it is stored, because its reader may refer to it at once.
struct ResponseEnding {
    saving: Saving,
    events: Vec<u8>,
    status: StreamStatus,
}

impl DirectResponse {
    /// Returns the events of `generation`, whose first records are in `log`; `recorder` stores
    /// the response if requested.
    pub fn new(
        generation: ResponseGeneration,
        mut events: ResponseEvents,
        log: RecordLog,
        recorder: Option<ResponseRecorder>,
    ) -> (Self, Vec<u8>) {
        let mut preface = Vec::new();
        log.read(0, |delta| {
            write(&mut events, &delta, &mut preface);
        });
        let recording = KeptRecords::new(log, recorder);
        (Self { generation, events, recording, ending: None }, preface)
    }

    /// Holds the last events back until the response is stored.
    fn begin_end(&mut self, status: StreamStatus, out: &mut Vec<u8>) {
        let saving = self.recording.store();
        self.ending = Some(ResponseEnding { saving, events: std::mem::take(out), status });
    }

    fn poll_end(&mut self, context: &mut Context<'_>, out: &mut Vec<u8>) -> StreamStatus {
        let Some(ending) = &mut self.ending else { return StreamStatus::Open };
        let Poll::Ready(stored) = ending.saving.as_mut().poll(context) else {
            return StreamStatus::Open;
        };
        out.append(&mut ending.events);
        self.recording.end(stored, &mut self.events, out);
        std::mem::replace(&mut ending.status, StreamStatus::Complete)
    }
}

impl EventSource for DirectResponse {
    fn poll_events(&mut self, context: &mut Context<'_>, out: &mut Vec<u8>) -> StreamStatus {
        while out.len() < FRAME_BYTES && self.ending.is_none() {
            let Self { generation, events, recording, .. } = self;
            let mut put = |delta: Delta| recording.put(delta, events, out);
            match generation.poll(context, &mut put) {
                Poll::Pending => return StreamStatus::Open,
                Poll::Ready(Generated::Going) => {}
                Poll::Ready(Generated::Complete) => self.begin_end(StreamStatus::Complete, out),
                Poll::Ready(Generated::Failed(error)) => {
                    generation.fail(&error, &mut put);
                    self.begin_end(StreamStatus::Broken(error), out);
                }
            }
        }
        self.poll_end(context, out)
    }

    fn heartbeat(&self) -> Bytes {
        self.events.heartbeat()
    }
}

/// Rejects the event number `first` of the response with this `template` and `log` if the event
/// before it was sent by a replica before it was stored: the event with that number now has another
/// place in the text, or there is none. `is_all` says that nobody has more of the log.
///
/// # Errors
/// 410 for such a number.
pub fn check_number(
    template: &ResponseTemplate,
    log: &RecordLog,
    first: u64,
    is_all: bool,
) -> Result<(), ApiError> {
    if first == 0 {
        return Ok(());
    }
    let mut events = ResponseEvents::new(template.clone(), EventRange::Nothing);
    let mut is_unknown = false;
    log.read(0, |delta| {
        let at = events.next_number();
        events.note(&delta);
        is_unknown |= is_takeover(&delta) && (at + 1..events.next_number()).contains(&first);
    });
    // The store has lost the takeover behind which that event was.
    is_unknown |= is_all && !events.is_lost() && first > events.next_number();
    let message = "The response has no event with this number. If a replica sent one, it has ended \
                   before the event was stored: read the response from its beginning.";
    if is_unknown { Err(ApiError::gone(message)) } else { Ok(()) }
}

fn is_takeover(delta: &Delta) -> bool {
    matches!(delta, Delta::Other { json, .. } if takeover_gap(json).is_some())
}

/// Source of the records of a response that is read separately from its generation.
pub enum Records {
    /// The response may still be generated.
    Live(LiveReader),
    /// The response has ended; with its memory charge, which is held until the log is gone.
    Ended(RecordLog, MemoryCharge),
}

/// Reads a response from its beginning. Events that its reader already has are not written again.
pub struct ResponseReader {
    records: Records,
    at: usize,
    events: ResponseEvents,
}

impl ResponseReader {
    /// Returns a reader of `records`, with events written by `events`.
    pub fn new(records: Records, events: ResponseEvents) -> Self {
        Self { records, at: 0, events }
    }

    /// Returns the reason why the response goes on at another replica, if it does.
    fn left(&self) -> Option<ApiError> {
        match &self.records {
            Records::Live(live) => live.left(),
            Records::Ended(..) => None,
        }
    }

    /// Returns how the stream ends after the last record: a failed response never ends cleanly.
    fn end(&self) -> StreamStatus {
        match self.events.status() {
            ResponseStatus::Failed { message, .. } => {
                StreamStatus::Broken(ApiError::internal(message.as_str()))
            }
            _ => StreamStatus::Complete,
        }
    }
}

impl EventSource for ResponseReader {
    fn poll_events(&mut self, context: &mut Context<'_>, out: &mut Vec<u8>) -> StreamStatus {
        while out.len() < FRAME_BYTES {
            let (piece, is_last) = match &self.records {
                Records::Live(live) => live.poll_piece(context, self.at),
                Records::Ended(log, _) => {
                    let (piece, is_last) = log.piece(self.at);
                    (piece.to_vec(), is_last)
                }
            };
            let events = &mut self.events;
            // Whole records only: one that the piece cuts is read with the next piece.
            self.at += read_records(&piece, |delta| write(events, &delta, out));
            if is_last {
                return self.end();
            }
            if piece.is_empty() {
                return self.left().map_or(StreamStatus::Open, StreamStatus::Broken);
            }
        }
        StreamStatus::Open
    }

    fn heartbeat(&self) -> Bytes {
        self.events.heartbeat()
    }
}

#[cfg(test)]
mod tests {
    use loquent_dialects::responses::events::{LOST, takeover_record};
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_that_was_never_stored_is_gone() {
        let template = ResponseTemplate { object: json!({"id": "resp_1"}), background: true };
        let check = |log: &RecordLog, first| check_number(&template, log, first, true).is_ok();
        let mut log = RecordLog::new(1 << 16);
        let meta = json!({"model": "m", "created": 7}).to_string();
        for delta in [Delta::Open { meta }, Delta::text("so far")] {
            log.push(&delta).unwrap();
        }
        assert!(!check(&log, 99), "that of a takeover that the store has lost");
        assert!(check_number(&template, &log, 99, false).is_ok(), "its owner may have sent it");
        let mut lost = log.clone();
        lost.push(&Delta::Error { code: LOST.into(), message: "restarted".into() }).unwrap();
        assert!(check(&lost, 99), "it hears of that");
        let mut events = ResponseEvents::new(template.clone(), EventRange::Nothing);
        log.read(0, |delta| events.note(&delta));
        let (at, gap) = (events.next_number(), 3 << 20);
        let json = takeover_record(at, 3);
        for delta in [Delta::Other { choice: 0, json }, Delta::text(" and on")] {
            log.push(&delta).unwrap();
        }
        assert!(check(&log, 0) && check(&log, at) && check(&log, at + gap + 1));
        assert!(!check(&log, at + 1) && !check(&log, at + gap - 1), "the dead replica's");
        assert!(!check(&log, at + gap + 2), "that of a takeover that the store has lost");
    }
}
