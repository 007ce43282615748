//! Proofs that both ends know the shared key, without sending it.
//!
//! Each end sends a random challenge and answers the other's with HMAC-SHA256 over it,
//! its role and the connection's purpose. The answers are compared in constant time. This
//! authenticates and does not encrypt: for that there is [`Tls`].

use std::net::IpAddr;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::Tls;

/// Bytes of a challenge and of a proof: the output of SHA-256.
pub(super) const PROOF_BYTES: usize = 32;

/// Key shared by all processes of one split model; an empty one proves nothing.
#[derive(Clone, Default)]
pub struct Key(Vec<u8>);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(…)")
    }
}

impl Key {
    /// Creates a key from a secret of any length.
    pub fn new(secret: impl Into<Vec<u8>>) -> Self {
        Self(secret.into())
    }

    /// A random key, for stages in the process that opens them.
    ///
    /// # Errors
    /// Error of the operating system if it has no random numbers.
    pub fn random() -> std::io::Result<Self> {
        Ok(Self::new(challenge()?))
    }

    /// Returns true if the key is empty and proves nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        // Parts need no separators: the first is one of two words of which none begins the other,
        // and the rest have fixed lengths.
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes any key");
        parts.iter().for_each(|part| mac.update(part));
        mac
    }

    /// Returns the answer to a challenge; `parts` bind it to its purpose.
    pub(super) fn prove(&self, parts: &[&[u8]]) -> [u8; PROOF_BYTES] {
        self.mac(parts).finalize().into_bytes().into()
    }

    /// Returns true if `proof` is the answer to `parts`; compares in constant time.
    pub(super) fn verifies(&self, proof: &[u8; PROOF_BYTES], parts: &[&[u8]]) -> bool {
        // Not `==`, whose time depends on how many bytes of a guess are right.
        self.mac(parts).verify_slice(proof).is_ok()
    }
}

/// Authentication of both ends of a connection.
#[derive(Debug, Clone, Default)]
pub struct StageTrust {
    /// The key that both ends must know.
    pub key: Key,
    /// Certificates; `None` for connections without encryption.
    pub tls: Option<Tls>,
    /// True if connections without encryption may leave this machine. The key is checked only when
    /// they begin: an attacker between the ends can read and change everything that follows.
    pub allows_plaintext: bool,
}

impl StageTrust {
    /// Authentication by `key`, without encryption.
    pub fn of_key(key: Key) -> Self {
        Self { key, ..Self::default() }
    }

    /// Returns true if connections with processes at `address` are acceptable: on this machine,
    /// encrypted, or allowed by the operator.
    pub fn suits(&self, address: IpAddr) -> bool {
        let is_here = address.to_canonical().is_loopback();
        is_here || self.tls.is_some() || self.allows_plaintext && !self.key.is_empty()
    }
}

/// Returns random bytes of the operating system.
pub(super) fn challenge() -> std::io::Result<[u8; PROOF_BYTES]> {
    let mut bytes = [0; PROOF_BYTES];
    getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    //! Proofs bind key and purpose.
    use super::*;

    #[test]
    fn only_the_same_key_and_purpose_verify() {
        let (key, nonce) = (Key::new("secret"), challenge().unwrap());
        let proof = key.prove(&[b"dial", &nonce]);
        assert!(key.verifies(&proof, &[b"dial", &nonce]));
        assert!(!key.verifies(&proof, &[b"answer", &nonce]));
        assert!(!Key::new("other").verifies(&proof, &[b"dial", &nonce]));
        assert!(!Key::default().verifies(&proof, &[b"dial", &nonce]));
        assert_ne!(nonce, challenge().unwrap());
        assert_eq!(format!("{key:?}"), "Key(…)");
    }

    #[test]
    fn plaintext_leaves_the_machine_only_where_the_operator_wants_it() {
        let [here, mapped, there] = ["127.0.0.2", "::ffff:127.0.0.1", "10.0.0.1"]
            .map(|address| address.parse::<IpAddr>().unwrap());
        let mut trust = StageTrust::of_key(Key::new("secret"));
        assert!(trust.suits(here) && trust.suits(mapped) && !trust.suits(there));
        trust.allows_plaintext = true;
        assert!(trust.suits(there));
        trust.key = Key::default();
        assert!(trust.suits(here) && !trust.suits(there), "without a key everybody comes in");
    }
}
