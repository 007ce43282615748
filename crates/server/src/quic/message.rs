//! Messages on a QUIC stream (`spec/session.md`, section 2): a type, a length, a payload.

use bytes::{Buf, Bytes, BytesMut};
use loquent_proto::frame::Frame;
pub use loquent_proto::message::{Code, MessageKind, put_message};
use loquent_proto::message::{HeadError, MessageHead};
use tokio::sync::Semaphore;
use web_transport_quinn::{ReadError, RecvStream};

/// Maximum bytes of one read from the stream.
const CHUNK_BYTES: usize = 16 * 1024;
/// Bytes of a first message that are read from any client: several times a usual head.
const STRANGER_BYTES: usize = 4 * 1024;
/// Bytes that are read ahead of an answer: several times a STOP frame's.
const EARLY_BYTES: usize = 256;
/// Longest client message other than a part of a body: a request's head, or a frame.
pub const MAX_CLIENT_MESSAGE_BYTES: usize = 64 * 1024;

/// A complete message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamMessage {
    /// Type of the message.
    pub kind: MessageKind,
    /// Contents, whose format depends on the type.
    pub payload: Bytes,
}

impl StreamMessage {
    /// Takes the message at the front of `buffer` if it is complete; drops messages before it that
    /// are to be skipped.
    ///
    /// # Errors
    /// `StreamError::Protocol` for an unknown type below 64 or a length beyond `most`.
    pub fn take(buffer: &mut BytesMut, most: usize) -> Result<Option<Self>, StreamError> {
        loop {
            let head = read_head(buffer, most)?;
            let Some(head) = head.filter(|head| buffer.len() >= head.whole_len()) else {
                return Ok(None);
            };
            buffer.advance(head.len);
            let payload = buffer.split_to(head.payload_len);
            if let Some(kind) = head.kind {
                return Ok(Some(Self { kind, payload: payload.freeze() }));
            }
        }
    }
}

fn read_head(buffer: &[u8], most: usize) -> Result<Option<MessageHead>, StreamError> {
    MessageHead::read(buffer, most).map_err(|error| match error {
        HeadError::UnknownKind(_) => StreamError::Protocol("an unknown message"),
        HeadError::Length(_) => StreamError::Protocol("an impossible length"),
        HeadError::TooLong => too_long(),
    })
}

fn too_long() -> StreamError {
    StreamError::Protocol("a message that is too long")
}

/// Reason why no message could be read from a stream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The client violated the protocol by sending this.
    #[error("the client sent {0}")]
    Protocol(&'static str),
    /// The client reset the stream for this reason.
    #[error("the client reset the stream: {0:?}")]
    Reset(Code),
    /// The client stopped reading the stream.
    #[error("the client stopped reading the stream")]
    Stopped,
    /// The connection ended.
    #[error("the connection was lost")]
    Lost,
}

/// Reads a stream's messages.
pub struct MessageReader {
    stream: RecvStream,
    /// Bytes read of the next message.
    buffer: BytesMut,
    /// Remaining bytes of the current BODY message.
    body_left: usize,
    /// Code with which the client reset the stream: quinn tells it once.
    reset: Option<Code>,
}

/// Next piece of a request's body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BodyPiece {
    /// Some bytes.
    Bytes(Bytes),
    /// An empty message.
    Empty,
    /// The end of the stream.
    End,
}

impl MessageReader {
    /// Creates a reader of the messages of `stream`.
    pub fn new(stream: RecvStream) -> Self {
        Self { stream, buffer: BytesMut::new(), body_left: 0, reset: None }
    }

    /// Returns the next message; `None` at the stream's end. Cancel safe.
    ///
    /// # Errors
    /// When the stream was reset, the connection ended, or the bytes are not a message of at most
    /// [`MAX_CLIENT_MESSAGE_BYTES`].
    pub async fn next(&mut self) -> Result<Option<StreamMessage>, StreamError> {
        loop {
            let taken = StreamMessage::take(&mut self.buffer, MAX_CLIENT_MESSAGE_BYTES)?;
            if taken.is_some() || !self.fill(CHUNK_BYTES).await? {
                return Ok(taken);
            }
        }
    }

