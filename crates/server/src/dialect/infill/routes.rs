//! The route of llama-server's `/infill`.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use http::{Request as HttpRequest, header};

use super::events::{InfillEvents, whole};
use super::request::lower;
use crate::api::request::Endpoint;
use crate::app::App;
use crate::error::ApiError;
use crate::full_answer::FullAnswer;
use crate::intake::{Intake, ParsedRequest};
use crate::json_response::json_response;
use crate::records::RecordContext;
use crate::service::{Caller, StartedAnswer};
use crate::sse::{DirectAnswer, SseBody, event_stream, with_ignored};

/// The route, for clients with a key if the server has keys.
pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/infill", post(infill))
}

async fn infill(
    State(app): State<Arc<App>>,
    request: HttpRequest<Body>,
) -> Result<Response, ApiError> {
    let arrived = app.clock.now();
    let service = app.service()?.clone();
    service.check_room()?;
    let (mut head, body) = request.into_parts();
    let body = app.bodies.receive(&mut head, body).await?;
    let key = head.headers.get(header::AUTHORIZATION).cloned();
    let caller = Caller::of(&head);
    let intake = Intake { endpoint: Endpoint::Text, caller, key, is_ask: false };
    let lower = |fields| lower(fields).map(|fields| (fields, ()));
    let (ParsedRequest { request, .. }, ()) = intake.parse_lowered(&app, body, None, lower).await?;
    let streams = request.stream.is_some();
    let StartedAnswer { active, ignored, .. } = service.start(request, arrived).await?;
    let response = if streams {
        let context = RecordContext { vocab: &service.model().vocab, echo: &[] };
        let (answer, preface) = DirectAnswer::open(active, &context, InfillEvents::default());
        event_stream(Body::new(SseBody::new(answer, preface, app.config.heartbeat)))
    } else {
        json_response(&whole(&FullAnswer::collect(active, &[]).await?))
    };
    Ok(with_ignored(response, &ignored))
}
