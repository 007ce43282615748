//! One line in the log for each request, written when it ends: whose it was, what it cost, how its
//! answer travelled and how it ended. Never what was asked or answered.
//!
//! Requests hand over what is to be logged without waiting. A thread of its own makes lines of it,
//! so that a terminal or a pipe that is not read holds up nobody; what does not fit into its queue
//! is counted and left out.

mod id;
mod line;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

pub use self::id::{REQUEST_ID_HEADER, RequestId};
pub use self::line::{AnswerLine, OtherLine};
use self::line::{RequestLine, RequestLineWriter};

/// Lines that may wait to be written. Chosen by hand: seconds of requests at the highest rate that
/// a server of one machine has, in about half a megabyte.
const MAX_WAITING: usize = 2048;
/// How long the end of the server waits until the last lines are written.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// Where the lines of requests go; the default writes none.
#[derive(Debug, Clone, Default)]
pub struct RequestLog(Option<Arc<LogQueue>>);

#[derive(Debug)]
struct LogQueue {
    lines: mpsc::Sender<LogMessage>,
    /// Lines left out since the writer last said so.
    missed: Arc<AtomicU64>,
}

/// What the writer's thread is sent.
#[derive(Debug)]
enum LogMessage {
    Line(RequestLine),
    /// Everything before it is written: the other end is told.
    Flush(oneshot::Sender<()>),
}

impl RequestLog {
    /// Starts the thread that writes lines as events of `tracing`, to the subscriber of this
    /// thread.
    ///
    /// # Errors
    /// When the operating system refuses the thread.
    pub fn start() -> std::io::Result<Self> {
        let (lines, mut inbox) = mpsc::channel(MAX_WAITING);
        let missed = Arc::new(AtomicU64::new(0));
        let mut writer = RequestLineWriter::new(missed.clone());
        let subscriber = tracing::dispatcher::get_default(Clone::clone);
        let write = move || {
            tracing::dispatcher::with_default(&subscriber, || {
                while let Some(message) = inbox.blocking_recv() {
                    match message {
                        LogMessage::Line(line) => writer.write(&line),
                        LogMessage::Flush(written) => drop(written.send(())),
                    }
                }
            });
        };
        std::thread::Builder::new().name("request-log".into()).spawn(write)?;
        Ok(Self(Some(Arc::new(LogQueue { lines, missed }))))
    }

    /// Whether anything is written.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Notes an answer that has ended.
    pub fn note_answer(&self, line: impl FnOnce() -> AnswerLine) {
        self.note(|| RequestLine::Answer(line()));
    }

    /// Notes a request without an answer of its own.
    pub fn note_other(&self, line: impl FnOnce() -> OtherLine) {
        self.note(|| RequestLine::Other(line()));
    }

    fn note(&self, line: impl FnOnce() -> RequestLine) {
        let Some(queue) = &self.0 else { return };
        if queue.lines.try_send(LogMessage::Line(line())).is_err() {
            queue.missed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits, for a moment at most, until what was noted is written.
    pub async fn flush(&self) {
        let Some(queue) = &self.0 else { return };
        let (sender, written) = oneshot::channel();
        let flush = async {
            if queue.lines.send(LogMessage::Flush(sender)).await.is_ok() {
                let _ = written.await;
            }
        };
        let _ = tokio::time::timeout(CLOSE_LIMIT, flush).await;
    }
}
