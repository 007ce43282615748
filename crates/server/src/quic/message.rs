//! Messages on a stream (`spec/session.md`, section 2): a type, a length, a payload.

use bytes::{Buf, Bytes, BytesMut};
use loquent_proto::message::{HeadError, MessageHead};
pub use loquent_proto::message::{MAX_MESSAGE_BYTES, MessageKind, code, put_message};
use web_transport_quinn::{ReadError, RecvStream};

/// Most bytes taken from the stream in one read.
const CHUNK_BYTES: usize = 64 * 1024;

/// A complete message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamMessage {
    /// Its type.
    pub kind: MessageKind,
    /// Its contents, whose format depends on the type.
    pub payload: Bytes,
}

impl StreamMessage {
    /// Takes the message at the front of `buffer`, if it is complete.
    ///
    /// # Errors
    /// [`StreamError::Protocol`] for an unknown type or a length beyond `most`.
    pub fn take(buffer: &mut BytesMut, most: usize) -> Result<Option<Self>, StreamError> {
        let head = MessageHead::read(buffer, most).map_err(|error| {
            StreamError::Protocol(match error {
                HeadError::UnknownKind(_) => "an unknown message",
                HeadError::Length(_) => "an impossible length",
                HeadError::TooLong => "a message that is too long",
            })
        })?;
        let Some(head) = head.filter(|head| buffer.len() >= head.len + head.payload_len) else {
            return Ok(None);
        };
        buffer.advance(head.len);
        Ok(Some(Self { kind: head.kind, payload: buffer.split_to(head.payload_len).freeze() }))
    }
}

/// Why no message could be read from a stream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The client violated the protocol, by sending this.
    #[error("the client sent {0}")]
    Protocol(&'static str),
    /// The client reset the stream with this code.
    #[error("the client reset the stream with code {0}")]
    Reset(u32),
    /// The connection ended.
    #[error("the connection was lost")]
    Lost,
}

/// Reads a stream's messages.
pub struct MessageReader {
    stream: RecvStream,
    buffer: BytesMut,
    max_bytes: usize,
}

impl MessageReader {
    /// The messages of `stream`, each at most `max_bytes` long.
    pub fn new(stream: RecvStream, max_bytes: usize) -> Self {
        Self { stream, buffer: BytesMut::new(), max_bytes }
    }

    /// The next message; `None` at the stream's end. Dropping the future loses nothing.
    ///
    /// # Errors
    /// When the stream was reset, the connection ended, or the bytes are not a message.
    pub async fn next(&mut self) -> Result<Option<StreamMessage>, StreamError> {
        loop {
            if let Some(message) = StreamMessage::take(&mut self.buffer, self.max_bytes)? {
                return Ok(Some(message));
            }
            match self.stream.read_chunk(CHUNK_BYTES, true).await {
                Ok(Some(chunk)) => self.buffer.extend_from_slice(&chunk.bytes),
                Ok(None) if self.buffer.is_empty() => return Ok(None),
                Ok(None) => return Err(StreamError::Protocol("half a message")),
                Err(ReadError::Reset(code)) => return Err(StreamError::Reset(code)),
                Err(_) => return Err(StreamError::Lost),
            }
        }
    }

    /// Limits the size of the messages from here on.
    pub fn set_max_bytes(&mut self, max_bytes: usize) {
        self.max_bytes = max_bytes;
    }

    /// Asks the client to stop sending, with the reason `code`.
    pub fn stop(&mut self, code: u32) {
        let _ = self.stream.stop(code);
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
