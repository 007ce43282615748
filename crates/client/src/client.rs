//! A client of one server: finds out whether QUIC gets through, keeps one connection for
//! everything, and goes by HTTP where it does not.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method};
use loquent_openai::BaseUrl;
use loquent_openai::http::{HttpClient, HttpResponse, bearer, json_request};
use loquent_proto::headers::{IGNORED_HEADER, REPEAT_HEADER, TOKEN_HEADER};
use loquent_proto::{AnswerHandle, Micros, ReceiverConfig};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::answer::{Answer, Asked, Path, SsePath, ask_by_quic, handle_of};
use crate::link::Link;
use crate::memory::{Known, Memory, Transport};
use crate::offer::{self, Offer};
use crate::reply::Reply;
use crate::{ClientError, network};

/// How a [`Client`] works. [`Config::new`] has the defaults.
#[derive(Debug, Clone)]
pub struct Config {
    /// The server's URL; a final `/v1` makes no difference.
    pub url: String,
    /// Key for requests that bring none of their own.
    pub api_key: Option<String>,
    /// Try QUIC. Default yes.
    pub quic: bool,
    /// How long HTTP waits for QUIC. Default 500 ms.
    pub head_start: Duration,
    /// How long a lost answer is tried for. Default 90 s: longer than servers keep it.
    pub resume_limit: Duration,
    /// Folder of the file that remembers servers; none: this process alone.
    pub memory: Option<PathBuf>,
    /// How answers by QUIC are received and paced.
    pub receiver: ReceiverConfig,
    /// Tells which network this machine is on; when that changes, event streams are
    /// resumed at once. Default: the address from which packets leave.
    pub network: fn() -> Option<IpAddr>,
}

impl Config {
    /// The defaults for the server at `url`.
    pub fn new(url: impl Into<String>) -> Config {
        Config {
            url: url.into(),
            api_key: None,
            quic: true,
            head_start: Duration::from_millis(500),
            resume_limit: Duration::from_secs(90),
            memory: None,
            receiver: ReceiverConfig::with_another_path(),
            network: network::source_address,
        }
    }
}

/// One request, for whichever transport.
#[derive(Debug, Clone)]
pub struct Request {
    /// HTTP method.
    pub method: Method,
    /// Path and query; begins with `/`.
    pub path: String,
    /// Headers, those of one connection left out (see [`crate::reply::end_to_end`]).
    pub headers: HeaderMap,
    /// Key instead of the client's own.
    pub key: Option<String>,
    /// Body.
    pub body: Bytes,
}

impl Request {
    /// A request with a JSON body, or none.
    pub fn new(method: Method, path: impl Into<String>, body: impl Into<Bytes>) -> Request {
        let (body, mut headers) = (body.into(), HeaderMap::new());
        if !body.is_empty() {
            headers.insert("content-type", HeaderValue::from_static("application/json"));
        }
        Request { method, path: path.into(), headers, key: None, body }
    }
}

impl Request {
    /// The same with a key of its own, unless its owner gave it one.
    fn repeatable(&self) -> Request {
        let mut request = self.clone();
        let random: u128 = rand::random();
        request.headers.entry(REPEAT_HEADER).or_insert_with(|| {
            HeaderValue::try_from(format!("{random:032x}")).expect("hex digits")
        });
        request
    }
}

/// A client of one server. Cheap to clone; clones share its connections.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    http: HttpClient,
    url: String,
    host: String,
    config: Config,
    memory: Memory,
    dialing: Mutex<Dialing>,
    /// What the server said of its delivery; held while it is asked.
    offer: tokio::sync::Mutex<Option<Option<Offer>>>,
    /// Counts connections that came up.
    link_ups: watch::Sender<u64>,
    /// Counts answers whose task runs.
    answers: watch::Sender<usize>,
    started: Instant,
}

/// Where the QUIC connection stands.
#[derive(Default)]
struct Dialing {
    state: Dial,
    /// Attempts that failed since the last one that did not.
    failures: u32,
}

#[derive(Default)]
enum Dial {
    /// None yet, or the last one is gone.
    #[default]
    Down,
    /// None before that time: it was tried in vain.
    Resting(Instant),
    /// Being made; the channel closes with the attempt.
    UnderWay(watch::Receiver<()>),
    /// There.
    Up(Link),
}

/// Pause after the first failed attempt; twice as long after each further one.
const REST: Duration = Duration::from_secs(10);
/// Longest pause.
const MAX_REST: Duration = Duration::from_secs(300);
/// How long the last packets of a connection may take to leave.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(200);
/// How long saying that an answer is not wanted may take.
const FORGET_TIMEOUT: Duration = Duration::from_secs(5);

