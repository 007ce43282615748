//! The routes of `/v1/responses`.

pub mod resolve;

use std::future::poll_fn;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Extension, Router};
use http::{Extensions, Request as HttpRequest, Uri};
use loquent_proto::Delta;
use loquent_proto::obfuscation::Obfuscation;
use serde_json::{Value, json};

use crate::app::App;
use crate::charged_body::charged_json;
use crate::json_response::{json_response, json_text};
use crate::models::ModelEntry;
use crate::routes::parse_request::marks;
use crate::routes::responses::resolve::conversation;
use crate::service::StartedAnswer;
use crate::sse::{SseBody, event_stream, with_ignored};
use loquent_dialects::responses::compact;
use loquent_dialects::responses::events::{EventRange, ResponseEvents};
use loquent_dialects::responses::input;
use loquent_dialects::responses::object::ResponseTemplate;
use loquent_dialects::responses::paging::page;
use loquent_dialects::responses::request::{NAMES, ResponseRequest, Truncation};
use loquent_dialects::responses::truncate::{count, truncate};
use loquent_responses::generation::ResponseGeneration;
use loquent_responses::live::NewResponse;
use loquent_responses::lookup::FoundResponse;
use loquent_responses::record_log::{END_RESERVE_BYTES, RecordLog};
use loquent_responses::stored::{KeptInput, StoredResponse};
use loquent_responses::storing::{KeptRecords, ResponseRecorder};
use loquent_responses::stream::{DirectResponse, Records, ResponseReader};
use loquent_resumable::generation::Generated;
use loquent_resumable::shared::kept_request::ReplayableBody;
use loquent_serving::api::fields::Fields;
use loquent_serving::api::request::{Endpoint, Request, StreamParams, text_bytes};
use loquent_serving::body::ReceivedBody;
use loquent_serving::caller::Caller;
use loquent_serving::clock::unix_time_s;
use loquent_serving::error::ApiError;
use loquent_serving::event_writer::EventSource;
use loquent_serving::held_answer::HeldAnswer;
use loquent_serving::identity::Identity;
use loquent_serving::memory::{MemoryCharge, SMALL_BYTES};
use loquent_serving::prompt_threads::WorkClass;
use loquent_serving::prompts::Prompts;
use loquent_serving::query::Query;
use loquent_serving::records::RecordContext;
use loquent_store::{AnswerFence, Kind};

type Shared = State<Arc<App>>;
type Caught = Result<Response, ApiError>;

/// Returns the routes, for clients whose key has been checked.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/responses", post(create))
        .route("/v1/responses/compact", post(compact))
        .route("/v1/responses/input_tokens", post(input_tokens))
        .route("/v1/responses/{id}", get(retrieve).delete(delete))
        .route("/v1/responses/{id}/cancel", post(cancel))
        .route("/v1/responses/{id}/input_items", get(input_items))
}

/// A request translated to a chat completion.
struct LoweredRequest {
    request: Request,
    template: ResponseTemplate,
    /// The whole conversation, if it is stored.
    input: KeptInput,
    streams: bool,
    stores: bool,
    obfuscation: Option<bool>,
}

/// A response that the engine or the upstream server has accepted.
struct StartedResponse {
    recorder: ResponseRecorder,
    template: ResponseTemplate,
    generation: ResponseGeneration,
    /// The response's first records.
    log: RecordLog,
    ignored: String,
}

async fn create(State(app): Shared, request: HttpRequest<Body>) -> Caught {
    let arrived = app.clock.now();
    app.models.check_room()?;
    let (mut head, body) = request.into_parts();
    let body = app.bodies.receive(&mut head, body).await?;
    let caller = Caller::of(&head);
    let identity = caller.identity.clone();
    let lowered = lower(&app, caller, body, ResponseRequest::read).await?;
    let (streams, stores) = (lowered.streams, lowered.stores);
    let padding = padding(&app, &head.extensions, lowered.obfuscation);
    // Before the engine begins: an answer that cannot be kept costs no generation.
    let reservation = match lowered.template.background {
        true => Some(app.resumable.reserve(identity.tenant, 0)?),
        false => None,
    };
    let started = start(&app, lowered, &identity, arrived).await?;
    let ignored = started.ignored.clone();
    let response = match reservation {
        Some(reservation) => {
            let StartedResponse { recorder, template, generation, log, .. } = started;
            let new = NewResponse { recorder, template, log };
            let live = app.responses.start(new, generation, reservation).await?;
            let (found, charge) = (FoundResponse::Live(live), MemoryCharge::of(&identity));
            match streams {
                false => object(&app, found, charge).await?,
                true => {
                    let (template, records) = found.into_records(charge)?;
                    read(&app, records, template, 0, padding)
                }
            }
        }
        None if streams => stream(&app, started, stores, padding),
        None => full(&app, started, stores).await?,
    };
    Ok(with_ignored(response, &ignored))
}

