//! An answer by QUIC: DATA in datagrams or on the stream, acknowledged
//! (`spec/session.md`, section 4).

use std::time::Duration;

use bytes::Bytes;
use loquent_proto::frame::{Frame, Resume};
use loquent_proto::headers::IGNORED_HEADER;
use loquent_proto::{AnswerHandle, Delta, Micros, Receiver, ReceiverEvent};
use quinn::VarInt;
use tokio::time::Instant;

use super::{Answer, Asked, Content, Driver, Item, Outcome, Path, Step};
use crate::ClientError;
use crate::client::{Client, Request};
use crate::link::{Link, MessageStream, Route};
use crate::message::{
    AnswerHead, Message, MessageKind, RequestHead, ResponseHead, code, put_body, put_message,
};
use crate::reply::Reply;

/// A silent path gets a new port, and so long to answer from there.
const REBIND_WAIT: Duration = Duration::from_millis(1_000);
/// Least time between two new ports.
const REBIND_PAUSE: Duration = Duration::from_secs(10);
/// How long a STOP may take to arrive.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// Without a packet for so long after a request the connection is taken to be dead.
const REQUEST_SILENCE: Duration = Duration::from_secs(4);
/// Code of a stream that broke off (S-3.2).
const BROKEN_OFF: u64 = 2;
/// Acknowledgements that may wait for the stream, in bytes.
const MAX_OUT_BYTES: usize = 16 * 1024;

/// A stream of one connection that carries one answer.
pub(crate) struct QuicPath {
    link: Link,
    stream: MessageStream,
    route: Route,
    /// The server may send more messages.
    readable: bool,
    /// For the stream.
    out: Vec<u8>,
    /// The last bytes of the log came on the stream, so acknowledgements go there too.
    by_stream: bool,
    /// The path looks dead: unless something comes, it is lost at this time.
    lost_at: Option<Instant>,
    /// Packets that had arrived on the connection when it began to look so.
    packets_before: u64,
}

/// Asks for an answer by datagram (S-4.1).
///
/// # Errors
/// What befell the connection; whether the server began to work is not known.
pub(crate) async fn ask(
    client: &Client,
    link: &Link,
    request: &Request,
) -> Result<Asked, ClientError> {
    let route = link.route();
    let mut stream = link.open().await?;
    let mut out = Vec::new();
    request.head(client.key(), Some(route.stream)).put(&mut out);
    put_body(&request.body, true, &mut out);
    let first = async {
        stream.write(&out).await?;
        stream.incoming.next().await
    };
    let first = unless_silent(client, link, first).await?;
    match first {
        Some(Message { kind: MessageKind::Response, payload }) => {
            let head = ResponseHead::parse(&payload).inspect_err(|_| stream.refuse())?;
            let _ = stream.send.finish();
            Ok(Asked::Reply(Reply::by_quic(&head, stream, link.clone())))
        }
        Some(Message { kind: MessageKind::Answer, payload }) => {
            let head = AnswerHead::parse(&payload).inspect_err(|_| stream.refuse())?;
            if (head.stream, head.offset) != (route.stream, 0) {
                stream.refuse();
                return Err(ClientError::Malformed("an answer to another request".into()));
            }
            let path = Path::Quic(Box::new(QuicPath::new(link.clone(), stream, route)));
            let answer = Answer::start(client, head.handle, path, 0);
            let ignored = head.headers.get(IGNORED_HEADER).cloned();
            Ok(Asked::Answer(answer.with_ignored_parameters(ignored)))
        }
        Some(_) => {
            stream.refuse();
            Err(ClientError::Malformed("neither a response nor an answer".into()))
        }
        None => Err(ClientError::Truncated),
    }
}

/// Waits for `work` for as long as packets come; a connection without any is given up.
async fn unless_silent<T>(
    client: &Client,
    link: &Link,
    work: impl Future<Output = Result<T, ClientError>>,
) -> Result<T, ClientError> {
    let mut work = std::pin::pin!(work);
    loop {
        let heard = link.packets_received();
        match tokio::time::timeout(REQUEST_SILENCE, &mut work).await {
            Ok(done) => return done,
            Err(_) if link.packets_received() == heard => {
                client.give_up(link);
                return Err(ClientError::Broken("the server is silent".into()));
            }
            Err(_) => {}
        }
    }
}

