//! Sends one request to the servers of an upstream in turn, until one of them answers.
//!
//! If a server is unreachable or busy, or breaks off before its answer has begun, the request moves
//! to the next server, and after the last one to the upstream's fallbacks. A request that may have
//! reached a server is sent at most once more: it may have crashed that server. The rest of an
//! answer that has begun waits some seconds for a server if none accepts requests.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderMap};
use http::{HeaderValue, Method, Request as HttpRequest};
use loquent_openai::http::HttpResponse;
use loquent_proto::json::put_string;
use serde_json::{Map, Value};

use super::balancer::ServerSet;
use super::breaker::RequestVerdict;
use super::continuation::{Obstacle, Rest};
use super::headers;
use super::models::{lacks_model, with_model};
use super::pool::{Pool, ServerConstraints, UpstreamLease, down};
use super::server::{self, Unanswered};
use super::trace::{AskTrace, RequestTrace};
use loquent_serving::error::{ApiError, ServerSign};

/// Maximum number of servers that may receive a request without responding.
const MAX_UNHEARD: u32 = 2;
/// Maximum number of times that an answer is continued at another server.
const MAX_CONTINUED: u32 = 4;
/// Maximum time from the end of an answer's server until another one goes on. Servers that are busy
/// beside each other fail their health checks for some seconds, and llama-server restarts in as
/// many.
const CONTINUATION_LIMIT: Duration = Duration::from_secs(10);

/// A request to any server of an upstream.
pub struct OutgoingRequest {
    /// The method.
    pub method: Method,
    /// The path below the server's base URL, with its query.
    pub path: String,
    /// Headers of the client to forward.
    pub headers: HeaderMap,
    /// The body.
    pub body: OutgoingBody,
    /// The client's `Authorization`.
    pub own_key: Option<HeaderValue>,
    /// Constraints on the server that may take this request.
    pub wanted: ServerConstraints,
    /// Trace context of the request.
    pub trace: RequestTrace,
}

/// Body of a request. The model name in it is replaced by each server's own name for the model.
pub enum OutgoingBody {
    /// Members of a JSON object sent to a model.
    Question(Map<String, Value>),
    /// Text of a JSON object sent to a model.
    QuestionText(Bytes),
    /// Anything else.
    Other(Bytes),
}

/// A request and the servers it was sent to.
pub struct Dispatch {
    request: OutgoingRequest,
    /// The upstream, followed by its fallbacks.
    chain: Vec<Arc<Pool>>,
    /// Index in `chain` of the current upstream.
    at: usize,
    /// Servers that were already tried, of each upstream in `chain`.
    tried: Vec<ServerSet>,
    /// Server that was tried last.
    latest: Option<(Arc<Pool>, usize)>,
    /// Number of servers that may have received the request and did not answer.
    unheard: u32,
    /// Latest error.
    failure: Option<ApiError>,
    /// Number of servers tried.
    asked: u32,
    /// Why the request moved on from the latest server.
    moved_because: String,
    /// Members of the request as it came, once an answer to it has been continued.
    original: Option<Map<String, Value>>,
    /// Number of times that the answer was continued.
    continued: u32,
    /// Time until which the rest of an answer waits for a server, by the upstream's clock.
    waits_until: Duration,
}

impl Dispatch {
    /// Creates a dispatch of `request` to `pool`. Sends nothing yet.
    pub fn new(pool: &Arc<Pool>, request: OutgoingRequest) -> Self {
        let chain = pool.chain();
        Self {
            request,
            at: 0,
            tried: vec![ServerSet::default(); chain.len()],
            chain,
            latest: None,
            unheard: 0,
            failure: None,
            asked: 0,
            moved_because: String::new(),
            original: None,
            continued: 0,
            waits_until: Duration::ZERO,
        }
    }

