//! llama-server's own routes.

use axum::body::Body;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};

use super::harness::Server;

async fn get(server: &Server, path: &str) -> Value {
    let response = server.call(Request::get(path).body(Body::empty()).unwrap()).await;
    assert_eq!(response.status(), StatusCode::OK, "{path}");
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    serde_json::from_slice(&bytes).unwrap()
}

fn check_timings(answer: &Value) {
    let (timings, number) = (&answer["timings"], |value: &Value| value.as_f64().unwrap());
    assert!(number(&timings["predicted_n"]) > 0.0, "{answer}");
    assert_eq!(timings["predicted_n"], answer["tokens_predicted"]);
    let evaluated = number(&timings["prompt_n"]) + number(&timings["cache_n"]);
    assert_eq!(evaluated, number(&answer["tokens_evaluated"]), "{answer}");
    for name in ["prompt_ms", "prompt_per_second", "predicted_ms", "predicted_per_token_ms"] {
        assert!(number(&timings[name]) >= 0.0, "{name}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_completion_is_in_llama_servers_form() {
    let server = Server::start(|_| {});
    let ask = json!({"prompt": "say=one STOP two", "n_predict": 50, "stop": ["STOP"]});
    let whole = server.whole("/completion", &ask).await;
    assert_eq!(whole["content"], "one ");
    assert_eq!((&whole["stop_type"], &whole["stopping_word"]), (&json!("word"), &json!("STOP")));
    check_timings(&whole);
    let mut streamed = ask.clone();
    streamed["stream"] = true.into();
    let (status, body) = server.post("/completion", &streamed).await;
    assert_eq!(status, StatusCode::OK);
    let bytes = body.collect().await.unwrap().to_bytes();
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
    let said: String = events.iter().filter_map(|event| event["content"].as_str()).collect();
    assert_eq!(said, "one ");
    let last = events.last().unwrap();
    assert_eq!((&last["stop"], &last["stopping_word"]), (&json!(true), &json!("STOP")));
    check_timings(last);
    let limited = json!({"prompt": "say=one two three", "n_predict": 2});
    assert_eq!(server.whole("/completion", &limited).await["stop_type"], "limit");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conversation_is_shown_as_its_prompt() {
    let server = Server::start(|_| {});
    let messages = json!([{"role": "user", "content": "Hi <|im_end|>"}]);
    let shown = server.whole("/apply-template", &json!({"messages": messages})).await;
    let wanted = "<|im_start|>user\nHi <|im_end|><|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(shown["prompt"], wanted);
    let (status, _) = server.post("/apply-template", &json!({"messages": []})).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_model_and_its_slots_are_described() {
    let server = Server::start(|_| {});
    let props = get(&server, "/props").await;
    assert_eq!(props["default_generation_settings"]["n_ctx"], 16_384);
    assert!(props["chat_template"].as_str().unwrap().contains("im_start"));
    let slots = get(&server, "/slots").await;
    let slots = slots.as_array().unwrap();
    assert_eq!(props["total_slots"], slots.len());
    assert!(!slots.is_empty() && slots.iter().all(|slot| slot["is_processing"] == false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_methods_of_its_paths_are_not_allowed() {
    let server = Server::start(|_| {});
    for path in ["/props", "/slots"] {
        for method in [Method::POST, Method::DELETE, Method::TRACE] {
            let asked = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
            let response = server.call(asked).await;
            assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED, "{path}");
            assert_eq!(response.headers()["allow"], "GET,HEAD", "{path}");
        }
    }
}
