//! The routes of Ollama's API.

mod models;
mod pulling;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::{any, get, post};
use http::{HeaderValue, Request as HttpRequest, header};

use self::models::{running, show, tags, version};
use crate::app::App;
use crate::json_response::json_response;
use crate::routes::downloads::DOWNLOADING;
use crate::routes::embeddings::embed;
use crate::routes::generation::parse;
use crate::sse::{event_stream, with_ignored};
use loquent_dialects::lowered::Lowered;
use loquent_dialects::ollama::embed::{embed_json, embeddings_json, read_embed, read_embeddings};
use loquent_dialects::ollama::events::OllamaLines;
use loquent_dialects::ollama::object::{full, loaded};
use loquent_dialects::ollama::request::{OllamaRequest, lower_chat, lower_generate, without_tag};
use loquent_serving::api::embeddings::Embedded;
use loquent_serving::api::fields::Fields;
use loquent_serving::api::logprobs::LogprobsFormat;
use loquent_serving::api::sampling::GeneralSampling;
use loquent_serving::caller::Caller;
use loquent_serving::error::{ApiError, quoted};
use loquent_serving::full_answer::FullAnswer;
use loquent_serving::keep_alive::KeepAlive;

type Shared = State<Arc<App>>;

/// Returns the routes, for clients whose key has been checked. `is_offered`: the operator has
/// enabled the API.
pub fn routes(is_offered: bool) -> Router<Arc<App>> {
    if !is_offered {
        return Router::new().route("/api/{*path}", any(not_offered));
    }
    Router::new()
        .route("/api/chat", post(chat))
        .route("/api/generate", post(generate_text))
        .route("/api/embed", post(embed_texts))
        .route("/api/embeddings", post(embed_prompt))
        .route("/api/tags", get(list))
        .route("/api/ps", get(list_running))
        .route("/api/show", post(describe))
        .route("/api/version", get(async || json_response(&version())))
        .route("/api/pull", post(pull))
        .route("/api/{*path}", any(elsewhere))
}

async fn not_offered() -> ApiError {
    ApiError::not_offered(
        "Ollama's API is disabled because this server accepts connections from other machines. \
         Start it with --ollama-api always, or use OpenAI's API, whose base URL ends with /v1.",
    )
}

async fn elsewhere(Path(path): Path<String>) -> ApiError {
    let path = quoted(&path);
    ApiError::not_offered(format!(
        "'/api/{path}' is not supported. Supported parts of Ollama's API: chat, generate, embed, \
         embeddings, tags, show, ps and version, and pull."
    ))
}

/// `POST /api/pull`: done at once for a model that is there. Others are downloaded for clients that
/// may.
async fn pull(State(app): Shared, request: HttpRequest<Body>) -> Result<Response, ApiError> {
    let (mut head, body) = request.into_parts();
    let identity = Caller::of(&head).identity;
    let body = app.bodies.receive(&mut head, body).await?;
    let read = |mut fields: Fields| {
        let name = fields.string("model")?.or(fields.string("name")?);
        let name = name.ok_or_else(|| fields.error("model", "is required."))?;
        Ok((name, fields.boolean("stream")?.unwrap_or(true)))
    };
    let (name, streams) = body.parse(read).await?;
    if app.models.named(&name).or_else(|_| app.models.named(without_tag(&name))).is_ok() {
        let done = pulling::done();
        return Ok(match streams {
            true => lines_stream(Body::from(format!("{done}\n"))),
            false => json_response(&done),
        });
    }
    if app.models.downloads().is_err() {
        return Err(elsewhere(Path("pull".into())).await);
    }
    identity.check_manages(DOWNLOADING)?;
    let download = app.models.download(&name)?;
    match streams {
        true => Ok(lines_stream(pulling::lines(download))),
        false => pulling::whole(&download).await,
    }
}

async fn chat(State(app): Shared, request: HttpRequest<Body>) -> Result<Response, ApiError> {
    answer(app, request, lower_chat).await
}

