//! Answers under ids that clients choose: the chats of the AI SDK. An id belongs to the API key
//! that it was sent with. Without keys anybody could guess it, so ids then work only on a server
//! for this machine alone.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard};

use loquent_infer::tenant::TenantId;
use loquent_proto::AnswerHandle;

use loquent_resumable::ResumableAnswers;
use loquent_serving::error::ApiError;
use loquent_serving::identity::Identity;

/// Maximum length of an id in bytes.
pub const MAX_ID_BYTES: usize = 256;
/// Minimum number of ids before those of forgotten answers are swept.
const LEAST_SWEPT: usize = 64;

/// A client's id.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ChosenId {
    /// Owner of the id; `None` on a server without keys.
    owner: Option<TenantId>,
    id: Box<str>,
}

/// State of an answer, shared with its readers.
#[derive(Debug, Default)]
pub struct AnswerFate {
    /// True once the connection of a reader has been handed all of it.
    pub is_read: AtomicBool,
}

/// The latest answer of an id.
#[derive(Debug, Clone)]
pub struct NamedAnswer {
    /// Handle of the stored answer.
    pub handle: AnswerHandle,
    /// State shared with the answer's readers.
    pub fate: Arc<AnswerFate>,
    /// True if it extends the previous message instead of starting one.
    pub continues: bool,
}

impl NamedAnswer {
    /// Returns a new entry for an answer that has just begun.
    pub fn begun(handle: AnswerHandle) -> Self {
        Self { handle, fate: Arc::default(), continues: false }
    }

    /// Sets whether the answer extends the previous message.
    #[must_use]
    pub fn continuing(self, continues: bool) -> Self {
        Self { continues, ..self }
    }

    /// Stops the answer: ends its generation and makes it unavailable.
    pub async fn stop(&self, answers: &ResumableAnswers) {
        // One that is gone is stopped.
        let _ = answers.stop(&self.handle).await;
    }
}

impl ChosenId {
    /// Checks and returns the id `id` of the client `identity`, on a server that only this machine
    /// can reach if `is_local`.
    ///
    /// # Errors
    /// 400 for an empty or long id; 403 on a server without keys that others can reach.
    pub fn new(is_local: bool, identity: &Identity, id: &str) -> Result<Self, ApiError> {
        if id.is_empty() || id.len() > MAX_ID_BYTES {
            let message = format!("An id must have 1 to {MAX_ID_BYTES} bytes.");
            return Err(ApiError::invalid_param("id", message));
        }
        let owner = identity.key.as_ref().map(|_| identity.tenant);
        if owner.is_none() && !is_local {
            return Err(ApiError::ids_need_keys());
        }
        Ok(Self { owner, id: id.into() })
    }
}

#[derive(Default)]
struct IdTable {
    answers: HashMap<ChosenId, NamedAnswer>,
    /// Number of entries after the last sweep.
    swept: usize,
}

/// The latest answers of all ids. Their number is bounded, since kept answers are and forgotten
/// ones are swept.
#[derive(Default)]
pub struct ChosenIds(Mutex<IdTable>);

impl ChosenIds {
    /// Makes `answer` the latest of `id`; returns the previous one.
    pub fn insert(
        &self,
        id: ChosenId,
        answer: NamedAnswer,
        answers: &ResumableAnswers,
    ) -> Option<NamedAnswer> {
        let mut table = self.table();
        if table.answers.len() >= 2 * table.swept.max(LEAST_SWEPT) {
            table.answers.retain(|_, named| answers.find(&named.handle).is_some());
            table.swept = table.answers.len();
        }
        table.answers.insert(id, answer)
    }

    /// Returns the latest answer of `id`.
    pub fn find(&self, id: &ChosenId) -> Option<NamedAnswer> {
        self.table().answers.get(id).cloned()
    }

    /// Like [`Self::find`], but also forgets the id.
    pub fn remove(&self, id: &ChosenId) -> Option<NamedAnswer> {
        self.table().answers.remove(id)
    }

    fn table(&self) -> MutexGuard<'_, IdTable> {
        self.0.lock().expect("nothing panics under this lock")
    }
}
