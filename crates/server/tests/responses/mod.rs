//! OpenAI's Responses API on the simulated engine: objects, events and their numbers, background
//! responses and their readers, conversations, and what others may not see.

mod background;
mod hostile;
mod reading;
mod storing;

use crate::streams::harness::{self, Server};
use http::StatusCode;
use reading::{ask, get, is_numbered, post, stream, text_of};
use serde_json::{Value, json};

/// A function that the model may call.
fn tool(name: &str) -> Value {
    json!({"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_is_whole_with_its_counts_and_what_was_asked() {
    let server = Server::start(|_| {});
    let response = ask(
        &server,
        json!({
            "model": "m", "input": "tokens=30", "instructions": "Be brief.", "temperature": 0.5,
            "metadata": {"a": "b"}, "user": "u", "max_output_tokens": 500,
        }),
    )
    .await;
    assert_eq!(
        (&response["object"], &response["status"]),
        (&json!("response"), &json!("completed"))
    );
    assert!(response["id"].as_str().unwrap().starts_with("resp_"));
    assert_eq!(response["model"], "simulated");
    assert_eq!(response["instructions"], "Be brief.");
    assert_eq!(response["metadata"], json!({"a": "b"}));
    assert_eq!((&response["user"], &response["temperature"]), (&json!("u"), &json!(0.5)));
    assert!(response["completed_at"].as_u64() >= response["created_at"].as_u64());
    assert_eq!(response["output"][0]["type"], "message");
    assert_eq!(response["output"][0]["content"][0]["type"], "output_text");
    let chat = json!({"messages": [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "tokens=30"},
    ]});
    let chat = server.whole("/v1/chat/completions", &chat).await;
    assert_eq!(text_of(&response), chat["choices"][0]["message"]["content"]);
    assert_eq!(response["usage"]["output_tokens"], chat["usage"]["completion_tokens"]);
    assert_eq!(response["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);
    let counted = json!({"input": "tokens=30", "instructions": "Be brief."});
    let (status, counted) = post(&server, "/v1/responses/input_tokens", &counted).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(counted["input_tokens"], response["usage"]["input_tokens"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compaction_takes_the_place_of_its_conversation() {
    let server = Server::start(|_| {});
    let long = json!([
        {"role": "user", "content": "tokens=40"}, {"role": "assistant", "content": "a b ".repeat(500)},
    ]);
    let (status, compaction) =
        post(&server, "/v1/responses/compact", &json!({"model": "m", "input": long})).await;
    assert_eq!(status, StatusCode::OK, "{compaction}");
    assert_eq!(compaction["object"], "response.compaction");
    let (used, items) = (&compaction["usage"], &compaction["output"]);
    assert!(used["input_tokens"].as_u64() > Some(500) && used["output_tokens"].as_u64() > Some(0));
    let kind = &items[0]["type"];
    assert_eq!((items.as_array().unwrap().len(), kind), (1, &json!("compaction")));
    let count = async |input: &Value| {
        let body = json!({"input": input});
        let (status, counted) = post(&server, "/v1/responses/input_tokens", &body).await;
        assert_eq!(status, StatusCode::OK, "{counted}");
        counted["input_tokens"].as_u64().unwrap()
    };
    // The model reads the summary, whose length is that of the answer, in place of the rest.
    let foreign = json!([{"type": "compaction", "encrypted_content": "gAAAA"}]);
    assert_ne!(count(items).await, count(&foreign).await);
    assert!(count(items).await < count(&long).await);
    ask(&server, json!({"input": items})).await;
    // Nothing is kept of it.
    let path = format!("/v1/responses/{}", compaction["id"].as_str().unwrap());
    assert_eq!(get(&server, &path).await.0, StatusCode::NOT_FOUND);
    let (status, refused) = post(&server, "/v1/responses/compact", &json!({"model": "m"})).await;
    assert_eq!((status, &refused["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("input")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_events_of_a_stream_are_numbered_and_give_the_same_response() {
    let server = Server::start(|_| {});
    let whole = ask(&server, json!({"input": "tokens=30"})).await;
    let events = stream(&server, json!({"input": "tokens=30"})).await;
    is_numbered(&events, 0);
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    let is_delta = |kind: &&str| **kind == *"response.output_text.delta";
    let others: Vec<&str> = kinds.iter().copied().filter(|kind| !is_delta(kind)).collect();
    assert_eq!(
        others,
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    let text: String = events.iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(text, text_of(&whole));
    let last = &events.last().unwrap()["response"];
    assert_eq!(text_of(last), text);
    assert_eq!(last["usage"]["output_tokens"], whole["usage"]["output_tokens"]);
    let id = last["id"].as_str().unwrap();
    assert_eq!(get(&server, &format!("/v1/responses/{id}")).await.1, *last);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_that_is_cut_is_incomplete() {
    let server = Server::start(|_| {});
    let cut = json!({"input": "tokens=30", "max_output_tokens": 7});
    let events = stream(&server, cut).await;
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.incomplete");
    assert_eq!(last["response"]["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!(last["response"]["output"][0]["status"], "incomplete");
    assert_eq!(last["response"]["usage"]["output_tokens"], 7);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_probabilities_come_with_the_text_and_as_a_whole() {
    let server = Server::start(|_| {});
    let events = stream(
        &server,
        json!({
            "input": "tokens=10", "include": ["message.output_text.logprobs"], "top_logprobs": 2,
        }),
    )
    .await;
    let streamed: usize = events
        .iter()
        .filter(|event| event["delta"].is_string())
        .map(|event| event["logprobs"].as_array().unwrap().len())
        .sum();
    let last = &events.last().unwrap()["response"]["output"][0]["content"][0]["logprobs"];
    let whole = last.as_array().unwrap();
    assert!(streamed >= 10 && whole.len() >= streamed, "{streamed} of {}", whole.len());
    assert_eq!(whole[0]["top_logprobs"].as_array().unwrap().len(), 2);
    assert!(whole[0]["bytes"].is_array());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conversation_goes_on_from_a_stored_response() {
    let server = Server::start(|_| {});
    let first = ask(&server, json!({"input": "tokens=10"})).await;
    let second = ask(
        &server,
        json!({
            "input": "tokens=12", "previous_response_id": first["id"],
        }),
    )
    .await;
    // The simulated engine's text depends on all of the prompt.
    let by_hand = ask(&server, json!({"store": false, "input": [
        {"role": "user", "content": "tokens=10"},
        first["output"][0],
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "tokens=12"}]},
    ]}))
    .await;
    assert_eq!(text_of(&second), text_of(&by_hand));
    assert_ne!(text_of(&second), text_of(&ask(&server, json!({"input": "tokens=12"})).await));
    let by_reference = ask(
        &server,
        json!({"input": [
            {"role": "user", "content": "tokens=10"},
            {"type": "item_reference", "id": first["output"][0]["id"]},
            {"role": "user", "content": "tokens=12"},
        ]}),
    )
    .await;
    assert_eq!(text_of(&by_reference), text_of(&by_hand));
    let id = second["id"].as_str().unwrap();
    let (_, items) = get(&server, &format!("/v1/responses/{id}/input_items?order=asc")).await;
    let roles: Vec<&Value> =
        items["data"].as_array().unwrap().iter().map(|it| &it["role"]).collect();
    assert_eq!(roles, ["user", "assistant", "user"]);
    assert_eq!(items["data"][1]["id"], first["output"][0]["id"]);
    // The conversation outlives the responses that it came from.
    let gone = format!("/v1/responses/{}", first["id"].as_str().unwrap());
    assert_eq!(reading::delete(&server, &gone).await.0, StatusCode::OK);
    let third = json!({"input": "tokens=9", "previous_response_id": second["id"]});
    let (status, _) = post(&server, "/v1/responses", &third).await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_stored_cannot_be_referred_to() {
    let server = Server::start(|_| {});
    let response = ask(&server, json!({"input": "tokens=5", "store": false})).await;
    let id = response["id"].as_str().unwrap();
    assert_eq!(get(&server, &format!("/v1/responses/{id}")).await.0, StatusCode::NOT_FOUND);
    let next = json!({"input": "x", "previous_response_id": id});
    let (status, error) = post(&server, "/v1/responses", &next).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(error["error"]["code"], "previous_response_not_found");
    let item = json!({"input": [{"type": "item_reference", "id": response["output"][0]["id"]}]});
    let (status, error) = post(&server, "/v1/responses", &item).await;
    assert_eq!(
        (status, &error["error"]["param"]),
        (StatusCode::BAD_REQUEST, &json!("input[0].id"))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn functions_are_called_and_their_outputs_go_back() {
    let server = Server::start(|_| {});
    let script =
        "say=Wait. <tool_call>{\"name\": \"time\", \"arguments\": {\"zone\": 1}}</tool_call>";
    let events = stream(&server, json!({"input": script, "tools": [tool("time")]})).await;
    is_numbered(&events, 0);
    let response = &events.last().unwrap()["response"];
    let [said, call] = response["output"].as_array().unwrap().as_slice() else {
        panic!("{}", response["output"]);
    };
    assert_eq!(said["type"], "message");
    assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("time")));
    let arguments: String = events
        .iter()
        .filter(|event| event["type"] == "response.function_call_arguments.delta")
        .map(|event| event["delta"].as_str().unwrap())
        .collect();
    assert_eq!(call["arguments"], arguments.as_str());
    assert_eq!(serde_json::from_str::<Value>(&arguments).unwrap(), json!({"zone": 1}));
    let output =
        json!({"type": "function_call_output", "call_id": call["call_id"], "output": "noon"});
    let next = ask(
        &server,
        json!({
            "input": [output, {"role": "user", "content": "say=It is noon."}],
            "tools": [tool("time")], "previous_response_id": response["id"],
        }),
    )
    .await;
    assert_eq!(text_of(&next), "It is noon.");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn allowed_tools_must_be_among_the_tools() {
    let server = Server::start(|_| {});
    let with_choice = |name: &str| {
        json!({
            "input": "tokens=5", "tools": [tool("time"), tool("weather")],
            "tool_choice": {"type": "allowed_tools", "mode": "auto",
                "tools": [{"type": "function", "name": name}]},
        })
    };
    let response = ask(&server, with_choice("time")).await;
    assert_eq!(response["tool_choice"]["mode"], "auto");
    let (status, error) = post(&server, "/v1/responses", &with_choice("clock")).await;
    assert_eq!(
        (status, &error["error"]["param"]),
        (StatusCode::BAD_REQUEST, &json!("tool_choice"))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conversation_that_is_too_long_is_refused_or_loses_its_oldest_turns() {
    let server = Server::start(|_| {});
    let filler = "word ".repeat(3000);
    let mut items: Vec<Value> = (0..10)
        .flat_map(|_| {
            [
                json!({"role": "user", "content": filler}),
                json!({"role": "assistant", "content": "ok"}),
            ]
        })
        .collect();
    items.push(json!({"role": "user", "content": "say=Still here."}));
    let mut request = json!({"input": items, "instructions": "Stay."});
    let (status, error) = post(&server, "/v1/responses", &request).await;
    assert_eq!((status, &error["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("input")));
    assert_eq!(error["error"]["code"], "context_length_exceeded");
    request["truncation"] = "auto".into();
    let response = ask(&server, request).await;
    assert_eq!(text_of(&response), "Still here.");
    let input_tokens = response["usage"]["input_tokens"].as_u64().unwrap();
    assert!((3000..16_384).contains(&input_tokens), "{input_tokens} tokens are left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_ends_what_only_it_reads() {
    let server = Server::start(|_| {});
    let body = json!({"input": "tokens=100000", "stream": true});
    let (_, reader) = server.post("/v1/responses", &body).await;
    server.until("num_requests_running", |running| running == 1.0).await;
    drop(reader);
    server.until("num_requests_running", |running| running == 0.0).await;
}
