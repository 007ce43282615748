//! Fuzz targets of the server: input from clients, and text from models.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use loquent_dialects::batches::batch::BatchEndpoint;
use loquent_dialects::batches::lines::{BatchRequest, find_lines};
use loquent_dialects::batches::upload::read_upload;
use loquent_formats::grammar::{CallSyntax, ThinkTags, Thinking, ToolShape};
use loquent_proto::Delta;
use web_transport_quinn::proto::{Capsule, ConnectRequest, Settings};

use crate::origin::{is_page_of_host, is_page_of_ports, is_page_of_this_machine};
use crate::quic::{RequestHead, StreamMessage};
use loquent_gateway::routes::UpstreamRoutes;
use loquent_serving::api::request::{Endpoint, Request};
use loquent_serving::completion::reader::{CallConfig, SplitConfig, TextSplitter};
use loquent_serving::pending_deltas::PendingDeltas;
use loquent_serving::prefix_store::block::{BlockKey, HEAD_BYTES, Head};

#[path = "../../../fuzz/target.rs"]
mod target;
pub use target::{Target, pieces};

/// Fuzz targets of this crate.
pub const TARGETS: &[Target] = &[
    Target { name: "model_text", run: model_text, base_kib: 64, per_byte: 512 },
    Target { name: "origin", run: origin, base_kib: 4, per_byte: 16 },
    Target { name: "model_calls", run: model_calls, base_kib: 64, per_byte: 512 },
    Target { name: "quic_stream", run: quic_stream, base_kib: 64, per_byte: 600 },
    Target { name: "upstream_path", run: upstream_path, base_kib: 16, per_byte: 64 },
    Target { name: "upload_form", run: upload_form, base_kib: 16, per_byte: 16 },
    Target { name: "batch_input", run: batch_input, base_kib: 64, per_byte: 1024 },
    Target { name: "prefix_block", run: prefix_block, base_kib: 4, per_byte: 4 },
    Target { name: "request_body", run: request_body, base_kib: 16, per_byte: 1024 },
    Target { name: "web_transport", run: web_transport, base_kib: 64, per_byte: 256 },
];

/// A file of the prefix cache is the block of its name, whole and unchanged, or refused.
fn prefix_block(input: &[u8]) {
    let Some((bytes, state)) = input.split_first_chunk::<HEAD_BYTES>() else { return };
    let key = BlockKey(*bytes[16..].first_chunk().expect("it has a key"));
    let Ok(head) = Head::parse(bytes, &key, input.len() as u64) else { return };
    assert_eq!(head.state_bytes(), state.len() as u64, "so much memory is taken for it");
    assert_eq!(&head.encode(&key), bytes, "nothing in it is ignored");
    let is_whole = head.check(&key, state).is_ok();
    assert_eq!(is_whole, Head::of(&key, state) == head);
}

/// Any form is read as a file that is a part of it, or refused.
fn upload_form(input: &[u8]) {
    let body = Bytes::copy_from_slice(input);
    match read_upload("multipart/form-data; boundary=b0", &body) {
        Ok(upload) => {
            assert!(upload.content.len() < body.len());
            assert!(upload.filename.len() <= 4096);
        }
        Err(error) => assert_eq!(error.status(), 400),
    }
}

/// Any input is found to be lines that can be sent, or has errors.
fn batch_input(input: &[u8]) {
    match find_lines(input, BatchEndpoint::Embeddings) {
        Ok(lines) => {
            assert!(!lines.is_empty());
            assert!(lines.into_iter().all(|line| BatchRequest::parse(&input[line]).is_some()));
        }
        Err(errors) => assert!((1..=101).contains(&errors.len())),
    }
}

/// Any body is parsed as a valid request, or refused with a client error.
fn request_body(input: &[u8]) {
    let Some((&choice, body)) = input.split_first() else { return };
    let endpoint = if choice & 1 == 0 { Endpoint::Chat } else { Endpoint::Text };
    match Request::parse(endpoint, body) {
        Ok(request) => {
            assert!((1..=64).contains(&request.choices()) && !request.prompts.is_empty());
            let sampling = &request.sampling;
            assert!(sampling.stated.temperature.is_none_or(|value| (0.0..=2.0).contains(&value)));
            assert!(sampling.logit_bias.iter().all(|(_, bias)| bias.is_finite()));
            let _ = (request.tools(), request.is_constrained(), request.unknown().count());
        }
        Err(error) => assert!((400..500).contains(&error.status())),
    }
}

