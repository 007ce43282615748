//! Text with tags: first reasoning between its own tags, then the answer, which may contain calls.

use loquent_formats::grammar::{ThinkTags, Thinking};

use super::call_reader::{CallOutcome, CallReader, CallStart};
use super::config::SplitConfig;
use super::families::{CallFamily, family};
use super::matching::{TagMatch, find_any, front, front_of, overlap, overlap_any};
use crate::pending_deltas::PendingDeltas;

enum SplitState {
    /// Only white space so far: reasoning may follow.
    Beginning,
    /// In the reasoning; `true` once it has had text.
    Thinking(bool),
    /// White space between reasoning and answer, or at the answer's beginning; dropped.
    BeforeAnswer,
    /// In the answer, which may contain calls.
    Answer,
    /// Inside a call.
    Calling(Box<dyn CallReader>),
    /// After a call: its end tag or the next call may follow.
    AfterCall,
    /// In an answer without calls.
    Plain,
}

/// Reads one completion.
pub(super) struct TagSplitter {
    config: SplitConfig,
    /// The opening and closing tag of reasoning.
    think: [&'static str; 2],
    state: SplitState,
    /// Text that may still become part of a tag.
    pending: String,
    calls: u32,
}

impl TagSplitter {
    pub(super) fn new(config: SplitConfig) -> Self {
        let (tags, state) = match config.thinking {
            Thinking::Open(tags) => (tags, SplitState::Thinking(false)),
            Thinking::Optional(tags) => (tags, SplitState::Beginning),
            // Nothing looks for them.
            Thinking::Never | Thinking::Channels => (ThinkTags::Angle, SplitState::answer(&config)),
        };
        Self { config, think: tags.pair(), state, pending: String::new(), calls: 0 }
    }

    pub(super) fn push(&mut self, fresh: &str, out: &mut PendingDeltas) {
        self.pending.push_str(fresh);
        while self.step(out) {}
    }

    pub(super) fn finish(&mut self, out: &mut PendingDeltas) {
        let rest = std::mem::take(&mut self.pending);
        match std::mem::replace(&mut self.state, SplitState::Plain) {
            SplitState::Thinking(_) => out.push_reasoning(&rest),
            // Cut off inside the arguments, they stay as far as they came.
            SplitState::Calling(mut call) => {
                let text = call.finish(&rest, out);
                out.text_mut().push_str(&text);
            }
            SplitState::AfterCall => {}
            // Blanks behind the last call are the format's, not the answer's.
            SplitState::Answer if self.calls > 0 && rest.trim().is_empty() => {}
            SplitState::Beginning
            | SplitState::BeforeAnswer
            | SplitState::Answer
            | SplitState::Plain => {
                out.text_mut().push_str(&rest);
            }
        }
    }

    pub(super) fn is_thinking(&self) -> bool {
        matches!(self.state, SplitState::Thinking(_))
    }

    pub(super) fn is_plain(&self) -> bool {
        matches!(self.state, SplitState::Plain) && self.pending.is_empty()
    }

    pub(super) fn has_called(&self) -> bool {
        self.calls > 0
    }

    pub(super) fn held_bytes(&self) -> usize {
        let of_call = match &self.state {
            SplitState::Calling(call) => call.held_bytes(),
            _ => 0,
        };
        self.pending.len() + of_call
    }

    /// Processes the pending text as far as possible; returns false if more is needed.
    fn step(&mut self, out: &mut PendingDeltas) -> bool {
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
        match front(&self.pending, self.think[0]) {
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

    fn think(&mut self, out: &mut PendingDeltas) -> bool {
        let SplitState::Thinking(has_spoken) = &mut self.state else { return false };
        if !*has_spoken {
            let blank = self.pending.len() - self.pending.trim_start().len();
            self.pending.drain(..blank);
        }
        let tag = self.think[1];
        let end = self.pending.find(tag);
        let safe = end.unwrap_or_else(|| self.pending.len() - overlap(&self.pending, tag));
        *has_spoken |= safe > 0;
        out.push_reasoning(&self.pending[..safe]);
        self.pending.drain(..safe);
        if end.is_some() {
            self.pending.drain(..tag.len());
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

    fn family(&self) -> Option<&'static CallFamily> {
        self.config.calls.as_ref().map(|calls| family(calls.syntax))
    }

    fn answer(&mut self, out: &mut PendingDeltas) -> bool {
        let Some(family) = self.family() else {
            self.state = SplitState::Plain;
            return true;
        };
        if family.open.is_empty() {
            return self.bare_answer();
        }
        if let Some((start, tag)) = find_any(&self.pending, family.open) {
            let said = self.pending[..start].trim_end().len();
            out.text_mut().push_str(&self.pending[..said]);
            // The blanks before the tag are said after all if this is no call.
            let opening = self.pending[said..start + tag.len()].to_owned();
            self.pending.drain(..start + tag.len());
            self.open_call(opening, family);
            return true;
        }
        let held = overlap_any(&self.pending, family.open);
        // Blanks before a tag are not part of what is said.
        let safe = self.pending[..self.pending.len() - held].trim_end().len();
        out.text_mut().push_str(&self.pending[..safe]);
        self.pending.drain(..safe);
        false
    }

    /// Handles an answer in a format without tags: only one that begins as JSON can be a call.
    fn bare_answer(&mut self) -> bool {
        let separators = |c: char| c.is_whitespace() || (self.calls > 0 && ";,".contains(c));
        let text = self.pending.trim_start_matches(separators);
        match (text.chars().next(), self.family()) {
            (None, _) => return false,
            (Some('{'), Some(family)) => {
                self.pending.drain(..self.pending.len() - text.len());
                self.open_call(String::new(), family);
            }
            (Some(_), _) => self.state = SplitState::Plain,
        }
        true
    }

    fn open_call(&mut self, opening: String, family: &CallFamily) {
        let config = self.config.calls.clone().expect("calls are looked for");
        let start = CallStart { index: self.calls, opening, config };
        self.state = SplitState::Calling((family.reader)(start));
    }

    fn call(&mut self, out: &mut PendingDeltas) -> bool {
        let SplitState::Calling(call) = &mut self.state else { return false };
        let (taken, outcome) = call.push(&self.pending, out);
        self.pending.drain(..taken);
        match outcome {
            CallOutcome::More => return false,
            CallOutcome::Complete => {
                self.calls += 1;
                self.state = SplitState::AfterCall;
            }
            CallOutcome::Next => self.calls += 1,
            CallOutcome::End => self.state = SplitState::AfterCall,
            CallOutcome::NoCall(text) => {
                self.calls += u32::from(call.is_open());
                out.text_mut().push_str(&text);
                // Whoever writes broken calls is read as text from here on.
                self.state = SplitState::Plain;
            }
        }
        true
    }

    fn after_call(&mut self) -> bool {
        let close = self.family().map_or(&[][..], |family| family.close);
        match front_of(&self.pending, close) {
            Ok((_, end)) => drop(self.pending.drain(..end)),
            Err(TagMatch::MayBe) => return false,
            Err(_) => {}
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
