//! One stream of a session: a tunnelled request, a request whose answer travels in datagrams, or
//! the resume of such an answer (`spec/session.md`, sections 3 and 4).

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderName, HeaderValue, Method, Request as HttpRequest, header};
use http_body_util::BodyExt;
use loquent_proto::AnswerHandle;
use loquent_proto::frame::{Frame, Resume};
use loquent_proto::headers::{IGNORED_HEADER, REPEAT_HEADER};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tower::ServiceExt;
use web_transport_quinn::{RecvStream, SendStream};

use super::message::{
    BodyPiece, MessageKind, MessageReader, StreamError, StreamMessage, code, put_message,
};
use super::session::{QuicSession, Routed};
use crate::api::json;
use crate::api::request::Endpoint;
use crate::body::{ReceivedBody, TunnelledBody};
use crate::error::ApiError;
use crate::identity::Identity;
use crate::intake::Intake;
use crate::obfuscation::encrypted;
use crate::resumable::routes::{JoinedAnswer, ResumableRequest, start};
use crate::resumable::{AnswerCommand, CommandSender, PathId, ReaderPath, StreamFrame};
use crate::service::Caller;

/// How long a client may take to send its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Most values in a request's head, with as many headers as HTTP/1.1 requests may have here.
const MAX_HEAD_VALUES: usize = 512;
/// Frames that may wait for room on the stream.
const MAX_ASIDE: usize = 4;

/// The JSON of a REQUEST message.
pub(crate) struct RequestHead {
    key: Option<HeaderValue>,
    method: Method,
    path: String,
    headers: Vec<(String, String)>,
    stream: Option<u64>,
}

enum FirstMessage {
    Request(RequestHead, ReceivedBody),
    /// Its body is not taken.
    Refused(ApiError),
    Resume(Resume),
}

/// Serves one stream until it ends.
pub async fn serve(session: Arc<QuicSession>, send: SendStream, recv: RecvStream) {
    let messages = MessageReader::new(recv);
    let mut exchange = Exchange { session, send, messages };
    if let Err(broken) = exchange.run().await {
        tracing::debug!(%broken, "a stream ended early");
        let code = match broken {
            StreamError::Protocol(_) => code::PROTOCOL,
            StreamError::Reset(_) | StreamError::Lost => code::BROKEN,
        };
        let _ = exchange.send.reset(code);
        exchange.messages.stop(code);
    }
}

struct Exchange {
    session: Arc<QuicSession>,
    send: SendStream,
    messages: MessageReader,
}

impl Exchange {
    async fn run(&mut self) -> Result<(), StreamError> {
        let opening = tokio::time::timeout(REQUEST_TIMEOUT, self.opening()).await;
        match opening.unwrap_or(Err(StreamError::Protocol("no complete request in time")))? {
            FirstMessage::Request(head, body) => match head.stream {
                None => self.tunnel(head, body).await,
                Some(channel) => self.ask(head, channel, body).await,
            },
            FirstMessage::Refused(error) => {
                self.session.app().metrics.on_refusal(error.status());
                self.respond(error.into_response()).await
            }
            FirstMessage::Resume(resume) => self.resume(resume).await,
        }
    }

