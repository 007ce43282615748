//! `/tokenize` and `/detokenize`: bounded in input and output, and run off the network threads.

use std::fmt::Write;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::{get, post};
use http::Request as HttpRequest;
use loquent_infer::detok::Detokenizer;
use loquent_infer::token::TokenId;
use serde_json::{Value, json};

use crate::app::App;
use crate::json_response::{json_response, json_text};
use crate::models::ModelUse;
use loquent_serving::api::fields::Fields;
use loquent_serving::api::request::{Chat, Prompt};
use loquent_serving::caller::Caller;
use loquent_serving::error::{ApiError, quoted};
use loquent_serving::memory::MemoryCharge;
use loquent_serving::prompt_threads::WorkClass;
use loquent_serving::prompts::Prompts;

/// Maximum bytes of text to tokenize: a long book, and less than a second of one core.
const MAX_TEXT_BYTES: usize = 1 << 20;
/// Maximum bytes of text decoded from tokens.
const MAX_DECODED_BYTES: usize = 8 << 20;

/// Returns the routes, for clients with a key if the server has keys.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/tokenizer_info", get(tokenizer_info))
}

/// A request for a prompt's thread of one model: what it asks, its model and its class of work.
pub struct ModelRequest<T> {
    pub service: ModelUse,
    pub class: WorkClass,
    pub asked: T,
}

impl<T: Send + 'static> ModelRequest<T> {
    /// Receives a request, parses it with `read`, and loads its model if necessary.
    ///
    /// # Errors
    /// Those of [`RequestBodies::receive`](loquent_serving::body::RequestBodies::receive) and of
    /// `read`, 404
    /// for an unknown model, 503 while it loads.
    pub async fn read(
        app: &App,
        request: HttpRequest<Body>,
        read: impl FnOnce(&mut Fields) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<Self, ApiError> {
        let (mut head, body) = request.into_parts();
        let body = app.bodies.receive(&mut head, body).await?;
        let class = WorkClass::of_bytes(&Caller::of(&head).identity, body.arrived_bytes());
        let models = app.models.clone();
        let parse = move |mut fields: Fields| {
            let entry = models.find_for(&mut fields)?.clone();
            read(&mut fields).map(|asked| (entry, asked))
        };
        let (entry, asked) = body.parse(parse).await?;
        Ok(Self { service: entry.use_when_loaded().await?, class, asked })
    }
}

/// Body of a `/tokenize` request.
struct TokenizeRequest {
    prompt: Prompt,
    special: bool,
    /// Memory charge, held as long as the prompt.
    charge: Option<Arc<MemoryCharge>>,
}

/// `POST /tokenize`.
///
/// # Errors
/// 400 for a request without a prompt, or with one that is too long or that the model refuses.
async fn tokenize(
    State(app): State<Arc<App>>,
    request: HttpRequest<Body>,
) -> Result<Response, ApiError> {
    let ModelRequest { service, class, asked } =
        ModelRequest::read(&app, request, TokenizeRequest::read).await?;
    let answer = service.prompts().for_tokenize(class, move |prompts| {
        let TokenizeRequest { prompt, special, charge: _charge } = asked;
        Ok(tokens_json(&prompts.encode(prompt, special)?, prompts.model().context_tokens))
    });
    Ok(json_text(answer.await?))
}

/// `POST /detokenize`.
///
/// # Errors
/// 400 for a request without tokens, with unknown ones, or whose text would be too long.
async fn detokenize(
    State(app): State<Arc<App>>,
    request: HttpRequest<Body>,
) -> Result<Response, ApiError> {
    let ModelRequest { service, class, asked: tokens } =
        ModelRequest::read(&app, request, read_tokens).await?;
    let answer = service.prompts().for_tokenize(class, move |prompts| {
        let text = serde_json::to_string(&decode(prompts, &tokens)?);
        let text = text.map_err(|error| ApiError::internal(error.to_string()))?;
        // By vLLM's name, and by llama-server's.
        Ok(format!("{{\"prompt\":{text},\"content\":{text}}}"))
    });
    Ok(json_text(answer.await?))
}

