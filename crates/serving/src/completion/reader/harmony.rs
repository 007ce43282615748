//! Harmony (gpt-oss): an answer consists of messages, each with a head that gives its kind. The
//! channel `analysis` is reasoning, messages to `functions.NAME` are calls, all others are the
//! answer.

use super::arguments::{ArgumentsEnd, ArgumentsText};
use super::config::SplitConfig;
use super::matching::{TagMatch, find_any, front_of, is_name, overlap_any};
use crate::pending_deltas::PendingDeltas;

const CHANNEL: &str = "<|channel|>";
const START: &str = "<|start|>";
const MESSAGE: &str = "<|message|>";
/// Tags that begin a head. (The prompt ends with `<|start|>assistant`.)
const HEADS: [&str; 4] = [CHANNEL, START, MESSAGE, "to=functions."];
/// Tags that end a body; the last two begin the next message's head.
const ENDS: [&str; 5] = ["<|end|>", "<|call|>", "<|return|>", START, CHANNEL];
/// Maximum bytes of a head.
const MAX_HEAD_BYTES: usize = 512;

/// Kind of a message.
enum MessageBody {
    Answer,
    Reasoning,
    /// A call whose arguments may not have begun.
    Call {
        name: String,
        arguments: ArgumentsText,
    },
    /// After a call's arguments: text up to the message's end is ignored.
    Called,
}

enum ChannelState {
    /// Before a message, or in its head.
    Head,
    Body(MessageBody),
}

/// Reads one completion.
pub(super) struct ChannelSplitter {
    config: SplitConfig,
    state: ChannelState,
    /// Text that may still become part of a head or tag.
    pending: String,
    calls: u32,
    has_begun: bool,
    said: Said,
}

/// Kinds of messages that have had text: the next one of a kind is separated from those before.
#[derive(Default)]
struct Said {
    answer: bool,
    reasoning: bool,
    /// True at the beginning of a further message, before its first text.
    is_next: bool,
}

impl ChannelSplitter {
    pub(super) fn new(config: SplitConfig) -> Self {
        let (pending, said) = Default::default();
        Self { config, state: ChannelState::Head, pending, calls: 0, has_begun: false, said }
    }

    pub(super) fn push(&mut self, fresh: &str, out: &mut PendingDeltas) {
        self.pending.push_str(fresh);
        while self.step(out) {}
    }

    pub(super) fn finish(&mut self, out: &mut PendingDeltas) {
        let rest = std::mem::take(&mut self.pending);
        match std::mem::replace(&mut self.state, ChannelState::Head) {
            // Half a head is nothing that was said; half a tag may be, before any message.
            ChannelState::Head if self.has_begun || rest.starts_with(CHANNEL) => {}
            ChannelState::Head => self.say(&rest, out),
            ChannelState::Body(mut body) => {
                self.put(&mut body, &rest, out);
                self.complete_call(&body, out);
            }
        }
    }

    pub(super) fn is_thinking(&self) -> bool {
        matches!(self.state, ChannelState::Body(MessageBody::Reasoning))
    }

    pub(super) fn has_called(&self) -> bool {
        self.calls > 0
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.pending.len()
    }

    fn step(&mut self, out: &mut PendingDeltas) -> bool {
        // Taken out, so that both body and `self` can change; a body that goes on is put back.
        match std::mem::replace(&mut self.state, ChannelState::Head) {
            ChannelState::Head => self.head(out),
            ChannelState::Body(body) => self.body(body, out),
        }
    }

    fn head(&mut self, out: &mut PendingDeltas) -> bool {
        if self.pending.is_empty() {
            return false;
        }
        let tag_end = match front_of(&self.pending, &HEADS) {
            Ok((_, end)) => end,
            Err(TagMatch::MayBe) => return false,
            // The prompt had the head already, or the model forgot it.
            Err(_) => return self.begin(MessageBody::Answer),
        };
        // Sought in the window only, so that the outcome does not depend on how text was cut.
        let window = &self.pending[..self.pending.floor_char_boundary(MAX_HEAD_BYTES)];
        let Some(at) = window.find(MESSAGE) else {
            if self.pending.len() < MAX_HEAD_BYTES {
                return false;
            }
            // No head: its tag would end the text that it is part of.
            let tag: String = self.pending.drain(..tag_end).collect();
            self.begin(MessageBody::Answer);
            self.say(&tag, out);
            return true;
        };
        let head: String = self.pending.drain(..at + MESSAGE.len()).collect();
        let body = self.message(&head[..at]);
        if matches!(body, MessageBody::Reasoning) && self.config.keeps_reasoning {
            out.text_mut().push_str(&head);
        }
        self.begin(body)
    }

