//! An answer that arrives: over whichever transport works, step by step, exactly once,
//! and complete only when its Done was read (D-3.6).
//!
//! A task of its own drives each answer, so that acknowledgements leave while nobody
//! asks for the next step. It holds a bounded number of steps; a reader that stops
//! reading stops the transport too.

mod quic;
mod sse;
mod step;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

use loquent_proto::{AnswerHandle, Receiver};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

pub(crate) use quic::ask as ask_by_quic;
pub(crate) use sse::{SsePath, handle_of};
pub use step::{Content, Step, chunk_deltas};

use crate::backoff::Backoff;
use crate::client::Client;
use crate::memory::Transport;
use crate::{ClientError, reply::Reply};
use quic::QuicPath;

/// Steps that wait for the reader.
const MAX_STEPS: usize = 64;
/// How long a resume over QUIC may take before HTTP is tried.
const RESUME_TIMEOUT: Duration = Duration::from_secs(3);

/// What a request for an answer led to.
pub enum Asked {
    /// An answer that can be resumed.
    Answer(Answer),
    /// Something else: a refusal, or a stream of a server that cannot resume.
    Reply(Reply),
}

/// An answer that is arriving. Dropping it cancels it at the server.
pub struct Answer {
    items: mpsc::Receiver<Item>,
    shared: Arc<Shared>,
    handle: AnswerHandle,
    ignored_parameters: Option<String>,
    ended: bool,
    /// Resolves when the task has ended.
    over: oneshot::Receiver<()>,
}

enum Item {
    Step(Step),
    End(Result<(), ClientError>),
}

/// What the reader sees of the task, and tells it.
#[derive(Default)]
struct Shared {
    by_http: AtomicU8,
    resumes: AtomicU32,
    keep: AtomicBool,
}

impl Answer {
    /// The next step; `None` once the answer is whole. Cancelling it loses nothing.
    ///
    /// # Errors
    /// Why the answer is not whole and never will be. A server's own error is a step
    /// before it.
    pub async fn next(&mut self) -> Result<Option<Step>, ClientError> {
        if self.ended {
            return Ok(None);
        }
        match self.items.recv().await {
            Some(Item::Step(step)) => Ok(Some(step)),
            Some(Item::End(end)) => {
                self.ended = true;
                end.map(|()| None)
            }
            None => {
                self.ended = true;
                Err(ClientError::Broken("the answer's task has ended".into()))
            }
        }
    }

    /// What names the answer, for a resume elsewhere.
    pub fn handle(&self) -> AnswerHandle {
        self.handle
    }

    /// Names of the request's parameters that the server ignored, if it said so.
    pub fn ignored_parameters(&self) -> Option<&str> {
        self.ignored_parameters.as_deref()
    }

    /// Notes what the server said of the request's parameters.
    pub(crate) fn with_ignored_parameters(self, names: Option<String>) -> Answer {
        Answer { ignored_parameters: names, ..self }
    }

    /// Which way it comes now.
    pub fn transport(&self) -> Transport {
        match self.shared.by_http.load(Ordering::Relaxed) {
            0 => Transport::Quic,
            _ => Transport::Http,
        }
    }

    /// How often it went on over a new path.
    pub fn resumes(&self) -> u32 {
        self.shared.resumes.load(Ordering::Relaxed)
    }

    /// Cancels the answer, and waits until the server was told (some seconds at most).
    /// Dropping the answer does the same in the background.
    pub async fn cancel(mut self) {
        self.items.close();
        let _ = (&mut self.over).await; // It is only ever dropped.
    }

    /// Leaves the answer without cancelling it: it is generated on for the server's grace
    /// period, for whoever resumes it.
    pub fn leave(self) {
        self.shared.keep.store(true, Ordering::Relaxed);
    }
}

/// One way that an answer comes.
pub(crate) enum Path {
    Quic(Box<QuicPath>),
    Sse(Box<SsePath>),
}