async fn generate_text(
    State(app): Shared,
    request: HttpRequest<Body>,
) -> Result<Response, ApiError> {
    answer(app, request, lower_generate).await
}

async fn answer(
    app: Arc<App>,
    request: HttpRequest<Body>,
    lower: fn(Fields) -> Result<Lowered<OllamaRequest>, ApiError>,
) -> Result<Response, ApiError> {
    app.models.check_room()?;
    let mut parsed = parse(&app, request, lower).await?;
    parsed.request.sampling.general = GeneralSampling::Ollama;
    let OllamaRequest { shape, ref model, only_loads, keep } = parsed.kept;
    let entry = app.models.find(parsed.request.model.as_deref())?;
    let manages = parsed.request.identity.check_manages("Unloading a model");
    if only_loads && keep == Some(KeepAlive::For(Duration::ZERO)) {
        manages.clone()?;
    }
    // Ollama's clients send it with every question: from others it has no effect.
    let kept = keep.filter(|_| manages.is_ok());
    kept.into_iter().for_each(|keep| entry.keep(keep));
    if only_loads {
        // Ollama's way to unload a model is to ask for nothing and to keep it for no time.
        let unloads = keep == Some(KeepAlive::For(Duration::ZERO));
        if !unloads {
            entry.use_when_loaded().await?;
        }
        return Ok(json_response(&loaded(shape, model, unloads)));
    }
    let model = model.clone();
    let mut generation = parsed.start(&app).await?;
    generation.logprobs = Some(LogprobsFormat::Chat);
    let ignored = generation.ignored.clone();
    let response = match generation.streams {
        true => {
            let lines = OllamaLines::new(shape, model, app.clock, generation.arrived);
            lines_stream(generation.stream(&app, lines))
        }
        false => {
            let vocab = generation.vocab();
            let object = move |answer: &FullAnswer, asked: OllamaRequest| {
                full(asked.shape, &asked.model, answer, &*vocab)
            };
            generation.full(&app, object).await?
        }
    };
    Ok(with_ignored(response, &ignored))
}

async fn embed_texts(State(app): Shared, request: HttpRequest<Body>) -> Result<Response, ApiError> {
    let (clock, arrived) = (app.clock, app.clock.now());
    let read = move |fields: Fields| {
        let (request, model) = read_embed(fields)?;
        let write = move |_: &str, embedded: &Embedded| {
            let took = clock.now().saturating_sub(arrived);
            embed_json(&model, embedded, took.as_nanos() as u64)
        };
        Ok((request, write))
    };
    embed(&app, request, read).await
}

async fn embed_prompt(
    State(app): Shared,
    request: HttpRequest<Body>,
) -> Result<Response, ApiError> {
    let read = |fields: Fields| {
        let write = |_: &str, embedded: &Embedded| embeddings_json(embedded);
        Ok((read_embeddings(fields)?.0, write))
    };
    embed(&app, request, read).await
}

/// Returns a response whose body is a stream of JSON lines.
fn lines_stream(body: Body) -> Response {
    let mut response = event_stream(body);
    let kind = HeaderValue::from_static("application/x-ndjson");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

async fn list(State(app): Shared) -> Result<Response, ApiError> {
    Ok(json_response(&tags(&app.models)))
}

async fn list_running(State(app): Shared) -> Result<Response, ApiError> {
    Ok(json_response(&running(&app.models)))
}

async fn describe(State(app): Shared, request: HttpRequest<Body>) -> Result<Response, ApiError> {
    let (mut head, body) = request.into_parts();
    let body = app.bodies.receive(&mut head, body).await?;
    // Older clients send the name as `name`.
    let named = body.parse(|mut fields| Ok(fields.string("model")?.or(fields.string("name")?)));
    let Some(name) = named.await? else {
        return Err(ApiError::invalid_param("model", "'model' is required."));
    };
    Ok(json_response(&show(app.models.find(Some(&name))?)))
}
