//! One QUIC stream of a session: a tunnelled request, a request whose answer travels in datagrams,
//! or the resume of such an answer (`spec/session.md`, sections 3 and 4).

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue};
use http_body_util::BodyExt;
use loquent_proto::frame::{Frame, Resume};
use loquent_proto::grease;
use loquent_proto::headers::{IGNORED_HEADER, REPEAT_HEADER};
use loquent_proto::{AnswerHandle, Position};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio::time::{timeout, timeout_at};
use tower::ServiceExt;
use web_transport_quinn::{RecvStream, SendStream, WriteError};

use super::message::{
    BodyPiece, Code, MessageKind, MessageReader, StreamError, StreamMessage, put_message,
};
use super::request_head::RequestHead;
use super::session::{QuicSession, Routed};
use crate::connections::{BodyPace, Patience};
use crate::rate_headers::add_rate_headers;
use crate::routes::parse_request::Intake;
use crate::routes::resumable::{JoinedAnswer, ResumableRequest, start};
use loquent_resumable::{
    AnswerCommand, AttachedReader, CommandSender, PathId, ReaderPath, StoreAnnouncement,
    StreamFrame, Unreachable,
};
use loquent_serving::auth::EarlyIdentity;
use loquent_serving::body::ReceivedBody;
use loquent_serving::caller::Caller;
use loquent_serving::error::{ApiError, SlowBody};
use loquent_serving::identity::Identity;
use loquent_serving::obfuscation::encrypted;
use loquent_serving::request_log::{OtherLine, REQUEST_ID_HEADER};
use loquent_serving::trace_context::TraceParent;

/// Maximum number of frames waiting for room on the QUIC stream.
const MAX_ASIDE: usize = 4;
/// Longest frame that is read (D-7.6): an answer's task may have many of this size queued.
const MAX_FRAME_BYTES: usize = 1200;
/// Time limit for a client that has stopped reading to say, on its own side of the QUIC stream,
/// that it cancels: its reset may come a lost packet later.
const LAST_WORD_LIMIT: Duration = Duration::from_secs(1);
/// Time between two signs of life while there is nothing to answer yet (S-4.12).
const LIFE_EVERY: Duration = Duration::from_secs(4);
/// One in this many answers carries elements that its client must skip (S-2.7).
const GREASED_EVERY: u64 = 4;

/// Purpose for which a client opened the QUIC stream.
enum Opening {
    /// An HTTP request. If its route needs no key, a wrong key does not matter.
    Tunnel(RequestHead, EarlyIdentity, ReceivedBody),
    /// A request for an answer on this channel.
    Ask(u64, RequestHead, Identity, ReceivedBody),
    /// A request whose body is not received, with its sender if known.
    Refused(RequestHead, ApiError, Option<Identity>),
    Resume(Resume),
}

/// Reason why a QUIC stream is reset instead of ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Broken {
    #[error(transparent)]
    Client(#[from] StreamError),
    #[error("the server breaks it off: {0:?}")]
    Server(Code),
}

impl Broken {
    /// Returns the corresponding error code (S-2.6).
    fn code(&self) -> Code {
        match self {
            Self::Server(code) => *code,
            Self::Client(StreamError::Protocol(_)) => Code::Malformed,
            Self::Client(StreamError::Reset(Code::Cancelled)) => Code::Stopped,
            Self::Client(StreamError::Reset(_) | StreamError::Stopped | StreamError::Lost) => {
                Code::BrokenOff
            }
        }
    }
}

/// Serves one QUIC stream until it ends.
pub async fn serve(session: Arc<QuicSession>, send: SendStream, recv: RecvStream) {
    let messages = MessageReader::new(recv);
    let patience = Patience::new(session.limits().write_timeout);
    let mut exchange = Exchange { session, send, messages, patience };
    let code = match exchange.run().await {
        Ok(()) => Code::None,
        Err(broken) => {
            tracing::debug!(%broken, "a QUIC stream ended early");
            let _ = exchange.send.reset(broken.code().number());
            broken.code()
        }
    };
    // If the client has not ended its side, nothing more of it is needed.
    exchange.messages.stop(code);
}

struct Exchange {
    session: Arc<QuicSession>,
    send: SendStream,
    messages: MessageReader,
    /// Time for which the client may leave what is written unread, as over TCP.
    patience: Patience,
}