/// How the time on one path ended.
enum Outcome {
    /// The answer is whole.
    Complete,
    /// It never will be.
    Failed(ClientError),
    /// The path is gone, the answer perhaps not.
    Lost(ClientError),
    /// QUIC has come up: go on there.
    Upgrade,
    /// The reader wants no more.
    Cancelled,
}

/// Drives one answer.
pub(crate) struct Driver {
    client: Client,
    handle: AnswerHandle,
    items: mpsc::Sender<Item>,
    shared: Arc<Shared>,
    /// For the reader, in order; nothing is read from the network before it is empty.
    waiting: VecDeque<Item>,
    /// Offset from which a chunk writer can go on: after the last step handed over that
    /// is a chunk by itself.
    cursor: u64,
    /// Steps up to here were handed out before.
    seen_until: u64,
    receiver: Option<Receiver>,
    /// What the server said in the log's last record, if that was an error.
    server_error: Option<String>,
    /// Since the answer last made progress.
    trouble: Option<Trouble>,
}

/// Losses without progress in between.
struct Trouble {
    /// Log offset up to which the answer had come.
    reached: u64,
    since: Instant,
    backoff: Backoff,
}

impl Trouble {
    fn next_pause(&mut self) -> Option<Duration> {
        self.backoff.next(self.since.elapsed(), rand::random())
    }
}

impl Answer {
    /// Starts an answer over `path`, from log offset `cursor` on.
    pub(crate) fn start(client: &Client, handle: AnswerHandle, path: Path, cursor: u64) -> Answer {
        let (items, receiver) = mpsc::channel(MAX_STEPS);
        let shared = Arc::new(Shared::default());
        let mut driver = Driver {
            client: client.clone(),
            handle,
            items,
            shared: Arc::clone(&shared),
            waiting: VecDeque::new(),
            cursor,
            seen_until: cursor,
            receiver: None,
            server_error: None,
            trouble: None,
        };
        driver.note_transport(&path);
        let (task, over) = oneshot::channel();
        tokio::spawn(async move {
            driver.run(path).await;
            drop(task);
        });
        let ignored_parameters = None;
        Answer { items: receiver, shared, handle, ignored_parameters, ended: false, over }
    }

    /// Goes on with the answer of `handle` from log offset `cursor`, over whichever
    /// transport gets there first.
    ///
    /// # Errors
    /// [`ClientError::Gone`], or why the server cannot be reached.
    pub(crate) async fn resume(
        client: &Client,
        handle: AnswerHandle,
        cursor: u64,
    ) -> Result<Answer, ClientError> {
        let path = reach(client, handle, None, cursor).await?;
        Ok(Answer::start(client, handle, path, cursor))
    }
}

/// A path to the answer of `handle`: QUIC with its head start, else HTTP. By QUIC it goes
/// on from `kept`, or from the beginning; by HTTP from `cursor`.
async fn reach(
    client: &Client,
    handle: AnswerHandle,
    kept: Option<u64>,
    cursor: u64,
) -> Result<Path, ClientError> {
    if let Some(link) = client.link().await {
        let packets = link.packets_received();
        let resuming = QuicPath::resume(&link, handle, kept.unwrap_or(0));
        match tokio::time::timeout(RESUME_TIMEOUT, resuming).await {
            Ok(Ok(path)) => return Ok(Path::Quic(Box::new(path))),
            // From the beginning it may be gone, and still be there from the cursor.
            Ok(Err(ClientError::Gone)) if kept.is_some() || cursor == 0 => {
                return Err(ClientError::Gone);
            }
            Ok(Err(ClientError::Gone)) => {}
            Ok(Err(error)) => tracing::debug!("resume by QUIC: {error}"),
            Err(_) if link.packets_received() == packets => client.give_up(&link),
            Err(_) => tracing::debug!("resume by QUIC: no answer within {RESUME_TIMEOUT:?}"),
        }
    }
    SsePath::resume(client, handle, cursor).await.map(|path| Path::Sse(Box::new(path)))
}

