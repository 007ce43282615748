//! Writes a grammar in llguidance's dialect of Lark.

use std::fmt::Write;

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};

use super::control_tags::{ControlTags, string};
use super::json_rule::json_rule;
use super::syntax::CallSyntax;
use super::{
    AnswerForm, AnswerShape, GrammarError, MAX_GRAMMAR_BYTES, Thinking, bounds, calls, gbnf,
};

/// Name of the request's grammar inside the surrounding one.
const ANSWER: &str = "answer";

/// Returns the grammar of `shape`: one around the answer, followed by the request's own.
pub(super) fn write(
    shape: &AnswerShape,
    tags: &ControlTags,
) -> Result<TopLevelGrammar, GrammarError> {
    let mut text = String::new();
    let is_harmony = shape.thinking == Thinking::Channels;
    // In a channel of its own, an answer has a head.
    let form = if is_harmony { "final" } else { "form" };
    let body = match (shape.form.is_some(), shape.tools.is_empty()) {
        (true, true) => form.to_owned(),
        (true, false) => format!("({form} | calls)"),
        (false, _) => "calls".to_owned(),
    };
    write_start(&mut text, shape.thinking, &body, tags);
    if is_harmony {
        let head = tags.literal("<|channel|>final<|message|>");
        let _ = writeln!(text, "final: {head} form");
    }
    if let Some(form) = &shape.form {
        let _ = writeln!(text, "form: {}", form_rule(form));
    }
    if !shape.tools.is_empty() {
        let syntax = shape.syntax.unwrap_or(CallSyntax::Tagged);
        calls::write(&mut text, &shape.tools, syntax, shape.parallel, tags)?;
    }
    let mut all = TopLevelGrammar::from_lark(text);
    if let Some(brought) = shape.form.as_ref().map(brought).transpose()? {
        all.grammars.extend(brought);
    }
    Ok(all)
}

/// Writes the start rule. Reasoning is free text up to its end; only the rest is constrained.
fn write_start(text: &mut String, thinking: Thinking, body: &str, tags: &ControlTags) {
    let before = match thinking {
        Thinking::Never => String::new(),
        Thinking::Optional(think) => format!("({} thoughts)? ", tags.literal(think.pair()[0])),
        Thinking::Open(_) => "thoughts ".to_owned(),
        Thinking::Channels => "analysis? ".to_owned(),
    };
    let _ = writeln!(text, "start: {before}{body}");
    match thinking {
        Thinking::Never => {}
        Thinking::Optional(think) | Thinking::Open(think) => {
            text.push_str("thoughts: until_end BREAK?\nBREAK: /\\n{1,2}/\n");
            text.push_str(&tags.until("until_end", think.pair()[1]));
        }
        Thinking::Channels => {
            let head = tags.literal("<|channel|>analysis<|message|>");
            let next = tags.literal("<|start|>assistant");
            let _ = writeln!(text, "analysis: {head} until_end {next}");
            text.push_str(&tags.until("until_end", "<|end|>"));
        }
    }
}

fn form_rule(form: &AnswerForm) -> String {
    match form {
        AnswerForm::Json(schema) => json_rule(schema),
        AnswerForm::Choice(texts) => {
            let texts: Vec<String> = texts.iter().map(|text| string(text)).collect();
            texts.join(" | ")
        }
        AnswerForm::Regex(_) | AnswerForm::Lark(_) | AnswerForm::Gbnf(_) => format!("@{ANSWER}"),
    }
}

/// Returns the request's grammar under its own name, so that its rules do not collide with ours.
fn brought(form: &AnswerForm) -> Result<Option<GrammarWithLexer>, GrammarError> {
    let grammar = match form {
        AnswerForm::Json(_) | AnswerForm::Choice(_) => return Ok(None),
        AnswerForm::Regex(regex) => GrammarWithLexer::from_regex(regex),
        AnswerForm::Lark(lark) => from_lark(lark.clone())?,
        AnswerForm::Gbnf(gbnf) => from_lark(gbnf::to_lark(gbnf)?)?,
    };
    Ok(Some(GrammarWithLexer { name: Some(ANSWER.to_owned()), ..grammar }))
}

fn from_lark(lark: String) -> Result<GrammarWithLexer, GrammarError> {
    if lark.len() > MAX_GRAMMAR_BYTES {
        return Err(GrammarError::TooLarge);
    }
    bounds::check(&lark)?;
    Ok(GrammarWithLexer::from_lark(lark))
}