impl Request {
    fn head<'a>(&'a self, key: Option<&'a str>, stream: Option<u64>) -> RequestHead<'a> {
        let headers = self.headers.iter().filter(|(name, _)| *name != "authorization");
        let headers = headers
            .filter_map(|(name, value)| Some((name.to_string(), value.to_str().ok()?.to_owned())))
            .collect();
        let key = self.key.as_deref().or(key);
        RequestHead { key, method: self.method.as_str(), path: &self.path, headers, stream }
    }

    /// Sends the request through the tunnel of `link` (S-3.1).
    ///
    /// # Errors
    /// What befell the connection; whether the server began to work is not known.
    pub(crate) async fn tunnel(
        &self,
        client: &Client,
        mut stream: MessageStream,
        link: &Link,
    ) -> Result<Reply, ClientError> {
        let mut out = Vec::new();
        self.head(client.key(), None).put(&mut out);
        put_body(&self.body, false, &mut out);
        let first = async {
            stream.write(&out).await?;
            let _ = stream.send.finish();
            stream.incoming.next().await
        };
        match unless_silent(client, link, first).await? {
            Some(Message { kind: MessageKind::Response, payload }) => {
                let head = ResponseHead::parse(&payload).inspect_err(|_| stream.refuse())?;
                Ok(Reply::by_quic(&head, stream, link.clone()))
            }
            Some(_) => {
                stream.refuse();
                Err(ClientError::Malformed("no response to a request".into()))
            }
            None => Err(ClientError::Truncated),
        }
    }
}

impl QuicPath {
    fn new(link: Link, stream: MessageStream, route: Route) -> QuicPath {
        QuicPath {
            link,
            stream,
            route,
            readable: true,
            out: Vec::new(),
            by_stream: false,
            lost_at: None,
            packets_before: 0,
        }
    }

    /// Goes on with an answer from `offset` (S-4.7).
    ///
    /// # Errors
    /// [`ClientError::Gone`], or what befell the connection.
    pub(crate) async fn resume(
        link: &Link,
        handle: AnswerHandle,
        offset: u64,
    ) -> Result<QuicPath, ClientError> {
        let route = link.route();
        let mut stream = link.open().await?;
        let resume = Resume { stream: route.stream, id: handle.id, token: handle.token, offset };
        let (mut frame, mut out) = (Vec::new(), Vec::new());
        Frame::Resume(resume).encode(false, &mut frame);
        put_message(MessageKind::Frame, &frame, &mut out);
        stream.write(&out).await?;
        match stream.incoming.next().await? {
            Some(Message { kind: MessageKind::Answer, payload }) => {
                let head = AnswerHead::parse(&payload).inspect_err(|_| stream.refuse())?;
                if (head.stream, head.offset) != (route.stream, offset) {
                    stream.refuse();
                    return Err(ClientError::Malformed("another resume's answer".into()));
                }
                Ok(QuicPath::new(link.clone(), stream, route))
            }
            Some(Message { kind: MessageKind::Frame, payload })
                if matches!(Frame::decode(&payload, false), Ok(Frame::Gone { .. })) =>
            {
                Err(ClientError::Gone)
            }
            Some(_) => {
                stream.refuse();
                Err(ClientError::Malformed("neither an answer nor its absence".into()))
            }
            None => Err(ClientError::Truncated),
        }
    }

    /// Sends what the receiver has to say: in a datagram and, where only the stream gets
    /// through, there as well (S-4.3).
    fn transmit(&mut self, now: Micros, receiver: &mut Receiver) {
        let mut frame = Vec::new();
        while receiver.poll_transmit(now, &mut frame).is_some() {
            let left = self.link.send_datagram(Bytes::copy_from_slice(&frame));
            if (self.by_stream || !left) && self.out.len() < MAX_OUT_BYTES {
                put_message(MessageKind::Frame, &frame, &mut self.out);
            }
            frame.clear();
        }
    }

