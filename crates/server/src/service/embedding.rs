//! Embeddings from request to vectors: admit, tokenize, submit to the engine, normalise.

use loquent_infer::embedding::EmbedderCapacity;
use loquent_infer::runner::RunError;
use loquent_infer::token::TokenId;
use loquent_infer::vocab::EncodeError;
use tokio::sync::oneshot;

use super::{Backend, Service};
use loquent_serving::admission::{Permit, refused};
use loquent_serving::api::embeddings::{
    Embedded, EmbeddingRequest, Input, MAX_TOTAL_TOKENS, TooLong, input_error, normalized,
};
use loquent_serving::api::request::BYTES_PER_TOKEN;
use loquent_serving::engine_thread::EmbeddingOrder;
use loquent_serving::error::ApiError;
use loquent_serving::identity::Identity;
use loquent_serving::memory::SMALL_BYTES;
use loquent_serving::model::ServedModel;
use loquent_serving::output::OutputHandle;
use loquent_serving::prompt_threads::WorkClass;

/// Returns the embedding capacity of the model.
///
/// # Errors
/// 400 if the model has no embeddings.
pub fn capacity(service: &Service) -> Result<EmbedderCapacity, ApiError> {
    embedding_engine(service).map(|(_, capacity)| capacity)
}

fn embedding_engine(service: &Service) -> Result<(&OutputHandle, EmbedderCapacity), ApiError> {
    // Either way it is said what would do instead.
    let name = &service.model().name;
    let why = match &service.backend {
        Backend::Engine { output, abilities, .. } => match abilities.embeds {
            Some(capacity) => return Ok((output, capacity)),
            None => format!(
                "The model '{name}' does not support embeddings. Serve an embedding model, or \
                 start the server with --embeddings mean."
            ),
        },
        // Those of OpenAI's API pass through and never come here.
        Backend::Upstream(_) => "An upstream server's embeddings are not available in this \
                                 API. Use POST /v1/embeddings."
            .to_owned(),
    };
    Err(ApiError::invalid_param("model", why))
}

/// Embeds the inputs of `request` from `identity`.
///
/// # Errors
/// 400 for inputs that the model cannot take, by their index, or a model without embeddings;
/// 404 for another model under `strict_model`, 429 if the limits are reached, 503 while
/// draining.
pub async fn embed(
    service: &Service,
    request: EmbeddingRequest,
    identity: &Identity,
) -> Result<Embedded, ApiError> {
    service.health.check_open()?;
    let (output, capacity) = embedding_engine(service)?;
    service.check_model(request.model.as_deref())?;
    let dimensions = check_dimensions(request.dimensions, capacity)?;
    if request.inputs.is_empty() {
        // Ollama's clients load a model so.
        return Ok(Embedded { vectors: Vec::new(), tokens: 0 });
    }
    // Before tokenizing: a server at its limit must refuse without spending time on it.
    let mut permits = service.admit(identity, 1, request.estimated_tokens())?;
    let permit = permits.pop().ok_or_else(|| ApiError::internal("Nothing was admitted."))?;
    let (inputs, mut permit) =
        tokenize_inputs(service, request, capacity, identity, permit).await?;
    let tokens: usize = inputs.iter().map(Vec::len).sum();
    permit.enqueue(tokens).map_err(refused)?;
    permit.charge_prompt(tokens as u64);
    let (reply, vectors) = oneshot::channel();
    output.embed(EmbeddingOrder { tenant: identity.scheduled().id, inputs, reply });
    // Only after the order has left: an engine at rest waits for requests on their way.
    permit.arrive();
    permit.begin();
    // Whoever hangs up drops this future, and with it the other end of `reply`.
    let vectors = vectors
        .await
        .map_err(|_| ApiError::internal("The engine has stopped. Restart the server."))?;
    let vectors = vectors.map_err(|error: RunError| ApiError::internal(error.to_string()))?;
    // Not on the engine thread, which has more to do, nor, if they are many, on this one.
    let bytes: usize = vectors.iter().map(|vector| size_of_val(&**vector)).sum();
    let is_large = bytes > SMALL_BYTES;
    let normalize = move || all_normalized(vectors, dimensions);
    let vectors = match is_large {
        true => service.prompts.on_thread(WorkClass::of_bytes(identity, bytes), normalize).await?,
        false => normalize()?,
    };
    Ok(Embedded { vectors, tokens })
}

