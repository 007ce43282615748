//! A replica that ends, or whose engine has failed, leaves its answers to others.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use loquent_proto::AnswerHandle;
use loquent_store::StoreError;
use tokio::sync::oneshot;

use super::shared::offers::OthersOffers;
use super::shared::slot::LogSlot;
use super::{AnswerCommand, ResumableAnswers};

/// A request to release an answer, because this replica is shutting down or its engine has failed.
pub struct HandOverRequest {
    /// Offers of the others: an answer that none of them covers stays.
    pub others: Arc<OthersOffers>,
    /// Dropped when the task has ended, or at once if the answer stays.
    pub reply: oneshot::Sender<()>,
}

/// Returns the offers in `asked`; none if the store could not be asked.
fn known(asked: Result<OthersOffers, StoreError>) -> OthersOffers {
    asked.unwrap_or_else(|error| {
        tracing::debug!(%error, "the store does not tell what other replicas can continue");
        OthersOffers::default()
    })
}

impl ResumableAnswers {
    /// Returns what the other replicas offer to continue, now that this one takes nothing more.
    pub async fn others_offers(&self) -> OthersOffers {
        let Some(shared) = self.shared.get().filter(|shared| shared.is_well()) else {
            return OthersOffers::default();
        };
        let depends = self.table().busy > 0;
        known(shared.offers_without_this(depends).await)
    }

    /// Releases all answers that `others` cover, because this replica is shutting down. Does
    /// nothing while the store is unavailable: nobody could take them.
    pub async fn hand_over(&self, others: &Arc<OthersOffers>) {
        let Some(shared) = self.shared.get().filter(|shared| shared.is_well()) else { return };
        if others.is_empty() {
            return;
        }
        self.is_leaving.store(true, Ordering::Relaxed);
        let commands: Vec<_> =
            self.table().answers.values().map(|entry| entry.commands.clone()).collect();
        let mut left = Vec::new();
        for answer in commands {
            let (reply, replied) = oneshot::channel();
            let request = HandOverRequest { others: others.clone(), reply };
            if answer.send(AnswerCommand::HandOver(request)).await.is_ok() {
                left.push(replied);
            }
        }
        for one in left {
            // Dropped in any case.
            drop(one.await);
        }
        shared.leave_all().await;
    }

    /// Releases the answer with `handle`, whose engine has failed, if another replica can continue
    /// it; otherwise its task ends it.
    pub(super) fn leave_failed(&self, handle: AnswerHandle) {
        // One that was forgotten meanwhile needs no owner.
        let (Some(shared), Some(answer)) = (self.shared.get().cloned(), self.find(&handle)) else {
            return;
        };
        tokio::spawn(async move {
            let others = Arc::new(known(shared.current_offers().await));
            let (reply, replied) = oneshot::channel();
            let request = HandOverRequest { others, reply };
            if answer.send(AnswerCommand::HandOver(request)).await.is_ok() {
                // Dropped in any case.
                drop(replied.await);
                shared.leave_all().await;
            }
        });
    }

    /// Releases an answer to other replicas once all of it is stored.
    pub(super) fn hand_on(&self, slot: Arc<LogSlot>) {
        if let Some(shared) = self.shared.get() {
            shared.leave(slot);
        }
    }
}
