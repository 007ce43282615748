//! Placeholder vocabulary for the unknown vocabulary of an upstream server's model.

use loquent_infer::token::TokenId;
use loquent_infer::vocab::{Encode, EncodeError, Vocab};

/// Placeholder vocabulary for the unknown vocabulary of an upstream server's model.
#[derive(Debug, Clone, Copy)]
pub struct UnknownVocab;

impl Vocab for UnknownVocab {
    fn size(&self) -> usize {
        0
    }

    fn encode(&self, _text: &str, _how: Encode) -> Result<Vec<TokenId>, EncodeError> {
        Err(EncodeError("the upstream server knows the vocabulary".into()))
    }

    fn piece(&self, _token: TokenId) -> &[u8] {
        &[]
    }

    fn name(&self, _token: TokenId) -> &[u8] {
        &[]
    }

    fn is_end(&self, _token: TokenId) -> bool {
        false
    }
}
