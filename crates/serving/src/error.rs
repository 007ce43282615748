//! Errors of requests. Only this file knows HTTP status codes.

use std::borrow::Cow;

use axum_core::body::Body;
use axum_core::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use serde_json::json;

use crate::confine::confine;

/// Maximum number of models named in an error.
const MOST_NAMED: usize = 8;
/// `Retry-After` in seconds while the engine's process or stages of a split model are lost.
const OUTAGE_RETRY_S: u64 = 2;
/// `Retry-After` in seconds while the upstream server cannot be reached.
const UPSTREAM_RETRY_S: u64 = 5;

/// A refused or failed request, in OpenAI's vocabulary.
///
/// Rendered as `{"error": {"message", "type", "param", "code"}}`, which the OpenAI SDKs parse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    kind: ErrorKind,
    message: String,
    param: Option<String>,
    /// Facts that an API may state in its own words.
    facts: Option<ErrorFacts>,
    /// An upstream server's own response, passed on unchanged.
    foreign: Option<Box<Foreign>>,
    /// True if this server's engine is at fault, and another server could answer.
    is_of_engine: bool,
}

/// Facts about an error that some APIs state in words or members of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorFacts {
    /// The prompt exceeds the context.
    PromptTooLong {
        /// Tokens of the prompt; an estimate if it was too long to be tokenized.
        tokens: u64,
        /// Context length in tokens.
        maximum: u64,
    },
    /// The request needs a feature that this server lacks.
    Lacking {
        /// Anthropic's `error_code` for it.
        error_code: &'static str,
    },
}

/// An upstream server's error as it was received.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Foreign {
    status: StatusCode,
    content_type: Option<HeaderValue>,
    retry_after: Option<HeaderValue>,
    body: Bytes,
}

/// State of an upstream server as shown by the status of its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerSign {
    /// The server works, whatever its response. That includes an internal error: a request that
    /// makes one server fail would make all of them fail.
    Answers,
    /// The server works, but lacks the path, or lacks it for this method.
    LacksPath,
    /// The server works, but not for the key of the request.
    RefusesKey,
    /// The client exceeded its rate limit.
    LimitsRate,
    /// The server has no room, or is not ready.
    Busy,
    /// A gateway responds without a working server behind it.
    Absent,
}

impl ServerSign {
    /// Returns the sign for `status`.
    pub fn of(status: StatusCode) -> Self {
        match status {
            StatusCode::NOT_FOUND
            | StatusCode::METHOD_NOT_ALLOWED
            | StatusCode::NOT_IMPLEMENTED => Self::LacksPath,
            StatusCode::UNAUTHORIZED => Self::RefusesKey,
            StatusCode::TOO_MANY_REQUESTS => Self::LimitsRate,
            StatusCode::SERVICE_UNAVAILABLE => Self::Busy,
            StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => Self::Absent,
            _ => Self::Answers,
        }
    }
}

/// Kinds of errors: who caused it, and what the client can do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ErrorKind {
    InvalidRequest,
    ContextLengthExceeded,
    Unauthorized,
    Forbidden,
    NeedsAdmin,
    NeedsKeys,
    BeyondToken,
    ForeignHost,
    ModelNotFound,
    NotFound,
    Gone,
    PreviousNotFound,
    MethodNotAllowed,
    TooLarge,
    TooSlow,
    Overloaded { retry_after_s: u64 },
    RateLimited { rate: LimitedRate, retry_after_s: u64 },
    Unavailable { retry_after_s: u64 },
    Internal,
    BadGateway,
}

/// Kind of an exceeded rate limit, named after OpenAI's error types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitedRate {
    /// Requests, in flight or per minute.
    Requests,
    /// Tokens per minute.
    Tokens,
    /// Tokens of a day or a month: to try again soon is of no use.
    Quota,
}