/// Reads a request by `read`, with the items it refers to, and translates it to a chat completion.
async fn lower(
    app: &App,
    caller: Caller,
    body: ReceivedBody,
    read: fn(Fields) -> Result<ResponseRequest, ApiError>,
) -> Result<LoweredRequest, ApiError> {
    let models = app.models.clone();
    let read_for_model = move |mut fields: Fields| {
        if models.passes_on(&fields) {
            fields.keep_images();
        }
        read(fields)
    };
    let mut asked = body.parse(read_for_model).await?;
    let entry = app.models.find(asked.model())?.clone();
    asked.template.object["id"] = format!("resp_{:032x}", rand::random::<u128>()).into();
    let input = conversation(app, caller.identity.owner(), &mut asked).await?;
    let input_bytes: usize = input.iter().map(text_bytes).sum();
    let is_large = input_bytes > SMALL_BYTES;
    let shares = app.resumable.is_shared();
    let lowered = match asked.truncation {
        // Counts tokens, which only some threads may.
        Truncation::Auto => {
            let service = entry.use_when_loaded().await?;
            let class = WorkClass::of_bytes(&caller.identity, input_bytes);
            let work =
                move |it: &Prompts| to_chat((&entry, Some(it)), caller, asked, input, shares);
            service.prompts().for_tokenize(class, work).await
        }
        Truncation::Disabled => {
            let work = move || to_chat((&entry, None), caller, asked, input, shares);
            app.bodies.workers().run_if(is_large, work).await
        }
    };
    lowered.map_err(|error| error.renamed(NAMES))
}

/// Builds the request for a chat completion. `counter` counts tokens if a conversation that is too
/// long is to be cut. If replicas share answers, the request is kept for a replica that takes the
/// response over.
fn to_chat(
    (entry, counter): (&ModelEntry, Option<&Prompts>),
    caller: Caller,
    asked: ResponseRequest,
    input: Vec<Value>,
    shares: bool,
) -> Result<LoweredRequest, ApiError> {
    let ResponseRequest { mut chat, template, streams, stores, obfuscation, .. } = asked;
    let mut messages = messages_of(asked.instructions.as_deref(), &input)?;
    // An upstream server counts its own tokens.
    let is_ours = entry.constant().is_none_or(|service| service.upstream().is_none());
    if let Some(prompts) = counter.filter(|_| is_ours) {
        messages = truncate(prompts, &chat, messages)?;
    }
    chat.insert("messages".into(), messages.into());
    // An upstream server has no seed either.
    let keeps = shares && template.background && is_ours;
    let body = keeps.then(|| ReplayableBody::of(Endpoint::Chat, &chat)).flatten();
    let charge = asked.fields.charge();
    let mut request = entry.parse(Endpoint::Chat, asked.fields.replaced(chat), caller)?;
    let again = body.and_then(|body| body.encode(&marks(&mut request, entry)));
    // The request gives its charge back when its prompt is tokens; the items live on.
    let mut kept = KeptInput::default();
    if stores {
        // Here, where it may take its time, and once for all checkpoints.
        kept.head = StoredResponse::encode_head(&template, &input, None).into();
        if let Some(again) = again.as_deref().and_then(|again| str::from_utf8(again).ok()) {
            kept.running = StoredResponse::encode_head(&template, &input, Some(again)).into();
        }
        kept.charge = charge;
    }
    if template.background {
        kept.items = input;
    }
    // The object always has the usage, whether or not it is streamed.
    request.stream = Some(StreamParams { include_usage: true, ..StreamParams::default() });
    request.ignored.splice(0..0, asked.ignored);
    Ok(LoweredRequest { request, template, input: kept, streams, stores, obfuscation })
}