/// `GET /tokenizer_info`, from vLLM: properties of the tokenizer that clients need besides
/// `/tokenize`. lm-eval takes it as the sign that it needs no local tokenizer.
///
/// # Errors
/// 503 while the model loads.
async fn tokenizer_info(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let service = app.models.first()?.use_when_loaded().await?;
    let model = service.model();
    let token = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    Ok(json_response(&json!({
        "bos_token": token(&model.chat.bos),
        "eos_token": token(&model.chat.eos),
        "model_max_length": model.context_tokens,
    })))
}

impl TokenizeRequest {
    fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let special = fields.boolean("add_special_tokens")?.unwrap_or(true);
        let prompt = match (fields.string("prompt")?, fields.string("content")?) {
            (Some(text), _) | (None, Some(text)) if text.len() > MAX_TEXT_BYTES => {
                let message = format!("is longer than {MAX_TEXT_BYTES} bytes. Send it in parts.");
                return Err(fields.error("prompt", message));
            }
            (Some(text), _) | (None, Some(text)) => Prompt::Text(text),
            (None, None) if !fields.map().contains_key("messages") => {
                let message = "Set 'prompt' (text) or 'messages' (a conversation).";
                return Err(ApiError::invalid_param("prompt", message));
            }
            (None, None) => Prompt::Chat(Box::new(Chat::parse(fields)?)),
        };
        Ok(Self { prompt, special, charge: fields.charge() })
    }
}

/// Writes the response of `/tokenize`, without a `Value` for each token.
fn tokens_json(tokens: &[TokenId], context_tokens: u32) -> String {
    let mut json = String::with_capacity(64 + 7 * tokens.len());
    let count = tokens.len();
    let _ = write!(json, r#"{{"count":{count},"max_model_len":{context_tokens},"tokens":["#);
    for (index, token) in tokens.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        let _ = write!(json, "{comma}{token}");
    }
    json.push_str("]}");
    json
}

fn read_tokens(fields: &mut Fields) -> Result<Vec<TokenId>, ApiError> {
    let ids = fields.array("tokens")?.ok_or_else(|| fields.error("tokens", "is required."))?;
    let id = |value: &Value| value.as_u64().and_then(|id| TokenId::try_from(id).ok());
    let wrong = |value: &Value| not_a_token(&value.to_string());
    ids.iter().map(|value| id(value).ok_or_else(|| wrong(value))).collect()
}

fn not_a_token(id: &str) -> ApiError {
    let message = format!("'tokens' holds {}, which is not a token id of this model.", quoted(id));
    ApiError::invalid_param("tokens", message)
}

fn decode(prompts: &Prompts, tokens: &[TokenId]) -> Result<String, ApiError> {
    let size = prompts.model().vocab.size();
    if let Some(unknown) = tokens.iter().find(|&&id| id as usize >= size) {
        return Err(not_a_token(&unknown.to_string()));
    }
    let (mut detok, mut text) = (Detokenizer::default(), String::new());
    for &token in tokens {
        detok.push(prompts.model().vocab.piece(token), &mut text);
        if text.len() > MAX_DECODED_BYTES {
            let message = format!("'tokens' are more than {MAX_DECODED_BYTES} bytes of text.");
            return Err(ApiError::invalid_param("tokens", message));
        }
    }
    detok.finish(&mut text);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_written_as_json() {
        for tokens in [vec![], vec![7], vec![0, u32::MAX, 12]] {
            let json: Value = serde_json::from_str(&tokens_json(&tokens, 2048)).unwrap();
            let expected = json!({
                "count": tokens.len(), "max_model_len": 2048, "tokens": tokens,
            });
            assert_eq!(json, expected);
        }
    }
}
