//! Fuzz targets of this crate: the operator's files of keys, and the credentials of clients.

use std::sync::{Arc, LazyLock};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::json;

use crate::auth::jwt::{
    JwtConfig, JwtRefusal, JwtVerification, KeySetSource, MAX_JWKS, MAX_SUBJECT_BYTES,
    parse_key_set,
};
use crate::auth::key_file;
use crate::identity::token::{BrowserToken, TokenMint};

#[path = "../../../fuzz/target.rs"]
mod target;
pub use target::Target;

/// Fuzz targets of this crate.
pub const TARGETS: &[Target] = &[
    Target { name: "browser_token", run: browser_token, base_kib: 4, per_byte: 16 },
    Target { name: "jwt", run: jwt, base_kib: 64, per_byte: 256 },
    Target { name: "key_file", run: key_file, base_kib: 64, per_byte: 2048 },
    Target { name: "key_set", run: key_set, base_kib: 64, per_byte: 600 },
];

/// Only this process makes tokens; what is read of claims is all of them.
fn browser_token(input: &[u8]) {
    static MINT: LazyLock<TokenMint> = LazyLock::new(TokenMint::default);
    assert!(MINT.read(input).is_none(), "nobody knows the secret");
    if let Some(token) = BrowserToken::parse(input) {
        assert_eq!(token.bytes(), input, "nothing in it is ignored");
    }
}

/// A file has an error, or keys with limits within bounds.
fn key_file(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Ok(contents) = key_file::parse(text) else { return };
    assert!(!contents.owners.is_empty() || contents.subjects.is_some());
    for owner in contents.owners {
        assert!(!owner.digests.is_empty(), "a key of nobody");
        assert!(owner.weight >= 1 && owner.limits.max_inflight != Some(0));
    }
}

/// A provider's keys are few, or refused.
fn key_set(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(keys) = parse_key_set(text) {
        assert!((1..=MAX_JWKS).contains(&keys.len()));
    }
}

/// An identity provider whose key signs the claims of the second kind of inputs.
static PROVIDER: LazyLock<EcdsaKeyPair> = LazyLock::new(|| {
    let (random, algorithm) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).expect("the system has entropy");
    EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random).expect("it was just made")
});

fn verification() -> JwtVerification {
    let point = PROVIDER.public_key().as_ref();
    let (x, y) = (encoded(&point[1..33]), encoded(&point[33..]));
    let key = json!({"kty": "EC", "crv": "P-256", "x": x, "y": y, "kid": "a"});
    let text = json!({"keys": [key]}).to_string();
    let source = KeySetSource::Url("fuzz".into(), Arc::new(move |_| Ok(text.clone())));
    let config = JwtConfig { source, audiences: vec!["a".into()], issuer: Some("i".into()) };
    JwtVerification::load(config).expect("it has a key")
}

fn encoded(bytes: impl AsRef<[u8]>) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

/// A token that the provider has not signed is refused; a signed one names a client within bounds,
/// or is refused.
fn jwt(input: &[u8]) {
    let Some((&choice, input)) = input.split_first() else { return };
    if choice & 1 == 0 {
        assert!(matches!(verification().verify(input), Err(JwtRefusal::Unsigned)));
        return;
    }
    let text = format!("{}.{}", encoded(r#"{"alg":"ES256","kid":"a"}"#), encoded(input));
    let signature = PROVIDER.sign(&SystemRandom::new(), text.as_bytes());
    let token = format!("{text}.{}", encoded(signature.expect("the system has entropy")));
    if let Ok(client) = verification().verify(token.as_bytes()) {
        let name = client.name.as_deref().expect("a client has a name");
        let subject = name.strip_prefix("jwt:").expect("a subject's name cannot be that of a key");
        assert!((1..=MAX_SUBJECT_BYTES).contains(&subject.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corpora() {
        target::run_corpora(TARGETS);
    }
}
