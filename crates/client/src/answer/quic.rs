//! An answer over QUIC: DATA in datagrams or on the QUIC stream, acknowledged
//! (`spec/session.md`, section 4).

use std::time::Duration;

use bytes::Bytes;
use loquent_proto::frame::{Frame, Resume};
use loquent_proto::grease;
use loquent_proto::{AnswerHandle, Delta, Micros, Position, Receiver, ReceiverEvent};
use tokio::time::Instant;

use super::state::{AnswerState, PathOutcome};
use crate::ClientError;
use crate::connections::Connections;
use crate::message::{AnswerHead, Code, Message, MessageKind, put_message};
use crate::quic_connection::{MessageStream, QuicConnection, Route};

/// Time limit for a silent path to show life after it moved to a new local port.
const REBIND_WAIT: Duration = Duration::from_millis(1_000);
/// Minimum time between two moves to a new port: each costs a path validation.
const REBIND_PAUSE: Duration = Duration::from_secs(10);
/// Time limit for the server to acknowledge a STOP.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// One in this many paths carries grease: messages and flags that the server must skip (S-2.7).
const GREASED_EVERY: u64 = 4;
/// Maximum bytes of acknowledgements waiting to be written to the stream.
const MAX_OUT_BYTES: usize = 16 * 1024;

/// Returns a random number for one in [`GREASED_EVERY`] paths, which then carry grease.
pub(super) fn draw_grease() -> Option<u64> {
    Some(rand::random()).filter(|draw: &u64| draw.is_multiple_of(GREASED_EVERY))
}

/// A QUIC stream and a channel of one connection that carry one answer.
pub(crate) struct QuicPath {
    quic: QuicConnection,
    stream: MessageStream,
    route: Route,
    /// Epoch of the log that the path carries (D-6.8).
    pub(super) epoch: u64,
    /// True while the server may send more messages.
    readable: bool,
    /// Frames waiting to be written to the QUIC stream.
    out: Vec<u8>,
    /// True if the last DATA came on the QUIC stream, so acknowledgements go there too (S-4.4).
    by_stream: bool,
    /// True if acknowledgements carry a meaningless flag, as grease.
    greased: bool,
    /// Time at which the path counts as lost unless a frame arrives; `None` while it works.
    lost_at: Option<Instant>,
    /// Packets that had arrived on the connection when the path first looked dead.
    packets_before: u64,
}

impl QuicPath {
    pub(super) fn new(
        quic: QuicConnection,
        stream: MessageStream,
        route: Route,
        epoch: u64,
    ) -> QuicPath {
        QuicPath {
            quic,
            stream,
            route,
            epoch,
            readable: true,
            out: Vec::new(),
            by_stream: false,
            greased: draw_grease().is_some(),
            lost_at: None,
            packets_before: 0,
        }
    }

    /// Resumes an answer from `position` (S-4.7).
    ///
    /// # Errors
    /// [`ClientError::Gone`], or a connection error.
    pub(crate) async fn resume(
        quic: &QuicConnection,
        handle: AnswerHandle,
        position: Position,
    ) -> Result<QuicPath, ClientError> {
        let route = quic.route();
        let mut stream = quic.open().await?;
        let offset = position.number();
        let resume = Resume { channel: route.channel, id: handle.id, token: handle.token, offset };
        let (mut frame, mut out) = (Vec::new(), Vec::new());
        Frame::Resume(resume).encode(false, &mut frame);
        put_message(MessageKind::Frame, &frame, &mut out);
        stream.write(&out).await?;
        match stream.incoming.next().await? {
            Some(Message { kind: MessageKind::Answer, payload }) => {
                let head = AnswerHead::parse(&payload).inspect_err(|_| stream.refuse())?;
                if (head.channel, head.offset) != (route.channel, position.offset) {
                    stream.refuse();
                    return Err(ClientError::Malformed("another resume's answer".into()));
                }
                Ok(QuicPath::new(quic.clone(), stream, route, head.epoch))
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

    /// Sends the receiver's frames in datagrams, and also on the QUIC stream if datagrams may not
    /// get through (S-4.4, D-9.5).
    fn transmit(&mut self, now: Micros, receiver: &mut Receiver) {
        let mut frame = Vec::new();
        while receiver.poll_transmit(now, &mut frame).is_some() {
            if self.greased {
                grease::mark_ack(&mut frame);
            }
            let left = self.quic.send_datagram(Bytes::copy_from_slice(&frame));
            let unanswered = receiver.unanswered_probes() >= 2;
            if (self.by_stream || unanswered || !left) && self.out.len() < MAX_OUT_BYTES {
                put_message(MessageKind::Frame, &frame, &mut self.out);
            }
            frame.clear();
        }
    }

    /// Handles a frame from the stream or a datagram.
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
                if by_stream && !self.by_stream {
                    // Nothing else may have reached the server for long (S-4.4).
                    receiver.acknowledge_at_once(now);
                }
                self.by_stream = by_stream;
            }
            // D-2.5: it had no effect.
            Err(error) => tracing::trace!("frame ignored: {error}"),
        }
    }

