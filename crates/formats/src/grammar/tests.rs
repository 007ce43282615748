//! Tests grammars with random choices among the allowed tokens: whatever is chosen, the result fits
//! the schema.

use loquent_infer::sampling::{Sampler, Sampling, Scratch};
use loquent_infer::token::RowError;
use serde_json::json;

use super::*;
use loquent_infer::sim_vocab::SimVocab;

fn compiler() -> Compiler {
    Compiler::new(&SimVocab).unwrap()
}

/// Generates a completion under `grammar` from random logits that slightly favour end tokens.
fn speak(grammar: &SharedGrammar, seed: u64) -> Result<String, RowError> {
    speak_from(grammar, "", seed)
}

/// Same, after `begin`.
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

/// Favours ends and closing symbols, so that random texts end.
fn liking(token: TokenId) -> f32 {
    match SimVocab.piece(token) {
        _ if SimVocab.is_end(token) => 8.0,
        [b'"' | b'}' | b']' | b'<'] => 6.0,
        _ => 0.0,
    }
}

fn form(schema: Value) -> AnswerShape {
    AnswerShape { form: Some(AnswerForm::Json(schema)), ..AnswerShape::default() }
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
    let shape = form(person());
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
    let bare =
        compiler.compile(&shape(CallSyntax::Bare, Thinking::Open(ThinkTags::Angle))).unwrap();
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
    let shape = form(json!({"const": {"answer": 42}}));
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
        let shape = form(schema.clone());
        let outcome = compiler.compile(&shape).err();
        assert!(matches!(outcome, Some(GrammarError::Schema(_))), "{schema}: {outcome:?}");
    }
    let large = json!({"enum": ["x".repeat(MAX_GRAMMAR_BYTES)]});
    let shape = form(large);
    assert_eq!(compiler.compile(&shape).err(), Some(GrammarError::TooLarge));
}

fn lark(form: AnswerForm) -> AnswerShape {
    AnswerShape { form: Some(form), ..AnswerShape::default() }
}

/// Returns true if `grammar` allows the whole `text`, byte by byte.
fn accepts(grammar: &SharedGrammar, text: &str) -> bool {
    let mut constraint = grammar.0.start(&[]);
    let ends = (0..SimVocab.size() as TokenId).find(|&token| SimVocab.is_end(token));
    let tokens = text.bytes().map(TokenId::from).chain(ends);
    tokens.into_iter().all(|token| {
        let Ok(allowed) = constraint.allowed() else { return false };
        let is_allowed = allowed[token as usize / 32] >> (token % 32) & 1 == 1;
        if is_allowed {
            constraint.accept(token);
        }
        is_allowed
    })
}

#[test]
fn requests_bring_grammars_of_their_own() {
    let arithmetic = "start: sum\nsum: NUMBER (\"+\" sum)?\nNUMBER: /[0-9]+/\n";
    let choice = vec!["yes".to_owned(), "n\"o\n".to_owned()];
    let compiler = compiler();
    for (form, good, bad) in [
        (AnswerForm::Choice(choice), ["yes", "n\"o\n"], ["ye", "yesno"]),
        (AnswerForm::Regex("[a-c]{2}/\\d+".into()), ["ab/12", "cc/0"], ["ab", "abc/1"]),
        (AnswerForm::Lark(arithmetic.into()), ["1+20", "7"], ["1+", "a"]),
    ] {
        let grammar = compiler.compile(&lark(form.clone())).unwrap();
        assert!(good.iter().all(|text| accepts(&grammar, text)), "{form:?}");
        assert!(!bad.iter().any(|text| accepts(&grammar, text)), "{form:?}");
        let thinking = AnswerShape { thinking: Thinking::Open(ThinkTags::Angle), ..lark(form) };
        let grammar = compiler.compile(&thinking).unwrap();
        assert!(accepts(&grammar, &format!("Hm.</think>\n\n{}", good[0])));
        assert!(!accepts(&grammar, &format!("Hm.</think>\n\n{}", bad[1])));
    }
}