impl Exchange {
    async fn run(&mut self) -> Result<(), Broken> {
        match self.opening().await? {
            Opening::Tunnel(head, identity, body) => self.tunnel(head, identity, body).await,
            Opening::Ask(channel, head, identity, body) => {
                self.ask(channel, head, identity, body).await
            }
            Opening::Refused(head, error, identity) => {
                self.refuse(&head, error, identity.as_ref()).await
            }
            Opening::Resume(resume) => self.resume(resume).await,
        }
    }

    async fn opening(&mut self) -> Result<Opening, Broken> {
        let app = self.session.app().clone();
        let first = self.messages.first(app.bodies.large_heads());
        let first = timeout(self.session.limits().request_timeout, first).await;
        // The same request may succeed: this one may have waited for a permit for large heads.
        let first = first.map_err(|_| Broken::Server(Code::BrokenOff))??;
        let first = first.ok_or(StreamError::Protocol("an empty stream"))?;
        match first.kind {
            MessageKind::Request => {}
            MessageKind::Frame => return self.read_resume(&first.payload),
            _ => return Err(StreamError::Protocol("a first message that is not a request").into()),
        }
        let head = RequestHead::parse(&first.payload)
            .ok_or(StreamError::Protocol("an invalid head of a request"))?;
        if let Some(channel) = head.channel {
            self.claim(channel)?;
        }
        // Wrong keys count, so that the key is looked at once: the tunnel passes on what was found.
        let known = app.identify(&head.headers, Some(self.session.peer()));
        // A tunnelled request has no Host: its session's name is this machine's only on a server
        // that has no others.
        let known = known.map(|identity| identity.local_if(app.config.is_local()));
        match (head.channel, known) {
            (None, Err(error)) => {
                let nobody = Identity::default(); // nothing of its body is taken
                Ok(Opening::Tunnel(head, EarlyIdentity(Err(error)), app.bodies.begin(&nobody)))
            }
            (Some(_), Err(error)) => Ok(Opening::Refused(head, error, None)),
            (_, Ok(identity)) => self.take_body(head, identity).await,
        }
    }

    /// Receives the body of a request from an authenticated client.
    async fn take_body(
        &mut self,
        head: RequestHead,
        identity: Identity,
    ) -> Result<Opening, Broken> {
        let app = self.session.app().clone();
        self.session.trust();
        // As over HTTP: a server at its limit refuses before it takes the body.
        if head.channel.is_some()
            && !head.headers.contains_key(REPEAT_HEADER)
            && let Err(error) = app.models.check_room()
        {
            return Ok(Opening::Refused(head, error, Some(identity)));
        }
        let mut body = app.bodies.begin(&identity);
        let mut pace = BodyPace::begin(self.session.limits());
        loop {
            let piece = timeout_at(pace.due().into(), self.messages.next_body()).await;
            let Ok(piece) = piece else {
                return Ok(Opening::Refused(head, ApiError::body(&SlowBody), Some(identity)));
            };
            match (piece?, head.channel) {
                (BodyPiece::Bytes(piece), _) => {
                    pace.note(piece.len());
                    let arrived = Instant::now();
                    if let Err(error) = body.push(&piece).await {
                        return Ok(Opening::Refused(head, error, Some(identity)));
                    }
                    // It may have waited for memory.
                    pace.forgive(arrived);
                }
                (BodyPiece::Empty, None) => {}
                (BodyPiece::End, None) => {
                    return Ok(Opening::Tunnel(head, EarlyIdentity(Ok(identity)), body));
                }
                // The client keeps its side of the QUIC stream open for acknowledgements, so that
                // an empty BODY ends the request; the end of that side does, too (S-4.1).
                (BodyPiece::Empty | BodyPiece::End, Some(channel)) => {
                    return Ok(Opening::Ask(channel, head, identity, body));
                }
            }
        }
    }

    fn read_resume(&self, payload: &[u8]) -> Result<Opening, Broken> {
        match Frame::decode(payload, false) {
            Ok(Frame::Resume(resume)) => {
                self.claim(resume.channel)?;
                Ok(Opening::Resume(resume))
            }
            _ => Err(StreamError::Protocol("a first frame that is not RESUME").into()),
        }
    }

    fn claim(&self, channel: u64) -> Result<(), StreamError> {
        let claimed = self.session.claim(channel);
        claimed.then_some(()).ok_or(StreamError::Protocol("a channel that it has used before"))
    }

