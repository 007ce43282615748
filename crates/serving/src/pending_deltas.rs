//! Deltas of one completion that wait for their flush. Adjacent ones are merged, so that a slow
//! reader, or a stream interval above 1, saves records and chunks as well as bytes.

use loquent_proto::Delta;
use serde_json::{Map, Value};

/// Held deltas of one completion, in the order of the log.
#[derive(Debug)]
pub struct PendingDeltas {
    choice: u32,
    deltas: Vec<Delta>,
    /// Bytes of the previous flush's text, used as the capacity of the next.
    text_capacity: usize,
}

impl PendingDeltas {
    /// Creates an empty list for completion `choice`.
    pub const fn new(choice: u32) -> Self {
        Self { choice, deltas: Vec::new(), text_capacity: 0 }
    }

    /// Returns the index of the completion.
    pub const fn choice(&self) -> u32 {
        self.choice
    }

    /// Returns the last text, to be appended to.
    pub fn text_mut(&mut self) -> &mut String {
        if !matches!(self.deltas.last(), Some(Delta::Text { .. })) {
            let text = String::with_capacity(self.text_capacity);
            self.deltas.push(Delta::Text { choice: self.choice, tokens: 0, text });
        }
        match self.deltas.last_mut() {
            Some(Delta::Text { text, .. }) => text,
            _ => unreachable!("a text was pushed"),
        }
    }

    /// Appends reasoning.
    pub fn push_reasoning(&mut self, text: &str) {
        match self.deltas.last_mut() {
            Some(Delta::Reasoning { text: last, .. }) => last.push_str(text),
            _ if text.is_empty() => {}
            _ => self.deltas.push(Delta::Reasoning {
                choice: self.choice,
                tokens: 0,
                text: text.to_owned(),
            }),
        }
    }

    /// Begins a tool call.
    pub fn open_call(&mut self, index: u32, id: String, name: String) {
        let (choice, arguments) = (self.choice, String::new());
        self.deltas.push(Delta::ToolCall { choice, index, tokens: 0, id, name, arguments });
    }

    /// Appends to the arguments of the tool call `index`.
    pub fn push_arguments(&mut self, index: u32, text: &str) {
        match self.deltas.last_mut() {
            Some(Delta::ToolCall { index: last, arguments, .. }) if *last == index => {
                arguments.push_str(text);
            }
            _ if text.is_empty() => {}
            _ => self.deltas.push(Delta::ToolCall {
                choice: self.choice,
                index,
                tokens: 0,
                id: String::new(),
                name: String::new(),
                arguments: text.to_owned(),
            }),
        }
    }

    /// Appends a delta of this completion, merged with the held ones where that loses nothing.
    pub fn push(&mut self, delta: Delta) {
        if let Delta::Logprobs { json, .. } = &delta
            && let Some(held) = self.open_logprobs()
            && join_json(held, json, join_arrays)
        {
            return;
        }
        let merged = self.deltas.last_mut().is_some_and(|last| merge(last, &delta));
        if !merged {
            self.deltas.push(delta);
        }
    }

    /// Returns true if nothing held is visible to a client.
    pub fn is_empty(&self) -> bool {
        self.bytes() == 0
    }

    /// Returns the bytes of all content visible to a client.
    pub fn bytes(&self) -> usize {
        self.deltas.iter().map(Delta::payload_bytes).sum()
    }

    /// Takes all deltas, for a flush that covers `tokens` tokens, and reserves room for the next.
    pub fn take(&mut self, tokens: u32) -> Vec<Delta> {
        let mut deltas = std::mem::replace(&mut self.deltas, Vec::with_capacity(1));
        let mut tokens = tokens;
        // Text that was asked for and never written, or that has only log-probabilities.
        deltas.retain(|delta| {
            let keep = delta.payload_bytes() > 0;
            tokens += if keep { 0 } else { delta.tokens() };
            keep
        });
        // Log-probabilities leave with the text behind them (S-6.2). Tokens of reasoning, or
        // without any text, have none, and the next flush's would take their place.
        let last = deltas.iter().rposition(|delta| matches!(delta, Delta::Logprobs { .. }));
        let is_text = |delta: &Delta| matches!(delta, Delta::Text { .. });
        if last.is_some_and(|last| !deltas[last..].iter().any(is_text)) {
            deltas.push(Delta::Text { choice: self.choice, tokens: 0, text: String::new() });
        }
        // A flush says how many tokens it covers, not which of them gave which text.
        if let Some(count) = deltas.iter_mut().find_map(Delta::tokens_mut) {
            *count += tokens;
        }
        if let Some(Delta::Text { text, .. }) = deltas.last() {
            self.text_capacity = text.len();
        }
        deltas
    }

