//! Parameters that `/completion` and `/infill` share, under llama-server's names.

use serde_json::{Map, Value};

use loquent_infer::token::TokenId;
use loquent_serving::api::fields::Fields;
use loquent_serving::api::request::{MAX_BIASES, MAX_TOP_LOGPROBS};
use loquent_serving::error::ApiError;

/// Bias of a token that is forbidden (`[id, false]`).
const NEVER: f64 = -100.0;
/// Maximum length of a text with a bias, in bytes.
const MAX_BIAS_TEXT_BYTES: usize = 256;
/// Maximum number of members that a request may choose, and maximum bytes of the path of each.
const MAX_RESPONSE_FIELDS: usize = 64;
const MAX_PATH_BYTES: usize = 256;

/// Parts of a request that a completion's fields have no place for.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NativeRequest {
    /// True if a whole answer has the ids of its tokens. Streams always have them.
    pub return_tokens: bool,
    /// Number of alternatives to each token in `completion_probabilities`; 0 for no such member.
    pub probabilities: u8,
    /// Paths of the members to return; empty for all.
    pub response_fields: Vec<String>,
    /// Texts with the values added to the logits of their tokens.
    pub text_bias: Vec<(String, f32)>,
    /// True if the prompt is only computed, without a token of an answer (`n_predict: 0`).
    pub only_prompt: bool,
}

/// Translates the shared parameters in `fields` to a completion's.
///
/// # Errors
/// 400 with the name of the wrong field.
pub fn lower_shared(fields: &mut Fields) -> Result<NativeRequest, ApiError> {
    let predict = fields.integer("n_predict", -2..=i64::from(u32::MAX))?;
    // Without a bound llama-server writes on; the default of a completion is 16.
    let most = predict.map_or(u32::MAX, |most| u32::try_from(most).unwrap_or(u32::MAX));
    fields.put("max_tokens", most.max(1).into());
    fields.put("include_stop_reason", true.into());
    if let Some(penalty) = fields.take("repeat_penalty") {
        fields.put("repetition_penalty", penalty);
    }
    lower_seed(fields)?;
    // A prompt alone has no tokens that could have them.
    let probabilities = fields.integer("n_probs", 0..=MAX_TOP_LOGPROBS)?.unwrap_or(0) as u8;
    if probabilities > 0 && most > 0 {
        fields.put("logprobs", probabilities.into());
    }
    if fields.boolean("post_sampling_probs")?.unwrap_or(false) {
        let message = "is not supported: probabilities are those before sampling.";
        return Err(fields.error("post_sampling_probs", message));
    }
    Ok(NativeRequest {
        return_tokens: fields.boolean("return_tokens")?.unwrap_or(false),
        probabilities,
        response_fields: parse_response_fields(fields)?,
        text_bias: lower_bias(fields)?,
        only_prompt: most == 0,
    })
}

/// Drops a seed that stands for a random one: -1, which is also the largest number of 32 bits.
fn lower_seed(fields: &mut Fields) -> Result<(), ApiError> {
    let seed = fields.integer("seed", i64::MIN..=i64::MAX)?;
    if let Some(seed) = seed.filter(|seed| ![-1, i64::from(u32::MAX)].contains(seed)) {
        fields.put("seed", seed.into());
    }
    Ok(())
}

fn parse_response_fields(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let paths = fields.array("response_fields")?.unwrap_or_default();
    if paths.len() > MAX_RESPONSE_FIELDS {
        let message = format!("has more than {MAX_RESPONSE_FIELDS} entries.");
        return Err(fields.error("response_fields", message));
    }
    let parse = |path| match path {
        Value::String(path) if path.len() <= MAX_PATH_BYTES => Ok(path),
        _ => {
            let message = format!("must hold names of at most {MAX_PATH_BYTES} bytes.");
            Err(fields.error("response_fields", message))
        }
    };
    paths.into_iter().map(parse).collect()
}

/// Translates the biases of token ids, and returns those of texts. A pair begins with an id or a
/// text; a member of an object is named by either.
fn lower_bias(fields: &mut Fields) -> Result<Vec<(String, f32)>, ApiError> {
    let wrong = "must hold pairs of a token's id or text, and a bias from -100 to 100 or false";
    let Some(biases) = fields.take("logit_bias") else { return Ok(Vec::new()) };
    let entries = biases.as_array().map(Vec::len).or(biases.as_object().map(Map::len));
    if entries.is_some_and(|entries| entries > MAX_BIASES) {
        return Err(fields.error("logit_bias", format!("has more than {MAX_BIASES} entries.")));
    }
    let entries = entries_of(biases);
    let entries = entries.ok_or_else(|| fields.error("logit_bias", format!("{wrong}.")))?;
    let (mut ids, mut texts) = (Map::new(), Vec::new());
    for (token, bias) in entries {
        let bias = if bias == false { Some(NEVER) } else { bias.as_f64() };
        match (token, bias.filter(|bias| (-100.0..=100.0).contains(bias))) {
            (Value::Number(id), Some(bias)) if id.is_u64() => {
                ids.insert(id.to_string(), bias.into());
            }
            (Value::String(text), Some(bias))
                if (1..=MAX_BIAS_TEXT_BYTES).contains(&text.len()) =>
            {
                texts.push((text, bias as f32));
            }
            _ => return Err(fields.error("logit_bias", format!("{wrong}."))),
        }
    }
    fields.put("logit_bias", ids.into());
    Ok(texts)
}