impl ErrorKind {
    fn status(self) -> StatusCode {
        match self {
            Self::InvalidRequest | Self::ContextLengthExceeded | Self::PreviousNotFound => {
                StatusCode::BAD_REQUEST
            }
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::Forbidden
            | Self::NeedsAdmin
            | Self::ForeignHost
            | Self::NeedsKeys
            | Self::BeyondToken => StatusCode::FORBIDDEN,
            Self::ModelNotFound | Self::NotFound => StatusCode::NOT_FOUND,
            Self::Gone => StatusCode::GONE,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::Overloaded { .. } | Self::RateLimited { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::Unavailable { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::BadGateway => StatusCode::BAD_GATEWAY,
        }
    }

    /// Returns OpenAI's error type and code.
    fn names(self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::InvalidRequest => ("invalid_request_error", None),
            Self::ContextLengthExceeded => {
                ("invalid_request_error", Some("context_length_exceeded"))
            }
            Self::Unauthorized => ("invalid_request_error", Some("invalid_api_key")),
            Self::Forbidden => ("permission_error", Some("origin_not_allowed")),
            Self::NeedsAdmin => ("permission_error", Some("admin_key_required")),
            Self::ForeignHost => ("permission_error", Some("host_not_allowed")),
            Self::NeedsKeys => ("permission_error", Some("api_keys_required")),
            Self::BeyondToken => ("permission_error", Some("token_scope")),
            Self::ModelNotFound => ("invalid_request_error", Some("model_not_found")),
            Self::NotFound => ("invalid_request_error", Some("not_found")),
            Self::Gone => ("invalid_request_error", Some("gone")),
            Self::PreviousNotFound => {
                ("invalid_request_error", Some("previous_response_not_found"))
            }
            Self::MethodNotAllowed => ("invalid_request_error", Some("method_not_allowed")),
            Self::TooLarge => ("invalid_request_error", Some("request_too_large")),
            Self::TooSlow => ("invalid_request_error", Some("request_timeout")),
            Self::Overloaded { .. } => ("rate_limit_error", Some("server_overloaded")),
            Self::RateLimited { rate: LimitedRate::Requests, .. } => {
                ("requests", Some("rate_limit_exceeded"))
            }
            Self::RateLimited { rate: LimitedRate::Tokens, .. } => {
                ("tokens", Some("rate_limit_exceeded"))
            }
            Self::RateLimited { rate: LimitedRate::Quota, .. } => {
                ("insufficient_quota", Some("insufficient_quota"))
            }
            Self::Unavailable { .. } => ("server_error", Some("service_unavailable")),
            Self::Internal => ("server_error", Some("internal_error")),
            Self::BadGateway => ("server_error", Some("upstream_failed")),
        }
    }

    fn retry_after_s(self) -> Option<u64> {
        match self {
            Self::Overloaded { retry_after_s }
            | Self::RateLimited { retry_after_s, .. }
            | Self::Unavailable { retry_after_s } => Some(retry_after_s),
            _ => None,
        }
    }
}

/// Maximum bytes of an error message, so that the response is short whatever it quotes from a
/// request.
const MAX_MESSAGE_BYTES: usize = 1024;
/// Maximum bytes quoted from a request in a message.
const MAX_QUOTE_BYTES: usize = 80;

/// Returns `text` for quotation in a message, cut if it is long.
pub fn quoted(text: &str) -> Cow<'_, str> {
    cut(text.into(), MAX_QUOTE_BYTES)
}

