//! `POST /v1/tokens`: an app's server obtains a token for one of its users' browsers.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use http::{HeaderValue, Request as HttpRequest, header};
use serde_json::json;

use crate::app::App;
use crate::json_response::json_response;
use loquent_openai::headers::authorization;
use loquent_serving::api::fields::Fields;
use loquent_serving::clock::unix_time_s;
use loquent_serving::error::ApiError;
use loquent_serving::identity::token::{MAX_LIFE, TokenWish, USUAL_LIFE};

/// Maximum length of a reader's name in bytes.
const MAX_READER_BYTES: usize = 256;

/// Returns the route, for requests whose key has been verified.
pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/v1/tokens", post(create))
}

async fn create(
    State(app): State<Arc<App>>,
    request: HttpRequest<Body>,
) -> Result<Response, ApiError> {
    let (mut head, body) = request.into_parts();
    let body = app.bodies.receive(&mut head, body).await?;
    let wish = body.parse(|mut fields| read_wish(&mut fields)).await?;
    let given = authorization(&head.headers);
    let given = given.as_ref().map(HeaderValue::as_bytes);
    let token = app.config.api_keys.mint(given, &wish, unix_time_s())?;
    let response = json_response(&json!({
        "object": "token",
        "token": token.text,
        "expires_at": token.expires_s,
        "expires_in": wish.life.as_secs(),
        "max_requests": wish.max_requests,
    }));
    let uncached = [(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))];
    Ok((uncached, response).into_response())
}

/// Reads the requested properties of a token from `fields`.
///
/// # Errors
/// 400 for an invalid field, and for an unknown one: a misspelt limit would otherwise be no
/// limit.
fn read_wish(fields: &mut Fields) -> Result<TokenWish, ApiError> {
    let life = fields.integer("expires_in", 1..=MAX_LIFE.as_secs() as i64)?;
    let life = life.map_or(USUAL_LIFE, |seconds| Duration::from_secs(seconds as u64));
    let max_requests = fields.integer("max_requests", 1..=u32::MAX.into())?;
    let reader = fields.string("user")?;
    if reader.as_ref().is_some_and(|name| name.len() > MAX_READER_BYTES) {
        let most = format!("must have at most {MAX_READER_BYTES} bytes.");
        return Err(fields.error("user", most));
    }
    if let Some(unknown) = fields.map().keys().next() {
        return Err(fields.error(unknown, "is not known here."));
    }
    Ok(TokenWish { life, max_requests: max_requests.map(|most| most as u32), reader })
}