    async fn opening(&mut self) -> Result<FirstMessage, StreamError> {
        let app = self.session.app().clone();
        let first = self.messages.first(app.bodies.large_heads()).await?;
        let first = first.ok_or(StreamError::Protocol("an empty stream"))?;
        match first.kind {
            MessageKind::Request => {}
            MessageKind::Frame => return read_resume(&first.payload),
            _ => return Err(StreamError::Protocol("a first message that is not a request")),
        }
        let head = RequestHead::parse(&first.payload)
            .ok_or(StreamError::Protocol("an invalid head of a request"))?;
        let mut body = app.bodies.begin();
        if let Err(error) = self.identify(&head) {
            return Ok(match head.stream {
                Some(_) => FirstMessage::Refused(error),
                // The route may need no key; then it needs no body either.
                None => FirstMessage::Request(head, body),
            });
        }
        self.session.trust();
        // As over HTTP: a server at its limit refuses before it takes the body.
        if head.stream.is_some()
            && head.header(REPEAT_HEADER).is_none()
            && let Err(error) = app.service().and_then(|service| service.check_room())
        {
            return Ok(FirstMessage::Refused(error));
        }
        loop {
            match self.messages.next_body().await? {
                BodyPiece::Bytes(piece) => {
                    if let Err(error) = body.push(&piece).await {
                        return Ok(FirstMessage::Refused(error));
                    }
                }
                // The client keeps its side of the stream open for acknowledgements, so that an
                // empty BODY instead of the end of the stream ends the request.
                BodyPiece::Empty if head.stream.is_none() => {}
                BodyPiece::Empty | BodyPiece::End => {
                    return Ok(FirstMessage::Request(head, body));
                }
            }
        }
    }

    /// Who sends the request with `head`.
    ///
    /// # Errors
    /// 401 without a valid key, 429 after too many invalid ones.
    fn identify(&self, head: &RequestHead) -> Result<Identity, ApiError> {
        let credentials = head.authorization().into_iter().map(|key| (header::AUTHORIZATION, key));
        self.session.app().identify(&credentials.collect(), Some(self.session.peer()))
    }

    /// Responds as the HTTP port would (S-3.1).
    async fn tunnel(&mut self, head: RequestHead, body: ReceivedBody) -> Result<(), StreamError> {
        let request = head.http(body).ok_or(StreamError::Protocol("an invalid HTTP request"))?;
        let response = self.session.router().oneshot(encrypted(request)).await;
        let response = response.unwrap_or_else(|never| match never {});
        self.respond(response).await
    }

