//! An answer that is told once more, because the replica that generated it has ended: what is known
//! of it already is compared and left out, and what follows goes on behind it.
//!
//! Two replicas cut the same text into different records, by when their readers were ready. So it
//! is the text that is compared, and not the records. The replica that takes an answer over
//! compares what it generates with what is stored; a reader that had more than was stored compares
//! what it reads again with what it has read (D-6.7).

use alloc::collections::BTreeMap;
use alloc::string::String;

use crate::Delta;

/// The second answer differs from the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Differs;

/// The answer has a part that cannot be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Incomparable;

/// What a piece of text is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum TextPart {
    /// The visible text of this choice.
    Text(u32),
    /// Its reasoning.
    Reasoning(u32),
    /// The arguments of its call of a tool, by the call's index.
    Call(u32, u32),
}

impl TextPart {
    const fn choice(self) -> u32 {
        match self {
            Self::Text(choice) | Self::Reasoning(choice) | Self::Call(choice, _) => choice,
        }
    }
}

/// See the module's documentation.
///
/// ```
/// use loquent_proto::{Delta, Replay};
///
/// let mut replay = Replay::default();
/// replay.note(&Delta::text("one tw")).unwrap();
/// assert_eq!(replay.rest_of(Delta::text("one")), Ok(None));
/// assert_eq!(replay.rest_of(Delta::text(" two")), Ok(Some(Delta::text("o"))));
/// ```
#[derive(Debug, Default)]
pub struct Replay {
    known: BTreeMap<TextPart, KnownText>,
    /// Choices that have ended, and why.
    finished: BTreeMap<u32, String>,
    /// Bytes of all texts.
    bytes: usize,
}

#[derive(Debug, Default)]
struct KnownText {
    text: String,
    /// How much of it came again.
    again: usize,
    /// Tokens that it stands for, less those that came again.
    tokens: u32,
    /// The tool that is called. The call's id is random, and that of the first answer stays.
    tool: String,
}

impl Replay {
    /// What a log with `records` has.
    ///
    /// # Errors
    /// [`Incomparable`], if something in it is no text, or no record.
    pub fn of(records: &[u8]) -> Result<Self, Incomparable> {
        let (mut replay, mut at) = (Self::default(), 0);
        while at < records.len() {
            let Ok(Some((len, Some(delta)))) = Delta::decode(&records[at..]) else {
                return Err(Incomparable);
            };
            at += len;
            replay.note(&delta)?;
        }
        Ok(replay)
    }

    /// Adds what comes next in the first answer.
    ///
    /// # Errors
    /// [`Incomparable`], if it is no text. Nothing can be compared from then on.
    pub fn note(&mut self, delta: &Delta) -> Result<(), Incomparable> {
        match delta {
            // Not of the text, and told anew.
            Delta::Open { .. }
            | Delta::Usage { .. }
            | Delta::Progress(_)
            | Delta::Pause { .. }
            | Delta::Done => {}
            Delta::Text { choice, tokens, text } => {
                self.add(TextPart::Text(*choice), *tokens, text)
            }
            Delta::Reasoning { choice, tokens, text } => {
                self.add(TextPart::Reasoning(*choice), *tokens, text);
            }
            Delta::ToolCall { choice, index, tokens, name, arguments, .. } => {
                let part = TextPart::Call(*choice, *index);
                self.add(part, *tokens, arguments);
                self.known.entry(part).or_default().tool.push_str(name);
                self.bytes += name.len();
            }
            Delta::Finish { choice, reason } => {
                self.finished.insert(*choice, reason.clone());
            }
            _ => return Err(Incomparable),
        }
        Ok(())
    }

