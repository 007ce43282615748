//! Anthropic's API: its events and objects, its errors, and what is refused by name.

use axum::body::Body;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use loquent_server::{ApiKeys, HttpConfig};
use serde_json::{Value, json};

use super::harness::{self, FOREVER, Server};

const MESSAGES: &str = "/v1/messages";

/// A request for an answer that is `said`, word for word.
fn say(said: &str, more: Value) -> Value {
    let content = format!("say={said}");
    let messages = json!([{"role": "user", "content": content}]);
    let mut body = json!({"model": "any", "max_tokens": 500, "messages": messages});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn weather() -> Value {
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    json!([{"name": "weather", "description": "Tells it.", "input_schema": schema}])
}

const CALL: &str = r#"<tool_call>
{"name": "weather", "arguments": {"city": "Paris"}}
</tool_call>"#;

/// The events of a stream, each with its name, and pings left out.
async fn events(server: &Server, body: &Value) -> Vec<Value> {
    let (status, body) = server.post(MESSAGES, body).await;
    let bytes = body.collect().await.unwrap().to_bytes();
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    assert_eq!(status, StatusCode::OK, "{text}");
    let event = |block: &str| {
        let (name, data) = block.strip_prefix("event: ")?.split_once("\ndata: ")?;
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["type"], name);
        Some(data).filter(|data| data["type"] != "ping")
    };
    text.split("\n\n").filter_map(event).collect()
}

/// The message that a client puts together from `events`, by Anthropic's rules.
fn accumulated(events: &[Value]) -> Value {
    let mut message = events[0]["message"].clone();
    let mut json = String::new();
    for event in &events[1..] {
        let index = event["index"].as_u64().unwrap_or_default() as usize;
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                let blocks = message["content"].as_array_mut().unwrap();
                assert_eq!(blocks.len(), index);
                blocks.push(event["content_block"].clone());
            }
            "content_block_delta" => {
                let (block, delta) = (&mut message["content"][index], &event["delta"]);
                for name in ["text", "thinking", "signature"] {
                    if let Some(more) = delta[name].as_str() {
                        block[name] = format!("{}{more}", block[name].as_str().unwrap()).into();
                    }
                }
                json.push_str(delta["partial_json"].as_str().unwrap_or_default());
            }
            "content_block_stop" => {
                if !json.is_empty() {
                    let input = serde_json::from_str(&std::mem::take(&mut json)).unwrap();
                    message["content"][index]["input"] = input;
                }
            }
            "message_delta" => {
                for name in ["stop_reason", "stop_sequence"] {
                    message[name] = event["delta"][name].clone();
                }
                message["usage"] = event["usage"].clone();
            }
            "message_stop" => return message,
            other => panic!("an unexpected {other}"),
        }
    }
    panic!("no message_stop in {events:?}");
}

