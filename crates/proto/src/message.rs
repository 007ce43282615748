//! Messages on a QUIC stream (`spec/session.md`, section 2): type, length and payload; and the
//! codes with which such a stream ends.

use alloc::vec::Vec;

use crate::Error;
use crate::wire::{FieldReader, put_int};

/// Longest message in bytes, except for messages of a request, which the server bounds (S-2.1).
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// Reason why a QUIC stream was reset or stopped, or a connection closed (S-2.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// Nothing more is needed. For an answer that has not ended, same as [`Self::BrokenOff`].
    None = 0,
    /// The peer violated the rules; the same request would fail again.
    Malformed = 1,
    /// The transport gave up; the answer can be resumed.
    BrokenOff = 2,
    /// Sent by the client, which wants no more.
    Cancelled = 3,
    /// Sent by the server: another reader has taken this one's place. The client must not resume
    /// because of it.
    Superseded = 4,
    /// Sent by the server: the answer is gone, because it was stopped or no reader came back for
    /// it.
    Stopped = 5,
    /// Sent by the server: it shuts down, and the answer ends with it.
    ShuttingDown = 6,
}

impl Code {
    /// Returns the meaning of `code`; an unknown one becomes [`Self::BrokenOff`].
    pub fn of(code: u64) -> Self {
        const KNOWN: [Code; 7] = [
            Code::None,
            Code::Malformed,
            Code::BrokenOff,
            Code::Cancelled,
            Code::Superseded,
            Code::Stopped,
            Code::ShuttingDown,
        ];
        let at = usize::try_from(code).unwrap_or(usize::MAX);
        KNOWN.get(at).copied().unwrap_or(Self::BrokenOff)
    }

    /// Number on the wire.
    pub const fn number(self) -> u32 {
        self as u32
    }
}

/// Kind of a message (S-2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageKind {
    /// A request's head.
    Request = 0,
    /// The next bytes of a body.
    Body = 1,
    /// A response's head.
    Response = 2,
    /// The head of an answer whose log travels in datagrams.
    Answer = 3,
    /// A frame of the delivery protocol.
    Frame = 4,
}

impl MessageKind {
    /// Returns the kind for a type byte; `None` for an unknown one.
    pub fn of(byte: u8) -> Option<Self> {
        let kinds = [Self::Request, Self::Body, Self::Response, Self::Answer, Self::Frame];
        kinds.get(usize::from(byte)).copied()
    }
}

/// Appends a whole message to `out`: type, length and `payload`.
pub fn put_message(kind: MessageKind, payload: &[u8], out: &mut Vec<u8>) {
    out.push(kind as u8);
    put_int(out, payload.len() as u64);
    out.extend_from_slice(payload);
}

/// Lowest type byte of messages that are skipped if unknown, so that version 1 can grow. Unknown
/// types below are errors (S-2.1).
const FIRST_SKIPPED: u8 = 64;

/// Reason why bytes are not the beginning of a message (S-2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadError {
    /// The type byte is unknown and not one that readers skip.
    UnknownKind(u8),
    /// The length is not a valid integer (D-1.1).
    Length(Error),
    /// The message is longer than the receiver's limit.
    TooLong,
}

/// Header of a message, before its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageHead {
    /// Kind of the payload; `None` for a message of a later extension, which must be skipped.
    pub kind: Option<MessageKind>,
    /// Length of the header itself, bytes.
    pub len: usize,
    /// Length of the payload that follows, bytes.
    pub payload_len: usize,
}

impl MessageHead {
    /// Decodes the header at the front of `bytes`; `None` until it is complete.
    ///
    /// # Errors
    /// [`HeadError`], as soon as it can be detected; `max_bytes` limits the payload, even of a
    /// skipped message.
    pub fn read(bytes: &[u8], max_bytes: usize) -> Result<Option<Self>, HeadError> {
        let Some((&type_byte, rest)) = bytes.split_first() else { return Ok(None) };
        let kind = MessageKind::of(type_byte);
        if kind.is_none() && type_byte < FIRST_SKIPPED {
            return Err(HeadError::UnknownKind(type_byte));
        }
        let mut reader = FieldReader::new(rest);
        let payload_len = match reader.int() {
            Ok(len) => len,
            Err(Error::Truncated) => return Ok(None),
            Err(error) => return Err(HeadError::Length(error)),
        };
        if payload_len > max_bytes as u64 {
            return Err(HeadError::TooLong);
        }
        let len = bytes.len() - reader.rest().len();
        Ok(Some(Self { kind, len, payload_len: payload_len as usize }))
    }

    /// Bytes of the message, header included.
    pub const fn whole_len(&self) -> usize {
        self.len + self.payload_len
    }
}