#[test]
fn gbnf_is_followed() {
    let json = r#"
        # A value, with comments and rules over several lines.
        root   ::= value ws
        value  ::= object | list | text | number |
                   "true" | "null"
        object ::= "{" ws ( text ":" ws value ("," ws text ":" ws value)* )? "}"
        list   ::= "[" ws (value ("," ws value)*)? ws "]"
        text   ::= "\"" ( [^"\\\x00-\x1f] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\""
        number ::= "-"? ([0-9] | [1-9] [0-9]{1,15}) ("." [0-9]+)?
        ws     ::= | " " | "\n" [ \t]{0,20}
    "#;
    let list = "root ::= item+\nitem ::= \"- \" [^\\r\\n]+ \"\\n\"";
    let sums = "root ::= (sum \"=\" term \"\\n\")+\nsum ::= term ([-+*/] term)*\n\
                term ::= num | \"(\" sum \")\"\nnum ::= [0-9]+";
    let compiler = compiler();
    for (text, good, bad) in [
        (
            json,
            vec![r#"{"a": [1, -2.5, "x\u00e9é"], "b": {}}"#, "null", "[]"],
            vec!["{a}", "[1,", "01"],
        ),
        (list, vec!["- a\n- b c\n"], vec!["- a", "a\n"]),
        (sums, vec!["1+(2*34)=9\n", "1=1\n2=2\n"], vec!["1+=2\n", "(1=1\n"]),
        ("root ::= \"a\"{2,3} . [\\]^-]?", vec!["aab", "aaa\n]", "aax-"], vec!["ab", "aaxx"]),
    ] {
        let grammar = compiler.compile(&lark(AnswerForm::Gbnf(text.into())));
        let grammar = grammar.unwrap_or_else(|error| panic!("{error}: {text}"));
        for one in good {
            assert!(accepts(&grammar, one), "{one} of {text}");
        }
        for one in bad {
            assert!(!accepts(&grammar, one), "{one} of {text}");
        }
    }
    let grammar = compiler.compile(&lark(AnswerForm::Gbnf(json.into()))).unwrap();
    for seed in 0..20 {
        let text = speak(&grammar, seed).unwrap();
        serde_json::from_str::<Value>(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    }
}

#[test]
fn what_is_no_gbnf_is_refused_with_its_place() {
    let compiler = compiler();
    let deep = format!("root ::= {}", "(".repeat(1000));
    for (text, why) in [
        ("a ::= \"x\"", "no rule 'root'"),
        ("root ::= a b", "refers to a rule 'a'"),
        ("root ::= \"a", "no end"),
        ("root ::= [z-a]", "ends before it begins"),
        ("root ::= (\"a\"", "')' is expected"),
        ("root = \"a\"", "'::=' is expected"),
        ("root ::= \"a\"\nroot ::= \"b\"", "line 2"),
        ("root ::= <[5]>", "tokens cannot be named"),
        ("root ::= \"\\q\"", "escape is unknown"),
        ("root ::= *", "nothing is repeated"),
        ("root ::= \"a\"+?", "repeated twice"),
        (&deep, "too deeply"),
    ] {
        let error = compiler.compile(&lark(AnswerForm::Gbnf(text.into()))).err().unwrap();
        assert!(error.to_string().contains(why), "{text}: {error}");
    }
    let endless = lark(AnswerForm::Gbnf("root ::= root".into()));
    assert!(compiler.compile(&endless).is_err());
}

#[test]
fn calls_of_every_format_can_be_forced() {
    let parameters = json!({
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "unit": {"enum": ["C", "F"]}},
        "required": ["city"],
    });
    let tool = ToolShape { name: "weather".into(), parameters };
    let compiler = compiler();
    let arguments = r#"{"city": "Oslo", "days": 3}"#;
    for (syntax, thinking, text) in [
        (CallSyntax::Harmony, Thinking::Channels, format!("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{arguments}")),
        (CallSyntax::QwenXml, Thinking::Optional(ThinkTags::Angle), "<tool_call>\n<function=weather>\n<parameter=city>\na <b>\n\nc\n</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=unit>\nC\n</parameter>\n</function>\n</tool_call>".into()),
        (CallSyntax::GlmXml, Thinking::Never, "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>".into()),
        (CallSyntax::MistralList, Thinking::Never, format!("[TOOL_CALLS][{{\"name\": \"weather\", \"arguments\": {arguments}}}, {{\"name\": \"weather\", \"arguments\": {arguments}}}]")),
        (CallSyntax::DsmlFunctions, Thinking::Never, "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">a </b>\n\"c\"</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">3</｜DSML｜parameter>\n<｜DSML｜parameter name=\"unit\" string=\"true\">C</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>".into()),
        (CallSyntax::DsmlTools, Thinking::Open(ThinkTags::Angle), "a</think>\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Oslo</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Rome</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>".into()),
        (CallSyntax::MistralArgs, Thinking::Optional(ThinkTags::Square), format!("[THINK]Hm.[/THINK][TOOL_CALLS]weather[ARGS]{arguments}")),
        (CallSyntax::MistralArgs, Thinking::Never, format!("[TOOL_CALLS]weather[ARGS]{arguments}[TOOL_CALLS]weather[ARGS]{arguments}")),
        (CallSyntax::DeepSeek, Thinking::Open(ThinkTags::Angle), format!("a</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜><｜tool▁calls▁end｜>")),
        (CallSyntax::DeepSeekFenced, Thinking::Never, format!("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{arguments}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>")),
    ] {
        let shape = AnswerShape { tools: vec![tool.clone()], syntax: Some(syntax), parallel: true, thinking, ..AnswerShape::default() };
        let grammar = compiler.compile(&shape).unwrap_or_else(|error| panic!("{syntax:?}: {error}"));
        assert!(accepts(&grammar, &text), "{syntax:?}: {text}");
        assert!(!accepts(&grammar, &text.replace("weather", "other")), "{syntax:?}");
        assert!(!accepts(&grammar, &text.replace('3', "x")), "{syntax:?}");
    }
}

#[test]
fn elements_that_cannot_be_held_to_their_schema_are_refused() {
    let compiler = compiler();
    for parameters in [
        json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "x"}}}),
        json!({"type": "object", "properties": {"a": {"$ref": "#"}}}),
        json!({"type": "object", "anyOf": [{"required": ["a"]}]}),
        json!({"type": "object", "required": ["a"]}),
        json!({"type": "object", "properties": {"a>b": {}}}),
    ] {
        let tools = vec![ToolShape { name: "f".into(), parameters: parameters.clone() }];
        let shape =
            AnswerShape { tools, syntax: Some(CallSyntax::QwenXml), ..AnswerShape::default() };
        let error = compiler.compile(&shape).err();
        assert!(matches!(error, Some(GrammarError::Schema(_))), "{parameters}: {error:?}");
    }
}

