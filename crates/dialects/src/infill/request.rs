//! Translates a request to `/infill` to the fields of a completion.

use crate::lowered::Lowered;
use loquent_serving::api::fields::Fields;
use loquent_serving::api::request::Endpoint;
use loquent_serving::error::ApiError;

/// Translates `fields` to a completion; names without a meaning there stay.
///
/// # Errors
/// 400 with the name of the wrong field.
pub fn lower(mut fields: Fields) -> Result<Lowered<()>, ApiError> {
    if fields.take("n_probs").is_some() {
        return Err(fields.error("n_probs", "is not supported; use /v1/completions."));
    }
    let prefix = fields.string("input_prefix")?;
    let suffix = fields.string("input_suffix")?;
    let line = fields.string("prompt")?.unwrap_or_default();
    if prefix.is_none() && suffix.is_none() {
        return Err(fields.error("input_prefix", "or 'input_suffix' is required."));
    }
    let most = fields.integer("n_predict", -1..=i64::from(u32::MAX))?.filter(|most| *most > 0);
    let mut lowered = fields.map().clone();
    lowered.insert("prompt".into(), (prefix.unwrap_or_default() + &line).into());
    lowered.insert("suffix".into(), suffix.into());
    // Without a bound llama-server writes on; the default of a completion is 16.
    lowered.insert("max_tokens".into(), most.unwrap_or(i64::from(u32::MAX)).into());
    let (endpoint, fields) = (Endpoint::Text, fields.replaced(lowered));
    Ok(Lowered { endpoint, fields, ignored: Vec::new(), kept: () })
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
            "samplers": ["top_k"], "stream": true,
        });
        assert_eq!(Value::from(lower(body).unwrap().fields.into_map()), wanted);
        for (body, param) in [
            (json!({"prompt": "a"}), "input_prefix"),
            (json!({"input_prefix": 1}), "input_prefix"),
            (json!({"input_prefix": "a", "n_probs": 3}), "n_probs"),
            (json!({"input_prefix": "a", "n_predict": -2}), "n_predict"),
        ] {
            let error = lower(body).err().unwrap().json();
            assert_eq!(error["error"]["param"], param);
        }
    }
}
