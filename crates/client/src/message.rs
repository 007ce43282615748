//! Messages on a QUIC stream (`spec/session.md`, section 2): writing them, and reading them from
//! pieces of any size in bounded memory.

use bytes::{Buf, Bytes, BytesMut};
use loquent_proto::AnswerHandle;
pub use loquent_proto::message::{Code, MAX_MESSAGE_BYTES, MessageKind, put_message};
use loquent_proto::message::{HeadError, MessageHead};
use loquent_proto::position::MAX_EPOCH;
use loquent_proto::wire::MAX_INT;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::ClientError;

/// Maximum length of a BODY message that a client writes, in bytes.
pub const BODY_PIECE_BYTES: usize = 64 * 1024;

/// One message of a QUIC stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Message type (S-2.1).
    pub kind: MessageKind,
    /// The bytes after the message's head.
    pub payload: Bytes,
}

/// Appends a request's body as BODY messages; for an `answer`, an empty one ends it (S-4.1).
pub fn put_body(body: &[u8], answer: bool, out: &mut Vec<u8>) {
    for piece in body.chunks(BODY_PIECE_BYTES) {
        put_message(MessageKind::Body, piece, out);
    }
    if answer {
        put_message(MessageKind::Body, &[], out);
    }
}

/// Reads messages from one stream. After an error it refuses all further input.
///
/// The format and limits of the head are shared with the server (`proto::message`). The buffer is
/// not: it is ten lines on top of `bytes`, which avoids copying payloads and which `proto` does not
/// depend on.
#[derive(Debug)]
pub struct Messages {
    buffer: BytesMut,
    limit_bytes: usize,
    failed: bool,
}

impl Messages {
    /// Creates a reader of messages of at most `limit_bytes`.
    pub fn new(limit_bytes: usize) -> Self {
        Messages { buffer: BytesMut::new(), limit_bytes, failed: false }
    }

    /// Adds the next piece of the stream; call [`Self::next`] until it returns `None`.
    pub fn push(&mut self, piece: &[u8]) {
        if !self.failed {
            self.buffer.extend_from_slice(piece);
        }
    }

    /// Returns the number of bytes held for an incomplete message.
    pub fn buffered_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// Returns the next complete message, dropping any before it that must be skipped.
    ///
    /// # Errors
    /// An unknown type below 64 or a length beyond the limit (S-2.1), as soon as its head arrived.
    pub fn next(&mut self) -> Result<Option<Message>, ClientError> {
        if self.failed {
            return Err(ClientError::Malformed("the stream's messages cannot be read".into()));
        }
        let outcome = self.parse();
        if outcome.is_err() {
            self.failed = true;
            self.buffer = BytesMut::new();
        }
        outcome
    }

    fn parse(&mut self) -> Result<Option<Message>, ClientError> {
        loop {
            let head = self.head()?.filter(|head| self.buffer.len() >= head.whole_len());
            let Some(head) = head else { return Ok(None) };
            self.buffer.advance(head.len);
            let payload = self.buffer.split_to(head.payload_len);
            if let Some(kind) = head.kind {
                return Ok(Some(Message { kind, payload: payload.freeze() }));
            }
        }
    }

    fn head(&self) -> Result<Option<MessageHead>, ClientError> {
        MessageHead::read(&self.buffer, self.limit_bytes).map_err(|error| match error {
            HeadError::UnknownKind(kind) => {
                ClientError::Malformed(format!("message of unknown type {kind}"))
            }
            HeadError::Length(error) => ClientError::Malformed(format!("message length: {error}")),
            HeadError::TooLong => {
                ClientError::TooLarge { what: "one message", limit_bytes: self.limit_bytes }
            }
        })
    }
}

/// Head of a REQUEST (S-2.2, S-2.3).
#[derive(Clone, PartialEq, Eq, Serialize)]
pub struct RequestHead<'a> {
    /// API key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<&'a str>,
    /// HTTP method.
    pub method: &'a str,
    /// Path and query.
    pub path: &'a str,
    /// Headers, except the one that would carry the key.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Channel for datagrams, if the answer is to use them (S-4.1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channel: Option<u64>,
    /// Occasional grease that the server must ignore (S-2.7).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grease: Option<u64>,
}

