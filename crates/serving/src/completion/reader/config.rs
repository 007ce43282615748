//! Settings of the reader of a completion.

use std::sync::Arc;

use loquent_formats::grammar::{CallSyntax, ThinkTags, Thinking, ToolShape};
use loquent_infer::token::TokenId;

/// Settings of a [`TextSplitter`](super::TextSplitter).
#[derive(Debug, Clone)]
pub struct SplitConfig {
    /// Format of the reasoning before the answer.
    pub thinking: Thinking,
    /// Tool calls to look for, if any.
    pub calls: Option<CallConfig>,
    /// Treats reasoning in channels as text. In other formats, reasoning stays in the text if it is
    /// not looked for.
    pub keeps_reasoning: bool,
    /// Control tokens that are replaced by their names, sorted.
    pub spoken: Arc<[TokenId]>,
}

/// Settings for recognising calls and making their ids.
#[derive(Debug, Clone)]
pub struct CallConfig {
    /// The model's syntax for calls.
    pub syntax: CallSyntax,
    /// The tools. In formats without a tag, only an object with one of their names is a call.
    pub tools: Arc<[ToolShape]>,
    /// Random prefix of the calls' ids.
    pub id: u64,
}

/// Settings for text that is answer throughout.
impl Default for SplitConfig {
    fn default() -> Self {
        let (calls, spoken) = Default::default();
        Self { thinking: Thinking::Never, calls, keeps_reasoning: false, spoken }
    }
}

impl SplitConfig {
    /// Settings for an upstream server's text, which may begin with `<think>` and is otherwise
    /// answer throughout.
    pub fn reasoning() -> Self {
        Self { thinking: Thinking::Optional(ThinkTags::Angle), ..Self::default() }
    }

    /// Returns the settings for another completion, with its own call ids: made of `id`, or random.
    pub fn for_completion(&self, id: Option<u64>) -> Self {
        let mut config = self.clone();
        // Clients match results to calls by id, over all completions of a conversation.
        if let Some(calls) = &mut config.calls {
            calls.id = id.unwrap_or_else(rand::random);
        }
        config
    }

    /// Returns true if there is anything to look for.
    pub fn is_needed(&self) -> bool {
        self.thinking != Thinking::Never || self.calls.is_some()
    }
}

impl CallConfig {
    /// Returns the id of call number `index` in an answer.
    pub fn call_id(&self, index: u32) -> String {
        // Bits of the id are spread over the calls of an answer by their number.
        format!("call_{:016x}{index:04x}", self.id)
    }

    /// Returns true if `name` is a tool.
    pub fn knows(&self, name: &str) -> bool {
        self.tools.iter().any(|tool| tool.name == name)
    }
}
