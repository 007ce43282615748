//! Replay of an answer whose replica was lost: the known part is compared and left out, and the
//! rest is appended.
//!
//! Two replicas cut the same text into different records, depending on when their readers were
//! ready. So the text is compared, not the records; and of log-probabilities only the tokens:
//! numbers are not sent twice, even if their last digits differ. A replica that takes an answer
//! over compares its output with the stored log; a reader that had more than was stored compares
//! the new log with what it has read (D-6.7).

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use crate::{Delta, TokenLists};

/// The second answer differs from the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Differs;

/// The answer has a part that cannot be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Incomparable;

/// The part of the answer that a piece of text belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum TextPart {
    /// Visible text of this choice.
    Text(u32),
    /// Reasoning of this choice.
    Reasoning(u32),
    /// Arguments of this choice's tool call with this index.
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
    /// Tokens of each choice whose log-probabilities are known.
    scored: BTreeMap<u32, KnownTokens>,
    /// Other members of each choice, as JSON.
    others: BTreeMap<u32, Vec<String>>,
    /// Choices that have ended, with the reason.
    finished: BTreeMap<u32, String>,
    /// Bytes of everything known.
    bytes: usize,
}

#[derive(Debug, Default)]
struct KnownTokens {
    /// Tokens as JSON strings.
    tokens: Vec<String>,
    /// Number of tokens that were repeated.
    again: usize,
}

impl KnownTokens {
    fn is_over(&self) -> bool {
        self.again == self.tokens.len()
    }
}

#[derive(Debug, Default)]
struct KnownText {
    text: String,
    /// Bytes of the text that were repeated.
    again: usize,
    /// Tokens in the text, minus those that were repeated.
    tokens: u32,
    /// Name of the called tool. The call's id is random; the first answer's id stays.
    tool: String,
}

impl Replay {
    /// Creates a replay of a log with `records`.
    ///
    /// # Errors
    /// [`Incomparable`] if the log has an error, or something in it is not a record.
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