impl RequestHead<'_> {
    /// Appends the head as a message.
    pub fn put(&self, out: &mut Vec<u8>) {
        let json = serde_json::to_vec(self).expect("strings and numbers become JSON");
        put_message(MessageKind::Request, &json, out);
    }
}

/// Head of a RESPONSE (S-2.2).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ResponseHead {
    /// HTTP status code.
    pub status: u16,
    /// Headers.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
}

/// Head of an ANSWER (S-4.2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerHead {
    /// Handle of the answer, for a resume.
    pub handle: AnswerHandle,
    /// The answer's channel.
    pub channel: u64,
    /// Log offset of the first byte sent on this channel.
    pub offset: u64,
    /// Epoch of the log (D-6.8).
    pub epoch: u64,
    /// Headers that an HTTP response would have.
    pub headers: BTreeMap<String, String>,
}

impl ResponseHead {
    /// Parses a RESPONSE's payload.
    ///
    /// # Errors
    /// [`ClientError::Malformed`].
    pub fn parse(payload: &[u8]) -> Result<Self, ClientError> {
        let head: ResponseHead = serde_json::from_slice(payload)
            .map_err(|error| ClientError::Malformed(format!("head of a response: {error}")))?;
        match head.status {
            200..=599 => Ok(head),
            status => Err(ClientError::Malformed(format!("status {status}"))),
        }
    }
}

impl AnswerHead {
    /// Parses an ANSWER's payload.
    ///
    /// # Errors
    /// [`ClientError::Malformed`].
    pub fn parse(payload: &[u8]) -> Result<Self, ClientError> {
        #[derive(Deserialize)]
        struct Raw<'a> {
            id: &'a str,
            token: &'a str,
            channel: u64,
            offset: u64,
            #[serde(default)]
            epoch: Option<u64>,
            #[serde(default)]
            headers: BTreeMap<String, String>,
        }
        let raw: Raw<'_> = serde_json::from_slice(payload)
            .map_err(|error| ClientError::Malformed(format!("head of an answer: {error}")))?;
        let handle = AnswerHandle::parse(raw.id, raw.token)
            .ok_or_else(|| ClientError::Malformed("an answer's id or token".into()))?;
        let Raw { channel, offset, headers, .. } = raw;
        let epoch = raw.epoch.unwrap_or(0);
        if channel.max(offset) > MAX_INT || epoch > MAX_EPOCH {
            return Err(ClientError::Malformed("a number in an answer's head".into()));
        }
        Ok(AnswerHead { handle, channel, offset, epoch, headers })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::discovery::DeliveryOffer;

    fn read(pieces: &[&[u8]], limit: usize) -> Result<Vec<Message>, ClientError> {
        let mut messages = Messages::new(limit);
        let mut found = Vec::new();
        for piece in pieces {
            messages.push(piece);
            while let Some(message) = messages.next()? {
                found.push(message);
            }
        }
        Ok(found)
    }

    #[test]
    fn a_request_is_json_with_what_is_there() {
        let mut out = Vec::new();
        let head = RequestHead {
            key: Some("k"),
            method: "POST",
            path: "/v1/x?y=1",
            headers: BTreeMap::new(),
            channel: Some(7),
            grease: None,
        };
        head.put(&mut out);
        put_body(&[9; BODY_PIECE_BYTES + 1], true, &mut out);
        let found = read(&[&out], MAX_MESSAGE_BYTES).unwrap();
        let kinds: Vec<_> = found.iter().map(|one| (one.kind, one.payload.len())).collect();
        assert_eq!(
            kinds[1..],
            [(MessageKind::Body, BODY_PIECE_BYTES), (MessageKind::Body, 1), (MessageKind::Body, 0)]
        );
        assert_eq!(
            found[0].payload,
            br#"{"key":"k","method":"POST","path":"/v1/x?y=1","channel":7}"#.as_slice()
        );
    }

    #[test]
    fn what_is_too_long_or_unknown_is_refused_at_its_head_and_for_good() {
        let mut messages = Messages::new(10);
        messages.push(&[1, 11]);
        assert!(matches!(messages.next(), Err(ClientError::TooLarge { limit_bytes: 10, .. })));
        messages.push(&[1, 1, 1]);
        assert!(messages.next().is_err());
        assert_eq!(messages.buffered_bytes(), 0);
        assert!(read(&[&[5]], 10).is_err());
        assert!(read(&[&[1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]], 10).is_err());
    }