fn cut(text: Cow<'_, str>, max_bytes: usize) -> Cow<'_, str> {
    match text.len() <= max_bytes {
        true => text,
        false => format!("{}...", &text[..text.floor_char_boundary(max_bytes)]).into(),
    }
}

impl ApiError {
    fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let message = cut(Cow::Owned(message.into()), MAX_MESSAGE_BYTES).into_owned();
        Self { kind, message, param: None, facts: None, foreign: None, is_of_engine: false }
    }

    /// 400: the request as a whole cannot be parsed.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidRequest, message)
    }

    /// 400: one parameter is wrong; `message` should say what is accepted.
    pub fn invalid_param(param: impl Into<String>, message: impl Into<String>) -> Self {
        let param = cut(Cow::Owned(param.into()), MAX_MESSAGE_BYTES).into_owned();
        Self { param: Some(param), ..Self::invalid(message) }
    }

    /// 400: the request's grammar or logit bias allows no further token, for the reason `why`. It
    /// may come in the middle of an answer; a retry would end in the same way.
    pub fn unsatisfiable(why: &str) -> Self {
        Self::invalid(format!("The answer cannot go on: {why}. Use a simpler schema or grammar."))
    }

    /// 400: the prompt leaves no room for a completion in the context.
    pub fn context_length(context: u32, prompt: usize, param: &str) -> Self {
        let message = format!(
            "This model's maximum context length is {context} tokens, but the prompt has {prompt}. \
             Shorten the prompt, or start the server with a larger --context."
        );
        Self::prompt_too_long(context, prompt as u64, message, param)
    }

    /// 400: the prompt exceeds the context, as was found before all of it was tokenized.
    pub fn context_exceeded(context: u32, param: &str) -> Self {
        let message = format!(
            "This model's maximum context length is {context} tokens, but the prompt has more. \
             Shorten the prompt, or start the server with a larger --context."
        );
        Self::prompt_too_long(context, 0, message, param)
    }

    /// 400: the prompt exceeds `most_bytes`, which is more than the context holds, however it is
    /// tokenized. The prompt's tokens are estimated to be `tokens`.
    pub fn context_bytes(context: u32, most_bytes: usize, tokens: u64, param: &str) -> Self {
        let message = format!(
            "This model's maximum context length is {context} tokens, but the prompt has more than \
             {most_bytes} bytes, the most that can fit. Shorten the prompt, or start the server \
             with a larger --context."
        );
        Self::prompt_too_long(context, tokens, message, param)
    }

    fn prompt_too_long(context: u32, tokens: u64, message: String, param: &str) -> Self {
        // An answer needs a place too, so a prompt as long as the context is too long.
        let maximum = u64::from(context).saturating_sub(1);
        let facts = Some(ErrorFacts::PromptTooLong { tokens: tokens.max(maximum + 1), maximum });
        let error = Self::new(ErrorKind::ContextLengthExceeded, message);
        Self { param: Some(param.into()), facts, ..error }
    }

    /// 400: `param` asks for a feature that this server lacks, which Anthropic's API refuses with
    /// `error_code`.
    pub fn lacking(param: &str, message: impl Into<String>, error_code: &'static str) -> Self {
        let facts = Some(ErrorFacts::Lacking { error_code });
        Self { facts, ..Self::invalid_param(param, message) }
    }

    /// 401: the API key is missing or wrong.
    pub fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unauthorized, message)
    }

    /// 403: the page in the browser is of another origin, which the operator does not allow.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Forbidden, message)
    }

    /// Creates an error for what only the keys of administrators may do.
    pub fn needs_admin(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NeedsAdmin, message)
    }

    /// 403: the id was chosen by the client, on a server where anyone could guess it.
    pub fn ids_need_keys() -> Self {
        let message = "Client-chosen ids are disabled here: anyone who can reach this server could \
                       guess them. Start it with API keys or on a loopback address, or use the id \
                       that the answer's headers give.";
        Self::new(ErrorKind::NeedsKeys, message)
    }

    /// 403: usage is counted by key, on a server with keys.
    pub fn usage_needs_keys() -> Self {
        let message = "This server has no API keys, and counts usage by key; /metrics has the \
                       counts of all requests. Start it with --api-key-file.";
        Self::new(ErrorKind::NeedsKeys, message)
    }

    /// 403: browser tokens can only be made on a server with keys.
    pub fn tokens_need_keys() -> Self {
        let message = "This server has no API keys: whoever reaches it may ask, and needs no token. \
                       Start it with --api-key-file.";
        Self::new(ErrorKind::NeedsKeys, message)
    }

    /// 403: the browser token does not allow this; only its API key does.
    pub fn beyond_token(method: &http::Method, path: &str) -> Self {
        let message =
            format!("A token is for asking; {method} {} needs the API key.", quoted(path));
        Self::new(ErrorKind::BeyondToken, message)
    }

    /// 403: the request of a browser token asks for its answer to be stored.
    pub fn store_beyond_token() -> Self {
        let message = "'store': a token is for asking; only its API key stores answers. Leave \
                       'store' out.";
        Self { param: Some("store".into()), ..Self::new(ErrorKind::BeyondToken, message) }
    }

    /// 403: a model is to be loaded or unloaded by a client that may not.
    pub fn needs_manager(what: &str) -> Self {
        let message = format!(
            "{what} concerns all clients: it needs a key with 'admin = true' or, on a server \
             without keys, a client on the same machine."
        );
        Self::forbidden(message)
    }

    /// 403: the request uses a host name that the operator does not allow.
    pub fn foreign_host(host: &str) -> Self {
        let message = format!(
            "This server does not answer to the name '{host}'. Use localhost, or start the server \
             with --allowed-host {host}."
        );
        Self::new(ErrorKind::ForeignHost, message)
    }

    /// 403: without keys clients cannot be told apart, so `what` is only for clients on this
    /// machine.
    pub fn needs_keys(what: &str) -> Self {
        let message = format!(
            "{what} only on a server with API keys, or on one that listens on a loopback address: \
             without keys, anyone could read them. Start the server with --api-key-file."
        );
        Self::new(ErrorKind::NeedsKeys, message)
    }

    /// 404: no stored object has this id, or it belongs to another key. The client cannot tell the
    /// difference.
    pub fn no_stored(what: &str, id: &str) -> Self {
        let message = format!(
            "There is no stored {what} '{}': it was not stored, has been deleted, or is too old.",
            quoted(id)
        );
        Self::new(ErrorKind::NotFound, message)
    }

    /// 404 if there are several models, or under `--strict-model`: the request names none of the
    /// `served` models.
    pub fn model_not_found<'a>(asked: &str, served: impl IntoIterator<Item = &'a str>) -> Self {
        let mut served = served.into_iter();
        let named: Vec<_> =
            served.by_ref().take(MOST_NAMED).map(|name| format!("'{}'", quoted(name))).collect();
        let (named, more) = (named.join(" or "), served.count());
        let more = match more {
            0 => String::new(),
            more => format!(" or one of {more} more that GET /v1/models lists"),
        };
        let asked = quoted(asked);
        let message = format!("This server does not serve the model '{asked}'. Use {named}{more}.");
        Self { param: Some("model".into()), ..Self::new(ErrorKind::ModelNotFound, message) }
    }

    /// 404: the server has no such path. `known` describes the existing ones.
    pub fn not_found(method: &http::Method, path: &str, known: &str) -> Self {
        let route = format!("{} {}", quoted(method.as_str()), quoted(path));
        Self::new(ErrorKind::NotFound, format!("{route} does not exist on this server. {known}"))
    }

    /// 404: the path belongs to an API that the operator has not turned on.
    pub fn not_offered(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, message)
    }

    /// 404: requests for the path are not passed on to the upstream server.
    pub fn not_passed_on(method: &http::Method, path: &str) -> Self {
        let route: String = format!("{method} {path}").chars().take(200).collect();
        let message = format!(
            "'{route}' is not passed on to the upstream server. Its operator can allow it with \
             --upstream-route."
        );
        Self::new(ErrorKind::NotFound, message)
    }

    /// 404: the resumable answer does not exist, the token is wrong, or the log does not hold that
    /// offset (S-5.2). The responses are identical, so that ids cannot be probed.
    pub fn no_stream() -> Self {
        let message = "There is no such stream: the id or token is wrong, the answer has been \
                       forgotten, or its log does not hold that offset. Send the request again.";
        Self::new(ErrorKind::NotFound, message)
    }

    /// 410: that part of a stream is no longer kept, or will never exist.
    pub fn gone(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Gone, message)
    }

    /// 400: the response that a request continues is not stored.
    pub fn no_previous_response(id: &str) -> Self {
        let message = format!(
            "The previous response '{}' was not found: it was not stored, was deleted, or is too \
             old. Send the conversation in 'input'.",
            quoted(id)
        );
        let param = Some("previous_response_id".into());
        Self { param, ..Self::new(ErrorKind::PreviousNotFound, message) }
    }

    /// Renames parameters for a client of another API: each pair is a part of a name in this API,
    /// and in the client's.
    pub fn renamed(mut self, names: &[(&str, &str)]) -> Self {
        if let Some(param) = &self.param {
            let replace = |name: String, (ours, theirs): &(&str, &str)| name.replace(ours, theirs);
            let renamed = names.iter().fold(param.clone(), replace);
            self.message = self.message.replace(&format!("'{param}'"), &format!("'{renamed}'"));
            self.param = Some(renamed);
        }
        self
    }

    /// Returns true if the prompt is longer than the context.
    pub fn is_context_length(&self) -> bool {
        self.kind == ErrorKind::ContextLengthExceeded
    }

    /// 404: this server does not offer QUIC (S-1.3).
    pub fn no_delivery() -> Self {
        Self::new(ErrorKind::NotFound, "This server does not serve QUIC. Use HTTP.")
    }

    /// 405: the path does not support the method.
    pub fn method_not_allowed(method: &http::Method, path: &str) -> Self {
        Self::new(
            ErrorKind::MethodNotAllowed,
            format!("{} does not support {}.", quoted(path), quoted(method.as_str())),
        )
    }

    /// 413: the body exceeds `limit_bytes`.
    pub fn too_large(limit_bytes: usize) -> Self {
        Self::new(
            ErrorKind::TooLarge,
            format!("The request body is larger than {limit_bytes} bytes. Send a shorter one."),
        )
    }

    /// Returns true if the request's body is too large.
    pub fn is_too_large(&self) -> bool {
        self.kind == ErrorKind::TooLarge
    }

    /// 408 for a body that arrived too slowly, otherwise 400: the body could not be received.
    pub fn body(error: &(dyn std::error::Error + 'static)) -> Self {
        let mut causes = std::iter::successors(Some(error), |error| error.source());
        match causes.any(|cause| cause.is::<SlowBody>()) {
            true => Self::new(ErrorKind::TooSlow, SlowBody.to_string()),
            false => Self::invalid(format!("The request body could not be received: {error}.")),
        }
    }

    /// 429: the server has as much work as its configuration allows.
    pub fn overloaded(message: impl Into<String>, retry_after_s: u64) -> Self {
        Self::new(ErrorKind::Overloaded { retry_after_s }, message)
    }

    /// 429: the client has reached its rate limit.
    pub fn rate_limited(message: impl Into<String>, rate: LimitedRate, retry_after_s: u64) -> Self {
        Self::new(ErrorKind::RateLimited { rate, retry_after_s }, message)
    }

    /// 503: the engine's process or stages of a split model are lost, because of `why`.
    pub fn engine_away(why: &str) -> Self {
        let message = format!("The engine is not available: {why}.");
        Self { is_of_engine: true, ..Self::unavailable(message, OUTAGE_RETRY_S) }
    }

    /// 500: the engine has failed, and the server ends.
    pub fn engine_failed(message: impl Into<String>) -> Self {
        Self { is_of_engine: true, ..Self::internal(message) }
    }

    /// Returns true if this server's engine is at fault: it has failed, or is lost.
    pub const fn is_of_engine(&self) -> bool {
        self.is_of_engine
    }

    /// 503: the model is loading, the engine is not available, or the server is shutting down.
    pub fn unavailable(message: impl Into<String>, retry_after_s: u64) -> Self {
        Self::new(ErrorKind::Unavailable { retry_after_s }, message)
    }

    /// 500: the engine failed, through no fault of the client.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }

    /// 502: the upstream server cannot be reached, or sent an invalid response.
    pub fn bad_gateway(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::BadGateway, message)
    }

    /// 503: the upstream server is down; clients may retry.
    pub fn upstream_down(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable { retry_after_s: UPSTREAM_RETRY_S }, message)
    }

    /// Returns an upstream server's error response, with its status and body.
    pub fn passed_on(head: &http::response::Parts, body: Bytes) -> Self {
        let message = message_in(&body)
            .unwrap_or_else(|| format!("The upstream server responded with {}.", head.status));
        let header = |name: header::HeaderName| head.headers.get(name).cloned();
        let foreign = Foreign {
            status: head.status,
            content_type: header(header::CONTENT_TYPE),
            retry_after: header(header::RETRY_AFTER),
            body,
        };
        Self { foreign: Some(Box::new(foreign)), ..Self::bad_gateway(message) }
    }

    /// Returns the error that an upstream server reports inside a stream, from its `error` object.
    pub fn of_upstream(error: &serde_json::Value) -> Self {
        let body = Bytes::from(json!({"error": error}).to_string());
        let message = message_in(&body).unwrap_or_else(|| error.to_string());
        let code = error.get("code").and_then(serde_json::Value::as_u64);
        let code = code.filter(|code| (400..600).contains(code));
        let status = code.and_then(|code| StatusCode::from_u16(code as u16).ok());
        let foreign = Foreign {
            status: status.unwrap_or(StatusCode::BAD_GATEWAY),
            content_type: Some(HeaderValue::from_static("application/json")),
            retry_after: None,
            body,
        };
        Self { foreign: Some(Box::new(foreign)), ..Self::bad_gateway(message) }
    }

    /// Returns the response body as JSON, in OpenAI's form.
    pub fn json(&self) -> serde_json::Value {
        let foreign = self.foreign.as_ref();
        // Not every upstream's error body is JSON; a stream's error event has to be.
        if let Some(Ok(json)) = foreign.map(|foreign| serde_json::from_slice(&foreign.body)) {
            return json;
        }
        let (kind, code) = self.kind.names();
        json!({"error": {"message": self.message, "type": kind, "param": self.param, "code": code}})
    }

    /// Returns the status, as a number for logs and metrics.
    pub fn status(&self) -> u16 {
        self.foreign.as_ref().map_or(self.kind.status(), |foreign| foreign.status).as_u16()
    }

    /// Returns OpenAI's machine-readable error code, if it defines one.
    pub fn code(&self) -> Option<&'static str> {
        self.kind.names().1
    }

    /// Returns the facts that an API may state in its own words. Those of an upstream server's
    /// error are read from its message.
    pub fn facts(&self) -> Option<ErrorFacts> {
        self.facts.or_else(|| overflow_in(&self.message).filter(|_| self.foreign.is_some()))
    }

    /// Returns the error's code, or without one its type, for logs.
    pub fn label(&self) -> &'static str {
        let (kind, code) = self.kind.names();
        code.unwrap_or(kind)
    }

    /// Returns the retry delay in seconds; `None` if a retry would fail in the same way.
    pub fn retry_after_s(&self) -> Option<u64> {
        self.kind.retry_after_s()
    }
}

