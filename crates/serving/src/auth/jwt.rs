//! Tokens of an identity provider: JSON Web Tokens (RFC 7519) signed with RS256 or ES256 (RFC 7518,
//! section 3.1). Whoever a token names in `sub` is a client of its own, as the owner of a key is.
//!
//! The provider's public keys are a JSON Web Key Set (RFC 7517) in a file or at a URL. They are
//! read again periodically, and soon after a token names a key that is not among them.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, Once, RwLock};
use std::time::Duration;

use anyhow::{Context, ensure};
use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result as JwtResult};
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, PublicKeyUse};
use jsonwebtoken::signature::{Error as SignatureError, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, Validation, decode, decode_header};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Notify;

use super::subjects::Subjects;
use crate::identity::{ApiKey, KeyDigest};

/// Maximum bytes of a token.
const MAX_TOKEN_BYTES: usize = 8 << 10;
/// Maximum bytes of a subject: it is a name in logs and in the ledger.
pub(crate) const MAX_SUBJECT_BYTES: usize = 128;
/// Maximum bytes of a key set.
pub const MAX_KEY_SET_BYTES: usize = 1 << 20;
/// Maximum keys of a set that are used: a token without a key's name is checked with each.
pub(crate) const MAX_JWKS: usize = 32;
/// Difference between the provider's clock and ours that is forgiven, in seconds.
const LEEWAY_S: u64 = 30;
/// Interval at which a file is read again.
const READ_FILE_EVERY: Duration = Duration::from_secs(5);
/// Interval at which a URL is fetched again.
const FETCH_EVERY: Duration = Duration::from_secs(10 * 60);
/// Maximum number of accepted tokens that are remembered.
const MAX_ACCEPTED: usize = 8192;
/// Minimum time between two readings, however many tokens name unknown keys.
const FETCH_GAP: Duration = Duration::from_secs(30);

const UNPOISONED: &str = "nothing panics under this lock";

/// Fetches the text at a URL.
pub type FetchText = Arc<dyn Fn(&str) -> anyhow::Result<String> + Send + Sync>;

/// Source of the provider's public keys.
#[derive(Clone)]
pub enum KeySetSource {
    /// A file.
    File(PathBuf),
    /// A URL, and how it is fetched.
    Url(String, FetchText),
}

/// Which tokens are accepted.
#[derive(Clone)]
pub struct JwtConfig {
    /// Source of the provider's public keys.
    pub source: KeySetSource,
    /// Accepted values of `aud`; at least one.
    pub audiences: Vec<String>,
    /// Accepted value of `iss`; `None` accepts all.
    pub issuer: Option<String>,
}

/// Reason why a token is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum JwtRefusal {
    /// The provider has not signed it.
    Unsigned,
    /// The provider has signed it, but it is not valid here and now, for this reason.
    Invalid(String),
}

/// Checks tokens, and remembers whom they name.
pub(crate) struct JwtVerification {
    config: JwtConfig,
    keys: RwLock<Arc<Vec<PublicKey>>>,
    subjects: Mutex<Subjects>,
    /// Digests of tokens that were accepted.
    accepted: Mutex<HashSet<KeyDigest>>,
    /// Notified when a token names a key that is not known.
    unknown_key: Notify,
}

pub(crate) struct PublicKey {
    id: Option<String>,
    algorithm: Algorithm,
    key: DecodingKey,
}

/// The members of a token that are used here; the library checks the others.
#[derive(Deserialize)]
struct Claims {
    sub: String,
}

impl KeySetSource {
    fn read(&self) -> anyhow::Result<Vec<PublicKey>> {
        let (name, text) = match self {
            Self::File(path) => (path.display().to_string(), read_file(path)),
            Self::Url(url, fetch) => (url.clone(), fetch(url)),
        };
        let named = || format!("cannot use the keys of tokens in {name}");
        text.and_then(|text| parse_key_set(&text)).with_context(named)
    }

    const fn read_every(&self) -> Duration {
        match self {
            Self::File(_) => READ_FILE_EVERY,
            Self::Url(..) => FETCH_EVERY,
        }
    }
}

fn read_file(path: &PathBuf) -> anyhow::Result<String> {
    let bytes = std::fs::metadata(path)?.len();
    ensure!(bytes <= MAX_KEY_SET_BYTES as u64, "it is larger than {MAX_KEY_SET_BYTES} bytes");
    Ok(std::fs::read_to_string(path)?)
}

