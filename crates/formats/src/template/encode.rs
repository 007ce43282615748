//! Tokenizing a prompt's segments.

use loquent_infer::token::TokenId;
use loquent_infer::vocab::{Encode, EncodeError, Vocab, encode_within};

use super::{ChatTemplate, Conversation, PromptSegment, TemplateError};

/// Tokenizes a prompt, each segment by its own rule, with the begin-of-sequence token first if the
/// model uses one and the template has not written it. Returns `None` as soon as they surely are
/// more than `most` tokens.
///
/// # Errors
/// [`EncodeError`].
pub fn encode_segments(
    vocab: &dyn Vocab,
    segments: &[PromptSegment],
    most: usize,
) -> Result<Option<Vec<TokenId>>, EncodeError> {
    let mut tokens = vocab.encode("", Encode { add_bos: true, parse_special: false })?;
    let begin = tokens.clone();
    // Some templates write the begin-of-sequence token themselves; two of them would degrade the
    // answer.
    for (i, segment) in segments.iter().enumerate() {
        let how = Encode { add_bos: false, parse_special: segment.special };
        let left = most.saturating_sub(tokens.len());
        let Some(part) = encode_within(vocab, &segment.text, how, left)? else { return Ok(None) };
        if i == 0 && !begin.is_empty() && part.starts_with(&begin) {
            tokens.clear();
        }
        tokens.extend(part);
        if tokens.len() > most {
            return Ok(None);
        }
    }
    Ok(Some(tokens))
}

/// A conversation as a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatPrompt {
    /// The prompt as tokens.
    pub tokens: Vec<TokenId>,
    /// True if it ends with the tag that opens reasoning, so that the answer begins inside it.
    pub thinking: bool,
}

/// Maximum length of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptLimits {
    /// Bytes of text; a longer prompt is not tokenized.
    pub bytes: usize,
    /// Tokens, at which tokenizing stops.
    pub tokens: usize,
}

impl PromptLimits {
    /// No limits.
    pub const NONE: Self = Self { bytes: usize::MAX, tokens: usize::MAX };
}

/// Renders a conversation to at most `max_bytes`.
///
/// # Errors
/// See [`TemplateError`].
pub fn render_chat(
    template: &ChatTemplate,
    vocab: &dyn Vocab,
    conversation: &Conversation<'_>,
    max_bytes: usize,
) -> Result<String, TemplateError> {
    let segments = segments_of(template, vocab, conversation, max_bytes)?;
    Ok(segments.into_iter().map(|segment| segment.text).collect())
}

fn segments_of(
    template: &ChatTemplate,
    vocab: &dyn Vocab,
    conversation: &Conversation<'_>,
    max_bytes: usize,
) -> Result<Vec<PromptSegment>, TemplateError> {
    let control = template.control_names(vocab);
    template.render(conversation, &|text| control.occur_in(text), max_bytes)
}

/// Renders and tokenizes a conversation within `limits`.
///
/// # Errors
/// See [`TemplateError`].
pub fn encode_chat(
    template: &ChatTemplate,
    vocab: &dyn Vocab,
    conversation: &Conversation<'_>,
    limits: PromptLimits,
) -> Result<ChatPrompt, TemplateError> {
    let segments = segments_of(template, vocab, conversation, limits.bytes)?;
    let begin = template.abilities().thinks.map(|tags| tags.pair()[0]);
    let ends_with = |tag| {
        segments.last().is_some_and(|last| last.special && last.text.trim_end().ends_with(tag))
    };
    let thinking = begin.is_some_and(ends_with);
    let tokens = encode_segments(vocab, &segments, limits.tokens)?;
    let tokens = tokens.ok_or(TemplateError::TooManyTokens(limits.tokens))?;
    Ok(ChatPrompt { tokens, thinking })
}
