//! Drafts the next tokens of a sequence by looking them up in the sequence itself.
//!
//! Answers repeat: edited code, corrected texts, names, tables. If the last few tokens have
//! occurred before, the tokens that followed them are a good draft of the next ones, and need no
//! second model ("prompt lookup decoding"). A draft is only a proposal: the step that computes it
//! verifies every token.

use crate::token::TokenId;

/// Minimum tokens of a match: a single equal token predicts little.
pub const SHORTEST_MATCH: usize = 2;
/// Longer matches count as this long, so that the search can stop at the first one.
const LONGEST_MATCH: usize = 8;

/// Returns a draft of `len` tokens that may follow `tokens`, or none if nothing matches.
///
/// The draft continues after the longest earlier match of the sequence's end, the most recent one
/// among equals. If the match overlaps its own continuation (a text that repeats in a cycle), the
/// draft continues the cycle.
///
/// Takes time proportional to `tokens.len()`: some microseconds for thousands.
pub fn draft(tokens: &[TokenId], len: usize) -> Vec<TokenId> {
    let Some(from) = continuation(tokens) else {
        return Vec::new();
    };
    let period = tokens.len() - from;
    (0..len).map(|i| tokens[from + i % period]).collect()
}

/// Returns the position after the best earlier match of the sequence's end.
fn continuation(tokens: &[TokenId]) -> Option<usize> {
    let len = tokens.len();
    let end: [TokenId; SHORTEST_MATCH] = *tokens.last_chunk()?;
    let (mut best, mut best_len) = (None, 0);
    // Without the last token, since the last window is the end itself; backwards, so that the
    // most recent of equally long matches is met first.
    let earlier = tokens[..len - 1].windows(SHORTEST_MATCH).enumerate().rev();
    for (at, _) in earlier.filter(|(_, window)| **window == end) {
        let next = at + SHORTEST_MATCH;
        let matched = common_suffix(&tokens[..next], tokens);
        if matched > best_len {
            (best, best_len) = (Some(next), matched);
        }
        if best_len == LONGEST_MATCH {
            break;
        }
    }
    best
}

/// Number of equal tokens at the end of both, up to [`LONGEST_MATCH`].
fn common_suffix(a: &[TokenId], b: &[TokenId]) -> usize {
    let pairs = a.iter().rev().zip(b.iter().rev());
    pairs.take(LONGEST_MATCH).take_while(|(x, y)| x == y).count()
}

#[cfg(test)]
mod tests {
    //! Drafts against their definition, and on small texts.
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_draft_is_what_followed_before() {
        assert_eq!(draft(&[1, 2, 3, 4, 5, 9, 1, 2], 3), [3, 4, 5]);
        assert_eq!(draft(&[1, 2, 3, 4, 9, 2, 3], 8), [4, 9, 2, 3, 4, 9, 2, 3]);
        assert_eq!(draft(&[1, 2, 3, 4], 3), [0u32; 0]);
        assert_eq!(draft(&[7], 3), [0u32; 0]);
        assert_eq!(draft(&[], 3), [0u32; 0]);
    }

    #[test]
    fn a_longer_match_wins_and_among_equals_the_later_one() {
        assert_eq!(draft(&[5, 1, 2, 3, 8, 1, 2, 4, 5, 1, 2], 1), [3]);
        assert_eq!(draft(&[1, 2, 3, 8, 1, 2, 4, 9, 1, 2], 1), [4]);
    }

    #[test]
    fn circles_go_on() {
        assert_eq!(draft(&[1, 2, 1, 2], 5), [1, 2, 1, 2, 1]);
        assert_eq!(draft(&[6, 6, 6], 3), [6, 6, 6]);
    }

    proptest! {
        #[test]
        fn a_draft_is_what_followed_a_longest_match(
            tokens in prop::collection::vec(0..4u32, 0..60),
            len in 0..12usize,
        ) {
            let drafted = draft(&tokens, len);
            let matched = |next: usize| common_suffix(&tokens[..next], &tokens);
            let longest = (1..tokens.len()).map(matched).max().unwrap_or(0);
            prop_assert_eq!(drafted.len(), if longest >= SHORTEST_MATCH { len } else { 0 });
            // Read on from one of the longest matches, it agrees with the text as far as that goes.
            let fits = |next: usize| {
                matched(next) == longest && tokens[next..].iter().zip(&drafted).all(|(a, b)| a == b)
            };
            prop_assert!(drafted.is_empty() || (1..tokens.len()).any(fits));
        }
    }
}
