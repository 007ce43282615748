//! The proxy's responses to local requests: streaming completions use the delivery protocol,
//! everything else the tunnel or plain HTTP.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::{Body, to_bytes};
use axum::extract::{Request as LocalRequest, State};
use axum::response::Response;
use futures_util::stream;
use http::{HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use loquent_client::{
    Answer, AnswerHandle, Asked, Client, ClientError, ID_HEADER, IGNORED_HEADER, Reply, Request,
    TOKEN_HEADER,
};
use loquent_openai::headers::{CREDENTIALS, authorization, bearer, end_to_end};
use loquent_server::Telemetry;
use serde::Deserialize;

use super::access::Access;
use super::refusal::refuse;
use super::relay::AnswerRelay;
use super::resume_store::ResumeStore;
use super::trace::ProxyTrace;

/// Time limit for a request's body to arrive.
const BODY_LIMIT: Duration = Duration::from_secs(60);

/// State shared by all local requests.
pub struct Proxy {
    /// Client of the server.
    pub client: Client,
    /// Answers in progress.
    pub store: Arc<ResumeStore>,
    /// Destination of spans, if any.
    pub telemetry: Option<Arc<Telemetry>>,
    /// True if the proxy's key replaces the keys of local clients.
    pub own_key: bool,
    /// Maximum size of a request body, in bytes.
    pub max_request_bytes: usize,
    /// Access rules for local requests.
    pub access: Access,
}

/// Handles one local request.
pub async fn handle(State(proxy): State<Arc<Proxy>>, request: LocalRequest) -> Response {
    if let Some(refusal) = proxy.access.refuse(request.headers()) {
        return refusal;
    }
    let mut request = match proxy.read(request).await {
        Ok(request) => request,
        Err(refusal) => return refusal,
    };
    let kind = proxy.kind(&request);
    let url = proxy.client.url();
    let trace = ProxyTrace::begin(proxy.telemetry.as_ref(), url, &mut request);
    let outcome = match kind {
        RequestKind::Resume(handle, from) => {
            proxy.client.resume(handle, from).await.map(Asked::Answer)
        }
        RequestKind::Answer { .. } => proxy.client.ask(&request).await,
        RequestKind::Other => proxy.client.request(&request).await.map(Asked::Reply),
    };
    match outcome {
        Ok(Asked::Answer(answer)) => proxy.stream(answer, kind.is_resumable(), trace),
        Ok(Asked::Reply(reply)) => pass_on(reply, trace),
        Err(error) => {
            trace.fail(&error);
            proxy.refusal(&error)
        }
    }
}

/// Kind of a local request.
enum RequestKind {
    Answer { resumable: bool },
    Resume(AnswerHandle, u64),
    Other,
}

impl RequestKind {
    /// Returns true if the answer outlives its reader.
    fn is_resumable(&self) -> bool {
        matches!(self, Self::Resume(..) | Self::Answer { resumable: true })
    }
}

impl Proxy {
    async fn read(&self, request: LocalRequest) -> Result<Request, Response> {
        let (head, body) = request.into_parts();
        let limit = self.max_request_bytes;
        let body = tokio::time::timeout(BODY_LIMIT, to_bytes(body, limit)).await.map_err(|_| {
            let message = "The request's body takes too long to arrive.";
            refuse(StatusCode::REQUEST_TIMEOUT, message, "request_timeout")
        })?;
        let body = body.map_err(|_| {
            let message = format!("The request's body has more than {limit} bytes.");
            refuse(StatusCode::PAYLOAD_TOO_LARGE, &message, "request_too_large")
        })?;
        let given = authorization(&head.headers);
        let key = given.as_ref().and_then(|value| str::from_utf8(bearer(value.as_bytes())?).ok());
        // A local key is none of the server's business.
        let is_for_server = !self.own_key && self.access.local_key.is_none();
        let key = key.filter(|_| is_for_server).map(str::to_owned);
        let mut headers = end_to_end(&head.headers);
        if !is_for_server {
            for name in CREDENTIALS {
                headers.remove(name);
            }
        }
        // The proxy has checked the origin and sends its own key. The server would compare
        // either with its own name and keys, and refuse. Cookies of this host are those of other
        // programs on other ports.
        for name in
            [header::AUTHORIZATION, header::ORIGIN, header::EXPECT, header::COOKIE, header::REFERER]
        {
            headers.remove(name);
        }
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        Ok(Request { method: head.method, path, headers, key, body })
    }

    fn kind(&self, request: &Request) -> RequestKind {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Asks {
            stream: Option<bool>,
            resumable: Option<bool>,
        }
        let path = request.path.split('?').next().unwrap_or_default();
        match (&request.method, path) {
            (&Method::POST, "/v1/chat/completions" | "/v1/completions") => {
                let asks: Asks = serde_json::from_slice(&request.body).unwrap_or_default();
                match asks.stream {
                    Some(true) => {
                        RequestKind::Answer { resumable: asks.resumable.unwrap_or(false) }
                    }
                    _ => RequestKind::Other,
                }
            }
            (&Method::GET, path) => match path.strip_prefix("/v1/streams/") {
                Some(id) => self.resume_kind(id, request).unwrap_or(RequestKind::Other),
                None => RequestKind::Other,
            },
            _ => RequestKind::Other,
        }
    }

    /// Returns a resume if the id and token are complete (S-5.2); without a token, if this proxy
    /// itself has relayed the answer.
    fn resume_kind(&self, id: &str, request: &Request) -> Option<RequestKind> {
        let uri: Uri = request.path.parse().ok()?;
        let header = |name: &str| request.headers.get(name)?.to_str().ok();
        let query = |wanted: &str| {
            let mut fields = uri.query()?.split('&').filter_map(|field| field.split_once('='));
            fields.find(|(name, _)| *name == wanted).map(|(_, value)| value)
        };
        let handle = match header(TOKEN_HEADER).or_else(|| query("token")) {
            Some(token) => AnswerHandle::parse(id, token)?,
            None => self.store.handle(id)?,
        };
        let from = match header("last-event-id").or_else(|| query("from")) {
            Some(from) => from.trim().parse().ok()?,
            None => 0,
        };
        Some(RequestKind::Resume(handle, from))
    }

    /// Returns a response with the head of an answer's event stream, and the answer as its body.
    fn stream(&self, answer: Answer, resumable: bool, trace: ProxyTrace) -> Response {
        let handle = answer.handle();
        let entry = self.store.begin(handle, SystemTime::now());
        let is_for_client = |name: &HeaderName| {
            *name == IGNORED_HEADER || name.as_str().starts_with("x-ratelimit-")
        };
        let passed: Vec<_> = (answer.headers().iter())
            .filter(|(name, _)| is_for_client(name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        let relay = AnswerRelay::new(answer, entry, resumable, trace);
        let mut response = Response::new(relay.into_body());
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
        headers.extend(passed);
        for (name, digits) in [(ID_HEADER, handle.id_hex()), (TOKEN_HEADER, handle.token_hex())] {
            headers.insert(name, HeaderValue::try_from(digits).expect("hex digits"));
        }
        response
    }

    fn refusal(&self, error: &ClientError) -> Response {
        let server = self.client.url();
        match error {
            ClientError::Gone => {
                let message = "The server has no such answer (any more), or the token is wrong.";
                refuse(StatusCode::NOT_FOUND, message, "not_found")
            }
            ClientError::Refused { status, message, .. } => {
                let status = StatusCode::from_u16(*status).unwrap_or(StatusCode::BAD_GATEWAY);
                refuse(status, message, "refused")
            }
            ClientError::Connect { .. } => {
                let message = format!("The server {server} cannot be reached: {error}.");
                refuse(StatusCode::BAD_GATEWAY, &message, "server_unreachable")
            }
            error => {
                let message = format!("The server {server} did not answer: {error}.");
                refuse(StatusCode::BAD_GATEWAY, &message, "server_unreachable")
            }
        }
    }
}

/// Passes the server's response on unchanged. A body that breaks off breaks the local connection.
fn pass_on(mut reply: Reply, trace: ProxyTrace) -> Response {
    trace.note_response(reply.status, reply.transport());
    let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::BAD_GATEWAY);
    let mut headers = std::mem::take(&mut reply.headers);
    headers.remove(header::SET_COOKIE);
    let body = stream::unfold(Some((reply, trace)), |passing| async {
        let (mut reply, trace) = passing?;
        match reply.piece().await {
            Ok(Some(piece)) => Some((Ok(piece), Some((reply, trace)))),
            Ok(None) => None,
            Err(error) => {
                trace.note_broken();
                // hyper flushes what it has when the body is pending; without this, the last
                // piece would be lost with the connection.
                tokio::task::yield_now().await;
                Some((Err(error), None))
            }
        }
    });
    let mut response = Response::new(Body::from_stream(body));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}
