//! SplitConfig a model's text: what is reasoning, what calls a tool, and what is said.
//!
//! Text comes in pieces of any size, and everything that is certain leaves at once: half a
//! tag is held back, the arguments of a call are passed on while they are written. Where
//! text only looked like a call, it is said as it stands.

use loquent_engine::grammar::{CallSyntax, Thinking};

use super::call::{CallOutcome, CallReader};
use crate::held::HeldDeltas;

const THINK: &str = "<think>";
const THINK_END: &str = "</think>";
const CALL: &str = "<tool_call>";
const CALL_END: &str = "</tool_call>";

/// What a [`TextSplitter`] looks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitConfig {
    /// Reasoning before the answer.
    pub thinking: Thinking,
    /// Calls of tools.
    pub calls: Option<CallConfig>,
}

/// How calls are recognised and named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallConfig {
    /// How the model writes them.
    pub syntax: CallSyntax,
    /// Names of tools: bare JSON with another name is no call.
    pub names: Vec<String>,
    /// Random; ids of calls begin with it.
    pub id: u64,
}

impl SplitConfig {
    /// Whether there is anything to look for.
    pub fn is_needed(&self) -> bool {
        self.thinking != Thinking::Never || self.calls.is_some()
    }
}

enum SplitState {
    /// Nothing but white space yet: `<think>` may come.
    Beginning,
    /// Inside `<think>`; `true` once it has said something.
    Thinking(bool),
    /// White space between reasoning and answer, or at the answer's begin, is dropped.
    BeforeAnswer,
    /// The answer, which may hold calls.
    Answer,
    /// Inside a call.
    Calling(Box<CallReader>),
    /// After a call's object: its end tag or the next call.
    AfterCall,
    /// The answer, with no calls to be found in it.
    Plain,
}

/// Reads one completion.
pub struct TextSplitter {
    config: SplitConfig,
    state: SplitState,
    /// Text that may yet be part of a tag.
    pending: String,
    calls: u32,
}

impl TextSplitter {
    /// A reader at a completion's begin.
    pub fn new(config: SplitConfig) -> Self {
        let state = match config.thinking {
            Thinking::Open => SplitState::Thinking(false),
            Thinking::Optional => SplitState::Beginning,
            Thinking::Never => SplitState::answer(&config),
        };
        Self { config, state, pending: String::new(), calls: 0 }
    }

    /// Takes `fresh` text and appends what it certainly is to `out`.
    pub fn push(&mut self, fresh: &str, out: &mut HeldDeltas) {
        self.pending.push_str(fresh);
        while self.step(out) {}
    }

    /// Ends the text: what was held back is what it looks like.
    pub fn finish(&mut self, out: &mut HeldDeltas) {
        let rest = std::mem::take(&mut self.pending);
        match std::mem::replace(&mut self.state, SplitState::Plain) {
            SplitState::Thinking(_) => out.push_reasoning(&rest),
            SplitState::Calling(mut call) => {
                // Cut off inside the arguments, they stay as far as they came.
                if let Some(text) = call.abandon() {
                    out.text_mut().push_str(&text);
                }
            }
            SplitState::AfterCall => {}
            SplitState::Answer if self.calls > 0 && rest.trim().is_empty() => {}
            SplitState::Beginning
            | SplitState::BeforeAnswer
            | SplitState::Answer
            | SplitState::Plain => {
                out.text_mut().push_str(&rest);
            }
        }
    }

    /// Whether text now would be reasoning.
    pub fn is_thinking(&self) -> bool {
        matches!(self.state, SplitState::Thinking(_))
    }

    /// Whether any tool was called.
    pub fn has_called(&self) -> bool {
        self.calls > 0
    }

    /// Bytes held back.
    pub fn held_bytes(&self) -> usize {
        self.pending.len()
    }

    /// Does what can be done with the pending text; false when more must come.
    fn step(&mut self, out: &mut HeldDeltas) -> bool {
        match &mut self.state {
            SplitState::Beginning => self.begin(),
            SplitState::Thinking(_) => self.think(out),
            SplitState::BeforeAnswer => self.skip_space(),
            SplitState::Answer => self.answer(out),
            SplitState::Calling(_) => self.call(out),
            SplitState::AfterCall => self.after_call(),
            SplitState::Plain => {
                out.text_mut().push_str(&self.pending);
                self.pending.clear();
                false
            }
        }
    }

    fn begin(&mut self) -> bool {
        match front(&self.pending, THINK) {
            TagMatch::Is(end) => {
                self.pending.drain(..end);
                self.state = SplitState::Thinking(false);
                true
            }
            TagMatch::MayBe => false,
            TagMatch::Not => {
                self.state = SplitState::answer(&self.config);
                true
            }
        }
    }

