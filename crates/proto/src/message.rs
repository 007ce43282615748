//! Messages on a QUIC stream (`spec/session.md`, section 2): a type, a length, a payload; and the
//! codes with which such a stream ends.

use alloc::vec::Vec;

use crate::Error;
use crate::wire::{FieldReader, put_int};

/// Longest message in bytes, except for messages of a request, which the server bounds (S-2.1).
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// Why a QUIC stream was reset or stopped, or a connection closed (S-2.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// Nothing more is needed. Of an answer that has not ended, it means the same as
    /// [`Self::BrokenOff`].
    None = 0,
    /// The peer violated the rules; the same request would fail again.
    Malformed = 1,
    /// The transport gave up; the answer can be resumed.
    BrokenOff = 2,
    /// By the client: it wants no more.
    Cancelled = 3,
    /// By the server: the answer continues on another path, which must not be taken from its
    /// reader.
    Superseded = 4,
    /// By the server: the answer is gone, because somebody stopped it or nobody came back for it.
    Stopped = 5,
    /// By the server: it ends, and the answer with it.
    ShuttingDown = 6,
}

impl Code {
    /// What `code` means; an unknown one is read as [`Self::BrokenOff`].
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

    /// The number that is sent.
    pub const fn number(self) -> u32 {
        self as u32
    }
}

/// What a message is (S-2.2).
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
    /// The kind for a type byte; `None` for an unknown one.
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

/// Unknown types from here on are skipped, so that version 1 can grow; lower ones are errors
/// (S-2.1).
const FIRST_SKIPPED: u8 = 64;

/// Why bytes are not the beginning of a message (S-2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadError {
    /// No kind has this type byte, and it is none that readers skip.
    UnknownKind(u8),
    /// The length is not a valid integer (D-1.1).
    Length(Error),
    /// The message is longer than the receiver's limit.
    TooLong,
}

/// What precedes a message's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageHead {
    /// What the payload is; `None` for a message of a later extension, which is to be skipped.
    pub kind: Option<MessageKind>,
    /// Length of the head itself, bytes.
    pub len: usize,
    /// Length of the payload that follows, bytes.
    pub payload_len: usize,
}

impl MessageHead {
    /// Reads the head at the front of `bytes`; `None` until all of it is there.
    ///
    /// # Errors
    /// [`HeadError`], as soon as the bytes show it; `max_bytes` bounds the payload, also of a
    /// message to be skipped.
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

    /// Bytes of the message, head included.
    pub const fn whole_len(&self) -> usize {
        self.len + self.payload_len
    }
}