/// A stream's messages are the same however the stream is cut; heads are parsed or refused.
fn quic_stream(input: &[u8]) {
    const LIMIT_BYTES: usize = 512;
    let read = |buffer: &mut BytesMut, found: &mut Vec<StreamMessage>| {
        while let Ok(Some(message)) = StreamMessage::take(buffer, LIMIT_BYTES) {
            assert!(message.payload.len() <= LIMIT_BYTES);
            found.push(message);
        }
    };
    let (mut buffer, mut messages) = (BytesMut::new(), Vec::new());
    for piece in pieces(input) {
        buffer.extend_from_slice(piece);
        read(&mut buffer, &mut messages);
    }
    let (mut whole, mut again) = (BytesMut::new(), Vec::new());
    whole.extend(pieces(input).flatten());
    read(&mut whole, &mut again);
    assert_eq!(messages, again);
    for message in messages {
        let _ = RequestHead::parse(&message.payload);
    }
}

/// What a browser sends before its session is open (draft-ietf-webtrans-http3, section 3): settings,
/// the CONNECT request, and capsules on its stream. Each is read or refused.
fn web_transport(input: &[u8]) {
    let Some((&choice, mut input)) = input.split_first() else { return };
    let mut context = Context::from_waker(Waker::noop());
    match choice % 3 {
        0 => drop(pin!(Settings::read(&mut input)).poll(&mut context)),
        1 => match pin!(ConnectRequest::read(&mut input)).poll(&mut context) {
            Poll::Ready(Ok(request)) => {
                let host = request.url.host_str().unwrap_or_default();
                let origin = request.headers.get(http::header::ORIGIN);
                let _ = origin.map(|it| is_page_of_ports(it.as_bytes(), host, &[443, 443]));
            }
            other => assert!(other.is_ready(), "a slice never waits"),
        },
        _ => {
            while let Poll::Ready(Ok(Some(_))) = pin!(Capsule::read(&mut input)).poll(&mut context)
            {
            }
        }
    }
}

/// Text from a model is split in the same way however it is cut, and nothing is lost.
fn model_text(input: &[u8]) {
    let Some((&choice, input)) = input.split_first() else { return };
    let (angle, square) = (ThinkTags::Angle, ThinkTags::Square);
    let thinking = [
        Thinking::Never,
        Thinking::Optional(angle),
        Thinking::Open(angle),
        Thinking::Optional(square),
    ][usize::from(choice) % 4];
    let syntax = if choice & 0x80 == 0 { CallSyntax::Tagged } else { CallSyntax::Bare };
    let calls = (choice & 0x40 == 0).then(|| calls(syntax));
    let is_plain = calls.is_none() && thinking == Thinking::Never;
    let config = SplitConfig { thinking, calls, ..SplitConfig::default() };
    let (whole, [text, ..]) = split_in_any_way(&config, input);
    assert!(!is_plain || text == whole);
}

/// The same for each format of tool calls; calls that arrive complete have JSON arguments.
fn model_calls(input: &[u8]) {
    const SYNTAXES: [CallSyntax; 9] = [
        CallSyntax::Harmony,
        CallSyntax::QwenXml,
        CallSyntax::GlmXml,
        CallSyntax::MistralList,
        CallSyntax::MistralArgs,
        CallSyntax::DeepSeekFenced,
        CallSyntax::DeepSeek,
        CallSyntax::DsmlFunctions,
        CallSyntax::DsmlTools,
    ];
    let Some((&choice, input)) = input.split_first() else { return };
    let syntax = SYNTAXES[usize::from(choice & 0x3F) % SYNTAXES.len()];
    let thinking = match (syntax, choice & 0x40) {
        (CallSyntax::Harmony, _) => Thinking::Channels,
        (_, 0) => Thinking::Never,
        _ => Thinking::Optional(ThinkTags::Angle),
    };
    let config = SplitConfig { thinking, calls: Some(calls(syntax)), ..SplitConfig::default() };
    split_in_any_way(&config, input);
}