    /// Responds as the HTTP port would (S-3.1).
    async fn tunnel(
        &mut self,
        head: RequestHead,
        identity: EarlyIdentity,
        body: ReceivedBody,
    ) -> Result<(), Broken> {
        let mut request = encrypted(head.http(body));
        request.extensions_mut().insert(identity);
        let response = tokio::select! {
            response = self.session.router().oneshot(request) => response,
            // Dropping the request cancels the work for it, as over HTTP (S-3.3).
            _ = self.send.stopped() => return Err(StreamError::Reset(Code::Cancelled).into()),
        };
        let response = response.unwrap_or_else(|never| match never {});
        self.respond(response).await
    }

    /// Refuses a request for an answer, as over HTTP (S-4.2).
    async fn refuse(
        &mut self,
        head: &RequestHead,
        error: ApiError,
        to: Option<&Identity>,
    ) -> Result<(), Broken> {
        let app = self.session.app();
        app.metrics.on_refusal(error.status());
        if !head.id.has_answer() {
            app.request_log.note_other(|| OtherLine {
                request: head.id.clone(),
                key: to.and_then(|identity| identity.key.clone()),
                method: head.method.clone(),
                path: head.path.path().to_owned(),
                status: error.status(),
                error: Some(error.label()),
                took: None,
            });
        }
        let mut response = error.into_response();
        response.headers_mut().insert(REQUEST_ID_HEADER, head.id.header());
        if let Some(identity) = to {
            response.headers_mut().extend(self.rate_headers(identity));
        }
        self.respond(response).await
    }

