//! What responses say of being stored is true, however long they are.

use http::StatusCode;
use loquent_server::{Store, StoreLimits};
use serde_json::{Value, json};

use super::harness::{Server, http_config};
use super::reading::{ask, get, stream};

/// An answer whose records are many times the text.
fn with_logprobs(tokens: usize) -> Value {
    json!({
        "input": format!("tokens={tokens}"), "top_logprobs": 20,
        "include": ["message.output_text.logprobs"],
    })
}

/// The response as it is whole, and as the last event of a stream has it.
async fn both(server: &Server, body: &Value) -> [Value; 2] {
    let streamed = stream(server, body.clone()).await.pop().unwrap()["response"].take();
    [ask(server, body.clone()).await, streamed]
}

async fn read(server: &Server, response: &Value) -> (StatusCode, Value) {
    get(server, &format!("/v1/responses/{}", response["id"].as_str().unwrap())).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_longer_than_a_log_of_a_stream_is_stored() {
    let server = Server::start(|_| {});
    for response in both(&server, &with_logprobs(600)).await {
        assert!(response.to_string().len() > 512 * 1024);
        assert_eq!((&response["store"], &response["status"]), (&json!(true), &json!("completed")));
        assert_eq!(read(&server, &response).await, (StatusCode::OK, response));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_that_the_store_does_not_take_says_so() {
    let limits = StoreLimits { bytes_per_owner: 20_000, ..StoreLimits::default() };
    let server = Server::with_store(http_config(), Store::in_memory(limits));
    // Too long while it is generated, and before that.
    let long = json!({"input": "tokens=5", "instructions": "word ".repeat(5000)});
    for body in [with_logprobs(600), long] {
        for response in both(&server, &body).await {
            assert_eq!(response["status"], "completed");
            assert_eq!(response["store"], false);
            assert_eq!(read(&server, &response).await.0, StatusCode::NOT_FOUND);
        }
    }
    for response in both(&server, &json!({"input": "tokens=5"})).await {
        assert_eq!(response["store"], true);
        assert_eq!(read(&server, &response).await.0, StatusCode::OK);
    }
}
