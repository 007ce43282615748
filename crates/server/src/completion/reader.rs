//! Takes a model's text apart: what is reasoning, what calls a tool, and what is said.
//!
//! Text comes in pieces of any size, and everything that is certain leaves at once: half a
//! tag is held back, the arguments of a call are passed on while they are written. Where
//! text only looked like a call, it is said as it stands.
//!
//! Models write calls in different formats. [`families`] is the table of them, with one file for
//! each family; all but Harmony, whose text is messages throughout, share the states of
//! [`tags::TagSplitter`].

mod arguments;
mod call_reader;
mod deepseek;
mod families;
mod harmony;
mod matching;
mod mistral;
mod object;
mod tags;
mod xml;

use std::sync::Arc;

use loquent_engine::grammar::{CallSyntax, Thinking, ToolShape};
use loquent_infer::token::TokenId;

use crate::held::HeldDeltas;
use harmony::ChannelSplitter;
use tags::TagSplitter;

/// What a [`TextSplitter`] looks for.
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

    /// For text that may begin with reasoning, and is all answer else.
    pub fn reasoning() -> Self {
        Self { thinking: Thinking::Optional, ..Self::none() }
    }

    /// The same for another completion, whose calls have ids of their own.
    pub fn for_completion(&self) -> Self {
        let mut config = self.clone();
        if let Some(calls) = &mut config.calls {
            calls.id = rand::random();
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
    fn call_id(&self, index: u32) -> String {
        // Bits of the id are spread over the calls of an answer by their number.
        format!("call_{:016x}{index:04x}", self.id)
    }

    fn knows(&self, name: &str) -> bool {
        self.tools.iter().any(|tool| tool.name == name)
    }
}

/// Reads one completion.
pub struct TextSplitter(Splitter);

enum Splitter {
    Tags(Box<TagSplitter>),
    Channels(Box<ChannelSplitter>),
}

impl TextSplitter {
    /// A reader at a completion's begin.
    pub fn new(config: SplitConfig) -> Self {
        Self(match config.thinking {
            Thinking::Channels => Splitter::Channels(Box::new(ChannelSplitter::new(config))),
            _ => Splitter::Tags(Box::new(TagSplitter::new(config))),
        })
    }

    /// Takes `fresh` text and appends what it certainly is to `out`.
    pub fn push(&mut self, fresh: &str, out: &mut HeldDeltas) {
        match &mut self.0 {
            Splitter::Tags(splitter) => splitter.push(fresh, out),
            Splitter::Channels(splitter) => splitter.push(fresh, out),
        }
    }

    /// Ends the text: what was held back is what it looks like.
    pub fn finish(&mut self, out: &mut HeldDeltas) {
        match &mut self.0 {
            Splitter::Tags(splitter) => splitter.finish(out),
            Splitter::Channels(splitter) => splitter.finish(out),
        }
    }

    /// Whether text now would be reasoning.
    pub fn is_thinking(&self) -> bool {
        match &self.0 {
            Splitter::Tags(splitter) => splitter.is_thinking(),
            Splitter::Channels(splitter) => splitter.is_thinking(),
        }
    }

    /// Whether all further text is the answer, and nothing is held back.
    pub fn is_plain(&self) -> bool {
        match &self.0 {
            Splitter::Tags(splitter) => splitter.is_plain(),
            Splitter::Channels(_) => false,
        }
    }

    /// Whether any tool was called.
    pub fn has_called(&self) -> bool {
        match &self.0 {
            Splitter::Tags(splitter) => splitter.has_called(),
            Splitter::Channels(splitter) => splitter.has_called(),
        }
    }

    /// Bytes held back.
    pub fn held_bytes(&self) -> usize {
        match &self.0 {
            Splitter::Tags(splitter) => splitter.held_bytes(),
            Splitter::Channels(splitter) => splitter.held_bytes(),
        }
    }
}

#[cfg(test)]
mod tests;
