//! Reasoning in an upstream's answer that is not streamed: it is split off the text as in a stream.
//! Everything else of the answer passes as it came.

use axum::body::{Body, to_bytes};
use axum::response::Response;
use http::header;
use loquent_engine::grammar::ThinkTags;
use loquent_proto::Delta;
use serde_json::Value;

use crate::completion::reader::{SplitConfig, TextSplitter};
use crate::error::ApiError;
use crate::held::HeldDeltas;

/// Longest answer that is looked into; longer ones pass unread.
const MAX_ANSWER_BYTES: usize = 8 << 20;

/// `response` with the reasoning of its completions split off.
///
/// # Errors
/// 502 when the upstream breaks off.
pub async fn split_reasoning(response: Response) -> Result<Response, ApiError> {
    if !can_be_read(&response) {
        return Ok(response);
    }
    let (mut head, body) = response.into_parts();
    let body = to_bytes(body, MAX_ANSWER_BYTES).await.map_err(|error| {
        ApiError::bad_gateway(format!("The upstream server's answer is lost: {error}."))
    })?;
    Ok(match split_body(&body) {
        None => Response::from_parts(head, body.into()),
        Some(split) => {
            head.headers.remove(header::CONTENT_LENGTH);
            Response::from_parts(head, Body::from(split))
        }
    })
}

/// Whether `response` is a whole answer in plain JSON, and not too long.
fn can_be_read(response: &Response) -> bool {
    let field = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
    let length: Option<usize> = field(header::CONTENT_LENGTH).and_then(|text| text.parse().ok());
    let is_json = field(header::CONTENT_TYPE).is_some_and(|it| it.starts_with("application/json"));
    let is_coded = response.headers().contains_key(header::CONTENT_ENCODING);
    // Without a length it may be a stream, whatever the request asked for.
    let is_short = length.is_some_and(|length| length <= MAX_ANSWER_BYTES);
    response.status().is_success() && is_json && !is_coded && is_short
}

/// The answer with its reasoning split off; `None` where there is nothing to split.
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
    if !content.trim_start().starts_with(begin) || message.contains_key("reasoning_content")
    {
        return None;
    }
    let (mut splitter, mut held) =
        (TextSplitter::new(SplitConfig::reasoning()), HeldDeltas::new(0));
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
    use super::*;
    use serde_json::json;

    #[test]
    fn only_what_begins_with_reasoning_changes() {
        let answer =
            |message: Value| json!({"id": "x", "choices": [{"index": 0, "message": message}]});
        let split = |message: Value| split_body(answer(message).to_string().as_bytes());
        let thought =
            json!({"role": "assistant", "content": "<think>\nHm.\n</think>\n\nYes.", "x": 1});
        let wanted =
            json!({"role": "assistant", "content": "Yes.", "reasoning_content": "Hm.\n", "x": 1});
        let found: Value = serde_json::from_slice(&split(thought).unwrap()).unwrap();
        assert_eq!(found, answer(wanted));
        for message in [
            json!({"content": "Say <think>"}),
            json!({"content": null}),
            json!({"content": "<think>a", "reasoning_content": "b"}),
        ] {
            assert_eq!(split(message), None);
        }
        assert_eq!(split_body(b"<think>"), None);
    }
}