    /// Returns the held log-probabilities, which later ones join even across other deltas: with two
    /// such records and no text between them, both would belong to one chunk, and the first would
    /// be lost.
    fn open_logprobs(&mut self) -> Option<&mut String> {
        self.deltas.iter_mut().rev().find_map(|delta| match delta {
            Delta::Logprobs { json, .. } => Some(json),
            _ => None,
        })
    }
}

/// Appends `more` to `last` if both are of one kind. Returns false if they cannot be merged.
fn merge(last: &mut Delta, more: &Delta) -> bool {
    match (last, more) {
        (
            Delta::Text { tokens, text, .. },
            Delta::Text { tokens: more_tokens, text: more_text, .. },
        )
        | (
            Delta::Reasoning { tokens, text, .. },
            Delta::Reasoning { tokens: more_tokens, text: more_text, .. },
        ) => {
            text.push_str(more_text);
            *tokens += more_tokens;
            true
        }
        (
            Delta::ToolCall { index, tokens, arguments, .. },
            Delta::ToolCall {
                index: more_index, tokens: more_tokens, name, arguments: more, ..
            },
        ) if index == more_index && name.is_empty() => {
            arguments.push_str(more);
            *tokens += more_tokens;
            true
        }
        (Delta::Other { json, .. }, Delta::Other { json: more, .. }) => {
            join_json(json, more, join_others)
        }
        _ => false,
    }
}

/// Joins two JSON objects by `join`. Returns false, without a change, if either is not an object.
fn join_json(
    held: &mut String,
    more: &str,
    join: fn(&mut Map<String, Value>, Map<String, Value>),
) -> bool {
    let (Ok(mut all), Ok(more)) = (serde_json::from_str(held), serde_json::from_str(more)) else {
        return false;
    };
    join(&mut all, more);
    *held = Value::from(all).to_string();
    true
}

/// Joins log-probabilities: lists grow, all else is replaced.
fn join_arrays(all: &mut Map<String, Value>, more: Map<String, Value>) {
    for (name, value) in more {
        match (all.get_mut(&name), value) {
            (Some(Value::Array(items)), Value::Array(more)) => items.extend(more),
            (_, value) => drop(all.insert(name, value)),
        }
    }
}

/// Joins unknown members of chunks: texts and lists of a choice's delta grow, all else is replaced.
fn join_others(all: &mut Map<String, Value>, more: Map<String, Value>) {
    for (name, value) in more {
        match (all.get_mut(&name), value) {
            (Some(Value::Array(choices)), Value::Array(more)) if name == "choices" => {
                match (choices.first_mut(), more.into_iter().next()) {
                    (Some(Value::Object(one)), Some(Value::Object(more))) => join_choice(one, more),
                    (_, more) => choices.extend(more),
                }
            }
            (_, value) => drop(all.insert(name, value)),
        }
    }
}

fn join_choice(one: &mut Map<String, Value>, more: Map<String, Value>) {
    for (name, value) in more {
        match (one.get_mut(&name), value) {
            (Some(Value::Object(delta)), Value::Object(more)) if name == "delta" => {
                join_delta(delta, more);
            }
            (_, value) => drop(one.insert(name, value)),
        }
    }
}

