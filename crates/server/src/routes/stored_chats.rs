//! The routes of stored chat completions.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::get;
use axum::{Extension, Router};
use http::{Request as HttpRequest, Uri};
use loquent_infer::vocab::Vocab;
use serde_json::{Value, json};

use crate::app::App;
use crate::charged_body::charged_json;
use crate::json_response::json_response;
use crate::sse::with_ignored;
use loquent_dialects::stored_chats::object::{StoredChat, completion, messages, with_metadata};
use loquent_dialects::stored_chats::request::{ListQuery, parse_list};
use loquent_serving::active_request::ActiveRequest;
use loquent_serving::api::json::VALUE_BYTES;
use loquent_serving::api::request::header_list;
use loquent_serving::api::stored_chat::{ChatToStore, parse_metadata};
use loquent_serving::error::ApiError;
use loquent_serving::held_answer::HeldAnswer;
use loquent_serving::identity::{Identity, Owner};
use loquent_serving::memory::{MemoryCharge, SMALL_BYTES};
use loquent_store::object::{AnswerFence, Kind, ObjectList, StoredObject};
use loquent_store::recorder::AnswerRecorder;

/// Number of copies of a stored object that exist at once: as read, and in the response.
const COPIES: usize = 2;

type Shared = State<Arc<App>>;

/// The routes of stored chat completions.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/chat/completions", get(list))
        .route("/v1/chat/completions/{id}", get(read).post(update).delete(delete))
        .route("/v1/chat/completions/{id}/messages", get(read_messages))
}

async fn list(
    State(app): Shared,
    Extension(identity): Extension<Identity>,
    uri: Uri,
) -> Result<Response, ApiError> {
    // Ids cannot be guessed, so that single reads need no such check. A list gives them away.
    app.check_told_apart("Stored chat completions are listed")?;
    let ListQuery { page, filter, ignored } = parse_list(uri.query())?;
    let wanted = move |stored: &StoredObject| filter.accepts(stored);
    let listed = app.store.list(Kind::ChatCompletion, identity.owner(), page, wanted).await?;
    let bytes: usize = listed.objects.iter().map(|one| one.json.len()).sum();
    let charge = MemoryCharge::of(&identity);
    let render = move || Ok(list_json(&listed));
    let response = charged_json(&app.bodies, charge, COPIES * bytes, render).await?;
    Ok(with_ignored(response, &header_list(&ignored)))
}

/// Returns a list of the objects in their stored form.
fn list_json(listed: &ObjectList) -> String {
    let texts = listed.objects.iter().map(|one| String::from_utf8_lossy(completion(one)));
    let data = texts.collect::<Vec<_>>().join(",");
    let id = |one: Option<&StoredObject>| one.map_or(Value::Null, |one| one.id.as_str().into());
    let (first, last) = (id(listed.objects.first()), id(listed.objects.last()));
    let has_more = listed.has_more;
    format!(
        r#"{{"object":"list","data":[{data}],"first_id":{first},"last_id":{last},"has_more":{has_more}}}"#
    )
}

async fn read(
    State(app): Shared,
    Extension(identity): Extension<Identity>,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let stored = find(&app, &identity, &id).await?;
    // It is copied unread.
    let (charge, bytes) = (MemoryCharge::of(&identity), COPIES * stored.json.len());
    charged_json(&app.bodies, charge, bytes, move || Ok(text_of(&stored))).await
}

async fn update(
    State(app): Shared,
    Extension(identity): Extension<Identity>,
    Path(id): Path<String>,
    request: HttpRequest<Body>,
) -> Result<Response, ApiError> {
    let (mut head, body) = request.into_parts();
    let body = app.bodies.receive(&mut head, body).await?;
    let metadata = body.parse(|mut fields| {
        // Null clears it; a body without it is a mistake.
        if !fields.map().contains_key("metadata") {
            return Err(fields.error("metadata", "is required: nothing else can be changed."));
        }
        parse_metadata(&mut fields)
    });
    let metadata = metadata.await?;
    let (stored, charge) = find_to_parse(&app, &identity, &id).await?;
    let changed = work(&app, stored, move |stored| with_metadata(stored, metadata)).await?;
    // First, because the store takes the object.
    let text = text_of(&changed);
    // Not `put`: what was deleted meanwhile stays deleted.
    match app.store.replace(Kind::ChatCompletion, identity.owner(), changed).await? {
        true => charged_json(&app.bodies, charge, 0, move || Ok(text)).await,
        false => Err(missing(&id)),
    }
}

async fn delete(
    State(app): Shared,
    Extension(identity): Extension<Identity>,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    match app.store.delete(Kind::ChatCompletion, identity.owner(), &id).await? {
        true => Ok(json_response(
            &json!({"object": "chat.completion.deleted", "id": id, "deleted": true}),
        )),
        false => Err(missing(&id)),
    }
}

async fn read_messages(
    State(app): Shared,
    Extension(identity): Extension<Identity>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let page = parse_list(uri.query())?.page;
    let (stored, charge) = find_to_parse(&app, &identity, &id).await?;
    let render = move || Ok(messages(&stored, &page)?.to_string());
    charged_json(&app.bodies, charge, 0, render).await
}

/// Returns the stored completion `id` of `identity`.
async fn find(app: &App, identity: &Identity, id: &str) -> Result<StoredObject, ApiError> {
    let found = app.store.get(Kind::ChatCompletion, identity.owner(), id).await?;
    found.ok_or_else(|| missing(id))
}

/// Like [`find`], and charges the memory for the completion and its parsed form.
async fn find_to_parse(
    app: &App,
    identity: &Identity,
    id: &str,
) -> Result<(StoredObject, MemoryCharge), ApiError> {
    let stored = find(app, identity, id).await?;
    let mut charge = MemoryCharge::of(identity);
    // Parsed, it takes many times the bytes of its text.
    let values = app.bodies.count_values(&stored.json).await?;
    let bytes = values * VALUE_BYTES + COPIES * stored.json.len();
    app.bodies.memory().take(&mut charge, bytes).await?;
    Ok((stored, charge))
}

fn missing(id: &str) -> ApiError {
    ApiError::no_stored("chat completion", id)
}

fn text_of(stored: &StoredObject) -> String {
    String::from_utf8_lossy(completion(stored)).into_owned()
}

/// Calls `work` with `stored`, on a thread that may block if it is large.
async fn work<T: Send + 'static>(
    app: &App,
    stored: StoredObject,
    work: impl FnOnce(&StoredObject) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let is_large = stored.json.len() > SMALL_BYTES;
    app.bodies.workers().run_if(is_large, move || work(&stored)).await
}

/// Arranges for the answer to `active` to be stored for `owner` when it is complete, if its request
/// asks for that.
pub fn record(
    app: &App,
    vocab: &Arc<dyn Vocab>,
    (owner, fence): (Owner, AnswerFence),
    chat: Option<Box<ChatToStore>>,
    active: &mut ActiveRequest,
) {
    let Some(chat) = chat else { return };
    let object = StoredChat { chat: *chat, vocab: vocab.clone() };
    let place = app.store_target(Kind::ChatCompletion, owner, fence);
    let held = HeldAnswer::new(app.bodies.clone(), active.tenant());
    let recorder = AnswerRecorder::new(active, held, object, place);
    active.observe(Box::new(recorder));
}