/// Parses the keys of a set that check RS256 and ES256 signatures. Others are skipped.
///
/// # Errors
/// If it is no key set, or has no such key.
pub(crate) fn parse_key_set(text: &str) -> anyhow::Result<Vec<PublicKey>> {
    ensure!(text.len() <= MAX_KEY_SET_BYTES, "it is larger than {MAX_KEY_SET_BYTES} bytes");
    let set: Value = serde_json::from_str(text).context("it is no JSON")?;
    let keys = set["keys"].as_array().context("it is no JSON Web Key Set: 'keys' is missing")?;
    // A token that names no key costs a check with each of them.
    let keys: Vec<_> = keys.iter().filter_map(public_key).take(MAX_JWKS).collect();
    ensure!(!keys.is_empty(), "it has no public key for RS256 or ES256");
    Ok(keys)
}

fn public_key(json: &Value) -> Option<PublicKey> {
    let jwk = Jwk::deserialize(json).ok()?;
    let algorithm = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => Algorithm::RS256,
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => {
            Algorithm::ES256
        }
        _ => return None,
    };
    // A key for encryption may be in more hands than one for signatures.
    let signs = !matches!(jwk.common.public_key_use, Some(PublicKeyUse::Encryption));
    let stated = jwk.common.key_algorithm.map(|stated| stated.to_string());
    let fits = stated.is_none_or(|stated| stated == format!("{algorithm:?}"));
    let key = DecodingKey::from_jwk(&jwk).ok()?;
    (signs && fits).then_some(PublicKey { id: jwk.common.key_id, algorithm, key })
}

/// Returns true if a credential has the form of a JSON Web Token.
pub(super) fn is_jwt(credential: &[u8]) -> bool {
    // A JSON object in base64 begins so.
    credential.starts_with(b"eyJ") && credential.iter().filter(|&&byte| byte == b'.').count() == 2
}

impl JwtVerification {
    /// Reads the key set.
    ///
    /// # Errors
    /// If it cannot be read or has no usable key, or no audience is given.
    pub fn load(config: JwtConfig) -> anyhow::Result<Self> {
        ensure!(
            config.audiences.iter().any(|audience| !audience.is_empty()),
            "say with --jwt-audience for whom the provider makes the tokens; without that, tokens \
             for its other services would be valid here"
        );
        install_ring();
        let keys = RwLock::new(Arc::new(config.source.read()?));
        let (subjects, accepted) = (Mutex::default(), Mutex::default());
        Ok(Self { config, keys, subjects, accepted, unknown_key: Notify::new() })
    }

    /// Returns the client whom `token` names.
    ///
    /// # Errors
    /// [`JwtRefusal`].
    pub fn verify(&self, token: &[u8]) -> Result<Arc<ApiKey>, JwtRefusal> {
        // Before any of it is decoded.
        if token.len() > MAX_TOKEN_BYTES {
            return Err(JwtRefusal::Unsigned);
        }
        let header = decode_header(token).map_err(|_| JwtRefusal::Unsigned)?;
        let validation = self.validation(header.alg).ok_or(JwtRefusal::Unsigned)?;
        let keys = self.keys.read().expect(UNPOISONED).clone();
        let fits = |key: &&PublicKey| {
            key.algorithm == header.alg && (header.kid.is_none() || key.id == header.kid)
        };
        let mut outcome = Err(JwtRefusal::Unsigned);
        let mut is_known = false;
        for key in keys.iter().filter(fits) {
            is_known = true;
            outcome = decode::<Claims>(token, &key.key, &validation)
                .map_err(|error| refusal(error.kind()))
                .and_then(|token| self.subject(token.claims.sub));
            if !matches!(outcome, Err(JwtRefusal::Unsigned)) {
                break;
            }
        }
        if !is_known {
            self.unknown_key.notify_one();
        }
        outcome
    }

    /// Returns true if the token with this digest was accepted lately. It may be invalid by now.
    pub fn has_accepted(&self, digest: &KeyDigest) -> bool {
        self.accepted.lock().expect(UNPOISONED).contains(digest)
    }

    /// Remembers an accepted token.
    pub fn note_accepted(&self, digest: KeyDigest) {
        let mut accepted = self.accepted.lock().expect(UNPOISONED);
        if accepted.len() >= MAX_ACCEPTED && !accepted.contains(&digest) {
            // Those still in use come back with their next request.
            accepted.clear();
        }
        accepted.insert(digest);
    }

