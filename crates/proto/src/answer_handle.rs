//! Id and token with which a reader resumes an answer over another connection (S-4.2).

use alloc::string::String;
use core::fmt;

use crate::hex;

/// Id and token of an answer, 16 random bytes each. Anyone who has both can read the answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AnswerHandle {
    /// Identifies the answer. May be logged.
    pub id: [u8; 16],
    /// Proves that the reader may read the answer: a secret.
    pub token: [u8; 16],
}

impl AnswerHandle {
    /// Parses id and token from 32 hex digits each; `None` for anything else.
    pub fn parse(id: &str, token: &str) -> Option<Self> {
        Some(Self { id: hex::decode(id)?, token: hex::decode(token)? })
    }

    /// The id as 32 hex digits.
    pub fn id_hex(&self) -> String {
        hex::encode(&self.id)
    }

    /// The token as 32 hex digits. Keep it out of logs.
    pub fn token_hex(&self) -> String {
        hex::encode(&self.token)
    }
}

/// Shows only the id, so that a log line cannot give access to the answer.
impl fmt::Debug for AnswerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AnswerHandle({})", self.id_hex())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_hides_the_token() {
        let handle = AnswerHandle { id: [1; 16], token: [0xab; 16] };
        assert_eq!(std::format!("{handle:?}"), std::format!("AnswerHandle({})", "01".repeat(16)));
        assert_eq!(AnswerHandle::parse(&handle.id_hex(), &handle.token_hex()), Some(handle));
    }
}
