//! `spec/vectors/messages.json`, as far as `proto::message` goes: messages are found, skipped and
//! refused as the file says, however the network cuts them, and codes mean what it says.
//!
//! The JSON heads in the same file are replayed by the server and the client, which read them.

use std::path::PathBuf;

use loquent_proto::message::{Code, HeadError, MessageHead, MessageKind, put_message};
use serde_json::Value;

fn cases() -> Vec<Value> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../spec/vectors/messages.json");
    let text = std::fs::read_to_string(path).expect("the file exists");
    let file: Value = serde_json::from_str(&text).expect("the file is JSON");
    file["cases"].as_array().expect("a list").clone()
}

fn bytes(hex: &Value) -> Vec<u8> {
    let digits = hex.as_str().expect("hex digits");
    assert!(digits.len().is_multiple_of(2), "{digits}");
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hex digits");
    (0..digits.len()).step_by(2).map(byte).collect()
}

fn kind(name: &Value) -> MessageKind {
    match name.as_str().expect("a name") {
        "REQUEST" => MessageKind::Request,
        "BODY" => MessageKind::Body,
        "RESPONSE" => MessageKind::Response,
        "ANSWER" => MessageKind::Answer,
        "FRAME" => MessageKind::Frame,
        other => panic!("{other}"),
    }
}

/// The messages of `stream`, which arrives in pieces of `cut` bytes, and the error after them.
fn read(
    stream: &[u8],
    limit: usize,
    cut: usize,
) -> (Vec<(MessageKind, Vec<u8>)>, Option<&'static str>) {
    let (mut found, mut buffer) = (Vec::new(), Vec::new());
    for piece in stream.chunks(cut) {
        buffer.extend_from_slice(piece);
        loop {
            let head = match MessageHead::read(&buffer, limit) {
                Ok(Some(head)) if buffer.len() >= head.whole_len() => head,
                Ok(_) => break,
                Err(HeadError::UnknownKind(_)) => return (found, Some("UnknownType")),
                Err(HeadError::Length(_)) => return (found, Some("Length")),
                Err(HeadError::TooLong) => return (found, Some("TooLong")),
            };
            let message: Vec<u8> = buffer.drain(..head.whole_len()).collect();
            found.extend(head.kind.map(|kind| (kind, message[head.len..].to_vec())));
        }
    }
    (found, (!buffer.is_empty()).then_some("Cut"))
}

#[test]
fn messages_are_read_and_written_as_the_vectors_say() {
    let mut replayed = 0;
    for case in cases().iter().filter(|case| case["hex"].is_string()) {
        let (about, stream) = (&case["about"], bytes(&case["hex"]));
        let limit = case["limit"].as_u64().expect("a number") as usize;
        let messages = case["messages"].as_array().expect("a list").iter();
        let messages: Vec<_> =
            messages.map(|message| (kind(&message["type"]), bytes(&message["payload"]))).collect();
        for cut in [1, 2, 3, 7, usize::MAX] {
            let (found, error) = read(&stream, limit, cut);
            assert_eq!((&found, error), (&messages, case["error"].as_str()), "{about}, by {cut}");
        }
        if case["written"] == true {
            let mut written = Vec::new();
            messages.iter().for_each(|(kind, payload)| put_message(*kind, payload, &mut written));
            assert_eq!(written, stream, "{about}");
        }
        replayed += 1;
    }
    assert!(replayed > 20, "{replayed} cases");
}

#[test]
fn codes_mean_what_the_vectors_say() {
    let mut replayed = 0;
    for case in cases().iter().filter(|case| case["code"].is_u64()) {
        let number = case["code"].as_u64().expect("a number");
        let expected = match case["means"].as_str().expect("words") {
            "none" => Code::None,
            "malformed" => Code::Malformed,
            "broken off" => Code::BrokenOff,
            "cancelled" => Code::Cancelled,
            "superseded" => Code::Superseded,
            "stopped" => Code::Stopped,
            "shutting down" => Code::ShuttingDown,
            other => panic!("{other}"),
        };
        assert_eq!(Code::of(number), expected, "{number}");
        let is_known = u64::from(expected.number()) == number;
        assert_eq!(is_known, number <= 6, "{number}");
        replayed += 1;
    }
    assert_eq!(replayed, 10);
}
