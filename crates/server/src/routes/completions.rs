//! The routes of OpenAI's chat completions and completions.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use http::request::Parts;
use http::{HeaderValue, Request as HttpRequest};
use loquent_infer::vocab::Vocab;
use loquent_proto::chunk::ChunkWriter;
use loquent_proto::headers::{REPEAT_HEADER, WARNING_HEADER};

use crate::app::App;
use crate::models::ModelEntry;
use crate::routes::generation::LoweredAnswer;
use crate::routes::parse_request::{Intake, ParsedRequest};
use crate::routes::resumable::{self, ResumableRequest};
use crate::routes::stored_chats;
use crate::service::Answer;
use crate::sse::{event_stream, with_ignored};
use loquent_openai::headers::authorization;
use loquent_serving::api::request::{Endpoint, Request};
use loquent_serving::caller::Caller;
use loquent_serving::error::ApiError;
use loquent_serving::full_answer::FullAnswer;
use loquent_serving::full_response::full_response;
use loquent_store::AnswerFence;
use serde_json::Value;

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

/// Warning in answers of a model without a chat template.
const NO_TEMPLATE: HeaderValue = HeaderValue::from_static(
    "this model has no chat template and is probably a base model: use /v1/completions",
);

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
    let parsed = intake.parse(&app, body, head.headers.get(REPEAT_HEADER)).await?;
    let lacks_template = endpoint == Endpoint::Chat && lacks_template(&app, &parsed.request);
    let mut response = answer_parsed(&app, parsed, arrived, &head).await?;
    if lacks_template {
        response.headers_mut().insert(WARNING_HEADER, NO_TEMPLATE);
    }
    Ok(response)
}

/// Returns true if the model of `request` has no chat template of its own, as far as is known
/// before it is loaded.
fn lacks_template(app: &App, request: &Request) -> bool {
    let entry = app.models.find(request.model.as_deref());
    let service = entry.ok().and_then(ModelEntry::service);
    service.is_some_and(|service| service.model().chat.is_guessed)
}

async fn answer_parsed(
    app: &Arc<App>,
    ParsedRequest { request, idempotent }: ParsedRequest,
    arrived: Duration,
    head: &Parts,
) -> Result<Response, ApiError> {
    let (streams, timed) = (request.stream.is_some(), request.timings);
    let obfuscation = app.config.obfuscation.of_request(&head.extensions);
    if streams && request.resumable {
        // Only a resumable answer can be joined by its idempotency key; for others the header is
        // ignored, even if it is malformed.
        let resumable = ResumableRequest { request, arrived, idempotent: idempotent? };
        return resumable::stream(app, resumable, obfuscation).await;
    }
    let answer = match begin(app, request, arrived, head).await? {
        Answer::PassedOn(response) => return Ok(response),
        Answer::Started(started) => {
            let vocab = started.vocab.clone();
            LoweredAnswer::of(*started, arrived, streams, vocab)
        }
    };
    let ignored = answer.ignored.clone();
    let response = match streams {
        true => event_stream(answer.stream(app, ChunkWriter::new().obfuscate(obfuscation))),
        false => answer.full(app, move |answer, vocab| whole(answer, &*vocab, timed)).await?,
    };
    Ok(with_ignored(response, &ignored))
}

/// Returns a whole answer, with llama-server's timings if it is `timed`.
fn whole(answer: &FullAnswer, vocab: &dyn Vocab, timed: bool) -> Value {
    let mut response = full_response(answer, vocab);
    if timed {
        response["timings"] = answer.times.llama_timings(&answer.usage);
    }
    response
}

/// Begins an answer, and stores it if its request asks for that.
///
/// # Errors
/// 403 for a browser token that would store something: what is stored is the key owner's.
async fn begin(
    app: &App,
    mut request: Request,
    arrived: Duration,
    head: &Parts,
) -> Result<Answer, ApiError> {
    let (owner, store) = (request.identity.owner(), request.store.take());
    if store.is_some() && request.identity.token.is_some() {
        return Err(ApiError::store_beyond_token());
    }
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
