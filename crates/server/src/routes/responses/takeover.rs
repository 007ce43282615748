//! Continues a background response whose replica has ended, when its client requests it here.

use loquent_proto::{Delta, Replay};
use serde_json::json;

use crate::api::head::AnswerName;
use crate::api::request::StreamParams;
use crate::app::App;
use crate::dialect::responses::events::{EventRange, ResponseEvents, TAKEN_OVER_AT};
use crate::dialect::responses::generation::Generation;
use crate::dialect::responses::live::NewResponse;
use crate::dialect::responses::record_log::RecordLog;
use crate::dialect::responses::stored::{KeptInput, StoredResponse};
use crate::error::ApiError;
use crate::identity::Owner;
use crate::records::RecordContext;
use crate::resumable::shared::kept_request::{self, ReplayableRequest};
use crate::routes::successor::{identity_of, model_of, start_again};
use crate::service::StartedAnswer;
use crate::store::{Kind, Store};

/// Takes over generation of `response`, whose replica has ended. Returns true if the response
/// continues, here or elsewhere, or may do so later.
pub async fn adopt(app: &App, owner: Owner, response: &StoredResponse) -> bool {
    let request = response.request.as_deref();
    let Some(request) = request.and_then(|text| kept_request::decode(text.as_bytes())) else {
        return false;
    };
    match try_adopt(app, owner, response, request).await {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!("the response of a replica that has ended does not go on: {error}");
            // Later, or at another replica, it may.
            error.retry_after_s().is_some()
        }
    }
}

async fn try_adopt(
    app: &App,
    owner: Owner,
    response: &StoredResponse,
    request: ReplayableRequest,
) -> Result<(), ApiError> {
    app.ready()?;
    model_of(app, &request)?;
    let id = response.template.id();
    let _turn = app.responses.takeover.lock().await;
    if app.responses.find(owner, id).is_some() {
        return Ok(());
    }
    let tenant = identity_of(app, request.marks.asker.clone()).tenant;
    let reservation = app.resumable.reserve(tenant, 0)?;
    // Begun before it is claimed: what cannot begin here is left to another replica.
    let stream = StreamParams { include_usage: true, ..StreamParams::default() };
    let started = start_again(app, request, Some(stream)).await?;
    let Some(fence) = app.store.claim(Kind::Response, owner, id).await? else { return Ok(()) };
    let mut claim = ResponseClaim { store: app.store.clone(), owner, id: Some(id.to_owned()) };
    // Its owner's last word, which nothing follows.
    let stored = app.store.get(Kind::Response, owner, id).await?;
    let unreadable = || ApiError::internal("The stored response cannot be read.");
    let stored = stored.and_then(|object| StoredResponse::decode(&object.json));
    let stored = stored.filter(|stored| !stored.log.is_ended()).ok_or_else(unreadable)?;
    let (generation, log, created_s) =
        generate_again(app, started, &stored).ok_or_else(unreadable)?;
    let StoredResponse { template, input, request, .. } = stored;
    let input = KeptInput {
        head: StoredResponse::encode_head(&template, &input, None).into(),
        running: StoredResponse::encode_head(&template, &input, request.as_deref()).into(),
        items: input,
        charge: None,
    };
    let new = NewResponse { owner, fence, created_s, template, input, log };
    app.responses.start(app.response_store(), new, generation, reservation).await?;
    claim.id = None;
    Ok(())
}

/// A claim of this replica on a response. If dropped before generation starts, for example because
/// the client left, the response is left to others.
struct ResponseClaim {
    store: Store,
    owner: Owner,
    id: Option<String>,
}

impl Drop for ResponseClaim {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        let (store, owner) = (self.store.clone(), self.owner);
        // Without a runtime this process ends, and the others see that by themselves.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { drop(store.disown(Kind::Response, owner, &id).await) });
        }
    }
}

/// Returns the generation of the records missing in `stored`, the existing records, and the time
/// when the response began; `None` if these cannot be compared.
fn generate_again(
    app: &App,
    started: StartedAnswer,
    stored: &StoredResponse,
) -> Option<(Generation, RecordLog, u64)> {
    let StartedAnswer { mut active, echo, vocab, .. } = started;
    let known = Replay::of(stored.log.bytes()).ok()?;
    let mut events = ResponseEvents::new(stored.template.clone(), EventRange::Nothing);
    let (mut log, mut name) = (RecordLog::new(usize::MAX / 2), None);
    stored.log.read(0, |delta| {
        if let Delta::Open { meta } = &delta {
            name = AnswerName::of_meta(meta);
        }
        events.note(&delta);
        log.push(&delta).expect("there is room");
    });
    active.take_over(name);
    let created_s = active.head().created_s;
    let seam = json!({TAKEN_OVER_AT: events.next_number()}).to_string();
    log.push(&Delta::Other { choice: 0, json: seam }).expect("there is room");
    let context = RecordContext { vocab: &vocab, echo: &echo };
    let log = log.bounded(app.resumable.limits().log_bytes);
    Some((Generation::again(active, &context, known), log, created_s))
}