impl Driver {
    async fn run(mut self, first: Path) {
        let _busy = self.client.busy();
        let mut path = first;
        loop {
            let outcome = match &mut path {
                Path::Quic(quic) => self.carry_quic(quic).await,
                Path::Sse(sse) => self.carry_sse(sse).await,
            };
            let lost = match outcome {
                Outcome::Complete => return self.finish(path, Ok(())).await,
                Outcome::Failed(error) => return self.finish(path, Err(error)).await,
                Outcome::Cancelled => return self.cancel(Some(path)).await,
                Outcome::Upgrade => ClientError::Broken("moving to QUIC".into()),
                Outcome::Lost(error) => error,
            };
            tracing::debug!("answer {}: {lost}", self.handle.id_hex());
            drop(path);
            path = match self.recover(lost).await {
                Ok(Some(found)) => found,
                Ok(None) => return self.cancel(None).await,
                Err(error) => {
                    let _ = self.items.send(Item::End(Err(error))).await;
                    return;
                }
            };
        }
    }

    /// A new path after the loss of one; `None` if the reader has gone meanwhile.
    async fn recover(&mut self, lost: ClientError) -> Result<Option<Path>, ClientError> {
        let kept = self.receiver.as_ref().map(Receiver::cumulative);
        let reached = kept.unwrap_or(0).max(self.cursor);
        if self.trouble.as_ref().is_none_or(|trouble| trouble.reached < reached) {
            let backoff = Backoff::new(self.client.config().resume_limit);
            self.trouble = Some(Trouble { reached, since: Instant::now(), backoff });
        }
        let mut last = lost;
        while let Some(pause) = self.trouble.as_mut().and_then(Trouble::next_pause) {
            let attempt = async {
                tokio::time::sleep(pause).await;
                reach(&self.client, self.handle, kept, self.cursor).await
            };
            let reached = tokio::select! {
                biased;
                () = self.items.closed() => return Ok(None),
                reached = attempt => reached,
            };
            match reached {
                Ok(path) => {
                    self.shared.resumes.fetch_add(1, Ordering::Relaxed);
                    self.note_transport(&path);
                    return Ok(Some(path));
                }
                Err(ClientError::Gone) => return Err(ClientError::Gone),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn note_transport(&mut self, path: &Path) {
        let by_http = u8::from(matches!(path, Path::Sse(_)));
        self.shared.by_http.store(by_http, Ordering::Relaxed);
        if by_http == 1 {
            self.receiver = None;
        } else if self.receiver.is_none() {
            self.seen_until = self.cursor;
        }
    }

    /// Hands a step over, or keeps it until there is room.
    fn deliver(&mut self, item: Item) {
        if !self.waiting.is_empty() {
            self.waiting.push_back(item);
            return;
        }
        match self.items.try_send(item) {
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => {}
            Err(mpsc::error::TrySendError::Full(item)) => self.waiting.push_back(item),
        }
    }

    /// Tells the reader how the answer ended, and the server that we know.
    async fn finish(self, path: Path, end: Result<(), ClientError>) {
        let unreadable = matches!(end, Err(ClientError::Malformed(_)));
        let _ = self.items.send(Item::End(end)).await;
        let Driver { client, items, mut receiver, .. } = self;
        drop(items);
        match (path, &mut receiver) {
            (Path::Quic(quic), Some(receiver)) if unreadable => quic.stop(&client, receiver).await,
            (Path::Quic(quic), Some(receiver)) => quic.linger(&client, receiver).await,
            _ => {}
        }
    }

    /// The reader wants no more: says so to the server, unless the answer shall go on.
    async fn cancel(mut self, path: Option<Path>) {
        let keep = self.shared.keep.load(Ordering::Relaxed);
        match (path, &mut self.receiver) {
            // A stream that ends without a STOP is no cancellation (S-4.5).
            _ if keep => {}
            (Some(Path::Quic(quic)), Some(receiver)) => quic.stop(&self.client, receiver).await,
            _ => self.client.forget(self.handle).await,
        }
    }
}