/// Error: a request's body did not arrive in time.
#[derive(Debug, thiserror::Error)]
#[error("The request body came too slowly. Send it faster, or raise --request-timeout-s.")]
pub struct SlowBody;

/// Status for a client that already has the requested version.
pub const NOT_MODIFIED: StatusCode = StatusCode::NOT_MODIFIED;
/// Status for a WebTransport session at an unknown path.
pub const NOT_FOUND: StatusCode = StatusCode::NOT_FOUND;
/// Status for a WebTransport session from a page, or to a name, that is not allowed.
pub const FORBIDDEN: StatusCode = StatusCode::FORBIDDEN;

/// 204: success without a body.
pub fn no_content() -> Response {
    StatusCode::NO_CONTENT.into_response()
}

/// 304: the client already has the requested version.
pub fn not_modified() -> Response {
    StatusCode::NOT_MODIFIED.into_response()
}

/// Returns the human-readable message in an error body, in any of the forms that servers use.
fn message_in(body: &[u8]) -> Option<String> {
    let json: serde_json::Value = serde_json::from_slice(body).ok()?;
    let found = ["/error/message", "/error", "/message", "/detail"];
    let text = found.iter().find_map(|path| json.pointer(path)?.as_str())?;
    // Some servers put whole stack traces here; this goes into logs and event streams.
    Some(text.chars().take(500).collect())
}

