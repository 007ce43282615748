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