    /// Starts the timer within which the path must show life.
    fn doubt(&mut self) {
        self.packets_before = self.quic.packets_received();
        self.lost_at = Some(Instant::now() + REBIND_WAIT);
    }

    /// Returns true if that timer has expired. Then also closes the connection, if no packet
    /// arrived on it.
    fn is_lost(&self, connections: &Connections) -> bool {
        let lost = self.lost_at.is_some_and(|at| at <= Instant::now());
        if lost && self.quic.packets_received() == self.packets_before {
            connections.give_up(&self.quic);
        }
        lost
    }

    /// Handles a message, the stream's end or its failure; returns an outcome if the path ended.
    fn handle_message(
        &mut self,
        now: Micros,
        receiver: &mut Receiver,
        read: Result<Option<Message>, ClientError>,
    ) -> Option<PathOutcome> {
        match read {
            Ok(Some(Message { kind: MessageKind::Frame, payload })) => {
                self.handle_frame(now, receiver, &payload, true);
                None
            }
            Ok(Some(message)) => {
                self.stream.refuse();
                let what = format!("{:?} within an answer", message.kind);
                Some(PathOutcome::Lost(ClientError::Malformed(what)))
            }
            Ok(None) => {
                // The last datagrams may have arrived before and wait in the queue.
                self.readable = false;
                self.doubt();
                None
            }
            Err(error) => Some(PathOutcome::of(error)),
        }
    }

