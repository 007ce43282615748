//! What an upstream server speaks itself is passed on, its model is filled in where a request names
//! none, and its progress is everybody's.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use http::{Request as HttpRequest, header};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::stand_in::{stream, whole};
use super::{FINISH, FIRST, Front, json_of, read};

/// A server with a reply for each route, which remembers what it was asked.
pub struct Upstream {
    pub url: String,
    seen: Arc<Mutex<Vec<(String, Value)>>>,
}

/// The reply of a server that never answers.
const SILENCE: &[u8] = b"silence";

type Replies = HashMap<&'static str, Vec<u8>>;

impl Upstream {
    /// Answers each of `routes` (method and path) with its bytes, and others with 404.
    pub async fn start(routes: impl IntoIterator<Item = (&'static str, Vec<u8>)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::default());
        let (replies, notes): (Arc<Replies>, _) =
            (Arc::new(routes.into_iter().collect()), seen.clone());
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                tokio::spawn(answer(connection, replies.clone(), Arc::clone(&notes)));
            }
        });
        Self { url, seen }
    }

    /// How often a route was asked.
    pub fn asked(&self, route: &str) -> usize {
        self.seen.lock().unwrap().iter().filter(|(asked, _)| asked == route).count()
    }

    /// The body of the latest request to a route.
    pub fn body(&self, route: &str) -> Value {
        let seen = self.seen.lock().unwrap();
        seen.iter().rev().find(|(asked, _)| asked == route).unwrap().1.clone()
    }
}