    /// Bytes of text that are known.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    fn add(&mut self, part: TextPart, tokens: u32, text: &str) {
        let known = self.known.entry(part).or_default();
        known.text.push_str(text);
        known.tokens = known.tokens.saturating_add(tokens);
        self.bytes += text.len();
    }

    /// What the log still lacks of `delta`, which comes again.
    ///
    /// # Errors
    /// [`Differs`] from what the log has.
    pub fn rest_of(&mut self, delta: Delta) -> Result<Option<Delta>, Differs> {
        match delta {
            Delta::Open { .. } => Ok(None),
            Delta::Text { choice, tokens, text } => {
                let rest = self.text_rest(TextPart::Text(choice), tokens, text)?;
                Ok(rest.map(|(tokens, text)| Delta::Text { choice, tokens, text }))
            }
            Delta::Reasoning { choice, tokens, text } => {
                let rest = self.text_rest(TextPart::Reasoning(choice), tokens, text)?;
                Ok(rest.map(|(tokens, text)| Delta::Reasoning { choice, tokens, text }))
            }
            Delta::ToolCall { .. } => self.call_rest(delta),
            Delta::Finish { choice, reason } => match self.finished.remove(&choice) {
                None if self.is_open(choice) => Err(Differs),
                None => Ok(Some(Delta::Finish { choice, reason })),
                Some(known) if known == reason && !self.is_open(choice) => Ok(None),
                Some(_) => Err(Differs),
            },
            Delta::Usage { .. } if !self.is_over() => Ok(None),
            Delta::Error { .. } | Delta::Usage { .. } => Ok(Some(delta)),
            other if self.is_over() => Ok(Some(other)),
            // Nothing of these kinds was in the log.
            Delta::Logprobs { .. } | Delta::Done => Err(Differs),
            // How far a prompt or a model is: no part of the answer.
            _ => Ok(None),
        }
    }

    fn call_rest(&mut self, delta: Delta) -> Result<Option<Delta>, Differs> {
        let Delta::ToolCall { choice, index, tokens, name, arguments, .. } = &delta else {
            return Ok(Some(delta));
        };
        let (choice, index) = (*choice, *index);
        let Some(known) = self.known.get(&TextPart::Call(choice, index)) else {
            return if self.is_open(choice) { Err(Differs) } else { Ok(Some(delta)) };
        };
        if !name.is_empty() && *name != known.tool {
            return Err(Differs);
        }
        let rest = self.text_rest(TextPart::Call(choice, index), *tokens, arguments.clone())?;
        let (id, name) = (String::new(), String::new());
        Ok(rest.map(|(tokens, arguments)| Delta::ToolCall {
            choice,
            index,
            tokens,
            id,
            name,
            arguments,
        }))
    }

    fn text_rest(
        &mut self,
        part: TextPart,
        tokens: u32,
        text: String,
    ) -> Result<Option<(u32, String)>, Differs> {
        let Some(known) = self.known.get_mut(&part) else {
            // What the log has of the choice came before this.
            let is_early = !text.is_empty() && self.is_open(part.choice());
            return if is_early { Err(Differs) } else { Ok(Some((tokens, text))) };
        };
        let left = &known.text[known.again..];
        let covered = tokens.min(known.tokens);
        known.tokens -= covered;
        if left.len() >= text.len() {
            if !left.starts_with(&*text) {
                return Err(Differs);
            }
            known.again += text.len();
            // Tokens without text of their own.
            let is_news = text.is_empty() && tokens > covered;
            return Ok(is_news.then_some((tokens - covered, text)));
        }
        let rest = String::from(text.strip_prefix(left).ok_or(Differs)?);
        known.again = known.text.len();
        Ok(Some((tokens - covered, rest)))
    }

    /// Whether the log has more of `choice` than came again.
    fn is_open(&self, choice: u32) -> bool {
        let mut known = self.known.iter().filter(|(part, _)| part.choice() == choice);
        known.any(|(_, known)| known.again < known.text.len())
    }

    /// Whether all that the log has came again.
    pub fn is_over(&self) -> bool {
        self.finished.is_empty() && self.known.values().all(|known| known.again == known.text.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn log(deltas: &[Delta]) -> Vec<u8> {
        let mut bytes = Vec::new();
        deltas.iter().for_each(|delta| delta.encode(&mut bytes).unwrap());
        bytes
    }

    fn text(choice: u32, tokens: u32, text: &str) -> Delta {
        Delta::Text { choice, tokens, text: text.into() }
    }

    /// Cuts `whole` at the character boundaries next to `cuts`.
    fn pieces(whole: &str, cuts: &[usize]) -> Vec<String> {
        let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % (whole.len() + 1)).collect();
        ends.iter_mut().for_each(|end| {
            while !whole.is_char_boundary(*end) {
                *end -= 1;
            }
        });
        ends.sort_unstable();
        ends.push(whole.len());
        let mut from = 0;
        ends.into_iter().map(|end| whole[std::mem::replace(&mut from, end)..end].into()).collect()
    }

    proptest! {
        /// However both replicas cut the text, what follows is exactly what lacks.
        #[test]
        fn the_text_goes_on_where_the_log_ends(
            whole in "[a-zäöü ]{0,60}",
            kept in any::<usize>(),
            first in prop::collection::vec(any::<usize>(), 0..5),
            second in prop::collection::vec(any::<usize>(), 0..9),
        ) {
            let kept = pieces(&whole, &[kept])[0].clone();
            let before: Vec<Delta> =
                pieces(&kept, &first).iter().map(|piece| text(0, 1, piece)).collect();
            let mut replay = Replay::of(&log(&before)).unwrap();
            let mut all = kept;
            for piece in pieces(&whole, &second) {
                if let Some(Delta::Text { text, .. }) = replay.rest_of(text(0, 1, &piece)).unwrap() {
                    all.push_str(&text);
                }
            }
            prop_assert_eq!(all, whole);
            prop_assert!(replay.is_over());
        }

        #[test]
        fn hostile_records_are_compared_or_refused(bytes: Vec<u8>) {
            let _ = Replay::of(&bytes);
        }
    }

    #[test]
    fn another_text_is_noticed_and_tokens_are_counted_once() {
        let known = log(&[text(0, 2, "one tw")]);
        let mut replay = Replay::of(&known).unwrap();
        assert_eq!(replay.rest_of(text(0, 1, "one ")), Ok(None));
        assert_eq!(replay.rest_of(text(0, 2, "two three")), Ok(Some(text(0, 1, "o three"))));
        let mut replay = Replay::of(&known).unwrap();
        assert_eq!(replay.rest_of(text(0, 1, "one t")), Ok(None));
        assert_eq!(replay.rest_of(text(0, 1, "en")), Err(Differs));
        let mut replay = Replay::of(&known).unwrap();
        let end = Delta::Finish { choice: 0, reason: "stop".into() };
        assert_eq!(replay.rest_of(end), Err(Differs), "it ends too early");
    }

    fn call(id: &str, name: &str, arguments: &str) -> Delta {
        let (id, name, arguments) = (id.into(), name.into(), arguments.into());
        Delta::ToolCall { choice: 0, index: 0, tokens: 1, id, name, arguments }
    }

    #[test]
    fn a_call_of_a_tool_goes_on_under_its_first_id() {
        let known = log(&[text(0, 1, "So:"), call("one", "weather", "{\"ci"), call("", "", "ty")]);
        let mut replay = Replay::of(&known).unwrap();
        assert_eq!(replay.rest_of(text(0, 1, "So:")), Ok(None));
        assert_eq!(replay.rest_of(call("two", "weather", "{")), Ok(None));
        let rest = replay.rest_of(call("", "", "\"city\":")).unwrap();
        assert!(matches!(&rest, Some(Delta::ToolCall { id, arguments, .. })
            if id.is_empty() && arguments == "\":"));
        let next = call("three", "time", "{}");
        let Delta::ToolCall { choice, tokens, id, name, arguments, .. } = next else { panic!() };
        let next = Delta::ToolCall { choice, index: 1, tokens, id, name, arguments };
        assert_eq!(replay.rest_of(next.clone()), Ok(Some(next)));
        let mut replay = Replay::of(&known).unwrap();
        assert_eq!(replay.rest_of(call("two", "weather", "{")), Ok(None));
        assert_eq!(replay.rest_of(call("", "", "}")), Err(Differs));
        let mut replay = Replay::of(&known).unwrap();
        assert_eq!(replay.rest_of(call("two", "time", "{")), Err(Differs), "another tool");
    }

    #[test]
    fn what_comes_too_early_differs() {
        let known = log(&[Delta::Reasoning { choice: 0, tokens: 1, text: "hm, well".into() }]);
        let mut replay = Replay::of(&known).unwrap();
        assert_eq!(replay.rest_of(text(0, 1, "")), Ok(Some(text(0, 1, ""))), "it says nothing");
        assert_eq!(replay.rest_of(text(0, 1, "So")), Err(Differs));
        let mut replay = Replay::of(&known).unwrap();
        assert_eq!(replay.rest_of(call("one", "weather", "{")), Err(Differs));
        assert_eq!(replay.rest_of(text(1, 1, "So")), Ok(Some(text(1, 1, "So"))), "another choice");
    }

    #[test]
    fn a_pause_is_no_part_of_the_text() {
        let pause = Delta::Pause { why: "the engine was lost".into() };
        let mut replay = Replay::of(&log(&[text(0, 1, "one"), pause])).unwrap();
        assert_eq!(replay.rest_of(text(0, 2, "one two")), Ok(Some(text(0, 1, " two"))));
    }

    #[test]
    fn what_cannot_be_compared_is_not_taken_over() {
        let logprobs = Delta::Logprobs { choice: 0, json: "{}".into() };
        assert_eq!(Replay::of(&log(&[text(0, 1, "a"), logprobs])).err(), Some(Incomparable));
    }
}
