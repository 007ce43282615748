//! Ollama's embeddings: `/api/embed`, and `/api/embeddings`, its older form for a single text.

use serde_json::Value;

use super::request::without_tag;
use loquent_serving::api::embeddings::Embedded;
use loquent_serving::api::embeddings::{
    EmbeddingRequest, Encoding, Input, TooLong, check_count, input_error, take_dimensions,
    text_input,
};
use loquent_serving::api::fields::{Fields, kind_of};
use loquent_serving::api::parameter_table::{Parameter, ignored, sift, supported};
use loquent_serving::error::ApiError;

/// Support status of each parameter of `/api/embed`.
pub const EMBED_PARAMETERS: &[Parameter] = &[
    supported("model", ""),
    supported("input", "a text, or up to 2,048 of them; without any there are no vectors"),
    supported("truncate", "on unless it is false: of a text that is too long, the beginning"),
    supported("dimensions", "the vector's first numbers, normalised again"),
    ignored("options", "the operator chooses the context: --context"),
    ignored("keep_alive", "the operator says how long the model stays"),
];

/// Support status of each parameter of `/api/embeddings`.
pub const EMBEDDINGS_PARAMETERS: &[Parameter] = &[
    supported("model", ""),
    supported("prompt", "one text, of which the beginning counts if it is too long"),
    ignored("options", "the operator chooses the context: --context"),
    ignored("keep_alive", "the operator says how long the model stays"),
];

/// Reads a request to `/api/embed`; returns it with the model's name as the client gave it.
///
/// # Errors
/// 400 with the name of the first invalid parameter.
pub fn read_embed(mut fields: Fields) -> Result<(EmbeddingRequest, String), ApiError> {
    let ignored = sift(&mut fields, EMBED_PARAMETERS)?;
    let texts = match fields.take("input") {
        None => Vec::new(),
        Some(Value::String(text)) if text.is_empty() => Vec::new(),
        Some(Value::String(text)) => vec![Value::String(text)],
        Some(Value::Array(texts)) => texts,
        Some(other) => {
            let wrong = format!("must be a text or an array of texts, not {}.", kind_of(&other));
            return Err(fields.error("input", wrong));
        }
    };
    check_count(&fields, texts.len())?;
    let text = |(index, text)| match text {
        Value::String(text) => text_input(index, text),
        other => Err(input_error(index, format!("must be a text, not {}.", kind_of(&other)))),
    };
    let inputs = texts.into_iter().enumerate().map(text).collect::<Result<_, _>>()?;
    let too_long = match fields.boolean("truncate")? {
        Some(false) => TooLong::Refused,
        None | Some(true) => TooLong::Cut,
    };
    let dimensions = take_dimensions(&mut fields)?;
    finish(fields, EmbeddingRequest { inputs, too_long, dimensions, ..empty(ignored) })
}

/// Reads a request to `/api/embeddings`; returns it with the model's name as the client gave it.
///
/// # Errors
/// 400 with the name of the first invalid parameter.
pub fn read_embeddings(mut fields: Fields) -> Result<(EmbeddingRequest, String), ApiError> {
    let ignored = sift(&mut fields, EMBEDDINGS_PARAMETERS)?;
    let prompt = fields.string("prompt")?.filter(|prompt| !prompt.is_empty());
    let inputs = prompt.map(Input::Text).into_iter().collect();
    finish(fields, EmbeddingRequest { inputs, ..empty(ignored) })
}

fn empty(ignored: Vec<String>) -> EmbeddingRequest {
    EmbeddingRequest {
        model: None,
        inputs: Vec::new(),
        too_long: TooLong::Cut,
        dimensions: None,
        encoding: Encoding::Float,
        ignored,
        charge: None,
    }
}

fn finish(
    mut fields: Fields,
    request: EmbeddingRequest,
) -> Result<(EmbeddingRequest, String), ApiError> {
    let model = fields.string("model")?.ok_or_else(|| fields.error("model", "is required."))?;
    let asked = Some(without_tag(&model).to_owned());
    Ok((EmbeddingRequest { model: asked, charge: fields.charge(), ..request }, model))
}

/// Returns the response of `/api/embed`, which took `nanos`, without allocating a `Value` per
/// number.
pub fn embed_json(model: &str, embedded: &Embedded, nanos: u64) -> String {
    let model = Value::from(model);
    // Finite numbers always have a JSON form.
    let vectors = serde_json::to_string(&embedded.vectors).unwrap_or_default();
    format!(
        r#"{{"model":{model},"embeddings":{vectors},"total_duration":{nanos},"load_duration":0,"prompt_eval_count":{}}}"#,
        embedded.tokens
    )
}

/// Returns the response of `/api/embeddings`: one vector, or an empty one if there was no text.
pub fn embeddings_json(embedded: &Embedded) -> String {
    let only = embedded.vectors.first().map_or(&[][..], Vec::as_slice);
    let vector = serde_json::to_string(only).unwrap_or_default();
    format!(r#"{{"embedding":{vector}}}"#)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: &Value) -> Result<EmbeddingRequest, ApiError> {
        let fields = Fields::parse(body.to_string().as_bytes()).unwrap();
        read_embed(fields).map(|(request, _)| request)
    }

    #[test]
    fn texts_come_alone_or_in_a_list_and_lose_their_end_unless_that_is_declined() {
        let one = read(&json!({"model": "m:latest", "input": "a"})).unwrap();
        assert_eq!((one.inputs, one.too_long), (vec![Input::Text("a".into())], TooLong::Cut));
        assert_eq!(one.model.as_deref(), Some("m"));
        let two = json!({"model": "m", "input": ["a", "b"], "truncate": false, "keep_alive": 1});
        let two = read(&two).unwrap();
        assert_eq!((two.inputs.len(), two.too_long), (2, TooLong::Refused));
        assert_eq!(two.ignored, ["keep_alive"]);
        for none in [json!(null), json!(""), json!([])] {
            assert!(read(&json!({"model": "m", "input": none})).unwrap().inputs.is_empty());
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (body, named) in [
            (json!({"input": "a"}), "'model'"),
            (json!({"model": "m", "input": 1}), "'input'"),
            (json!({"model": "m", "input": ["a", 1]}), "input[1]"),
            (json!({"model": "m", "input": ["a", ""]}), "input[1]"),
            (json!({"model": "m", "input": vec!["a"; 2049]}), "2049"),
            (json!({"model": "m", "input": "a", "truncate": 1}), "'truncate'"),
            (json!({"model": "m", "input": "a", "dimensions": 0}), "'dimensions'"),
        ] {
            let error = read(&body).unwrap_err().to_string();
            assert!(error.contains(named), "{body}: {error}");
        }
    }
}