    /// Makes the request one for the rest of its answer, which the latest server has broken off
    /// because of `error`; `rest` makes the members of the one from those of the other. Returns
    /// false if nothing is left to request.
    ///
    /// # Errors
    /// The reason why the answer cannot be continued.
    pub fn continue_elsewhere(
        &mut self,
        error: &ApiError,
        rest: impl FnOnce(&Map<String, Value>) -> Result<Rest, Obstacle>,
    ) -> Result<bool, Obstacle> {
        if self.continued == MAX_CONTINUED {
            return Err(Obstacle::TooOften);
        }
        let OutgoingBody::Question(current) = &mut self.request.body else {
            return Err(Obstacle::Request);
        };
        let members = match rest(self.original.as_ref().unwrap_or(current))? {
            Rest::Request(members) => members,
            Rest::Nothing => return Ok(false),
        };
        let replaced = std::mem::replace(current, members);
        self.original.get_or_insert(replaced);
        self.continued += 1;
        self.moved_because = error.to_string();
        // If there is no server, that is the reason why the answer ends.
        self.failure = None;
        // Any other server may have come back meanwhile.
        (self.at, self.unheard) = (0, 0);
        self.tried.fill(ServerSet::default());
        if let Some((latest, server)) = &self.latest
            && let Some(at) = self.chain.iter().position(|pool| Arc::ptr_eq(pool, latest))
        {
            self.tried[at].insert(*server);
        }
        self.waits_until = self.chain[0].clock.now() + CONTINUATION_LIMIT;
        Ok(true)
    }

    /// Returns the members of the request as it came, if its answer has been continued.
    pub fn original(&self) -> Option<&Map<String, Value>> {
        self.original.as_ref()
    }

    /// Returns the model of the current upstream if it is a fallback.
    pub fn fallback(&self) -> Option<&str> {
        (self.at > 0).then(|| self.chain[self.at].label.as_str())
    }

    /// Records that the latest server broke off before its answer began.
    pub fn note_unheard(&mut self, error: ApiError) {
        self.unheard += 1;
        self.moved_because = error.to_string();
        self.failure = Some(error);
    }

    /// Sends the request to one server after another, until one responds.
    ///
    /// # Errors
    /// The latest error, or 503 if no server could be tried.
    pub async fn send(&mut self) -> Result<(HttpResponse, UpstreamLease), ApiError> {
        let mut place = self.take_place().await?;
        loop {
            let trace = self.trace_at(&place);
            let request = self.request_for(&place, &trace).await;
            place.trace(trace);
            let silence_limit = place.pool().silence_limit;
            let kept = match place.server().send(request, silence_limit).await {
                Ok(response) => {
                    place.note_status(response.status().as_u16());
                    self.moved_because = response.status().to_string();
                    if let Some(error) = place.refused_key(&response) {
                        self.note_failed(place, error);
                        None
                    } else {
                        match ServerSign::of(response.status()) {
                            ServerSign::Answers
                            | ServerSign::LacksPath
                            | ServerSign::RefusesKey => {
                                return Ok((response, place));
                            }
                            ServerSign::Absent => place.judge(RequestVerdict::Fails),
                            ServerSign::LimitsRate | ServerSign::Busy => place.pause(&response),
                        }
                        // Two that hold a place while they wait for the other's wait for ever.
                        place.give_back();
                        Some((response, place))
                    }
                }
                Err(failed) => {
                    self.unheard += u32::from(matches!(failed, Unanswered::Unheard(_)));
                    self.note_failed(place, failed.into_error());
                    None
                }
            };
            match (self.take_place().await, kept) {
                (Ok(next), _) => place = next,
                (Err(_), Some(kept)) => return Ok(kept),
                (Err(error), None) => return Err(error),
            }
        }
    }

    /// Records that the server of `place` has failed with `error`, and gives the place back: this
    /// request may have to wait for another one.
    fn note_failed(&mut self, place: UpstreamLease, error: ApiError) {
        place.judge(RequestVerdict::Fails);
        self.moved_because = error.to_string();
        place.note_failure(&self.moved_because);
        self.failure = Some(error);
    }

    /// Takes a place at the next server.
    async fn take_place(&mut self) -> Result<UpstreamLease, ApiError> {
        if let Some(failure) = self.failure.as_ref().filter(|_| self.unheard >= MAX_UNHEARD) {
            return Err(failure.clone());
        }
        loop {
            let pool = &self.chain[self.at];
            match pool.take_place(self.request.wanted, self.tried[self.at]).await {
                Ok(place) => {
                    self.tried[self.at].insert(place.index());
                    let latest = self.latest.replace((pool.clone(), place.index()));
                    latest.into_iter().for_each(|(pool, server)| pool.note_moved(server));
                    return Ok(place);
                }
                Err(_) if self.at + 1 < self.chain.len() => self.at += 1,
                Err(none) => {
                    let Some(left) = self.wait_left() else {
                        return Err(self.failure.clone().unwrap_or_else(|| down(none)));
                    };
                    pool.wait_for_server(none.retry_in.min(left)).await;
                    self.at = 0;
                }
            }
        }
    }

