//! Splits reasoning off an upstream's answer that is not streamed, as in a stream. Everything else
//! in the answer passes unchanged.

use axum_core::body::Body;
use axum_core::response::Response;
use http::header;
use http_body_util::{BodyExt, Limited};
use loquent_formats::grammar::ThinkTags;
use loquent_proto::Delta;
use serde_json::Value;

use loquent_serving::api::json::{VALUE_BYTES, count_values};
use loquent_serving::body::RequestBodies;
use loquent_serving::completion::reader::{SplitConfig, TextSplitter};
use loquent_serving::error::ApiError;
use loquent_serving::memory::{MemoryCharge, SMALL_BYTES};
use loquent_serving::pending_deltas::PendingDeltas;

/// Largest answer that is parsed; larger ones pass unread.
const MAX_ANSWER_BYTES: usize = 8 << 20;

/// Returns `response` with the reasoning of its completions split off. The response passes unread
/// if there is no memory to parse it: it has been generated, and only its form is at stake.
///
/// # Errors
/// 502 when the upstream breaks off.
pub async fn split_reasoning(
    response: Response,
    bodies: &RequestBodies,
) -> Result<Response, ApiError> {
    let mut charge = MemoryCharge::default();
    let Some(length) = readable_length(&response) else { return Ok(response) };
    if bodies.memory().take(&mut charge, length).await.is_err() {
        return Ok(response);
    }
    let (mut head, body) = response.into_parts();
    let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await.map_err(|error| {
        ApiError::bad_gateway(format!("The upstream server's answer is lost: {error}."))
    })?;
    let body = body.to_bytes();
    // Parsed, it takes many times the bytes of its text; and it is written once more.
    let parsed_bytes = count_values(&body) * VALUE_BYTES + body.len();
    if bodies.memory().take(&mut charge, parsed_bytes).await.is_err() {
        return Ok(Response::from_parts(head, body.into()));
    }
    let (is_large, text) = (body.len() > SMALL_BYTES, body.clone());
    let split = bodies.workers().run_if(is_large, move || Ok(split_body(&text))).await?;
    Ok(match split {
        None => Response::from_parts(head, body.into()),
        Some(split) => {
            head.headers.remove(header::CONTENT_LENGTH);
            Response::from_parts(head, Body::from(split))
        }
    })
}

/// Returns the length of a whole answer in plain JSON; `None` for any other response, or one that
/// is too long.
fn readable_length(response: &Response) -> Option<usize> {
    let field = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
    let is_json = field(header::CONTENT_TYPE).is_some_and(|it| it.starts_with("application/json"));
    let is_coded = response.headers().contains_key(header::CONTENT_ENCODING);
    // Without a length it may be a stream, whatever the request asked for.
    let length: usize = field(header::CONTENT_LENGTH)?.parse().ok()?;
    let can_be_read =
        response.status().is_success() && is_json && !is_coded && length <= MAX_ANSWER_BYTES;
    can_be_read.then_some(length)
}

/// Returns the answer with its reasoning split off; `None` if there is none.
fn split_body(body: &[u8]) -> Option<Vec<u8>> {
    let mut answer: Value = serde_json::from_slice(body).ok()?;
    let mut is_split = false;
    for choice in answer.get_mut("choices")?.as_array_mut()? {
        // No `||`, which would leave out every choice behind the first that was split.
        is_split |= split_message(choice).is_some();
    }
    is_split.then(|| answer.to_string().into_bytes())
}

fn split_message(choice: &mut Value) -> Option<()> {
    let message = choice.get_mut("message")?.as_object_mut()?;
    let content = message.get("content")?.as_str()?;
    let [begin, _] = ThinkTags::Angle.pair();
    // Servers have two names for it, and some write `null` for none.
    let has = |name: &str| message.get(name).is_some_and(|value| !value.is_null());
    let is_split = has("reasoning_content") || has("reasoning");
    if is_split || !content.trim_start().starts_with(begin) {
        return None;
    }
    let (mut splitter, mut held) =
        (TextSplitter::new(SplitConfig::reasoning()), PendingDeltas::new(0));
    splitter.push(content, &mut held);
    splitter.finish(&mut held);
    let (mut text, mut reasoning) = (String::new(), String::new());
    for delta in held.take(0) {
        match delta {
            Delta::Text { text: more, .. } => text.push_str(&more),
            Delta::Reasoning { text: more, .. } => reasoning.push_str(&more),
            _ => {}
        }
    }
    message.insert("content".into(), text.into());
    message.insert("reasoning_content".into(), reasoning.into());
    Some(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use loquent_serving::body::BodyLimits;

    /// Returns the text of an upstream's answer after splitting off its reasoning, as far as
    /// `bodies` has memory for that.
    async fn passed(bodies: &RequestBodies) -> Value {
        let message = json!({"content": "<think>Hm.</think>Yes."});
        let body = json!({"choices": [{"message": message}]}).to_string();
        let response = Response::builder()
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::CONTENT_LENGTH, body.len())
            .body(Body::from(body))
            .unwrap();
        let response = split_reasoning(response, bodies).await.unwrap();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        serde_json::from_slice::<Value>(&body).unwrap()["choices"][0]["message"]["content"].take()
    }

    #[tokio::test(start_paused = true)]
    async fn without_memory_for_it_an_answer_passes_unread() {
        let limits = BodyLimits { max_bytes: 1 << 20, total_bytes: 64 * 1024 };
        let bodies = RequestBodies::new(limits);
        assert_eq!(passed(&bodies).await, "Yes.");
        let mut all_small = MemoryCharge::default();
        bodies.memory().take(&mut all_small, 16 * 1024).await.unwrap();
        assert_eq!(passed(&bodies).await, "<think>Hm.</think>Yes.");
        drop(all_small);
        assert_eq!(passed(&bodies).await, "Yes.");
    }

    #[test]
    fn only_what_begins_with_reasoning_changes() {
        let answer =
            |message: Value| json!({"id": "x", "choices": [{"index": 0, "message": message}]});
        let split = |message: Value| split_body(answer(message).to_string().as_bytes());
        let thought = json!({
            "role": "assistant", "content": "<think>\nHm.\n</think>\n\nYes.", "x": 1,
            "reasoning_content": null, "reasoning": null,
        });
        let wanted = json!({
            "role": "assistant", "content": "Yes.", "x": 1,
            "reasoning_content": "Hm.\n", "reasoning": null,
        });
        let found: Value = serde_json::from_slice(&split(thought).unwrap()).unwrap();
        assert_eq!(found, answer(wanted));
        for message in [
            json!({"content": "Say <think>"}),
            json!({"content": null}),
            json!({"content": "<think>a", "reasoning_content": "b"}),
            json!({"content": "<think>a", "reasoning": "b"}),
        ] {
            assert_eq!(split(message), None);
        }
        assert_eq!(split_body(b"<think>"), None);
    }
}
