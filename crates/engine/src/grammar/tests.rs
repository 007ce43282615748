//! Grammars against random choices among what they allow: whatever is chosen, what comes
//! out fits the schema.

use loquent_infer::sampling::{Sampler, Sampling, Scratch};
use loquent_infer::token::RowError;
use serde_json::json;

use super::*;
use crate::sim::SimVocab;

fn compiler() -> Compiler {
    Compiler::new(&SimVocab).unwrap()
}

/// A completion under `grammar` whose logits favour end tokens a little and are else random.
fn speak(grammar: &SharedGrammar, seed: u64) -> Result<String, RowError> {
    speak_from(grammar, "", seed)
}

/// The same, after `begin`.
fn speak_from(grammar: &SharedGrammar, begin: &str, seed: u64) -> Result<String, RowError> {
    let begin: Vec<TokenId> = begin.bytes().map(TokenId::from).collect();
    let sampling =
        Sampling { temperature: 1.0, seed, grammar: Some(grammar.clone()), ..Sampling::default() };
    let mut sampler = Sampler::new(sampling, &[], &begin);
    let mut scratch = Scratch::default();
    let mut bytes = Vec::new();
    for _ in 0..4000 {
        let mut logits: Vec<f32> = (0..SimVocab.size() as TokenId).map(liking).collect();
        let token = sampler.sample(&mut logits, &mut scratch)?.token;
        if SimVocab.is_end(token) {
            return Ok(String::from_utf8(bytes).expect("JSON is UTF-8"));
        }
        bytes.extend_from_slice(SimVocab.piece(token));
    }
    panic!("no end after 4000 tokens: {}", String::from_utf8_lossy(&bytes));
}

/// Ends and closing symbols are liked, so that random texts end.
fn liking(token: TokenId) -> f32 {
    match SimVocab.piece(token) {
        _ if SimVocab.is_end(token) => 8.0,
        [b'"' | b'}' | b']' | b'<'] => 6.0,
        _ => 0.0,
    }
}

fn person() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "kind": {"enum": ["a", "b", null]},
            "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        },
        "required": ["name", "age", "kind"],
        "additionalProperties": false,
    })
}

#[test]
fn random_choices_fit_the_schema() {
    let shape = AnswerShape { json: Some(person()), ..AnswerShape::default() };
    let grammar = compiler().compile(&shape).unwrap();
    for seed in 0..30 {
        let text = speak(&grammar, seed).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert!(value["name"].is_string(), "{text}");
        assert!(value["age"].as_i64().is_some_and(|age| (0..=120).contains(&age)), "{text}");
        assert!(["a", "b"].iter().any(|kind| value["kind"] == *kind) || value["kind"].is_null());
    }
}

#[test]
fn calls_are_written_as_the_model_writes_them() {
    let parameters = json!({
        "type": "object",
        "properties": {"city": {"$ref": "#/$defs/city"}},
        "required": ["city"],
        "additionalProperties": false,
        "$defs": {"city": {"enum": ["Oslo", "Rome"]}},
    });
    let tools = ["weather", "time_of-day"]
        .map(|name| ToolShape { name: name.into(), parameters: parameters.clone() })
        .to_vec();
    let shape = |syntax, thinking| AnswerShape {
        tools: tools.clone(),
        syntax: Some(syntax),
        parallel: true,
        thinking,
        ..AnswerShape::default()
    };
    let compiler = compiler();
    let tagged = compiler.compile(&shape(CallSyntax::Tagged, Thinking::Never)).unwrap();
    let bare = compiler.compile(&shape(CallSyntax::Bare, Thinking::Open)).unwrap();
    for seed in 0..20 {
        let text = speak(&tagged, seed).unwrap();
        for call in text.split("\n</tool_call>").filter(|call| !call.is_empty()) {
            let call = call.trim_start().strip_prefix("<tool_call>\n").expect("a call's tag");
            let call: Value = serde_json::from_str(call).unwrap();
            assert!(call["arguments"]["city"] == "Oslo" || call["arguments"]["city"] == "Rome");
        }
        let text = speak_from(&bare, "a < b\n</think>", seed).unwrap();
        let call: Value = serde_json::from_str(&text).unwrap();
        assert!(tools.iter().any(|tool| call["name"] == *tool.name), "{call}");
    }
}

#[test]
fn a_sampler_built_anew_goes_on_where_it_was() {
    let shape =
        AnswerShape { json: Some(json!({"const": {"answer": 42}})), ..AnswerShape::default() };
    let grammar = compiler().compile(&shape).unwrap();
    let whole = speak(&grammar, 1).unwrap();
    let mut constraint = grammar.0.start(b"{\"answer\"".map(TokenId::from).as_slice());
    let allowed = constraint.allowed().unwrap();
    let is_allowed = |token: u8| allowed[usize::from(token) / 32] >> (token % 32) & 1 == 1;
    assert!(is_allowed(b':') && !is_allowed(b'x') && !is_allowed(b'"'));
    assert_eq!(serde_json::from_str::<Value>(&whole).unwrap(), json!({"answer": 42}));
}

#[test]
fn what_cannot_be_upheld_is_refused() {
    let compiler = compiler();
    for schema in [
        json!({"type": "nonsense"}),
        json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/missing"}}}),
        json!({"type": "string", "pattern": "("}),
        json!({"not": {"type": "string"}}),
        json!(false),
    ] {
        let shape = AnswerShape { json: Some(schema.clone()), ..AnswerShape::default() };
        let outcome = compiler.compile(&shape).err();
        assert!(matches!(outcome, Some(GrammarError::Schema(_))), "{schema}: {outcome:?}");
    }
    let large = json!({"enum": ["x".repeat(MAX_GRAMMAR_BYTES)]});
    let shape = AnswerShape { json: Some(large), ..AnswerShape::default() };
    assert_eq!(compiler.compile(&shape).err(), Some(GrammarError::TooLarge));
}