#[test]
fn grammars_are_bounded_in_nesting_and_rules() {
    let chain = |rules: usize, define: &str| -> String {
        (0..rules).map(|n| format!("{define} {}\n", n + 1).replace("N", &n.to_string())).collect()
    };
    let nested =
        |depth: usize| format!("start: {}\"a\"{}\n", "(".repeat(depth), ")*".repeat(depth));
    let terminals: String =
        (0..900).map(|n| format!("T{n}: \"a\" (T{} \"b\")*\n", n + 1)).collect();
    let rules: String = (0..900).map(|n| format!("r{n}: \"a\" (r{})* \"b\"\n", n + 1)).collect();
    let gbnf: String = (0..499).map(|n| format!("r{n} ::= \"a\" (r{})* \"b\"\n", n + 1)).collect();
    let worst = [
        AnswerForm::Lark(format!("start: T0\n{terminals}T900: \"x\"\n")),
        AnswerForm::Lark(format!("start: r0\n{rules}r900: \"x\"\n")),
        AnswerForm::Lark(nested(64)),
        AnswerForm::Gbnf(gbnf.replace("r0 ", "root ") + "r499 ::= \"x\""),
        AnswerForm::Regex(format!("{}a{}", "(".repeat(200), ")*".repeat(200))),
        AnswerForm::Regex("(a{1000}){1000}".into()),
        AnswerForm::Lark("start: r{100000}\nr: \"a\" | \"b\" r\n".into()),
    ];
    let deep = std::thread::Builder::new().stack_size(64 << 20);
    let compiled = deep.spawn(move || {
        let compiler = compiler();
        // Accepted or refused, but in bounded time and stack.
        worst.into_iter().for_each(|form| drop(compiler.compile(&lark(form))));
        for too_much in [
            nested(65),
            "(".repeat(100_000),
            format!("start: \"a\"\n{}", chain(1001, "rN: \"a\" #")),
            "[] ".repeat(8193),
        ] {
            let error = compiler.compile(&lark(AnswerForm::Lark(too_much))).err();
            assert!(error.unwrap().to_string().contains("more than"));
        }
    });
    compiled.unwrap().join().unwrap();
}

