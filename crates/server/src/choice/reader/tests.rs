//! What is read does not depend on how the text was cut, and nothing of it is lost.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::flush::CallPiece;

fn reading(thinking: Thinking, syntax: Option<CallSyntax>) -> Reading {
    let names = vec!["weather".to_owned(), "time".to_owned()];
    Reading { thinking, calls: syntax.map(|syntax| CallReading { syntax, names, id: 7 }) }
}

/// All that was read of `pieces`, the fragments of each call joined.
fn read(reading: Reading, pieces: &[&str]) -> Flush {
    let (mut reader, mut all) = (Reader::new(reading), Flush::default());
    for piece in pieces {
        reader.push(piece, &mut all);
    }
    reader.finish(&mut all);
    let mut calls: Vec<CallPiece> = Vec::new();
    for piece in std::mem::take(&mut all.calls) {
        match calls.last_mut() {
            Some(last) if last.index == piece.index => {
                assert!(piece.id.is_empty() && piece.name.is_empty(), "a call is opened once");
                last.arguments.push_str(&piece.arguments);
            }
            _ => calls.push(piece),
        }
    }
    Flush { calls, ..all }
}

fn tagged(text: &str) -> Flush {
    read(reading(Thinking::Optional, Some(CallSyntax::Tagged)), &[text])
}

fn bare(text: &str) -> Flush {
    read(reading(Thinking::Never, Some(CallSyntax::Bare)), &[text])
}

fn call(index: u32, name: &str, arguments: &str) -> CallPiece {
    let id = format!("call_0000000000000007{index:04x}");
    CallPiece { index, id, name: name.into(), arguments: arguments.into() }
}

fn said(text: &str) -> Flush {
    Flush { text: text.into(), ..Flush::default() }
}

#[test]
fn reasoning_words_and_calls_are_told_apart() {
    let text = "<think>\nHm.\n</think>\n\nLet me see. \n<tool_call>\n{\"name\": \"weather\", \"arguments\": \
                {\"city\": \"Zürich }\\\"\"}}\n</tool_call>\n<tool_call>{\"arguments\":{},\"x\":[1,{}],\
                \"name\":\"time\"}</tool_call>";
    let flush = tagged(text);
    assert_eq!((flush.reasoning.as_str(), flush.text.as_str()), ("Hm.\n", "Let me see."));
    let first = call(0, "weather", "{\"city\": \"Zürich }\\\"\"}");
    assert_eq!(flush.calls, [first, call(1, "time", "{}")]);
    let open = read(reading(Thinking::Open, None), &["a</think>b"]);
    assert_eq!((open.reasoning.as_str(), open.text.as_str()), ("a", "b"));
}

#[test]
fn arguments_come_in_any_dress() {
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
fn what_only_looks_like_a_call_is_said() {
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
        assert_eq!(tagged(text), said(text));
    }
    for text in
        ["{\"name\": \"other\", \"parameters\": {}}", "{\"a\": 1}", "say {\"name\": \"time\"}", "{"]
    {
        assert_eq!(bare(text), said(text));
    }
}

#[test]
fn arguments_cut_off_stay_as_far_as_they_came() {
    let flush = tagged("<tool_call>{\"name\": \"time\", \"arguments\": {\"zone\": \"Eur");
    assert_eq!(flush.calls, [call(0, "time", "{\"zone\": \"Eur")]);
    assert_eq!(flush.text, "");
}

#[test]
fn arguments_leave_while_they_are_written() {
    let mut reader = Reader::new(reading(Thinking::Never, Some(CallSyntax::Tagged)));
    let mut flush = Flush::default();
    reader.push("<tool_call>{\"name\": \"time\", \"arguments\": {\"zone\": \"E", &mut flush);
    assert_eq!(flush.calls, [call(0, "time", "{\"zone\": \"E")]);
    assert!(!reader.has_called() || reader.held_bytes() == 0);
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
        let whole = read(reading(thinking, Some(syntax)), &[&text]);
        let bounds: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        let cuts: Vec<usize> = (bounds.iter().enumerate())
            .filter(|(i, at)| **at == 0 || **at == text.len() || mask >> (i % 64) & 1 == 1)
            .map(|(_, at)| *at)
            .collect();
        let pieces: Vec<&str> = cuts.windows(2).map(|w| &text[w[0]..w[1]]).collect();
        prop_assert_eq!(read(reading(thinking, Some(syntax)), &pieces), whole);
    }

    /// Complete calls have the arguments that were written, as JSON.
    #[test]
    fn arguments_are_those_written(members in proptest::collection::vec(("[a-z]{1,4}", ".{0,8}"), 0..4)) {
        let arguments: Value = members.into_iter().map(|(key, value)| (key, json!(value))).collect::<serde_json::Map<_, _>>().into();
        let flush = tagged(&format!("<tool_call>\n{}\n</tool_call>", json!({"name": "time", "arguments": arguments})));
        prop_assert_eq!(serde_json::from_str::<Value>(&flush.calls[0].arguments).unwrap(), arguments);
        prop_assert_eq!(flush.text, "");
    }
}