    async fn respond(&mut self, response: Response) -> Result<(), StreamError> {
        let (head, mut body) = response.into_parts();
        let headers = head.headers.iter().map(|(name, value)| {
            (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned().into())
        });
        let headers = headers.collect::<Map<String, Value>>();
        let json = json!({"status": head.status.as_u16(), "headers": headers});
        self.write(MessageKind::Response, json.to_string().as_bytes()).await?;
        loop {
            let frame = tokio::select! {
                frame = body.frame() => frame,
                // Dropping the body cancels the completion behind it.
                _ = self.send.stopped() => return Err(StreamError::Reset(code::CANCELLED)),
            };
            match frame {
                None => break,
                // A reset, not a clean end: the client must not take a part for the whole answer.
                Some(Err(_)) => return Err(StreamError::Reset(code::BROKEN)),
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        self.write(MessageKind::Body, &bytes).await?;
                    }
                }
            }
        }
        self.send.finish().map_err(|_| StreamError::Lost)
    }

    /// Starts an answer that travels in datagrams (S-4.1).
    async fn ask(
        &mut self,
        head: RequestHead,
        channel: u64,
        body: ReceivedBody,
    ) -> Result<(), StreamError> {
        let id = PathId::next();
        let routed = self
            .session
            .route(channel, id)
            .ok_or(StreamError::Protocol("a channel that is in use"))?;
        let (sender, frames) = mpsc::channel(MAX_ASIDE);
        let link = self.session.datagram_path();
        let path = ReaderPath::Datagrams { channel, link, frames: sender };
        let app = self.session.app().clone();
        let kept = async {
            let endpoint = head.endpoint()?;
            let key = head.authorization();
            let identity = self.identify(&head)?;
            let arrived = app.clock.now();
            let caller = Caller { identity, authorization: key.clone(), trace_parent: None };
            let intake = Intake { endpoint, caller, key };
            let again = head.header(REPEAT_HEADER);
            let parsed = intake.parse(&app, body, again.as_ref()).await?;
            let (request, idempotent) = (parsed.request, parsed.idempotent?);
            let request = ResumableRequest { request, arrived, idempotent };
            start(&app, request, id, path).await
        };
        match kept.await {
            Ok(JoinedAnswer { handle, commands, ignored }) => {
                let answer = answer_head(&handle, channel, 0, &ignored);
                self.carry(&answer, routed, commands, id, frames).await
            }
            Err(error) => {
                app.metrics.on_refusal(error.status());
                self.respond(error.into_response()).await
            }
        }
    }

    /// Continues an answer for a reader whose connection was lost (S-4.7).
    async fn resume(&mut self, resume: Resume) -> Result<(), StreamError> {
        let Resume { channel, id, token, offset } = resume;
        let name = AnswerHandle { id, token };
        let path_id = PathId::next();
        let routed = self
            .session
            .route(channel, path_id)
            .ok_or(StreamError::Protocol("a channel that is in use"))?;
        let (sender, frames) = mpsc::channel(MAX_ASIDE);
        let link = self.session.datagram_path();
        let path = ReaderPath::Datagrams { channel, link, frames: sender };
        let attached = self.session.app().resumable.attach(&name, offset, path_id, path).await;
        let Some((_, orders)) = attached else {
            let mut gone = Vec::new();
            Frame::Gone { channel }.encode(false, &mut gone);
            self.write(MessageKind::Frame, &gone).await?;
            return self.send.finish().map_err(|_| StreamError::Lost);
        };
        self.session.trust();
        let answer = answer_head(&name, channel, offset, "");
        self.carry(&answer, routed, orders, path_id, frames).await
    }

    /// Sends ANSWER, then carries frames between the stream and the answer until either ends.
    /// Whatever the reason, the answer is notified that this path is gone.
    async fn carry(
        &mut self,
        answer: &Value,
        routed: Routed,
        orders: CommandSender,
        id: PathId,
        frames: mpsc::Receiver<StreamFrame>,
    ) -> Result<(), StreamError> {
        routed.set(orders.clone());
        let ended = match self.write(MessageKind::Answer, answer.to_string().as_bytes()).await {
            Ok(()) => self.carry_frames(&orders, id, frames).await,
            Err(broken) => Err(broken),
        };
        let order = match &ended {
            Err(StreamError::Reset(code::CANCELLED)) => AnswerCommand::Cancel(id),
            _ => AnswerCommand::Leave(id),
        };
        let _ = orders.send(order).await;
        ended
    }

    async fn carry_frames(
        &mut self,
        orders: &CommandSender,
        id: PathId,
        mut frames: mpsc::Receiver<StreamFrame>,
    ) -> Result<(), StreamError> {
        let mut open = true;
        loop {
            tokio::select! {
                message = self.messages.next(), if open => match message? {
                    Some(StreamMessage { kind: MessageKind::Frame, payload }) => {
                        let _ = orders.send(AnswerCommand::Frame(id, payload)).await;
                    }
                    Some(_) => return Err(StreamError::Protocol("a message out of order")),
                    None => open = false,
                },
                frame = frames.recv() => match frame {
                    Some(StreamFrame::Frame(frame)) => {
                        self.write(MessageKind::Frame, &frame).await?;
                    }
                    Some(StreamFrame::End) => {
                        return self.send.finish().map_err(|_| StreamError::Lost);
                    }
                    None => return Err(StreamError::Reset(code::BROKEN)),
                },
                // While the client's side is open, reading it reports a lost connection.
                () = self.session.closed(), if !open => return Err(StreamError::Lost),
            }
        }
    }

    async fn write(&mut self, kind: MessageKind, payload: &[u8]) -> Result<(), StreamError> {
        let mut message = Vec::with_capacity(payload.len() + 9);
        put_message(kind, payload, &mut message);
        self.send.write_all(&message).await.map_err(|_| StreamError::Lost)
    }
}

