//! Log-probabilities: those of prompts, where each token's text begins, and what is left out with
//! its text.

use http::StatusCode;
use http_body_util::BodyExt;
use loquent_infer::sim_vocab::SimVocab;
use loquent_infer::vocab::{Encode, Vocab};
use serde_json::{Value, json};

use super::harness::{Ending, Events, Server};

const PATH: &str = "/v1/completions";
/// Half characters, words, and letters that are no word.
const PROMPT: &str = "Every token, né 🚆 streams to the client";

fn tokens_of(text: &str) -> Vec<u32> {
    SimVocab.encode(text, Encode { add_bos: true, parse_special: true }).unwrap()
}

async fn complete(server: &Server, more: Value) -> Value {
    let mut body = json!({"prompt": PROMPT, "temperature": 0});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.whole(PATH, &body).await["choices"][0].clone()
}

fn list(choice: &Value, name: &str) -> Vec<Value> {
    choice["logprobs"][name].as_array().unwrap_or_else(|| panic!("no {name} in {choice}")).clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompts_log_probabilities_are_those_of_generating_its_tokens() {
    let server = Server::start(|_| {});
    let prompt = tokens_of(PROMPT);
    let scored = complete(&server, json!({"echo": true, "logprobs": 2, "max_tokens": 3})).await;
    let found = list(&scored, "token_logprobs");
    assert_eq!(found.len(), prompt.len() + 3);
    assert!(found[0].is_null() && list(&scored, "top_logprobs")[0].is_null());
    for at in 1..prompt.len() {
        // The bias makes it the prompt's token; log-probabilities are those without it.
        let bias = json!({prompt[at].to_string(): 100});
        let body = json!({"prompt": prompt[..at], "max_tokens": 1, "logprobs": 2,
                          "temperature": 0, "logit_bias": bias});
        let one = server.whole(PATH, &body).await["choices"][0].clone();
        let (alone, scored_at) = (&list(&one, "token_logprobs")[0], &found[at]);
        let near = (alone.as_f64().unwrap() - scored_at.as_f64().unwrap()).abs() < 1e-5;
        assert!(near, "token {at}: {alone} generated, {scored_at} in the prompt");
        assert_eq!(list(&one, "top_logprobs")[0], list(&scored, "top_logprobs")[at]);
        assert_eq!(list(&one, "tokens")[0], list(&scored, "tokens")[at]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_alone_has_no_completion_behind_it() {
    let server = Server::start(|_| {});
    let body = json!({"prompt": [PROMPT, "ab"], "echo": true, "logprobs": 1, "max_tokens": 0});
    let answer = server.whole(PATH, &body).await;
    assert_eq!(answer["usage"]["completion_tokens"], 0);
    for (choice, prompt) in answer["choices"].as_array().unwrap().iter().zip([PROMPT, "ab"]) {
        assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(prompt), &json!("length")));
        assert_eq!(list(choice, "tokens").len(), tokens_of(prompt).len());
    }
    let without = json!({"prompt": PROMPT, "max_tokens": 0});
    let (status, body) = server.post(PATH, &without).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let error = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
    assert!(error.contains("max_tokens"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offsets_say_where_in_the_text_a_token_begins_streamed_or_not() {
    let server = Server::start(|_| {});
    for echo in [false, true] {
        let ask = json!({"prompt": format!("{PROMPT} say=né 🚆é over there"), "echo": echo,
                         "logprobs": 0, "max_tokens": 40});
        let whole = server.whole(PATH, &ask).await["choices"][0].clone();
        let text: Vec<char> = whole["text"].as_str().unwrap().chars().collect();
        let offsets = list(&whole, "text_offset");
        for (token, offset) in list(&whole, "tokens").iter().zip(&offsets) {
            let token = token.as_str().unwrap();
            let rest: String = text[offset.as_u64().unwrap() as usize..].iter().collect();
            // A part of a character has no text of its own, and an end token none at all.
            let is_part = token.contains('\u{fffd}') || token.starts_with("<|");
            assert!(is_part || rest.starts_with(token), "{token:?} at {offset} in {text:?}");
        }
        let mut streamed = ask.clone();
        streamed["stream"] = true.into();
        let (_, body) = server.post(PATH, &streamed).await;
        let mut events = Events::new(body);
        assert_eq!(events.finish().await, Ending::Done);
        let chunks = || events.chunks.iter().map(|chunk| &chunk["choices"][0]);
        let parts: Vec<Value> = chunks()
            .filter(|choice| !choice["logprobs"].is_null())
            .flat_map(|choice| list(choice, "text_offset"))
            .collect();
        assert_eq!(parts, offsets, "echo: {echo}");
        let texts: String = chunks().filter_map(|choice| choice["text"].as_str()).collect();
        assert_eq!(texts, whole["text"].as_str().unwrap());
    }
}

/// The entries of a chat's answer, and its text.
async fn chat(server: &Server, content: &str, more: Value) -> (Vec<Value>, String) {
    let mut body = json!({"messages": [{"role": "user", "content": content}], "logprobs": true});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let answer = server.whole("/v1/chat/completions", &body).await["choices"][0].clone();
    (list(&answer, "content"), answer["message"]["content"].as_str().unwrap().to_owned())
}

fn joined(entries: &[Value]) -> String {
    let bytes = entries.iter().flat_map(|entry| entry["bytes"].as_array().unwrap());
    let bytes = bytes.map(|byte| byte.as_u64().unwrap() as u8).collect();
    String::from_utf8(bytes).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chats_entries_join_to_its_text() {
    let server = Server::start(|_| {});
    let (entries, text) = chat(&server, "say=one né 🚆 word", json!({})).await;
    assert_eq!((joined(&entries).as_str(), text.as_str()), ("one né 🚆 word", "one né 🚆 word"));
    let stop = json!({"stop": [" then"]});
    let (entries, text) = chat(&server, "say=one word then another", stop.clone()).await;
    assert_eq!((joined(&entries).as_str(), text.as_str()), ("one word", "one word"));
    // Several tokens long, and its beginning held back when it comes.
    let (entries, text) = chat(&server, "say=one xyz END over", json!({"stop": ["END"]})).await;
    assert_eq!((joined(&entries).as_str(), text.as_str()), ("one xyz ", "one xyz "));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_entry_comes_before_its_text() {
    let server = Server::start(|_| {});
    let content = "say=one xEN and xENxEND over";
    let more = json!({"logprobs": true, "stream": true, "stop": ["END"],
                      "messages": [{"role": "user", "content": content}]});
    let mut events = server.stream(1, more).await;
    assert_eq!(events.finish().await, Ending::Done);
    let (mut text, mut entries) = (String::new(), Vec::new());
    for chunk in &events.chunks {
        let choice = &chunk["choices"][0];
        text.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        if !choice["logprobs"].is_null() {
            entries.extend(list(choice, "content"));
        }
        assert!(text.starts_with(&joined(&entries)) || joined(&entries).starts_with(&text));
        assert!(joined(&entries).len() <= text.len() + 1, "{entries:?} are ahead of {text:?}");
    }
    assert_eq!(
        (joined(&entries).as_str(), text.as_str()),
        ("one xEN and xENx", "one xEN and xENx")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_completion_has_an_entry_for_each_token_it_took() {
    let server = Server::start(|_| {});
    let ask = json!({"prompt": "say=one word", "logprobs": 1, "max_tokens": 50});
    let answer = server.whole(PATH, &ask).await;
    let entries = list(&answer["choices"][0], "tokens");
    assert_eq!(answer["usage"]["completion_tokens"], entries.len());
    assert_eq!(entries.last().unwrap(), "<|im_end|>");
    let top = list(&answer["choices"][0], "top_logprobs");
    assert!(
        entries.iter().zip(&top).all(|(token, top)| top.get(token.as_str().unwrap()).is_some())
    );
}