/// Returns the biases, each behind the token's id or text; `None` for another form.
fn entries_of(biases: Value) -> Option<Vec<(Value, Value)>> {
    match biases {
        Value::Array(pairs) => {
            let pair = |pair: Value| match pair {
                Value::Array(mut two) if two.len() == 2 => {
                    let bias = two.pop()?;
                    Some((two.pop()?, bias))
                }
                _ => None,
            };
            pairs.into_iter().map(pair).collect()
        }
        Value::Object(members) => {
            // In an object, and only there, an id is written as a text.
            let id = |name: &str| name.parse::<TokenId>().ok().map(Value::from);
            let entry = |(name, bias): (String, Value)| (id(&name).unwrap_or(name.into()), bias);
            Some(members.into_iter().map(entry).collect())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: &Value) -> Result<(NativeRequest, Value), ApiError> {
        let mut fields = Fields::parse(body.to_string().as_bytes()).unwrap();
        lower_shared(&mut fields).map(|native| (native, fields.into_map().into()))
    }

    #[test]
    fn names_are_those_of_a_completion() {
        let (native, fields) = read(&json!({
            "n_predict": 8, "repeat_penalty": 1.1, "seed": -1, "n_probs": 3, "return_tokens": true,
            "response_fields": ["content", "generation_settings/seed"],
        }))
        .unwrap();
        let wanted = json!({
            "max_tokens": 8, "repetition_penalty": 1.1, "logprobs": 3, "include_stop_reason": true,
        });
        assert_eq!(fields, wanted);
        assert_eq!((native.probabilities, native.return_tokens), (3, true));
        assert_eq!(native.response_fields, ["content", "generation_settings/seed"]);
        for (body, most) in [
            (json!({}), u32::MAX),
            (json!({"n_predict": -1}), u32::MAX),
            (json!({"n_predict": 0, "n_probs": 2}), 1),
        ] {
            let (native, fields) = read(&body).unwrap();
            assert_eq!((&fields["max_tokens"], &fields["logprobs"]), (&json!(most), &Value::Null));
            assert_eq!(native.only_prompt, most == 1, "{body}");
        }
    }

    #[test]
    fn seeds_that_stand_for_a_random_one_are_left_out() {
        for (seed, kept) in [
            (json!(7), json!(7)),
            (json!(-2), json!(-2)),
            (json!(-1), Value::Null),
            (json!(u32::MAX), Value::Null),
        ] {
            assert_eq!(read(&json!({"seed": seed})).unwrap().1["seed"], kept, "{seed}");
        }
    }

    #[test]
    fn biases_have_ids_or_texts() {
        let bias = |bias: Value| {
            let (native, fields) = read(&json!({"logit_bias": bias})).unwrap();
            (fields["logit_bias"].clone(), native.text_bias)
        };
        let list = json!([[5, false], [7, 1.5], [" the", -100], ["7", 1]]);
        let texts = vec![(" the".to_owned(), -100.0), ("7".to_owned(), 1.0)];
        assert_eq!(bias(list), (json!({"5": -100.0, "7": 1.5}), texts));
        let object = json!({"5": false, " the": 2});
        assert_eq!(bias(object), (json!({"5": -100.0}), vec![(" the".to_owned(), 2.0)]));
    }

    #[test]
    fn wrong_values_are_named() {
        let long = "x".repeat(257);
        let many = |one: Value, count: usize| vec![one; count];
        for (body, param) in [
            (json!({"n_predict": -3}), "n_predict"),
            (json!({"n_probs": 21}), "n_probs"),
            (json!({"post_sampling_probs": true}), "post_sampling_probs"),
            (json!({"return_tokens": 1}), "return_tokens"),
            (json!({"response_fields": "content"}), "response_fields"),
            (json!({"response_fields": [1]}), "response_fields"),
            (json!({"response_fields": [long]}), "response_fields"),
            (json!({"response_fields": many(json!("a"), 65)}), "response_fields"),
            (json!({"logit_bias": 5}), "logit_bias"),
            (json!({"logit_bias": [5]}), "logit_bias"),
            (json!({"logit_bias": [[5, true]]}), "logit_bias"),
            (json!({"logit_bias": [[5, 101]]}), "logit_bias"),
            (json!({"logit_bias": [[-5, 1]]}), "logit_bias"),
            (json!({"logit_bias": [["", 1]]}), "logit_bias"),
            (json!({"logit_bias": [[long, 1]]}), "logit_bias"),
            (json!({"logit_bias": many(json!([1, 1]), 1025)}), "logit_bias"),
        ] {
            assert_eq!(read(&body).unwrap_err().json()["error"]["param"], param, "{body}");
        }
    }
}
