//! Short-lived tokens for browsers: made with an API key, and valid only for requests in its
//! owner's name.
//!
//! A token holds its claims and this process's signature over them. Nothing is stored until a token
//! with a request limit is used. A token names its key only by a keyed hash, and becomes invalid
//! with it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use http::Method;
use loquent_infer::share::{Overflow, PoolKind, SharedPool};
use loquent_infer::tenant::TenantId;
use sha2::Sha256;

use crate::error::ApiError;

/// Prefix of all tokens, by which people and secret scanners recognise them.
const PREFIX: &str = "lqt_";
/// Version of the layout below. A token with another version cannot be read.
const VERSION: u8 = 1;
/// Version, expiry, requests, id, reader, key.
const SIGNED_BYTES: usize = 1 + 8 + 4 + ID_BYTES * 3;
const ID_BYTES: usize = 16;
const SIGNATURE_BYTES: usize = 32;
/// Maximum number of tokens whose requests are counted at a time, of all keys: each key has a share
/// of them. Each is forgotten when it expires.
const MAX_COUNTED: usize = 65_536;
/// `Retry-After` in seconds while the key's share of [`MAX_COUNTED`] tokens is counted.
const FULL_RETRY_S: u64 = 60;

/// Maximum lifetime of a token.
pub const MAX_LIFE: Duration = Duration::from_secs(3600);
/// Default lifetime of a token.
pub const USUAL_LIFE: Duration = Duration::from_secs(600);

/// A 128-bit identifier.
pub type Id = [u8; ID_BYTES];

/// Requested properties of a new token.
#[derive(Debug, Clone)]
pub struct TokenWish {
    /// Lifetime of the token.
    pub life: Duration,
    /// Maximum number of requests; `None` means unlimited.
    pub max_requests: Option<u32>,
    /// Name that the key's owner gives the reader: tokens of one reader share cached prefixes. A
    /// token without it shares none.
    pub reader: Option<String>,
}

/// A new token.
#[derive(Debug)]
pub struct NewToken {
    /// The token as the client sends it.
    pub text: String,
    /// Expiry, Unix time in seconds.
    pub expires_s: u64,
}

/// The claims of a token whose signature is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BrowserToken {
    /// Expiry, Unix time in seconds.
    pub expires_s: u64,
    max_requests: Option<u32>,
    id: Id,
    /// The reader that uses the token.
    pub reader: Id,
    /// Id of the key that made the token, from [`TokenMint::key_id`].
    pub key: Id,
}

/// Makes tokens and verifies its own.
pub struct TokenMint {
    secret: [u8; 32],
    counted: Mutex<CountedTokens>,
}

/// Used tokens with a request limit.
struct CountedTokens {
    tokens: HashMap<Id, CountedToken>,
    /// Number of them, by the key that made them.
    keys: SharedPool,
}

struct CountedToken {
    expires_s: u64,
    requests: u32,
    key: TenantId,
}

impl Default for CountedTokens {
    fn default() -> Self {
        let keys = SharedPool::new(PoolKind::CountedTokens, MAX_COUNTED, Overflow::Never);
        Self { tokens: HashMap::new(), keys }
    }
}

impl CountedTokens {
    /// Makes room for one more token of `key`, if that has its share. Returns false if not.
    fn make_room(&mut self, key: TenantId, unix_s: u64) -> bool {
        if self.keys.take(key, 1).is_ok() {
            return true;
        }
        let Self { tokens, keys } = self;
        tokens.retain(|_, token| {
            let is_valid = unix_s < token.expires_s;
            if !is_valid {
                keys.give_back(token.key, 1);
            }
            is_valid
        });
        keys.take(key, 1).is_ok()
    }
}

impl Default for TokenMint {
    /// Draws a secret for this process, so that tokens do not outlive it.
    fn default() -> Self {
        Self { secret: rand::random(), counted: Mutex::default() }
    }
}

impl TokenMint {
    /// Returns the id by which tokens name the key with `digest`. It is a keyed hash, so guesses at
    /// the key cannot be checked against it.
    pub fn key_id(&self, digest: &[u8; 32]) -> Id {
        self.keyed_id(b"key", digest, &[])
    }