    /// Returns what a token signed with `algorithm` must have; `None` for other algorithms than
    /// these two.
    fn validation(&self, algorithm: Algorithm) -> Option<Validation> {
        // `none` and shared secrets are refused before a key is looked at.
        if !matches!(algorithm, Algorithm::RS256 | Algorithm::ES256) {
            return None;
        }
        let mut validation = Validation::new(algorithm);
        validation.leeway = LEEWAY_S;
        validation.validate_nbf = true;
        validation.set_audience(&self.config.audiences);
        validation.set_required_spec_claims(&["exp", "aud", "sub"]);
        if let Some(issuer) = &self.config.issuer {
            validation.set_issuer(&[issuer]);
            validation.required_spec_claims.insert("iss".to_owned());
        }
        Some(validation)
    }

    fn subject(&self, name: String) -> Result<Arc<ApiKey>, JwtRefusal> {
        let is_name = (1..=MAX_SUBJECT_BYTES).contains(&name.len())
            && !name.chars().any(|one| one.is_control());
        if !is_name {
            let why = format!("its subject must have 1 to {MAX_SUBJECT_BYTES} bytes of text");
            return Err(JwtRefusal::Invalid(why));
        }
        Ok(self.subjects().named(name))
    }

    /// The clients whom tokens have named.
    pub fn subjects(&self) -> MutexGuard<'_, Subjects> {
        self.subjects.lock().expect(UNPOISONED)
    }

    /// Reads the key set again, forever. A set that cannot be used changes nothing.
    pub async fn keep_current(self: Arc<Self>) {
        loop {
            let every = self.config.source.read_every();
            tokio::select! {
                () = tokio::time::sleep(every) => {}
                () = async {
                    tokio::time::sleep(FETCH_GAP.min(every)).await;
                    self.unknown_key.notified().await;
                } => {}
            }
            let keys = self.clone();
            // A file system or a network may take its time.
            let _ = tokio::task::spawn_blocking(move || keys.refresh()).await;
        }
    }

    fn refresh(&self) {
        match self.config.source.read() {
            Ok(keys) => *self.keys.write().expect(UNPOISONED) = Arc::new(keys),
            Err(error) => tracing::error!("the keys of tokens stay as they were: {error:#}"),
        }
    }
}

fn refusal(error: &ErrorKind) -> JwtRefusal {
    let why = match error {
        ErrorKind::ExpiredSignature => "it has expired; sign in again".to_owned(),
        ErrorKind::ImmatureSignature => "it is not valid yet (nbf)".to_owned(),
        ErrorKind::InvalidAudience => "it is for another audience (aud)".to_owned(),
        ErrorKind::InvalidIssuer => "it is of another issuer (iss)".to_owned(),
        ErrorKind::MissingRequiredClaim(claim) => format!("it has no '{claim}'"),
        ErrorKind::InvalidClaimFormat(claim) => format!("its '{claim}' has a wrong type"),
        // The signature is checked before the claims are read.
        ErrorKind::Json(_) => "its claims are not those of RFC 7519".to_owned(),
        _ => return JwtRefusal::Unsigned,
    };
    JwtRefusal::Invalid(why)
}

/// Has the library check signatures with ring, whose code is in this binary in any case.
fn install_ring() {
    static INSTALLED: Once = Once::new();
    static RING: CryptoProvider = CryptoProvider {
        signer_factory: |_, _| Err(ErrorKind::UnsupportedAlgorithm.into()),
        verifier_factory: ring_verifier,
        key_utils: KeyUtils::new_unimplemented(),
    };
    // Fails only where the program around this crate has installed one.
    INSTALLED.call_once(|| {
        let _ = RING.install_default();
    });
}

fn ring_verifier(algorithm: &Algorithm, key: &DecodingKey) -> JwtResult<Box<dyn JwtVerifier>> {
    match algorithm {
        Algorithm::RS256 | Algorithm::ES256 => {
            Ok(Box::new(RingVerifier { algorithm: *algorithm, key: key.kind().clone() }))
        }
        _ => Err(ErrorKind::UnsupportedAlgorithm.into()),
    }
}

struct RingVerifier {
    algorithm: Algorithm,
    key: DecodingKeyKind,
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), SignatureError> {
        let verified = match (self.algorithm, &self.key) {
            (Algorithm::RS256, DecodingKeyKind::RsaModulusExponent { n, e }) => {
                let key = RsaPublicKeyComponents { n, e };
                key.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature)
            }
            (Algorithm::ES256, DecodingKeyKind::SecretOrDer(point)) => {
                let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point);
                key.verify(message, signature)
            }
            // A key of one algorithm checks no signature of the other.
            _ => return Err(SignatureError::new()),
        };
        verified.map_err(|_| SignatureError::new())
    }
}

#[cfg(test)]
mod tests;
