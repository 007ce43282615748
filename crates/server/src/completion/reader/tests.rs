//! The split does not depend on how the text was cut, and nothing of the text is lost.

use loquent_proto::Delta;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// What a client puts together from the deltas of an answer.
#[derive(Debug, Default, PartialEq)]
struct Gathered {
    text: String,
    reasoning: String,
    calls: Vec<GatheredCall>,
}

#[derive(Debug, PartialEq)]
struct GatheredCall {
    index: u32,
    id: String,
    name: String,
    arguments: String,
}

impl Gathered {
    fn push(&mut self, delta: Delta) {
        match delta {
            Delta::Text { text, .. } => self.text.push_str(&text),
            Delta::Reasoning { text, .. } => self.reasoning.push_str(&text),
            Delta::ToolCall { index, id, name, arguments, .. } => match self.calls.last_mut() {
                Some(last) if last.index == index => {
                    assert!(id.is_empty() && name.is_empty(), "a call is opened once");
                    last.arguments.push_str(&arguments);
                }
                _ => self.calls.push(GatheredCall { index, id, name, arguments }),
            },
            other => panic!("{other:?}"),
        }
    }
}

fn config(thinking: Thinking, syntax: Option<CallSyntax>) -> SplitConfig {
    let names = vec!["weather".to_owned(), "time".to_owned()];
    SplitConfig { thinking, calls: syntax.map(|syntax| CallConfig { syntax, names, id: 7 }) }
}

/// Everything that `pieces` are split into.
fn split(config: SplitConfig, pieces: &[&str]) -> Gathered {
    let (mut splitter, mut held) = (TextSplitter::new(config), HeldDeltas::new(0));
    let mut all = Gathered::default();
    for piece in pieces {
        splitter.push(piece, &mut held);
        held.take(1).into_iter().for_each(|delta| all.push(delta));
    }
    splitter.finish(&mut held);
    held.take(0).into_iter().for_each(|delta| all.push(delta));
    all
}

fn tagged(text: &str) -> Gathered {
    split(config(Thinking::Optional, Some(CallSyntax::Tagged)), &[text])
}

fn bare(text: &str) -> Gathered {
    split(config(Thinking::Never, Some(CallSyntax::Bare)), &[text])
}

fn call(index: u32, name: &str, arguments: &str) -> GatheredCall {
    let id = format!("call_0000000000000007{index:04x}");
    GatheredCall { index, id, name: name.into(), arguments: arguments.into() }
}

fn plain(text: &str) -> Gathered {
    Gathered { text: text.into(), ..Gathered::default() }
}

#[test]
fn reasoning_text_and_calls_are_split() {
    let text = "<think>\nHm.\n</think>\n\nLet me see. \n<tool_call>\n{\"name\": \"weather\", \"arguments\": \
                {\"city\": \"Zürich }\\\"\"}}\n</tool_call>\n<tool_call>{\"arguments\":{},\"x\":[1,{}],\
                \"name\":\"time\"}</tool_call>";
    let all = tagged(text);
    assert_eq!((all.reasoning.as_str(), all.text.as_str()), ("Hm.\n", "Let me see."));
    let first = call(0, "weather", "{\"city\": \"Zürich }\\\"\"}");
    assert_eq!(all.calls, [first, call(1, "time", "{}")]);
    let open = split(config(Thinking::Open, None), &["a</think>b"]);
    assert_eq!((open.reasoning.as_str(), open.text.as_str()), ("a", "b"));
}

