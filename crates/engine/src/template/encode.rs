//! Tokenizing a prompt's segments.

use loquent_infer::token::TokenId;
use loquent_infer::vocab::{Encode, EncodeError, Vocab};

use super::{ChatTemplate, Conversation, PromptSegment, TemplateError};

/// Tokenizes a prompt, each segment by its own rule, with the begin-of-sequence token first if the
/// model uses one and the template has not written it.
///
/// # Errors
/// [`EncodeError`].
pub fn encode_segments(
    vocab: &dyn Vocab,
    segments: &[PromptSegment],
) -> Result<Vec<TokenId>, EncodeError> {
    let mut tokens = vocab.encode("", Encode { add_bos: true, parse_special: false })?;
    let begin = tokens.clone();
    // Some templates write the begin-of-sequence token themselves; two of them would degrade the
    // answer.
    for (i, segment) in segments.iter().enumerate() {
        let how = Encode { add_bos: false, parse_special: segment.special };
        let part = vocab.encode(&segment.text, how)?;
        if i == 0 && !begin.is_empty() && part.starts_with(&begin) {
            tokens.clear();
        }
        tokens.extend(part);
    }
    Ok(tokens)
}

/// A conversation as a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatPrompt {
    /// The prompt as tokens.
    pub tokens: Vec<TokenId>,
    /// True if it ends with the tag that opens reasoning, so that the answer begins inside it.
    pub thinking: bool,
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
    let control = template.control_names(vocab);
    let segments = template.render(conversation, &|text| control.occur_in(text), max_bytes)?;
    Ok(segments.into_iter().map(|segment| segment.text).collect())
}

/// Renders and tokenizes a conversation. A prompt of more than `max_bytes` is not tokenized.
///
/// # Errors
/// See [`TemplateError`].
pub fn encode_chat(
    template: &ChatTemplate,
    vocab: &dyn Vocab,
    conversation: &Conversation<'_>,
    max_bytes: usize,
) -> Result<ChatPrompt, TemplateError> {
    let control = template.control_names(vocab);
    let segments = template.render(conversation, &|text| control.occur_in(text), max_bytes)?;
    let begin = template.abilities().thinks.map(|tags| tags.pair()[0]);
    let ends_with = |tag| {
        segments.last().is_some_and(|last| last.special && last.text.trim_end().ends_with(tag))
    };
    let thinking = begin.is_some_and(ends_with);
    Ok(ChatPrompt { tokens: encode_segments(vocab, &segments)?, thinking })
}