/// Returns the tokens of the inputs. The permit moves with the work: a client that hangs up
/// frees no room before the work ends.
async fn tokenize_inputs(
    service: &Service,
    request: EmbeddingRequest,
    capacity: EmbedderCapacity,
    identity: &Identity,
    permit: Permit,
) -> Result<(Vec<Vec<TokenId>>, Permit), ApiError> {
    let model = service.model().clone();
    let bytes = request.estimated_tokens() as usize * BYTES_PER_TOKEN;
    let class = WorkClass::of_bytes(identity, bytes);
    let work = move || {
        let EmbeddingRequest { inputs, too_long, charge: _charge, .. } = request;
        let (mut tokenized, mut total) = (Vec::with_capacity(inputs.len()), 0);
        let most = capacity.input_tokens as usize;
        for (index, input) in inputs.into_iter().enumerate() {
            let tokens = match too_long {
                TooLong::Refused => tokenize_input(&model, index, input, most)?,
                TooLong::Cut => tokenize_cut(&model, index, input, most)?,
            };
            // Checked as they come, so that no more is tokenized than will be computed.
            total += tokens.len();
            if total > MAX_TOTAL_TOKENS {
                let many = format!(
                    "brings the inputs over {MAX_TOTAL_TOKENS} tokens in total. Send fewer \
                     at a time."
                );
                return Err(input_error(index, many));
            }
            tokenized.push(tokens);
        }
        Ok((tokenized, permit))
    };
    service.prompts.on_thread(class, work).await
}

/// Tokenizes like [`tokenize_input`], but cuts off the end of a text that is too long.
fn tokenize_cut(
    model: &ServedModel,
    index: usize,
    input: Input,
    most: usize,
) -> Result<Vec<TokenId>, ApiError> {
    let Input::Text(mut text) = input else { return tokenize_input(model, index, input, most) };
    let vocab = &model.vocab;
    // What cannot belong to the first tokens need not be tokenized.
    if let Some(bytes) = vocab.longest_token_bytes() {
        text.truncate(text.floor_char_boundary(bytes.saturating_mul(most)));
    }
    let mut tokens = encode_input(model, index, &text)?;
    if tokens.len() > most {
        let end = vocab.input_end();
        tokens.truncate(most - end.iter().len());
        tokens.extend(end);
    }
    Ok(tokens)
}

fn encode_input(model: &ServedModel, index: usize, text: &str) -> Result<Vec<TokenId>, ApiError> {
    let refused = |error: EncodeError| input_error(index, format!("fails: {error}."));
    model.vocab.encode_input(text).map_err(refused)
}

fn tokenize_input(
    model: &ServedModel,
    index: usize,
    input: Input,
    most: usize,
) -> Result<Vec<TokenId>, ApiError> {
    let vocab = &model.vocab;
    let tokens = match input {
        Input::Text(text) => {
            // Known to be too long without being tokenized.
            let longest = vocab.longest_token_bytes();
            if longest.is_some_and(|bytes| text.len() > bytes.saturating_mul(most)) {
                let long = format!("is longer than the model's {most} tokens.");
                return Err(input_error(index, long));
            }
            encode_input(model, index, &text)?
        }
        Input::Tokens(tokens) => {
            let size = vocab.size();
            if let Some(bad) = tokens.iter().find(|&&token| token as usize >= size) {
                let outside = format!("has {bad}, outside the vocabulary of {size} tokens.");
                return Err(input_error(index, outside));
            }
            tokens
        }
    };
    match tokens.len() {
        0 => Err(input_error(index, "must not be empty.")),
        len if len > most => {
            let long = format!("has {len} tokens; the model takes at most {most}.");
            Err(input_error(index, long))
        }
        _ => Ok(tokens),
    }
}

/// Normalizes the vectors to length 1, cut to `dimensions`.
fn all_normalized(
    vectors: Vec<Vec<f32>>,
    dimensions: Option<usize>,
) -> Result<Vec<Vec<f32>>, ApiError> {
    let normalize = |(index, vector): (usize, Vec<f32>)| {
        let is_cut = is_cut_to_zeros(&vector, dimensions);
        normalized(vector, dimensions).ok_or_else(|| no_direction(index, is_cut))
    };
    vectors.into_iter().enumerate().map(normalize).collect()
}

/// Returns the error for a vector without a direction; `is_cut` says that the request has cut it
/// off.
fn no_direction(index: usize, is_cut: bool) -> ApiError {
    if is_cut {
        let zeros = format!(
            "'dimensions' leaves only zeros of the vector of input[{index}]. Ask for more."
        );
        return ApiError::invalid_param("dimensions", zeros);
    }
    ApiError::internal(format!("The model returned no vector for input[{index}]."))
}

/// Returns true if a vector has a direction which its first `dimensions` numbers do not have.
fn is_cut_to_zeros(vector: &[f32], dimensions: Option<usize>) -> bool {
    let is_zero = |&x: &f32| x == 0.0;
    dimensions
        .and_then(|most| vector.split_at_checked(most))
        .is_some_and(|(first, rest)| first.iter().all(is_zero) && !rest.iter().all(is_zero))
}

/// Returns the requested dimensions. Refuses more than the model's vectors have.
fn check_dimensions(
    asked: Option<usize>,
    capacity: EmbedderCapacity,
) -> Result<Option<usize>, ApiError> {
    let width = capacity.width as usize;
    match asked {
        Some(asked) if asked > width => {
            let many = format!("'dimensions' is {asked}; the model's vectors have {width}.");
            Err(ApiError::invalid_param("dimensions", many))
        }
        _ => Ok(asked),
    }
}
