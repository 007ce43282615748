//! `/tokenize` and `/detokenize`, with the members of vLLM and of llama-server, and the count of a
//! conversation's tokens: bounded in input and output, and run off the network threads.

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
use loquent_infer::vocab::{Encode, Vocab};
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
/// The same if each token comes with its text, which makes the answer several times as long.
const MAX_PIECES_BYTES: usize = MAX_TEXT_BYTES / 4;
/// Maximum bytes of text decoded from tokens.
const MAX_DECODED_BYTES: usize = 8 << 20;

/// Returns the routes, for clients with a key if the server has keys.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/tokenizer_info", get(tokenizer_info))
        .route("/v1/chat/completions/input_tokens", post(chat_tokens))
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
    how: Encode,
    /// True if each token comes with its text.
    pieces: bool,
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
        let TokenizeRequest { prompt, how, pieces, charge: _charge } = asked;
        let vocab = pieces.then_some(&*prompts.model().vocab);
        let tokens = prompts.encode(prompt, how)?;
        Ok(tokens_json(&tokens, vocab, prompts.model().context_tokens))
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
        // llama-server's name for the text stands for llama-server's defaults.
        let has = |name: &str| fields.map().contains_key(name);
        let (name, add_bos) = match has("content") && !has("prompt") {
            true => ("content", fields.boolean("add_special")?.unwrap_or(false)),
            false => ("prompt", fields.boolean("add_special_tokens")?.unwrap_or(true)),
        };
        let parse_special = match name {
            "content" => fields.boolean("parse_special")?.unwrap_or(true),
            _ => add_bos,
        };
        let pieces = fields.boolean("with_pieces")?.unwrap_or(false);
        let most = if pieces { MAX_PIECES_BYTES } else { MAX_TEXT_BYTES };
        let prompt = match fields.string(name)? {
            Some(text) if text.len() > most => {
                let message = format!("is longer than {most} bytes. Send it in parts.");
                return Err(fields.error(name, message));
            }
            Some(text) => Prompt::Text(text),
            None if !fields.map().contains_key("messages") => {
                let message = "Set 'prompt' or 'content' (text), or 'messages' (a conversation).";
                return Err(ApiError::invalid_param("prompt", message));
            }
            None => Prompt::Chat(Box::new(Chat::parse(fields)?)),
        };
        Ok(Self { prompt, how: Encode { add_bos, parse_special }, pieces, charge: fields.charge() })
    }
}

/// `POST /v1/chat/completions/input_tokens`, from llama-server: counts the tokens of a
/// conversation, in the form of OpenAI's count for the Responses API.
///
/// # Errors
/// 400 for a conversation that the model's template refuses, 404 with an upstream server.
async fn chat_tokens(
    State(app): State<Arc<App>>,
    request: HttpRequest<Body>,
) -> Result<Response, ApiError> {
    let read = |fields: &mut Fields| Ok((Chat::parse(fields)?, fields.charge()));
    let ModelRequest { service, class, asked } = ModelRequest::read(&app, request, read).await?;
    if service.upstream().is_some() {
        return Err(ApiError::not_offered("Only the upstream server can count its tokens."));
    }
    let (mut chat, charge) = asked;
    let counted = service.prompts().for_tokenize(class, move |prompts| {
        // Held as long as the conversation.
        let _charge = charge;
        prompts.model().give_reasoning(&mut chat);
        let prompt = Prompt::Chat(Box::new(chat));
        prompts.encode(prompt, Encode::PROMPT).map(|tokens| tokens.len())
    });
    let counted = json!({"object": "response.input_tokens", "input_tokens": counted.await?});
    Ok(json_response(&counted))
}

/// Writes the response of `/tokenize`, without a `Value` for each token. `vocab` is given if the
/// tokens come with their texts, as llama-server's do.
fn tokens_json(tokens: &[TokenId], vocab: Option<&dyn Vocab>, context_tokens: u32) -> String {
    let mut json = String::with_capacity(64 + 7 * tokens.len());
    let count = tokens.len();
    let _ = write!(json, r#"{{"count":{count},"max_model_len":{context_tokens},"tokens":["#);
    for (index, token) in tokens.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        let _ = match vocab {
            None => write!(json, "{comma}{token}"),
            Some(vocab) => {
                write!(json, r#"{comma}{{"id":{token},"piece":{}}}"#, piece_json(vocab, *token))
            }
        };
    }
    json.push_str("]}");
    json
}

/// Returns the text of a token; its bytes if they are no whole characters.
fn piece_json(vocab: &dyn Vocab, token: TokenId) -> Value {
    let piece = match vocab.piece(token) {
        [] => vocab.name(token),
        piece => piece,
    };
    std::str::from_utf8(piece).map_or_else(|_| json!(piece), Value::from)
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
    use loquent_infer::sim_vocab::{SimVocab, TURN_END};

    use super::*;

    #[test]
    fn tokens_are_written_as_json() {
        for tokens in [vec![], vec![7], vec![0, u32::MAX, 12]] {
            let json: Value = serde_json::from_str(&tokens_json(&tokens, None, 2048)).unwrap();
            let expected = json!({
                "count": tokens.len(), "max_model_len": 2048, "tokens": tokens,
            });
            assert_eq!(json, expected);
        }
    }

    #[test]
    fn pieces_that_are_no_whole_characters_are_bytes() {
        let text = tokens_json(&[0xc3, 97, TURN_END], Some(&SimVocab), 9);
        let json: Value = serde_json::from_str(&text).unwrap();
        let expected = json!([
            {"id": 0xc3, "piece": [0xc3]},
            {"id": 97, "piece": "a"},
            {"id": TURN_END, "piece": "<|im_end|>"},
        ]);
        assert_eq!(json["tokens"], expected);
    }

    #[test]
    fn the_name_of_the_text_decides_the_defaults() {
        let read = |body: Value| {
            TokenizeRequest::read(&mut Fields::parse(body.to_string().as_bytes()).unwrap())
        };
        for (body, add_bos, parse_special) in [
            (json!({"prompt": "a"}), true, true),
            (json!({"prompt": "a", "add_special_tokens": false}), false, false),
            (json!({"prompt": "a", "content": "b"}), true, true),
            (json!({"content": "a"}), false, true),
            (json!({"content": "a", "add_special": true, "parse_special": false}), true, false),
        ] {
            let found = read(body.clone()).unwrap();
            assert_eq!(found.how, Encode { add_bos, parse_special }, "{body}");
            assert!(!found.pieces);
        }
        let text = "a".repeat(MAX_PIECES_BYTES + 1);
        assert!(read(json!({"content": text})).is_ok());
        let error = read(json!({"content": text, "with_pieces": true})).err().unwrap();
        assert_eq!(error.json()["error"]["param"], "content");
    }
}
