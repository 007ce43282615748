//! Messages on a QUIC stream (`spec/session.md`, section 2): a type, a length, a payload.

use alloc::vec::Vec;

use crate::Error;
use crate::wire::{FieldReader, put_int};

/// Longest message in bytes, except for messages of a request, which the server bounds (S-2.1).
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// Codes with which a QUIC stream is reset.
pub mod code {
    /// The peer broke the protocol (S-2.1).
    pub const PROTOCOL: u32 = 1;
    /// A response broke off (S-3.2), or an answer continues on another path.
    pub const BROKEN: u32 = 2;
    /// The client wants no more (S-4.5).
    pub const CANCELLED: u32 = 3;
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

/// Why bytes are not the beginning of a message (S-2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadError {
    /// No kind has this type byte.
    UnknownKind(u8),
    /// The length is not a valid integer (D-1.1).
    Length(Error),
    /// The message is longer than the receiver's limit.
    TooLong,
}

/// What precedes a message's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageHead {
    /// What the payload is.
    pub kind: MessageKind,
    /// Length of the head itself, bytes.
    pub len: usize,
    /// Length of the payload that follows, bytes.
    pub payload_len: usize,
}

impl MessageHead {
    /// Reads the head at the front of `bytes`; `None` until all of it is there.
    ///
    /// # Errors
    /// [`HeadError`], as soon as the bytes show it; `max_bytes` bounds the payload.
    pub fn read(bytes: &[u8], max_bytes: usize) -> Result<Option<Self>, HeadError> {
        let Some((&kind, rest)) = bytes.split_first() else { return Ok(None) };
        let kind = MessageKind::of(kind).ok_or(HeadError::UnknownKind(kind))?;
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
}
