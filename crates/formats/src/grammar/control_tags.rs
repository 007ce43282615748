//! Tags that are control tokens in a vocabulary: no text produces them, so a grammar names them by
//! number.

use std::fmt::Write;

use loquent_infer::token::TokenId;
use loquent_infer::vocab::Vocab;
use serde_json::json;

use super::syntax::{CallSyntax, ThinkTags};

const SYNTAXES: [CallSyntax; 6] = [
    CallSyntax::Harmony,
    CallSyntax::QwenXml,
    CallSyntax::GlmXml,
    CallSyntax::MistralArgs,
    CallSyntax::DeepSeek,
    CallSyntax::DsmlFunctions,
];

/// The control tokens of one vocabulary among the tags of all formats.
#[derive(Debug, Default)]
pub(super) struct ControlTags(Vec<(&'static str, TokenId)>);

impl ControlTags {
    /// Finds the tags among the control tokens of `vocab`.
    pub(super) fn of(vocab: &dyn Vocab) -> Self {
        let known = SYNTAXES.iter().flat_map(|syntax| syntax.tags()).copied();
        let known: Vec<&'static str> =
            known.chain(ThinkTags::ALL.into_iter().flat_map(ThinkTags::pair)).collect();
        let control = |token: &TokenId| vocab.piece(*token).is_empty();
        let tag = |token: TokenId| {
            let name = vocab.name(token);
            known.iter().find(|tag| tag.as_bytes() == name).map(|&tag| (tag, token))
        };
        Self((0..vocab.size() as TokenId).filter(control).filter_map(tag).collect())
    }

    /// Returns the first of these tokens in `text`: position, length of its name, and number.
    fn find_in(&self, text: &str) -> Option<(usize, usize, TokenId)> {
        let found = self.0.iter().filter_map(|(tag, id)| Some((text.find(tag)?, tag.len(), *id)));
        found.min()
    }

    /// Returns `text` as a Lark expression: strings, and control tokens by number.
    pub(super) fn literal(&self, text: &str) -> String {
        let mut parts = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let Some((at, len, id)) = self.find_in(rest) else {
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

    /// Returns a rule `name` for any text up to `end`, inclusive.
    pub(super) fn until(&self, name: &str, end: &str) -> String {
        match self.find_in(end) {
            // The token has no text, so that it ends the text in front of it wherever it stands.
            Some((at, len, id)) => {
                let (before, behind) = (in_regex(&end[..at]), self.literal(&end[at + len..]));
                format!("{name}: /(.|\\n)*{before}/ <[{id}]> {behind}\n")
            }
            None => {
                let end = in_regex(end);
                format!("{name}[lazy]: /(.|\\n)*{end}/\n")
            }
        }
    }
}

/// Returns a Lark string, which is written as in JSON.
pub(super) fn string(text: &str) -> String {
    json!(text).to_string().replace('\x7f', "\\u007f")
}

/// Escapes `text` for a Lark regular expression.
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