fn messages_of(instructions: Option<&str>, input: &[Value]) -> Result<Vec<Value>, ApiError> {
    let messages = input::messages(instructions, input);
    match messages.is_empty() {
        false => Ok(messages),
        true => Err(ApiError::invalid_param("input", "'input' is required.")),
    }
}

async fn start(
    app: &App,
    lowered: LoweredRequest,
    identity: &Identity,
    arrived: std::time::Duration,
) -> Result<StartedResponse, ApiError> {
    let LoweredRequest { request, template, input, .. } = lowered;
    let started = app.models.start(request, arrived).await;
    let started = started.map_err(|error| error.renamed(NAMES))?;
    let StartedAnswer { active, echo, ignored, vocab } = started;
    // By this server's clock, which tells how long it is kept; an upstream's may be anything.
    let created_s = unix_time_s();
    let mut log = RecordLog::new(usize::MAX / 2);
    let context = RecordContext { vocab: &vocab, echo: &echo, logprobs: None };
    // A background response has its reserved size.
    let held = HeldAnswer::new(app.bodies.clone(), active.tenant());
    let held = (!template.background).then_some(held);
    let generation = ResponseGeneration::open(active, held, &context, &mut log);
    let log = log.bounded(most_record_bytes(app, &template, &input));
    let target = app.store_target(Kind::Response, identity.owner(), AnswerFence::FIRST);
    let id = template.id().to_owned();
    let recorder = ResponseRecorder { target, id, created_s, input };
    Ok(StartedResponse { recorder, template, generation, log, ignored })
}

/// Maximum bytes of records kept for a response: the reserved size for a background response, the
/// store's limit for any other.
fn most_record_bytes(app: &App, template: &ResponseTemplate, input: &KeptInput) -> usize {
    match template.background {
        true => app.resumable.limits().log_bytes,
        false => app.store.most_json_bytes().saturating_sub(input.head.len() + END_RESERVE_BYTES),
    }
}

/// Returns the padding of text, with its alphabet; `None` if text is not padded.
fn padding(app: &App, extensions: &Extensions, asked: Option<bool>) -> Option<Obfuscation> {
    let padding = app.config.obfuscation.of_request(extensions);
    padding.applies(asked).then_some(padding)
}

fn events<S: EventSource + Send + 'static>(app: &App, (source, preface): (S, Vec<u8>)) -> Response {
    event_stream(Body::new(SseBody::new(source, preface, app.config.heartbeat)))
}

/// Streams a response to the client that requested it.
fn stream(
    app: &App,
    started: StartedResponse,
    stores: bool,
    padding: Option<Obfuscation>,
) -> Response {
    let StartedResponse { recorder, template, generation, log, .. } = started;
    let writer = ResponseEvents::new(template, EventRange::From(0)).padded(padding);
    events(app, DirectResponse::new(generation, writer, log, stores.then_some(recorder)))
}

/// Returns a response in a single body.
async fn full(app: &App, started: StartedResponse, stores: bool) -> Caught {
    let events = whole(started, stores).await?;
    let is_large = events.output_bytes() > SMALL_BYTES;
    let render = move || Ok(events.object().to_string());
    Ok(json_text(app.bodies.workers().run_if(is_large, render).await?))
}

/// Generates a response to its end.
async fn whole(started: StartedResponse, stores: bool) -> Result<ResponseEvents, ApiError> {
    let StartedResponse { recorder, template, mut generation, log, .. } = started;
    let mut events = ResponseEvents::new(template, EventRange::Nothing);
    log.read(0, |delta| events.note(&delta));
    let mut recording = KeptRecords::new(log, stores.then_some(recorder));
    loop {
        let mut put = |delta: Delta| recording.put(delta, &mut events, &mut Vec::new());
        match poll_fn(|context| generation.poll(context, &mut put)).await {
            Generated::Going => {}
            Generated::Complete => break,
            // Nobody has learned its id, so it is not stored.
            Generated::Failed(error) => return Err(error),
        }
    }
    let stored = recording.store().await;
    recording.end(stored, &mut events, &mut Vec::new());
    Ok(events)
}

/// Returns the current object of `found`, which was found with `charge`.
async fn object(app: &App, found: FoundResponse, charge: MemoryCharge) -> Caught {
    let bytes = found.bytes();
    charged_json(&app.bodies, charge, bytes, move || Ok(found.object().to_string())).await
}

