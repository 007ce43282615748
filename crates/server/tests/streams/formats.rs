//! Models' own formats from the request to the client, with templates shaped like theirs. The
//! simulated engine says what the request tells it to.

use std::sync::Arc;

use axum::body::Body;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use loquent_formats::template::ChatTemplate;
use loquent_server::{ChatFormat, LoadedEngine};
use serde_json::{Value, json};

use super::harness::{self, Ending, Server};

/// Turns as the simulated vocabulary has them, and what shows the format.
fn template(format: &str) -> String {
    format!(
        "{{% for m in messages %}}<|im_start|>{{{{ m.role }}}}\n{{{{ m.content }}}}<|im_end|>\n\
         {{% endfor %}}{{% if add_generation_prompt %}}<|im_start|>assistant\n{{% endif %}}\
         {{# tools {format} #}}"
    )
}

fn server(template: &str) -> Server {
    server_with(template, |_| ())
}

fn server_with(template: &str, change: impl FnOnce(&mut loquent_server::ServiceConfig)) -> Server {
    let mut loaded: LoadedEngine = harness::loaded();
    let template = ChatTemplate::new(template).unwrap();
    loaded.model.chat = Arc::new(ChatFormat::new(template));
    Server::over(loaded, change)
}

fn ask(content: &str, more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": content}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn weather() -> Value {
    let properties = json!({"city": {"type": "string"}, "days": {"type": "integer"}});
    json!([{"type": "function", "function": {
        "name": "weather", "parameters": {"type": "object", "properties": properties},
    }}])
}

const CHAT: &str = "/v1/chat/completions";