    /// Takes in what the stream or a datagram brought.
    fn handle_frame(
        &mut self,
        now: Micros,
        receiver: &mut Receiver,
        frame: &[u8],
        by_stream: bool,
    ) {
        match receiver.handle_datagram(now, frame) {
            Ok(()) => {
                self.lost_at = None;
                self.by_stream = by_stream;
            }
            // D-2.5: it had no effect.
            Err(error) => tracing::trace!("frame ignored: {error}"),
        }
    }

    /// Gives the path a little time to show that it lives.
    fn doubt(&mut self) {
        self.packets_before = self.link.packets_received();
        self.lost_at = Some(Instant::now() + REBIND_WAIT);
    }

    /// Whether that time is over; then the connection is given up if it is dead as a whole.
    fn is_lost(&self, client: &Client) -> bool {
        let lost = self.lost_at.is_some_and(|at| at <= Instant::now());
        if lost && self.link.packets_received() == self.packets_before {
            client.give_up(&self.link);
        }
        lost
    }

    /// What a message, the stream's end or its failure mean.
    fn handle_message(
        &mut self,
        now: Micros,
        receiver: &mut Receiver,
        read: Result<Option<Message>, ClientError>,
    ) -> Option<Outcome> {
        match read {
            Ok(Some(Message { kind: MessageKind::Frame, payload })) => {
                self.handle_frame(now, receiver, &payload, true);
                None
            }
            Ok(Some(message)) => {
                self.stream.refuse();
                let what = format!("{:?} within an answer", message.kind);
                Some(Outcome::Lost(ClientError::Malformed(what)))
            }
            Ok(None) => {
                // The last datagrams may have come before and wait to be taken in.
                self.readable = false;
                self.doubt();
                None
            }
            // Another reader has taken the answer, or it was stopped (S-5.4).
            Err(ClientError::Reset(BROKEN_OFF)) => Some(Outcome::Failed(ClientError::Gone)),
            Err(error) => Some(Outcome::Lost(error)),
        }
    }

    /// Acknowledges until the server knows that everything arrived (D-5.8).
    pub(super) async fn linger(mut self: Box<Self>, client: &Client, receiver: &mut Receiver) {
        while self.readable && self.link.is_open() && !receiver.is_closed() {
            let now = client.now();
            receiver.handle_timeout(now);
            self.transmit(now, receiver);
            while receiver.poll_event().is_some() {}
            let at = client.instant(receiver.poll_timeout().unwrap_or(now));
            tokio::select! {
                datagram = self.route.datagrams.recv() => match datagram {
                    Some(frame) => self.handle_frame(client.now(), receiver, &frame, false),
                    None => return,
                },
                message = self.stream.incoming.next() => {
                    if self.handle_message(client.now(), receiver, message).is_some() {
                        return;
                    }
                }
                written = self.stream.send.write(&self.out), if !self.out.is_empty() => {
                    match written {
                        Ok(bytes) => drop(self.out.drain(..bytes)),
                        Err(_) => return,
                    }
                }
                () = tokio::time::sleep_until(at) => {}
            }
        }
        let _ = self.stream.send.finish();
    }

    /// Says STOP, and sees to it that it arrives (S-4.5).
    pub(super) async fn stop(mut self: Box<Self>, client: &Client, receiver: &mut Receiver) {
        receiver.stop();
        self.by_stream = true;
        self.transmit(client.now(), receiver);
        let send = &mut self.stream.send;
        let saying = async {
            send.write_all(&self.out).await.ok()?;
            send.finish().ok()?;
            send.stopped().await.ok()
        };
        if tokio::time::timeout(STOP_TIMEOUT, saying).await.is_err() {
            let _ = self.stream.send.reset(VarInt::from_u32(code::CANCELLED));
        }
    }
}