/// Answers one request, and closes the connection.
async fn answer(
    mut connection: TcpStream,
    replies: Arc<Replies>,
    seen: Arc<Mutex<Vec<(String, Value)>>>,
) {
    let mut bytes = Vec::new();
    let (head, body) = loop {
        let mut piece = [0; 4096];
        match connection.read(&mut piece).await {
            Ok(read) if read > 0 => bytes.extend_from_slice(&piece[..read]),
            _ => return,
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.to_lowercase().lines().find_map(|line| {
            line.strip_prefix("content-length:").map(|it| it.trim().parse::<usize>().unwrap())
        });
        if body.len() >= length.unwrap_or(0) {
            break (head.to_owned(), body.to_owned());
        }
    };
    let route = head.lines().next().unwrap().trim_end_matches(" HTTP/1.1").to_owned();
    seen.lock().unwrap().push((route.clone(), serde_json::from_str(&body).unwrap_or_default()));
    let reply = replies.get(&*route).cloned();
    let reply = reply.unwrap_or_else(|| whole("404 Not Found", r#"{"detail":"Not Found"}"#));
    if reply == SILENCE {
        // Until the client leaves.
        let _ = connection.read(&mut [0]).await;
        return;
    }
    let _ = connection.write_all(&reply).await;
}

fn models() -> (&'static str, Vec<u8>) {
    ("GET /v1/models", whole("200 OK", r#"{"data":[{"id":"theirs"},{"id":"other"}]}"#))
}

fn chat_stream() -> (&'static str, Vec<u8>) {
    ("POST /v1/chat/completions", stream(&[FIRST, FINISH, "[DONE]"]))
}

const MESSAGES: &str = "/v1/chat/completions";

fn question(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn a_request_without_a_model_gets_the_first_one_that_the_upstream_lists() {
    let up = Upstream::start([models(), chat_stream()]).await;
    let front = Front::new(&up.url);
    for _ in 0..2 {
        let answer = read(front.post(MESSAGES, question(json!({"stream": true}))).await).await;
        assert!(answer.done);
        assert_eq!(up.body("POST /v1/chat/completions")["model"], "theirs");
    }
    assert_eq!(up.asked("GET /v1/models"), 1, "the list is kept for a while");
    front.post(MESSAGES, question(json!({"stream": true, "model": "mine"}))).await;
    assert_eq!(up.body("POST /v1/chat/completions")["model"], "mine");
}

#[tokio::test]
async fn whole_answers_and_embeddings_get_the_model_too() {
    let up = Upstream::start([
        models(),
        ("POST /v1/chat/completions", whole("200 OK", "{}")),
        ("POST /v1/embeddings", whole("200 OK", r#"{"data":[]}"#)),
    ])
    .await;
    let front = Front::new(&up.url);
    front.post(MESSAGES, question(json!({"model": null}))).await;
    assert_eq!(up.body("POST /v1/chat/completions")["model"], "theirs");
    let embedded = json_of(front.post("/v1/embeddings", json!({"input": "a"})).await).await;
    assert_eq!(embedded, json!({"data": []}));
    assert_eq!(up.body("POST /v1/embeddings"), json!({"model": "theirs", "input": "a"}));
}

#[tokio::test]
async fn without_a_list_a_request_goes_out_as_it_came() {
    let up = Upstream::start([chat_stream()]).await;
    let front = Front::new(&up.url);
    let answer = read(front.post(MESSAGES, question(json!({"stream": true}))).await).await;
    assert!(answer.done);
    assert!(up.body("POST /v1/chat/completions").get("model").is_none());
}

#[tokio::test]
async fn the_page_learns_the_model_with_the_readiness() {
    let up = Upstream::start([models()]).await;
    let front = Front::new(&up.url);
    let request = HttpRequest::get("/ready").body(Body::empty()).unwrap();
    let ready = json_of(front.send(request).await).await;
    assert_eq!((&ready["model"], &ready["model_id"]), (&json!("theirs"), &json!("theirs")));
    assert_eq!(up.asked("GET /v1/models"), 1);
    let silent = Upstream::start([]).await;
    let request = HttpRequest::get("/ready").body(Body::empty()).unwrap();
    let ready = json_of(Front::new(&silent.url).send(request).await).await;
    assert_eq!(ready["model_id"], Value::Null, "{ready}");
}

#[tokio::test]
async fn what_an_upstream_speaks_is_passed_on() {
    for path in ["/v1/responses", "/v1/messages"] {
        let route =
            if path == "/v1/responses" { "POST /v1/responses" } else { "POST /v1/messages" };
        let up =
            Upstream::start([models(), (route, whole("400 Bad Request", r#"{"native":1}"#))]).await;
        let front = Front::new(&up.url);
        for _ in 0..2 {
            let body = json!({"model": "m", "input": "hi", "messages": [], "max_tokens": 1});
            let answer = json_of(front.post(path, body).await).await;
            assert_eq!(answer, json!({"native": 1}), "{path}");
        }
        assert_eq!(up.body(route)["model"], "m");
    }
}

#[tokio::test]
async fn an_api_about_which_an_upstream_is_silent_is_translated_soon() {
    let silent = |route| (route, SILENCE.to_vec());
    let routes = [silent("POST /v1/messages"), silent("POST /v1/responses"), chat_stream()];
    let front = Front::new(&Upstream::start(routes).await.url);
    let message = json!({"max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]});
    for (path, body) in [("/v1/messages", message), ("/v1/responses", json!({"input": "hi"}))] {
        // Far below the time that a server may be silent within an answer.
        let answered = tokio::time::timeout(Duration::from_secs(20), front.post(path, body)).await;
        let answer = json_of(answered.expect("it is not waited for")).await;
        assert!(answer.to_string().contains("Hel"), "{path}: {answer}");
    }
}

#[tokio::test]
async fn an_upstreams_progress_reaches_those_who_asked() {
    let reading = r#"{"id":"up-1","object":"chat.completion.chunk","created":5,"model":"theirs","choices":[{"index":0,"delta":{"role":"assistant","content":null},"finish_reason":null}],"prompt_progress":{"total":90,"cache":10,"processed":40,"time_ms":12}}"#;
    let events = [reading, FIRST, FINISH, "[DONE]"];
    let up = Upstream::start([("POST /v1/chat/completions", stream(&events))]).await;
    let front = Front::new(&up.url);
    for resumable in [false, true] {
        let asked = json!({"return_progress": true, "resumable": resumable});
        let answer = read(front.ask(asked).await).await;
        assert!(answer.done);
        let progress = &answer.events[0]["prompt_progress"];
        let expected = json!({"total": 90, "cache": 10, "processed": 40, "time_ms": 12, "queued": 0, "eta_ms": null});
        assert_eq!(*progress, expected, "{:?}", answer.events);
        assert_eq!(answer.text(), "Hel");
        assert_eq!(up.body("POST /v1/chat/completions")["return_progress"], true);
    }
    let unasked = read(front.ask(json!({})).await).await;
    assert!(unasked.events.iter().all(|event| event.get("prompt_progress").is_none()));
}

#[tokio::test]
async fn a_first_key_that_is_wrong_does_not_decide_for_others() {
    // The stand-in refuses the probe with 401: the request is passed on, and gets 401 itself.
    let up = Upstream::start([("POST /v1/messages", whole("401 Unauthorized", "{}"))]).await;
    let front = Front::new(&up.url);
    let request = || {
        HttpRequest::post("/v1/messages")
            .header(header::AUTHORIZATION, "Bearer wrong")
            .body(Body::from(r#"{"model":"m"}"#))
            .unwrap()
    };
    for _ in 0..2 {
        assert_eq!(front.send(request()).await.status(), 401);
    }
}
