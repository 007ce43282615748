//! Answers as apps' own streams: the AI SDK's and Durable Streams.

use axum::body::Body;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use loquent_server::{AllowedHosts, ApiKeys, HttpConfig};
use serde_json::{Value, json};

use super::harness::{self, Server, chat};

const LONG: usize = 4000;
const SHORT: usize = 40;
/// Tokens of an answer that a paced engine does not end before it is stopped, on any machine.
const ENDLESS: usize = 15_000;

/// A server for this machine alone, where clients may choose ids.
fn local() -> Server {
    let allowed_hosts = AllowedHosts::default().bound_to("127.0.0.1".parse().unwrap());
    Server::with_http(HttpConfig { allowed_hosts, ..harness::http_config() }, |_| {})
}

/// The same, whose endless answers are under way for many seconds.
fn unhurried() -> Server {
    let allowed_hosts = AllowedHosts::default().bound_to("127.0.0.1".parse().unwrap());
    let http = HttpConfig { allowed_hosts, ..harness::http_config() };
    Server::over_with(harness::paced(), http)
}

struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    body: Body,
}

impl Reply {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).unwrap_or_else(|| panic!("no {name}")).to_str().unwrap()
    }

    /// The body, which has to end cleanly.
    async fn text(self) -> String {
        assert_eq!(self.status, StatusCode::OK);
        let bytes = self.body.collect().await.expect("a clean end").to_bytes();
        String::from_utf8(bytes.into()).unwrap()
    }

    /// The chunks of a complete UI message stream.
    async fn chunks(self) -> Vec<Value> {
        assert_eq!(self.header("x-vercel-ai-ui-message-stream"), "v1");
        let text = self.text().await;
        let mut events = text.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
        let chunks = events.by_ref().take_while(|data| *data != "[DONE]");
        let chunks = chunks.map(|data| serde_json::from_str(data).unwrap()).collect();
        assert_eq!(events.next(), None, "an event after [DONE]");
        chunks
    }
}

async fn call(server: &Server, method: &str, path: &str, headers: &[(&str, &str)]) -> Reply {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    send(server, request.body(Body::empty()).unwrap()).await
}

async fn get(server: &Server, path: &str) -> Reply {
    call(server, "GET", path, &[]).await
}

async fn send(server: &Server, request: Request<Body>) -> Reply {
    let (head, body) = server.call(request).await.into_parts();
    Reply { status: head.status, headers: head.headers, body }
}