fn join_delta(delta: &mut Map<String, Value>, more: Map<String, Value>) {
    for (name, value) in more {
        match (delta.get_mut(&name), value) {
            (Some(Value::String(text)), Value::String(more)) => text.push_str(&more),
            (Some(Value::Array(items)), Value::Array(more)) => items.extend(more),
            (_, value) => drop(delta.insert(name, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn text(tokens: u32, text: &str) -> Delta {
        Delta::Text { choice: 3, tokens, text: text.into() }
    }

    fn logprobs(json: Value) -> Delta {
        Delta::Logprobs { choice: 3, json: json.to_string() }
    }

    fn other(json: Value) -> Delta {
        Delta::Other { choice: 3, json: json.to_string() }
    }

    fn merged(deltas: impl IntoIterator<Item = Delta>) -> Vec<Delta> {
        let mut held = PendingDeltas::new(3);
        deltas.into_iter().for_each(|delta| held.push(delta));
        held.take(0)
    }

    #[test]
    fn neighbours_of_one_kind_become_one_and_order_is_kept() {
        let think = |tokens, text: &str| Delta::Reasoning { choice: 3, tokens, text: text.into() };
        let call = |id: &str, name: &str, arguments: &str| Delta::ToolCall {
            choice: 3,
            index: 0,
            tokens: 1,
            id: id.into(),
            name: name.into(),
            arguments: arguments.into(),
        };
        let deltas = [
            think(1, "a"),
            think(1, "b"),
            text(1, "c"),
            text(1, "d"),
            call("1", "f", "{"),
            call("", "", "}"),
            call("2", "g", "{}"),
            text(1, "e"),
        ];
        let all = merged(deltas);
        assert_eq!(all[..2], [think(2, "ab"), text(2, "cd")]);
        let Delta::ToolCall { tokens: 2, arguments, .. } = &all[2] else { panic!("{all:?}") };
        assert_eq!(
            (arguments.as_str(), &all[3..]),
            ("{}", &[call("2", "g", "{}"), text(1, "e")][..])
        );
    }

    #[test]
    fn log_probabilities_stay_before_the_text_that_they_belong_to() {
        let deltas = [
            text(1, "x"),
            logprobs(json!({"content": [1], "refusal": null})),
            text(1, "a"),
            logprobs(json!({"content": [2], "refusal": null})),
            text(1, "b"),
        ];
        let joined = logprobs(json!({"content": [1, 2], "refusal": null}));
        assert_eq!(merged(deltas), [text(1, "x"), joined, text(2, "ab")]);
    }

    #[test]
    fn log_probabilities_of_reasoning_are_not_lost() {
        let think = Delta::Reasoning { choice: 3, tokens: 1, text: "r".into() };
        let deltas = [
            logprobs(json!({"content": [1]})),
            think.clone(),
            other(json!({"a": 1})),
            logprobs(json!({"content": [2]})),
            text(1, "b"),
        ];
        let joined = logprobs(json!({"content": [1, 2]}));
        assert_eq!(merged(deltas), [joined, think, other(json!({"a": 1})), text(1, "b")]);
    }

    #[test]
    fn unknown_members_of_neighbours_are_joined() {
        let chunk = |text: &str, list: &[u8], stop: u8| {
            let delta = json!({"reasoning": text, "list": list});
            other(json!({"choices": [{"index": 3, "stop": stop, "delta": delta}], "at": stop}))
        };
        let deltas = [chunk("a", &[1], 7), chunk("b", &[2], 8)];
        assert_eq!(merged(deltas), [chunk("ab", &[1, 2], 8)]);
        let apart = [other(json!({"a": 1})), text(1, "x"), other(json!({"a": 2}))];
        assert_eq!(merged(apart.clone()), apart);
    }

    #[test]
    fn text_that_was_not_written_leaves_no_delta() {
        let mut held = PendingDeltas::new(0);
        held.text_mut();
        held.push_reasoning("");
        held.push_arguments(0, "");
        assert!(held.is_empty() && held.take(3).is_empty());
        held.push_reasoning("a");
        held.text_mut().push('b');
        held.open_call(0, "i".into(), "f".into());
        held.push_arguments(0, "{}");
        assert_eq!(held.bytes(), 6);
        let tokens: Vec<u32> = held.take(3).iter().map(Delta::tokens).collect();
        assert_eq!((tokens, held.bytes()), (vec![3, 0, 0], 0));
    }

    #[test]
    fn an_empty_text_stays_where_log_probabilities_need_it() {
        let deltas = [logprobs(json!({"content": [1]})), text(1, "")];
        assert_eq!(merged(deltas.clone()), deltas);
    }
}