    /// Makes a token of the key with `digest`.
    pub fn mint(&self, digest: &[u8; 32], wish: &TokenWish, unix_s: u64) -> NewToken {
        let key = self.key_id(digest);
        let id: Id = rand::random();
        let reader = wish.reader.as_ref();
        let reader = reader.map_or(id, |name| self.keyed_id(b"reader", &key, name.as_bytes()));
        let expires_s = unix_s + wish.life.min(MAX_LIFE).as_secs();
        let token = BrowserToken { expires_s, max_requests: wish.max_requests, id, reader, key };
        let signed = token.bytes();
        let signature = self.mac(b"token").chain_update(signed).finalize().into_bytes();
        let bytes = [&signed[..], &signature[..]].concat();
        let text = format!("{PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(bytes));
        NewToken { text, expires_s }
    }

    /// Returns the claims of the token `given`; `None` if this process did not make it.
    pub fn read(&self, given: &[u8]) -> Option<BrowserToken> {
        let text = given.strip_prefix(PREFIX.as_bytes())?;
        let mut bytes = [0; SIGNED_BYTES + SIGNATURE_BYTES];
        let length = BASE64_URL_SAFE_NO_PAD.decode_slice(text, &mut bytes).ok()?;
        if length != bytes.len() {
            return None;
        }
        let (signed, signature) = bytes.split_at(SIGNED_BYTES);
        // In a time that does not depend on where they differ.
        self.mac(b"token").chain_update(signed).verify_slice(signature).ok()?;
        BrowserToken::parse(signed)
    }

    /// Counts a request made with `token` at `unix_s`.
    ///
    /// # Errors
    /// 401 if the token has expired or made all its requests; 503 if too many tokens of its key are
    /// counted.
    pub fn count(&self, token: &BrowserToken, unix_s: u64) -> Result<(), ApiError> {
        let over = "The token has expired. Get a new one from the app's server.";
        if unix_s >= token.expires_s {
            return Err(ApiError::unauthorized(over));
        }
        let Some(most) = token.max_requests else { return Ok(()) };
        let mut counted = self.counted.lock().expect("nothing panics under this lock");
        let key = TenantId(u64::from_le_bytes(std::array::from_fn(|at| token.key[at])));
        if !counted.tokens.contains_key(&token.id) && !counted.make_room(key, unix_s) {
            let message = "The server counts the requests of too many tokens of this key.";
            return Err(ApiError::unavailable(message, FULL_RETRY_S));
        }
        let expires_s = token.expires_s;
        let counts = counted.tokens.entry(token.id);
        let counts = counts.or_insert(CountedToken { expires_s, requests: 0, key });
        if counts.requests >= most {
            return Err(ApiError::unauthorized(over));
        }
        counts.requests += 1;
        Ok(())
    }

    fn keyed_id(&self, kind: &[u8], of: &[u8], name: &[u8]) -> Id {
        let mac = self.mac(kind).chain_update(of).chain_update(name).finalize().into_bytes();
        std::array::from_fn(|at| mac[at])
    }

    /// Starts a keyed hash of one `kind`, distinct from those of all other kinds.
    fn mac(&self, kind: &[u8]) -> Hmac<Sha256> {
        let mac = Hmac::<Sha256>::new_from_slice(&self.secret).expect("HMAC takes any key");
        mac.chain_update(kind).chain_update([0])
    }
}

impl BrowserToken {
    pub(crate) fn bytes(&self) -> [u8; SIGNED_BYTES] {
        let requests = self.max_requests.unwrap_or(0).to_be_bytes();
        let parts: [&[u8]; 6] = [
            &[VERSION],
            &self.expires_s.to_be_bytes(),
            &requests,
            &self.id,
            &self.reader,
            &self.key,
        ];
        parts.concat().try_into().expect("the parts are as long as they always are")
    }

    pub(crate) fn parse(signed: &[u8]) -> Option<Self> {
        let (&version, rest) = signed.split_first()?;
        let (expires_s, rest) = rest.split_first_chunk()?;
        let (requests, rest) = rest.split_first_chunk()?;
        let (id, rest) = rest.split_first_chunk()?;
        let (reader, rest) = rest.split_first_chunk()?;
        let max_requests = Some(u32::from_be_bytes(*requests)).filter(|&most| most > 0);
        let key = rest.try_into().ok()?;
        let expires_s = u64::from_be_bytes(*expires_s);
        let token = Self { expires_s, max_requests, id: *id, reader: *reader, key };
        (version == VERSION).then_some(token)
    }

    /// Returns true if a token may make this request: completions, and queries about models. Stored
    /// data and new tokens need the key itself.
    pub fn allows(method: &Method, path: &str) -> bool {
        match *method {
            Method::POST => matches!(path, "/v1/chat/completions" | "/v1/completions"),
            Method::GET => path == "/v1/models" || path.starts_with("/v1/models/"),
            _ => false,
        }
    }
}

/// Restrictions on a request made with a token instead of its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenScope {
    /// Separates the reader's cached prefixes from those of others.
    pub cache_salt: Arc<str>,
}

impl From<&BrowserToken> for TokenScope {
    fn from(token: &BrowserToken) -> Self {
        Self { cache_salt: BASE64_URL_SAFE_NO_PAD.encode(token.reader).into() }
    }
}

#[cfg(test)]
mod tests {
    //! Only tokens signed by this process are valid, within their lifetime and request limit.
    use super::*;

    const NOW: u64 = 1_800_000_000;
    const DIGEST: [u8; 32] = [7; 32];