impl Driver {
    /// Reads the answer from `path` for as long as that works.
    pub(super) async fn carry_quic(&mut self, path: &mut QuicPath) -> Outcome {
        let mut receiver = self.receiver_for(path);
        let outcome = self.receive(path, &mut receiver).await;
        self.receiver = Some(receiver);
        outcome
    }

    /// The receiver that has what arrived on earlier connections, or a new one.
    fn receiver_for(&mut self, path: &QuicPath) -> Receiver {
        let (now, stream) = (self.client.now(), path.route.stream);
        match self.receiver.take() {
            Some(mut receiver) => {
                receiver.migrate(now, stream);
                receiver
            }
            None => Receiver::new(now, stream, 0, self.client.config().receiver.clone()),
        }
    }

    async fn receive(&mut self, path: &mut QuicPath, receiver: &mut Receiver) -> Outcome {
        let mut end = None;
        loop {
            let now = self.client.now();
            receiver.handle_timeout(now);
            path.transmit(now, receiver);
            if end.is_none() {
                end = self.take_events(path, receiver);
            }
            let ready = self.waiting.is_empty();
            if ready && let Some(end) = end.take() {
                return end;
            }
            let due = receiver.poll_timeout().map(|at| self.client.instant(at));
            let at = [due, path.lost_at.filter(|_| ready)].into_iter().flatten().min();
            let at = at.unwrap_or_else(|| Instant::now() + REBIND_PAUSE);
            tokio::select! {
                biased;
                () = self.items.closed() => return Outcome::Cancelled,
                permit = self.items.reserve(), if !ready => {
                    if let (Ok(permit), Some(item)) = (permit, self.waiting.pop_front()) {
                        permit.send(item);
                    }
                }
                datagram = path.route.datagrams.recv(), if ready => match datagram {
                    Some(frame) => path.handle_frame(self.client.now(), receiver, &frame, false),
                    None => return lost("the connection is gone"),
                },
                message = path.stream.incoming.next(), if ready && path.readable => {
                    end = path.handle_message(self.client.now(), receiver, message).or(end);
                }
                written = path.stream.send.write(&path.out), if !path.out.is_empty() => {
                    match written {
                        Ok(bytes) => drop(path.out.drain(..bytes)),
                        Err(error) => return lost(&error.to_string()),
                    }
                }
                () = tokio::time::sleep_until(at) => {
                    if ready && path.is_lost(&self.client) {
                        return lost("the path is silent");
                    }
                }
            }
        }
    }

    /// Hands over what the receiver shows; how the answer ended, if it did.
    fn take_events(&mut self, path: &mut QuicPath, receiver: &mut Receiver) -> Option<Outcome> {
        while self.waiting.is_empty() {
            match receiver.poll_event()? {
                ReceiverEvent::Delta { offset, delta } => {
                    if let Delta::Error { message, .. } = &delta {
                        self.server_error = Some(message.clone());
                    }
                    self.handle_delta(offset, delta);
                }
                ReceiverEvent::Complete => return Some(Outcome::Complete),
                ReceiverEvent::Failed(Some(error)) => {
                    return Some(Outcome::Failed(ClientError::Malformed(error.to_string())));
                }
                ReceiverEvent::Failed(None) => {
                    let said = self.server_error.take().map(ClientError::Stream);
                    return Some(Outcome::Failed(said.unwrap_or(ClientError::Gone)));
                }
                ReceiverEvent::Silent => {
                    path.link.rebind(REBIND_PAUSE);
                    path.doubt();
                }
            }
        }
        None
    }

    fn handle_delta(&mut self, offset: u64, delta: Delta) {
        let seen = offset <= self.seen_until;
        // Log probabilities belong to the chunk of the text after them (S-6.2).
        if !matches!(delta, Delta::Logprobs { .. }) {
            self.cursor = self.cursor.max(offset);
        }
        let content = Content::Record(delta);
        self.deliver(Item::Step(Step { offset, seen, content }));
    }
}

fn lost(why: &str) -> Outcome {
    Outcome::Lost(ClientError::Broken(why.to_owned()))
}
