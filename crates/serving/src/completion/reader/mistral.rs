//! Mistral's calls after `[TOOL_CALLS]`: an array of objects, or a name and `[ARGS]` with an
//! object.

use super::arguments::{ArgumentsEnd, ArgumentsText};
use super::call_reader::{CallOutcome, CallReader, CallStart};
use super::matching::{find_any, is_name};
use super::object::ObjectCall;
use crate::pending_deltas::PendingDeltas;

const ARGS: &str = "[ARGS]";
const CALL_ID: &str = "[CALL_ID]";
/// Maximum bytes of a name with the id after it.
const MAX_HEAD_BYTES: usize = 256;

enum MistralState {
    /// Directly after the tag.
    Begin,
    /// Between the objects of an array.
    Between,
    /// In an object of an array.
    Object(Box<ObjectCall>),
    /// In the name before a call's arguments.
    Name,
    /// In the arguments after a name.
    Arguments(ArgumentsText),
}

/// Reads the calls after one tag.
pub(super) struct MistralCalls {
    start: CallStart,
    state: MistralState,
    /// All text so far, including the tag, until a call has been opened.
    raw: String,
    opened: bool,
}

impl MistralCalls {
    pub(super) fn new(start: CallStart) -> Self {
        let raw = start.opening.clone();
        Self { start, state: MistralState::Begin, raw, opened: false }
    }

    fn note(&mut self, text: &str) {
        if !self.opened {
            self.raw.push_str(text);
        }
    }

    fn give_up(&mut self) -> CallOutcome {
        let raw = std::mem::take(&mut self.raw);
        if self.opened { CallOutcome::End } else { CallOutcome::NoCall(raw) }
    }

    /// Reads up to the array, or the name.
    fn begin(&mut self, text: &str) -> (usize, CallOutcome) {
        let blank = text.len() - text.trim_start().len();
        self.note(&text[..blank]);
        match text[blank..].chars().next() {
            None => return (blank, CallOutcome::More),
            Some('[') => {
                self.note("[");
                self.state = MistralState::Between;
                return (blank + 1, CallOutcome::More);
            }
            Some(_) => self.state = MistralState::Name,
        }
        (blank, CallOutcome::More)
    }

    fn between(&mut self, text: &str) -> (usize, CallOutcome) {
        let skipped = text.len() - text.trim_start_matches([' ', '\n', '\t', '\r', ',']).len();
        self.note(&text[..skipped]);
        match text[skipped..].chars().next() {
            None => (skipped, CallOutcome::More),
            Some('{') => {
                // From here on the object's reader has the text, in case that it is no call.
                let opening = std::mem::take(&mut self.raw);
                let config = self.start.config.clone();
                let start = CallStart { index: self.start.index, opening, config };
                self.state = MistralState::Object(Box::new(ObjectCall::new(start, None)));
                (skipped, CallOutcome::More)
            }
            Some(']') if self.opened => (skipped + 1, CallOutcome::End),
            Some(_) => (skipped, self.give_up()),
        }
    }

    fn object(&mut self, text: &str, out: &mut PendingDeltas) -> (usize, CallOutcome) {
        let MistralState::Object(object) = &mut self.state else { return (0, CallOutcome::More) };
        let (taken, outcome) = object.push(text, out);
        self.opened |= object.is_open();
        if outcome == CallOutcome::Complete {
            self.start.index += 1;
            self.state = MistralState::Between;
            return (taken, CallOutcome::Next);
        }
        (taken, outcome)
    }

    fn name(&mut self, text: &str, out: &mut PendingDeltas) -> (usize, CallOutcome) {
        let head = match find_any(text, &[ARGS, "{"]) {
            Some((at, "{")) => (at, at),
            Some((at, tag)) => (at, at + tag.len()),
            None if text.len() > MAX_HEAD_BYTES => return (0, self.give_up()),
            None => return (0, CallOutcome::More),
        };
        let name = text[..head.0].split(CALL_ID).next().unwrap_or_default().trim();
        match (is_name(name), ArgumentsText::begins(&text[head.1..])) {
            (true, Some(true)) => {
                self.start.open(name, out);
                self.opened = true;
                self.state = MistralState::Arguments(ArgumentsText::default());
                (head.1, CallOutcome::More)
            }
            (true, None) => (0, CallOutcome::More),
            _ => (0, self.give_up()),
        }
    }

    fn arguments(&mut self, text: &str, out: &mut PendingDeltas) -> (usize, CallOutcome) {
        let MistralState::Arguments(arguments) = &mut self.state else {
            return (0, CallOutcome::More);
        };
        match arguments.push(text, self.start.index, out) {
            ArgumentsEnd::More => (text.len(), CallOutcome::More),
            ArgumentsEnd::Closed(end) => (end, CallOutcome::Complete),
            ArgumentsEnd::NoObject => (0, CallOutcome::Complete),
        }
    }
}

impl CallReader for MistralCalls {
    fn push(&mut self, text: &str, out: &mut PendingDeltas) -> (usize, CallOutcome) {
        let mut taken = 0;
        loop {
            let (rest, before) = (&text[taken..], std::mem::discriminant(&self.state));
            let (more, outcome) = match &self.state {
                MistralState::Begin => self.begin(rest),
                MistralState::Between => self.between(rest),
                MistralState::Object(_) => self.object(rest, out),
                MistralState::Name => self.name(rest, out),
                MistralState::Arguments(_) => self.arguments(rest, out),
            };
            taken += more;
            // A new state may go on with the rest at once; the same one has read what it can.
            let stays = before == std::mem::discriminant(&self.state);
            if stays || outcome != CallOutcome::More {
                return (taken, outcome);
            }
        }
    }

    fn finish(&mut self, rest: &str, out: &mut PendingDeltas) -> String {
        match &mut self.state {
            MistralState::Object(object) => object.finish(rest, out),
            _ if self.opened => String::new(),
            _ => std::mem::take(&mut self.raw) + rest,
        }
    }

    fn is_open(&self) -> bool {
        match &self.state {
            MistralState::Object(object) => object.is_open(),
            MistralState::Arguments(_) => true,
            MistralState::Begin | MistralState::Between | MistralState::Name => false,
        }
    }

    fn held_bytes(&self) -> usize {
        let of_object = match &self.state {
            MistralState::Object(object) => object.held_bytes(),
            _ => 0,
        };
        self.raw.len() + of_object
    }
}
