//! Translates a request to llama-server's own `/completion` to the fields of a completion.

use serde_json::Value;

use super::parameters::{NativeRequest, lower_shared};
use crate::lowered::Lowered;
use loquent_serving::api::fields::Fields;
use loquent_serving::api::request::Endpoint;
use loquent_serving::error::ApiError;

/// Translates `fields` to a completion; names without a meaning there stay.
///
/// # Errors
/// 400 with the name of the wrong field.
pub fn lower(mut fields: Fields) -> Result<Lowered<NativeRequest>, ApiError> {
    let kept = lower_shared(&mut fields)?;
    let prompt = match fields.take("prompt") {
        Some(Value::Array(items)) => {
            let items = items.into_iter().map(|item| plain(&fields, item));
            items.collect::<Result<Vec<_>, _>>()?.into()
        }
        Some(other) => plain(&fields, other)?,
        None => return Err(fields.error("prompt", "is required.")),
    };
    fields.put("prompt", prompt);
    Ok(Lowered { endpoint: Endpoint::Text, fields, ignored: Vec::new(), kept })
}

/// Returns the text of a prompt that is an object, as one with media is; others stay as they are.
fn plain(fields: &Fields, prompt: Value) -> Result<Value, ApiError> {
    let Value::Object(mut members) = prompt else { return Ok(prompt) };
    let media = members.remove("multimodal_data");
    if media.is_some_and(|media| media.as_array().is_none_or(|media| !media.is_empty())) {
        let message = "has 'multimodal_data', which is not supported: input is text.";
        return Err(fields.error("prompt", message));
    }
    match members.remove("prompt_string") {
        Some(text @ Value::String(_)) => Ok(text),
        _ => {
            Err(fields.error("prompt", "must have its text in 'prompt_string' if it is an object."))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: &Value) -> Result<Value, ApiError> {
        let lowered = lower(Fields::parse(body.to_string().as_bytes()).unwrap())?;
        Ok(lowered.fields.into_map().into())
    }

    #[test]
    fn a_completion_has_llama_servers_names() {
        let found = read(&json!({"prompt": "a", "n_predict": 8, "cache_prompt": true}));
        let wanted = json!({
            "prompt": "a", "max_tokens": 8, "cache_prompt": true, "include_stop_reason": true,
        });
        assert_eq!(found.unwrap(), wanted);
    }

    #[test]
    fn prompts_may_be_objects_with_a_text() {
        for (prompt, wanted) in [
            (json!({"prompt_string": "a"}), json!("a")),
            (json!({"prompt_string": "a", "multimodal_data": []}), json!("a")),
            (json!([[1, 2], {"prompt_string": "a"}, "b"]), json!([[1, 2], "a", "b"])),
            (json!([1, "a", 2]), json!([1, "a", 2])),
        ] {
            assert_eq!(read(&json!({"prompt": prompt})).unwrap()["prompt"], wanted);
        }
        for body in [
            json!({}),
            json!({"prompt": {}}),
            json!({"prompt": {"prompt_string": 1}}),
            json!({"prompt": [{"prompt_string": "a", "multimodal_data": ["AAAA"]}]}),
            json!({"prompt": {"prompt_string": "a", "multimodal_data": "AAAA"}}),
        ] {
            assert_eq!(read(&body).unwrap_err().json()["error"]["param"], "prompt", "{body}");
        }
    }
}
