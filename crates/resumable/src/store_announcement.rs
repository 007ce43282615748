//! The wait until other replicas can find a new answer.

use std::sync::Arc;
use std::time::Duration;

use crate::shared::slot::LogSlot;

/// Time limit for the store to register a new answer before its handle is returned.
const ANNOUNCE_LIMIT: Duration = Duration::from_secs(1);

/// Registration of a new answer at the store that replicas share, if they do. Its client may resume
/// at any of them as soon as it has the handle.
#[derive(Default)]
pub struct StoreAnnouncement(Option<Arc<LogSlot>>);

impl StoreAnnouncement {
    /// Creates the announcement of the answer whose log `slot` stores.
    pub(crate) fn of(slot: Option<Arc<LogSlot>>) -> Self {
        Self(slot)
    }

    /// Resolves once the store has registered the answer, or could not in time: a store that hangs
    /// keeps nobody from the answer itself. Cancel safe.
    pub async fn made(&self) {
        if let Some(slot) = &self.0 {
            drop(tokio::time::timeout(ANNOUNCE_LIMIT, slot.announced()).await);
        }
    }
}
