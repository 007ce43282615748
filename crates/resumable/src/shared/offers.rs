//! The models with which each replica can continue answers of others.
//!
//! A replica announces its offers with its lease. One that shuts down gives up only what another
//! live replica offers to continue: everything else would break off, although there is time for it
//! to end here. A replica that announces nothing has an older version, and would refuse: the
//! version is a part of the fingerprint.

use loquent_store::StoreError;
use loquent_store::shared::connection::{NOTICE_BYTES, SharedConnection};
use serde_json::{Value, json};

use super::kept_request::{self, KeptService};

/// A model with which a replica can continue answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakeoverOffer {
    /// Name of the model.
    pub model: String,
    /// Service that computes its answers.
    pub answered_by: KeptService,
}

/// Offers of the other replicas that live.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OthersOffers(Vec<TakeoverOffer>);

impl OthersOffers {
    /// Collects the offers in `notices`; anything else there offers nothing.
    fn of(notices: &[Vec<u8>]) -> Self {
        let known = notices
            .iter()
            .filter_map(|notice| serde_json::from_slice::<Vec<(String, String, u32)>>(notice).ok());
        let offers = known.flatten().map(|(model, fingerprint, context_tokens)| {
            let answered_by = KeptService { fingerprint, context_tokens };
            TakeoverOffer { model, answered_by }
        });
        Self(offers.collect())
    }

    /// Asks the store behind `connection` for the offers of the other replicas.
    ///
    /// # Errors
    /// When the store cannot be used.
    pub async fn ask(connection: &SharedConnection) -> Result<Self, StoreError> {
        Ok(Self::of(&connection.notices().await?))
    }

    /// True if no other replica can continue anything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if another replica can continue the answer to `request`, which is encoded for the
    /// store.
    pub fn cover(&self, request: &[u8]) -> bool {
        if self.is_empty() {
            return false;
        }
        let Some(request) = kept_request::decode(request) else { return false };
        let marks = &request.marks;
        self.0.iter().any(|TakeoverOffer { model, answered_by }| {
            *model == marks.model && answered_by.obstacle_to(&marks.answered_by).is_none()
        })
    }
}

/// Encodes `offers` as a replica's notice. Those that exceed its limit are left out.
pub fn notice_of(offers: &[TakeoverOffer]) -> Vec<u8> {
    let (mut list, mut bytes) = (Vec::new(), "[]".len());
    for TakeoverOffer { model, answered_by } in offers {
        let offer = json!([model, answered_by.fingerprint, answered_by.context_tokens]);
        bytes += offer.to_string().len() + ",".len();
        if bytes > NOTICE_BYTES {
            break;
        }
        list.push(offer);
    }
    Value::Array(list).to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::shared::kept_request::tests::encoded;

    fn offer(model: &str, fingerprint: &str, context_tokens: u32) -> TakeoverOffer {
        let answered_by = KeptService { fingerprint: fingerprint.into(), context_tokens };
        TakeoverOffer { model: model.into(), answered_by }
    }

    fn request(TakeoverOffer { model, answered_by }: TakeoverOffer) -> Arc<[u8]> {
        encoded(&model, answered_by)
    }

    #[test]
    fn an_answer_is_covered_by_an_offer_that_gives_the_same() {
        let notices = [
            notice_of(&[offer("m", "ab", 4096), offer("\"n\"", "", 0)]),
            // Of an older replica, and of one that shuts down.
            b"1".to_vec(),
            notice_of(&[]),
        ];
        let others = OthersOffers::of(&notices);
        for covered in [offer("m", "ab", 4096), offer("m", "ab", 7), offer("\"n\"", "cd", 9)] {
            assert!(others.cover(&request(covered.clone())), "{covered:?}");
        }
        for other in [offer("m", "cd", 4096), offer("m", "ab", 4097), offer("o", "ab", 7)] {
            assert!(!others.cover(&request(other.clone())), "{other:?}");
        }
        assert!(!others.cover(b"{}"), "a request that nobody can read");
        assert!(OthersOffers::of(&notices[1..]).is_empty());
    }

    #[test]
    fn a_notice_has_the_offers_for_which_there_is_room() {
        let many = vec![offer(&"m".repeat(1000), "ab", 1); 100];
        let notice = notice_of(&many);
        assert!(notice.len() <= NOTICE_BYTES && notice.len() > NOTICE_BYTES - 1100);
        assert_eq!(OthersOffers::of(&[notice]).0, many[..16]);
    }
}