    async fn respond(&mut self, response: Response) -> Result<(), Broken> {
        let (head, mut body) = response.into_parts();
        let json = json!({"status": head.status.as_u16(), "headers": header_json(&head.headers)});
        self.write(MessageKind::Response, json.to_string().as_bytes()).await?;
        loop {
            let frame = tokio::select! {
                frame = body.frame() => frame,
                // Dropping the body cancels the completion behind it.
                _ = self.send.stopped() => return Err(StreamError::Reset(Code::Cancelled).into()),
            };
            match frame {
                None => break,
                // A reset, not a clean end: the client must not take a part for the whole answer.
                Some(Err(_)) => return Err(Broken::Server(Code::BrokenOff)),
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        self.write(MessageKind::Body, &bytes).await?;
                    }
                }
            }
        }
        self.finish()
    }

    /// Starts an answer that is delivered in datagrams (S-4.1).
    async fn ask(
        &mut self,
        channel: u64,
        head: RequestHead,
        identity: Identity,
        body: ReceivedBody,
    ) -> Result<(), Broken> {
        let id = PathId::next();
        let routed = self.session.route(channel, id);
        let (path, frames) = self.path(channel);
        let app = self.session.app().clone();
        let kept = async {
            let endpoint = head.endpoint()?;
            let key = head.authorization().cloned();
            let arrived = app.clock.now();
            let caller = Caller {
                identity: identity.clone(),
                authorization: key.clone(),
                trace_parent: TraceParent::from_headers(&head.headers),
                request_id: Some(head.id.clone()),
            };
            let intake = Intake { endpoint, caller, key, is_ask: true };
            let again = head.headers.get(REPEAT_HEADER);
            let parsed = intake.parse(&app, body, again).await?;
            let (request, idempotent) = (parsed.request, parsed.idempotent?);
            let request = ResumableRequest { request, arrived, idempotent };
            start(&app, request, id, path).await
        };
        tokio::pin!(kept);
        let mut is_read = true;
        let kept = loop {
            tokio::select! {
                kept = &mut kept => break kept,
                // An upstream may compute for long before it responds.
                cancelled = self.messages.cancelled() => return Err(cancelled.into()),
                () = tokio::time::sleep(LIFE_EVERY), if is_read => {
                    // A client that is gone may come back for its answer by another path.
                    is_read = self.show_life().await.is_ok();
                }
            }
        };
        match kept {
            Ok(JoinedAnswer { handle, epoch, commands, ignored, announcement }) => {
                self.await_announcement(&announcement, &commands, id).await?;
                let mut headers = self.rate_headers(&identity);
                if let Some(names) = HeaderValue::try_from(ignored).ok().filter(|it| !it.is_empty())
                {
                    headers.insert(IGNORED_HEADER, names);
                }
                let answer = AnswerHead { handle, channel, offset: 0, epoch, headers };
                self.carry(answer, routed, commands, id, frames).await
            }
            Err(error) => self.refuse(&head, error, Some(&identity)).await,
        }
    }

    /// Sends a message that the client skips. A page has no other sign that its path works.
    async fn show_life(&mut self) -> Result<(), Broken> {
        let mut message = Vec::new();
        grease::put_message(rand::random(), &mut message);
        self.write_all(&message).await
    }

    /// Waits until other replicas can find an answer that has begun. If its client cancels
    /// meanwhile (S-4.5), so does this.
    async fn await_announcement(
        &mut self,
        announcement: &StoreAnnouncement,
        commands: &CommandSender,
        id: PathId,
    ) -> Result<(), Broken> {
        tokio::select! {
            () = announcement.made() => Ok(()),
            cancelled = self.messages.cancelled() => {
                let _ = commands.send(AnswerCommand::Cancel(id)).await;
                Err(cancelled.into())
            }
        }
    }

    /// Continues an answer for a reader whose connection was lost (S-4.7).
    async fn resume(&mut self, resume: Resume) -> Result<(), Broken> {
        let Resume { channel, id, token, offset } = resume;
        let handle = AnswerHandle { id, token };
        let path_id = PathId::next();
        let routed = self.session.route(channel, path_id);
        let (path, frames) = self.path(channel);
        let position = Position::of(offset);
        let attached = self.session.app().resumable.attach(&handle, position, path_id, path).await;
        let AttachedReader { commands, epoch, .. } = match attached {
            Ok(attached) => attached,
            Err(Unreachable::Unknown) => return self.say_gone(channel).await,
            // It may yet be found.
            Err(Unreachable::NoRoom | Unreachable::Away) => {
                return Err(Broken::Server(Code::BrokenOff));
            }
        };
        self.session.trust();
        let (offset, headers) = (position.offset, HeaderMap::new());
        let answer = AnswerHead { handle, channel, offset, epoch, headers };
        self.carry(answer, routed, commands, path_id, frames).await
    }

    /// Creates a path for an answer, and the receiver of the frames that it sends on this QUIC
    /// stream.
    fn path(&self, channel: u64) -> (ReaderPath, mpsc::Receiver<StreamFrame>) {
        let (sender, frames) = mpsc::channel(MAX_ASIDE);
        let link = self.session.datagram_path();
        (ReaderPath::Datagrams { channel, link, frames: sender }, frames)
    }

    /// Returns headers with the remaining budgets of `identity`.
    fn rate_headers(&self, identity: &Identity) -> HeaderMap {
        let mut headers = HeaderMap::new();
        add_rate_headers(self.session.app().models.budget_levels(identity), &mut headers);
        headers
    }

    /// Sends ANSWER, then carries frames between the QUIC stream and the answer until either ends.
    /// In every case, the answer is notified that this path is gone.
    async fn carry(
        &mut self,
        answer: AnswerHead,
        routed: Routed,
        commands: CommandSender,
        id: PathId,
        frames: mpsc::Receiver<StreamFrame>,
    ) -> Result<(), Broken> {
        routed.set(commands.clone());
        let ended = match self.begin_answer(&answer).await {
            Ok(()) => self.carry_frames(&commands, id, answer.channel, frames).await,
            Err(broken) => Err(broken),
        };
        let ended = match ended {
            Err(Broken::Client(StreamError::Stopped)) => self.hear_last_word(&commands, id).await,
            ended => ended,
        };
        let command = match &ended {
            Err(Broken::Client(StreamError::Reset(Code::Cancelled))) => AnswerCommand::Cancel(id),
            _ => AnswerCommand::Leave(id),
        };
        let _ = commands.send(command).await;
        ended
    }

    /// Sends ANSWER, occasionally with elements that the client must skip.
    async fn begin_answer(&mut self, answer: &AnswerHead) -> Result<(), Broken> {
        let draw = rand::random::<u64>();
        let mut json = answer.json();
        // Not in every answer: the bytes are wasted, and a client that cannot skip them shows soon.
        if !draw.is_multiple_of(GREASED_EVERY) {
            return self.write(MessageKind::Answer, json.to_string().as_bytes()).await;
        }
        json[grease::JSON_MEMBER] = json!(draw);
        self.write(MessageKind::Answer, json.to_string().as_bytes()).await?;
        let (mut message, mut frame) = (Vec::new(), Vec::new());
        grease::put_message(draw, &mut message);
        grease::put_frame(draw, answer.channel, &mut frame);
        self.session.send_datagram(frame.into());
        self.write_all(&message).await
    }

    async fn carry_frames(
        &mut self,
        commands: &CommandSender,
        id: PathId,
        channel: u64,
        mut frames: mpsc::Receiver<StreamFrame>,
    ) -> Result<(), Broken> {
        let mut open = true;
        loop {
            tokio::select! {
                message = self.messages.next(), if open => match message? {
                    Some(message) => pass_frame(commands, id, message).await?,
                    None => open = false,
                },
                frame = frames.recv() => match frame {
                    Some(StreamFrame::Frame(frame)) => {
                        self.write(MessageKind::Frame, &frame).await?;
                    }
                    Some(StreamFrame::Gone) => return self.say_gone(channel).await,
                    Some(StreamFrame::End(Code::None)) => return self.finish(),
                    Some(StreamFrame::End(code)) => return Err(Broken::Server(code)),
                    // The answer's task is gone without a word, which it never should be.
                    None => return Err(Broken::Server(Code::BrokenOff)),
                },
                // Both directions are over: the reader has gone elsewhere, or away (S-4.5).
                _ = self.send.stopped(), if !open => {
                    return Err(StreamError::Reset(Code::BrokenOff).into());
                }
                // While the client's side is open, reading it reports a lost connection.
                () = self.session.closed(), if !open => return Err(StreamError::Lost.into()),
            }
        }
    }

    /// Reads on after the client has stopped reading: whether it cancels or has only left is told
    /// by its own side of the QUIC stream (S-4.5).
    async fn hear_last_word(&mut self, commands: &CommandSender, id: PathId) -> Result<(), Broken> {
        let heard = async {
            while let Some(message) = self.messages.next().await? {
                pass_frame(commands, id, message).await?;
            }
            Err(StreamError::Stopped)
        };
        let heard = timeout(LAST_WORD_LIMIT, heard).await;
        heard.unwrap_or(Err(StreamError::Stopped)).map_err(Broken::from)
    }

    /// Sends GONE: the answer does not exist, or not from the offset that the reader needs (D-6.5).
    async fn say_gone(&mut self, channel: u64) -> Result<(), Broken> {
        let mut gone = Vec::new();
        Frame::Gone { channel }.encode(false, &mut gone);
        self.write(MessageKind::Frame, &gone).await?;
        self.finish()
    }

    async fn write(&mut self, kind: MessageKind, payload: &[u8]) -> Result<(), Broken> {
        let mut message = Vec::with_capacity(payload.len() + 9);
        put_message(kind, payload, &mut message);
        self.write_all(&message).await
    }

    /// Writes `bytes`; breaks off if the client keeps the write waiting for too long.
    async fn write_all(&mut self, mut bytes: &[u8]) -> Result<(), Broken> {
        while !bytes.is_empty() {
            let due = self.patience.blocked(Instant::now());
            let written = timeout_at(due.into(), self.send.write(bytes)).await;
            let written = written.map_err(|_| Broken::Server(Code::BrokenOff))?;
            let written = written.map_err(|error| match error {
                WriteError::Stopped(_) | WriteError::InvalidStopped(_) => StreamError::Stopped,
                WriteError::SessionError(_) | WriteError::ClosedStream => StreamError::Lost,
            })?;
            self.patience.moved(Instant::now(), written);
            bytes = &bytes[written..];
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Broken> {
        self.send.finish().map_err(|_| StreamError::Lost.into())
    }
}

/// Passes a reader's message on to its answer's task.
async fn pass_frame(
    commands: &CommandSender,
    id: PathId,
    message: StreamMessage,
) -> Result<(), StreamError> {
    match message {
        StreamMessage { kind: MessageKind::Frame, payload } if payload.len() <= MAX_FRAME_BYTES => {
            let _ = commands.send(AnswerCommand::Frame(id, payload)).await;
            Ok(())
        }
        // As if it were malformed (S-2.5).
        StreamMessage { kind: MessageKind::Frame, .. } => Ok(()),
        _ => Err(StreamError::Protocol("a message out of order")),
    }
}

/// Contents of an ANSWER message (S-4.2).
struct AnswerHead {
    handle: AnswerHandle,
    channel: u64,
    offset: u64,
    epoch: u64,
    headers: HeaderMap,
}

impl AnswerHead {
    fn json(&self) -> Value {
        let Self { handle, channel, offset, epoch, headers } = self;
        let (id, token) = (handle.id_hex(), handle.token_hex());
        let mut head = json!({"id": id, "token": token, "channel": channel, "offset": offset});
        if *epoch > 0 {
            head["epoch"] = (*epoch).into();
        }
        if !headers.is_empty() {
            head["headers"] = header_json(headers).into();
        }
        head
    }
}

/// Converts headers to an object of strings.
fn header_json(headers: &HeaderMap) -> Map<String, Value> {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    headers.iter().map(|(name, value)| (name.to_string(), text(value).into())).collect()
}
