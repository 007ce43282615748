//! Guessing the next tokens of a sequence by looking them up in the sequence itself.
//!
//! Answers repeat: code that is being edited, a text that is being corrected, names, tables. Where the last few
//! tokens have occurred before, what followed them then is a good guess at what follows now, and it costs no
//! second model ("prompt look-up decoding"). The guess is only ever a proposal: whoever computes it checks every token.

use crate::runner::TokenId;

/// Fewer equal tokens than this are no reason to guess.
pub const SHORTEST_MATCH: usize = 2;
/// Matches are not told apart beyond this length.
const LONGEST_MATCH: usize = 8;

/// What may follow `tokens`: what followed the longest earlier match of their end, the most recent one among
/// equals. At most `most` tokens, none where nothing matches. Where the match reaches into its own continuation
/// (a text that goes in circles), the circle goes on.
///
/// Takes time in proportion to `tokens`: some microseconds for thousands.
pub fn guess(tokens: &[TokenId], most: usize) -> Vec<TokenId> {
    let Some(from) = continuation(tokens) else {
        return Vec::new();
    };
    let period = tokens.len() - from;
    (0..most).map(|i| tokens[from + i % period]).collect()
}

/// Where the text goes on after the best earlier match of its end.
fn continuation(tokens: &[TokenId]) -> Option<usize> {
    let len = tokens.len();
    let end: [TokenId; SHORTEST_MATCH] = *tokens.last_chunk()?;
    let (mut best, mut best_len) = (None, 0);
    // The last window is the end itself.
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

/// Equal tokens at the end of both, counted up to [`LONGEST_MATCH`].
fn common_suffix(a: &[TokenId], b: &[TokenId]) -> usize {
    let pairs = a.iter().rev().zip(b.iter().rev());
    pairs.take(LONGEST_MATCH).take_while(|(x, y)| x == y).count()
}

#[cfg(test)]
mod tests {
    //! Guesses against their definition, and on small texts.
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_followed_before_is_guessed() {
        assert_eq!(guess(&[1, 2, 3, 4, 5, 9, 1, 2], 3), [3, 4, 5]);
        assert_eq!(guess(&[1, 2, 3, 4, 9, 2, 3], 8), [4, 9, 2, 3, 4, 9, 2, 3]);
        assert_eq!(guess(&[1, 2, 3, 4], 3), [0u32; 0]);
        assert_eq!(guess(&[7], 3), [0u32; 0]);
        assert_eq!(guess(&[], 3), [0u32; 0]);
    }

    #[test]
    fn a_longer_match_wins_and_among_equals_the_later_one() {
        assert_eq!(guess(&[5, 1, 2, 3, 8, 1, 2, 4, 5, 1, 2], 1), [3]);
        assert_eq!(guess(&[1, 2, 3, 8, 1, 2, 4, 9, 1, 2], 1), [4]);
    }

    #[test]
    fn circles_go_on() {
        assert_eq!(guess(&[1, 2, 1, 2], 5), [1, 2, 1, 2, 1]);
        assert_eq!(guess(&[6, 6, 6], 3), [6, 6, 6]);
    }

    proptest! {
        #[test]
        fn a_guess_is_what_followed_a_longest_match(
            tokens in prop::collection::vec(0..4u32, 0..60),
            most in 0..12usize,
        ) {
            let guessed = guess(&tokens, most);
            let matched = |next: usize| common_suffix(&tokens[..next], &tokens);
            let longest = (1..tokens.len()).map(matched).max().unwrap_or(0);
            prop_assert_eq!(guessed.len(), if longest >= SHORTEST_MATCH { most } else { 0 });
            // Read on from one of the longest matches, it agrees with the text as far as that goes.
            let fits = |next: usize| {
                matched(next) == longest && tokens[next..].iter().zip(&guessed).all(|(a, b)| a == b)
            };
            prop_assert!(guessed.is_empty() || (1..tokens.len()).any(fits));
        }
    }
}
