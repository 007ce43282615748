//! The split does not depend on how the text was cut, and nothing of the text is lost.

use std::sync::Arc;

use loquent_formats::grammar::{CallSyntax, ThinkTags, ToolShape};
use loquent_proto::Delta;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// The deltas of an answer, joined as a client does.
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
    let parameters = json!({
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "tags": {"type": "array"},
            "exact": {"type": ["boolean", "null"]},
            "note": {"anyOf": [{"type": "string"}, {"type": "number"}]},
        },
    });
    let tool = |name: &str| ToolShape { name: name.into(), parameters: parameters.clone() };
    let tools: Arc<[ToolShape]> = [tool("weather"), tool("time")].into();
    let calls = syntax.map(|syntax| CallConfig { syntax, tools, id: 7 });
    SplitConfig { thinking, calls, ..SplitConfig::default() }
}

/// Splits `pieces` and joins the result.
fn split(config: SplitConfig, pieces: &[&str]) -> Gathered {
    let (mut splitter, mut held) = (TextSplitter::new(config), PendingDeltas::new(0));
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
    split(config(Thinking::Optional(ThinkTags::Angle), Some(CallSyntax::Tagged)), &[text])
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
    let open = split(config(Thinking::Open(ThinkTags::Angle), None), &["a</think>b"]);
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
    let (mut held, mut all) = (PendingDeltas::new(0), Gathered::default());
    splitter.push("<tool_call>{\"name\": \"time\", \"arguments\": {\"zone\": \"E", &mut held);
    held.take(1).into_iter().for_each(|delta| all.push(delta));
    assert_eq!(all.calls, [call(0, "time", "{\"zone\": \"E")]);
    assert!(!splitter.has_called() || splitter.held_bytes() == 0);
}

#[test]
fn what_a_call_holds_back_is_counted() {
    let long = "a".repeat(1000);
    for (syntax, text) in [
        (CallSyntax::Tagged, format!("<tool_call>{{\"arguments\": {{\"city\": \"{long}")),
        (CallSyntax::Bare, format!("{{\"arguments\": {{\"city\": \"{long}")),
        (CallSyntax::MistralList, format!("[TOOL_CALLS][{{\"arguments\": {{\"city\": \"{long}")),
        (CallSyntax::QwenXml, format!("<function=time>\n<parameter=days>\n{long}")),
    ] {
        let mut splitter = TextSplitter::new(config(Thinking::Never, Some(syntax)));
        let mut held = PendingDeltas::new(0);
        splitter.push(&text, &mut held);
        assert!(splitter.held_bytes() >= 1000, "{syntax:?}: {}", splitter.held_bytes());
    }
}

#[test]
fn an_answer_in_json_streams_where_calls_have_no_tags() {
    let mut splitter = TextSplitter::new(config(Thinking::Never, Some(CallSyntax::Bare)));
    let (mut held, mut all) = (PendingDeltas::new(0), Gathered::default());
    let begun = "{\"city\": \"Oslo\", \"days\": [1, 2";
    splitter.push(begun, &mut held);
    held.take(1).into_iter().for_each(|delta| all.push(delta));
    assert_eq!((all, splitter.held_bytes()), (plain(begun), 0));
}

/// Splits a text of one format.
fn by(syntax: CallSyntax, text: &str) -> Gathered {
    split(config(thinking_of(syntax), Some(syntax)), &[text])
}

/// Returns the reasoning format that goes with a call syntax.
fn thinking_of(syntax: CallSyntax) -> Thinking {
    match syntax {
        CallSyntax::Harmony => Thinking::Channels,
        CallSyntax::MistralArgs => Thinking::Optional(ThinkTags::Square),
        _ => Thinking::Optional(ThinkTags::Angle),
    }
}

const CITY: &str = r#"{"city": "Zürich }\""}"#;