/// Both ways to get one answer, which must be the same but for the ids.
async fn answer(server: &Server, mut body: Value) -> Value {
    let mut whole = server.whole(MESSAGES, &body).await;
    body["stream"] = true.into();
    let mut streamed = accumulated(&events(server, &body).await);
    for message in [&mut whole, &mut streamed] {
        assert!(message["id"].as_str().unwrap().starts_with("msg_"), "{message}");
        message["id"] = Value::Null;
        // The second request finds the first one's prompt in the cache.
        let usage = &message["usage"];
        let count = |name: &str| usage[name].as_u64().unwrap();
        let input = count("input_tokens") + count("cache_read_input_tokens");
        message["usage"] = json!([input, count("output_tokens")]);
        for block in message["content"].as_array_mut().unwrap() {
            block.as_object_mut().unwrap().remove("id");
        }
    }
    assert_eq!(whole, streamed);
    whole
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_is_a_message_streamed_or_whole() {
    let server = Server::start(|_| {});
    let message = answer(&server, say("Good morning.", json!({}))).await;
    assert_eq!(message["type"], "message");
    assert_eq!(message["role"], "assistant");
    assert_eq!(message["model"], "simulated");
    assert_eq!(message["content"], json!([{"type": "text", "text": "Good morning."}]));
    assert_eq!(message["stop_reason"], "end_turn");
    let counted = server.whole("/v1/messages/count_tokens", &say("Good morning.", json!({}))).await;
    assert_eq!(message["usage"][0], counted["input_tokens"]);
    let cut = answer(&server, say("one two three four", json!({"max_tokens": 2}))).await;
    assert_eq!(cut["stop_reason"], "max_tokens");
    assert_eq!(cut["usage"][1], 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_sequence_is_named() {
    let server = Server::start(|_| {});
    let more = json!({"stop_sequences": ["STOP", "never"]});
    let message = answer(&server, say("one STOP two", more)).await;
    assert_eq!(message["content"][0]["text"], "one ");
    assert_eq!(message["stop_reason"], "stop_sequence");
    assert_eq!(message["stop_sequence"], "STOP");
    let plain = answer(&server, say("one STOP two", json!({}))).await;
    assert_eq!(plain["stop_sequence"], Value::Null);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thinking_and_tool_calls_are_blocks_of_their_own() {
    let server = Server::over(harness::thinking(), |_| {});
    let said = format!("<think>\nHm.\n</think>\nLet me look.\n{CALL}");
    let message = answer(&server, say(&said, json!({"tools": weather()}))).await;
    let kinds: Vec<_> = message["content"].as_array().unwrap().iter().collect();
    assert_eq!(kinds.len(), 3, "{message}");
    assert_eq!(kinds[0]["type"], "thinking");
    assert_eq!(kinds[0]["thinking"].as_str().unwrap().trim(), "Hm.");
    assert!(!kinds[0]["signature"].as_str().unwrap().is_empty());
    assert_eq!(kinds[1]["text"].as_str().unwrap().trim(), "Let me look.");
    let call = json!({"type": "tool_use", "name": "weather", "input": {"city": "Paris"}});
    assert_eq!(*kinds[2], call);
    assert_eq!(message["stop_reason"], "tool_use");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_block_reaches_the_prompt() {
    let server = Server::start(|_| {});
    let count = async |messages: Value, more: Value| {
        let mut body = json!({"model": "any", "max_tokens": 9, "messages": messages});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let counted = server.whole("/v1/messages/count_tokens", &body).await;
        counted["input_tokens"].as_u64().unwrap()
    };
    let text =
        |text: &str| json!({"type": "text", "text": text, "cache_control": {"type": "ephemeral"}});
    let user = |blocks: Value| json!([{"role": "user", "content": blocks}]);
    let plain = count(user(json!("hello there")), json!({})).await;
    let lines = count(user(json!("hello\nthere")), json!({})).await;
    assert_eq!(count(user(json!([text("hello"), text("there")])), json!({})).await, lines);
    let begun = json!([
        {"role": "user", "content": "hello there"}, {"role": "assistant", "content": "I"},
    ]);
    assert_eq!(count(begun, json!({})).await, plain + 1, "the answer goes on from there");
    let system = count(user(json!("hello there")), json!({"system": [text("Be short.")]})).await;
    assert!(system > plain);
    let document = json!({"type": "document", "source": {"type": "text", "data": "A long story."}});
    assert!(count(user(json!([document, text("hello there")])), json!({})).await > plain);
    let round = json!([
        {"role": "user", "content": "hello there"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "unsigned"},
            {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Paris"}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "call_1", "content": [text("Rain.")]},
            text("And now?")]},
    ]);
    let with_tools = count(round, json!({"tools": weather()})).await;
    assert!(with_tools > plain, "{with_tools}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forced_call_is_of_the_tool_that_was_named() {
    let server = Server::start(|_| {});
    let choice = json!({"type": "tool", "name": "weather", "disable_parallel_tool_use": true});
    let more = json!({"tools": weather(), "tool_choice": choice});
    let message = answer(&server, say(CALL, more)).await;
    assert_eq!(message["content"][0]["name"], "weather", "{message}");
    let none = json!({"tools": weather(), "tool_choice": {"type": "none"}});
    let message = answer(&server, say(CALL, none)).await;
    assert_eq!(message["content"][0]["text"], CALL, "{message}");
}

/// The status, the request's id and the body of a response to `body`.
async fn refusal(server: &Server, path: &str, key: [&str; 2], body: &str) -> (StatusCode, Value) {
    let request = Request::post(path).header(key[0], key[1]);
    let response = server.call(request.body(Body::from(body.to_owned())).unwrap()).await;
    let (head, body) = response.into_parts();
    let id = head.headers["request-id"].to_str().unwrap().to_owned();
    let bytes = body.collect().await.unwrap().to_bytes();
    let error: Value = serde_json::from_slice(&bytes).unwrap();
    if head.status != StatusCode::OK {
        assert_eq!(error["type"], "error");
        assert_eq!(error["request_id"], id);
    }
    (head.status, error)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_have_anthropics_shape_whoever_refuses() {
    let api_keys = ApiKeys::load(&["sk-right".into()], None, None).unwrap();
    let http = HttpConfig { api_keys, ..harness::http_config() };
    let server = Server::with_http(http, |_| {});
    let right = ["x-api-key", "sk-right"];
    let body = say("Hi.", json!({"max_tokens": 4})).to_string();
    assert_eq!(refusal(&server, MESSAGES, right, &body).await.0, StatusCode::OK);
    let bearer = ["authorization", "Bearer sk-right"];
    assert_eq!(refusal(&server, MESSAGES, bearer, &body).await.0, StatusCode::OK);
    for (path, key, body, status, kind) in [
        (MESSAGES, ["x-api-key", "sk-wrong"], body.as_str(), 401, "authentication_error"),
        (MESSAGES, ["accept", "*/*"], &body, 401, "authentication_error"),
        (MESSAGES, right, "[", 400, "invalid_request_error"),
        (MESSAGES, right, "{}", 400, "invalid_request_error"),
        ("/v1/messages/batches", right, "{}", 404, "not_found_error"),
    ] {
        let (found, error) = refusal(&server, path, key, body).await;
        assert_eq!(found.as_u16(), status, "{path} {key:?}: {error}");
        assert_eq!(error["error"]["type"], kind, "{error}");
    }
}

/// The SDK's tool runner begins a thread, and sends all messages if it is told so by this code.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thread_is_refused_under_the_code_that_clients_know() {
    let server = Server::start(|_| {});
    let key = ["accept", "*/*"];
    let thread = json!({"thread": {"type": "create"}});
    let (status, body) = refusal(&server, MESSAGES, key, &say("Hi.", thread).to_string()).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let details = json!({"error_code": "thread_unsupported_request", "unsupported": []});
    assert_eq!(body["error"]["details"], details);
    assert_eq!(body["error"]["type"], "invalid_request_error");
    let none = say("Hi.", json!({"thread": null})).to_string();
    assert_eq!(refusal(&server, MESSAGES, key, &none).await.0, StatusCode::OK);
}

/// Claude Code reads an image with a tool, and sends it with each request from then on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_in_a_tools_result_ends_no_session() {
    let server = Server::start(|_| {});
    let image = json!({"type": "image", "source": {"type": "base64", "data": "AA=="}});
    let file = json!({"type": "document", "source": {"type": "base64", "data": "AA=="}});
    let result = json!({"type": "tool_result", "tool_use_id": "a", "content": [image, file]});
    let call = json!({"type": "tool_use", "id": "a", "name": "see", "input": {}});
    let say = json!({"type": "text", "text": "say=I see."});
    let more = json!({"messages": [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result, say]},
    ]});
    let body = Body::from(self::say("", more).to_string());
    let response = server.call(Request::post(MESSAGES).body(body).unwrap()).await;
    assert_eq!(response.status(), StatusCode::OK);
    let named = response.headers()["x-loquent-ignored-parameters"].to_str().unwrap();
    assert!(named.contains("messages[2].content[0].content[0] (image)"), "{named}");
    assert!(named.contains("messages[2].content[0].content[1] (document)"), "{named}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_no_effect_is_named_as_the_client_named_it() {
    let server = Server::start(|_| {});
    let more = json!({
        "output_config": {"effort": "low"},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    });
    let body = Body::from(say("Hi.", more).to_string());
    let response = server.call(Request::post(MESSAGES).body(body).unwrap()).await;
    let named = response.headers()["x-loquent-ignored-parameters"].to_str().unwrap();
    let names: Vec<&str> = named.split(", ").collect();
    assert!(names.contains(&"output_config.effort"), "{named}");
    assert!(names.contains(&"thinking.budget_tokens"), "{named}");
}

/// Clients shorten a conversation when they read these words.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_that_is_too_long_is_told_as_anthropic_tells_it() {
    let server = Server::start(|_| {});
    let words = "word ".repeat(1 << 17);
    let body = say(&words, json!({})).to_string();
    let (status, error) = refusal(&server, MESSAGES, ["accept", "*/*"], &body).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let message = error["error"]["message"].as_str().unwrap();
    let counts = message.strip_prefix("prompt is too long: ").expect(message);
    let counts = counts.strip_suffix(" maximum").expect(message);
    let (tokens, maximum) = counts.split_once(" tokens > ").expect(message);
    assert!(tokens.parse::<u64>().unwrap() > maximum.parse::<u64>().unwrap(), "{message}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_would_change_the_answer_is_refused_by_name() {
    let server = Server::start(|_| {});
    let image = json!({"type": "image", "source": {"type": "base64", "data": ""}});
    let search = json!([{"type": "web_search_20250305", "name": "web_search"}]);
    let content = |blocks: Value| json!({"messages": [{"role": "user", "content": blocks}]});
    for (more, name) in [
        (content(json!([image])), "messages[0].content[0].type"),
        (content(json!([{"type": "tool_result"}])), "messages[0].content[0].tool_use_id"),
        (content(json!(5)), "messages[0].content"),
        (json!({"messages": [{"role": "robot", "content": "x"}]}), "messages[0].role"),
        (json!({"tools": search}), "tools[0].type"),
        (json!({"tools": [{"name": "x"}]}), "tools[0].input_schema"),
        (json!({"tool_choice": {"type": "maybe"}}), "tool_choice.type"),
        (json!({"mcp_servers": [{"url": "x"}]}), "mcp_servers"),
        (json!({"compaction": {"type": "summarize"}}), "compaction"),
        (json!({"thinking": {"type": "often"}}), "thinking.type"),
        (json!({"max_tokens": "many"}), "max_tokens"),
    ] {
        let key = ["accept", "*/*"];
        let body = say("Hi.", more).to_string();
        let (status, error) = refusal(&server, MESSAGES, key, &body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");
        let message = error["error"]["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("'{name}'")), "{body}: {message}");
    }
    let body = say(
        "Hi.",
        json!({"speed": "fast", "surprise": 1, "service_tier": "auto", "mcp_servers": []}),
    );
    let request = Request::post(MESSAGES).body(Body::from(body.to_string())).unwrap();
    let response = server.call(request).await;
    assert_eq!(response.headers()["x-loquent-ignored-parameters"], "speed, surprise");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_ends_its_answer() {
    let server = Server::start(|config| config.streams.stall_limit = FOREVER);
    let mut body = say("", json!({"stream": true, "max_tokens": 10_000}));
    body["messages"][0]["content"] = "tokens=100000".into();
    let (status, mut stream) = server.post(MESSAGES, &body).await;
    assert_eq!(status, StatusCode::OK);
    let first = stream.frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(first.windows(13).any(|part| part == b"message_start"), "{first:?}");
    server.until("num_requests_running", |running| running == 1.0).await;
    drop(stream);
    server.until("num_requests_running", |running| running == 0.0).await;
}
