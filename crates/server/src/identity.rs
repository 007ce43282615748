//! Who a request is answered for: the owner of an API key, or on a server without keys, whoever
//! is at an address.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::Method;
use loquent_infer::admission::TenantLimits;
use loquent_infer::tenant::{Tenant, TenantId};
use sha2::{Digest, Sha256};

use crate::auth::token::{BrowserToken, TokenScope};
use crate::error::ApiError;
use crate::peer::network;
use crate::store::object::Owner;

/// SHA-256 of an API key: all that the server keeps of it.
pub type KeyDigest = [u8; 32];

/// The digest of `key`.
pub fn digest_of(key: &[u8]) -> KeyDigest {
    Sha256::digest(key).into()
}

/// An API key, or several of one owner, and what they are good for.
#[derive(Clone)]
pub struct ApiKey {
    /// The owner's name in logs and metrics; keys without a table of their own have none.
    pub name: Option<String>,
    /// Of the keys that belong to this owner.
    pub digests: Vec<KeyDigest>,
    /// Tokens that it gets for each of an owner of weight 1 while both have work.
    pub weight: u32,
    /// How much it may use.
    pub limits: TenantLimits,
    /// Whether its requests may set `priority`.
    pub may_set_priority: bool,
    /// Whether its owner may see what the whole server does, on the dashboard.
    pub is_admin: bool,
    /// Unix time in seconds from which it is refused.
    pub expires_s: Option<u64>,
    /// What its requests have used so far.
    pub usage: Arc<KeyUsage>,
}

/// What the requests of one owner use and have used, for metrics and the dashboard.
#[derive(Debug, Default)]
pub struct KeyUsage {
    /// Completions admitted and not ended at present.
    pub in_flight: AtomicU64,
    /// Those of them that wait for a place in the batch.
    pub waiting: AtomicU64,
    /// Requests admitted.
    pub requests: AtomicU64,
    /// Requests refused because of the owner's or the server's limits.
    pub refused: AtomicU64,
    /// Prompt tokens of admitted requests.
    pub prompt_tokens: AtomicU64,
    /// Tokens generated.
    pub generated_tokens: AtomicU64,
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ApiKey({})", self.name.as_deref().unwrap_or("unnamed"))
    }
}

impl ApiKey {
    /// A key without a name or limits.
    pub fn unnamed(key: &str) -> Self {
        Self {
            name: None,
            digests: vec![digest_of(key.as_bytes())],
            weight: 1,
            limits: TenantLimits::default(),
            may_set_priority: false,
            is_admin: false,
            expires_s: None,
            usage: Arc::default(),
        }
    }

    /// The owner's id. It depends on the name alone where there is one, so that the owner stays
    /// the same when its key is replaced.
    pub fn tenant(&self) -> TenantId {
        TenantId(u64::from_le_bytes(first_bytes(&self.owner_digest())))
    }

    /// To whom its stored objects belong, whichever process stores them.
    pub fn owner(&self) -> Owner {
        Owner(first_bytes(&self.owner_digest()))
    }

    fn owner_digest(&self) -> KeyDigest {
        match &self.name {
            Some(name) => digest_of_name(b"name", name.as_bytes()),
            None => digest_of_name(b"key", self.digests.first().map_or(&[], |digest| &digest[..])),
        }
    }
}

/// Who a request is answered for.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Whose share of the server the request takes.
    pub tenant: TenantId,
    /// The API key that it came with; `None` on a server without keys.
    pub key: Option<Arc<ApiKey>>,
    /// What it may use.
    pub limits: TenantLimits,
    /// It came with a token, which may do less than the key that made it.
    pub token: Option<TokenScope>,
}

impl Identity {
    /// The owner of `key`.
    pub fn of_key(key: Arc<ApiKey>) -> Self {
        Self { tenant: key.tenant(), limits: key.limits, key: Some(key), token: None }
    }

    /// Whoever has a token that was made with `key`: asks in its owner's name, and has none of its
    /// further rights.
    pub fn of_token(key: &ApiKey, token: TokenScope) -> Self {
        let key = ApiKey { may_set_priority: false, is_admin: false, ..key.clone() };
        Self { token: Some(token), ..Self::of_key(Arc::new(key)) }
    }

    /// Whether it may send a request by `method` for `path`.
    ///
    /// # Errors
    /// 403 when it came with a token, which is for asking alone.
    pub fn check_scope(&self, method: &Method, path: &str) -> Result<(), ApiError> {
        match self.token.is_none() || BrowserToken::allows(method, path) {
            true => Ok(()),
            false => Err(ApiError::beyond_token(method, path)),
        }
    }

    /// Whoever is at `address`, on a server without keys.
    pub fn of_address(address: IpAddr) -> Self {
        let tenant = match network(address) {
            IpAddr::V4(v4) => tenant_of(b"v4", &v4.octets()),
            IpAddr::V6(v6) => tenant_of(b"v6", &v6.octets()),
        };
        Self { tenant, key: None, limits: TenantLimits::default(), token: None }
    }

