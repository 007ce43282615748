//! `truncation: auto`: drops the oldest turns of a conversation that is longer than the context.

use loquent_infer::token::TokenId;
use loquent_infer::vocab::Encode;
use serde_json::{Map, Value};

use loquent_serving::api::fields::Fields;
use loquent_serving::api::request::{Chat, Prompt};
use loquent_serving::error::ApiError;
use loquent_serving::prompts::Prompts;

/// Maximum part of the context reserved for the answer, as a divisor.
const ANSWER_SHARE: u32 = 4;

/// Drops the oldest of `messages` until the others fit the context with room for an answer. System
/// messages stay, and the conversation continues with a user's message.
///
/// # Errors
/// 400 for a conversation that the model's template rejects.
pub fn truncate(
    prompts: &Prompts,
    chat: &Map<String, Value>,
    messages: Vec<Value>,
) -> Result<Vec<Value>, ApiError> {
    let head = messages.iter().take_while(|message| message["role"] == "system").count();
    let starts = |at: &usize| messages[*at]["role"] == "user";
    let cuts: Vec<usize> = (head..messages.len()).filter(|at| *at == head || starts(at)).collect();
    let from = |cut: usize| [&messages[..head], &messages[cut..]].concat();
    let fits = |cut: usize| fits(prompts, chat, from(cut));
    // The later the cut, the fewer the tokens: the first that fits is found by halving.
    let (mut low, mut high) = (0, cuts.len().saturating_sub(1));
    while low < high {
        // Most conversations fit as they are.
        let middle = if low == 0 && high == cuts.len() - 1 { 0 } else { (low + high) / 2 };
        match fits(cuts[middle])? {
            true => high = middle,
            false => low = middle + 1,
        }
    }
    // If the last turn alone is too long, the error says so.
    Ok(cuts.get(low).map_or(messages.clone(), |cut| from(*cut)))
}

fn fits(
    prompts: &Prompts,
    chat: &Map<String, Value>,
    messages: Vec<Value>,
) -> Result<bool, ApiError> {
    let context = prompts.model().context_tokens;
    let most = context / ANSWER_SHARE;
    let asked = chat.get("max_completion_tokens").and_then(Value::as_u64);
    let room = asked.map_or(most, |asked| most.min(u32::try_from(asked).unwrap_or(most)));
    match count(prompts, chat, messages) {
        Ok(tokens) => Ok(tokens.len() + (room as usize) < context as usize),
        Err(error) if error.is_context_length() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the tokens of `messages` with the tools and variables of `chat`.
///
/// # Errors
/// 400 if the model's template or tokenizer rejects them.
pub fn count(
    prompts: &Prompts,
    chat: &Map<String, Value>,
    messages: Vec<Value>,
) -> Result<Vec<TokenId>, ApiError> {
    let mut members = chat.clone();
    members.insert("messages".into(), messages.into());
    let mut fields = Fields::empty(None).replaced(members);
    let chat = Chat::parse(&mut fields)?;
    prompts.encode(Prompt::Chat(Box::new(chat)), Encode::PROMPT)
}