    fn begin(&mut self, body: MessageBody) -> bool {
        (self.has_begun, self.said.is_next) = (true, true);
        self.state = ChannelState::Body(body);
        true
    }

    /// Returns the kind of the message that follows `head`.
    fn message(&self, head: &str) -> MessageBody {
        let word = |text: &str| {
            let end = text.find(|c: char| c.is_whitespace() || c == '<').unwrap_or(text.len());
            text[..end].to_owned()
        };
        let channel = head.split_once(CHANNEL).map(|(_, behind)| word(behind.trim_start()));
        let recipient = head.split_once("to=").map(|(_, behind)| word(behind));
        let calls = self.config.calls.as_ref();
        let name = recipient.as_deref().zip(calls).and_then(|(name, calls)| {
            let function = name.strip_prefix("functions.");
            // Without the namespace only a tool's name shows that a call is meant.
            function.or(Some(name).filter(|name| calls.knows(name)))
        });
        match (name.filter(|name| is_name(name)), channel.as_deref(), &recipient) {
            (Some(name), ..) => {
                let arguments = ArgumentsText::default();
                MessageBody::Call { name: name.to_owned(), arguments }
            }
            // Messages to tools of its own are the model's affair.
            (None, Some("analysis"), _) => MessageBody::Reasoning,
            (None, _, Some(_)) if calls.is_some() => MessageBody::Reasoning,
            (None, ..) => MessageBody::Answer,
        }
    }

    fn body(&mut self, mut body: MessageBody, out: &mut PendingDeltas) -> bool {
        let Some((at, tag)) = find_any(&self.pending, &ENDS) else {
            // A tag's front is held back until more text shows whether it is one.
            let safe = self.pending.len() - overlap_any(&self.pending, &ENDS);
            let text: String = self.pending.drain(..safe).collect();
            self.put(&mut body, &text, out);
            self.state = ChannelState::Body(body);
            return false;
        };
        let text: String = self.pending.drain(..at).collect();
        self.put(&mut body, &text, out);
        self.complete_call(&body, out);
        if matches!(body, MessageBody::Reasoning) && self.config.keeps_reasoning {
            out.text_mut().push_str(ENDS[0]);
        }
        if tag != START && tag != CHANNEL {
            self.pending.drain(..tag.len());
        }
        true
    }

    /// Passes on a message's text.
    fn put(&mut self, body: &mut MessageBody, text: &str, out: &mut PendingDeltas) {
        match body {
            MessageBody::Answer => self.say(text, out),
            MessageBody::Reasoning => self.think(text, out),
            MessageBody::Call { name, arguments } => {
                if !arguments.has_begun() {
                    match ArgumentsText::begins(text) {
                        None => return,
                        Some(true) => self.open(name, out),
                        Some(false) => {
                            *body = MessageBody::Answer;
                            return self.say(text.trim_start(), out);
                        }
                    }
                }
                if let ArgumentsEnd::Closed(_) = arguments.push(text, self.calls, out) {
                    self.calls += 1;
                    *body = MessageBody::Called;
                }
            }
            MessageBody::Called => {}
        }
    }

    /// Completes a call without arguments with an empty object.
    fn complete_call(&mut self, body: &MessageBody, out: &mut PendingDeltas) {
        if let MessageBody::Call { name, arguments } = body
            && !arguments.has_begun()
        {
            self.open(name, out);
            out.push_arguments(self.calls, "{}");
            self.calls += 1;
        }
    }

    fn open(&self, name: &str, out: &mut PendingDeltas) {
        if let Some(calls) = &self.config.calls {
            out.open_call(self.calls, calls.call_id(self.calls), name.to_owned());
        }
    }

    fn say(&mut self, text: &str, out: &mut PendingDeltas) {
        if text.is_empty() {
            return;
        }
        if std::mem::take(&mut self.said.is_next) && self.said.answer {
            out.text_mut().push_str("\n\n");
        }
        self.said.answer = true;
        out.text_mut().push_str(text);
    }

    fn think(&mut self, text: &str, out: &mut PendingDeltas) {
        if text.is_empty() {
            return;
        }
        if self.config.keeps_reasoning {
            return out.text_mut().push_str(text);
        }
        if std::mem::take(&mut self.said.is_next) && self.said.reasoning {
            out.push_reasoning("\n\n");
        }
        self.said.reasoning = true;
        out.push_reasoning(text);
    }
}
