//! Grammars that were refused: refusing one may take as long as compiling one.

use std::collections::{HashMap, VecDeque};

use llguidance::api::TopLevelGrammar;
use sha2::{Digest, Sha256};

/// Maximum grammars that are remembered.
const MAX_REFUSED: usize = 256;

/// Digest of a grammar.
pub(super) type GrammarDigest = [u8; 32];

/// Returns the digest of `grammar`; `None` if it cannot be written.
pub(super) fn digest_of(grammar: &TopLevelGrammar) -> Option<GrammarDigest> {
    serde_json::to_vec(grammar).ok().map(|text| Sha256::digest(text).into())
}

/// The grammars that were refused last, each with the reason.
#[derive(Debug, Default)]
pub(super) struct RefusedGrammars {
    reasons: HashMap<GrammarDigest, String>,
    order: VecDeque<GrammarDigest>,
}

impl RefusedGrammars {
    /// Returns the reason why the grammar was refused.
    pub fn reason(&self, digest: &GrammarDigest) -> Option<&str> {
        self.reasons.get(digest).map(String::as_str)
    }

    /// Remembers a refused grammar, in place of the oldest one if there are too many.
    pub fn note(&mut self, digest: GrammarDigest, reason: String) {
        if self.reasons.insert(digest, reason).is_some() {
            return;
        }
        self.order.push_back(digest);
        if self.order.len() > MAX_REFUSED {
            let oldest = self.order.pop_front();
            oldest.map(|oldest| self.reasons.remove(&oldest));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_grammars_are_bounded() {
        let mut refused = RefusedGrammars::default();
        let digest = |n: usize| Sha256::digest(n.to_le_bytes()).into();
        for n in 0..MAX_REFUSED + 3 {
            refused.note(digest(n), n.to_string());
            refused.note(digest(n), n.to_string());
        }
        assert_eq!((refused.reasons.len(), refused.order.len()), (MAX_REFUSED, MAX_REFUSED));
        assert_eq!(refused.reason(&digest(2)), None);
        assert_eq!(refused.reason(&digest(3)), Some("3"));
    }
}
