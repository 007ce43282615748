//! Assembles an answer as it is generated, and stores it when it is complete.
//!
//! The recorder observes the answer's flushes on their way to the reader, over any transport. The
//! end of the stream waits for the store: a client that has the whole answer finds it there.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::task::JoinHandle;

use super::Store;
use crate::object::{AnswerFence, Kind, StoreError, StoredObject, WriteMode};
use loquent_serving::active_request::ActiveRequest;
use loquent_serving::blocking_workers::BlockingWorkers;
use loquent_serving::clock::unix_time_s;
use loquent_serving::flush::{Flush, FlushObserver};
use loquent_serving::full_answer::FullAnswer;
use loquent_serving::held_answer::HeldAnswer;
use loquent_serving::identity::Owner;
use loquent_serving::memory::SMALL_BYTES;
use loquent_serving::usage::Usage;

/// First and longest pause before a failed attempt to store an answer is repeated; each pause is
/// twice the previous one.
const RETRY_FIRST: Duration = Duration::from_millis(250);
const RETRY_LAST: Duration = Duration::from_secs(10);

/// Converts an answer into the object to store.
pub trait RecordedObject: Send + 'static {
    /// Returns the object of the complete `answer`.
    fn object(&self, answer: &FullAnswer) -> StoredObject;
}

/// Destination of an answer in the store.
#[derive(Debug, Clone)]
pub struct StoreTarget {
    /// The store.
    pub store: Store,
    /// Workers that render long objects.
    pub workers: BlockingWorkers,
    /// Kind of the object.
    pub kind: Kind,
    /// Owner of the object.
    pub owner: Owner,
    /// Fence with which its answer is generated.
    pub fence: AnswerFence,
}

impl StoreTarget {
    /// Stores the object that `render` returns under the target's fence, in the given mode. An
    /// object of many `bytes` is rendered by a worker: it takes longer than a network thread may
    /// be kept. Returns false if the answer is stored already, or another replica's to store.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn write(
        &self,
        bytes: usize,
        render: impl FnOnce() -> StoredObject + Send + 'static,
        mode: fn(AnswerFence) -> WriteMode,
    ) -> Result<bool, StoreError> {
        let object = self.render(bytes, render).await?;
        self.put(object, mode).await
    }

    async fn render(
        &self,
        bytes: usize,
        render: impl FnOnce() -> StoredObject + Send + 'static,
    ) -> Result<StoredObject, StoreError> {
        let rendered = self.workers.run_if(bytes > SMALL_BYTES, move || Ok(render())).await;
        rendered.map_err(|_| StoreError::Unreadable)
    }

    async fn put(
        &self,
        object: StoredObject,
        mode: fn(AnswerFence) -> WriteMode,
    ) -> Result<bool, StoreError> {
        self.store.write(self.kind, self.owner, object, mode(self.fence)).await
    }

    /// Repeats `attempt`, to store an object created at `created_s` Unix time whose first attempt
    /// has failed with `first`: with backoff, until the store works again or would not keep the
    /// object any more.
    pub async fn store_later<F: Future<Output = Result<bool, StoreError>>>(
        &self,
        created_s: u64,
        first: &StoreError,
        attempt: impl Fn() -> F,
    ) {
        tracing::warn!(error = %first, "an answer is not stored, and is kept until it can be");
        let too_old_s = created_s.saturating_add(self.store.age().as_secs());
        let mut pause = RETRY_FIRST;
        while unix_time_s() <= too_old_s {
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(RETRY_LAST);
            match attempt().await {
                Ok(true) => return,
                Ok(false) => return tracing::info!("an answer is stored, or not ours to store"),
                Err(StoreError::TooLarge { .. } | StoreError::LongId) => return,
                Err(error) => tracing::debug!(%error, "an answer could not be stored"),
            }
        }
    }
}

/// A recorder of one answer. If dropped before the answer's end, it stores nothing.
pub enum AnswerRecorder<O> {
    /// The answer is being generated.
    Recording(Box<Recording<O>>),
    /// The answer is complete and being stored.
    Writing(JoinHandle<()>),
    /// The answer was stored, could not be stored, or failed.
    Over,
}

/// The part of an answer generated so far.
pub struct Recording<O> {
    answer: FullAnswer,
    held: HeldAnswer,
    object: O,
    place: StoreTarget,
}

impl<O: RecordedObject> AnswerRecorder<O> {
    /// Creates a recorder of the answer to `active`, which is charged to `held` and which `object`
    /// converts for the store.
    pub fn new(active: &ActiveRequest, held: HeldAnswer, object: O, place: StoreTarget) -> Self {
        let answer = FullAnswer::begin(active, &[]);
        Self::Recording(Box::new(Recording { answer, held, object, place }))
    }
}

impl<O: RecordedObject> FlushObserver for AnswerRecorder<O> {
    fn on_flush(&mut self, flush: &Flush) {
        match self {
            // Half an answer would look like a whole one.
            Self::Recording(_) if flush.error().is_some() => *self = Self::Over,
            Self::Recording(recording) => match recording.held.add(flush) {
                Ok(()) => recording.answer.push(flush.clone()),
                Err(_) => {
                    let id = &recording.answer.head.id;
                    tracing::warn!("the answer {id} is not stored: there is no memory for it");
                    *self = Self::Over;
                }
            },
            Self::Writing(_) | Self::Over => {}
        }
    }

    fn poll_end(&mut self, context: &mut Context<'_>, usage: Usage) -> Poll<()> {
        if let Self::Recording(_) = self
            && let Self::Recording(mut recording) = std::mem::replace(self, Self::Over)
        {
            recording.answer.usage = usage;
            // A task of its own: a reader that leaves now does not keep the answer from the store.
            *self = Self::Writing(tokio::spawn(recording.write()));
        }
        if let Self::Writing(writing) = self {
            // It logs its errors itself.
            let _ = ready!(Pin::new(writing).poll(context));
            *self = Self::Over;
        }
        Poll::Ready(())
    }
}

impl<O: RecordedObject> Recording<O> {
    /// Stores the answer. If the store is away, the reader gets its end all the same, and the
    /// answer is stored when the store is back.
    async fn write(self) {
        let Self { answer, object, place, held } = self;
        let (id, bytes) = (answer.head.id.clone(), answer.bytes());
        let object = match place.render(bytes, move || object.object(&answer)).await {
            Ok(object) => object,
            Err(error) => return tracing::warn!("the answer {id} is not stored: {error}"),
        };
        match place.put(object.clone(), WriteMode::Complete).await {
            Ok(true) => {}
            Ok(false) => tracing::info!("the answer {id} is stored, or not ours to store"),
            Err(error @ (StoreError::TooLarge { .. } | StoreError::LongId)) => {
                tracing::warn!("the answer {id} is not stored: {error}");
            }
            Err(error) => {
                tokio::spawn(async move {
                    let again = || place.put(object.clone(), WriteMode::Complete);
                    place.store_later(object.created_s, &error, again).await;
                    // It was charged until now.
                    drop(held);
                });
            }
        }
    }
}