/// An answer's task runs for as long as this is there.
pub(crate) struct Busy(Client);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.0.answers.send_modify(|count| *count -= 1);
    }
}

/// Tells when a QUIC connection comes up.
pub(crate) struct LinkUp(watch::Receiver<u64>);

impl LinkUp {
    /// Waits for the next connection to come up.
    pub(crate) async fn came_up(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

impl Client {
    /// A client of the server that `config` names. Nothing is sent yet.
    ///
    /// # Errors
    /// A URL or key that cannot be used, or TLS that cannot be set up.
    pub fn new(config: Config) -> Result<Client, ClientError> {
        let base = BaseUrl::parse(&config.url)?;
        let http = HttpClient::new(base.clone(), config.api_key.as_deref())?;
        Ok(Client(Arc::new(Inner {
            http,
            url: base.to_string(),
            host: base.host().to_owned(),
            memory: Memory::open(config.memory.as_deref()),
            config,
            dialing: Mutex::default(),
            offer: tokio::sync::Mutex::new(None),
            link_ups: watch::Sender::new(0),
            answers: watch::Sender::new(0),
            started: Instant::now(),
        })))
    }

    /// The plain HTTP client within.
    pub fn http(&self) -> &HttpClient {
        &self.0.http
    }

    /// The server's URL, without a final `/v1`.
    pub fn url(&self) -> &str {
        &self.0.url
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// The way that requests go now.
    pub fn transport(&self) -> Transport {
        match &self.dialing().state {
            Dial::Up(link) if link.is_open() => Transport::Quic,
            _ => Transport::Http,
        }
    }

    /// Connects by QUIC ahead of the first request, waiting at most the head start.
    pub async fn warm_up(&self) -> Transport {
        self.link().await;
        self.transport()
    }

    /// Asks for an answer: a `POST` of a completion with `"stream": true`. By QUIC if that
    /// has its connection within the head start; else, and if that connection dies before
    /// the server has answered, by HTTP. A key tells the server that this is the same
    /// question, so that it does the work once (S-4.9).
    ///
    /// # Errors
    /// Why the server cannot be reached. Its refusal is a [`Reply`].
    pub async fn ask(&self, request: &Request) -> Result<Asked, ClientError> {
        let repeatable = request.repeatable();
        if let Some(link) = self.link().await {
            match ask_by_quic(self, &link, &repeatable).await {
                Ok(asked) => return Ok(asked),
                Err(error) => tracing::debug!("asking by QUIC: {error}"),
            }
        }
        match self.offer(false).await? {
            Some(_) => self.ask_by_http(repeatable, true).await,
            None => self.ask_by_http(request.clone(), false).await,
        }
    }

    async fn ask_by_http(
        &self,
        mut request: Request,
        resumable: bool,
    ) -> Result<Asked, ClientError> {
        let body = if resumable { with_resumable(&request.body) } else { request.body.clone() };
        // Events are read here, not by whoever can unpack them.
        request.headers.remove("accept-encoding");
        let response = self.send_by_http(&request, body).await?;
        match handle_of(response.headers()) {
            Some(handle) if response.status().as_u16() == 200 && resumable => {
                let ignored = response.headers().get(IGNORED_HEADER);
                let ignored = ignored.and_then(|names| Some(names.to_str().ok()?.to_owned()));
                let path = Path::Sse(Box::new(SsePath::new(response)));
                let answer = Answer::start(self, handle, path, 0);
                Ok(Asked::Answer(answer.with_ignored_parameters(ignored)))
            }
            _ => Ok(Asked::Reply(Reply::by_http(response))),
        }
    }

    /// Goes on with an answer from log offset `from` (S-4.7, S-5.2).
    ///
    /// # Errors
    /// [`ClientError::Gone`], or why the server cannot be reached.
    pub async fn resume(&self, handle: AnswerHandle, from: u64) -> Result<Answer, ClientError> {
        Answer::resume(self, handle, from).await
    }

    /// Any other request: through the QUIC connection if there is one, else by HTTP.
    ///
    /// # Errors
    /// Why the server cannot be reached. One whose connection died is tried again by HTTP
    /// only if its method allows that (RFC 9110 §9.2.2).
    pub async fn request(&self, request: &Request) -> Result<Reply, ClientError> {
        if let Some(link) = self.link_now()
            && let Ok(stream) = link.open().await
        {
            match request.tunnel(self, stream, &link).await {
                Ok(reply) => return Ok(reply),
                Err(error) if request.method.is_idempotent() => {
                    tracing::debug!("{} by QUIC: {error}", request.path);
                }
                Err(error) => return Err(error),
            }
        }
        self.send_by_http(request, request.body.clone()).await.map(Reply::by_http)
    }

    async fn send_by_http(
        &self,
        request: &Request,
        body: Bytes,
    ) -> Result<HttpResponse, ClientError> {
        let mut message = json_request(request.method.clone(), &request.path, body)?;
        let headers = message.headers_mut();
        for (name, value) in &request.headers {
            headers.insert(name, value.clone());
        }
        // The key is the client's or the request's own, never one that was passed along.
        headers.remove("authorization");
        if let Some(key) = &request.key {
            headers.insert("authorization", bearer(key)?);
        }
        Ok(self.0.http.send(message).await?)
    }

    /// Ends an answer that nobody reads any more (S-5.3), if the server can be told.
    pub(crate) async fn forget(&self, handle: AnswerHandle) {
        let mut request =
            Request::new(Method::DELETE, format!("/v1/streams/{}", handle.id_hex()), "");
        let token = HeaderValue::try_from(handle.token_hex()).expect("hex digits");
        request.headers.insert(TOKEN_HEADER, token);
        let _ = tokio::time::timeout(FORGET_TIMEOUT, self.request(&request)).await;
    }

    /// Goes on from a new local port; QUIC's answers go on undisturbed.
    pub fn rebind(&self) -> bool {
        self.link_now().is_some_and(|link| link.rebind(Duration::ZERO))
    }

    pub(crate) fn key(&self) -> Option<&str> {
        self.0.config.api_key.as_deref()
    }

    /// Time for the protocol's state machines.
    pub(crate) fn now(&self) -> Micros {
        Micros(self.0.started.elapsed().as_micros() as u64)
    }

    /// The instant that a protocol's time is.
    pub(crate) fn instant(&self, at: Micros) -> Instant {
        // Never so far that the clock cannot count it.
        self.0.started + Duration::from_micros(at.0.min(u64::from(u32::MAX) * 1_000_000))
    }

    /// Waits, for `limit` at most, until the server was told of all answers that have ended
    /// or are not wanted, then closes the connection. For the end of a program.
    pub async fn close(&self, limit: Duration) {
        let mut answers = self.0.answers.subscribe();
        let _ = tokio::time::timeout(limit, answers.wait_for(|count| *count == 0)).await;
        let state = std::mem::take(&mut self.dialing().state);
        if let Dial::Up(link) = state {
            link.close();
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, link.idle()).await;
        }
    }

    /// Counts an answer's task.
    pub(crate) fn busy(&self) -> Busy {
        self.0.answers.send_modify(|count| *count += 1);
        Busy(self.clone())
    }

    pub(crate) fn link_up(&self) -> LinkUp {
        LinkUp(self.0.link_ups.subscribe())
    }

    fn dialing(&self) -> MutexGuard<'_, Dialing> {
        // Every change of it is one assignment.
        self.0.dialing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection, if it stands; otherwise it is being made.
    fn link_now(&self) -> Option<Link> {
        self.try_link().ok()
    }

    /// The connection, if it stands or comes up within the head start. Where HTTP won the
    /// last time, it does not wait.
    pub(crate) async fn link(&self) -> Option<Link> {
        let mut under_way = match self.try_link() {
            Ok(link) => return Some(link),
            Err(under_way) => under_way?,
        };
        let known = self.0.memory.recall(&self.0.url);
        if known.is_none_or(|known| known.winner == Transport::Quic) {
            // It never changes: it closes when the attempt is over.
            let _ = tokio::time::timeout(self.0.config.head_start, under_way.changed()).await;
        }
        match &self.dialing().state {
            Dial::Up(link) if link.is_open() => Some(link.clone()),
            _ => None,
        }
    }

    /// The connection, or the attempt at one, which is begun if that makes sense.
    fn try_link(&self) -> Result<Link, Option<watch::Receiver<()>>> {
        let mut dialing = self.dialing();
        match &dialing.state {
            _ if !self.0.config.quic => return Err(None),
            Dial::Up(link) if link.is_open() => return Ok(link.clone()),
            Dial::UnderWay(attempt) => return Err(Some(attempt.clone())),
            Dial::Resting(until) if Instant::now() < *until => return Err(None),
            Dial::Up(_) | Dial::Resting(_) | Dial::Down => {}
        }
        let (done, attempt) = watch::channel(());
        dialing.state = Dial::UnderWay(attempt.clone());
        let client = self.clone();
        tokio::spawn(async move {
            let dialled = client.dial().await;
            client.note_dialled(dialled);
            drop(done);
        });
        Err(Some(attempt))
    }

    /// Connects with what is remembered of the server, or else with what it says now.
    async fn dial(&self) -> Result<Link, ClientError> {
        let remembered = self.0.memory.recall(&self.0.url).and_then(|known| known.offer);
        let Some(offer) = remembered else {
            return self.dial_anew(None).await;
        };
        match Link::dial(&self.0.host, &offer).await {
            Ok(link) => Ok(link),
            Err(_) => self.dial_anew(Some(offer)).await,
        }
    }

    /// Asks the server what it offers; connects unless that is what was `tried` before.
    async fn dial_anew(&self, tried: Option<Offer>) -> Result<Link, ClientError> {
        let refused = |reason: &str| ClientError::Connect {
            authority: self.0.host.clone(),
            reason: reason.to_owned(),
        };
        let offer = self.offer(true).await?.ok_or_else(|| refused("it does not offer QUIC"))?;
        if tried == Some(offer) {
            return Err(refused("QUIC does not get through"));
        }
        Link::dial(&self.0.host, &offer).await
    }

    fn note_dialled(&self, dialled: Result<Link, ClientError>) {
        let won = dialled.is_ok();
        let mut dialing = self.dialing();
        match dialled {
            Ok(link) => {
                *dialing = Dialing { state: Dial::Up(link), failures: 0 };
                self.0.link_ups.send_modify(|count| *count += 1);
            }
            Err(error) => {
                tracing::debug!("no QUIC: {error}");
                let rest = REST.saturating_mul(1 << dialing.failures.min(8)).min(MAX_REST);
                dialing.failures += 1;
                dialing.state = Dial::Resting(Instant::now() + rest);
            }
        }
        drop(dialing);
        self.remember(if won { Transport::Quic } else { Transport::Http });
    }

    fn remember(&self, winner: Transport) {
        let before = self.0.memory.recall(&self.0.url).and_then(|known| known.offer);
        let told = self.0.offer.try_lock().ok().and_then(|offer| *offer);
        let offer = told.unwrap_or(before);
        self.0.memory.remember(&self.0.url, Known { winner, offer });
    }

    /// The connection is dead: everyone who uses it goes on elsewhere, at once with a new
    /// one if the path is there again.
    pub(crate) fn give_up(&self, link: &Link) {
        link.close();
        let mut dialing = self.dialing();
        if matches!(&dialing.state, Dial::Up(current) if current.is(link)) {
            dialing.state = Dial::Down;
        }
    }

    /// The network has changed: QUIC may get through here.
    pub(crate) fn retry_quic(&self) {
        let mut dialing = self.dialing();
        if matches!(dialing.state, Dial::Resting(_)) {
            *dialing = Dialing::default();
        }
    }

    /// What the server offers (S-1.3), `None` if nothing; asked once unless `anew`.
    async fn offer(&self, anew: bool) -> Result<Option<Offer>, ClientError> {
        let mut known = self.0.offer.lock().await;
        if let (false, Some(offer)) = (anew, *known) {
            return Ok(offer);
        }
        let offer =
            match self.0.http.get(offer::PATH, offer::MAX_BYTES).await.map_err(ClientError::from) {
                // Some servers answer every path with a page.
                Ok(json) => Offer::parse(&json).ok(),
                Err(ClientError::Refused { status: 400..=499, .. }) => None,
                Err(ClientError::Refused { .. } | ClientError::TooLarge { .. }) => return Ok(None),
                Err(error) => return Err(error),
            };
        *known = Some(offer);
        Ok(offer)
    }
}

/// The JSON object `body` with `"resumable": true` (S-5.1); anything else unchanged.
fn with_resumable(body: &Bytes) -> Bytes {
    let Ok(mut object) = serde_json::from_slice::<serde_json::Map<String, _>>(body) else {
        return body.clone();
    };
    object.entry("resumable").or_insert(serde_json::Value::Bool(true));
    serde_json::Value::Object(object).to_string().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_question_gets_a_key_unless_it_has_one() {
        let question = Request::new(Method::POST, "/", "{}");
        let (one, two) = (question.repeatable(), question.repeatable());
        assert_ne!(one.headers[REPEAT_HEADER], two.headers[REPEAT_HEADER]);
        assert_eq!(one.headers[REPEAT_HEADER].len(), 32);
        assert_eq!(one.repeatable().headers, one.headers);
    }

    #[test]
    fn bodies_become_resumable_unless_they_say_otherwise() {
        let with = |body: &'static str| with_resumable(&Bytes::from_static(body.as_bytes()));
        assert_eq!(with(r#"{"stream":true}"#), r#"{"stream":true,"resumable":true}"#);
        assert_eq!(with(r#"{"resumable":false}"#), r#"{"resumable":false}"#);
        assert_eq!(with("[1]"), "[1]");
    }
}
