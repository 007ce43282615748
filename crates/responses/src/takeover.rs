//! Continues a background response whose replica has ended, when its client requests it here.

use loquent_dialects::responses::events::{EventRange, MAX_GAPS, ResponseEvents, takeover_record};
use loquent_infer::tenant::TenantId;
use loquent_proto::{Delta, Replay};
use loquent_resumable::generation::Generation;
use loquent_resumable::shared::kept_request::{self, ReplayableRequest};
use loquent_resumable::shared::takeover::{
    FirstAnswer, SecondAnswer, TakeoverClaim, name_in, tokens_in,
};
use loquent_serving::api::request::StreamParams;
use loquent_serving::error::ApiError;
use loquent_serving::identity::Owner;
use loquent_store::recorder::StoreTarget;
use loquent_store::shared::connection::SharedConnection;
use loquent_store::{AnswerFence, Kind, Progress};

use crate::generation::ResponseGeneration;
use crate::live::NewResponse;
use crate::lookup::ResponseLookup;
use crate::record_log::RecordLog;
use crate::stored::{KeptInput, StoredResponse};
use crate::storing::ResponseRecorder;

/// `Retry-After` in seconds for a response that this replica cannot continue now.
const LATER_RETRY_S: u64 = 2;

impl ResponseLookup<'_> {
    /// Returns `response` of `owner`, whose object in the store has this `progress`. If its replica
    /// has ended, it continues here, or has failed if it cannot continue anywhere.
    pub(crate) async fn revive(
        &self,
        owner: Owner,
        progress: Progress,
        response: StoredResponse,
    ) -> StoredResponse {
        match progress {
            Progress::RunningElsewhere => response,
            Progress::Running if self.adopt(owner, &response).await => response,
            Progress::Running | Progress::Ended => response.end_if_lost(),
        }
    }

    /// Takes over generation of `response`, whose replica has ended. Returns true if the response
    /// continues, here or elsewhere, or may do so later.
    async fn adopt(&self, owner: Owner, response: &StoredResponse) -> bool {
        let request = response.request.as_deref();
        let Some(request) = request.and_then(|text| kept_request::decode(text.as_bytes())) else {
            return false;
        };
        match self.try_adopt(owner, response, request).await {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!("the response of a replica that has ended does not go on: {error}");
                // Later, or at another replica, it may.
                error.retry_after_s().is_some()
            }
        }
    }

    async fn try_adopt(
        &self,
        owner: Owner,
        response: &StoredResponse,
        request: ReplayableRequest,
    ) -> Result<(), ApiError> {
        if !self.starter.is_ready() {
            let message = "This replica takes no requests now.";
            return Err(ApiError::unavailable(message, LATER_RETRY_S));
        }
        self.starter.check(&request)?;
        let id = response.template.id();
        let _turn = self.live.takeover.lock().await;
        if self.live.find(owner, id).is_some() {
            return Ok(());
        }
        let tenant = TenantId(request.marks.asker.tenant);
        let reservation = self.answers.reserve(tenant, 0)?;
        // Begun before it is claimed: what cannot begin here is left to another replica.
        let first = FirstAnswer {
            name: name_in(response.log.bytes()),
            fence: AnswerFence::FIRST,
            stream: Some(StreamParams { include_usage: true, ..StreamParams::default() }),
            tokens: tokens_in(response.log.bytes()),
        };
        let answer = self.starter.begin(request, first).await?;
        let Some(fence) = self.store.claim(Kind::Response, owner, id).await? else {
            return Ok(());
        };
        let (store, claimed) = (self.store.clone(), id.to_owned());
        let claim = TakeoverClaim::new(async move {
            drop(store.disown(Kind::Response, owner, &claimed).await);
        });
        // Its owner's last word, which nothing follows.
        let stored = self.store.get(Kind::Response, owner, id).await?;
        // It was deleted meanwhile, so there is nothing to continue.
        let Some(object) = stored else { return Ok(()) };
        let stored = StoredResponse::decode(&object.json);
        let stored = stored.filter(|stored| !stored.log.is_ended()).ok_or_else(unreadable)?;
        let (new, generation) = self.continued(owner, fence, stored, answer)?;
        self.live.start(new, generation, reservation).await?;
        claim.keep();
        Ok(())
    }

    /// Returns `stored`, which continues with `answer` and is stored for this owner with this
    /// fence.
    fn continued(
        &self,
        owner: Owner,
        fence: AnswerFence,
        stored: StoredResponse,
        answer: SecondAnswer,
    ) -> Result<(NewResponse, ResponseGeneration), ApiError> {
        let known = Replay::of(stored.log.bytes()).map_err(|_| unreadable())?;
        let SecondAnswer { mut generation, first } = answer;
        let created_s = generation.request().head().created_s;
        // The first records are known, as all that follow them.
        let compared = generation.compare(Some(known), first, &mut drop);
        compared.map_err(|_| Generation::differs())?;
        let entropy = self.store.shared().map(SharedConnection::entropy);
        // Only a shared store can lose a takeover.
        let gaps = entropy.map_or(1, |entropy| entropy.draw_in(1..=MAX_GAPS));
        let log = with_seam(&stored, gaps, self.answers.limits().log_bytes);
        let StoredResponse { template, input, request, .. } = stored;
        let input = KeptInput {
            head: StoredResponse::encode_head(&template, &input, None).into(),
            running: StoredResponse::encode_head(&template, &input, request.as_deref()).into(),
            items: input,
            charge: None,
        };
        let (store, workers) = (self.store.clone(), self.bodies.workers().clone());
        let target = StoreTarget { store, workers, kind: Kind::Response, owner, fence };
        let id = template.id().to_owned();
        let recorder = ResponseRecorder { target, id, created_s, input };
        let new = NewResponse { recorder, template, log };
        Ok((new, ResponseGeneration::new(generation, None)))
    }
}

fn unreadable() -> ApiError {
    ApiError::internal("The stored response cannot be read.")
}

/// Returns the records of `stored` with the record behind which this replica's events begin, whose
/// numbers are `gaps` gaps away, in a log of at most `max_bytes`.
fn with_seam(stored: &StoredResponse, gaps: u64, max_bytes: usize) -> RecordLog {
    let mut events = ResponseEvents::new(stored.template.clone(), EventRange::Nothing);
    stored.log.read(0, |delta| events.note(&delta));
    let seam = takeover_record(events.next_number(), gaps);
    let mut log = stored.log.clone().bounded(usize::MAX / 2);
    log.push(&Delta::Other { choice: 0, json: seam }).expect("there is room");
    log.bounded(max_bytes)
}
