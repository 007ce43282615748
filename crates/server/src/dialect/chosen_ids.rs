//! Answers by ids that clients choose: an app's chat, a conversation. An id belongs to the API key
//! that it came with. Without keys everybody could guess it, so that it works on a server for this
//! machine alone.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard};

use loquent_infer::tenant::TenantId;
use loquent_proto::AnswerHandle;

use crate::clock::unix_time_s;
use crate::error::ApiError;
use crate::hosts::AllowedHosts;
use crate::identity::Identity;
use crate::resumable::ResumableAnswers;

/// Longest id, bytes.
pub const MAX_ID_BYTES: usize = 256;
/// Ids that are kept before those of forgotten answers are looked for.
const LEAST_SWEPT: usize = 64;

/// What an id names. Those of different kinds may be alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IdKind {
    /// A chat of the AI SDK.
    Chat,
    /// A conversation of llama-server's clients.
    Conversation,
}

/// A client's id.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ChosenId {
    kind: IdKind,
    /// Whose it is; `None` on a server without keys.
    owner: Option<TenantId>,
    id: Box<str>,
}

/// What became of an answer, shared with its readers.
#[derive(Debug, Default)]
pub struct AnswerFate {
    /// A reader has been given all of it.
    pub is_read: AtomicBool,
}

/// The latest answer of an id.
#[derive(Debug, Clone)]
pub struct NamedAnswer {
    /// Where it is kept.
    pub handle: AnswerHandle,
    /// What became of it.
    pub fate: Arc<AnswerFate>,
    /// Whether it is more of the message before it instead of one of its own.
    pub continues: bool,
    /// When it began: Unix time in seconds.
    pub started_s: u64,
}

impl NamedAnswer {
    /// An answer that has just begun.
    pub fn begun(handle: AnswerHandle) -> Self {
        Self { handle, fate: Arc::default(), continues: false, started_s: unix_time_s() }
    }

    /// The same, as more of the message before it if `continues`.
    #[must_use]
    pub fn continuing(self, continues: bool) -> Self {
        Self { continues, ..self }
    }

    /// Stops it: its generation ends, and nobody finds it any more.
    pub async fn stop(&self, answers: &ResumableAnswers) {
        // One that is gone is stopped.
        let _ = answers.stop(&self.handle).await;
    }
}

impl ChosenId {
    /// The id `id` of the client `identity`, on a server that is asked for by the names of `hosts`.
    ///
    /// # Errors
    /// 400 for an empty or long id; 403 on a server without keys that others can reach.
    pub fn new(
        hosts: &AllowedHosts,
        identity: &Identity,
        kind: IdKind,
        id: &str,
    ) -> Result<Self, ApiError> {
        if id.is_empty() || id.len() > MAX_ID_BYTES {
            let message = format!("An id must have 1 to {MAX_ID_BYTES} bytes.");
            return Err(ApiError::invalid_param("id", message));
        }
        let owner = identity.key.as_ref().map(|_| identity.tenant);
        if owner.is_none() && !hosts.is_local() {
            return Err(ApiError::ids_need_keys());
        }
        Ok(Self { kind, owner, id: id.into() })
    }
}

#[derive(Default)]
struct IdTable {
    answers: HashMap<ChosenId, NamedAnswer>,
    /// Entries after the last sweep.
    swept: usize,
}

/// The latest answers of all ids. There are hardly more than answers that are kept, which are
/// bounded.
#[derive(Default)]
pub struct ChosenIds(Mutex<IdTable>);

impl ChosenIds {
    /// Makes `answer` the latest of `id`; gives the one before it.
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

    /// The latest answer of `id`.
    pub fn find(&self, id: &ChosenId) -> Option<NamedAnswer> {
        self.table().answers.get(id).cloned()
    }

    /// [`Self::find`], and forgets the id.
    pub fn remove(&self, id: &ChosenId) -> Option<NamedAnswer> {
        self.table().answers.remove(id)
    }

    fn table(&self) -> MutexGuard<'_, IdTable> {
        self.0.lock().expect("nothing panics under this lock")
    }
}