#[test]
fn tags_that_are_control_tokens_are_written_as_such() {
    struct WithTags;
    const TAGS: [&str; 4] = ["[TOOL_CALLS]", "[ARGS]", "</think>", "｜DSML｜"];
    impl Vocab for WithTags {
        fn size(&self) -> usize {
            SimVocab.size() + TAGS.len()
        }

        fn encode(
            &self,
            text: &str,
            how: loquent_infer::vocab::Encode,
        ) -> Result<Vec<TokenId>, loquent_infer::vocab::EncodeError> {
            SimVocab.encode(text, how)
        }

        fn piece(&self, token: TokenId) -> &[u8] {
            SimVocab.piece(token)
        }

        fn name(&self, token: TokenId) -> &[u8] {
            match TAGS.get((token as usize).wrapping_sub(SimVocab.size())) {
                Some(tag) => tag.as_bytes(),
                None => SimVocab.name(token),
            }
        }

        fn is_end(&self, token: TokenId) -> bool {
            SimVocab.is_end(token)
        }
    }
    let compiler = Compiler::new(&WithTags).unwrap();
    let end = (0..SimVocab.size() as TokenId).find(|&token| SimVocab.is_end(token)).unwrap();
    for (syntax, text) in [
        (CallSyntax::MistralArgs, "[TOOL_CALLS]time[ARGS]{\"zone\":\"<b>\"}"),
        (
            CallSyntax::DsmlTools,
            "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"time\">\n\
             <｜DSML｜parameter name=\"zone\" string=\"true\"><b></b></｜DSML｜parameter>\n\
             </｜DSML｜invoke>\n</｜DSML｜tool_calls>",
        ),
    ] {
        let parameters = json!({"type": "object", "properties": {"zone": {"type": "string"}}});
        let shape = AnswerShape {
            tools: vec![ToolShape { name: "time".into(), parameters }],
            syntax: Some(syntax),
            thinking: Thinking::Open(ThinkTags::Angle),
            ..AnswerShape::default()
        };
        let grammar = compiler.compile(&shape).unwrap();
        let mut constraint = grammar.0.start(&[]);
        let text = format!("Hm </think</think>{text}");
        for token in spoken(&text, &TAGS).into_iter().chain([end]) {
            let allowed = constraint.allowed().unwrap();
            assert!(allowed[token as usize / 32] >> (token % 32) & 1 == 1, "{syntax:?}: {token}");
            constraint.accept(token);
        }
    }
}

/// Returns `text` in bytes, and `tags` as the tokens after those of the simulated vocabulary.
fn spoken(text: &str, tags: &[&str]) -> Vec<TokenId> {
    let (mut tokens, mut rest) = (Vec::new(), text);
    while let Some(byte) = rest.bytes().next() {
        let tag = tags.iter().position(|tag| rest.starts_with(tag));
        let (token, len) = match tag {
            Some(at) => ((SimVocab.size() + at) as TokenId, tags[at].len()),
            None => (byte.into(), 1),
        };
        tokens.push(token);
        // The texts around the tags are ASCII.
        rest = &rest[len..];
    }
    tokens
}

#[test]
fn a_refused_grammar_is_refused_again_without_compiling() {
    let mut compiler = compiler();
    let usual = compiler.factory.limits().initial_lexer_fuel;
    compiler.factory.limits_mut().initial_lexer_fuel = 10;
    let refused = compiler.compile(&form(person())).expect_err("it exceeds its fuel");
    compiler.factory.limits_mut().initial_lexer_fuel = usual;
    assert_eq!(compiler.compile(&form(person())).err(), Some(refused));
    let other = json!({"type": "object", "properties": {"name": {"type": "string"}}});
    assert!(compiler.compile(&form(other)).is_ok());
}

#[test]
fn a_short_grammar_that_doubles_forty_times_is_refused() {
    let rules: String = (0..40).map(|n| format!("r{n} ::= r{0} r{0}\n", n + 1)).collect();
    let grammar = format!("root ::= r0\n{rules}r40 ::= \"a\"\n");
    let shape = AnswerShape { form: Some(AnswerForm::Gbnf(grammar)), ..AnswerShape::default() };
    let compiler = compiler();
    assert!(compiler.compile(&shape).is_err());
    assert!(compiler.factory.limits().initial_lexer_fuel < 500_000, "it is given up early");
}

#[test]
fn a_panic_inside_llguidance_is_a_refusal() {
    let form = Some(AnswerForm::Lark("start:<|tool▁call▁end|>ot".into()));
    let shape = AnswerShape { form, ..AnswerShape::default() };
    let refused = compiler().compile(&shape).expect_err("there is no such token").to_string();
    assert!(refused.starts_with("llguidance cannot compile it ("), "{refused}");
}
