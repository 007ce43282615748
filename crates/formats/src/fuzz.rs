//! Fuzz targets of the formats: model files, chat templates, schemas and grammars.

use std::io::Cursor;
use std::sync::LazyLock;

use loquent_infer::vocab::Vocab;
use serde_json::{Map, Value};

use crate::gguf::split::{SplittableModel, StageKeys};
use crate::gguf::{Header, ReadLimits};
use crate::grammar::{AnswerForm, AnswerShape, Compiler, ThinkTags, Thinking, ToolShape};
use crate::template::{
    CHATML, ChatMessage, ChatTemplate, ControlNames, Conversation, PromptEnding, TemplateError,
    encode_segments,
};
use loquent_infer::sim_vocab::SimVocab;

#[path = "../../../fuzz/target.rs"]
mod target;
pub use target::Target;

/// The targets of this crate.
pub const TARGETS: &[Target] = &[
    Target { name: "gguf", run: gguf, base_kib: 256, per_byte: 64 },
    Target { name: "grammar", run: grammar, base_kib: 64 * 1024, per_byte: 64 * 1024 },
    Target { name: "grammar_text", run: grammar_text, base_kib: 64 * 1024, per_byte: 64 * 1024 },
    Target { name: "template", run: template, base_kib: 256 * 1024, per_byte: 4096 },
    Target { name: "template_text", run: template_text, base_kib: 1024, per_byte: 4096 },
];

/// A model's header is read or rejected, whatever it claims; a header that was read can be split.
fn gguf(input: &[u8]) {
    for limits in [ReadLimits::default(), ReadLimits::with_arrays()] {
        let Ok(header) = Header::read(Cursor::new(input), input.len() as u64, limits) else {
            continue;
        };
        let _ = (header.kv_elements(), header.architecture());
        if let Some(keys) = StageKeys::of(&header) {
            let _ = (keys.is_entry(), keys.is_last());
        }
        if header.file_bytes().is_ok_and(|bytes| bytes <= input.len() as u64) {
            SplittableModel::plan_all(header);
        }
    }
}

static COMPILER: LazyLock<Compiler> =
    LazyLock::new(|| Compiler::new(&SimVocab).expect("the simulated vocabulary has ends"));

/// Any JSON is a schema that becomes a grammar or is rejected, within bounds.
fn grammar(input: &[u8]) {
    let Some((&choice, json)) = input.split_first() else { return };
    let Ok(schema) = serde_json::from_slice::<Value>(json) else { return };
    let tool = ToolShape { name: "call".into(), parameters: schema.clone() };
    let shape = AnswerShape {
        form: (choice & 1 == 0).then_some(AnswerForm::Json(schema)),
        tools: if choice & 1 == 1 { vec![tool] } else { Vec::new() },
        parallel: choice & 2 != 0,
        thinking: if choice & 4 != 0 {
            Thinking::Optional(ThinkTags::Angle)
        } else {
            Thinking::Never
        },
        ..AnswerShape::default()
    };
    let _ = COMPILER.compile(&shape);
}

/// Any text is a grammar in GBNF or Lark, or a regular expression, or is rejected, within bounds.
fn grammar_text(input: &[u8]) {
    let Some((&choice, text)) = input.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let form = match choice % 3 {
        0 => AnswerForm::Gbnf(text.into()),
        1 => AnswerForm::Lark(text.into()),
        _ => AnswerForm::Regex(text.into()),
    };
    let _ = COMPILER.compile(&AnswerShape { form: Some(form), ..AnswerShape::default() });
}

/// Longest prompt text of the template targets, in bytes.
const MAX_TEXT_BYTES: usize = 1 << 20;

static NAMES: LazyLock<ControlNames> = LazyLock::new(|| ControlNames::of(&SimVocab));

/// Splits the input at lines of `---` into a template, the object of its extra variables, and a
/// message's text.
fn parts(input: &[u8]) -> Option<[&str; 3]> {
    let mut parts = core::str::from_utf8(input).ok()?.splitn(3, "\n---\n");
    Some([parts.next()?, parts.next().unwrap_or("{}"), parts.next().unwrap_or("")])
}

fn messages(text: &str) -> [ChatMessage; 4] {
    let call =
        serde_json::json!({"type": "function", "function": {"name": "f", "arguments": text}});
    let mut calling = ChatMessage::new("assistant", text);
    calling.tool_calls.push(call);
    let user = ChatMessage::new("user", text);
    [ChatMessage::new("system", "Be brief."), user, calling, ChatMessage::new("tool", text)]
}

fn conversation<'a>(
    messages: &'a [ChatMessage],
    tools: &'a [Value],
    extra: &'a [(String, Value)],
) -> Conversation<'a> {
    Conversation {
        messages,
        tools,
        ending: PromptEnding::NewAnswer,
        bos_token: "<s>",
        eos_token: "</s>",
        now_unix_s: 1_700_000_000,
        nonce: 0x1234_5678,
        extra,
    }
}

/// A malicious template terminates with a text or an error. A template may use much memory, since
/// its author is trusted with that (SECURITY.md); no request can supply one.
fn template(input: &[u8]) {
    let Some([source, variables, text]) = parts(input) else { return };
    let Ok(template) = ChatTemplate::new(source) else { return };
    let extra: Map<String, Value> = serde_json::from_str(variables).unwrap_or_default();
    let (messages, extra) = (messages(text), Vec::from_iter(extra));
    let tools = [serde_json::json!({"type": "function", "function": {"name": "f"}})];
    let is_special = |text: &str| NAMES.occur_in(text);
    let _ = template.render(&conversation(&messages, &tools, &extra), &is_special, MAX_TEXT_BYTES);
}

/// Request data in a well-behaved template never becomes control tokens.
fn template_text(input: &[u8]) {
    static TEMPLATE: LazyLock<ChatTemplate> =
        LazyLock::new(|| ChatTemplate::new(CHATML).expect("a template"));
    let Some([variables, text, _]) = parts(input) else { return };
    let extra: Map<String, Value> = serde_json::from_str(variables).unwrap_or_default();
    let (messages, extra) = ([ChatMessage::new("user", text)], Vec::from_iter(extra));
    let is_special = |text: &str| NAMES.occur_in(text);
    let conversation = conversation(&messages, &[], &extra);
    let segments = match TEMPLATE.render(&conversation, &is_special, MAX_TEXT_BYTES) {
        Ok(segments) => segments,
        // A variable may take the place of one that the template uses.
        Err(TemplateError::SpecialText | TemplateError::Failed(_)) => return,
        Err(other) => panic!("{other}"),
    };
    let tokens = encode_segments(&SimVocab, &segments, usize::MAX);
    let tokens = tokens.expect("text").expect("no limit");
    let ends = tokens.iter().filter(|&&token| SimVocab.is_end(token)).count();
    assert_eq!(ends, 1, "one message ends once");
}

#[test]
fn corpora() {
    target::run_corpora(TARGETS);
}