    /// Keeps acknowledging until the server knows that everything arrived (D-5.8).
    pub(super) async fn linger(
        mut self: Box<Self>,
        connections: &Connections,
        receiver: &mut Receiver,
    ) {
        while self.readable && self.quic.is_open() && !receiver.is_closed() {
            let now = connections.now();
            receiver.handle_timeout(now);
            self.transmit(now, receiver);
            while receiver.poll_event().is_some() {}
            let at = connections.instant(receiver.poll_timeout().unwrap_or(now));
            tokio::select! {
                datagram = self.route.datagrams.recv() => match datagram {
                    Some(frame) => self.handle_frame(connections.now(), receiver, &frame, false),
                    None => return,
                },
                message = self.stream.incoming.next() => {
                    if self.handle_message(connections.now(), receiver, message).is_some() {
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

    /// Sends STOP and waits for the server to acknowledge it (S-4.5).
    pub(super) async fn stop(
        mut self: Box<Self>,
        connections: &Connections,
        receiver: &mut Receiver,
    ) {
        receiver.stop();
        self.by_stream = true;
        self.transmit(connections.now(), receiver);
        let send = &mut self.stream.send;
        let saying = async {
            send.write_all(&self.out).await.ok()?;
            send.finish().ok()?;
            send.stopped().await.ok()
        };
        if tokio::time::timeout(STOP_TIMEOUT, saying).await.is_err() {
            let _ = self.stream.send.reset(Code::Cancelled.number().into());
        }
    }
}

impl QuicPath {
    /// Reads the answer from this path until the path ends.
    pub(super) async fn carry(&mut self, state: &mut AnswerState) -> PathOutcome {
        let mut receiver = self.receiver_for(state);
        let outcome = self.receive(state, &mut receiver).await;
        state.receiver = Some(receiver);
        outcome
    }

    /// Returns the receiver with the data of earlier connections, or a new one.
    fn receiver_for(&self, state: &mut AnswerState) -> Receiver {
        let (now, channel) = (state.connections.now(), self.route.channel);
        match state.receiver.take() {
            Some(mut receiver) => {
                receiver.migrate(now, channel);
                receiver
            }
            None => Receiver::new(now, channel, 0, state.connections.config().receiver.clone()),
        }
    }

    async fn receive(&mut self, state: &mut AnswerState, receiver: &mut Receiver) -> PathOutcome {
        let mut end = None;
        loop {
            let now = state.connections.now();
            receiver.handle_timeout(now);
            self.transmit(now, receiver);
            if end.is_none() {
                end = self.take_events(state, receiver);
            }
            // Nothing more is read while the reader is behind: that is the back-pressure.
            let ready = state.waiting.is_empty();
            if ready && let Some(end) = end.take() {
                return end;
            }
            let due = receiver.poll_timeout().map(|at| state.connections.instant(at));
            let at = [due, self.lost_at.filter(|_| ready)].into_iter().flatten().min();
            let at = at.unwrap_or_else(|| Instant::now() + REBIND_PAUSE);
            tokio::select! {
                biased;
                () = state.items.closed() => return PathOutcome::Cancelled,
                permit = state.items.reserve(), if !ready => {
                    if let (Ok(permit), Some(item)) = (permit, state.waiting.pop_front()) {
                        permit.send(item);
                    }
                }
                datagram = self.route.datagrams.recv(), if ready => match datagram {
                    Some(frame) => {
                        self.handle_frame(state.connections.now(), receiver, &frame, false);
                    }
                    None => return PathOutcome::of(self.quic.loss()),
                },
                message = self.stream.incoming.next(), if ready && self.readable => {
                    end = self.handle_message(state.connections.now(), receiver, message).or(end);
                }
                written = self.stream.send.write(&self.out), if !self.out.is_empty() => {
                    match written {
                        Ok(bytes) => drop(self.out.drain(..bytes)),
                        Err(error) => return PathOutcome::lost(&error.to_string()),
                    }
                }
                () = tokio::time::sleep_until(at) => {
                    if ready && self.is_lost(&state.connections) {
                        return PathOutcome::lost("the path is silent");
                    }
                }
            }
        }
    }

    /// Passes the receiver's events to the reader; returns an outcome if the answer ended.
    fn take_events(
        &mut self,
        state: &mut AnswerState,
        receiver: &mut Receiver,
    ) -> Option<PathOutcome> {
        while state.waiting.is_empty() {
            match receiver.poll_event()? {
                ReceiverEvent::Delta { offset, delta } => {
                    if let Delta::Error { message, .. } = &delta {
                        state.server_error = Some(message.clone());
                    }
                    let position = Position { epoch: self.epoch, offset };
                    if let Some(end) = state.deliver_record(position.number(), delta) {
                        return Some(end);
                    }
                }
                ReceiverEvent::Complete => return Some(PathOutcome::Complete),
                ReceiverEvent::Failed(Some(error)) => {
                    return Some(PathOutcome::Failed(ClientError::Malformed(error.to_string())));
                }
                ReceiverEvent::Failed(None) => {
                    let reported = state.server_error.take().map(ClientError::Stream);
                    return Some(PathOutcome::Failed(reported.unwrap_or(ClientError::Gone)));
                }
                ReceiverEvent::Silent => {
                    self.quic.rebind(REBIND_PAUSE);
                    self.doubt();
                }
            }
        }
        None
    }
}
