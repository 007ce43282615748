//! The interface of a model's vocabulary: text to tokens, and tokens to bytes.

use crate::token::TokenId;

/// How [`Vocab::encode`] treats special tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Encode {
    /// Put the model's begin-of-sequence token first, if it has one and uses it.
    pub add_bos: bool,
    /// Read special tokens written in the text (`<|im_end|>`) as those tokens.
    /// Off for text that users wrote.
    pub parse_special: bool,
}

/// Text could not be tokenized.
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
    /// [`EncodeError`] when the tokenizer refuses the text, for example because of its length.
    fn encode(&self, text: &str, how: Encode) -> Result<Vec<TokenId>, EncodeError>;

    /// Tokenizes `text` for an embedding: framed by the tokens that the model expects around an
    /// input.
    ///
    /// # Errors
    /// Those of [`Vocab::encode`].
    fn encode_input(&self, text: &str) -> Result<Vec<TokenId>, EncodeError> {
        self.encode(text, Encode { add_bos: true, parse_special: false })
    }

    /// The token that [`Vocab::encode_input`] puts behind every input, if it puts any.
    fn input_end(&self) -> Option<TokenId> {
        None
    }

    /// The bytes that `token` adds to a text, possibly part of a character;
    /// empty for control tokens and for ids outside the vocabulary.
    fn piece(&self, token: TokenId) -> &[u8];

    /// The token as written in a vocabulary listing, control tokens included.
    fn name(&self, token: TokenId) -> &[u8];

    /// Whether `token` ends a generation (EOS, end of turn).
    fn is_end(&self, token: TokenId) -> bool;

    /// Most bytes of a text that one token of it stands for; `None` where there is no such bound,
    /// as in vocabularies that drop or merge what they do not know. A text of more bytes than `n`
    /// such tokens has more than `n` tokens, which is known without tokenizing it.
    fn longest_token_bytes(&self) -> Option<usize> {
        None
    }
}