/// The JSON of an ANSWER message (S-4.2).
fn answer_head(name: &AnswerHandle, channel: u64, offset: u64, unknown: &str) -> Value {
    let (id, token) = (name.id_hex(), name.token_hex());
    let mut head = json!({"id": id, "token": token, "stream": channel, "offset": offset});
    if !unknown.is_empty() {
        head["headers"] = json!({IGNORED_HEADER: unknown});
    }
    head
}

/// The members of an object whose values are all strings.
fn text_members(members: Map<String, Value>) -> Option<Vec<(String, String)>> {
    let text = |(name, value)| match value {
        Value::String(text) => Some((name, text)),
        _ => None,
    };
    members.into_iter().map(text).collect()
}

fn read_resume(payload: &[u8]) -> Result<FirstMessage, StreamError> {
    match Frame::decode(payload, false) {
        Ok(Frame::Resume(resume)) => Ok(FirstMessage::Resume(resume)),
        _ => Err(StreamError::Protocol("a first frame that is not RESUME")),
    }
}

impl RequestHead {
    pub(crate) fn parse(json: &[u8]) -> Option<Self> {
        let json = std::str::from_utf8(json).ok()?;
        let Value::Object(mut head) = json::parse(json, MAX_HEAD_VALUES).ok()? else {
            return None;
        };
        let mut text = |name: &str| match head.remove(name) {
            None | Some(Value::Null) => Some(None),
            Some(Value::String(text)) => Some(Some(text)),
            Some(_) => None,
        };
        let (key, method, path) = (text("key")?, text("method")??, text("path")??);
        let headers = match head.remove("headers") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Object(headers)) => text_members(headers)?,
            Some(_) => return None,
        };
        let stream = match head.remove("stream") {
            None | Some(Value::Null) => None,
            Some(number) => Some(number.as_u64().filter(|n| *n <= loquent_proto::wire::MAX_INT)?),
        };
        let method = method.parse().ok()?;
        // The `Authorization` header that corresponds to the key; an invalid one becomes an empty
        // one, which the check refuses.
        let bearer = |key| HeaderValue::try_from(format!("Bearer {key}"));
        let key = key.map(|key| bearer(key).unwrap_or(HeaderValue::from_static("")));
        path.starts_with('/').then_some(Self { key, method, path, headers, stream })
    }

    /// The `Authorization` header that corresponds to the key; of a tunnelled request also one
    /// among its headers, as over HTTP.
    fn authorization(&self) -> Option<HeaderValue> {
        let header = || self.header("authorization").filter(|_| self.stream.is_none());
        self.key.clone().or_else(header)
    }

    /// The header `name`, which is in lower case.
    fn header(&self, name: &str) -> Option<HeaderValue> {
        let mut headers = self.headers.iter();
        let (_, value) = headers.find(|(given, _)| given.eq_ignore_ascii_case(name))?;
        // An invalid value becomes an empty one, which the check of the key refuses.
        Some(HeaderValue::from_str(value).unwrap_or(HeaderValue::from_static("")))
    }

    fn endpoint(&self) -> Result<Endpoint, ApiError> {
        let path = self.path.split('?').next().unwrap_or_default();
        match (&self.method, path) {
            (&Method::POST, "/v1/chat/completions") => Ok(Endpoint::Chat),
            (&Method::POST, "/v1/completions") => Ok(Endpoint::Text),
            _ => Err(ApiError::not_found(&self.method, path)),
        }
    }

    fn http(self, body: ReceivedBody) -> Option<HttpRequest<Body>> {
        let authorization = self.authorization();
        let mut request = HttpRequest::new(Body::empty());
        request.extensions_mut().insert(TunnelledBody::new(body));
        *request.method_mut() = self.method;
        *request.uri_mut() = self.path.parse().ok()?;
        for (name, value) in self.headers {
            let name = HeaderName::try_from(name).ok()?;
            let value = HeaderValue::try_from(value).ok()?;
            request.headers_mut().append(name, value);
        }
        if let Some(authorization) = authorization {
            request.headers_mut().insert(header::AUTHORIZATION, authorization);
        }
        Some(request)
    }
}
