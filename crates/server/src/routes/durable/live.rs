//! A stream as server-sent events: its content in `data` events, each followed by a `control` event
//! with the offset to continue from.

use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use tokio::time::Sleep;

use loquent_dialects::durable::content::{ContentWriter, Format};
use loquent_dialects::durable::cursor::next_cursor;
use loquent_dialects::durable::cursor::shown;
use loquent_resumable::sse_reader::LogReader;
use loquent_serving::clock::unix_time_s;
use loquent_serving::event_writer::{EventSource, StreamStatus};

/// Lifetime of a connection, after which its client must reconnect, so that caches can join clients
/// that wait for the same offset.
const LIFETIME: Duration = Duration::from_secs(60);
/// Content size after which an event is sent although more is ready.
const EVENT_BYTES: usize = 16 * 1024;

/// Normalises the content's line ends: each kind would begin a new line of the event stream, and a
/// two-character one may be split between pieces.
#[derive(Debug, Default)]
struct LineEnds {
    /// True if the last piece ended with a carriage return.
    after_return: bool,
}

impl LineEnds {
    /// Returns the next piece with its line ends normalised.
    fn unified(&mut self, piece: &str) -> String {
        let rest = match self.after_return {
            true => piece.strip_prefix('\n').unwrap_or(piece),
            false => piece,
        };
        self.after_return = piece.ends_with('\r');
        rest.replace("\r\n", "\n").replace('\r', "\n")
    }
}

/// Reads a stream as events.
pub struct LiveReader {
    reader: LogReader<ContentWriter>,
    format: Format,
    cursor: Option<String>,
    line_ends: LineEnds,
    /// The stream's end when the reader connected: only from there on may it be up to date.
    tail: u64,
    /// True once a `control` event has given the reader its offset.
    is_told: bool,
    end: Pin<Box<Sleep>>,
}

impl LiveReader {
    /// Returns a reader of the content of `reader`, for a client that sent `cursor`; `tail` is the
    /// current end of the stream.
    pub fn new(
        reader: LogReader<ContentWriter>,
        format: Format,
        cursor: Option<String>,
        tail: u64,
    ) -> Self {
        let end = Box::pin(tokio::time::sleep(LIFETIME));
        let line_ends = LineEnds::default();
        Self { reader, format, cursor, line_ends, tail, is_told: false, end }
    }

    fn put_data(&mut self, content: Vec<u8>, out: &mut Vec<u8>) {
        if content.is_empty() {
            return;
        }
        let body = self.line_ends.unified(&String::from_utf8_lossy(&self.format.body(content)));
        if body.is_empty() {
            return;
        }
        out.extend_from_slice(b"event: data\n");
        // Each line of the content gets a field of its own.
        for line in body.split('\n') {
            // One leading space is no part of a field's value: text that has one needs another.
            let field: &[u8] = if line.starts_with(' ') { b"data: " } else { b"data:" };
            out.extend_from_slice(field);
            out.extend_from_slice(line.as_bytes());
            out.push(b'\n');
        }
        out.push(b'\n');
    }

    fn put_control(&mut self, is_up_to_date: bool, is_closed: bool, out: &mut Vec<u8>) {
        self.is_told = true;
        let mut control = json!({"streamNextOffset": shown(self.reader.events().offset())});
        if is_closed {
            control["streamClosed"] = true.into();
        } else {
            let cursor = next_cursor(unix_time_s(), self.cursor.as_deref(), rand::random());
            control["streamCursor"] = cursor.to_string().into();
        }
        if is_up_to_date || is_closed {
            control["upToDate"] = true.into();
        }
        out.extend_from_slice(format!("event: control\ndata:{control}\n\n").as_bytes());
    }
}

impl EventSource for LiveReader {
    fn poll_events(&mut self, context: &mut Context<'_>, out: &mut Vec<u8>) -> StreamStatus {
        let mut content = Vec::new();
        let mut status = self.reader.poll_events(context, &mut content);
        let mut is_idle = content.is_empty();
        while matches!(status, StreamStatus::Open) && !is_idle && content.len() < EVENT_BYTES {
            let mut more = Vec::new();
            status = self.reader.poll_more(context, &mut more);
            is_idle = more.is_empty();
            if !is_idle && self.format == Format::Chunks {
                content.push(b',');
            }
            content.append(&mut more);
        }
        let is_up_to_date = is_idle && self.reader.events().offset() >= self.tail;
        let had_content = !content.is_empty();
        self.put_data(content, out);
        match status {
            StreamStatus::Open if had_content || is_up_to_date && !self.is_told => {
                self.put_control(is_up_to_date, false, out);
            }
            // Asked only when nothing was sent: a busy stream ends at its next pause.
            StreamStatus::Open if self.end.as_mut().poll(context).is_ready() => {
                return StreamStatus::Complete;
            }
            StreamStatus::Open => {}
            StreamStatus::Complete => self.put_control(true, true, out),
            // The answer's error is its last message; text cannot tell, and breaks off.
            StreamStatus::Broken(_)
                if self.reader.events().has_failed() && self.format.tells_failure() =>
            {
                self.put_control(true, true, out);
                return StreamStatus::Complete;
            }
            broken @ StreamStatus::Broken(_) => return broken,
        }
        status
    }

    fn heartbeat(&self) -> Bytes {
        self.reader.heartbeat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_ends_are_the_same_wherever_they_are_cut() {
        let text = "a\r\nb\rc\n\r\n\r\rd\r\n";
        for cut in 0..=text.len() {
            let mut ends = LineEnds::default();
            let unified = ends.unified(&text[..cut]) + &ends.unified(&text[cut..]);
            assert_eq!(unified, "a\nb\nc\n\n\n\nd\n", "cut at {cut}");
        }
    }
}
