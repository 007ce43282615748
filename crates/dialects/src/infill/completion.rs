//! Translates a request to llama-server's own `/completion` to the fields of a completion.

use serde_json::{Map, Value};

use crate::lowered::Lowered;
use loquent_serving::api::fields::Fields;
use loquent_serving::api::request::Endpoint;
use loquent_serving::error::ApiError;

/// Bias of a token that is forbidden (`[id, false]`).
const NEVER: i64 = -100;

/// Translates `fields` to a completion; names without a meaning there stay.
///
/// # Errors
/// 400 with the name of the wrong field.
pub fn lower(mut fields: Fields) -> Result<Lowered<()>, ApiError> {
    if fields.integer("n_probs", 0..=i64::from(u32::MAX))?.is_some_and(|count| count > 0) {
        return Err(fields.error("n_probs", "is not supported; use /v1/completions."));
    }
    let prompt = match fields.take("prompt") {
        Some(prompt @ Value::String(_)) => prompt,
        Some(Value::Array(ids)) if !ids.is_empty() && ids.iter().all(Value::is_u64) => ids.into(),
        Some(_) => return Err(fields.error("prompt", "must be one text, or its token ids.")),
        None => return Err(fields.error("prompt", "is required.")),
    };
    // Without a bound llama-server writes on; the default of a completion is 16.
    let most = fields.integer("n_predict", -2..=i64::from(u32::MAX))?.filter(|most| *most > 0);
    let penalty = fields.take("repeat_penalty");
    let bias = fields.take("logit_bias").map(|bias| lower_bias(&fields, bias)).transpose()?;
    let mut lowered = fields.map().clone();
    lowered.insert("prompt".into(), prompt);
    lowered.insert("max_tokens".into(), most.unwrap_or(i64::from(u32::MAX)).into());
    lowered.insert("include_stop_reason".into(), true.into());
    lowered.extend(penalty.map(|penalty| ("repetition_penalty".to_owned(), penalty)));
    lowered.extend(bias.map(|bias| ("logit_bias".to_owned(), bias)));
    let (endpoint, fields) = (Endpoint::Text, fields.replaced(lowered));
    Ok(Lowered { endpoint, fields, ignored: Vec::new(), kept: () })
}

/// Translates a bias in llama-server's form, pairs of a token's id and a number or false.
fn lower_bias(fields: &Fields, bias: Value) -> Result<Value, ApiError> {
    let pairs = match bias {
        Value::Array(pairs) => pairs,
        other => return Ok(other),
    };
    let mut biases = Map::new();
    for pair in pairs {
        let (Some(id), Some(value)) = (pair[0].as_u64(), pair.get(1)) else {
            return Err(fields.error("logit_bias", "must hold pairs of a token's id and a bias."));
        };
        let value = if *value == false { NEVER.into() } else { value.clone() };
        biases.insert(id.to_string(), value);
    }
    Ok(biases.into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: Value) -> Result<Value, ApiError> {
        let lowered = lower(Fields::parse(body.to_string().as_bytes()).unwrap())?;
        Ok(lowered.fields.into_map().into())
    }

    #[test]
    fn a_completion_has_llama_servers_names() {
        let found = read(json!({
            "prompt": "a", "n_predict": 8, "repeat_penalty": 1.1, "cache_prompt": true,
            "logit_bias": [[5, false], [7, 1.5]],
        }));
        let wanted = json!({
            "prompt": "a", "max_tokens": 8, "repetition_penalty": 1.1, "cache_prompt": true,
            "logit_bias": {"5": -100, "7": 1.5}, "include_stop_reason": true,
        });
        assert_eq!(found.unwrap(), wanted);
        let endless = read(json!({"prompt": [1, 2], "n_predict": -1})).unwrap();
        assert_eq!(endless["max_tokens"], u32::MAX);
        for (body, param) in [
            (json!({}), "prompt"),
            (json!({"prompt": ["a", "b"]}), "prompt"),
            (json!({"prompt": "a", "n_probs": 3}), "n_probs"),
            (json!({"prompt": "a", "logit_bias": [5]}), "logit_bias"),
        ] {
            assert_eq!(read(body).unwrap_err().json()["error"]["param"], param);
        }
    }
}
