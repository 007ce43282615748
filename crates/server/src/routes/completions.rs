//! The routes of OpenAI's chat completions and completions.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use http::Request as HttpRequest;
use http::request::Parts;
use loquent_proto::chunk::ChunkWriter;
use loquent_proto::headers::REPEAT_HEADER;

use crate::api::request::{Endpoint, Request};
use crate::app::App;
use crate::auth::authorization;
use crate::caller::Caller;
use crate::error::ApiError;
use crate::full_response::full_response;
use crate::routes::generation::LoweredAnswer;
use crate::routes::parse_request::{Intake, ParsedRequest};
use crate::routes::resumable::{self, ResumableRequest};
use crate::routes::stored_chats;
use crate::service::Answer;
use crate::sse::{event_stream, with_ignored};
use crate::store::AnswerFence;

type Shared = State<Arc<App>>;

/// Returns the routes, for clients with a key if the server has keys.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(completions))
}

async fn chat(State(app): Shared, request: HttpRequest<Body>) -> Result<Response, ApiError> {
    answer(app, Endpoint::Chat, request).await
}

async fn completions(State(app): Shared, request: HttpRequest<Body>) -> Result<Response, ApiError> {
    answer(app, Endpoint::Text, request).await
}

async fn answer(
    app: Arc<App>,
    endpoint: Endpoint,
    request: HttpRequest<Body>,
) -> Result<Response, ApiError> {
    let arrived = app.clock.now();
    let (mut head, body) = request.into_parts();
    // A server at its limit refuses before it takes the body. A repeated request may join an
    // answer that has its place already.
    if !head.headers.contains_key(REPEAT_HEADER) {
        app.models.check_room()?;
    }
    let body = app.bodies.receive(&mut head, body).await?;
    let key = authorization(&head.headers);
    let intake = Intake { endpoint, caller: Caller::of(&head), key, is_ask: false };
    let ParsedRequest { request, idempotent } =
        intake.parse(&app, body, head.headers.get(REPEAT_HEADER)).await?;
    let streams = request.stream.is_some();
    let obfuscation = app.config.obfuscation.of_request(&head.extensions);
    if streams && request.resumable {
        // Only a resumable answer can be joined by its idempotency key; for others the header is
        // ignored, even if it is malformed.
        let resumable = ResumableRequest { request, arrived, idempotent: idempotent? };
        return resumable::stream(&app, resumable, obfuscation).await;
    }
    let answer = match begin(&app, request, arrived, &head).await? {
        Answer::PassedOn(response) => return Ok(response),
        Answer::Started(started) => {
            let vocab = started.vocab.clone();
            LoweredAnswer::of(*started, arrived, streams, vocab)
        }
    };
    let ignored = answer.ignored.clone();
    let response = match streams {
        true => event_stream(answer.stream(&app, ChunkWriter::new().obfuscate(obfuscation))),
        false => answer.full(&app, |answer, vocab| full_response(answer, &*vocab)).await?,
    };
    Ok(with_ignored(response, &ignored))
}

/// Begins an answer, and stores it if its request asks for that.
async fn begin(
    app: &App,
    mut request: Request,
    arrived: Duration,
    head: &Parts,
) -> Result<Answer, ApiError> {
    let (owner, store) = (request.identity.owner(), request.store.take());
    let mut answer = match store {
        None => match app.models.find(request.model.as_deref())?.constant() {
            Some(service) => return service.answer(request, arrived, head, &app.bodies).await,
            None => app.models.start(request, arrived).await?,
        },
        // What is stored must be read, even if an upstream server's response could pass unread.
        Some(_) => app.models.start(request, arrived).await?,
    };
    let of = (owner, AnswerFence::FIRST);
    stored_chats::record(app, &answer.vocab, of, store, &mut answer.active);
    Ok(Answer::Started(Box::new(answer)))
}
