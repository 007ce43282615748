//! Steps that the requests of all dialects share: from a body to an answer in progress, and from
//! that to a response.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http::Request as HttpRequest;
use loquent_infer::vocab::Vocab;
use serde_json::Value;

use crate::app::App;
use crate::json_response::json_text;
use crate::service::StartedAnswer;
use crate::sse::{DirectAnswer, SseBody};
use loquent_dialects::lowered::Lowered;
use loquent_serving::api::fields::Fields;
use loquent_serving::api::logprobs::LogprobsFormat;
use loquent_serving::api::request::{LIMIT_NAMES, Request};
use loquent_serving::caller::Caller;
use loquent_serving::error::ApiError;
use loquent_serving::event_writer::EventWriter;
use loquent_serving::full_answer::FullAnswer;
use loquent_serving::held_answer::HeldAnswer;
use loquent_serving::memory::SMALL_BYTES;
use loquent_serving::records::RecordContext;

/// A dialect's parsed request.
pub struct Parsed<T> {
    /// The request in the service's form.
    pub request: Request,
    /// Data that only the dialect needs for its answer.
    pub kept: T,
    /// Time when the request arrived, on the server's clock.
    pub arrived: Duration,
}

/// An answer in progress.
pub struct LoweredAnswer<T> {
    started: StartedAnswer,
    /// Time when the request arrived, on the server's clock.
    pub arrived: Duration,
    /// Comma-separated names of the request's ignored parameters.
    pub ignored: String,
    /// True if the answer is to be streamed.
    pub streams: bool,
    /// Format of log-probabilities in a stream; `None` for that of OpenAI's endpoint.
    pub logprobs: Option<LogprobsFormat>,
    /// Data that only the dialect needs for its answer.
    pub kept: T,
}

/// Starts the answer to `request`, which `lower` translates to a completion.
///
/// # Errors
/// The errors of the body, of `lower`, and of [`Service::start`].
pub async fn generate<T: Send + 'static>(
    app: &App,
    request: HttpRequest<Body>,
    lower: impl FnOnce(Fields) -> Result<Lowered<T>, ApiError> + Send + 'static,
) -> Result<LoweredAnswer<T>, ApiError> {
    app.models.check_room()?;
    parse(app, request, lower).await?.start(app).await
}

/// Reads `request`, which `lower` translates to a completion.
///
/// # Errors
/// The errors of the body and of `lower`.
pub async fn parse<T: Send + 'static>(
    app: &App,
    request: HttpRequest<Body>,
    lower: impl FnOnce(Fields) -> Result<Lowered<T>, ApiError> + Send + 'static,
) -> Result<Parsed<T>, ApiError> {
    let arrived = app.clock.now();
    let models = app.models.clone();
    let (mut head, body) = request.into_parts();
    let body = app.bodies.receive(&mut head, body).await?;
    let caller = Caller::of(&head);
    let read = move |mut fields: Fields| {
        if models.passes_on(&fields) {
            fields.keep_images();
        }
        let Lowered { endpoint, mut fields, ignored, kept } = lower(fields)?;
        let is_bounded = LIMIT_NAMES.iter().any(|name| fields.map().contains_key(*name));
        let served = models.find_for(&mut fields)?;
        let mut request = served.parse(endpoint, fields, caller)?;
        if !is_bounded {
            // OpenAI's default for plain completions is no other API's.
            request.max_tokens = None;
        }
        request.ignored.extend(ignored);
        Ok(Parsed { request, kept, arrived })
    };
    body.parse(read).await
}

impl<T> Parsed<T> {
    /// Starts the answer to the request.
    ///
    /// # Errors
    /// The errors of [`Service::start`].
    pub async fn start(self, app: &App) -> Result<LoweredAnswer<T>, ApiError> {
        let Self { mut request, kept, arrived } = self;
        let streams = request.stream.is_some();
        // The counts are part of every dialect's answer.
        request.stream.get_or_insert_default().include_usage = true;
        let mut started = app.models.start(request, arrived).await?;
        // Only OpenAI's API repeats prompts.
        started.echo.clear();
        Ok(LoweredAnswer::of(started, arrived, streams, kept))
    }
}

impl<T> LoweredAnswer<T> {
    /// Returns the answer that has `started` to a request that `arrived` then. `kept`: data that
    /// only the dialect needs.
    pub fn of(mut started: StartedAnswer, arrived: Duration, streams: bool, kept: T) -> Self {
        let ignored = std::mem::take(&mut started.ignored);
        Self { started, arrived, ignored, streams, logprobs: None, kept }
    }

    /// Returns the vocabulary of the answer's tokens.
    pub fn vocab(&self) -> Arc<dyn Vocab> {
        self.started.vocab.clone()
    }

    /// Number of prompt tokens, as far as it is known yet.
    pub fn prompt_tokens(&self) -> u64 {
        self.started.active.usage().prompt_tokens
    }

    /// Returns the answer as a stream, written by `events`.
    pub fn stream(self, app: &App, events: impl EventWriter + 'static) -> Body {
        let StartedAnswer { active, echo, vocab, .. } = self.started;
        let context = RecordContext { vocab: &vocab, echo: &echo, logprobs: self.logprobs };
        let (answer, preface) = DirectAnswer::open(active, &context, events);
        Body::new(SseBody::new(answer, preface, app.config.heartbeat))
    }

    /// Returns the answer as an object, built by `object`.
    ///
    /// # Errors
    /// The errors of [`FullAnswer::collect`].
    pub async fn full(
        self,
        app: &App,
        object: impl FnOnce(&FullAnswer, T) -> Value + Send + 'static,
    ) -> Result<Response, ApiError>
    where
        T: Send + 'static,
    {
        let Self { started: StartedAnswer { active, echo, .. }, kept, .. } = self;
        let mut held = HeldAnswer::new(app.bodies.clone(), active.tenant());
        let answer = FullAnswer::collect(active, &echo, &mut held).await?;
        let is_large = answer.bytes() > SMALL_BYTES;
        let render = move || Ok(object(&answer, kept).to_string());
        Ok(json_text(app.bodies.workers().run_if(is_large, render).await?))
    }
}
