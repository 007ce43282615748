//! Tokenizing a prompt's segments.

use loquent_infer::token::TokenId;
use loquent_infer::vocab::{Encode, EncodeError, Vocab};

use super::{ChatTemplate, Conversation, PromptSegment, TemplateError};

/// Whether tokenizing `text` with special tokens parsed gives a control token.
pub fn has_special(vocab: &dyn Vocab, text: &str) -> bool {
    let how = Encode { add_bos: false, parse_special: true };
    match vocab.encode(text, how) {
        Ok(tokens) => tokens.iter().any(|&token| is_control(vocab, token)),
        // Text that cannot be encoded counts as special, the safe side; encoding it later gives
        // the error.
        Err(_) => true,
    }
}

/// Control tokens have a name and add nothing to a text.
fn is_control(vocab: &dyn Vocab, token: TokenId) -> bool {
    vocab.piece(token).is_empty() && !vocab.name(token).is_empty()
}

/// Tokenizes a prompt, each segment by its own rule, with the begin-of-sequence token
/// first if the model uses one and the template has not written it.
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
    /// Whether it ends with `<think>`, so that the answer begins with reasoning.
    pub thinking: bool,
}

/// Renders and tokenizes a conversation.
///
/// # Errors
/// See [`TemplateError`].
pub fn encode_chat(
    template: &ChatTemplate,
    vocab: &dyn Vocab,
    conversation: &Conversation<'_>,
) -> Result<ChatPrompt, TemplateError> {
    let segments = template.render(conversation, &|text| has_special(vocab, text))?;
    let ends_with_think =
        |last: &PromptSegment| last.special && last.text.trim_end().ends_with("<think>");
    let thinking = segments.last().is_some_and(ends_with_think);
    Ok(ChatPrompt { tokens: encode_segments(vocab, &segments)?, thinking })
}
