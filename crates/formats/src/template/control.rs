//! Names of control tokens in users' text.

use aho_corasick::AhoCorasick;
use loquent_infer::token::TokenId;
use loquent_infer::vocab::Vocab;

/// Finds the names of a vocabulary's control tokens (`<|im_end|>`) in a text, in one pass.
///
/// Only a text with such a name can give a control token when it is tokenized with special tokens
/// parsed. If names overlap, not every such text does; that errs on the safe side.
#[derive(Debug)]
pub struct ControlNames(Option<AhoCorasick>);

impl ControlNames {
    /// Finds the names in `vocab`.
    pub fn of(vocab: &dyn Vocab) -> Self {
        let tokens = 0..vocab.size() as TokenId;
        // Control tokens have a name and add nothing to a text.
        let names = tokens.filter(|&token| vocab.piece(token).is_empty());
        let names = names.map(|token| vocab.name(token)).filter(|name| !name.is_empty());
        Self(AhoCorasick::new(names).ok())
    }

    /// Returns true if `text` contains one of the names.
    pub fn occur_in(&self, text: &str) -> bool {
        // Too many names for an automaton, which no vocabulary has: then every text counts.
        self.0.as_ref().is_none_or(|names| names.is_match(text))
    }
}

#[cfg(test)]
mod tests {
    //! Every text that tokenizes to a control token contains a name.
    use loquent_infer::vocab::Encode;
    use proptest::prelude::*;

    use super::*;
    use loquent_infer::sim_vocab::SimVocab;

    proptest! {
        #[test]
        fn a_text_that_gives_a_control_token_has_a_name(
            text in ".{0,8}(<\\|im_end\\|>|<\\|im_end\\||<|\\|>|endoftext){0,3}.{0,8}",
        ) {
            let how = Encode { add_bos: false, parse_special: true };
            let tokens = SimVocab.encode(&text, how).unwrap();
            let special = tokens.iter().any(|&token| SimVocab.piece(token).is_empty());
            prop_assert_eq!(ControlNames::of(&SimVocab).occur_in(&text), special);
        }
    }
}
