//! Requests of other APIs in front of an upstream server that speaks chat completions.

use axum::body::Body;
use http::Request as HttpRequest;
use http_body_util::BodyExt;
use loquent_server::OllamaApi;
use serde_json::{Value, json};

use super::speaking::Upstream;
use super::stand_in::{Act, StandIn, stream, whole};
use super::{FIRST, Front, Settings, USAGE, json_of};

/// As vLLM ends an answer at a stop string.
const STOPPED: &str = r#"{"id":"up-1","choices":[{"index":0,"delta":{},"finish_reason":"stop","stop_reason":"END"}]}"#;

fn offering(settings: &mut Settings) {
    settings.http.ollama_api = OllamaApi::Always;
}

fn message(streams: bool) -> Value {
    json!({
        "model": "m", "max_tokens": 5, "stream": streams, "stop_sequences": ["END"],
        "system": "Be short.", "messages": [{"role": "user", "content": "hi"}],
    })
}

const CHAT: &str = "POST /v1/chat/completions";

async fn upstream() -> Upstream {
    Upstream::start([(CHAT, stream(&[FIRST, STOPPED, USAGE, "[DONE]"]))]).await
}

#[tokio::test]
async fn anthropics_requests_become_chat_completions() {
    let up = upstream().await;
    let front = Front::new(&up.url);
    for streams in [false, true] {
        let response = front.post("/v1/messages", message(streams)).await;
        assert_eq!(response.status().as_u16(), 200);
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        for part in [r#""stop_reason":"stop_sequence""#, r#""stop_sequence":"END""#, "Hel"] {
            assert!(text.contains(part), "{streams}: no {part} in {text}");
        }
        assert!(text.contains(r#""input_tokens":3"#) && text.contains(r#""output_tokens":2"#));
        let body = up.body(CHAT);
        assert_eq!(body["messages"][0], json!({"role": "system", "content": "Be short."}));
        assert_eq!((&body["stop"], &body["max_tokens"]), (&json!(["END"]), &json!(5)));
        assert_eq!(body.get("include_stop_reason"), None, "only this server knows it");
    }
}

/// The name of its reasoning in vLLM and at OpenRouter, which is not that of this server.
#[tokio::test]
async fn an_upstreams_reasoning_is_thinking_whatever_its_name() {
    for name in ["reasoning_content", "reasoning"] {
        let delta = json!({name: "Hm."});
        let thought = json!({"id": "up-1", "choices": [{"index": 0, "delta": delta}]}).to_string();
        let events = [thought.as_str(), FIRST, STOPPED, USAGE, "[DONE]"];
        let front = Front::new(&Upstream::start([(CHAT, stream(&events))]).await.url);
        for streams in [false, true] {
            let response = front.post("/v1/messages", message(streams)).await;
            let bytes = response.into_body().collect().await.unwrap().to_bytes();
            let text = String::from_utf8(bytes.to_vec()).unwrap();
            assert!(text.contains(r#""thinking":"Hm.""#), "{name}, {streams}: {text}");
        }
    }
}

/// The upstream's model may see them.
#[tokio::test]
async fn images_are_passed_on_in_every_api() {
    let up = upstream().await;
    let front = Front::with(&up.url, offering);
    let url = "data:image/png;base64,iVBORw0KGgo=";
    let source = json!({"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="});
    let image = json!({"type": "image", "source": source});
    let blocks = json!([{"type": "text", "text": "See:"}, image]);
    let result = json!([{"type": "tool_result", "tool_use_id": "a", "content": [image]}]);
    let call = json!([{"type": "tool_use", "id": "a", "name": "see", "input": {}}]);
    let input = json!([{"type": "input_image", "image_url": url}]);
    let user = |content: Value| json!({"role": "user", "content": content});
    let anthropic = json!([user(blocks), {"role": "assistant", "content": call}, user(result)]);
    let file = json!({"type": "file", "mediaType": "image/png", "url": url});
    let ui = json!([{"role": "user", "parts": [{"type": "text", "text": "See:"}, file]}]);
    let ollama = json!([{"role": "user", "content": "See:", "images": ["iVBORw0KGgo="]}]);
    for (path, body, places) in [
        ("/v1/messages", json!({"max_tokens": 5, "messages": anthropic}), &[(0, 1), (2, 0)][..]),
        ("/v1/responses", json!({"input": [user(input)]}), &[(0, 0)]),
        ("/v1/ui/chat", json!({"messages": ui}), &[(0, 1)]),
        ("/api/chat", json!({"model": "m", "messages": ollama}), &[(0, 1)]),
        (
            "/api/generate",
            json!({"model": "m", "prompt": "See:", "images": ["iVBORw0KGgo="]}),
            &[(0, 1)],
        ),
    ] {
        let response = front.post(path, body).await;
        assert_eq!(response.status().as_u16(), 200, "{path}");
        response.into_body().collect().await.unwrap();
        let messages = &up.body(CHAT)["messages"];
        for (message, part) in places {
            let part = &messages[message]["content"][part];
            assert_eq!(part["image_url"]["url"], url, "{path}: {messages}");
        }
    }
}

/// Some servers say that everything was created in 1970.
#[tokio::test]
async fn a_response_is_kept_by_this_servers_clock() {
    let up = upstream().await;
    let front = Front::new(&up.url);
    let response = front.post("/v1/responses", json!({"input": "hi"})).await;
    let id = json_of(response).await["id"].as_str().unwrap().to_owned();
    let request = HttpRequest::get(format!("/v1/responses/{id}"));
    let request = request.header("authorization", "Bearer own").body(Body::empty()).unwrap();
    assert_eq!(front.send(request).await.status().as_u16(), 200);
}

/// The upstream streams, whatever the editor asked for: what it sends is put together here.
#[tokio::test]
async fn editors_get_the_text_between_two_others_streamed_or_whole() {
    const COMPLETIONS: &str = "POST /v1/completions";
    let text = r#"{"id":"up-1","choices":[{"index":0,"text":"x = 1","finish_reason":"stop"}]}"#;
    let up = Upstream::start([(COMPLETIONS, stream(&[text, USAGE, "[DONE]"]))]).await;
    let front = Front::new(&up.url);
    for streams in [false, true] {
        let body = json!({"input_prefix": "let ", "input_suffix": ";", "stream": streams});
        let response = front.post("/infill", body).await;
        assert_eq!(response.status().as_u16(), 200, "{streams}");
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        assert!(text.contains(r#""content":"x = 1""#), "{streams}: {text}");
        assert!(text.contains(r#""tokens_predicted":2"#), "{streams}: {text}");
        assert_eq!(up.body(COMPLETIONS)["suffix"], ";");
    }
}

#[tokio::test]
async fn anthropics_key_is_the_upstreams_too() {
    let mut up = StandIn::start(Act::Keep(whole("404 Not Found", "{}"))).await;
    let front = Front::new(&up.url);
    let request = HttpRequest::post("/v1/messages").header("x-api-key", "own");
    let request = request.body(Body::from(message(true).to_string())).unwrap();
    front.send(request).await;
    // It is asked whether it speaks the API, and then for a completion.
    for path in ["/v1/messages", "/v1/chat/completions"] {
        let seen = up.requests.recv().await.unwrap();
        assert!(seen.starts_with(&format!("POST {path} ")), "{seen}");
        assert!(seen.contains("Bearer own"), "{seen}");
    }
}

#[tokio::test]
async fn an_upstream_that_speaks_chat_alone_counts_no_tokens() {
    let front = Front::new(&upstream().await.url);
    let response = front.post("/v1/messages/count_tokens", message(false)).await;
    assert_eq!(response.status().as_u16(), 404);
    assert_eq!(json_of(response).await["error"]["type"], "not_found_error");
}

/// Its error says which API has them.
#[tokio::test]
async fn ollamas_embeddings_are_not_an_upstreams() {
    let front = Front::with(&upstream().await.url, offering);
    let response = front.post("/api/embed", json!({"model": "m", "input": "a"})).await;
    assert_eq!(response.status().as_u16(), 400);
    assert!(json_of(response).await["error"].to_string().contains("Use POST /v1/embeddings"));
}

#[tokio::test]
async fn ollamas_requests_become_chat_completions() {
    let up = upstream().await;
    let front = Front::with(&up.url, offering);
    let messages = json!([{"role": "user", "content": "hi"}]);
    let ask = json!({"model": "m", "messages": messages, "options": {"num_predict": 5}});
    let bytes = front.post("/api/chat", ask).await.into_body().collect().await.unwrap().to_bytes();
    let lines: Vec<Value> = bytes
        .split(|byte| *byte == b'\n')
        .filter_map(|it| serde_json::from_slice(it).ok())
        .collect();
    assert_eq!(lines[0]["message"]["content"], "Hel");
    let last = lines.last().unwrap();
    assert_eq!((&last["done"], &last["eval_count"]), (&json!(true), &json!(2)));
    let body = up.body(CHAT);
    assert_eq!((&body["messages"], &body["max_tokens"]), (&messages, &json!(5)));
}

#[tokio::test]
async fn an_upstreams_refusal_is_told_in_the_clients_words() {
    let refusal = r#"{"error":{"message":"no such model","type":"invalid_request_error"}}"#;
    let up = StandIn::start(Act::Keep(whole("404 Not Found", refusal))).await;
    let front = Front::with(&up.url, offering);
    let response = front.post("/v1/messages", message(true)).await;
    assert_eq!(response.status().as_u16(), 404);
    let error = json_of(response).await;
    let expected = json!({"type": "not_found_error", "message": "no such model"});
    assert_eq!(error["error"], expected);
    let ask = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    let response = front.post("/api/chat", ask).await;
    assert_eq!(response.status().as_u16(), 404);
    assert_eq!(json_of(response).await, json!({"error": "no such model"}));
}

#[tokio::test]
async fn a_route_that_the_operator_names_goes_to_the_upstream_as_it_is() {
    let mut up = StandIn::start(Act::Keep(whole("200 OK", "{}"))).await;
    let front = Front::with(&up.url, |settings| {
        offering(settings);
        let routes = ["POST /api/chat", "POST /embeddings"];
        settings.upstream.routes = routes.iter().map(|route| route.parse().unwrap()).collect();
    });
    for path in ["/api/chat", "/embeddings"] {
        assert_eq!(front.post(path, json!({})).await.status().as_u16(), 200);
        let request = up.requests.recv().await.unwrap();
        assert!(request.starts_with(&format!("POST {path} ")), "{request}");
    }
}