#[test]
fn channels_are_reasoning_calls_and_answer() {
    let harmony = |text: &str| by(CallSyntax::Harmony, text);
    let all = harmony(
        "<|channel|>analysis<|message|>Hm. 1 < 2<|end|><|start|>assistant<|channel|>commentary\
         <|message|>Let me see.<|end|><|start|>assistant<|channel|>commentary to=functions.weather \
         <|constrain|>json<|message|>{\"city\": \"Oslo\"}<|call|>",
    );
    assert_eq!((all.reasoning.as_str(), all.text.as_str()), ("Hm. 1 < 2", "Let me see."));
    assert_eq!(all.calls, [call(0, "weather", r#"{"city": "Oslo"}"#)]);
    let all = harmony(
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b\
         <|end|><|start|>assistant<|channel|>final<|message|>Yes <|start and <b>.",
    );
    assert_eq!((all.reasoning.as_str(), all.text.as_str()), ("a\n\nb", "Yes <|start and <b>."));
    // The recipient in the role, as some templates teach it; no arguments at all.
    let all = harmony("<|start|>assistant to=functions.time<|channel|>commentary json<|message|>");
    assert_eq!(all.calls, [call(0, "time", "{}")]);
    // A message to a tool of the model's own is no call of the client's.
    let all = harmony("<|channel|>analysis to=python<|message|>1 + 1<|call|>");
    assert_eq!((all.reasoning.as_str(), all.calls.len()), ("1 + 1", 0));
    assert_eq!(harmony("no head at all"), plain("no head at all"));
    assert_eq!(harmony("<"), plain("<"));
    let no_object = "<|channel|>commentary to=functions.time<|message|> soon<|call|>";
    assert_eq!(harmony(no_object), plain("soon"));
}

#[test]
fn reasoning_that_is_not_split_off_stays_in_the_text() {
    let kept = SplitConfig { keeps_reasoning: true, ..config(Thinking::Channels, None) };
    let text =
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.";
    let all = split(kept, &[text]);
    assert_eq!(all.text, "<|channel|>analysis<|message|>Hm.<|end|>Yes.");
    assert_eq!(all.reasoning, "");
}

#[test]
fn elements_become_json_by_the_schema() {
    let qwen = "<think>\nHm.\n</think>\n\nLet me see.\n<tool_call>\n<function=weather>\n<parameter=city>\n\
                Zürich \"<b>\"\n  two\n</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=tags>\n\
                [\"a\", {\"b\": 1}]\n</parameter>\n<parameter=exact>\nTrue\n</parameter>\n</function>\n</tool_call>\n\
                <tool_call>\n<function=time>\n</function>\n</tool_call>";
    let all = by(CallSyntax::QwenXml, qwen);
    assert_eq!((all.reasoning.as_str(), all.text.as_str()), ("Hm.\n", "Let me see."));
    let arguments = json!({
        "city": "Zürich \"<b>\"\n  two", "days": 3, "tags": ["a", {"b": 1}], "exact": true,
    });
    assert_eq!(serde_json::from_str::<Value>(&all.calls[0].arguments).unwrap(), arguments);
    assert_eq!(all.calls[1], call(1, "time", "{}"));
    let glm = "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n\
               <arg_value>x</arg_value>\n<arg_key>note</arg_key><arg_value>5</arg_value></tool_call>\n\
               <tool_call>time</tool_call>";
    let all = by(CallSyntax::GlmXml, glm);
    let first = call(0, "weather", r#"{"city": "Oslo", "days": "x", "note": 5}"#);
    assert_eq!(all.calls, [first, call(1, "time", "{}")]);
    assert_eq!(all.text, "");
    // The outer tag is missing, a parameter comes twice, and the last end is missing.
    let careless = "<function=time>\n<parameter=city>\na\n</parameter>\n<parameter=city>\nb\n</parameter>\n\
                    </tool_call> done";
    let all = by(CallSyntax::QwenXml, careless);
    assert_eq!(all.calls, [call(0, "time", r#"{"city": "a"}"#)]);
    assert_eq!(all.text, " done");
}

#[test]
fn elements_that_say_what_they_are_need_no_schema() {
    let text = "<think>Hm.</think>Let me see.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"weather\">\n\
                <｜DSML｜parameter name=\"city\" string=\"true\">Zürich \"<b>\"\n</｜DSML｜parameter>\n\
                <｜DSML｜parameter name=\"days\" string=\"true\">3</｜DSML｜parameter>\n\
                <｜DSML｜parameter name=\"tags\" string=\"false\">[\"a\", {\"b\": 1}]</｜DSML｜parameter>\n\
                <｜DSML｜parameter name=\"note\">5</｜DSML｜parameter>\n</｜DSML｜invoke>\n\
                <｜DSML｜invoke name=\"time\">\n\n</｜DSML｜invoke>\n</｜DSML｜function_calls>";
    for text in [text.to_owned(), text.replace("function_calls", "tool_calls")] {
        let all = by(CallSyntax::DsmlFunctions, &text);
        assert_eq!((all.reasoning.as_str(), all.text.as_str()), ("Hm.", "Let me see."));
        let arguments =
            r#"{"city": "Zürich \"<b>\"\n", "days": "3", "tags": ["a", {"b": 1}], "note": 5}"#;
        assert_eq!(all.calls, [call(0, "weather", arguments), call(1, "time", "{}")]);
    }
    // The list's tag is missing: then only a tool that there is can be meant.
    let bare = "<｜DSML｜invoke name=\"time\">\n</｜DSML｜invoke>";
    assert_eq!(by(CallSyntax::DsmlTools, bare).calls, [call(0, "time", "{}")]);
    let other = bare.replace("time", "other");
    assert_eq!(by(CallSyntax::DsmlTools, &other), plain(&other));
}

#[test]
fn reasoning_may_be_in_square_brackets() {
    let text = "[THINK]Hm. <think> [1/2][/THINK]Let me see.[TOOL_CALLS]time[ARGS]{}";
    let all = by(CallSyntax::MistralArgs, text);
    assert_eq!((all.reasoning.as_str(), all.text.as_str()), ("Hm. <think> [1/2]", "Let me see."));
    assert_eq!(all.calls, [call(0, "time", "{}")]);
    let open = split(config(Thinking::Open(ThinkTags::Square), None), &["a[/TH", "INK]\nb"]);
    assert_eq!((open.reasoning.as_str(), open.text.as_str()), ("a", "b"));
    for text in ["[THINKING] is no tag", "<think>not its own</think>"] {
        assert_eq!(by(CallSyntax::MistralArgs, text), plain(text));
    }
}

#[test]
fn texts_of_elements_leave_while_they_are_written() {
    let mut splitter = TextSplitter::new(config(Thinking::Never, Some(CallSyntax::QwenXml)));
    let (mut held, mut all) = (PendingDeltas::new(0), Gathered::default());
    splitter.push("<tool_call>\n<function=time>\n<parameter=city>\nfn main() {\n</para", &mut held);
    held.take(1).into_iter().for_each(|delta| all.push(delta));
    assert_eq!(all.calls, [call(0, "time", "{\"city\": \"fn main() {")]);
}

#[test]
fn special_tokens_around_calls_are_read() {
    for (syntax, text) in [
        (
            CallSyntax::MistralList,
            format!(
                "[TOOL_CALLS][{{\"name\": \"weather\", \"arguments\": {CITY}}}, \
                     {{\"arguments\": {{}}, \"name\": \"time\", \"id\": \"abc\"}}]"
            ),
        ),
        (
            CallSyntax::MistralArgs,
            format!("[TOOL_CALLS]weather[ARGS]{CITY}[TOOL_CALLS]time[CALL_ID]abc[ARGS]{{}}"),
        ),
        (CallSyntax::MistralArgs, format!("[TOOL_CALLS]weather{CITY}[TOOL_CALLS]time {{}}")),
        (
            CallSyntax::DeepSeek,
            format!(
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{CITY}<｜tool▁call▁end｜>\
                     <｜tool▁call▁begin｜>time<｜tool▁sep｜>{{}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
            ),
        ),
        (
            CallSyntax::DeepSeekFenced,
            format!(
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{CITY}\n\
                     ```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>time\n```json\n{{}}\n```\
                     <｜tool▁call▁end｜><｜tool▁calls▁end｜>"
            ),
        ),
    ] {
        let all = by(syntax, &format!("Let me see.\n{text}"));
        assert_eq!(all.calls, [call(0, "weather", CITY), call(1, "time", "{}")], "{text}");
        assert_eq!(all.text, "Let me see.", "{text}");
    }
}

#[test]
fn text_that_resembles_a_call_of_any_format_stays_text() {
    for (syntax, text) in [
        (CallSyntax::QwenXml, "<tool_call>{\"name\": \"time\"}</tool_call>"),
        (CallSyntax::QwenXml, "<function=other> is how a call begins"),
        (CallSyntax::QwenXml, "a <tool_call>\n<function=two words>"),
        (CallSyntax::GlmXml, "<tool_call>is a tag</tool_call>"),
        (CallSyntax::GlmXml, "<tool_call>other\n</tool_call>"),
        (CallSyntax::MistralList, "[TOOL_CALLS][1, 2]"),
        (CallSyntax::MistralArgs, "[TOOL_CALLS] is a tag { }"),
        (CallSyntax::MistralArgs, "[TOOL_CALLS]time[ARGS][]"),
        (CallSyntax::MistralArgs, "[TOOL_CALLS]ti"),
        (CallSyntax::DeepSeek, "<｜tool▁calls▁begin｜>none"),
        (CallSyntax::DeepSeek, "<｜tool▁call▁begin｜>two words<｜tool▁sep｜>{}"),
        (CallSyntax::DeepSeekFenced, "<｜tool▁call▁begin｜>function<｜tool▁sep｜>ti"),
        (CallSyntax::DsmlFunctions, "<｜DSML｜function_calls> is a tag"),
        (CallSyntax::DsmlFunctions, "a ｜DSML｜ and <｜DSML｜invoke name=\"ti"),
    ] {
        assert_eq!(by(syntax, text), plain(text), "{syntax:?}");
    }
}

const SYNTAXES: [CallSyntax; 11] = [
    CallSyntax::Tagged,
    CallSyntax::Bare,
    CallSyntax::Harmony,
    CallSyntax::QwenXml,
    CallSyntax::GlmXml,
    CallSyntax::MistralList,
    CallSyntax::MistralArgs,
    CallSyntax::DeepSeekFenced,
    CallSyntax::DeepSeek,
    CallSyntax::DsmlFunctions,
    CallSyntax::DsmlTools,
];

/// Generates texts of a format: its tags and the text between them, in any order.
fn text_of(syntax: CallSyntax) -> impl Strategy<Value = String> {
    let words = [
        "<think>",
        "</think>",
        "[THINK]",
        "[/THINK]",
        "<｜DSML｜function_calls>",
        "<｜DSML｜invoke name=\"",
        "<｜DSML｜parameter name=\"city\" string=\"true\">",
        "</｜DSML｜parameter>",
        "</｜DSML｜invoke>",
        r#"{"name": "time", "arguments": {"a": "é"}}"#,
        r#"{"name":"#,
        "\"weather\"",
        r#", "arguments": "#,
        r#"{"x": [1, "}"]}"#,
        "weather",
        "time",
        "city>",
        "days>\n5\n",
        "functions.time",
        " to=",
        "commentary",
        "analysis",
        "final",
        "[",
        "]",
        "}",
        ", ",
        "\\\"",
        "```json\n",
        "```",
        "function",
        " ",
        "\n",
        "word",
        "é<",
    ];
    let tags = syntax.tags().iter().chain(syntax.tags()).copied();
    let words: Vec<&str> = words.into_iter().chain(tags).collect();
    proptest::collection::vec(proptest::sample::select(words), 0..16)
        .prop_map(|words| words.concat())
}

/// Cuts `text` at the bits set in `mask`.
fn cut(text: &str, mask: u64) -> Vec<&str> {
    let bounds: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let cuts: Vec<usize> = (bounds.iter().enumerate())
        .filter(|(i, at)| **at == 0 || **at == text.len() || mask >> (i % 64) & 1 == 1)
        .map(|(_, at)| *at)
        .collect();
    cuts.windows(2).map(|w| &text[w[0]..w[1]]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// Cuts change nothing: the joined pieces are equal at every stream interval.
    #[test]
    fn cuts_do_not_matter(
        (syntax, text) in proptest::sample::select(&SYNTAXES[..])
            .prop_flat_map(|syntax| (Just(syntax), text_of(syntax))),
        mask in any::<u64>(),
        open in any::<bool>(),
    ) {
        let thinking = match thinking_of(syntax) {
            Thinking::Optional(tags) if open => Thinking::Open(tags),
            other => other,
        };
        let config = config(thinking, Some(syntax));
        let whole = split(config.clone(), &[&text]);
        prop_assert_eq!(split(config, &cut(&text, mask)), whole);
    }

    /// Complete calls keep the written arguments, as JSON, in every format.
    #[test]
    fn arguments_are_those_written(
        members in proptest::collection::vec(("[a-z]{1,4}", "[^<\\r]{0,8}"), 0..4),
        mask in any::<u64>(),
    ) {
        let members: serde_json::Map<_, _> =
            members.into_iter().map(|(key, value)| (key, json!(value))).collect();
        let arguments = Value::from(members.clone());
        let elements = |open: &str, close: &str, end: &str| -> String {
            let element = |(key, value): (&String, &Value)| {
                format!("{open}{key}{close}{}{end}", value.as_str().unwrap())
            };
            members.iter().map(element).collect()
        };
        let qwen = elements("<parameter=", ">\n", "\n</parameter>\n");
        let dsml = elements("<｜DSML｜parameter name=\"", "\" string=\"true\">", "</｜DSML｜parameter>\n");
        let glm = elements("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n");
        for (syntax, text) in [
            (CallSyntax::Tagged, format!("<tool_call>\n{{\"name\": \"time\", \"arguments\": {arguments}}}\n</tool_call>")),
            (CallSyntax::Harmony, format!("<|channel|>commentary to=functions.time<|message|>{arguments}<|call|>")),
            (CallSyntax::QwenXml, format!("<tool_call>\n<function=time>\n{qwen}</function>\n</tool_call>")),
            (CallSyntax::GlmXml, format!("<tool_call>time\n{glm}</tool_call>")),
            (CallSyntax::MistralArgs, format!("[TOOL_CALLS]time[ARGS]{arguments}")),
            (CallSyntax::DsmlTools, format!("<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"time\">\n{dsml}</｜DSML｜invoke>\n</｜DSML｜tool_calls>")),
            (CallSyntax::DeepSeek, format!("<｜tool▁call▁begin｜>time<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>")),
        ] {
            let all = split(texts_only(syntax, members.keys()), &cut(&text, mask));
            prop_assert_eq!(all.calls.len(), 1, "{}", text);
            let read: Value = serde_json::from_str(&all.calls[0].arguments).unwrap();
            prop_assert_eq!(&read, &arguments, "{}", text);
            prop_assert_eq!(&all.text, "");
        }
    }
}

/// Returns a configuration with a tool whose parameters are all texts.
fn texts_only<'a>(syntax: CallSyntax, keys: impl Iterator<Item = &'a String>) -> SplitConfig {
    let mut config = config(thinking_of(syntax), Some(syntax));
    let properties: serde_json::Map<_, _> =
        keys.map(|key| (key.clone(), json!({"type": "string"}))).collect();
    let parameters = json!({"type": "object", "properties": properties});
    if let Some(calls) = &mut config.calls {
        calls.tools = [ToolShape { name: "time".into(), parameters }].into();
    }
    config
}
