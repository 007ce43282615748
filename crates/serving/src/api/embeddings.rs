//! `/v1/embeddings`: the parsed request, and the response with its vectors.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use loquent_infer::token::TokenId;
use serde_json::{Value, json};

use super::fields::{Fields, kind_of};
use super::request::BYTES_PER_TOKEN;
use crate::api::parameter_table::{Parameter, ignored, supported};
use crate::error::{ApiError, quoted};
use crate::memory::MemoryCharge;

/// Result of an embedding request.
#[derive(Debug)]
pub struct Embedded {
    /// One vector of length 1 for each input, in their order.
    pub vectors: Vec<Vec<f32>>,
    /// Total tokens of all inputs.
    pub tokens: usize,
}

/// Maximum number of inputs in one request (OpenAI's limit).
pub const MAX_INPUTS: usize = 2048;
/// Maximum number of tokens in all inputs of one request together (OpenAI's limit).
pub const MAX_TOTAL_TOKENS: usize = 300_000;
/// Upper limit for `dimensions`; no model's vectors are longer.
const MAX_DIMENSIONS: i64 = 1 << 20;

/// Support status of each of the endpoint's parameters.
pub const PARAMETERS: &[Parameter] = &[
    supported("input", "a string, token ids, or up to 2,048 of them; 300,000 tokens in all"),
    supported("model", "any name; of several models, or with `--strict-model`, one that is served"),
    supported("dimensions", "the vector's first numbers, normalised again"),
    supported("encoding_format", "float or base64"),
    ignored("user", ""),
];

/// One input to embed.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// Text.
    Text(String),
    /// Token ids, not checked against the vocabulary yet.
    Tokens(Vec<TokenId>),
}

/// Encoding of the vectors in the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// A list of numbers.
    Float,
    /// 32-bit floats, little-endian, in base64: a third of the bytes.
    Base64,
}

/// Handling of a text that has more tokens than the model accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TooLong {
    /// Refuse the request, as OpenAI does.
    Refused,
    /// Embed only its beginning.
    Cut,
}

/// A valid request for embeddings.
#[derive(Debug, Clone)]
pub struct EmbeddingRequest {
    /// The requested model.
    pub model: Option<String>,
    /// At least one and at most [`MAX_INPUTS`] inputs.
    pub inputs: Vec<Input>,
    /// Handling of texts that are too long.
    pub too_long: TooLong,
    /// Length of the returned vectors; `None` for the model's full length.
    pub dimensions: Option<usize>,
    /// Encoding of the vectors in the response.
    pub encoding: Encoding,
    /// Names of parameters that have no effect.
    pub ignored: Vec<String>,
    /// Memory charged for this request, held as long as its inputs are.
    pub charge: Option<Arc<MemoryCharge>>,
}

impl EmbeddingRequest {
    /// Reads a request from the fields of its body.
    ///
    /// # Errors
    /// 400 with the name of the first parameter that is wrong.
    pub fn read(mut fields: Fields) -> Result<Self, ApiError> {
        let inputs = parse_inputs(&mut fields)?;
        let dimensions = take_dimensions(&mut fields)?;
        let encoding = match fields.string("encoding_format")?.as_deref() {
            None | Some("float") => Encoding::Float,
            Some("base64") => Encoding::Base64,
            Some(other) => {
                let wrong = format!("must be \"float\" or \"base64\", not {}.", quoted(other));
                return Err(fields.error("encoding_format", wrong));
            }
        };
        let (model, charge) = (fields.string("model")?, fields.charge());
        let (too_long, ignored) = (TooLong::Refused, fields.rest());
        Ok(Self { model, inputs, too_long, dimensions, encoding, ignored, charge })
    }

    /// Returns the names of ignored parameters to report to the client: those that the API does not
    /// define.
    pub fn unknown(&self) -> Vec<&str> {
        let known = |name: &&str| PARAMETERS.iter().any(|one| one.name == *name);
        self.ignored.iter().map(String::as_str).filter(|name| !known(name)).collect()
    }

    /// Number of tokens in all inputs, estimated from their length before tokenization.
    pub fn estimated_tokens(&self) -> u64 {
        let of_input = |input: &Input| match input {
            Input::Text(text) => text.len().div_ceil(BYTES_PER_TOKEN),
            Input::Tokens(tokens) => tokens.len(),
        };
        self.inputs.iter().map(of_input).sum::<usize>().max(1) as u64
    }
}

/// Takes `dimensions`.
///
/// # Errors
/// 400 if it is not a whole number within the allowed range.
pub fn take_dimensions(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let dimensions = fields.integer("dimensions", 1..=MAX_DIMENSIONS)?;
    Ok(dimensions.map(|count| count as usize))
}

/// Returns a 400 error about input number `index`.
pub fn input_error(index: usize, message: impl AsRef<str>) -> ApiError {
    ApiError::invalid_param("input", format!("'input[{index}]' {}", message.as_ref()))
}

