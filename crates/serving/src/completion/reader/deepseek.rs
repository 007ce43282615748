//! DeepSeek's calls: special tokens around a name and an object, which older models put into a
//! fenced block.

use super::arguments::{ArgumentsEnd, ArgumentsText};
use super::call_reader::{CallOutcome, CallReader, CallStart};
use super::matching::{TagMatch, front_of, is_name};
use crate::pending_deltas::PendingDeltas;

const CALL: &str = "<｜tool▁call▁begin｜>";
const SEPARATOR: &str = "<｜tool▁sep｜>";
const FENCE: &str = "```";
const CALL_END: &str = "<｜tool▁call▁end｜>";
const CALLS_END: &str = "<｜tool▁calls▁end｜>";
/// Word that older models write before the separator; the name follows it.
const KIND: &str = "function";
/// Maximum bytes between the tag and the arguments.
const MAX_HEAD_BYTES: usize = 256;

enum DeepSeekState {
    /// Before a call's tag.
    Between,
    /// After the tag, before the arguments.
    Head,
    /// In the arguments.
    Arguments(ArgumentsText),
}

/// Reads the calls of a list.
pub(super) struct DeepSeekCalls {
    start: CallStart,
    state: DeepSeekState,
    /// All text so far, including the tag, until a call has been opened.
    raw: String,
    opened: bool,
}

impl DeepSeekCalls {
    pub(super) fn new(start: CallStart) -> Self {
        // Without the list's tag, which models forget, the call's own is the opening.
        let in_call = start.opening.ends_with(CALL);
        let state = if in_call { DeepSeekState::Head } else { DeepSeekState::Between };
        Self { raw: start.opening.clone(), start, state, opened: false }
    }

    fn give_up(&mut self) -> CallOutcome {
        let raw = std::mem::take(&mut self.raw);
        if self.opened { CallOutcome::End } else { CallOutcome::NoCall(raw) }
    }

    fn between(&mut self, text: &str) -> (usize, Option<CallOutcome>) {
        match front_of(text, &[CALL, CALLS_END, FENCE, CALL_END]) {
            Ok((0, end)) => {
                self.state = DeepSeekState::Head;
                (end, None)
            }
            Ok((1, end)) if self.opened => (end, Some(CallOutcome::End)),
            // The rests of the call before.
            Ok((2 | 3, end)) if self.opened => (end, None),
            Err(TagMatch::MayBe) => (0, Some(CallOutcome::More)),
            Ok(_) | Err(_) => (0, Some(self.give_up())),
        }
    }

    /// Reads the text before the object: `NAME<sep>`, or `function<sep>NAME`, a line break and the
    /// beginning of a fenced block.
    fn head(&mut self, text: &str, out: &mut PendingDeltas) -> (usize, Option<CallOutcome>) {
        let window = &text[..text.floor_char_boundary(MAX_HEAD_BYTES)];
        let Some(at) = window.find('{') else {
            let more = text.len() < MAX_HEAD_BYTES;
            return (0, Some(if more { CallOutcome::More } else { self.give_up() }));
        };
        let name = match text[..at].split_once(SEPARATOR) {
            Some((KIND, behind)) if !behind.trim().is_empty() => {
                behind.trim().trim_end_matches("json").trim_end_matches(FENCE).trim()
            }
            Some((name, behind)) if behind.trim().is_empty() => name.trim(),
            _ => "",
        };
        if !is_name(name) {
            return (0, Some(self.give_up()));
        }
        self.start.open(name, out);
        self.opened = true;
        self.state = DeepSeekState::Arguments(ArgumentsText::default());
        (at, None)
    }

    fn arguments(&mut self, text: &str, out: &mut PendingDeltas) -> (usize, Option<CallOutcome>) {
        let DeepSeekState::Arguments(arguments) = &mut self.state else { return (0, None) };
        match arguments.push(text, self.start.index, out) {
            ArgumentsEnd::More => (text.len(), Some(CallOutcome::More)),
            ArgumentsEnd::Closed(end) => {
                self.start.index += 1;
                self.state = DeepSeekState::Between;
                (end, Some(CallOutcome::Next))
            }
            ArgumentsEnd::NoObject => (0, Some(CallOutcome::End)),
        }
    }
}

impl CallReader for DeepSeekCalls {
    fn push(&mut self, text: &str, out: &mut PendingDeltas) -> (usize, CallOutcome) {
        let mut taken = 0;
        loop {
            let rest = &text[taken..];
            let (more, outcome) = match &self.state {
                DeepSeekState::Between => self.between(rest),
                DeepSeekState::Head => self.head(rest, out),
                DeepSeekState::Arguments(_) => self.arguments(rest, out),
            };
            if !self.opened {
                self.raw.push_str(&rest[..more]);
            }
            taken += more;
            if let Some(outcome) = outcome {
                return (taken, outcome);
            }
        }
    }

    fn finish(&mut self, rest: &str, _out: &mut PendingDeltas) -> String {
        if self.opened { String::new() } else { std::mem::take(&mut self.raw) + rest }
    }

    fn is_open(&self) -> bool {
        matches!(self.state, DeepSeekState::Arguments(_))
    }

    fn held_bytes(&self) -> usize {
        self.raw.len()
    }
}
