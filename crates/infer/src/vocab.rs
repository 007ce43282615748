//! Interface of a model's vocabulary: text to tokens, and tokens to bytes.

use crate::token::TokenId;

/// Treatment of special tokens by [`Vocab::encode`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Encode {
    /// Put the model's begin-of-sequence token first, if it has one and uses it.
    pub add_bos: bool,
    /// Parse special tokens written in the text (`<|im_end|>`) as those tokens. Off for text from
    /// users.
    pub parse_special: bool,
}

impl Encode {
    /// How a prompt is tokenized whose text the client has written as the model reads it.
    pub const PROMPT: Self = Self { add_bos: true, parse_special: true };
}

/// Failure to tokenize a text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot tokenize the text: {0}")]
pub struct EncodeError(pub String);

/// A model's vocabulary. Shared between threads; never blocks.
pub trait Vocab: Send + Sync {
    /// Number of tokens; token ids are smaller.
    fn size(&self) -> usize;

    /// Tokenizes `text`.
    ///
    /// # Errors
    /// [`EncodeError`] if the tokenizer rejects the text, for example because of its length.
    fn encode(&self, text: &str, how: Encode) -> Result<Vec<TokenId>, EncodeError>;

    /// Tokenizes `text` for an embedding: adds the tokens that the model expects around an input.
    ///
    /// # Errors
    /// Same as [`Vocab::encode`].
    fn encode_input(&self, text: &str) -> Result<Vec<TokenId>, EncodeError> {
        self.encode(text, Encode { add_bos: true, parse_special: false })
    }

    /// Token that [`Vocab::encode_input`] appends to every input, if any.
    fn input_end(&self) -> Option<TokenId> {
        None
    }

    /// Bytes that `token` adds to a text, possibly part of a character; empty for control tokens
    /// and for ids outside the vocabulary.
    fn piece(&self, token: TokenId) -> &[u8];

    /// Token as written in a vocabulary listing, control tokens included.
    fn name(&self, token: TokenId) -> &[u8];

    /// Returns true if `token` ends a generation (EOS, end of turn).
    fn is_end(&self, token: TokenId) -> bool;

    /// Maximum bytes of text per token; `None` if there is no such bound, as in vocabularies that
    /// drop or merge unknown text. A text longer than `n` times this has more than `n` tokens,
    /// which is known without tokenizing it.
    fn longest_token_bytes(&self) -> Option<usize> {
        None
    }
}

/// Bytes of text per token of the limit that are tokenized before it is known whether all fit: more
/// than the texts that people write have.
const PROBE_BYTES_PER_TOKEN: usize = 8;
/// Tokens by which the beginning of a text may exceed the text, at most.
const PROBE_SLACK_TOKENS: usize = 16;

/// Tokenizes `text`, or returns `None` as soon as it surely has more than `most` tokens.
///
/// A text that is far longer than `most` tokens usually are is probed by its beginning, twice as
/// much each time, so that one that does not fit costs little more than one that does. A text may
/// have a few tokens less than its beginning alone; what is refused exceeds `most` by a quarter and
/// `PROBE_SLACK_TOKENS`.
///
/// # Errors
/// Same as [`Vocab::encode`].
pub fn encode_within(
    vocab: &dyn Vocab,
    text: &str,
    how: Encode,
    most: usize,
) -> Result<Option<Vec<TokenId>>, EncodeError> {
    let mut probe_bytes = PROBE_BYTES_PER_TOKEN.saturating_mul(most.max(1));
    while probe_bytes < text.len() / 2 {
        let end = text.floor_char_boundary(probe_bytes);
        // Tokenizers split texts before spaces, so this beginning is split as the whole text is.
        let end = text[..end].rfind(char::is_whitespace).unwrap_or(end);
        let tokens = vocab.encode(&text[..end], how)?.len();
        if tokens > most.saturating_add(most / 4 + PROBE_SLACK_TOKENS) {
            return Ok(None);
        }
        probe_bytes = probe_bytes.saturating_mul(2);
    }
    vocab.encode(text, how).map(Some)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A token for each word, or for each 64 bytes of a longer one.
    #[derive(Default)]
    struct Words {
        encoded_bytes: AtomicUsize,
    }

    impl Vocab for Words {
        fn size(&self) -> usize {
            1
        }

        fn encode(&self, text: &str, _how: Encode) -> Result<Vec<TokenId>, EncodeError> {
            self.encoded_bytes.fetch_add(text.len(), Ordering::Relaxed);
            let words = text.split_whitespace().map(|word| word.len().div_ceil(64));
            Ok(vec![0; words.sum()])
        }

        fn piece(&self, _token: TokenId) -> &[u8] {
            b""
        }

        fn name(&self, _token: TokenId) -> &[u8] {
            b""
        }

        fn is_end(&self, _token: TokenId) -> bool {
            false
        }
    }

    fn encoded(text: &str, most: usize) -> (Option<usize>, usize) {
        let (vocab, how) = (Words::default(), Encode { add_bos: false, parse_special: false });
        let tokens = encode_within(&vocab, text, how, most).unwrap();
        (tokens.map(|tokens| tokens.len()), vocab.encoded_bytes.into_inner())
    }

    #[test]
    fn tokenizing_stops_once_the_limit_is_exceeded() {
        let long = "two ".repeat(500_000);
        let (tokens, bytes) = encoded(&long, 1000);
        assert_eq!(tokens, None);
        assert!(bytes <= 16_000, "{bytes} bytes were tokenized");
        assert_eq!(encoded(&long, usize::MAX).0, Some(500_000));
        // Long words fit: as many tokens as they have.
        let words = "x".repeat(64).repeat(800);
        assert_eq!(encoded(&words, 1000).0, Some(800));
        let letters = "é".repeat(40_000);
        assert_eq!(encoded(&letters, 1300).0, Some(1250));
    }
}
