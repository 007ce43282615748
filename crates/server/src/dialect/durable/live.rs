//! A stream as server-sent events: its content in `data` events, each followed by a `control` event
//! that says where to go on.

use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use tokio::time::Sleep;

use super::content::{ContentWriter, Format};
use super::cursor::next_cursor;
use super::read::shown;
use crate::clock::unix_time_s;
use crate::resumable::sse_reader::LogReader;
use crate::sse::{EventSource, StreamStatus};

/// How long a connection lasts before its client has to come back, so that caches can join those
/// who wait for the same.
const LIFETIME: Duration = Duration::from_secs(60);
/// Content of one event, after which it leaves although more is ready.
const EVENT_BYTES: usize = 16 * 1024;

/// Reads a stream as events.
pub struct LiveReader {
    reader: LogReader<ContentWriter>,
    format: Format,
    cursor: Option<String>,
    /// The stream's end when the reader came: only from there on it may be up to date.
    tail: u64,
    /// Whether a `control` event has told the reader where it is.
    is_told: bool,
    end: Pin<Box<Sleep>>,
}

impl LiveReader {
    /// A reader of what `reader` gets, for a client that sent `cursor`; the stream ends at `tail`
    /// now.
    pub fn new(
        reader: LogReader<ContentWriter>,
        format: Format,
        cursor: Option<String>,
        tail: u64,
    ) -> Self {
        let end = Box::pin(tokio::time::sleep(LIFETIME));
        Self { reader, format, cursor, tail, is_told: false, end }
    }

    fn put_data(&self, content: Vec<u8>, out: &mut Vec<u8>) {
        if content.is_empty() {
            return;
        }
        out.extend_from_slice(b"event: data\n");
        let body = String::from_utf8_lossy(&self.format.body(content)).into_owned();
        // Every kind of line end would begin a line of the event stream: each line of the content
        // gets a field of its own.
        let body = body.replace("\r\n", "\n").replace('\r', "\n");
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