/// Returns the token counts in an upstream server's `message` about a prompt that is too long, in
/// the words of OpenAI, vLLM or this server: "maximum context length is 4096 tokens", followed by
/// the prompt's count.
fn overflow_in(message: &str) -> Option<ErrorFacts> {
    let (_, rest) = message.split_once("maximum context length is ")?;
    // Of a prompt that fits and an answer that does not, another error tells.
    if rest.contains("completion") {
        return None;
    }
    let mut numbers = rest.split(|c: char| !c.is_ascii_digit()).filter_map(|it| it.parse().ok());
    let (maximum, tokens): (u64, u64) = (numbers.next()?, numbers.next()?);
    (tokens > maximum).then_some(ErrorFacts::PromptTooLong { tokens, maximum })
}

impl Foreign {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.body));
        *response.status_mut() = self.status;
        let named =
            [(header::CONTENT_TYPE, self.content_type), (header::RETRY_AFTER, self.retry_after)];
        for (name, value) in named {
            value.map(|value| response.headers_mut().insert(name, value));
        }
        confine(response.headers_mut());
        response
    }
}

impl IntoResponse for ApiError {
    fn into_response(mut self) -> Response {
        // For whoever writes it anew, in the words of the API that was asked.
        let known = self.clone();
        if let Some(foreign) = self.foreign.take() {
            let mut response = foreign.into_response();
            response.extensions_mut().insert(known);
            return response;
        }
        let mut response = Response::new(Body::from(self.json().to_string()));
        *response.status_mut() = self.kind.status();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.kind.retry_after_s() {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.kind == ErrorKind::Unauthorized {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response.extensions_mut().insert(known);
        response
    }
}
