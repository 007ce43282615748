//! Translates a request to `/infill` to the fields of a completion.

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
    let prefix = fields.string("input_prefix")?;
    let suffix = fields.string("input_suffix")?;
    let line = fields.string("prompt")?.unwrap_or_default();
    if prefix.is_none() && suffix.is_none() {
        return Err(fields.error("input_prefix", "or 'input_suffix' is required."));
    }
    fields.put("prompt", (prefix.unwrap_or_default() + &line).into());
    fields.put("suffix", suffix.into());
    Ok(Lowered { endpoint: Endpoint::Text, fields, ignored: Vec::new(), kept })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_place_in_a_text_becomes_a_completion_with_a_suffix() {
        let lower = |body: Value| lower(Fields::parse(body.to_string().as_bytes()).unwrap());
        let body = json!({
            "input_prefix": "fn a() {\n", "prompt": "    le", "input_suffix": "\n}", "n_predict": 8,
            "top_k": 40, "samplers": ["top_k"], "stream": true,
        });
        let wanted = json!({
            "prompt": "fn a() {\n    le", "suffix": "\n}", "max_tokens": 8, "top_k": 40,
            "samplers": ["top_k"], "stream": true, "include_stop_reason": true,
        });
        assert_eq!(Value::from(lower(body).unwrap().fields.into_map()), wanted);
        for (body, param) in [
            (json!({"prompt": "a"}), "input_prefix"),
            (json!({"input_prefix": 1}), "input_prefix"),
            (json!({"input_prefix": "a", "n_predict": -3}), "n_predict"),
        ] {
            let error = lower(body).err().unwrap().json();
            assert_eq!(error["error"]["param"], param);
        }
    }
}