fn parse_inputs(fields: &mut Fields) -> Result<Vec<Input>, ApiError> {
    let wrong = "must be a string, token ids, or an array of these";
    let value = fields.take("input").ok_or_else(|| fields.error("input", "is required."))?;
    let items = match value {
        Value::String(text) => return Ok(vec![text_input(0, text)?]),
        one @ Value::Object(_) => return Ok(vec![text_input(0, text_of(0, one)?)?]),
        Value::Array(items) if !items.is_empty() => items,
        Value::Array(_) => return Err(fields.error("input", "must not be empty.")),
        other => return Err(fields.error("input", format!("{wrong}, not {}.", kind_of(&other)))),
    };
    // A flat array of numbers is one input of token ids, not several inputs.
    if items.iter().all(Value::is_number) {
        return Ok(vec![token_input(0, &items)?]);
    }
    check_count(fields, items.len())?;
    let parse = |(index, item)| match item {
        Value::String(text) => text_input(index, text),
        Value::Array(ids) => token_input(index, &ids),
        one @ Value::Object(_) => text_input(index, text_of(index, one)?),
        other => Err(input_error(index, format!("{wrong}, not {}.", kind_of(&other)))),
    };
    items.into_iter().enumerate().map(parse).collect()
}

/// Returns the text of an input in llama-server's forms: an object with a `prompt_string`, or with
/// a `content` of parts.
fn text_of(index: usize, mut input: Value) -> Result<String, ApiError> {
    let wrong = "must have its text in 'prompt_string', or in parts of 'content' with a 'text'; \
                 other input is not supported.";
    let mut text = match input["prompt_string"].take() {
        Value::String(text) => text,
        Value::Null => String::new(),
        _ => return Err(input_error(index, wrong)),
    };
    // Media beside the text are no input of a text's vector.
    let media = &input["multimodal_data"];
    if media.as_array().map_or(!media.is_null(), |media| !media.is_empty()) {
        return Err(input_error(index, wrong));
    }
    let parts = match input["content"].take() {
        Value::Array(parts) => parts,
        Value::Null => Vec::new(),
        _ => return Err(input_error(index, wrong)),
    };
    for part in parts {
        match (part["type"].as_str(), part["text"].as_str()) {
            (Some("text"), Some(more)) => text.push_str(more),
            _ => return Err(input_error(index, wrong)),
        }
    }
    Ok(text)
}

/// Checks the number of inputs.
///
/// # Errors
/// 400 for more than [`MAX_INPUTS`].
pub fn check_count(fields: &Fields, inputs: usize) -> Result<(), ApiError> {
    if inputs <= MAX_INPUTS {
        return Ok(());
    }
    let many = format!("has {inputs} entries; send at most {MAX_INPUTS} at a time.");
    Err(fields.error("input", many))
}

/// Makes an input of a text.
///
/// # Errors
/// 400 if the text is empty.
pub fn text_input(index: usize, text: String) -> Result<Input, ApiError> {
    match text.is_empty() {
        true => Err(input_error(index, "must not be empty.")),
        false => Ok(Input::Text(text)),
    }
}

fn token_input(index: usize, ids: &[Value]) -> Result<Input, ApiError> {
    if ids.is_empty() {
        return Err(input_error(index, "must not be empty."));
    }
    let id = |value: &Value| {
        let id = value.as_u64().and_then(|id| TokenId::try_from(id).ok());
        id.ok_or_else(|| input_error(index, format!("has {}, which is no token id.", shown(value))))
    };
    ids.iter().map(id).collect::<Result<_, _>>().map(Input::Tokens)
}

fn shown(value: &Value) -> String {
    quoted(&value.to_string()).into_owned()
}

/// Truncates `vector` to its first `dimensions` numbers and scales it to length 1. Returns `None`
/// if it has no direction: all zeros, or numbers that are not finite.
pub fn normalized(mut vector: Vec<f32>, dimensions: Option<usize>) -> Option<Vec<f32>> {
    vector.truncate(dimensions.unwrap_or(vector.len()));
    // In 64 bits, because squares of large 32-bit floats overflow.
    let squares: f64 = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    let length = squares.sqrt();
    if !length.is_finite() || length == 0.0 {
        return None;
    }
    vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
    Some(vector)
}