    /// This process itself, to which no limit of a tenant applies.
    pub fn in_process() -> Self {
        let limits = TenantLimits { max_inflight: Some(usize::MAX), ..TenantLimits::default() };
        Self { tenant: TenantId::default(), key: None, limits, token: None }
    }

    /// To whom the objects belong that its requests store. Without keys nobody can be told from
    /// anybody else: an object's random id is then all that protects it.
    pub fn owner(&self) -> Owner {
        self.key.as_ref().map_or(Owner::NOBODY, |key| key.owner())
    }

    /// What separates its computed prefixes from those of the owner's others.
    pub fn token_salt(&self) -> Option<&str> {
        self.token.as_ref().map(|token| &*token.cache_salt)
    }

    /// The tenant as the scheduler knows it.
    pub fn scheduled(&self) -> Tenant {
        let weight = self.key.as_ref().map_or(1, |key| key.weight);
        Tenant { id: self.tenant, weight }
    }

    /// Whether `priority` has an effect.
    pub fn may_set_priority(&self) -> bool {
        self.key.as_ref().is_some_and(|key| key.may_set_priority)
    }

    /// Whether it may see what the whole server does: on a server without keys, everybody.
    pub fn may_watch(&self) -> bool {
        self.key.as_ref().is_none_or(|key| key.is_admin)
    }

    /// The owner's name for logs.
    pub fn name(&self) -> &str {
        self.key.as_ref().and_then(|key| key.name.as_deref()).unwrap_or("unnamed")
    }

    /// Adds to one of the owner's counters.
    pub fn count(&self, counter: fn(&KeyUsage) -> &AtomicU64, more: u64) {
        if let Some(key) = &self.key {
            counter(&key.usage).fetch_add(more, Ordering::Relaxed);
        }
    }

    /// Takes off what was added to one of the owner's counters.
    pub fn uncount(&self, counter: fn(&KeyUsage) -> &AtomicU64, less: u64) {
        if let Some(key) = &self.key {
            counter(&key.usage).fetch_sub(less, Ordering::Relaxed);
        }
    }
}

impl Default for Identity {
    fn default() -> Self {
        Self::in_process()
    }
}

impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        self.tenant == other.tenant
    }
}

fn tenant_of(kind: &[u8], name: &[u8]) -> TenantId {
    TenantId(u64::from_le_bytes(first_bytes(&digest_of_name(kind, name))))
}

fn digest_of_name(kind: &[u8], name: &[u8]) -> KeyDigest {
    Sha256::new().chain_update(kind).chain_update([0]).chain_update(name).finalize().into()
}

fn first_bytes<const N: usize>(digest: &KeyDigest) -> [u8; N] {
    std::array::from_fn(|at| digest[at])
}

#[cfg(test)]
mod tests {
    //! A tenant is the same over reloads and replaced keys, and no two are alike.
    use super::*;

    fn named(name: &str, key: &str) -> ApiKey {
        ApiKey { name: Some(name.into()), ..ApiKey::unnamed(key) }
    }

    #[test]
    fn a_tenant_outlives_its_key_if_it_has_a_name() {
        assert_eq!(named("a", "old").tenant(), named("a", "new").tenant());
        assert_ne!(named("a", "old").tenant(), named("b", "old").tenant());
        assert_eq!(ApiKey::unnamed("old").tenant(), ApiKey::unnamed("old").tenant());
        assert_ne!(ApiKey::unnamed("old").tenant(), ApiKey::unnamed("new").tenant());
        assert_ne!(ApiKey::unnamed("a").tenant(), named("a", "a").tenant());
    }

    #[test]
    fn stored_objects_stay_with_their_owner() {
        assert_eq!(named("a", "old").owner(), named("a", "new").owner());
        assert_ne!(named("a", "old").owner(), named("b", "old").owner());
        assert_ne!(ApiKey::unnamed("old").owner(), ApiKey::unnamed("new").owner());
        let anybody = |address: &str| Identity::of_address(address.parse().unwrap()).owner();
        assert_eq!(anybody("10.0.0.1"), anybody("10.0.0.2"));
        assert_ne!(anybody("10.0.0.1"), ApiKey::unnamed("old").owner());
    }

    #[test]
    fn a_subscriber_is_one_tenant() {
        let of = |address: &str| Identity::of_address(address.parse().unwrap()).tenant;
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:3::9"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    }

    #[test]
    fn nothing_of_a_key_is_shown() {
        let shown = format!("{:?}", Identity::of_key(Arc::new(named("team", "secret"))));
        assert!(shown.contains("team") && !shown.contains("secret"), "{shown}");
        assert!(!shown.contains("digest"), "{shown}");
    }
}
