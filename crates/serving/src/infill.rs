//! Prompts for filling in text between two others, with the special tokens of the model's
//! vocabulary.

use loquent_infer::token::TokenId;
use loquent_infer::vocab::{Encode, Vocab};

/// Names of these tokens in various models: before the prefix, before the suffix, and before the
/// text to fill in.
const NAMES: [[&str; 3]; 6] = [
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
    ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
    ["▁<PRE>", "▁<SUF>", "▁<MID>"],
];
/// Mistral's tokens. Its prompts have the suffix first and no third token.
const SUFFIX_FIRST: [&str; 2] = ["[PREFIX]", "[SUFFIX]"];

/// Tokens and text order of a model's infill prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InfillTokens {
    /// Before the prefix, the suffix, and the text to fill in, in this order.
    InOrder([TokenId; 3]),
    /// Before the prefix, which comes last, and before the suffix.
    SuffixFirst([TokenId; 2]),
}

impl InfillTokens {
    /// Returns the infill tokens of `vocab`, if it has any.
    pub fn of(vocab: &dyn Vocab) -> Option<Self> {
        let in_order = NAMES.iter().find_map(|names| tokens(vocab, *names));
        let suffix_first = || tokens(vocab, SUFFIX_FIRST).map(Self::SuffixFirst);
        in_order.map(Self::InOrder).or_else(suffix_first)
    }

    /// Returns the prompt: `begin`, and the texts in the model's order.
    pub fn prompt(
        self,
        begin: Vec<TokenId>,
        before: &[TokenId],
        behind: &[TokenId],
    ) -> Vec<TokenId> {
        let mut prompt = begin;
        match self {
            Self::InOrder([prefix, suffix, middle]) => {
                prompt.push(prefix);
                prompt.extend(before);
                prompt.push(suffix);
                prompt.extend(behind);
                prompt.push(middle);
            }
            Self::SuffixFirst([prefix, suffix]) => {
                prompt.push(suffix);
                prompt.extend(behind);
                prompt.push(prefix);
                prompt.extend(before);
            }
        }
        prompt
    }
}

/// Returns the tokens of `names`, if each is a single token.
fn tokens<const N: usize>(vocab: &dyn Vocab, names: [&str; N]) -> Option<[TokenId; N]> {
    let mut found = [0; N];
    for (token, name) in found.iter_mut().zip(names) {
        let how = Encode { add_bos: false, parse_special: true };
        match vocab.encode(name, how).ok()?[..] {
            // A vocabulary may merge any text into one token; only these have the name.
            [one] if vocab.name(one) == name.as_bytes() => *token = one,
            _ => return None,
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use loquent_infer::sim_vocab::SimVocab;
    use loquent_infer::vocab::EncodeError;

    use super::*;

    /// A vocabulary with `names` as the tokens from 1000.
    struct WithNames(&'static [&'static str]);

    impl Vocab for WithNames {
        fn size(&self) -> usize {
            2000
        }

        fn encode(&self, text: &str, how: Encode) -> Result<Vec<TokenId>, EncodeError> {
            match self.0.iter().position(|name| *name == text) {
                Some(at) => Ok(vec![1000 + at as TokenId]),
                None => SimVocab.encode(text, how),
            }
        }

        fn piece(&self, token: TokenId) -> &[u8] {
            SimVocab.piece(token)
        }

        fn name(&self, token: TokenId) -> &[u8] {
            self.0.get((token as usize).wrapping_sub(1000)).map_or(&[], |name| name.as_bytes())
        }

        fn is_end(&self, _token: TokenId) -> bool {
            false
        }
    }

    #[test]
    fn texts_come_in_the_order_that_the_vocabulary_shows() {
        let qwen = WithNames(&["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]);
        let prompt = InfillTokens::of(&qwen).unwrap().prompt(vec![7], &[1, 2], &[3]);
        assert_eq!(prompt, [7, 1000, 1, 2, 1001, 3, 1002]);
        let mistral = WithNames(&["[PREFIX]", "[SUFFIX]"]);
        let prompt = InfillTokens::of(&mistral).unwrap().prompt(vec![], &[1, 2], &[3]);
        assert_eq!(prompt, [1001, 3, 1000, 1, 2]);
        assert_eq!(InfillTokens::of(&SimVocab), None);
        assert_eq!(InfillTokens::of(&WithNames(&["<fim_prefix>"])), None);
    }
}