/// Streams the events of `records` from number `first` on.
fn read(
    app: &App,
    records: Records,
    template: ResponseTemplate,
    first: u64,
    padding: Option<Obfuscation>,
) -> Response {
    let writer = ResponseEvents::new(template, EventRange::From(first)).padded(padding);
    events(app, (ResponseReader::new(records, writer), Vec::new()))
}

async fn retrieve(
    State(app): Shared,
    Path(id): Path<String>,
    Extension(identity): Extension<Identity>,
    uri: Uri,
    extensions: Extensions,
) -> Caught {
    let (query, owner) = (Query::of(&uri), identity.owner());
    let streams = query.switch("stream")?.unwrap_or(false);
    let first = query.number("starting_after")?.map_or(0, |last| last.saturating_add(1));
    let padding = padding(&app, &extensions, query.switch("include_obfuscation")?);
    let mut charge = MemoryCharge::of(&identity);
    let found = app.response_lookup().get(owner, &id, &mut charge).await?;
    found.check_number(first)?;
    if !streams {
        return object(&app, found, charge).await;
    }
    let (template, records) = found.into_records(charge)?;
    Ok(read(&app, records, template, first, padding))
}

async fn cancel(
    State(app): Shared,
    Path(id): Path<String>,
    Extension(identity): Extension<Identity>,
) -> Caught {
    let mut charge = MemoryCharge::of(&identity);
    let found = app.response_lookup().cancel(identity.owner(), &id, &mut charge).await?;
    object(&app, found, charge).await
}

async fn delete(
    State(app): Shared,
    Path(id): Path<String>,
    Extension(identity): Extension<Identity>,
) -> Caught {
    match app.responses.delete(&app.store, identity.owner(), &id).await? {
        true => Ok(json_response(&json!({"id": id, "object": "response", "deleted": true}))),
        false => Err(ApiError::no_stored("response", &id)),
    }
}

async fn input_items(
    State(app): Shared,
    Path(id): Path<String>,
    Extension(identity): Extension<Identity>,
    uri: Uri,
) -> Caught {
    let mut charge = MemoryCharge::of(&identity);
    let found = app.response_lookup().get(identity.owner(), &id, &mut charge).await?;
    let bytes = found.bytes();
    charged_json(&app.bodies, charge, bytes, move || page(found.input(), Query::of(&uri))).await
}

/// `POST /v1/responses/compact`: sums a conversation up.
async fn compact(State(app): Shared, request: HttpRequest<Body>) -> Caught {
    let arrived = app.clock.now();
    app.models.check_room()?;
    let (mut head, body) = request.into_parts();
    let body = app.bodies.receive(&mut head, body).await?;
    let caller = Caller::of(&head);
    let identity = caller.identity.clone();
    let lowered = lower(&app, caller, body, compact::read).await?;
    let started = start(&app, lowered, &identity, arrived).await?;
    let ignored = started.ignored.clone();
    let summary = whole(started, false).await?;
    let response = json_response(&compact::object(&summary.object())?);
    Ok(with_ignored(response, &ignored))
}

/// `POST /v1/responses/input_tokens`: counts the tokens of a request's prompt.
async fn input_tokens(State(app): Shared, request: HttpRequest<Body>) -> Caught {
    let (mut head, body) = request.into_parts();
    let identity = Caller::of(&head).identity;
    let body = app.bodies.receive(&mut head, body).await?;
    let mut asked = body.parse(ResponseRequest::read).await?;
    let service = app.models.find(asked.model())?.use_when_loaded().await?;
    if service.upstream().is_some() {
        return Err(ApiError::invalid("Only the upstream server can count its tokens."));
    }
    let input = conversation(&app, identity.owner(), &mut asked).await?;
    let class = WorkClass::of_bytes(&identity, input.iter().map(text_bytes).sum());
    let ResponseRequest { chat, fields, instructions, .. } = asked;
    let counted = service.prompts().for_tokenize(class, move |prompts| {
        let messages = messages_of(instructions.as_deref(), &input)?;
        let tokens = count(prompts, &chat, messages)?;
        drop(fields); // what the prompt was charged
        Ok(tokens.len())
    });
    let tokens = counted.await.map_err(|error| error.renamed(NAMES))?;
    Ok(json_response(&json!({"object": "response.input_tokens", "input_tokens": tokens})))
}
