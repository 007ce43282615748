//! The stored chats of one replica, which are called as the server's routes call them.

use std::future::poll_fn;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use loquent_dialects::stored_chats::object::{StoredChat, completion, with_metadata};
use loquent_serving::active_request::ActiveRequest;
use loquent_serving::api::fields::Fields;
use loquent_serving::api::stored_chat::ChatToStore;
use loquent_serving::body::RequestBodies;
use loquent_serving::error::ApiError;
use loquent_serving::flush::{Flush, FlushObserver};
use loquent_serving::held_answer::HeldAnswer;
use loquent_serving::identity::Owner;
use loquent_serving::model::unknown_vocab::UnknownVocab;
use loquent_serving::usage::Usage;
use loquent_store::object::StoredObject;
use loquent_store::recorder::{AnswerRecorder, StoreTarget};
use loquent_store::{AnswerFence, Kind, Store};
use serde_json::{Value, json};

use crate::glue::GlueFault;
use crate::requests::OWNER;

/// The stored chats of one replica.
#[derive(Clone)]
pub struct ReplicaChats {
    store: Arc<OnceLock<Store>>,
    bodies: Arc<RequestBodies>,
    glue: Option<GlueFault>,
}

impl ReplicaChats {
    /// Creates those of a replica that uses `store` once it has started.
    pub const fn new(
        store: Arc<OnceLock<Store>>,
        bodies: Arc<RequestBodies>,
        glue: Option<GlueFault>,
    ) -> Self {
        Self { store, bodies, glue }
    }

    fn store(&self) -> &Store {
        self.store.get().expect("only a replica that has started is asked")
    }

    /// Arranges for the answer to `active` to be stored when it is complete.
    pub fn record(&self, active: &mut ActiveRequest, fence: AnswerFence) {
        // The laws look at nothing that a request would add.
        let fields = Fields::parse(b"{}").expect("it is an object");
        let vocab = Arc::new(UnknownVocab);
        let object = StoredChat { chat: ChatToStore::of(&fields, json!({})), vocab };
        let (store, workers) = (self.store().clone(), self.bodies.workers().clone());
        let (kind, owner) = (Kind::ChatCompletion, OWNER);
        let target = StoreTarget { store, workers, kind, owner, fence };
        let held = HeldAnswer::new(self.bodies.clone(), active.tenant());
        let recorder = AnswerRecorder::new(active, held, object, target);
        active.observe(match self.glue {
            Some(GlueFault::EndBeforeChat) => Box::new(LateRecorder(Some(recorder))),
            _ => Box::new(recorder),
        });
    }

    /// Like [`Self::record`], for an answer that this replica has taken over with `fence`.
    ///
    /// # Errors
    /// 503 without the store.
    pub async fn take_over(
        &self,
        active: &mut ActiveRequest,
        fence: AnswerFence,
    ) -> Result<(), ApiError> {
        if self.glue == Some(GlueFault::ChatForgotten) {
            return Ok(());
        }
        // An owner that wakes up stores nothing from here on.
        let (kind, id) = (Kind::ChatCompletion, &active.head().id);
        self.store().raise_fence(kind, OWNER, id, fence).await?;
        self.record(active, fence);
        Ok(())
    }

    /// Returns the completion `id` of `owner`.
    ///
    /// # Errors
    /// 404 if there is no such completion, 503 if the store is away.
    pub async fn read(&self, owner: Owner, id: &str) -> Result<Value, ApiError> {
        let stored = self.find(owner, id).await?;
        Ok(serde_json::from_slice(completion(&stored)).expect("a stored completion is JSON"))
    }

    async fn find(&self, owner: Owner, id: &str) -> Result<StoredObject, ApiError> {
        let found = self.store().get(Kind::ChatCompletion, owner, id).await?;
        found.ok_or_else(|| missing(id))
    }

    /// Replaces the metadata of the completion `id`.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub async fn annotate(&self, id: &str, metadata: Value) -> Result<(), ApiError> {
        let changed = with_metadata(&self.find(OWNER, id).await?, metadata)?;
        let is_there = if self.glue == Some(GlueFault::AnnotationRevives) {
            self.store().put(Kind::ChatCompletion, OWNER, changed).await?;
            true
        } else {
            self.store().replace(Kind::ChatCompletion, OWNER, changed).await?
        };
        is_there.then_some(()).ok_or_else(|| missing(id))
    }

    /// Deletes the completion `id`.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub async fn delete(&self, id: &str) -> Result<(), ApiError> {
        let was_there = self.store().delete(Kind::ChatCompletion, OWNER, id).await?;
        was_there.then_some(()).ok_or_else(|| missing(id))
    }
}

fn missing(id: &str) -> ApiError {
    ApiError::no_stored("chat completion", id)
}

/// A recorder with the planted fault [`GlueFault::EndBeforeChat`].
struct LateRecorder(Option<AnswerRecorder<StoredChat>>);

impl FlushObserver for LateRecorder {
    fn on_flush(&mut self, flush: &Flush) {
        self.0.iter_mut().for_each(|recorder| recorder.on_flush(flush));
    }

    fn poll_end(&mut self, _: &mut Context<'_>, usage: Usage) -> Poll<()> {
        if let Some(mut recorder) = self.0.take() {
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(100)).await;
                poll_fn(|context| recorder.poll_end(context, usage)).await;
            });
        }
        Poll::Ready(())
    }
}
