//! Ollama's API: its lines and objects, its options, where it is served, and OpenAI's paths without
//! their version.

use axum::body::Body;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use loquent_server::{AllowedHosts, HttpConfig, OllamaApi, PeerAddress};
use serde_json::{Value, json};

use super::harness::{self, Server};

fn offering() -> HttpConfig {
    HttpConfig { ollama_api: OllamaApi::Always, ..harness::http_config() }
}

fn start() -> Server {
    Server::with_http(offering(), |_| {})
}

fn say(said: &str, more: Value) -> Value {
    let content = format!("say={said}");
    let mut body =
        json!({"model": "any:latest", "messages": [{"role": "user", "content": content}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn post(path: &str, body: &Value) -> Request<Body> {
    Request::post(path).body(Body::from(body.to_string())).unwrap()
}

/// The lines of a stream.
async fn lines(server: &Server, path: &str, body: &Value) -> Vec<Value> {
    let (status, body) = server.post(path, body).await;
    let bytes = body.collect().await.unwrap().to_bytes();
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    assert_eq!(status, StatusCode::OK, "{text}");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What all `lines` say at `path`, joined.
fn joined(lines: &[Value], path: &str) -> String {
    lines.iter().filter_map(|line| line.pointer(path)?.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_is_described_as_its_file_describes_it() {
    let server = start();
    let response = server.call(Request::get("/api/tags").body(Body::empty()).unwrap()).await;
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let tags: Value = serde_json::from_slice(&bytes).unwrap();
    let model = &tags["models"][0];
    assert_eq!(model["size"], 98_000_000);
    for (name, value) in
        [("family", "sim"), ("parameter_size", "134.52M"), ("quantization_level", "Q4_K_M")]
    {
        assert_eq!(model["details"][name], value, "{name}");
    }
    let shown = server.whole("/api/show", &json!({"model": "any"})).await;
    assert_eq!(shown["model_info"]["general.architecture"], "sim");
    assert_eq!(shown["model_info"]["general.parameter_count"], 134_515_008);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_is_there_needs_no_pull() {
    let server = start();
    let ask = json!({"model": "simulated:latest"});
    assert_eq!(lines(&server, "/api/pull", &ask).await, [json!({"status": "success"})]);
    let whole = json!({"name": "simulated", "stream": false});
    assert_eq!(server.whole("/api/pull", &whole).await["status"], "success");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_question_loads_a_model_or_unloads_it() {
    let server = start();
    // Only a client on this machine may unload.
    for (address, unloads) in [("127.0.0.1", StatusCode::OK), ("10.0.0.1", StatusCode::FORBIDDEN)] {
        let peer = PeerAddress(address.parse().unwrap());
        for (keep, reason, expected) in [
            (json!(0), "unload", unloads),
            (json!("5m"), "load", StatusCode::OK),
            (json!(null), "load", StatusCode::OK),
        ] {
            let asked = json!({"model": "any", "keep_alive": keep, "stream": false});
            let mut request = post("/api/generate", &asked);
            request.extensions_mut().insert(peer);
            let response = server.call(request).await;
            assert_eq!(response.status(), expected, "{address} {keep}");
            let bytes = response.into_body().collect().await.unwrap().to_bytes();
            let answer: Value = serde_json::from_slice(&bytes).unwrap();
            let done = (expected == StatusCode::OK).then_some(reason);
            assert_eq!(answer["done_reason"].as_str(), done, "{address} {keep}");
        }
    }
}

/// A question with an image is refused; in an earlier one, a line of text takes its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_of_the_past_ends_no_conversation() {
    let server = start();
    let see = json!({"role": "user", "content": "See.", "images": ["iVBORw0KGgo="]});
    let ask = |messages: Value| json!({"model": "any", "stream": false, "messages": messages});
    let (status, _) = server.post("/api/chat", &ask(json!([see]))).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let answer = json!({"role": "assistant", "content": "I see nothing."});
    let next = json!({"role": "user", "content": "say=Good."});
    let request = post("/api/chat", &ask(json!([see, answer, next])));
    let response = server.call(request).await;
    assert_eq!(response.status(), StatusCode::OK);
    let named = &response.headers()["x-loquent-ignored-parameters"];
    assert_eq!(named, "messages[0] (image)");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_streams_in_lines_unless_it_is_asked_whole() {
    let server = start();
    let lines = lines(&server, "/api/chat", &say("Good morning.", json!({}))).await;
    assert!(lines.len() > 2, "{lines:?}");
    assert_eq!(joined(&lines, "/message/content"), "Good morning.");
    let (last, others) = lines.split_last().unwrap();
    assert!(others.iter().all(|line| line["done"] == false && line["model"] == "any:latest"));
    assert_eq!((&last["done"], &last["done_reason"]), (&json!(true), &json!("stop")));
    let whole = server.whole("/api/chat", &say("Good morning.", json!({"stream": false}))).await;
    assert_eq!(whole["message"], json!({"role": "assistant", "content": "Good morning."}));
    for name in ["prompt_eval_count", "eval_count"] {
        assert_eq!(whole[name], last[name], "{name}");
        assert!(whole[name].as_u64().unwrap() > 0, "{whole}");
    }
    for name in ["total_duration", "load_duration", "prompt_eval_duration", "eval_duration"] {
        assert!(whole[name].is_u64() && last[name].is_u64(), "{whole} {last}");
    }
    assert!(whole["created_at"].as_str().unwrap().ends_with('Z'), "{whole}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn options_bound_and_cut_an_answer() {
    let server = start();
    let ask = async |options: Value| {
        let body = say("one two STOP three", json!({"stream": false, "options": options}));
        server.whole("/api/chat", &body).await
    };
    let cut = ask(json!({"num_predict": 1, "num_ctx": 99})).await;
    assert_eq!((&cut["eval_count"], &cut["done_reason"]), (&json!(1), &json!("length")));
    let stopped = ask(json!({"stop": ["STOP"], "num_predict": -1})).await;
    assert_eq!(stopped["message"]["content"], "one two ");
    let body = say("x", json!({"options": {"temperature": "hot"}}));
    let (status, body) = server.post("/api/chat", &body).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let error: Value = serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap();
    assert!(error["error"].as_str().unwrap().starts_with("'temperature'"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thinking_and_whole_tool_calls_have_members_of_their_own() {
    let http = offering();
    let server = Server::over_with(harness::thinking(), http);
    let function = json!({"name": "weather", "parameters": {"type": "object", "properties": {}}});
    let tools = json!([{"type": "function", "function": function}]);
    let call =
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>";
    let said = format!("<think>\nHm.\n</think>\nWell. {call}");
    let asked = say(&said, json!({"tools": tools, "think": true}));
    let lines = lines(&server, "/api/chat", &asked).await;
    assert_eq!(joined(&lines, "/message/thinking").trim(), "Hm.");
    assert_eq!(joined(&lines, "/message/content").trim(), "Well.");
    let calls: Vec<_> =
        lines.iter().filter_map(|line| line.pointer("/message/tool_calls/0/function")).collect();
    assert_eq!(calls.len(), 1, "{lines:?}");
    assert_eq!(calls[0]["name"], "weather");
    assert_eq!(calls[0]["arguments"], json!({"city": "Paris"}));
    assert_eq!(lines.last().unwrap()["done_reason"], "stop");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_of_tools_find_the_call_that_they_answer() {
    let server = start();
    let call = |name: &str| json!({"function": {"name": name, "arguments": {}}});
    let messages = json!([
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "", "tool_calls": [call("a"), call("b")]},
        {"role": "tool", "content": "Rain.", "tool_name": "b"},
        {"role": "tool", "content": "Sun."},
        {"role": "user", "content": "say=Well."},
    ]);
    let body = json!({"model": "any", "messages": messages, "stream": false});
    assert_eq!(server.whole("/api/chat", &body).await["message"]["content"], "Well.");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn generate_answers_a_question_or_goes_on_from_a_text() {
    let server = start();
    let body = json!({"model": "any", "prompt": "say=Good morning.", "system": "Be short."});
    let lines = lines(&server, "/api/generate", &body).await;
    assert_eq!(joined(&lines, "/response"), "Good morning.");
    let raw = json!({"model": "any", "prompt": "tokens=30", "raw": true, "stream": false});
    let raw = server.whole("/api/generate", &raw).await;
    assert_eq!(raw["eval_count"], 31, "30 tokens and the end, not OpenAI's default of 16: {raw}");
    let loaded = server.whole("/api/generate", &json!({"model": "any"})).await;
    assert_eq!((&loaded["done"], &loaded["done_reason"]), (&json!(true), &json!("load")));
    let loaded = server.whole("/api/chat", &json!({"model": "any", "messages": []})).await;
    assert_eq!(loaded["done_reason"], "load");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_one_model_is_listed_described_and_loaded() {
    let server = start();
    let get = async |path: &str| {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let body = server.call(request).await.into_body().collect().await.unwrap().to_bytes();
        serde_json::from_slice::<Value>(&body).unwrap()
    };
    assert_eq!(get("/api/tags").await["models"][0]["name"], "simulated");
    let running = get("/api/ps").await;
    assert_eq!(running["models"][0]["model"], "simulated");
    assert_eq!(running["models"][0]["context_length"], 16_384);
    assert!(get("/api/version").await["version"].is_string());
    let shown = server.whole("/api/show", &json!({"model": "simulated"})).await;
    let family = shown["model_info"]["general.architecture"].as_str().unwrap();
    assert_eq!(shown["model_info"][format!("{family}.context_length")], 16_384);
    assert_eq!(shown["capabilities"], json!(["completion", "tools", "embedding"]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn texts_are_embedded_as_openais_endpoint_does() {
    let server = start();
    let texts = json!(["first", "second"]);
    let expected = server.whole("/v1/embeddings", &json!({"input": texts})).await;
    let asked = json!({"model": "any:latest", "input": texts, "keep_alive": 5});
    let response = server.call(post("/api/embed", &asked)).await;
    assert_eq!(response.headers()["x-loquent-ignored-parameters"], "keep_alive");
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let answer: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(answer["model"], "any:latest");
    assert_eq!(answer["prompt_eval_count"], expected["usage"]["prompt_tokens"]);
    for at in 0..2 {
        assert_eq!(answer["embeddings"][at], expected["data"][at]["embedding"]);
    }
    assert!(answer["total_duration"].is_u64() && answer["load_duration"].is_u64(), "{answer}");
    let old = json!({"model": "any", "prompt": "second"});
    let old = server.whole("/api/embeddings", &old).await;
    assert_eq!(old, json!({"embedding": answer["embeddings"][1]}));
    let few = json!({"model": "any", "input": "first", "dimensions": 3});
    let few = server.whole("/api/embed", &few).await;
    assert_eq!(few["embeddings"][0].as_array().unwrap().len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_without_a_text_has_the_model_loaded_and_gets_no_vector() {
    let server = start();
    let none = server.whole("/api/embed", &json!({"model": "any"})).await;
    assert_eq!((&none["embeddings"], &none["prompt_eval_count"]), (&json!([]), &json!(0)));
    let none = server.whole("/api/embeddings", &json!({"model": "any"})).await;
    assert_eq!(none, json!({"embedding": []}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_text_that_is_too_long_loses_its_end_unless_that_is_declined() {
    let server = start();
    // The simulated model takes 16,384 tokens, which are bytes.
    let long = "a".repeat(20_000);
    let whole = server.whole("/api/embed", &json!({"model": "any", "input": long})).await;
    assert_eq!(whole["prompt_eval_count"], 16_384);
    let older = server.whole("/api/embeddings", &json!({"model": "any", "prompt": long})).await;
    assert_eq!(older["embedding"], whole["embeddings"][0]);
    let declined = json!({"model": "any", "input": long, "truncate": false});
    let (status, body) = server.post("/api/embed", &declined).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let error: Value = serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap();
    assert!(error["error"].as_str().unwrap().contains("input[0]"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_supported_is_refused_by_name() {
    let server = start();
    let image = json!([{"role": "user", "content": "x", "images": ["AAAA"]}]);
    for (path, body, words) in [
        ("/api/chat", json!({"model": "any", "messages": image}), "messages[0].images"),
        ("/api/generate", json!({"model": "any", "prompt": "x", "context": [1]}), "context"),
        ("/api/generate", json!({"model": "any", "prompt": "x", "images": ["A"]}), "images"),
        ("/api/chat", json!({"messages": []}), "model"),
        ("/api/chat", json!({"model": "any", "format": "xml", "messages": []}), "format"),
        ("/api/pull", json!({"model": "any"}), "/api/pull"),
    ] {
        let (status, response) = server.post(path, &body).await;
        assert!(status.is_client_error(), "{path}");
        let bytes = response.collect().await.unwrap().to_bytes();
        let error: Value = serde_json::from_slice(&bytes).unwrap();
        assert!(error["error"].as_str().unwrap().contains(words), "{body}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_served_on_this_machine_alone_unless_the_operator_says_otherwise() {
    let local = || AllowedHosts::default().bound_to("127.0.0.1".parse().unwrap());
    for (ollama_api, allowed_hosts, offered) in [
        (OllamaApi::Local, local(), true),
        (OllamaApi::Local, AllowedHosts::default(), false),
        (OllamaApi::Always, AllowedHosts::default(), true),
        (OllamaApi::Never, local(), false),
    ] {
        let http = HttpConfig { ollama_api, allowed_hosts, ..harness::http_config() };
        let server = Server::with_http(http, |_| {});
        let status = server.get("/api/tags").await;
        assert_eq!(status == StatusCode::OK, offered, "{ollama_api:?}");
        assert!(offered || status == StatusCode::NOT_FOUND);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openais_paths_need_no_version_and_others_say_what_there_is() {
    let server = Server::start(|_| {});
    let body = harness::chat(5, false, json!({}));
    let answer = server.whole("/chat/completions", &body).await;
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(server.get("/models").await, StatusCode::OK);
    assert_eq!(server.get("/models/simulated").await, StatusCode::OK);
    let request = Request::post("/v2/chat").header("host", "a.example:8080");
    let response = server.call(request.body(Body::empty()).unwrap()).await;
    assert_eq!(response.status(), StatusCode::NOT_FOUND);
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let error: Value = serde_json::from_slice(&bytes).unwrap();
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.contains("http://a.example:8080/v1"), "{message}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_probabilities_come_with_the_lines() {
    let server = start();
    let more = json!({"logprobs": true, "top_logprobs": 2});
    let raw = json!({"prompt": "say=one two", "raw": true});
    let templated = json!({"prompt": "say=one two"});
    for (path, more_of_path) in
        [("/api/chat", json!({})), ("/api/generate", raw), ("/api/generate", templated)]
    {
        let mut body = say("one two", more.clone());
        body.as_object_mut().unwrap().extend(more_of_path.as_object().unwrap().clone());
        body["stream"] = false.into();
        let whole = server.whole(path, &body).await;
        let entries = whole["logprobs"].as_array().unwrap().clone();
        assert!(entries.len() > 2 && entries[0]["logprob"].as_f64().unwrap() <= 0.0, "{whole}");
        assert_eq!(entries[0]["top_logprobs"].as_array().unwrap().len(), 2);
        body["stream"] = true.into();
        let lines = lines(&server, path, &body).await;
        let streamed = lines.iter().filter_map(|line| line["logprobs"].as_array()).flatten();
        assert_eq!(streamed.cloned().collect::<Vec<_>>(), entries, "{path}");
        body["top_logprobs"] = 21.into();
        let (status, _) = server.post(path, &body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
    }
    let plain = server.whole("/api/chat", &say("one", json!({"stream": false}))).await;
    assert!(plain["logprobs"].is_null());
}
