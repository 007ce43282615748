//! Splits a model's text into reasoning, tool calls and the answer.
//!
//! Text arrives in pieces of any size, and everything unambiguous is passed on at once: an
//! incomplete tag is held back, the arguments of a call are passed on as they arrive. Text that
//! only looked like a call is passed on as part of the answer.
//!
//! Models write calls in different formats. `families` is the table of them, with one file for
//! each family; all but Harmony, whose text is messages throughout, share the states of
//! `tags::TagSplitter`.

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

use loquent_formats::grammar::Thinking;

use crate::pending_deltas::PendingDeltas;
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
    /// Returns a reader for the beginning of a completion.
    pub fn new(config: SplitConfig) -> Self {
        Self(match config.thinking {
            Thinking::Channels => Splitter::Channels(Box::new(ChannelSplitter::new(config))),
            _ => Splitter::Tags(Box::new(TagSplitter::new(config))),
        })
    }

    /// Reads `fresh` text and appends the parts that are unambiguous to `out`.
    pub fn push(&mut self, fresh: &str, out: &mut PendingDeltas) {
        match &mut self.0 {
            Splitter::Tags(splitter) => splitter.push(fresh, out),
            Splitter::Channels(splitter) => splitter.push(fresh, out),
        }
    }

    /// Ends the text, and releases text held back.
    pub fn finish(&mut self, out: &mut PendingDeltas) {
        match &mut self.0 {
            Splitter::Tags(splitter) => splitter.finish(out),
            Splitter::Channels(splitter) => splitter.finish(out),
        }
    }

    /// Returns true if text that follows now would be reasoning.
    pub fn is_thinking(&self) -> bool {
        match &self.0 {
            Splitter::Tags(splitter) => splitter.is_thinking(),
            Splitter::Channels(splitter) => splitter.is_thinking(),
        }
    }

    /// Returns true if all further text is the answer and nothing is held back.
    pub fn is_plain(&self) -> bool {
        match &self.0 {
            Splitter::Tags(splitter) => splitter.is_plain(),
            Splitter::Channels(_) => false,
        }
    }

    /// Returns true if any tool was called.
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
