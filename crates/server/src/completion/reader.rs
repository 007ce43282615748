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
mod config;
mod deepseek;
mod families;
mod harmony;
mod matching;
mod mistral;
mod object;
mod tags;
mod xml;

use loquent_engine::grammar::Thinking;

use crate::held::HeldDeltas;
pub use config::{CallConfig, SplitConfig};
use harmony::ChannelSplitter;
use tags::TagSplitter;

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
