//! Control tokens that must be visible in the output: tags of reasoning and of tool calls.
//!
//! Control tokens have no text, so that no `<|im_end|>` gets into an answer. If a model's own
//! format uses them inside the answer, their names are inserted for them until the answer has been
//! parsed.

use std::sync::Arc;

use loquent_infer::token::TokenId;
use loquent_infer::vocab::Vocab;

use crate::grammar::{CallSyntax, ThinkTags};

/// Control tokens of a vocabulary that are tags of its model's format, each list in order.
#[derive(Debug, Clone, Default)]
pub struct ControlTokenTags {
    /// Tags around reasoning.
    pub thinking: Arc<[TokenId]>,
    /// Tags around reasoning, and those of tool calls.
    pub all: Arc<[TokenId]>,
}

impl ControlTokenTags {
    /// Finds the tags in `vocab`, for a model that calls tools by `syntax` and reasons between
    /// `thinks`.
    pub fn of(vocab: &dyn Vocab, syntax: CallSyntax, thinks: Option<ThinkTags>) -> Self {
        let control = (0..vocab.size() as TokenId).filter(|&token| vocab.piece(token).is_empty());
        let named = |token: TokenId, tags: &[&str]| {
            tags.iter().any(|tag| tag.as_bytes() == vocab.name(token))
        };
        let around_thoughts = thinks.map(ThinkTags::pair).unwrap_or_default();
        let (mut thinking, mut all) = (Vec::new(), Vec::new());
        for token in control {
            let thinks = named(token, &around_thoughts);
            thinking.extend(thinks.then_some(token));
            all.extend((thinks || named(token, syntax.tags())).then_some(token));
        }
        Self { thinking: thinking.into(), all: all.into() }
    }
}