    /// Returns the content of a head in the form of `spec/vectors/messages.json`.
    fn shown(kind: &str, json: &[u8]) -> Option<Value> {
        let lower = |headers: &BTreeMap<String, String>| -> BTreeMap<String, String> {
            headers.iter().map(|(name, value)| (name.to_lowercase(), value.clone())).collect()
        };
        match kind {
            "RESPONSE" => {
                let head = ResponseHead::parse(json).ok()?;
                Some(json!({"status": head.status, "headers": lower(&head.headers)}))
            }
            "ANSWER" => {
                let head = AnswerHead::parse(json).ok()?;
                let AnswerHead { handle, channel, offset, epoch, headers } = &head;
                let (id, token) = (handle.id_hex(), handle.token_hex());
                Some(json!({"id": id, "token": token, "channel": channel, "offset": offset,
                            "epoch": epoch, "headers": lower(headers)}))
            }
            "DISCOVERY" => {
                let offer = DeliveryOffer::parse(json).ok()?;
                let hash = offer.certificate_sha256.map(|hash| loquent_proto::hex::encode(&hash));
                Some(json!({"port": offer.port, "certificate_sha256": hash}))
            }
            other => panic!("{other}"),
        }
    }

    #[test]
    fn heads_are_read_as_the_vectors_say() {
        let file: Value =
            serde_json::from_str(include_str!("../../../spec/vectors/messages.json")).unwrap();
        let mut replayed = 0;
        for case in file["cases"].as_array().unwrap() {
            let (Some(kind), Some(json)) = (case["head"].as_str(), case["json"].as_str()) else {
                continue;
            };
            if kind != "REQUEST" {
                let expected = case.get("value").cloned();
                assert_eq!(shown(kind, json.as_bytes()), expected, "{case}");
                assert_eq!(expected.is_none(), case["error"] == "Head", "{case}");
                replayed += 1;
            }
        }
        assert!(replayed > 30, "{replayed} cases");
    }

    #[test]
    fn messages_of_later_extensions_are_skipped_within_the_bound() {
        let mut messages = Messages::new(10);
        messages.push(&[89, 3, 1, 2, 3, 1, 1, 7, 255, 10]);
        assert_eq!(messages.next().unwrap().unwrap().payload, [7].as_slice());
        assert_eq!(messages.next().unwrap(), None);
        assert_eq!(messages.buffered_bytes(), 2, "the head of one whose payload is to come");
        assert!(read(&[&[89, 11]], 10).is_err(), "they are bounded too");
    }

    proptest! {
        /// Cutting the stream at any point must not change the result.
        #[test]
        fn cuts_do_not_matter(
            sent in proptest::collection::vec((0u8..5, proptest::collection::vec(any::<u8>(), 0..200)), 0..8),
            cut in 1usize..40,
        ) {
            let mut out = Vec::new();
            for (kind, payload) in &sent {
                put_message(MessageKind::of(*kind).unwrap(), payload, &mut out);
            }
            let pieces: Vec<&[u8]> = out.chunks(cut).collect();
            let found = read(&pieces, 1000).unwrap();
            let expected: Vec<_> = sent.iter()
                .map(|(kind, payload)| Message { kind: MessageKind::of(*kind).unwrap(), payload: payload.clone().into() })
                .collect();
            prop_assert_eq!(found, expected);
        }

        /// Hostile bytes must not panic, nor be buffered beyond one message.
        #[test]
        fn memory_is_bounded(pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..50), 0..50)) {
            let mut messages = Messages::new(64);
            for piece in &pieces {
                messages.push(piece);
                while let Ok(Some(message)) = messages.next() {
                    prop_assert!(message.payload.len() <= 64);
                }
                prop_assert!(messages.buffered_bytes() <= 64 + 9);
            }
        }

        /// Hostile heads must not panic.
        #[test]
        fn heads_do_not_panic(json in "[{}\\[\\]\":,a-f0-9idtokensrm]{0,80}", bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            for payload in [json.as_bytes(), &bytes] {
                let _ = (ResponseHead::parse(payload), AnswerHead::parse(payload));
            }
        }
    }
}