    /// Returns for how long the request still waits for a server; `None` if it is not for the rest
    /// of an answer, or there is no server that was not tried.
    fn wait_left(&self) -> Option<Duration> {
        let left = self.waits_until.checked_sub(self.chain[0].clock.now())?;
        let mut upstreams = self.chain.iter().zip(&self.tried);
        upstreams.any(|(pool, tried)| tried.count() < pool.servers.len()).then_some(left)
    }

    /// Begins the span of the attempt at the server of `place`.
    fn trace_at(&mut self, place: &UpstreamLease) -> AskTrace {
        let OutgoingRequest { method, path, trace, .. } = &self.request;
        let trace = trace.ask(method, path, place.server());
        if self.asked > 0 {
            trace.note_retry(self.asked, &self.moved_because);
        }
        self.asked += 1;
        trace
    }

    /// Builds the request for the server of `place`.
    async fn request_for(&self, place: &UpstreamLease, trace: &AskTrace) -> HttpRequest<Bytes> {
        let (pool, request) = (place.pool(), &self.request);
        let body = self.body_for(place).await;
        let key = pool.key(request.own_key.as_ref());
        let mut http = server::request(request.method.clone(), &request.path, body, key);
        let headers = headers::for_upstream(&request.headers, pool.has_clients_keys());
        http.headers_mut().extend(headers);
        trace.put(http.headers_mut());
        if !matches!(request.body, OutgoingBody::Other(_)) {
            let json = HeaderValue::from_static("application/json");
            http.headers_mut().entry(header::CONTENT_TYPE).or_insert(json);
        }
        http
    }

    async fn body_for(&self, place: &UpstreamLease) -> Bytes {
        let is_named = place.pool().name.is_some();
        match &self.request.body {
            OutgoingBody::Other(bytes) => bytes.clone(),
            OutgoingBody::Question(body) => {
                let is_asked = body.get("model").is_some_and(|model| !model.is_null());
                let model = self.model_for(place, is_named || !is_asked).await;
                question(body, model.as_deref()).into()
            }
            OutgoingBody::QuestionText(text) => {
                match self.model_for(place, is_named || lacks_model(text)).await {
                    Some(model) => with_model(text, &model).unwrap_or_else(|| text.clone()),
                    None => text.clone(),
                }
            }
        }
    }

    /// Returns the name of the model at the server of `place`; `None` if the request keeps its own.
    async fn model_for(&self, place: &UpstreamLease, anew: bool) -> Option<String> {
        if !anew {
            return None;
        }
        let pool = place.pool();
        let key = pool.key(self.request.own_key.as_ref());
        place.server().model_for(pool.clock, key, pool.name.as_deref()).await
    }
}

/// Returns the JSON text of `body`, with `model` in place of any model that it names. Avoids
/// copying the members: a conversation may be long, and may be sent to several servers.
fn question(body: &Map<String, Value>, model: Option<&str>) -> Vec<u8> {
    let named = model.map(|model| ("model", Value::from(model)));
    let others = body.iter().filter(|(name, _)| model.is_none() || *name != "model");
    let others = others.map(|(name, value)| (name.as_str(), value));
    let members = named.iter().map(|(name, value)| (*name, value)).chain(others);
    let mut text = Vec::new();
    for (name, value) in members {
        text.push(if text.is_empty() { b'{' } else { b',' });
        put_string(&mut text, name);
        text.push(b':');
        // Writing to memory does not fail.
        let _ = serde_json::to_writer(&mut text, value);
    }
    if text.is_empty() {
        text.push(b'{');
    }
    text.push(b'}');
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_question_is_written_with_the_name_that_a_server_knows() {
        let written = |body: Value, model| {
            serde_json::from_slice::<Value>(&question(body.as_object().unwrap(), model)).unwrap()
        };
        let body = json!({"stream": true, "model": "ours", "x\"y": [1, null]});
        assert_eq!(written(body.clone(), None), body);
        let theirs = json!({"model": "theirs", "stream": true, "x\"y": [1, null]});
        assert_eq!(written(body, Some("theirs")), theirs);
        assert_eq!(written(json!({}), None), json!({}));
        assert_eq!(written(json!({"model": null}), Some("m")), json!({"model": "m"}));
    }
}