    /// Returns the first message. Its sender is not authenticated yet, so reading more than
    /// [`STRANGER_BYTES`] requires one of the `large` permits, which all connections share.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub async fn first(&mut self, large: &Semaphore) -> Result<Option<StreamMessage>, StreamError> {
        let mut place = None;
        loop {
            let taken = StreamMessage::take(&mut self.buffer, MAX_CLIENT_MESSAGE_BYTES)?;
            if taken.is_some() {
                return Ok(taken);
            }
            if place.is_none() && self.buffer.len() >= STRANGER_BYTES {
                place = Some(large.acquire().await.expect("the semaphore is never closed"));
            }
            if !self.fill(STRANGER_BYTES).await? {
                return Ok(None);
            }
        }
    }

    /// Returns the next piece of a request's body, as it arrives. Cancel safe.
    ///
    /// # Errors
    /// As [`Self::next`], except for the length of a message, which the caller bounds.
    pub async fn next_body(&mut self) -> Result<BodyPiece, StreamError> {
        loop {
            if self.body_left == 0 && self.begin_body()? {
                return Ok(BodyPiece::Empty);
            }
            if self.body_left > 0 && !self.buffer.is_empty() {
                let piece = self.buffer.split_to(self.body_left.min(self.buffer.len()));
                self.body_left -= piece.len();
                return Ok(BodyPiece::Bytes(piece.freeze()));
            }
            if !self.fill(CHUNK_BYTES).await? {
                return Ok(BodyPiece::End);
            }
        }
    }

    /// Takes the head of the next BODY message if it has arrived. Returns true if that message is
    /// empty.
    fn begin_body(&mut self) -> Result<bool, StreamError> {
        while let Some(head) = read_head(&self.buffer, usize::MAX)? {
            match head.kind {
                Some(MessageKind::Body) => {
                    self.buffer.advance(head.len);
                    self.body_left = head.payload_len;
                    return Ok(head.payload_len == 0);
                }
                Some(_) => return Err(StreamError::Protocol("a message out of order")),
                None if head.payload_len > MAX_CLIENT_MESSAGE_BYTES => return Err(too_long()),
                None if self.buffer.len() < head.whole_len() => break,
                None => self.buffer.advance(head.whole_len()),
            }
        }
        Ok(false)
    }

    /// Reads the bytes that arrive next. Returns false at the stream's end, which must be at the
    /// end of a message.
    async fn fill(&mut self, most: usize) -> Result<bool, StreamError> {
        if let Some(code) = self.reset {
            return Err(StreamError::Reset(code));
        }
        match self.stream.read_chunk(most, true).await {
            Ok(Some(chunk)) => self.buffer.extend_from_slice(&chunk.bytes),
            Ok(None) if self.buffer.is_empty() && self.body_left == 0 => return Ok(false),
            Ok(None) => return Err(StreamError::Protocol("half a message")),
            Err(ReadError::Reset(code)) => {
                let code = *self.reset.insert(Code::of(code.into()));
                return Err(StreamError::Reset(code));
            }
            Err(_) => return Err(StreamError::Lost),
        }
        Ok(true)
    }

    /// Resolves once the client cancels its request, by a reset with code 3 or a STOP frame
    /// (S-4.5). Whatever else it sends stays for [`Self::next`]. Cancel safe.
    pub async fn cancelled(&mut self) -> StreamError {
        const CANCELLED: StreamError = StreamError::Reset(Code::Cancelled);
        // Before ANSWER there is nothing to acknowledge: a client that sends more has to wait.
        while self.buffer.len() < EARLY_BYTES {
            match self.fill(EARLY_BYTES).await {
                Ok(true) if !self.begins_with_stop() => {}
                Ok(true) | Err(CANCELLED) => return CANCELLED,
                Ok(false) | Err(_) => break,
            }
        }
        std::future::pending().await
    }

    fn begins_with_stop(&self) -> bool {
        let first = StreamMessage::take(&mut self.buffer.clone(), EARLY_BYTES);
        let Ok(Some(StreamMessage { kind: MessageKind::Frame, payload })) = first else {
            return false;
        };
        matches!(Frame::decode(&payload, false), Ok(Frame::Stop { .. }))
    }

    /// Asks the client to stop sending, with the reason `code`.
    pub fn stop(&mut self, code: Code) {
        let _ = self.stream.stop(code.number());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_out_as_they_went_in_however_they_are_cut() {
        let mut bytes = Vec::new();
        put_message(MessageKind::Request, b"{}", &mut bytes);
        put_message(MessageKind::Body, &[7; 300], &mut bytes);
        put_message(MessageKind::Frame, b"", &mut bytes);
        let (mut buffer, mut kinds) = (BytesMut::new(), Vec::new());
        for byte in bytes {
            buffer.extend_from_slice(&[byte]);
            while let Some(message) = StreamMessage::take(&mut buffer, 300).unwrap() {
                kinds.push((message.kind, message.payload.len()));
            }
        }
        assert_eq!(
            kinds,
            [(MessageKind::Request, 2), (MessageKind::Body, 300), (MessageKind::Frame, 0)]
        );
    }

    #[test]
    fn hostile_messages_are_refused_before_they_are_read() {
        for bytes in
            [&[9, 0][..], &[1, 0x80, 1, 0, 0], &[1, 0xff, 255, 255, 255, 255, 255, 255, 255]]
        {
            let mut buffer = BytesMut::from(bytes);
            assert!(
                matches!(StreamMessage::take(&mut buffer, 1000), Err(StreamError::Protocol(_))),
                "{bytes:?}"
            );
        }
    }
}
