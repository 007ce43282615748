//! Padding of answers, so that the lengths of their events and datagrams reveal little of the text.

use http::{Extensions, Request};
use loquent_proto::obfuscation::Obfuscation;

/// Marks a request whose connection is encrypted: TLS or QUIC.
#[derive(Debug, Clone, Copy)]
pub struct Encrypted;

/// Marks `request` as received over an encrypted connection.
pub fn encrypted<B>(mut request: Request<B>) -> Request<B> {
    request.extensions_mut().insert(Encrypted);
    request
}

/// Answers that are padded if their request leaves `include_obfuscation` out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ObfuscationDefault {
    /// Answers on encrypted connections, and all datagrams: on other connections the text itself is
    /// readable.
    #[default]
    Encrypted,
    /// All answers, for a server behind a proxy that encrypts.
    Always,
    /// No answers.
    Never,
}

impl ObfuscationDefault {
    /// Returns the padding of the answer to a request with these `extensions`.
    pub fn of_request(self, extensions: &Extensions) -> Obfuscation {
        let by_default = match self {
            Self::Encrypted => extensions.get::<Encrypted>().is_some(),
            Self::Always => true,
            Self::Never => false,
        };
        Obfuscation::new(rand::random(), by_default)
    }

    /// Returns true if the datagrams of an answer are padded (D-2.7). `asked` is the request's
    /// choice, if it made one. Datagrams are always encrypted.
    pub fn pads_datagrams(self, asked: Option<bool>) -> bool {
        asked.unwrap_or(self != Self::Never)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_are_padded_unless_the_request_or_the_operator_declines() {
        use ObfuscationDefault::{Always, Encrypted, Never};
        for (default, said_nothing) in [(Encrypted, true), (Always, true), (Never, false)] {
            assert_eq!(default.pads_datagrams(None), said_nothing);
            assert!(default.pads_datagrams(Some(true)) && !default.pads_datagrams(Some(false)));
        }
    }
}
