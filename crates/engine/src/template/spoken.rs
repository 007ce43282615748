//! Control tokens that must be read: tags of reasoning and of tool calls.
//!
//! Control tokens have no text, so that no `<|im_end|>` gets into an answer. Where a model's own
//! format has them inside the answer, their names stand for them until the answer has been taken
//! apart.

use std::sync::Arc;

use loquent_infer::token::TokenId;
use loquent_infer::vocab::Vocab;

use crate::grammar::{CallSyntax, ThinkTags};

/// The control tokens of a vocabulary that are tags of its model's format, each list in order.
#[derive(Debug, Clone, Default)]
pub struct SpokenTags {
    /// Those around reasoning.
    pub thinking: Arc<[TokenId]>,
    /// Those, and the ones of calls.
    pub all: Arc<[TokenId]>,
}

impl SpokenTags {
    /// Those of `vocab`, for a model that calls tools by `syntax` and reasons between `thinks`.
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