async fn post(server: &Server, path: &str, body: &Value) -> http::Response<Body> {
    server.call(Request::post(path).body(Body::from(body.to_string())).unwrap()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_without_a_chat_template_warns_in_its_chats() {
    for is_guessed in [true, false] {
        let mut loaded: LoadedEngine = harness::loaded();
        let template = ChatTemplate::new(&template("")).unwrap();
        loaded.model.chat = Arc::new(ChatFormat { is_guessed, ..ChatFormat::new(template) });
        let server = Server::over(loaded, |_| ());
        for stream in [true, false] {
            let response = post(&server, CHAT, &ask("tokens=2", json!({"stream": stream}))).await;
            assert_eq!(response.status(), 200);
            assert_eq!(response.headers().contains_key("x-loquent-warning"), is_guessed);
        }
        let body = json!({"prompt": "tokens=2"});
        let response = post(&server, "/v1/completions", &body).await;
        assert!(!response.headers().contains_key("x-loquent-warning"), "it continues text well");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_each_format_reach_the_client() {
    let arguments = r#"{"city": "Oslo", "days": 3}"#;
    for (format, text) in [
        (
            "<|channel|> <|message|>",
            format!("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{arguments}<|call|>"),
        ),
        (
            "<tool_call> <function=",
            "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>".to_owned(),
        ),
        (
            "<tool_call> <arg_key>",
            "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>".to_owned(),
        ),
        ("[TOOL_CALLS]", format!("[TOOL_CALLS][{{\"name\": \"weather\", \"arguments\": {arguments}}}]")),
        ("[TOOL_CALLS] [ARGS]", format!("[TOOL_CALLS]weather[ARGS]{arguments}")),
        (
            "<think> <｜DSML｜function_calls>",
            "<think>Hm.</think>\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Oslo</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>".to_owned(),
        ),
        ("[THINK] [TOOL_CALLS] [ARGS]", format!("[THINK]Hm.[/THINK][TOOL_CALLS]weather[ARGS]{arguments}")),
        (
            "<｜tool▁call▁begin｜>",
            format!("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
        ),
    ] {
        let server = server(&template(format));
        let body = ask(&format!("say={text}"), json!({"tools": weather()}));
        let answer = server.whole(CHAT, &body).await;
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{format}: {answer}");
        let call = &choice["message"]["tool_calls"][0]["function"];
        assert_eq!(call["name"], "weather", "{format}");
        let found: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
        assert_eq!(found, json!({"city": "Oslo", "days": 3}), "{format}");
        let reasoning = &choice["message"]["reasoning_content"];
        assert!(reasoning.is_null() || reasoning == "Hm.", "{format}: {reasoning}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_effort_reaches_templates_that_know_it_and_is_named_for_others() {
    let knows = server("say={{ reasoning_effort }}<|im_end|>");
    let answer = knows.whole(CHAT, &ask("x", json!({"reasoning_effort": "high"}))).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "high");
    let switch = "say={% if enable_thinking is defined and not enable_thinking %}off{% else %}on{% endif %}<|im_end|>";
    let switch = server(switch);
    for (effort, wanted) in [("none", "off"), ("low", "on")] {
        let answer = switch.whole(CHAT, &ask("x", json!({"reasoning_effort": effort}))).await;
        assert_eq!(answer["choices"][0]["message"]["content"], wanted);
    }
    let plain = server(&template(""));
    let hints = json!({
        "reasoning_effort": "low", "verbosity": "low", "thinking_budget_tokens": 3, "max_tokens": 2,
    });
    let request = http::Request::post(CHAT).body(ask("x", hints).to_string().into()).unwrap();
    let response = plain.call(request).await;
    assert_eq!(response.status(), StatusCode::OK);
    let ignored = response.headers()["x-loquent-ignored-parameters"].to_str().unwrap().to_owned();
    assert_eq!(ignored, "reasoning_effort, verbosity, thinking_budget_tokens");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thinking_budget_ends_reasoning_and_the_answer_follows() {
    let server = server(&template("<think>"));
    let body = ask(
        "say=<think>one two three four five six seven eight nine ten",
        json!({"thinking_budget_tokens": 4}),
    );
    let answer = server.whole(CHAT, &body).await;
    let message = &answer["choices"][0]["message"];
    // The simulated engine is at the same place of its text after the tag.
    assert_eq!(message["reasoning_content"], "one two\n", "{answer}");
    assert!(message["content"].as_str().unwrap().ends_with("nine ten"), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_message_is_continued() {
    let mut server = server(&template(""));
    let messages = json!([
        {"role": "user", "content": "say=<|im_end|>"},
        {"role": "assistant", "content": "Once say=upon a "},
    ]);
    let body = json!({"messages": messages, "continue_final_message": true});
    let answer = server.whole(CHAT, &body).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "upon a");
    let empty =
        json!({"messages": [{"role": "user", "content": " "}], "continue_final_message": true});
    assert_eq!(server.post(CHAT, &empty).await.0, StatusCode::BAD_REQUEST);
    server = server_with(&template(""), |config| config.serving.force_usage = true);
    let mut events = server.stream(3, json!({})).await;
    assert_eq!(events.finish().await, Ending::Done);
    let usage = events.chunks.iter().find(|chunk| chunk["usage"].is_object()).unwrap();
    assert_eq!(usage["usage"]["completion_tokens"], 4, "three and the end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_have_the_form_that_is_asked_for() {
    let server = server(&template(""));
    for more in [
        json!({"structured_outputs": {"choice": ["maybe"]}}),
        json!({"guided_regex": "may(be)"}),
        json!({"grammar": "root ::= \"may\" \"be\""}),
        json!({"guided_grammar": "start: \"maybe\""}),
    ] {
        let answer = server.whole(CHAT, &ask("x", more.clone())).await;
        assert_eq!(answer["choices"][0]["message"]["content"], "maybe", "{more}");
    }
    for (more, param) in [
        (json!({"guided_regex": "("}), "guided_regex"),
        (json!({"grammar": "root ::= other"}), "grammar"),
        (json!({"structured_outputs": {"grammar": "start: other"}}), "structured_outputs"),
        (json!({"grammar": "x".repeat(1 << 18)}), "grammar"),
    ] {
        let (status, body) = server.post(CHAT, &ask("x", more)).await;
        let error: Value =
            serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap();
        assert_eq!((status, &error["error"]["param"]), (StatusCode::BAD_REQUEST, &json!(param)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_suffix_needs_a_vocabulary_that_knows_the_middle() {
    let server = server(&template(""));
    let body = json!({"prompt": "a", "suffix": "b", "max_tokens": 1});
    let (status, body) = server.post("/v1/completions", &body).await;
    let body = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(body.contains("cannot fill in text"), "{body}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn editors_get_the_text_between_two_others() {
    let server = server(&template(""));
    let between = json!({"input_prefix": "a", "input_suffix": "b"});
    assert_eq!(server.post("/infill", &between).await.0, StatusCode::BAD_REQUEST);
    // Without a text behind, it is a plain completion.
    let body = json!({"input_prefix": "say=", "prompt": "x = 1", "cache_prompt": true});
    let answer = server.whole("/infill", &body).await;
    assert_eq!((&answer["content"], &answer["stop"]), (&json!("x = 1"), &json!(true)));
    assert_eq!((&answer["stop_type"], &answer["model"]), (&json!("eos"), &json!("simulated")));
    let body = json!({"input_prefix": "say=x = 1", "n_predict": 3, "stream": true});
    let (_, stream) = server.post("/infill", &body).await;
    let stream = String::from_utf8(stream.collect().await.unwrap().to_bytes().to_vec()).unwrap();
    let events = stream.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = events.map(|event| serde_json::from_str(event).unwrap()).collect();
    let text: String = events.iter().map(|event| event["content"].as_str().unwrap()).collect();
    assert_eq!(text, "x =");
    let last = events.last().unwrap();
    assert_eq!((&last["stop_type"], &last["tokens_predicted"]), (&json!("limit"), &json!(3)));
}
