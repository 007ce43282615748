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

fn events_of(text: &str) -> Vec<Value> {
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).unwrap()).collect()
}

async fn streamed(server: &Server, path: &str, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body["stream"] = true.into();
    let (status, body) = server.post(path, &body).await;
    let bytes = body.collect().await.unwrap().to_bytes();
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    assert_eq!(status, StatusCode::OK, "{text}");
    events_of(text.trim_end_matches("data: [DONE]\n\n"))
}

/// The error's parameter of a refused request.
async fn refused(server: &Server, path: &str, body: &Value) -> String {
    let (status, answer) = server.post(path, body).await;
    let bytes = answer.collect().await.unwrap().to_bytes();
    assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");
    let error: Value = serde_json::from_slice(&bytes).unwrap();
    error["error"]["param"].as_str().unwrap_or_default().to_owned()
}

/// The ids of all entries of a list.
fn ids(list: &Value) -> Vec<u64> {
    list.as_array().unwrap().iter().map(|one| one["id"].as_u64().unwrap()).collect()
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
    let events = streamed(&server, "/completion", &ask).await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_and_probabilities_come_with_a_completion() {
    let server = Server::start(|_| {});
    let ask = json!({"prompt": "say=one two", "n_probs": 2, "return_tokens": true, "seed": 3});
    let whole = server.whole("/completion", &ask).await;
    let shown = &whole["completion_probabilities"];
    assert_eq!(whole["tokens"], json!(ids(shown)));
    for entry in shown.as_array().unwrap() {
        assert_eq!(ids(&entry["top_logprobs"]).len(), 2, "{entry}");
        assert!(entry["logprob"].as_f64().unwrap() <= 0.0 && entry["bytes"].is_array());
    }
    let tokens = json!({"tokens": whole["tokens"]});
    let text = server.whole("/detokenize", &tokens).await;
    assert_eq!((&text["content"], &whole["content"]), (&json!("one two"), &json!("one two")));
    let mut from_stream = Vec::new();
    let events = streamed(&server, "/completion", &ask).await;
    for event in events.iter().filter(|event| event["stop"] == false) {
        assert_eq!(event["tokens"], json!(ids(&event["completion_probabilities"])), "{event}");
        from_stream.extend(ids(&event["completion_probabilities"]));
    }
    assert_eq!(json!(from_stream), whole["tokens"]);
    // Without being asked for, streams alone have tokens.
    let plain = json!({"prompt": "say=one two", "seed": 3});
    let found = server.whole("/completion", &plain).await;
    assert_eq!((&found["tokens"], &found["completion_probabilities"]), (&json!([]), &Value::Null));
    let events = streamed(&server, "/completion", &plain).await;
    let found = events.iter().flat_map(|event| event["tokens"].as_array().unwrap()).cloned();
    assert_eq!(Value::from(found.collect::<Vec<_>>()), whole["tokens"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_settings_of_a_completion_are_shown() {
    let server = Server::start(|_| {});
    let ask = json!({"prompt": "say=a\nb", "n_predict": 7, "temperature": 0.5, "ignore_eos": true});
    let whole = server.whole("/completion", &ask).await;
    let settings = &whole["generation_settings"];
    assert_eq!((&settings["n_predict"], &settings["temperature"]), (&json!(7), &json!(0.5)));
    assert!(settings["seed"].is_u64() && whole["has_new_line"] == true, "{whole}");
    let biases = settings["logit_bias"].as_array().unwrap();
    assert!(!biases.is_empty() && biases.iter().all(|one| one["bias"].is_null()), "{biases:?}");
    let mut few = ask.clone();
    few["response_fields"] = json!(["content", "generation_settings/n_predict"]);
    let wanted = json!({"content": whole["content"], "generation_settings/n_predict": 7});
    assert_eq!(server.whole("/completion", &few).await, wanted);
    let events = streamed(&server, "/completion", &ask).await;
    assert_eq!(events.last().unwrap()["generation_settings"]["stream"], true);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prompts_come_in_all_of_its_forms() {
    let server = Server::start(|_| {});
    let tokens = server.whole("/tokenize", &json!({"content": "say=one"})).await["tokens"].clone();
    let object = json!({"prompt_string": "say=one"});
    let several = json!([tokens, "say=one", object, "say=three four"]);
    let answers = server.whole("/completion", &json!({"prompt": several})).await;
    let said: Vec<&Value> = answers.as_array().unwrap().iter().map(|one| &one["content"]).collect();
    assert_eq!(said, ["one", "one", "one", "three four"]);
    for (index, answer) in answers.as_array().unwrap().iter().enumerate() {
        assert_eq!(answer["index"], index);
        check_timings(answer);
    }
    let mut mixed = tokens.as_array().unwrap().clone();
    mixed.extend([json!(" two"), tokens[0].clone()]);
    let answer = server.whole("/completion", &json!({"prompt": mixed, "n_predict": 9})).await;
    assert_eq!(answer["content"], "one twos");
    assert_eq!(answer["tokens_evaluated"], tokens.as_array().unwrap().len() + 2);
    for (body, param) in [
        (json!({"prompt": ["a", "b"], "stream": true}), "stream"),
        (json!({"prompt": [1, "a", [2]]}), "prompt"),
        (json!({"prompt": [1, "a", 99_999_999]}), "prompt"),
        (json!({"prompt": {"prompt_string": "a", "multimodal_data": ["x"]}}), "prompt"),
        (json!({"prompt": "a", "n_probs": 99}), "n_probs"),
    ] {
        assert_eq!(refused(&server, "/completion", &body).await, param, "{body}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bias_may_be_that_of_a_text() {
    let server = Server::start(|_| {});
    let ask =
        |bias: Value| json!({"prompt": "a", "n_predict": 9, "temperature": 0, "logit_bias": bias});
    let plain = server.whole("/completion", &ask(json!([]))).await["content"].clone();
    let word = format!(" {}", plain.as_str().unwrap().split_whitespace().next().unwrap());
    let wanted = server.whole("/completion", &ask(json!([[word, 100]]))).await;
    assert_eq!(wanted["content"], word.repeat(9));
    for bias in [json!([[word, 100], [word, false]]), json!({&word: -100})] {
        let said = server.whole("/completion", &ask(bias)).await["content"].clone();
        assert!(!said.as_str().unwrap().contains(&word), "{said} has '{word}'");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_may_be_computed_without_an_answer() {
    let server = Server::start(|_| {});
    let prompt = "say=one two three four".repeat(9);
    let answer = server.whole("/completion", &json!({"prompt": prompt, "n_predict": 0})).await;
    assert_eq!((&answer["content"], &answer["tokens_predicted"]), (&json!(""), &json!(0)));
    assert_eq!((&answer["stop_type"], &answer["truncated"]), (&json!("limit"), &json!(false)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn texts_are_tokenized_by_its_rules() {
    let server = Server::start(|_| {});
    let text = "the né <|im_end|>";
    let plain = server.whole("/tokenize", &json!({"content": text})).await;
    let pieces = json!({"content": text, "with_pieces": true});
    let pieces = server.whole("/tokenize", &pieces).await["tokens"].clone();
    assert_eq!(json!(ids(&pieces)), plain["tokens"]);
    let last = pieces.as_array().unwrap().last().unwrap();
    assert_eq!(last["piece"], "<|im_end|>");
    let bytes: Vec<&Value> = pieces.as_array().unwrap().iter().map(|one| &one["piece"]).collect();
    assert!(bytes.contains(&&json!([0xc3])), "{bytes:?}");
    let raw = json!({"content": text, "parse_special": false});
    let raw = server.whole("/tokenize", &raw).await;
    assert!(raw["count"].as_u64() > plain["count"].as_u64());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conversations_tokens_are_counted() {
    let server = Server::start(|_| {});
    let body = json!({"messages": [{"role": "user", "content": "say=one"}]});
    let answer = server.whole("/v1/chat/completions", &body).await;
    for path in ["/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"] {
        let counted = server.whole(path, &body).await;
        assert_eq!(counted["object"], "response.input_tokens");
        assert_eq!(counted["input_tokens"], answer["usage"]["prompt_tokens"]);
    }
    let none = json!({"messages": []});
    assert_eq!(refused(&server, "/v1/chat/completions/input_tokens", &none).await, "messages");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timings_come_with_openais_answers_that_ask_for_them() {
    let server = Server::start(|_| {});
    let messages = json!([{"role": "user", "content": "say=one two"}]);
    for (path, ask) in [
        ("/v1/chat/completions", json!({"messages": messages})),
        ("/v1/completions", json!({"prompt": "say=one two"})),
    ] {
        let whole = server.whole(path, &ask).await;
        assert!(whole["timings"].is_null(), "{whole}");
        let mut timed = ask.clone();
        timed["timings_per_token"] = true.into();
        let whole = server.whole(path, &timed).await;
        let predicted = &whole["usage"]["completion_tokens"];
        assert_eq!(&whole["timings"]["predicted_n"], predicted, "{whole}");
        for with_usage in [true, false] {
            timed["stream_options"] = json!({"include_usage": with_usage});
            let events = streamed(&server, path, &timed).await;
            let told: Vec<_> = events.iter().filter(|one| one["timings"].is_object()).collect();
            assert_eq!(told.len(), 1, "{events:?}");
            assert_eq!(
                (&told[0]["timings"]["predicted_n"], &told[0]["choices"]),
                (predicted, &json!([]))
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_seed_of_the_operator_holds_for_requests_without_one() {
    let server = Server::start(|config| config.serving.seed = Some(7));
    for (body, seed) in [
        (json!({"prompt": "a", "n_predict": 1}), 7),
        (json!({"prompt": "a", "n_predict": 1, "seed": 8}), 8),
    ] {
        let answer = server.whole("/completion", &body).await;
        assert_eq!(answer["generation_settings"]["seed"], seed);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_servers_fingerprint_is_in_openais_objects() {
    let server = Server::start(|_| {});
    let ask = json!({"messages": [{"role": "user", "content": "say=one two"}]});
    let whole = server.whole("/v1/chat/completions", &ask).await;
    let fingerprint = whole["system_fingerprint"].as_str().unwrap();
    assert!(fingerprint.starts_with("fp_") && fingerprint.len() > 8, "{fingerprint}");
    let events = streamed(&server, "/v1/chat/completions", &ask).await;
    assert!(events.len() > 1 && events.iter().all(|one| one["system_fingerprint"] == fingerprint));
    let text = server.whole("/v1/completions", &json!({"prompt": "say=one"})).await;
    assert_eq!(text["system_fingerprint"], fingerprint);
}