async fn post(server: &Server, path: &str, headers: &[(&str, &str)], body: &Value) -> Reply {
    let mut request = Request::post(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    send(server, request.body(Body::from(body.to_string())).unwrap()).await
}

/// What `useChat` sends in the chat `id` to get `tokens` tokens.
fn ui(id: &str, tokens: usize) -> Value {
    let parts = json!([{"type": "text", "text": format!("tokens={tokens}")}]);
    let messages = json!([{"id": "m1", "role": "user", "parts": parts}]);
    json!({"id": id, "messages": messages, "trigger": "submit-message"})
}

async fn ask(server: &Server, id: &str, tokens: usize) -> Reply {
    let reply = post(server, "/v1/ui/chat", &[], &ui(id, tokens)).await;
    assert_eq!(reply.status, StatusCode::OK);
    reply
}

fn text_of(chunks: &[Value]) -> String {
    let deltas = chunks.iter().filter(|chunk| chunk["type"] == "text-delta");
    deltas.map(|chunk| chunk["delta"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ui_message_streams() {
    let server = local();
    let chunks = ask(&server, "c", SHORT).await.chunks().await;
    assert_eq!(text_of(&chunks), server.text(SHORT).await);
    assert_eq!(chunks[0]["type"], "start");
    assert!(chunks[0]["messageId"].as_str().unwrap().starts_with("chatcmpl-"));
    let end = &chunks[chunks.len() - 3..];
    let kinds: Vec<_> = end.iter().map(|chunk| chunk["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["text-end", "finish-step", "finish"]);
    assert_eq!(end[2]["finishReason"], "stop");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chat_goes_on_without_its_connection() {
    let server = local();
    drop(ask(&server, "c", LONG).await);
    let resumed = get(&server, "/v1/ui/chat/c/stream").await.chunks().await;
    assert!(text_of(&resumed) == server.text(LONG).await, "the text is whole");
    // Now a reader has had all of it.
    assert_eq!(get(&server, "/v1/ui/chat/c/stream").await.status, StatusCode::NO_CONTENT);
    assert_eq!(get(&server, "/v1/ui/chat/unknown/stream").await.status, StatusCode::NO_CONTENT);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_ended_unread_is_not_lost() {
    let server = local();
    drop(ask(&server, "c", SHORT).await);
    server.until("num_requests_running", |running| running == 0.0).await;
    let resumed = get(&server, "/v1/ui/chat/c/stream").await.chunks().await;
    assert_eq!(text_of(&resumed), server.text(SHORT).await);
}

/// What its connection was handed may be lost on the way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_only_its_connection_had_is_replayed_to_an_app_that_lacks_it() {
    let server = local();
    let chunks = ask(&server, "c", SHORT).await.chunks().await;
    for kept in ["", "?replay=false", "?startIndex=0"] {
        let path = format!("/v1/ui/chat/c/stream{kept}");
        assert_eq!(get(&server, &path).await.status, StatusCode::NO_CONTENT, "{kept}");
    }
    let lost = "/v1/ui/chat/c/stream?replay=true";
    for _ in 0..2 {
        assert_eq!(get(&server, lost).await.chunks().await, chunks);
    }
    let wrong = get(&server, "/v1/ui/chat/c/stream?replay=x").await;
    assert_eq!(wrong.status, StatusCode::BAD_REQUEST);
    let stopped = call(&server, "DELETE", "/v1/ui/chat/c/stream", &[]).await;
    assert_eq!(stopped.status, StatusCode::NO_CONTENT);
    assert_eq!(get(&server, lost).await.status, StatusCode::NO_CONTENT);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_chat_generates_no_more() {
    let server = unhurried();
    let reader = ask(&server, "c", ENDLESS).await;
    let stopped = call(&server, "DELETE", "/v1/ui/chat/c/stream", &[]).await;
    assert_eq!(stopped.status, StatusCode::NO_CONTENT);
    server.until("num_requests_running", |running| running == 0.0).await;
    assert!(server.metric("generation_tokens_total") < ENDLESS as f64);
    let chunks = reader.chunks().await;
    assert_eq!(chunks[chunks.len() - 2]["type"], "abort");
    assert_eq!(get(&server, "/v1/ui/chat/c/stream").await.status, StatusCode::NO_CONTENT);
    let again = call(&server, "DELETE", "/v1/ui/chat/c", &[]).await;
    assert_eq!(again.status, StatusCode::NO_CONTENT);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_readers_of_a_stopped_answer_hear_that_it_was_stopped() {
    let server = unhurried();
    for by_run in [true, false] {
        let asked = ask(&server, "c", ENDLESS).await;
        let run = asked.header("x-workflow-run-id").to_owned();
        let by_chat_id = get(&server, "/v1/ui/chat/c/stream").await;
        let by_run_id = get(&server, &format!("/v1/ui/chat/{run}/stream")).await;
        let id = if by_run { run.as_str() } else { "c" };
        let stopped = call(&server, "DELETE", &format!("/v1/ui/chat/{id}"), &[]).await;
        assert_eq!(stopped.status, StatusCode::NO_CONTENT);
        for reader in [asked, by_chat_id, by_run_id] {
            let chunks = reader.chunks().await;
            assert_eq!(chunks[chunks.len() - 2]["type"], "abort", "by run: {by_run}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chat_has_one_answer_at_a_time() {
    let server = unhurried();
    let older = ask(&server, "c", ENDLESS).await;
    let newer = ask(&server, "c", SHORT).await.chunks().await;
    assert_eq!(text_of(&newer), server.text(SHORT).await);
    assert!(text_of(&older.chunks().await).len() < local().text(ENDLESS).await.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workflow_reconnects_at_any_chunk() {
    let server = local();
    let mut body = ui("unused", SHORT);
    body.as_object_mut().unwrap().remove("id");
    let reply = post(&server, "/v1/ui/chat", &[], &body).await;
    let run = reply.header("x-workflow-run-id").to_owned();
    let all = reply.chunks().await;
    for start in [0, 1, 7, all.len()] {
        let path = format!("/v1/ui/chat/{run}/stream?startIndex={start}");
        assert_eq!(get(&server, &path).await.chunks().await, all[start..], "from {start}");
    }
    for start in ["x", "-3", "0.5", "99999999999999999999"] {
        let wrong = get(&server, &format!("/v1/ui/chat/{run}/stream?startIndex={start}")).await;
        assert_eq!(wrong.status, StatusCode::BAD_REQUEST, "{start}");
    }
    let unknown = get(&server, &format!("/v1/ui/chat/run-{}/stream", "0".repeat(64))).await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
}

/// An answer that goes on with the assistant's message has that one's id, which a resumed stream
/// must not replace.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_of_a_message_stays_so_when_it_is_resumed() {
    let server = local();
    let tool = json!({"type": "tool-weather", "toolCallId": "a", "state": "output-available",
        "input": {}, "output": {"sky": "clear"}});
    let mut body = ui("c", SHORT);
    let more = json!({"id": "m2", "role": "assistant", "parts": [{"type": "step-start"}, tool]});
    body["messages"].as_array_mut().unwrap().push(more);
    let first = post(&server, "/v1/ui/chat", &[], &body).await;
    let run = first.header("x-workflow-run-id").to_owned();
    for path in ["c", &run] {
        let resumed = get(&server, &format!("/v1/ui/chat/{path}/stream")).await.chunks().await;
        assert_eq!(resumed[0], json!({"type": "start"}), "{path}");
    }
    assert_eq!(first.chunks().await[0], json!({"type": "start"}));
}

/// `useChat` sends all turns again with each question. A question with an image is refused; in an
/// earlier one, a line of text takes its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_picture_of_the_past_ends_no_chat() {
    let server = local();
    let url = "data:image/png;base64,AA==";
    let file = json!({"type": "file", "mediaType": "image/png", "url": url});
    let text = json!({"type": "text", "text": "See:"});
    let see = json!({"id": "m0", "role": "user", "parts": [text, file]});
    let asked = json!({"id": "c", "messages": [see]});
    let refused = post(&server, "/v1/ui/chat", &[], &asked).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    let mut body = ui("c", SHORT);
    let turns = body["messages"].as_array_mut().unwrap();
    let text = json!({"type": "text", "text": "I see nothing."});
    turns.insert(0, json!({"id": "a0", "role": "assistant", "parts": [text]}));
    turns.insert(0, see);
    let reply = post(&server, "/v1/ui/chat", &[], &body).await;
    let named = "messages[0].content[1] (image_url)";
    assert_eq!(reply.header("x-loquent-ignored-parameters"), named);
    let chunks = reply.chunks().await;
    assert_eq!(chunks.last().unwrap()["finishReason"], "stop");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chat_belongs_to_its_key() {
    let api_keys = ApiKeys::load(&["one".into(), "two".into()], None, None).unwrap();
    let server = Server::with_http(HttpConfig { api_keys, ..harness::http_config() }, |_| {});
    let one = [("authorization", "Bearer one")];
    let two = [("authorization", "Bearer two")];
    drop(post(&server, "/v1/ui/chat", &one, &ui("c", LONG)).await);
    let stream = "/v1/ui/chat/c/stream";
    assert_eq!(call(&server, "GET", stream, &two).await.status, StatusCode::NO_CONTENT);
    assert_eq!(call(&server, "DELETE", stream, &two).await.status, StatusCode::NO_CONTENT);
    assert_eq!(call(&server, "GET", stream, &[]).await.status, StatusCode::UNAUTHORIZED);
    let whole = call(&server, "GET", stream, &one).await.chunks().await;
    assert_eq!(whole.last().unwrap()["finishReason"], "stop", "another's DELETE is none");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_keys_ids_that_can_be_guessed_name_nothing() {
    let server = Server::with_http(harness::http_config(), |_| {});
    let reply = ask(&server, "c", SHORT).await;
    let run = reply.header("x-workflow-run-id").to_owned();
    for (method, path) in [("GET", "/v1/ui/chat/c/stream"), ("DELETE", "/v1/ui/chat/c")] {
        let refused = call(&server, method, path, &[]).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{method} {path}");
    }
    let chunks = reply.chunks().await;
    let stream = format!("/v1/ui/chat/{run}/stream");
    assert_eq!(get(&server, &stream).await.chunks().await, chunks);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_ui_messages_are_refused_by_name() {
    let server = local();
    for (body, named) in [
        (json!({}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": 7}), "messages"),
        (json!({"messages": [{"role": "user", "parts": {}}]}), "messages[0].parts"),
        (json!({"id": 7, "messages": []}), "id"),
        (json!({"n": 2, "messages": []}), "n"),
    ] {
        let reply = post(&server, "/v1/ui/chat", &[], &body).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{body}");
        let bytes = reply.body.collect().await.unwrap().to_bytes();
        let error: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(error["error"]["param"], named, "{body}");
    }
}

/// The path of a kept answer of `tokens` tokens, and the reader that began it.
async fn kept(server: &Server, tokens: usize) -> (String, Reply) {
    let body = chat(tokens, true, json!({"resumable": true}));
    let reply = post(server, "/v1/chat/completions", &[], &body).await;
    let id = reply.header("x-loquent-stream-id");
    let token = reply.header("x-loquent-stream-token");
    (format!("/v1/streams/{id}?token={token}"), reply)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_is_read_piece_by_piece() {
    /// More than a response holds.
    const TOKENS: usize = 3 * LONG;
    let server = Server::start(|_| {});
    let (path, reader) = kept(&server, TOKENS).await;
    drop(reader);
    server.until("num_requests_running", |running| running == 0.0).await;
    let (mut text, mut offset, mut reads) = (String::new(), "-1".to_owned(), 0);
    loop {
        let reply = get(&server, &format!("{path}&offset={offset}")).await;
        assert_eq!(reply.header("content-type"), "application/json");
        let next = reply.header("stream-next-offset").to_owned();
        assert!(offset == "-1" || next >= offset, "{next} after {offset}");
        offset = next;
        reads += 1;
        let is_closed = reply.headers.contains_key("stream-closed");
        assert!(!is_closed || reply.headers.contains_key("stream-up-to-date"));
        let messages: Value = serde_json::from_str(&reply.text().await).unwrap();
        for choice in messages.as_array().unwrap().iter().map(|chunk| &chunk["choices"][0]) {
            text.push_str(choice["delta"]["content"].as_str().unwrap_or(""));
        }
        if is_closed {
            break;
        }
    }
    assert!(reads > 1, "it takes several pieces");
    assert!(text == server.text(TOKENS).await, "{} bytes", text.len());
    let head = call(&server, "HEAD", &path, &[]).await;
    assert_eq!(head.header("stream-next-offset"), offset);
    assert_eq!(head.header("stream-closed"), "true");
    let end = get(&server, &format!("{path}&offset={offset}")).await;
    assert_eq!(end.header("stream-closed"), "true");
    assert_eq!(end.text().await, "[]");
    let poll = get(&server, &format!("{path}&offset=now&live=long-poll")).await;
    assert_eq!(poll.status, StatusCode::NO_CONTENT);
    assert_eq!(poll.header("stream-closed"), "true");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_is_followed_by_long_polls() {
    let server = Server::start(|_| {});
    let (path, reader) = kept(&server, LONG).await;
    drop(reader);
    let (mut text, mut offset) = (String::new(), "-1".to_owned());
    loop {
        let reply = get(&server, &format!("{path}&as=text&offset={offset}&live=long-poll")).await;
        offset = reply.header("stream-next-offset").to_owned();
        assert!(reply.headers.contains_key("stream-cursor"));
        let is_closed = reply.headers.contains_key("stream-closed");
        if reply.status != StatusCode::NO_CONTENT {
            text.push_str(&reply.text().await);
        }
        if is_closed {
            break;
        }
    }
    assert!(text == server.text(LONG).await, "the text is whole");
}

/// The value of an event's `data` field.
fn value_of(line: &str) -> &str {
    let value = line.strip_prefix("data:").unwrap();
    value.strip_prefix(' ').unwrap_or(value)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_is_followed_by_events() {
    let server = Server::start(|_| {});
    let (path, reader) = kept(&server, LONG).await;
    drop(reader);
    let reply = get(&server, &format!("{path}&as=text&offset=-1&live=sse")).await;
    let (mut text, mut control) = (String::new(), Value::Null);
    let mut was_data = false;
    for event in reply.text().await.split_terminator("\n\n") {
        let (kind, data) = event.split_once('\n').unwrap();
        let lines: Vec<_> = data.split('\n').map(value_of).collect();
        match kind {
            "event: data" => {
                assert!(!was_data, "each has a control event of its own");
                text.push_str(&lines.join("\n"));
            }
            "event: control" => control = serde_json::from_str(lines[0]).unwrap(),
            other => panic!("{other}"),
        }
        was_data = kind == "event: data";
    }
    assert!(text == server.text(LONG).await, "the text is whole");
    assert_eq!(control["streamClosed"], true);
    assert_eq!(control["streamCursor"], Value::Null);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_reader_has_is_not_sent_again() {
    let server = Server::start(|_| {});
    let (path, reader) = kept(&server, SHORT).await;
    reader.text().await;
    let path = format!("{path}&offset=-1");
    let etag = get(&server, &path).await.header("etag").to_owned();
    let known = call(&server, "GET", &path, &[("if-none-match", &etag)]).await;
    assert_eq!(known.status, StatusCode::NOT_MODIFIED);
    let other = call(&server, "GET", &path, &[("if-none-match", "\"other\"")]).await;
    assert_eq!(other.status, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_are_found_by_their_token_alone() {
    let server = Server::start(|_| {});
    let (path, reader) = kept(&server, SHORT).await;
    reader.text().await;
    let (id, _) = path.split_once('?').unwrap();
    let wrong = format!("{id}?token={}", "0".repeat(32));
    for mode in ["", "&live=sse", "&live=long-poll"] {
        let reply = get(&server, &format!("{wrong}&offset=-1{mode}")).await;
        assert_eq!(reply.status, StatusCode::NOT_FOUND, "{mode}");
        let reply = get(&server, &format!("{path}&offset=1{mode}")).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "inside a record: {mode}");
    }
    assert_eq!(call(&server, "HEAD", &wrong, &[]).await.status, StatusCode::NOT_FOUND);
}