fn calls(syntax: CallSyntax) -> CallConfig {
    let properties = serde_json::json!({"city": {"type": "string"}, "days": {"type": "integer"}});
    let parameters = serde_json::json!({"type": "object", "properties": properties});
    let tool = |name: &str| ToolShape { name: name.into(), parameters: parameters.clone() };
    CallConfig { syntax, tools: [tool("weather"), tool("time")].into(), id: 7 }
}

/// Returns the text of `input`, and its split parts. Checks that cutting the input changes nothing.
fn split_in_any_way(config: &SplitConfig, input: &[u8]) -> (String, [String; 3]) {
    let parts: Vec<String> =
        pieces(input).map(|piece| String::from_utf8_lossy(piece).into_owned()).collect();
    let whole = parts.concat();
    let once = written(config.clone(), &mut std::iter::once(whole.as_str()));
    assert_eq!(written(config.clone(), &mut parts.iter().map(String::as_str)), once);
    (whole, once)
}

/// Returns the text, reasoning and calls that `parts` are split into.
fn written(config: SplitConfig, parts: &mut dyn Iterator<Item = &str>) -> [String; 3] {
    let (mut splitter, mut held) = (TextSplitter::new(config), PendingDeltas::new(0));
    let [mut text, mut reasoning, mut calls] = [String::new(), String::new(), String::new()];
    let mut put = |delta: Delta| match delta {
        Delta::Text { text: more, .. } => text.push_str(&more),
        Delta::Reasoning { text: more, .. } => reasoning.push_str(&more),
        Delta::ToolCall { id, name, arguments, .. } => {
            [id, name, arguments].iter().for_each(|part| calls.push_str(part));
        }
        other => panic!("{other:?}"),
    };
    for part in parts {
        splitter.push(part, &mut held);
        held.take(1).into_iter().for_each(&mut put);
    }
    splitter.finish(&mut held);
    held.take(0).into_iter().for_each(&mut put);
    [text, reasoning, calls]
}

/// A path sent to an upstream server is below a listed one, however often it is decoded.
fn upstream_path(input: &[u8]) {
    let Ok(text) = core::str::from_utf8(input) else { return };
    let Some((method, path)) = text.split_once(' ') else { return };
    let (Ok(method), Ok(uri)) = (method.parse(), path.parse()) else { return };
    let routes = UpstreamRoutes::with(&["GET /v1/files/*".parse().expect("a route")], true);
    let Ok(target) = routes.admit(&method, &uri) else { return };
    let mut path = target.path.path().to_owned();
    for _ in 0..3 {
        assert!(path.split(['/', '\\', ';']).all(|part| part != ".."), "{path}");
        let listed = ["/v1/", "/rerank", "/score", "/tokenize", "/detokenize"];
        assert!(listed.iter().any(|place| path.starts_with(place)), "{path}");
        path = percent_decode(&path);
    }
}

fn percent_decode(text: &str) -> String {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let byte = part.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.unwrap_or(b'%'));
        bytes.extend_from_slice(&part.as_bytes()[if byte.is_some() { 2 } else { 0 }..]);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Any `Origin` and `Host` can be compared without a panic; only pages over HTTP count as own.
fn origin(input: &[u8]) {
    let cut = input.iter().position(|&byte| byte == b'\n').unwrap_or(input.len());
    let (origin, host) = (&input[..cut], input.get(cut + 1..).unwrap_or_default());
    let own = match http::uri::Authority::try_from(host) {
        Ok(host) => is_page_of_host(origin, &host),
        Err(_) => is_page_of_this_machine(origin),
    };
    assert!(!own || origin.get(..4).is_some_and(|name| name.eq_ignore_ascii_case(b"http")));
    let _ = is_page_of_ports(origin, &String::from_utf8_lossy(host), &[80, 443]);
}

#[test]
fn corpora() {
    target::run_corpora(TARGETS);
}