/// Builds the response's JSON without allocating a `Value` per number.
pub fn response_json(
    model: &str,
    vectors: &[Vec<f32>],
    encoding: Encoding,
    prompt_tokens: usize,
) -> String {
    let mut json = String::from(r#"{"object":"list","data":["#);
    for (index, vector) in vectors.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        json.push_str(&format!(r#"{comma}{{"object":"embedding","index":{index},"embedding":"#));
        push_vector(&mut json, vector, encoding);
        json.push('}');
    }
    let usage = json!({"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens});
    json.push_str(&format!(r#"],"model":{},"usage":{usage}}}"#, Value::from(model)));
    json
}

/// Approximate size of one number in the response, in bytes.
pub const fn number_bytes(encoding: Encoding) -> usize {
    match encoding {
        Encoding::Float => 14,
        Encoding::Base64 => 6,
    }
}

fn push_vector(json: &mut String, vector: &[f32], encoding: Encoding) {
    match encoding {
        // Finite numbers always have a JSON form.
        Encoding::Float => json.push_str(&serde_json::to_string(vector).unwrap_or_default()),
        Encoding::Base64 => {
            let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
            json.push('"');
            STANDARD.encode_string(bytes, json);
            json.push('"');
        }
    }
}

#[cfg(test)]
mod tests {
    //! Inputs in all their forms; vectors of length 1, in both encodings.
    use super::*;

    fn read(body: &Value) -> Result<EmbeddingRequest, ApiError> {
        EmbeddingRequest::read(Fields::parse(body.to_string().as_bytes()).unwrap())
    }

    #[test]
    fn inputs_come_as_text_or_tokens_one_or_many() {
        let inputs = |value: Value| read(&json!({"input": value})).unwrap().inputs;
        assert_eq!(inputs(json!("a")), [Input::Text("a".into())]);
        assert_eq!(inputs(json!([1, 2])), [Input::Tokens(vec![1, 2])]);
        let mixed = [Input::Text("a".into()), Input::Tokens(vec![3])];
        assert_eq!(inputs(json!(["a", [3]])), mixed);
        let parts = json!([{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]);
        for object in [json!({"content": parts}), json!({"prompt_string": "a b"})] {
            let text = Input::Text("a b".into());
            assert_eq!(inputs(object.clone()), std::slice::from_ref(&text));
            assert_eq!(inputs(json!(["c", object])), [Input::Text("c".into()), text]);
        }
    }

    #[test]
    fn a_wrong_input_is_named_by_its_index() {
        for (input, name) in [
            (json!(["a", ""]), "input[1]"),
            (json!(["a", "b", []]), "input[2]"),
            (json!([[1], [-1]]), "input[1]"),
            (json!([[1], {"text": "a"}]), "input[1]"),
            (json!({"content": "a"}), "input[0]"),
            (json!({"content": [{"type": "image_url", "text": "a"}]}), "input[0]"),
            (json!({"prompt_string": "a", "multimodal_data": ["AAAA"]}), "input[0]"),
            (json!([1, "a"]), "input[0]"),
            (json!(""), "input[0]"),
            (json!([]), "'input'"),
            (json!(7), "'input'"),
            (json!(vec!["a"; MAX_INPUTS + 1]), "2048"),
            (Value::Null, "'input'"),
        ] {
            let error = read(&json!({"input": input})).unwrap_err();
            assert!(error.to_string().contains(name), "{input}: {error}");
            assert_eq!((error.status(), &error.json()["error"]["param"]), (400, &json!("input")));
        }
    }

    #[test]
    fn other_parameters_are_checked_and_unknown_ones_named() {
        for (name, value) in [
            ("dimensions", json!(0)),
            ("dimensions", json!("8")),
            ("encoding_format", json!("int8")),
            ("model", json!(1)),
        ] {
            let error = read(&json!({"input": "a", name: value})).unwrap_err();
            assert_eq!(error.json()["error"]["param"], name);
        }
        let request = read(&json!({"input": "a", "user": "u", "dimension": 3})).unwrap();
        assert_eq!(request.unknown(), ["dimension"]);
    }

    #[test]
    fn vectors_have_length_1_whatever_is_cut_off() {
        let near = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6);
        assert!(near(&normalized(vec![3.0, 4.0], None).unwrap(), &[0.6, 0.8]));
        assert!(near(&normalized(vec![3.0, 4.0], Some(1)).unwrap(), &[1.0]));
        let huge = normalized(vec![f32::MAX; 4], None).unwrap();
        assert!(near(&huge, &[0.5; 4]));
        for broken in [vec![0.0, 0.0], vec![f32::NAN], vec![f32::INFINITY], vec![]] {
            assert_eq!(normalized(broken, None), None);
        }
    }

    #[test]
    fn both_encodings_say_the_same() {
        let vectors = vec![vec![0.6, -0.8], vec![1.0, 0.0]];
        let parse = |encoding| -> Value {
            serde_json::from_str(&response_json("a \"model\"", &vectors, encoding, 7)).unwrap()
        };
        let floats = parse(Encoding::Float);
        assert_eq!(floats["data"][0]["embedding"][1].as_f64().unwrap() as f32, -0.8);
        assert_eq!(
            (&floats["model"], &floats["usage"]["total_tokens"]),
            (&json!("a \"model\""), &json!(7))
        );
        let base64 = parse(Encoding::Base64);
        let bytes = STANDARD.decode(base64["data"][0]["embedding"].as_str().unwrap()).unwrap();
        let numbers: Vec<f32> =
            bytes.as_chunks::<4>().0.iter().map(|&four| f32::from_le_bytes(four)).collect();
        assert_eq!(numbers, vectors[0]);
        assert_eq!(base64["data"][1]["index"], 1);
    }
}