    /// Adds the next delta of the first answer.
    ///
    /// # Errors
    /// [`Incomparable`] if it is an error, or log-probabilities in an unknown form. Nothing can be
    /// compared from then on.
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
            Delta::Logprobs { choice, json } => {
                let lists = TokenLists::parse(json).ok_or(Incomparable)?;
                let scored = self.scored.entry(*choice).or_default();
                for token in lists.tokens() {
                    scored.tokens.push(token.into());
                    self.bytes += token.len();
                }
            }
            Delta::Other { choice, json } => {
                self.others.entry(*choice).or_default().push(json.clone());
                self.bytes += json.len();
            }
            Delta::Error { .. } => return Err(Incomparable),
        }
        Ok(())
    }

    /// Bytes of everything known.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    fn add(&mut self, part: TextPart, tokens: u32, text: &str) {
        let known = self.known.entry(part).or_default();
        known.text.push_str(text);
        known.tokens = known.tokens.saturating_add(tokens);
        self.bytes += text.len();
    }

    /// Returns the part of the repeated `delta` that the log does not have yet.
    ///
    /// # Errors
    /// [`Differs`] if it differs from the log.
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
                _ if self.is_open(choice) || self.is_scored_further(choice) => Err(Differs),
                None => Ok(Some(Delta::Finish { choice, reason })),
                Some(known) if known == reason => Ok(None),
                Some(_) => Err(Differs),
            },
            Delta::Logprobs { choice, json } => {
                let rest = self.tokens_rest(choice, json)?;
                Ok(rest.map(|json| Delta::Logprobs { choice, json }))
            }
            Delta::Other { choice, json } => Ok(self.other_rest(choice, json)),
            Delta::Error { .. } => Ok(Some(delta)),
            Delta::Done if !self.is_over() => Err(Differs),
            // Counts, and how far a prompt or a model is: what was told of them holds no more.
            other => Ok(self.is_over().then_some(other)),
        }
    }

    /// Returns the log-probabilities of tokens that have none yet.
    fn tokens_rest(&mut self, choice: u32, json: String) -> Result<Option<String>, Differs> {
        let Some(known) = self.scored.get_mut(&choice).filter(|known| !known.is_over()) else {
            return Ok(Some(json));
        };
        let lists = TokenLists::parse(&json).ok_or(Differs)?;
        let left = &known.tokens[known.again..];
        let mut tokens = lists.tokens();
        let same = left.iter().zip(&mut tokens).take_while(|(known, token)| known == token).count();
        known.again += same;
        if same < left.len().min(lists.tokens().count()) {
            return Err(Differs);
        }
        let is_more = lists.tokens().count() > same;
        Ok(is_more.then(|| lists.without_first(same)))
    }

    /// Returns the other members of a choice, such as its stop reason, if they are not known yet.
    fn other_rest(&mut self, choice: u32, json: String) -> Option<Delta> {
        let told = self.others.get_mut(&choice);
        if let Some(told) = told
            && let Some(at) = told.iter().position(|known| *known == json)
        {
            told.remove(at);
            return None;
        }
        // Of a choice that is behind, all that comes here was told in its place, in other numbers.
        (!self.is_open(choice)).then_some(Delta::Other { choice, json })
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

    /// Returns true if the log has text of `choice` that was not repeated yet.
    fn is_open(&self, choice: u32) -> bool {
        let mut known = self.known.iter().filter(|(part, _)| part.choice() == choice);
        known.any(|(_, known)| known.again < known.text.len())
    }

    /// Returns true if the log has log-probabilities of `choice` that were not repeated yet.
    fn is_scored_further(&self, choice: u32) -> bool {
        self.scored.get(&choice).is_some_and(|known| !known.is_over())
    }

    /// Returns true once the whole log was repeated.
    pub fn is_over(&self) -> bool {
        self.finished.is_empty()
            && self.scored.values().all(KnownTokens::is_over)
            && self.known.values().all(|known| known.again == known.text.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

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
        /// However both replicas cut the text, exactly the missing part follows.
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

    fn logprobs(tokens: &[&str], logprob: f64) -> Delta {
        let entry = |token: &&str| json!({"token": token, "logprob": logprob});
        let content: Vec<Value> = tokens.iter().map(entry).collect();
        Delta::Logprobs { choice: 0, json: json!({"content": content}).to_string() }
    }

    #[test]
    fn log_probabilities_are_told_once_however_they_are_cut() {
        let known = log(&[logprobs(&["a", "b"], -1.0), text(0, 2, "ab"), logprobs(&["c"], -1.0)]);
        let mut replay = Replay::of(&known).unwrap();
        // The last digits of a number do not make another answer.
        assert_eq!(replay.rest_of(logprobs(&["a"], -1.1)), Ok(None));
        assert_eq!(replay.rest_of(text(0, 1, "a")), Ok(None));
        let next = logprobs(&["b", "c", "d"], -1.1);
        assert_eq!(replay.rest_of(next), Ok(Some(logprobs(&["d"], -1.1))));
        assert_eq!(replay.rest_of(text(0, 3, "bcd")), Ok(Some(text(0, 2, "cd"))));
        assert!(replay.is_over());
        let after = logprobs(&["e"], -2.0);
        assert_eq!(replay.rest_of(after.clone()), Ok(Some(after)));
        let mut replay = Replay::of(&known).unwrap();
        assert_eq!(replay.rest_of(logprobs(&["a", "x"], -1.0)), Err(Differs), "another token");
        let mut replay = Replay::of(&known).unwrap();
        assert_eq!(replay.rest_of(logprobs(&["a", "b"], -1.0)), Ok(None));
        assert_eq!(replay.rest_of(text(0, 2, "ab")), Ok(None));
        let end = Delta::Finish { choice: 0, reason: "stop".into() };
        assert_eq!(replay.rest_of(end), Err(Differs), "a token is missing");
    }

    proptest! {
        /// However both replicas cut the tokens, each has its log-probability once.
        #[test]
        fn tokens_go_on_where_the_log_ends(
            count in 0_usize..20,
            kept in 0_usize..20,
            first in prop::collection::vec(1_usize..5, 20),
            second in prop::collection::vec(1_usize..5, 20),
        ) {
            let names: Vec<String> = (0..count).map(|at| (at % 3).to_string()).collect();
            let cut = |tokens: &[String], sizes: &[usize]| {
                let (mut from, mut all) = (0, Vec::new());
                for size in sizes {
                    let to = (from + size).min(tokens.len());
                    let piece: Vec<&str> = tokens[from..to].iter().map(|one| &**one).collect();
                    all.extend((from < to).then(|| logprobs(&piece, 0.0)));
                    from = to;
                }
                all
            };
            let kept = kept.min(count);
            let known = cut(&names[..kept], &first);
            let mut replay = Replay::of(&log(&known)).unwrap();
            let mut all: Vec<String> = names[..kept].to_vec();
            for piece in cut(&names, &second) {
                if let Some(Delta::Logprobs { json, .. }) = replay.rest_of(piece).unwrap() {
                    let rest = TokenLists::parse(&json).unwrap();
                    all.extend(rest.tokens().map(|token| token.trim_matches('"').to_owned()));
                }
            }
            prop_assert_eq!(all, names);
            prop_assert!(replay.is_over());
        }
    }

    #[test]
    fn what_stands_beside_the_text_of_one_choice_is_told_once() {
        let other = |choice, json: &str| Delta::Other { choice, json: json.into() };
        let known = log(&[text(0, 1, "a"), other(0, "{\"x\":1}"), text(1, 2, "bc")]);
        let mut replay = Replay::of(&known).unwrap();
        assert_eq!(replay.rest_of(text(0, 1, "a")), Ok(None));
        assert_eq!(replay.rest_of(other(0, "{\"x\":1}")), Ok(None));
        let news = other(0, "{\"y\":1}");
        assert_eq!(replay.rest_of(news.clone()), Ok(Some(news)), "the other choice is behind");
        assert_eq!(replay.rest_of(other(1, "{\"y\":1}")), Ok(None), "and this was told otherwise");
        assert_eq!(replay.rest_of(text(1, 2, "bc")), Ok(None));
        assert!(replay.is_over());
    }

    #[test]
    fn what_cannot_be_compared_is_not_taken_over() {
        let odd = Delta::Logprobs { choice: 0, json: "{}".into() };
        assert_eq!(Replay::of(&log(&[text(0, 1, "a"), odd])).err(), Some(Incomparable));
        let error = Delta::Error { code: "x".into(), message: "y".into() };
        assert_eq!(Replay::of(&log(&[text(0, 1, "a"), error])).err(), Some(Incomparable));
    }
}
