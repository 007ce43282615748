//! The reader's side of an answer: receives steps from the task that drives it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use http::HeaderMap;
use loquent_proto::AnswerHandle;
use loquent_proto::headers::IGNORED_HEADER;
use tokio::sync::{mpsc, oneshot};

use super::step::Step;
use crate::ClientError;
use crate::known_servers::Transport;
use crate::reply::Reply;

/// Outcome of a request for an answer.
pub enum Asked {
    /// An answer that can be resumed.
    Answer(Answer),
    /// Any other response: a refusal, or a stream from a server that cannot resume.
    Reply(Reply),
}

/// An answer in transit. Dropping it cancels it at the server.
pub struct Answer {
    items: mpsc::Receiver<AnswerItem>,
    status: Arc<AnswerStatus>,
    handle: AnswerHandle,
    headers: HeaderMap,
    ended: bool,
    /// Closes when the task has ended.
    over: oneshot::Receiver<()>,
}

/// Item that the task sends to the reader.
pub(super) enum AnswerItem {
    Step(Step),
    End(Result<(), ClientError>),
}

/// State shared by the reader and the task, besides the items.
#[derive(Default)]
pub(super) struct AnswerStatus {
    /// 1 while the answer comes over HTTP, 0 over QUIC.
    pub(super) by_http: AtomicU8,
    /// True while the last path is lost, and no new one is found.
    pub(super) is_lost: AtomicBool,
    /// Number of times the answer moved to a new path.
    pub(super) resumes: AtomicU32,
    /// True if the reader left without cancelling: the server keeps generating.
    pub(super) keep: AtomicBool,
}

impl Answer {
    /// Creates the reader's side of a task that sends to `items` and drops the sender of `over`.
    pub(super) fn new(
        items: mpsc::Receiver<AnswerItem>,
        status: Arc<AnswerStatus>,
        handle: AnswerHandle,
        over: oneshot::Receiver<()>,
    ) -> Answer {
        Answer { items, status, handle, headers: HeaderMap::new(), ended: false, over }
    }

    /// Returns the next step, or `None` once the answer is complete. Cancel safe.
    ///
    /// # Errors
    /// The reason why the answer is not complete and never will be. An error reported by the server
    /// arrives as a step before it.
    pub async fn next(&mut self) -> Result<Option<Step>, ClientError> {
        if self.ended {
            return Ok(None);
        }
        match self.items.recv().await {
            Some(AnswerItem::Step(step)) => Ok(Some(step)),
            Some(AnswerItem::End(end)) => {
                self.ended = true;
                end.map(|()| None)
            }
            None => {
                self.ended = true;
                Err(ClientError::Broken("the answer's task has ended".into()))
            }
        }
    }

    /// Returns the handle of the answer, with which it can be resumed elsewhere.
    pub fn handle(&self) -> AnswerHandle {
        self.handle
    }

    /// Returns the headers that came with the beginning of the answer: `x-ratelimit-*` and the
    /// like, and the other response headers if it began over HTTP.
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// Returns the names of the request parameters that the server ignored, if it reports any.
    pub fn ignored_parameters(&self) -> Option<&str> {
        self.headers.get(IGNORED_HEADER)?.to_str().ok()
    }

    /// Returns the answer with the headers that came with it.
    pub(crate) fn with_headers(self, headers: HeaderMap) -> Answer {
        Answer { headers, ..self }
    }

    /// Returns false from the loss of a path until the next one is found.
    pub fn is_connected(&self) -> bool {
        !self.status.is_lost.load(Ordering::Relaxed)
    }

    /// Returns the transport that the answer uses now.
    pub fn transport(&self) -> Transport {
        match self.status.by_http.load(Ordering::Relaxed) {
            0 => Transport::Quic,
            _ => Transport::Http,
        }
    }

    /// Returns the number of times the answer moved to a new path.
    pub fn resumes(&self) -> u32 {
        self.status.resumes.load(Ordering::Relaxed)
    }

    /// Cancels the answer and waits until the server knows (a few seconds at most). Dropping the
    /// answer does the same in the background.
    pub async fn cancel(mut self) {
        self.items.close();
        // Nothing is ever sent: the channel closes with the task.
        let _ = (&mut self.over).await;
    }

    /// Leaves the answer without cancelling it: the server keeps generating for its grace period,
    /// so that the answer can be resumed.
    pub fn leave(self) {
        self.status.keep.store(true, Ordering::Relaxed);
    }
}
