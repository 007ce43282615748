//! An answer over QUIC: DATA in datagrams or on the QUIC stream, acknowledged
//! (`spec/session.md`, section 4).

use std::time::Duration;

use bytes::Bytes;
use loquent_proto::frame::{Frame, Resume};
use loquent_proto::grease;
use loquent_proto::{AnswerHandle, Micros, Position, Receiver};
use tokio::time::Instant;

use super::state::PathOutcome;
use crate::ClientError;
use crate::connections::Connections;
use crate::message::{AnswerHead, Code, Message, MessageKind, put_message};
use crate::quic_connection::{MessageStream, QuicConnection, Route};

/// Time limit for a resume over QUIC before another way is tried.
pub(super) const RESUME_TIMEOUT: Duration = Duration::from_secs(3);
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

/// Event of one path.
pub(super) enum LaneEvent {
    Datagram(Bytes),
    /// A message, the stream's end or its failure.
    Message(Result<Option<Message>, ClientError>),
    /// Bytes of the waiting frames that were written, or the reason why none can be.
    Written(Result<usize, String>),
    /// The connection is gone.
    Disconnected,
}

/// A QUIC stream and a channel of one connection that carry one answer.
pub(crate) struct QuicPath {
    pub(super) quic: QuicConnection,
    stream: MessageStream,
    pub(super) route: Route,
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
    pub(super) lost_at: Option<Instant>,
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
    pub(super) fn transmit(&mut self, now: Micros, receiver: &mut Receiver, slot: usize) {
        let mut frame = Vec::new();
        while receiver.poll_transmit_on(now, slot, &mut frame).is_some() {
            if self.greased {
                grease::mark_ack(&mut frame);
            }
            let left = self.quic.send_datagram(Bytes::copy_from_slice(&frame));
            let unanswered = receiver.unanswered_probes_on(slot) >= 2;
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
        slot: usize,
        frame: &[u8],
        by_stream: bool,
    ) {
        match receiver.handle_datagram_on(now, slot, frame) {
            Ok(()) => {
                self.lost_at = None;
                if by_stream && !self.by_stream {
                    // Nothing else may have reached the server for long (S-4.4).
                    receiver.acknowledge_at_once_on(now, slot);
                }
                self.by_stream = by_stream;
            }
            // D-2.5: it had no effect.
            Err(error) => tracing::trace!("frame ignored: {error}"),
        }
    }

    /// Starts the timer within which the path must show life.
    pub(super) fn doubt(&mut self) {
        self.packets_before = self.quic.packets_received();
        self.lost_at = Some(Instant::now() + REBIND_WAIT);
    }

    /// Returns true if that timer has expired. Then also closes the connection, if no packet
    /// arrived on it.
    pub(super) fn is_lost(&self, connections: &Connections) -> bool {
        let lost = self.lost_at.is_some_and(|at| at <= Instant::now());
        if lost && self.quic.packets_received() == self.packets_before {
            connections.give_up(&self.quic);
        }
        lost
    }

    /// Moves to a new local port, because the path is silent; it must then show life.
    pub(super) fn try_another_port(&mut self) {
        self.quic.rebind(REBIND_PAUSE);
        self.doubt();
    }

    /// Waits for the next event of the path; forever if `reads` is false and nothing is to be
    /// written. Cancel safe.
    pub(super) async fn next_event(&mut self, reads: bool) -> LaneEvent {
        tokio::select! {
            biased;
            datagram = self.route.datagrams.recv(), if reads => {
                datagram.map_or(LaneEvent::Disconnected, LaneEvent::Datagram)
            }
            message = self.stream.incoming.next(), if reads && self.readable => {
                LaneEvent::Message(message)
            }
            written = self.stream.send.write(&self.out), if !self.out.is_empty() => {
                LaneEvent::Written(written.map_err(|error| error.to_string()))
            }
            () = std::future::pending() => unreachable!("it never is"),
        }
    }

    /// Handles an event at `now`; returns an outcome if the path ended.
    pub(super) fn handle_event(
        &mut self,
        now: Micros,
        receiver: &mut Receiver,
        slot: usize,
        event: LaneEvent,
    ) -> Option<PathOutcome> {
        match event {
            LaneEvent::Datagram(frame) => {
                self.handle_frame(now, receiver, slot, &frame, false);
                None
            }
            LaneEvent::Message(read) => self.handle_message(now, receiver, slot, read),
            LaneEvent::Written(Ok(bytes)) => {
                self.out.drain(..bytes);
                None
            }
            LaneEvent::Written(Err(error)) => Some(PathOutcome::lost(&error)),
            LaneEvent::Disconnected => Some(PathOutcome::of(self.quic.loss())),
        }
    }

    /// Handles a message, the stream's end or its failure; returns an outcome if the path ended.
    fn handle_message(
        &mut self,
        now: Micros,
        receiver: &mut Receiver,
        slot: usize,
        read: Result<Option<Message>, ClientError>,
    ) -> Option<PathOutcome> {
        match read {
            Ok(Some(Message { kind: MessageKind::Frame, payload })) => {
                self.handle_frame(now, receiver, slot, &payload, true);
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

    /// Returns true while the server may still want to hear that everything arrived.
    pub(super) fn is_listened_to(&self) -> bool {
        self.readable && self.quic.is_open()
    }

    /// Ends the client's side of the QUIC stream.
    pub(super) fn finish(&mut self) {
        let _ = self.stream.send.finish();
    }

    /// Cancels the answer without waiting for anything (S-4.5).
    pub(super) fn cancel(&mut self) {
        let _ = self.stream.send.reset(Code::Cancelled.number().into());
    }

    /// Sends STOP and waits for the server to acknowledge it (S-4.5).
    pub(super) async fn stop(&mut self, now: Micros, receiver: &mut Receiver, slot: usize) {
        receiver.stop();
        self.by_stream = true;
        self.transmit(now, receiver, slot);
        let send = &mut self.stream.send;
        let saying = async {
            send.write_all(&self.out).await.ok()?;
            send.finish().ok()?;
            send.stopped().await.ok()
        };
        if tokio::time::timeout(STOP_TIMEOUT, saying).await.is_err() {
            self.cancel();
        }
    }
}
