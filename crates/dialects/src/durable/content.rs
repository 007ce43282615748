//! Content of a stream: an answer's records as JSON messages, or as text.

use http::HeaderValue;
use loquent_proto::chunk::ChunkWriter;
use loquent_proto::{Delta, Error};

use loquent_serving::error::ApiError;
use loquent_serving::event_writer::EventWriter;

/// Prefix of an event's data.
const DATA: &[u8] = b"data: ";

/// The forms of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// OpenAI's chunks: one JSON message each.
    Chunks,
    /// The first completion's text.
    Text,
}

impl Format {
    /// The stream's content type.
    pub const fn content_type(self) -> HeaderValue {
        match self {
            Self::Chunks => HeaderValue::from_static("application/json"),
            Self::Text => HeaderValue::from_static("text/plain; charset=utf-8"),
        }
    }

    /// Returns true if a reader of this format can learn that the answer failed.
    pub const fn tells_failure(self) -> bool {
        matches!(self, Self::Chunks)
    }

    /// Returns the body of a response with `content`.
    pub fn body(self, content: Vec<u8>) -> Vec<u8> {
        match self {
            Self::Chunks => [b"[", &content[..], b"]"].concat(),
            Self::Text => content,
        }
    }
}

/// Writes records as a stream's content: comma-separated messages, or text.
pub struct ContentWriter {
    form: Form,
    /// The log offset after the last record.
    offset: u64,
    has_failed: bool,
}

enum Form {
    Chunks { chunks: Box<ChunkWriter>, events: Vec<u8> },
    Text,
}

impl ContentWriter {
    /// Returns a writer from log `offset` on, where `chunks` is the state of the chunks.
    pub fn new(format: Format, chunks: ChunkWriter, offset: u64) -> Self {
        let form = match format {
            Format::Chunks => Form::Chunks { chunks: Box::new(chunks), events: Vec::new() },
            Format::Text => Form::Text,
        };
        Self { form, offset, has_failed: false }
    }

    /// Returns the log offset after the content written so far.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Turns this into a writer after the last record of an answer that failed.
    #[must_use]
    pub fn after_failure(self) -> Self {
        Self { has_failed: true, ..self }
    }

    /// Returns true if the answer's error has been written, or left out because text cannot express
    /// it.
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }
}

impl EventWriter for ContentWriter {
    fn takes_progress(&self) -> bool {
        // A message for those who asked.
        true
    }

    fn write(&mut self, id: Option<u64>, delta: &Delta, out: &mut Vec<u8>) -> Result<(), Error> {
        self.offset = id.unwrap_or(self.offset);
        self.has_failed |= matches!(delta, Delta::Error { .. });
        match (&mut self.form, delta) {
            (Form::Text, Delta::Text { choice: 0, text, .. }) => {
                out.extend_from_slice(text.as_bytes());
            }
            (Form::Text, _) => {}
            (Form::Chunks { chunks, events }, delta) => {
                events.clear();
                chunks.write(None, delta, events)?;
                messages_of(events).for_each(|message| {
                    // `out` holds this piece alone; whoever joins pieces puts commas between.
                    if !out.is_empty() {
                        out.push(b',');
                    }
                    out.extend_from_slice(message);
                });
            }
        }
        Ok(())
    }

    fn write_error(&mut self, _: &ApiError, _: &mut Vec<u8>) {
        // A stream that is kept ends with a record.
    }
}

/// Returns the JSON in events of chunks, one line each, without `[DONE]`.
fn messages_of(events: &[u8]) -> impl Iterator<Item = &[u8]> {
    let lines = events.split(|byte| *byte == b'\n');
    lines.filter_map(|line| line.strip_prefix(DATA)).filter(|data| data.first() == Some(&b'{'))
}