#[test]
fn arguments_come_in_any_format() {
    for (written, arguments) in [
        (r#"{"name": "time", "arguments": "{\"a\": 1}"}"#, r#"{"a": 1}"#),
        (r#"{"arguments": "{\"a\": 1}", "name": "time"}"#, r#"{"a": 1}"#),
        (
            r#"{"type": "function", "name": "time", "parameters": {"a": [1, {"b": "]"}]}}"#,
            r#"{"a": [1, {"b": "]"}]}"#,
        ),
        (r#"{"name": "time"}"#, "{}"),
    ] {
        assert_eq!(
            tagged(&format!("<tool_call>{written}</tool_call>")).calls,
            [call(0, "time", arguments)]
        );
        assert_eq!(bare(written).calls, [call(0, "time", arguments)]);
    }
    let two = bare(r#"{"name": "time", "parameters": {}}; {"name": "weather", "parameters": {}}"#);
    assert_eq!(two.calls, [call(0, "time", "{}"), call(1, "weather", "{}")]);
}

#[test]
fn text_that_merely_resembles_a_call_stays_text() {
    for text in [
        "a < b, <tool, <tool_call",
        "<tool_call>not JSON</tool_call>",
        "<tool_call>{\"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": 5}</tool_call>",
        "half a <tool_call>{\"name\": \"ti",
        "<thinking> is no tag",
        "  blanks at both ends  ",
        "<",
    ] {
        assert_eq!(tagged(text), plain(text));
    }
    for text in
        ["{\"name\": \"other\", \"parameters\": {}}", "{\"a\": 1}", "say {\"name\": \"time\"}", "{"]
    {
        assert_eq!(bare(text), plain(text));
    }
}

#[test]
fn arguments_cut_off_stay_as_far_as_they_came() {
    let all = tagged("<tool_call>{\"name\": \"time\", \"arguments\": {\"zone\": \"Eur");
    assert_eq!(all.calls, [call(0, "time", "{\"zone\": \"Eur")]);
    assert_eq!(all.text, "");
}

#[test]
fn arguments_leave_while_they_are_written() {
    let mut splitter = TextSplitter::new(config(Thinking::Never, Some(CallSyntax::Tagged)));
    let (mut held, mut all) = (HeldDeltas::new(0), Gathered::default());
    splitter.push("<tool_call>{\"name\": \"time\", \"arguments\": {\"zone\": \"E", &mut held);
    held.take(1).into_iter().for_each(|delta| all.push(delta));
    assert_eq!(all.calls, [call(0, "time", "{\"zone\": \"E")]);
    assert!(!splitter.has_called() || splitter.held_bytes() == 0);
}

fn text() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        Just("<think>"),
        Just("</think>"),
        Just("<tool_call>"),
        Just("</tool_call>"),
        Just(r#"{"name": "time", "arguments": {"a": "é"}}"#),
        Just(r#"{"name":"#),
        Just("\"weather\""),
        Just(r#", "arguments": "#),
        Just("{\"x\": [1, \"}\"]}"),
        Just("}"),
        Just("\\\""),
        Just(" "),
        Just("\n"),
        Just("word"),
        Just("é<"),
    ];
    proptest::collection::vec(word, 0..14).prop_map(|words| words.concat())
}

proptest! {
    /// Cuts change nothing: the joined pieces are equal at every stream interval.
    #[test]
    fn cuts_do_not_matter(text in text(), mask in any::<u64>(), open in any::<bool>(), bare in any::<bool>()) {
        let thinking = if open { Thinking::Open } else { Thinking::Optional };
        let syntax = if bare { CallSyntax::Bare } else { CallSyntax::Tagged };
        let whole = split(config(thinking, Some(syntax)), &[&text]);
        let bounds: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        let cuts: Vec<usize> = (bounds.iter().enumerate())
            .filter(|(i, at)| **at == 0 || **at == text.len() || mask >> (i % 64) & 1 == 1)
            .map(|(_, at)| *at)
            .collect();
        let pieces: Vec<&str> = cuts.windows(2).map(|w| &text[w[0]..w[1]]).collect();
        prop_assert_eq!(split(config(thinking, Some(syntax)), &pieces), whole);
    }

    /// Complete calls have the arguments that were written, as JSON.
    #[test]
    fn arguments_are_those_written(members in proptest::collection::vec(("[a-z]{1,4}", ".{0,8}"), 0..4)) {
        let arguments: Value = members.into_iter().map(|(key, value)| (key, json!(value))).collect::<serde_json::Map<_, _>>().into();
        let all = tagged(&format!("<tool_call>\n{}\n</tool_call>", json!({"name": "time", "arguments": arguments})));
        prop_assert_eq!(serde_json::from_str::<Value>(&all.calls[0].arguments).unwrap(), arguments);
        prop_assert_eq!(all.text, "");
    }
}
