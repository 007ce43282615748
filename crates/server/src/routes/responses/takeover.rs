//! Continues a background response whose replica has ended, when its client requests it here.

use loquent_proto::{Delta, Replay};
use serde_json::json;

use crate::app::App;
use crate::responses::generation::Generation;
use crate::responses::live::NewResponse;
use crate::responses::record_log::RecordLog;
use crate::responses::stored::{KeptInput, StoredResponse};
use crate::responses::storing::ResponseRecorder;
use crate::routes::successor::{begin, identity_of, model_of};
use loquent_dialects::responses::events::{EventRange, ResponseEvents, TAKEN_OVER_AT};
use loquent_resumable::shared::kept_request::{self, ReplayableRequest};
use loquent_resumable::shared::takeover::{FirstAnswer, TakeoverClaim, name_in};
use loquent_serving::api::request::StreamParams;
use loquent_serving::error::ApiError;
use loquent_serving::identity::Owner;
use loquent_store::{AnswerFence, Kind};

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
    let first = FirstAnswer { name: name_in(response.log.bytes()), fence: AnswerFence::FIRST };
    let stream = StreamParams { include_usage: true, ..StreamParams::default() };
    let answer = begin(app, request, first, Some(stream)).await?;
    let Some(fence) = app.store.claim(Kind::Response, owner, id).await? else { return Ok(()) };
    let (store, claimed) = (app.store.clone(), id.to_owned());
    let claim = TakeoverClaim::new(async move {
        drop(store.disown(Kind::Response, owner, &claimed).await);
    });
    // Its owner's last word, which nothing follows.
    let stored = app.store.get(Kind::Response, owner, id).await?;
    let unreadable = || ApiError::internal("The stored response cannot be read.");
    let stored = stored.and_then(|object| StoredResponse::decode(&object.json));
    let stored = stored.filter(|stored| !stored.log.is_ended()).ok_or_else(unreadable)?;
    let known = Replay::of(stored.log.bytes()).map_err(|_| unreadable())?;
    let created_s = answer.request.head().created_s;
    let log = with_seam(&stored, app.resumable.limits().log_bytes);
    let generation = Generation::again(answer, known);
    let StoredResponse { template, input, request, .. } = stored;
    let input = KeptInput {
        head: StoredResponse::encode_head(&template, &input, None).into(),
        running: StoredResponse::encode_head(&template, &input, request.as_deref()).into(),
        items: input,
        charge: None,
    };
    let (target, id) = (app.store_target(Kind::Response, owner, fence), id.to_owned());
    let recorder = ResponseRecorder { target, id, created_s, input };
    let new = NewResponse { recorder, template, log };
    app.responses.start(new, generation, reservation).await?;
    claim.keep();
    Ok(())
}

/// Returns the records of `stored` with the record behind which this replica's events begin, in a
/// log of at most `max_bytes`.
fn with_seam(stored: &StoredResponse, max_bytes: usize) -> RecordLog {
    let mut events = ResponseEvents::new(stored.template.clone(), EventRange::Nothing);
    let mut log = RecordLog::new(usize::MAX / 2);
    stored.log.read(0, |delta| {
        events.note(&delta);
        log.push(&delta).expect("there is room");
    });
    let seam = json!({TAKEN_OVER_AT: events.next_number()}).to_string();
    log.push(&Delta::Other { choice: 0, json: seam }).expect("there is room");
    log.bounded(max_bytes)
}
