//! The routes of batches, and the batches that go on after a restart.

mod round;
mod runner;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Extension, Router};
use bytes::Bytes;
use http::{Request as HttpRequest, Uri};
use serde_json::json;

use crate::app::App;
use crate::json_response::{json_response, json_text};
use crate::routes::files::find_file;
use crate::sse::with_ignored;
use loquent_dialects::batches::batch::{BatchStatus, NewBatch, RequestBatch};
use loquent_dialects::stored_chats::object::list_page;
use loquent_dialects::stored_chats::request::parse_list;
use loquent_serving::api::request::header_list;
use loquent_serving::clock::unix_time_s;
use loquent_serving::error::{ApiError, LimitedRate};
use loquent_serving::identity::Identity;
use loquent_store::object::{AnswerFence, Kind, ListPage, Progress, StoredObject};

/// `Retry-After` for an owner who has too many batches, in seconds.
const RETRY_S: u64 = 60;
/// Batches read at a time when the server starts.
const PAGE: usize = 100;

type Shared = State<Arc<App>>;

/// Returns the routes of batches.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/batches", post(create).get(list))
        .route("/v1/batches/{id}", get(read))
        .route("/v1/batches/{id}/cancel", post(cancel))
}

async fn create(
    State(app): Shared,
    Extension(identity): Extension<Identity>,
    request: HttpRequest<Body>,
) -> Result<Response, ApiError> {
    let (mut head, body) = request.into_parts();
    let body = app.bodies.receive(&mut head, body).await?;
    let asked = body.parse(NewBatch::read).await?;
    let owner = identity.owner();
    let ignored = header_list(&asked.ignored);
    let batch =
        RequestBatch::new(format!("batch_{:032x}", rand::random::<u128>()), asked, unix_time_s());
    // Before anything is waited for, or requests at the same time would share the last place.
    let Some(entry) = app.batches.enter_new(owner, batch.clone()) else {
        let message = "Too many batches are unfinished. Wait until one of them has ended.";
        return Err(ApiError::rate_limited(message, LimitedRate::Requests, RETRY_S));
    };
    if find_file(&app, owner, &batch.input_file_id).await?.is_none() {
        return Err(ApiError::no_stored("file", &batch.input_file_id));
    }
    // Whoever gets the id may rely on the batch, even if the server ends now.
    app.store.put(Kind::Batch, owner, runner::stored(&batch)).await?;
    let response = json_text(batch.json());
    runner::start(&app, &identity, entry, AnswerFence::FIRST);
    Ok(with_ignored(response, &ignored))
}

async fn list(
    State(app): Shared,
    Extension(identity): Extension<Identity>,
    uri: Uri,
) -> Result<Response, ApiError> {
    app.check_told_apart("Batches are listed")?;
    let mut query = parse_list(uri.query())?;
    query.page.newest_first = true;
    let owner = identity.owner();
    let listed = app.store.list(Kind::Batch, owner, query.page, |_| true).await?;
    let mut data = Vec::with_capacity(listed.objects.len());
    for one in &listed.objects {
        if let Some(batch) = current(&app, &identity, one).await? {
            data.push(json!(batch));
        }
    }
    let list = list_page(data, listed.has_more);
    Ok(with_ignored(json_response(&list), &header_list(&query.ignored)))
}

async fn read(
    State(app): Shared,
    Extension(identity): Extension<Identity>,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let batch = find(&app, &identity, &id).await?;
    Ok(json_text(batch.json()))
}

async fn cancel(
    State(app): Shared,
    Extension(identity): Extension<Identity>,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let batch = find(&app, &identity, &id).await?;
    use BatchStatus::{Cancelling, InProgress, Validating};
    if !matches!(batch.status, Validating | InProgress | Cancelling) {
        let status = json!(batch.status);
        let message = format!("A batch with the status {status} cannot be cancelled.");
        return Err(ApiError::invalid(message));
    }
    // The wish outlives this process, and reaches the replica that runs the batch.
    let owner = identity.owner();
    let (created_s, json) = (unix_time_s(), Bytes::from_static(b"cancel"));
    let wish =
        StoredObject { id: runner::wish_id(&id), created_s, progress: Progress::Ended, json };
    app.store.put(Kind::BatchLine, owner, wish).await?;
    let live = app.batches.find(owner, &id);
    Ok(json_text(live.map_or(batch, |live| live.cancel()).json()))
}

async fn find(app: &Arc<App>, identity: &Identity, id: &str) -> Result<RequestBatch, ApiError> {
    let stored = app.store.get(Kind::Batch, identity.owner(), id).await?;
    let missing = || ApiError::no_stored("batch", id);
    current(app, identity, &stored.ok_or_else(missing)?).await?.ok_or_else(missing)
}

/// Returns a stored batch as it is now. If nobody runs it although it is unfinished, it goes on
/// here.
async fn current(
    app: &Arc<App>,
    identity: &Identity,
    stored: &StoredObject,
) -> Result<Option<RequestBatch>, ApiError> {
    let owner = identity.owner();
    if let Some(live) = app.batches.find(owner, &stored.id) {
        return Ok(Some(live.now()));
    }
    let Some(batch) = RequestBatch::decode(&stored.json) else { return Ok(None) };
    if stored.progress == Progress::Running {
        // In a shared store only one replica gets the claim.
        let claimed = match app.store.shared() {
            None => Some(AnswerFence::FIRST),
            Some(_) => app.store.claim(Kind::Batch, owner, &stored.id).await?,
        };
        if let Some(fence) = claimed
            && let Some(entry) = app.batches.enter(owner, batch.clone())
        {
            runner::start(app, identity, entry, fence);
        }
    }
    Ok(Some(batch))
}

/// Goes on with the batches that earlier processes left unfinished. Those of owners who are known
/// only by their tokens go on when their owner asks for them.
pub async fn resume_all(app: Arc<App>) {
    let keys = &app.config.api_keys;
    let now_s = unix_time_s();
    let current = keys.owners().into_iter();
    let current = current.filter(|key| key.expires_s.is_none_or(|at| now_s < at));
    let mut identities: Vec<_> = current.map(Identity::of_key).collect();
    if keys.is_empty() {
        identities.push(Identity::in_process());
    }
    for identity in identities {
        if let Err(error) = resume_of(&app, &identity).await {
            tracing::warn!(key = identity.name(), "cannot read the batches: {}", error.json());
        }
    }
}

async fn resume_of(app: &Arc<App>, identity: &Identity) -> Result<(), ApiError> {
    let mut page = ListPage { after: None, limit: PAGE, newest_first: false };
    loop {
        let unfinished = |stored: &StoredObject| stored.progress == Progress::Running;
        let listed =
            app.store.list(Kind::Batch, identity.owner(), page.clone(), unfinished).await?;
        for one in &listed.objects {
            current(app, identity, one).await?;
        }
        page.after = listed.objects.last().map(|one| one.id.clone());
        if !listed.has_more || page.after.is_none() {
            return Ok(());
        }
    }
}
