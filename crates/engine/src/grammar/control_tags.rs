//! Tags that a vocabulary has as control tokens: no text gives them, so a grammar names them by
//! number.

use std::fmt::Write;

use loquent_infer::token::TokenId;
use loquent_infer::vocab::Vocab;
use serde_json::json;

use super::syntax::{CallSyntax, THINK_TAGS};

const SYNTAXES: [CallSyntax; 5] = [
    CallSyntax::Harmony,
    CallSyntax::QwenXml,
    CallSyntax::GlmXml,
    CallSyntax::MistralArgs,
    CallSyntax::DeepSeek,
];

/// The control tokens of one vocabulary among the tags of all formats.
#[derive(Debug, Default)]
pub(super) struct ControlTags(Vec<(&'static str, TokenId)>);

impl ControlTags {
    /// Those of `vocab`.
    pub(super) fn of(vocab: &dyn Vocab) -> Self {
        let known = SYNTAXES.iter().flat_map(|syntax| syntax.tags()).chain(&THINK_TAGS);
        let known: Vec<&'static str> = known.copied().collect();
        let control = |token: &TokenId| vocab.piece(*token).is_empty();
        let tag = |token: TokenId| {
            let name = vocab.name(token);
            known.iter().find(|tag| tag.as_bytes() == name).map(|&tag| (tag, token))
        };
        Self((0..vocab.size() as TokenId).filter(control).filter_map(tag).collect())
    }

    fn token(&self, tag: &str) -> Option<TokenId> {
        self.0.iter().find(|(name, _)| *name == tag).map(|(_, token)| *token)
    }

    /// `text` as a Lark expression: strings, and control tokens by their numbers.
    pub(super) fn literal(&self, text: &str) -> String {
        let mut parts = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let found =
                self.0.iter().filter_map(|(tag, id)| Some((rest.find(tag)?, tag.len(), id)));
            let Some((at, len, id)) = found.min() else {
                parts.push(string(rest));
                break;
            };
            if at > 0 {
                parts.push(string(&rest[..at]));
            }
            parts.push(format!("<[{id}]>"));
            rest = &rest[at + len..];
        }
        if parts.is_empty() { string("") } else { parts.join(" ") }
    }

    /// A rule `name` for any text up to `end`, which it includes.
    pub(super) fn until(&self, name: &str, end: &str) -> String {
        match self.token(end) {
            Some(id) => format!("{name}: /(.|\\n)*/ <[{id}]>\n"),
            None => {
                let end = in_regex(end);
                format!("{name}[lazy]: /(.|\\n)*{end}/\n")
            }
        }
    }
}

/// A Lark string, which is written as in JSON.
pub(super) fn string(text: &str) -> String {
    json!(text).to_string().replace('\x7f', "\\u007f")
}

/// `text` inside a Lark regular expression.
fn in_regex(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            c if c.is_alphanumeric() => escaped.push(c),
            // By its number: behind a backslash some signs have a meaning of their own.
            c => drop(write!(escaped, "\\x{{{:x}}}", u32::from(c))),
        }
    }
    escaped
}
