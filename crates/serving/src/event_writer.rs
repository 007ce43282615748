//! Answers as events: an [`EventWriter`] writes an answer's records in the format of one API, and
//! an [`EventSource`] gives the events of one answer as they become ready.

use std::task::Context;

use bytes::Bytes;
use loquent_proto::chunk::ChunkWriter;
use loquent_proto::{Delta, Error, Progress};

use crate::error::ApiError;

/// Writes an answer's records as the events of one API.
pub trait EventWriter: Send + Unpin {
    /// Appends the events of `delta` to `out`. `id`: log offset after the record, for an answer
    /// that is kept.
    ///
    /// # Errors
    /// For a record that cannot be written, such as an upstream server's broken JSON.
    fn write(&mut self, id: Option<u64>, delta: &Delta, out: &mut Vec<u8>) -> Result<(), Error>;

    /// Appends the event for the error that ends the answer early. Nothing is written after it.
    fn write_error(&mut self, error: &ApiError, out: &mut Vec<u8>);

    /// Returns true if [`Self::write`] also accepts progress reports before the first token.
    fn takes_progress(&self) -> bool {
        false
    }

    /// Appends a progress report before the first token, in an API that has an event for it.
    ///
    /// # Errors
    /// As [`Self::write`].
    fn write_progress(
        &mut self,
        id: Option<u64>,
        progress: &Progress,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        if self.takes_progress() {
            return self.write(id, &Delta::Progress(*progress), out);
        }
        Ok(())
    }

    /// Appends the reason for a pause, in an API whose clients can ask for it.
    fn write_pause(&mut self, _why: &str, _out: &mut Vec<u8>) {}

    /// Bytes sent after a silence, so that proxies keep the connection open: an event without
    /// content, or a comment where the API has none. No blank line follows the comment: several
    /// SDKs take it for the end of an event, and fail as that has no content.
    fn heartbeat(&self) -> Bytes {
        Bytes::from_static(b": waiting\n")
    }
}

/// Appends the events of a record to `out`, or their substitute.
///
/// # Errors
/// The errors of [`EventWriter::write`].
pub fn write_record<W: EventWriter>(
    events: &mut W,
    id: Option<u64>,
    delta: &Delta,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    match delta {
        Delta::Progress(progress) => events.write_progress(id, progress, out),
        Delta::Pause { why } => {
            events.write_pause(why, out);
            Ok(())
        }
        delta => events.write(id, delta, out),
    }
}

/// Passes complete `records`, the first of which begins at log `offset`, to `writer`; returns the
/// offset after the last.
///
/// # Errors
/// For records that cannot be read or written.
pub fn write_records(
    records: &[u8],
    offset: u64,
    writer: &mut impl EventWriter,
    out: &mut Vec<u8>,
) -> Result<u64, Error> {
    let mut at = 0;
    while let Some((len, delta)) = Delta::decode(&records[at..])? {
        at += len;
        if let Some(delta) = delta {
            write_record(writer, Some(offset + at as u64), &delta, out)?;
        }
    }
    Ok(offset + at as u64)
}

/// Writes OpenAI's chunks.
impl EventWriter for ChunkWriter {
    fn write(&mut self, id: Option<u64>, delta: &Delta, out: &mut Vec<u8>) -> Result<(), Error> {
        self.write(id, delta, out)
    }

    /// Progress reports are chunks if the client asks for them, under llama-server's names (S-6.7).
    fn takes_progress(&self) -> bool {
        true
    }

    fn write_error(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("data: {}\n\n", error.json()).as_bytes());
    }

    fn write_pause(&mut self, why: &str, out: &mut Vec<u8>) {
        self.pause(why, out);
    }

    fn heartbeat(&self) -> Bytes {
        self.heartbeat().into()
    }
}

/// State of an answer after the events that were just written.
#[derive(Debug)]
pub enum StreamStatus {
    /// More events may follow.
    Open,
    /// The answer is complete.
    Complete,
    /// The answer failed, or continues elsewhere. The corresponding events have been written.
    Broken(ApiError),
}

/// An answer as a source of events.
pub trait EventSource: Unpin {
    /// Appends the events that are ready to `out`, if any. The task of `context` is woken when
    /// there are more.
    fn poll_events(&mut self, context: &mut Context<'_>, out: &mut Vec<u8>) -> StreamStatus;

    /// Returns the event to send after a silence; see [`EventWriter::heartbeat`].
    fn heartbeat(&self) -> Bytes;
}