    fn think(&mut self, out: &mut HeldDeltas) -> bool {
        let SplitState::Thinking(has_spoken) = &mut self.state else { return false };
        if !*has_spoken {
            let blank = self.pending.len() - self.pending.trim_start().len();
            self.pending.drain(..blank);
        }
        let end = self.pending.find(THINK_END);
        let safe = end.unwrap_or_else(|| self.pending.len() - overlap(&self.pending, THINK_END));
        *has_spoken |= safe > 0;
        out.push_reasoning(&self.pending[..safe]);
        self.pending.drain(..safe);
        if end.is_some() {
            self.pending.drain(..THINK_END.len());
            self.state = SplitState::BeforeAnswer;
        }
        end.is_some()
    }

    fn skip_space(&mut self) -> bool {
        let blank = self.pending.len() - self.pending.trim_start().len();
        self.pending.drain(..blank);
        if !self.pending.is_empty() {
            self.state = SplitState::answer(&self.config);
        }
        !self.pending.is_empty()
    }

    fn answer(&mut self, out: &mut HeldDeltas) -> bool {
        let Some(calls) = &self.config.calls else {
            self.state = SplitState::Plain;
            return true;
        };
        let (start, tag) = match calls.syntax {
            CallSyntax::Tagged => (self.pending.find(CALL), CALL),
            CallSyntax::Bare => return self.bare_answer(),
        };
        if let Some(start) = start {
            let said = self.pending[..start].trim_end().len();
            out.text_mut().push_str(&self.pending[..said]);
            // The blanks before the tag are said after all if this is no call.
            let opening = self.pending[said..start + tag.len()].to_owned();
            self.pending.drain(..start + tag.len());
            self.open_call(&opening);
            return true;
        }
        let safe = &self.pending[..self.pending.len() - overlap(&self.pending, tag)];
        // Blanks before a tag are not part of what is said.
        let safe = safe.trim_end().len();
        out.text_mut().push_str(&self.pending[..safe]);
        self.pending.drain(..safe);
        false
    }

    /// Without tags, only an answer that begins as JSON can be a call.
    fn bare_answer(&mut self) -> bool {
        let separators = |c: char| c.is_whitespace() || (self.calls > 0 && ";,".contains(c));
        let text = self.pending.trim_start_matches(separators);
        match text.chars().next() {
            None => return false,
            Some('{') => {
                self.pending.drain(..self.pending.len() - text.len());
                self.open_call("");
            }
            Some(_) => self.state = SplitState::Plain,
        }
        true
    }

    fn open_call(&mut self, tag: &str) {
        let calls = self.config.calls.as_ref().expect("calls are looked for");
        let known = match calls.syntax {
            CallSyntax::Bare => Some(calls.names.clone()),
            CallSyntax::Tagged => None,
        };
        // Bits of the id are spread over the calls of an answer by their number.
        let id = format!("call_{:016x}{:04x}", calls.id, self.calls);
        self.state = SplitState::Calling(Box::new(CallReader::new(self.calls, id, tag, known)));
    }

    fn call(&mut self, out: &mut HeldDeltas) -> bool {
        let SplitState::Calling(call) = &mut self.state else { return false };
        let (taken, outcome) = call.push(&self.pending, out);
        self.pending.drain(..taken);
        match outcome {
            CallOutcome::More => return false,
            CallOutcome::Complete => {
                self.calls += 1;
                self.state = SplitState::AfterCall;
            }
            CallOutcome::NoCall(text) => {
                self.calls += u32::from(call.is_open());
                out.text_mut().push_str(&text);
                self.state = SplitState::Plain;
            }
        }
        true
    }

    fn after_call(&mut self) -> bool {
        match front(&self.pending, CALL_END) {
            TagMatch::Is(end) => drop(self.pending.drain(..end)),
            TagMatch::MayBe => return false,
            TagMatch::Not => {}
        }
        self.state = SplitState::Answer;
        true
    }
}

impl SplitState {
    fn answer(config: &SplitConfig) -> Self {
        if config.calls.is_some() { Self::Answer } else { Self::Plain }
    }
}

/// What a text begins with, blanks apart.
enum TagMatch {
    /// The tag, which ends here.
    Is(usize),
    /// Too short to say.
    MayBe,
    /// Something else.
    Not,
}

fn front(text: &str, tag: &str) -> TagMatch {
    let trimmed = text.trim_start();
    if trimmed.starts_with(tag) {
        TagMatch::Is(text.len() - trimmed.len() + tag.len())
    } else if tag.starts_with(trimmed) {
        TagMatch::MayBe
    } else {
        TagMatch::Not
    }
}

/// Bytes at the end of `text` that begin `tag`.
fn overlap(text: &str, tag: &str) -> usize {
    let longest = text.len().min(tag.len() - 1);
    let ends = |n: &usize| text.as_bytes().ends_with(&tag.as_bytes()[..*n]);
    (1..=longest).rev().find(ends).unwrap_or(0)
}

#[cfg(test)]
mod tests;
