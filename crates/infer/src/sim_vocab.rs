//! Simulated vocabulary: every byte, three special tokens, some words.

use crate::token::TokenId;
use crate::vocab::{Encode, EncodeError, Vocab};

/// Token that ends a text, and with it a generation.
pub const END_OF_TEXT: TokenId = 256;
/// Token that ends a turn, and with it a generation. (257 begins one.)
pub const TURN_END: TokenId = 258;
/// First token of a word.
pub const FIRST_WORD: TokenId = 259;

const SPECIAL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

/// Words with a leading space, in no particular order.
pub const WORDS: [&str; 80] = [
    " the", " a", " token", " stream", " server", " client", " reads", " writes", " sends",
    " waits", " and", " then", " while", " until", " after", " before", " every", " each", " one",
    " two", " slow", " fast", " steady", " bursty", " quiet", " busy", " lossy", " clean", " long",
    " short", " packet", " byte", " frame", " queue", " buffer", " batch", " step", " prompt",
    " answer", " word", " link", " path", " radio", " socket", " window", " timer", " clock",
    " round", " trip", " delay", " arrives", " leaves", " shows", " hides", " grows", " shrinks",
    " merges", " splits", " resumes", " ends", " over", " under", " through", " between", " from",
    " into", " with", " without", " near", " far", " again", " once", " never", " always",
    " often", " here", " there", " now", " later", " soon",
];

/// Number of tokens: bytes, special tokens and words.
pub const SIZE: usize = FIRST_WORD as usize + WORDS.len();

const BYTES: [u8; 256] = {
    let mut bytes = [0; 256];
    let mut i = 0;
    while i < 256 {
        bytes[i] = i as u8;
        i += 1;
    }
    bytes
};

/// Vocabulary of the simulated engine. Any text can be encoded, and decodes to itself.
#[derive(Debug, Clone, Copy, Default)]
pub struct SimVocab;

impl SimVocab {
    /// Returns the first token of `text`, and its length in bytes.
    fn first(text: &str, parse_special: bool) -> (TokenId, usize) {
        let special = if parse_special { &SPECIAL[..] } else { &[] };
        if let Some(i) = special.iter().position(|name| text.starts_with(name)) {
            return (END_OF_TEXT + i as TokenId, SPECIAL[i].len());
        }
        let words = WORDS.iter().enumerate().filter(|(_, word)| text.starts_with(**word));
        // The longest word wins, as in a trained vocabulary; every byte is a token by itself.
        match words.max_by_key(|(_, word)| word.len()) {
            Some((i, word)) => (FIRST_WORD + i as TokenId, word.len()),
            None => (text.as_bytes()[0].into(), 1),
        }
    }
}

impl Vocab for SimVocab {
    fn size(&self) -> usize {
        SIZE
    }

    fn encode(&self, text: &str, how: Encode) -> Result<Vec<TokenId>, EncodeError> {
        let mut tokens = Vec::new();
        let mut at = 0;
        while at < text.len() {
            // Inside a character only its bytes are left as tokens.
            if !text.is_char_boundary(at) {
                tokens.push(text.as_bytes()[at].into());
                at += 1;
                continue;
            }
            let (token, len) = Self::first(&text[at..], how.parse_special);
            tokens.push(token);
            at += len;
        }
        Ok(tokens)
    }

    fn piece(&self, token: TokenId) -> &[u8] {
        match token {
            0..END_OF_TEXT => &BYTES[token as usize..=token as usize],
            END_OF_TEXT..FIRST_WORD => &[],
            _ => WORDS.get((token - FIRST_WORD) as usize).map_or(&[], |word| word.as_bytes()),
        }
    }

    fn name(&self, token: TokenId) -> &[u8] {
        match token {
            END_OF_TEXT..FIRST_WORD => SPECIAL[(token - END_OF_TEXT) as usize].as_bytes(),
            _ => self.piece(token),
        }
    }

    fn is_end(&self, token: TokenId) -> bool {
        token == END_OF_TEXT || token == TURN_END
    }

    fn longest_token_bytes(&self) -> Option<usize> {
        SPECIAL.iter().chain(&WORDS).map(|word| word.len()).max()
    }
}

#[cfg(test)]
mod tests {
    //! Text survives encoding; special tokens are parsed only on request.
    use proptest::prelude::*;

    use super::*;

    fn decode(tokens: &[TokenId]) -> Vec<u8> {
        tokens.iter().flat_map(|&token| SimVocab.piece(token).to_vec()).collect()
    }

    proptest! {
        #[test]
        fn any_text_decodes_to_itself(text in ".{0,40}( the| token|é|<\\|im_end\\|>){0,4}.{0,8}") {
            let plain = Encode { add_bos: true, parse_special: false };
            let tokens = SimVocab.encode(&text, plain).unwrap();
            prop_assert_eq!(decode(&tokens), text.as_bytes());
            prop_assert!(tokens.iter().all(|&t| (t as usize) < SIZE && !SimVocab.is_end(t)));
        }
    }

    #[test]
    fn special_tokens_are_parsed_when_asked() {
        let how = Encode { add_bos: false, parse_special: true };
        let tokens = SimVocab.encode("<|im_start|>a the<|im_end|>", how).unwrap();
        assert_eq!(tokens, [257, 97, FIRST_WORD, TURN_END]);
        assert_eq!(SimVocab.name(TURN_END), b"<|im_end|>");
        assert_eq!(SimVocab.piece(TURN_END), b"");
    }
}
