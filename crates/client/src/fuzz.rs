//! Fuzz targets of the client: server output, and the file of an earlier run.

use crate::discovery::DeliveryOffer;
use crate::message::{AnswerHead, Messages, ResponseHead};
use crate::openai::parse_chunk;
use crate::{known_servers, reply};

#[path = "../../../fuzz/target.rs"]
mod target;
pub use target::{Target, pieces};

/// The targets of this crate.
pub const TARGETS: &[Target] = &[
    Target { name: "known_servers", run: known_servers, base_kib: 16, per_byte: 600 },
    Target { name: "server_messages", run: server_messages, base_kib: 64, per_byte: 600 },
];

/// Parses any file as known servers; rendering and parsing them again must give the same servers.
fn known_servers(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let servers = known_servers::parse(&text);
    let again = known_servers::parse(&known_servers::render(&servers));
    assert_eq!(servers, again);
    let _ = DeliveryOffer::parse(input);
    let _ = parse_chunk(input);
}

/// Messages must not depend on how the stream is cut; their heads are parsed or refused.
fn server_messages(input: &[u8]) {
    const LIMIT_BYTES: usize = 512;
    let mut messages = Messages::new(LIMIT_BYTES);
    let mut kinds = Vec::new();
    for piece in pieces(input) {
        messages.push(piece);
        while let Ok(Some(message)) = messages.next() {
            assert!(message.payload.len() <= LIMIT_BYTES);
            kinds.push((message.kind, message.payload.clone()));
            if let Ok(head) = ResponseHead::parse(&message.payload) {
                let _ = reply::header_map(&head.headers);
            }
            let _ = AnswerHead::parse(&message.payload);
        }
        assert!(messages.buffered_bytes() <= LIMIT_BYTES + 9);
    }
    let mut whole = Messages::new(LIMIT_BYTES);
    whole.push(&pieces(input).collect::<Vec<_>>().concat());
    let all = std::iter::from_fn(|| whole.next().ok().flatten());
    assert!(all.map(|message| (message.kind, message.payload)).eq(kinds));
}

#[test]
fn corpora() {
    target::run_corpora(TARGETS);
}
