//! Splits the JSON of log-probabilities into tokens: an object whose lists have an entry for each
//! token (`content` of a chat; `tokens` and its siblings of a completion).
//!
//! The JSON is split and joined as text: entries pass through unread.

use alloc::string::String;
use alloc::vec::Vec;

use crate::json::{entries, members};

/// Names of the lists with one entry per token, of a chat and of a completion.
const TOKENS: [&str; 2] = ["content", "tokens"];

/// See the module's documentation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenLists<'a> {
    members: Vec<(&'a str, MemberValue<'a>)>,
    /// Index of the member with an entry for each token.
    tokens: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum MemberValue<'a> {
    List(Vec<&'a str>),
    Other(&'a str),
}

impl<'a> TokenLists<'a> {
    /// Parses the lists of `json`; `None` if it has no list of tokens.
    pub fn parse(json: &'a str) -> Option<Self> {
        let mut found = Vec::new();
        for (name, value) in members(json)? {
            let value = match value.starts_with('[') {
                true => MemberValue::List(entries(value)?),
                false => MemberValue::Other(value),
            };
            found.push((name, value));
        }
        let is_tokens = |(name, value): &(&str, MemberValue)| {
            TOKENS.contains(name) && matches!(value, MemberValue::List(_))
        };
        let tokens = found.iter().position(is_tokens)?;
        Some(Self { members: found, tokens })
    }

    /// The tokens, as JSON strings.
    pub fn tokens(&self) -> impl Iterator<Item = &'a str> {
        let MemberValue::List(entries) = &self.members[self.tokens].1 else {
            unreachable!("it was chosen for being a list")
        };
        entries.iter().map(|entry| token_of(entry))
    }

    /// The JSON without the first `count` tokens.
    pub fn without_first(&self, count: usize) -> String {
        self.write(|_, list| list.iter().skip(count).copied().collect())
    }

    /// The JSON with the tokens of `next` appended.
    pub fn followed_by(&self, next: &TokenLists) -> String {
        self.write(|name, list| {
            let more = next.members.iter().find_map(|(known, value)| match value {
                MemberValue::List(more) if *known == name => Some(&**more),
                _ => None,
            });
            list.iter().chain(more.unwrap_or_default()).copied().collect()
        })
    }

    fn write<'b>(&self, change: impl Fn(&str, &[&'b str]) -> Vec<&'b str>) -> String
    where
        'a: 'b,
    {
        let mut json = String::from("{");
        for (at, (name, value)) in self.members.iter().enumerate() {
            json.push_str(if at > 0 { ",\"" } else { "\"" });
            json.push_str(name);
            json.push_str("\":");
            match value {
                MemberValue::Other(value) => json.push_str(value),
                MemberValue::List(list) => {
                    json.push('[');
                    json.push_str(&change(name, list).join(","));
                    json.push(']');
                }
            }
        }
        json.push('}');
        json
    }
}

/// Token of an entry: a chat's entry is an object, a completion's the token itself.
fn token_of(entry: &str) -> &str {
    let members = members(entry).unwrap_or_default();
    members.into_iter().find(|(name, _)| *name == "token").map_or(entry, |(_, value)| value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn chat(tokens: &[&str]) -> String {
        let top = json!([{"token": "}],\\\""}]);
        let entry = |token: &&str| json!({"token": token, "logprob": -0.5, "top_logprobs": top});
        let content: Vec<Value> = tokens.iter().map(entry).collect();
        json!({"content": content, "refusal": null}).to_string()
    }

    fn plain(tokens: &[&str]) -> String {
        let offsets: Vec<usize> = (0..tokens.len()).collect();
        json!({"tokens": tokens, "text_offset": offsets, "top_logprobs": null}).to_string()
    }

    proptest! {
        #[test]
        fn what_is_cut_and_joined_is_as_it_was(
            tokens in prop::collection::vec(".{0,4}", 0..6),
            cut in 0_usize..7,
            is_chat: bool,
        ) {
            let write = if is_chat { chat } else { plain };
            let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
            let cut = cut.min(tokens.len());
            let json = write(&tokens);
            let all = TokenLists::parse(&json).unwrap();
            let named: Vec<String> =
                all.tokens().map(|token| serde_json::from_str(token).unwrap()).collect();
            prop_assert_eq!(&named, &tokens);
            let rest = all.without_first(cut);
            let rest = TokenLists::parse(&rest).unwrap();
            prop_assert_eq!(rest.tokens().count(), tokens.len() - cut);
            let none = all.without_first(tokens.len());
            let none = TokenLists::parse(&none).unwrap();
            prop_assert_eq!(none.followed_by(&all), json);
        }

        #[test]
        fn hostile_json_is_cut_or_refused(json in r#"[\[\]{}",:\\a "content""tokens"]{0,40}"#) {
            if let Some(lists) = TokenLists::parse(&json) {
                let count = lists.tokens().count();
                let _ = lists.without_first(count / 2);
                let _ = lists.followed_by(&lists);
            }
        }
    }

    #[test]
    fn what_has_no_tokens_is_refused() {
        let odd = [r#"{"content":null}"#, r#"{"content":[}"#, r#"{"content":["]}"#];
        for json in ["", "{}", "[]"].into_iter().chain(odd) {
            assert_eq!(TokenLists::parse(json), None, "{json}");
        }
    }
}
