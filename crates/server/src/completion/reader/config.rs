//! What the reader of a completion looks for in its text.

use std::sync::Arc;

use loquent_engine::grammar::{CallSyntax, ThinkTags, Thinking, ToolShape};
use loquent_infer::token::TokenId;

/// What a [`TextSplitter`](super::TextSplitter) looks for.
#[derive(Debug, Clone)]
pub struct SplitConfig {
    /// Reasoning before the answer.
    pub thinking: Thinking,
    /// Calls of tools.
    pub calls: Option<CallConfig>,
    /// Where reasoning cannot be left in the text by not looking for it, as in channels: whether
    /// it is text nevertheless.
    pub keeps_reasoning: bool,
    /// Control tokens that are read by their names, in order.
    pub spoken: Arc<[TokenId]>,
}

/// How calls are recognised and named.
#[derive(Debug, Clone)]
pub struct CallConfig {
    /// How the model writes them.
    pub syntax: CallSyntax,
    /// The tools: where no tag shows a call, a name that is not among them is no call.
    pub tools: Arc<[ToolShape]>,
    /// Random; ids of calls begin with it.
    pub id: u64,
}

impl SplitConfig {
    /// For text that is all answer.
    pub fn none() -> Self {
        let (calls, spoken) = Default::default();
        Self { thinking: Thinking::Never, calls, keeps_reasoning: false, spoken }
    }

    /// For an upstream server's text, which may begin with `<think>`, and is all answer else.
    pub fn reasoning() -> Self {
        Self { thinking: Thinking::Optional(ThinkTags::Angle), ..Self::none() }
    }

    /// The same for another completion, whose calls have ids of their own, made of `id` if there is
    /// one.
    pub fn for_completion(&self, id: Option<u64>) -> Self {
        let mut config = self.clone();
        // Clients match results to calls by id, over all completions of a conversation.
        if let Some(calls) = &mut config.calls {
            calls.id = id.unwrap_or_else(rand::random);
        }
        config
    }

    /// Whether there is anything to look for.
    pub fn is_needed(&self) -> bool {
        self.thinking != Thinking::Never || self.calls.is_some()
    }
}

impl CallConfig {
    /// The id of an answer's `index`-th call.
    pub fn call_id(&self, index: u32) -> String {
        // Bits of the id are spread over the calls of an answer by their number.
        format!("call_{:016x}{index:04x}", self.id)
    }

    /// Whether `name` is a tool.
    pub fn knows(&self, name: &str) -> bool {
        self.tools.iter().any(|tool| tool.name == name)
    }
}
