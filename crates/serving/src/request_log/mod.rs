//! Request log: one line per request, written when it ends, with its key, its costs, its carriers
//! and its end. It never contains prompts or answers.
//!
//! Requests submit their entries without waiting. A separate thread formats them, so that a
//! terminal or a pipe that is not read blocks no request; entries that do not fit into its queue
//! are counted and dropped.

mod id;
mod line;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

pub use self::id::{REQUEST_ID_HEADER, RequestId};
pub use self::line::{AnswerLine, OtherLine};
use self::line::{RequestLine, RequestLineWriter};

/// Maximum number of lines waiting to be written. Chosen by hand: seconds of requests at the
/// highest rate of a single-machine server, in about half a megabyte.
const MAX_WAITING: usize = 2048;
/// Time limit for writing the last lines when the server ends.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// Sender of log lines; the default writes none.
#[derive(Debug, Clone, Default)]
pub struct RequestLog(Option<Arc<LogQueue>>);

#[derive(Debug)]
struct LogQueue {
    lines: mpsc::Sender<LogMessage>,
    /// Lines dropped since the writer last reported them.
    missed: Arc<AtomicU64>,
}

/// Message to the writer's thread.
#[derive(Debug)]
enum LogMessage {
    Line(RequestLine),
    /// Confirms that all earlier messages are written.
    Flush(oneshot::Sender<()>),
}

impl RequestLog {
    /// Starts the thread that writes lines as `tracing` events, to the subscriber of the calling
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

    /// Returns true if lines are written.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Logs an answer that has ended.
    pub fn note_answer(&self, line: impl FnOnce() -> AnswerLine) {
        self.note(|| RequestLine::Answer(line()));
    }

    /// Logs a request without an answer.
    pub fn note_other(&self, line: impl FnOnce() -> OtherLine) {
        self.note(|| RequestLine::Other(line()));
    }

    fn note(&self, line: impl FnOnce() -> RequestLine) {
        let Some(queue) = &self.0 else { return };
        if queue.lines.try_send(LogMessage::Line(line())).is_err() {
            queue.missed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits briefly until all earlier lines are written.
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
