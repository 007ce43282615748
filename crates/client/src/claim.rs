//! What a reader must know to go on with an answer elsewhere: its id and token (S-4.2).

use std::fmt;

/// Id and token of an answer, 16 random bytes each. Whoever has both may read it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The answer's name.
    pub id: [u8; 16],
    /// Proof that the reader may have it.
    pub token: [u8; 16],
}

impl Claim {
    /// From 32 hex digits each; `None` for anything else.
    pub fn parse(id: &str, token: &str) -> Option<Claim> {
        Some(Claim { id: unhex(id)?, token: unhex(token)? })
    }

    /// The id as 32 hex digits.
    pub fn id_hex(&self) -> String {
        hex(&self.id)
    }

    /// The token as 32 hex digits: a secret.
    pub fn token_hex(&self) -> String {
        hex(&self.token)
    }
}

/// Without the token.
impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Claim({})", self.id_hex())
    }
}

/// Lower-case hex digits of `bytes`.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of exactly `2 * N` hex digits.
pub(crate) fn unhex<const N: usize>(digits: &str) -> Option<[u8; N]> {
    let digits = digits.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16);
        *byte = (digit(0)? << 4 | digit(1)?) as u8;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn debug_output_keeps_the_token() {
        let claim = Claim { id: [1; 16], token: [0xab; 16] };
        assert_eq!(format!("{claim:?}"), format!("Claim({})", "01".repeat(16)));
        assert_eq!(Claim::parse(&claim.id_hex(), &claim.token_hex()), Some(claim));
    }

    proptest! {
        #[test]
        fn only_hex_of_the_right_length_is_taken(text in "\\PC{0,40}") {
            let good = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            prop_assert_eq!(unhex::<16>(&text).is_some(), good);
        }
    }
}
