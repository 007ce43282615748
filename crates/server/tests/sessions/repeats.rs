//! Questions that are asked again with the same key (S-4.9).

use std::time::Duration;

use serde_json::{Value, json};

use super::harness::*;

fn with_key(key: &str) -> Value {
    json!({"headers": {"Idempotency-Key": key}})
}

/// The answers that the server began to generate.
async fn begun(server: &Server) -> f64 {
    metric(server, "generation_tokens_total").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_whose_connection_died_is_answered_once() {
    let server = start(Setup::default()).await;
    let text = expected(&server, 100).await;
    let before = begun(&server).await;
    let (endpoint, connection) = connect(&server).await;
    let body = chat(100, json!({}));
    // It is asked, and its connection is gone before anything was heard.
    let asked = Reader::ask_with(&connection, 0, &body, with_key("k-1")).await;
    until(&server, "generation_tokens_total", |tokens| tokens > before).await;
    connection.close(0, b"gone");
    endpoint.wait_idle().await;
    drop(asked);
    let (_endpoint, connection) = connect(&server).await;
    let mut again = Reader::ask_with(&connection, 5, &body, with_key("k-1")).await;
    again.run(usize::MAX).await;
    assert!(again.complete);
    assert_eq!(again.text(), text);
    assert_eq!(begun(&server).await - before, 101.0, "tokens of one answer and its end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_asked_by_quic_is_joined_over_http() {
    let server = start(Setup::default()).await;
    let text = expected(&server, 200).await;
    let (_endpoint, connection) = connect(&server).await;
    let mut reader = Reader::ask_with(&connection, 0, &chat(200, json!({})), with_key("k-1")).await;
    assert_eq!(reader.run(text.len() / 3).await, Ended::Enough);
    let joined = async |body: &str, key: &str, bearer: Option<&str>| {
        let bearer = bearer.map(|key| format!("Bearer {key}"));
        let mut headers = vec![("idempotency-key", key)];
        headers.extend(bearer.as_deref().map(|bearer| ("authorization", bearer)));
        open(server.http, "POST", "/v1/chat/completions", &headers, body).await
    };
    let id = reader.name.unwrap().id_hex();
    let resumable = chat(200, json!({"resumable": true}));
    let (status, headers, mut joined_body) = joined(&resumable, "k-1", None).await;
    assert_eq!((status, headers["x-loquent-stream-id"].to_str().unwrap()), (200, id.as_str()));
    let events = Events::read(&mut joined_body, usize::MAX).await;
    assert_eq!((events.text, events.done), (text, true), "from its beginning");
    reader.run(usize::MAX).await;
    assert!(reader.complete, "both read");
    // Another API key, or another idempotency key, is another answer.
    for (key, bearer) in [("k-1", Some("other")), ("k-2", None)] {
        let (status, headers, _) = joined(&resumable, key, bearer).await;
        assert_eq!(status, 200);
        assert_ne!(headers["x-loquent-stream-id"], id.as_str());
    }
    // Another question under the same key is a mistake, and so is a key without end.
    let another = chat(201, json!({"resumable": true}));
    assert_eq!(joined(&another, "k-1", None).await.0, 400);
    assert_eq!(joined(&resumable, &"k".repeat(200), None).await.0, 400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_body_says_of_streaming_does_not_matter_over_quic() {
    let server = start(Setup::default()).await;
    let (_endpoint, connection) = connect(&server).await;
    let usage = json!({"stream_options": {"include_usage": true}});
    let plain: Value = serde_json::from_str(&chat(30, usage)).unwrap();
    let mut name = None;
    for (channel, stream) in [None, Some(json!(false)), Some(json!("?"))].into_iter().enumerate() {
        let mut body = plain.clone();
        body.as_object_mut().unwrap().remove("stream");
        body.as_object_mut().unwrap().extend(stream.map(|stream| ("stream".to_owned(), stream)));
        let body = body.to_string();
        let mut reader = Reader::ask_with(&connection, channel as u64, &body, with_key("k")).await;
        reader.run(usize::MAX).await;
        assert!(reader.complete, "{body}: {:?}", reader.said);
        assert_eq!(reader.name, *name.get_or_insert(reader.name), "the same question");
    }
    let mut resumable = plain.clone();
    resumable["resumable"] = json!(true);
    let (status, headers, _) = open(
        server.http,
        "POST",
        "/v1/chat/completions",
        &[("idempotency-key", "k")],
        &resumable.to_string(),
    )
    .await;
    let id = name.unwrap().unwrap().id_hex();
    assert_eq!((status, headers["x-loquent-stream-id"].to_str().unwrap()), (200, id.as_str()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn questions_at_the_same_time_share_an_answer_until_it_is_forgotten() {
    // Long enough that the second question always finds the answer of the first.
    let setup = Setup { grace: Duration::from_secs(3), ..Setup::default() };
    let server = start(setup).await;
    let (_endpoint, connection) = connect(&server).await;
    let (_other_endpoint, other) = connect(&server).await;
    let body = chat(60, json!({}));
    let (mut one, mut two) = tokio::join!(
        Reader::ask_with(&connection, 0, &body, with_key("k")),
        Reader::ask_with(&other, 0, &body, with_key("k")),
    );
    let (_, _) = tokio::join!(one.run(usize::MAX), two.run(usize::MAX));
    assert!(one.complete && two.complete);
    assert_eq!(one.text(), two.text());
    assert_eq!(one.name, two.name);
    let name = one.name.unwrap();
    settle(&server, "delivery_kept_bytes", 0.0).await;
    let mut later = Reader::ask_with(&connection, 2, &body, with_key("k")).await;
    later.run(usize::MAX).await;
    assert!(later.complete);
    assert_ne!(later.name.unwrap(), name, "the first answer is forgotten");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parameters_without_effect_are_named_in_the_answers_head() {
    let server = start(Setup::default()).await;
    let (_endpoint, connection) = connect(&server).await;
    let body = chat(5, json!({"tempersture": 1}));
    let mut reader = Reader::ask(&connection, 0, &body).await;
    reader.run(usize::MAX).await;
    let Said::Answer(head) = &reader.said[0] else { panic!("{:?}", reader.said) };
    assert_eq!(head["headers"]["x-loquent-ignored-parameters"], "tempersture");
}
