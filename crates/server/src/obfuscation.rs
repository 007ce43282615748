//! Which event streams are padded, so that the lengths of their events say little of the text.

use http::{Extensions, Request};
use loquent_proto::obfuscation::Obfuscation;

/// Marks a request whose connection is encrypted: TLS or QUIC.
#[derive(Debug, Clone, Copy)]
pub struct Encrypted;

/// `request`, marked as one that came over an encrypted connection.
pub fn encrypted<B>(mut request: Request<B>) -> Request<B> {
    request.extensions_mut().insert(Encrypted);
    request
}

/// Which event streams are padded if their request leaves `include_obfuscation` out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ObfuscationDefault {
    /// Those on encrypted connections: on others everybody reads the text itself.
    #[default]
    Encrypted,
    /// All, for a server behind a proxy that encrypts.
    Always,
    /// None.
    Never,
}

impl ObfuscationDefault {
    /// The padding of the answer to a request with these `extensions`.
    pub fn of_request(self, extensions: &Extensions) -> Obfuscation {
        let by_default = match self {
            Self::Encrypted => extensions.get::<Encrypted>().is_some(),
            Self::Always => true,
            Self::Never => false,
        };
        Obfuscation::new(rand::random(), by_default)
    }
}
