//! The routes of files: the inputs and outputs of batches.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Extension, Router};
use http::{HeaderValue, Request as HttpRequest, Uri, header};
use serde_json::json;

use crate::app::App;
use crate::charged_body::charged_json;
use crate::json_response::json_response;
use crate::sse::with_ignored;
use loquent_dialects::batches::file::{FileFacts, StoredFile};
use loquent_dialects::batches::upload::{Upload, read_upload};
use loquent_dialects::stored_chats::object::list_page;
use loquent_dialects::stored_chats::request::parse_list;
use loquent_serving::api::request::header_list;
use loquent_serving::clock::unix_time_s;
use loquent_serving::error::ApiError;
use loquent_serving::identity::{Identity, Owner};
use loquent_serving::memory::MemoryCharge;
use loquent_serving::query::decoded_text;
use loquent_store::object::{Kind, Progress, StoredObject};

/// Number of copies of a file that exist at once: as read, and in the response.
const COPIES: usize = 2;

type Shared = State<Arc<App>>;

/// Returns the routes of files.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/files", post(upload).get(list))
        .route("/v1/files/{id}", get(read).delete(delete))
        .route("/v1/files/{id}/content", get(content))
}

async fn upload(
    State(app): Shared,
    Extension(identity): Extension<Identity>,
    request: HttpRequest<Body>,
) -> Result<Response, ApiError> {
    let (mut head, body) = request.into_parts();
    let body = app.bodies.receive(&mut head, body).await?;
    let content_type = head.headers.get(header::CONTENT_TYPE).and_then(|it| it.to_str().ok());
    let content_type = content_type.unwrap_or_default().to_owned();
    let (bytes, mut charge) = body.into_parts();
    // The stored form is a copy.
    app.bodies.memory().take(&mut charge, bytes.len()).await?;
    let read = move || Ok((stored_file(read_upload(&content_type, &bytes)?), charge));
    let (file, _charge) = app.bodies.workers().run_if(true, read).await?;
    let object = file.object();
    put_file(&app, identity.owner(), &file).await?;
    Ok(json_response(&object))
}

fn stored_file(upload: Upload) -> StoredFile {
    let now_s = unix_time_s();
    let facts = FileFacts {
        id: format!("file-{:032x}", rand::random::<u128>()),
        filename: upload.filename,
        purpose: "batch".into(),
        created_at: now_s,
        expires_at: upload.expires_after_s.map(|seconds| now_s + seconds),
    };
    StoredFile { facts, content: upload.content }
}

/// Stores `file` for `owner`.
///
/// # Errors
/// 400 if it is larger than the store keeps for one owner; 503 while the store fails.
pub async fn put_file(app: &App, owner: Owner, file: &StoredFile) -> Result<(), ApiError> {
    let FileFacts { id, created_at, .. } = &file.facts;
    let object = StoredObject {
        id: id.clone(),
        created_s: *created_at,
        progress: Progress::Ended,
        json: file.encode(),
    };
    Ok(app.store.put(Kind::File, owner, object).await?)
}

/// Returns the file `id` of `owner`; `None` if it is not there, or has expired.
///
/// # Errors
/// 503 while the store fails.
pub async fn find_file(app: &App, owner: Owner, id: &str) -> Result<Option<StoredFile>, ApiError> {
    let stored = app.store.get(Kind::File, owner, id).await?;
    let file = stored.and_then(|stored| StoredFile::decode(&stored.json));
    Ok(file.filter(|file| !file.has_expired(unix_time_s())))
}

async fn list(
    State(app): Shared,
    Extension(identity): Extension<Identity>,
    uri: Uri,
) -> Result<Response, ApiError> {
    app.check_told_apart("Files are listed")?;
    let mut query = parse_list(uri.query())?;
    // OpenAI lists files newest first, and stored chats oldest first.
    if decoded_text(&uri, "order").is_none() {
        query.page.newest_first = true;
    }
    // The parser is that of stored chats, which have no purpose.
    query.ignored.retain(|name| name != "purpose");
    let purpose = decoded_text(&uri, "purpose");
    let wanted = move |stored: &StoredObject| {
        let file = StoredFile::decode(&stored.json);
        file.is_some_and(|file| {
            let has_purpose = purpose.as_ref().is_none_or(|one| *one == file.facts.purpose);
            has_purpose && !file.has_expired(unix_time_s())
        })
    };
    let listed = app.store.list(Kind::File, identity.owner(), query.page, wanted).await?;
    let files = listed.objects.iter().filter_map(|one| StoredFile::decode(&one.json));
    let list = list_page(files.map(|file| file.object()).collect(), listed.has_more);
    Ok(with_ignored(json_response(&list), &header_list(&query.ignored)))
}

async fn read(
    State(app): Shared,
    Extension(identity): Extension<Identity>,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let file = find_file(&app, identity.owner(), &id).await?;
    file.map(|file| json_response(&file.object())).ok_or_else(|| missing(&id))
}

async fn content(
    State(app): Shared,
    Extension(identity): Extension<Identity>,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let file = find_file(&app, identity.owner(), &id).await?.ok_or_else(|| missing(&id))?;
    let (charge, bytes) = (MemoryCharge::of(&identity), COPIES * file.content.len());
    let mut response = charged_json(&app.bodies, charge, bytes, || Ok(file.content)).await?;
    // The bytes are a client's: a browser must not take them for a page.
    let content_type = HeaderValue::from_static("application/octet-stream");
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    Ok(response)
}

async fn delete(
    State(app): Shared,
    Extension(identity): Extension<Identity>,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    match app.store.delete(Kind::File, identity.owner(), &id).await? {
        true => Ok(json_response(&json!({"id": id, "object": "file", "deleted": true}))),
        false => Err(missing(&id)),
    }
}

fn missing(id: &str) -> ApiError {
    ApiError::no_stored("file", id)
}