    fn wish(max_requests: Option<u32>) -> TokenWish {
        TokenWish { life: USUAL_LIFE, max_requests, reader: None }
    }

    #[test]
    fn a_token_says_what_was_wished_for() {
        let mint = TokenMint::default();
        let made = mint.mint(&DIGEST, &wish(Some(3)), NOW);
        let token = mint.read(made.text.as_bytes()).unwrap();
        assert_eq!((token.expires_s, token.max_requests), (NOW + 600, Some(3)));
        assert_eq!(made.expires_s, token.expires_s);
        assert_eq!(token.key, mint.key_id(&DIGEST));
        let long = TokenWish { life: Duration::from_secs(86_400), ..wish(None) };
        assert_eq!(mint.mint(&DIGEST, &long, NOW).expires_s, NOW + 3600);
    }

    #[test]
    fn what_was_changed_or_made_elsewhere_is_none() {
        let mint = TokenMint::default();
        let text = mint.mint(&DIGEST, &wish(None), NOW).text;
        assert!(TokenMint::default().read(text.as_bytes()).is_none(), "another process's");
        for at in 0..text.len() {
            let mut forged = text.clone().into_bytes();
            forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
            assert!(mint.read(&forged).is_none(), "changed at {at}");
        }
        for forged in [&text[..text.len() - 1], &text[4..], "lqt_", "", &format!("{text}A")] {
            assert!(mint.read(forged.as_bytes()).is_none(), "{forged}");
        }
    }

    #[test]
    fn a_token_ends_by_time_and_by_requests() {
        let mint = TokenMint::default();
        let token = mint.read(mint.mint(&DIGEST, &wish(Some(2)), NOW).text.as_bytes()).unwrap();
        let other = mint.read(mint.mint(&DIGEST, &wish(Some(2)), NOW).text.as_bytes()).unwrap();
        assert!(mint.count(&token, NOW).is_ok());
        assert!(mint.count(&token, NOW + 599).is_ok());
        assert_eq!(mint.count(&token, NOW + 599).unwrap_err().status(), 401);
        assert!(mint.count(&other, NOW).is_ok(), "each counts for itself");
        assert_eq!(mint.count(&other, NOW + 600).unwrap_err().status(), 401);
    }

    #[test]
    fn counting_is_bounded_and_tokens_that_are_over_are_forgotten() {
        let mint = TokenMint::default();
        let made = mint.mint(&DIGEST, &wish(Some(1)), NOW);
        let token = mint.read(made.text.as_bytes()).unwrap();
        let mut counted = 0_u64;
        let refused = loop {
            let id = std::array::from_fn(|at| counted.to_be_bytes().get(at).copied().unwrap_or(0));
            match mint.count(&BrowserToken { id, ..token }, NOW) {
                Ok(()) => counted += 1,
                Err(refused) => break refused,
            }
        };
        assert_eq!((refused.status(), counted), (503, MAX_COUNTED as u64 * 3 / 4));
        let other = mint.read(mint.mint(&[8; 32], &wish(Some(1)), NOW).text.as_bytes()).unwrap();
        assert!(mint.count(&other, NOW).is_ok(), "another key has its share");
        let later = BrowserToken { expires_s: NOW + 700, ..token };
        assert!(mint.count(&later, NOW + 650).is_ok());
        assert_eq!(mint.counted.lock().unwrap().tokens.len(), 1);
    }

    #[test]
    fn readers_of_one_key_are_told_apart() {
        let mint = TokenMint::default();
        let scope = |digest: &[u8; 32], reader: Option<&str>| {
            let wish = TokenWish { reader: reader.map(str::to_owned), ..wish(None) };
            TokenScope::from(&mint.read(mint.mint(digest, &wish, NOW).text.as_bytes()).unwrap())
        };
        assert_eq!(scope(&DIGEST, Some("ann")), scope(&DIGEST, Some("ann")));
        assert_ne!(scope(&DIGEST, Some("ann")), scope(&DIGEST, Some("bob")));
        assert_ne!(scope(&DIGEST, Some("ann")), scope(&[8; 32], Some("ann")));
        assert_ne!(scope(&DIGEST, None), scope(&DIGEST, None));
    }

    #[test]
    fn tokens_are_for_asking() {
        for (method, path, allowed) in [
            (Method::POST, "/v1/chat/completions", true),
            (Method::POST, "/v1/completions", true),
            (Method::GET, "/v1/models", true),
            (Method::GET, "/v1/models/m", true),
            (Method::GET, "/v1/chat/completions", false),
            (Method::POST, "/v1/tokens", false),
            (Method::POST, "/v1/responses", false),
            (Method::GET, "/v1/dashboard/events", false),
            (Method::DELETE, "/v1/chat/completions/x", false),
        ] {
            assert_eq!(BrowserToken::allows(&method, path), allowed, "{method} {path}");
        }
    }
}
