//! Identity of a request's sender: the owner of an API key or, on a server without keys, the
//! network address.

pub mod token;

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Method;
use loquent_infer::admission::{Refusal, TenantLimits};
use loquent_infer::tenant::{Tenant, TenantId};
use sha2::{Digest, Sha256};

use crate::budget::{BudgetStatus, SpentTokens, TokenBudgets};
use crate::error::ApiError;
use crate::identity::token::{BrowserToken, TokenScope};
use crate::peer::network;
use crate::usage::UsageCounts;

/// Owner of objects: the holder of an API key or, on a server without keys, everybody. Stable
/// across restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Owner(pub [u8; 16]);

impl Owner {
    /// The only owner on a server without keys.
    pub const NOBODY: Self = Self([0; 16]);

    /// Returns the owner whose name in the file of keys is `name`.
    pub fn of_name(name: &str) -> Self {
        Self(first_bytes(&digest_of_name(b"name", name.as_bytes())))
    }
}

/// SHA-256 of an API key, the only form in which the server keeps it.
pub type KeyDigest = [u8; 32];

/// Returns the digest of `key`.
pub fn digest_of(key: &[u8]) -> KeyDigest {
    Sha256::digest(key).into()
}

/// An API key, or several of one owner, with its rights and limits.
#[derive(Clone)]
pub struct ApiKey {
    /// Name of the owner in logs and metrics; `None` for keys without a table of their own.
    pub name: Option<String>,
    /// Digests of the owner's keys.
    pub digests: Vec<KeyDigest>,
    /// Scheduling weight: tokens for this owner per token of an owner of weight 1 while both have
    /// work.
    pub weight: u32,
    /// Usage limits.
    pub limits: TenantLimits,
    /// Token budgets by the calendar.
    pub budgets: TokenBudgets,
    /// True if its requests may set `priority`.
    pub may_set_priority: bool,
    /// True if its owner may see the activity of the whole server on the dashboard, and load and
    /// unload models.
    pub is_admin: bool,
    /// Expiry in Unix seconds, from which on the key is refused.
    pub expires_s: Option<u64>,
    /// Usage by its requests so far.
    pub usage: Arc<KeyUsage>,
}

/// Usage by one owner's requests, for metrics and the dashboard.
#[derive(Debug, Default)]
pub struct KeyUsage {
    /// Completions currently in flight.
    pub in_flight: AtomicU64,
    /// Completions waiting for a place in the batch, of those in flight.
    pub waiting: AtomicU64,
    /// Requests admitted.
    pub requests: AtomicU64,
    /// Requests refused because of the owner's or the server's limits.
    pub refused: AtomicU64,
    /// Prompt tokens of admitted requests.
    pub prompt_tokens: AtomicU64,
    /// Prompt tokens taken from the prefix cache, of those.
    pub cached_tokens: AtomicU64,
    /// Tokens generated.
    pub generated_tokens: AtomicU64,
    /// Tokens spent of the owner's budgets at all replicas.
    spent: Mutex<SpentTokens>,
}

impl KeyUsage {
    /// Returns the counts of this process so far.
    pub fn counts(&self) -> UsageCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        UsageCounts {
            requests: read(&self.requests),
            prompt_tokens: read(&self.prompt_tokens),
            cached_tokens: read(&self.cached_tokens),
            completion_tokens: read(&self.generated_tokens),
        }
    }

    /// Sets the tokens spent at all replicas, as read from the ledger.
    pub fn set_spent(&self, spent: SpentTokens) {
        *self.spent.lock().expect("nothing panics under this lock") = spent;
    }

    fn spent(&self) -> SpentTokens {
        *self.spent.lock().expect("nothing panics under this lock")
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ApiKey({})", self.name.as_deref().unwrap_or("unnamed"))
    }
}

impl ApiKey {
    /// Creates a key without a name or limits.
    pub fn unnamed(key: &str) -> Self {
        Self {
            name: None,
            digests: vec![digest_of(key.as_bytes())],
            weight: 1,
            limits: TenantLimits::default(),
            budgets: TokenBudgets::default(),
            may_set_priority: false,
            is_admin: false,
            expires_s: None,
            usage: Arc::default(),
        }
    }

    /// Returns the state of the owner's budgets at `now_s`.
    pub fn budget_status(&self, now_s: u64) -> impl Iterator<Item = BudgetStatus> + use<> {
        self.budgets.status(self.usage.spent(), self.usage.counts().tokens(), now_s)
    }

    /// Checks that no budget is spent at `now_s`.
    ///
    /// # Errors
    /// [`Refusal::Spent`], for the budget that is open again last.
    fn check_budgets(&self, now_s: u64) -> Result<(), Refusal> {
        let spent = self.budget_status(now_s).filter(|one| one.spent >= one.limit);
        match spent.max_by_key(|one| one.resets_s) {
            None => Ok(()),
            Some(BudgetStatus { period, limit, resets_s, .. }) => Err(Refusal::Spent {
                limit,
                period: period.name(),
                retry_after: Duration::from_secs(resets_s.saturating_sub(now_s)),
            }),
        }
    }

    /// Returns the owner's id. It depends only on the name if there is one, so that the owner stays
    /// the same when its key is replaced.
    pub fn tenant(&self) -> TenantId {
        TenantId(u64::from_le_bytes(first_bytes(&self.owner_digest())))
    }

    /// Returns the owner of its stored objects, the same in every process.
    pub fn owner(&self) -> Owner {
        Owner(first_bytes(&self.owner_digest()))
    }

    /// Returns true if `other` is of the same owner: quicker than to compare their ids.
    pub fn is_of_owner(&self, other: &Self) -> bool {
        let unnamed_alike = || self.digests.first() == other.digests.first();
        self.name == other.name && (self.name.is_some() || unnamed_alike())
    }

    fn owner_digest(&self) -> KeyDigest {
        match &self.name {
            Some(name) => digest_of_name(b"name", name.as_bytes()),
            None => digest_of_name(b"key", self.digests.first().map_or(&[], |digest| &digest[..])),
        }
    }
}

/// Identity of a request's sender.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Tenant whose share of the server the request uses.
    pub tenant: TenantId,
    /// API key of the request; `None` on a server without keys.
    pub key: Option<Arc<ApiKey>>,
    /// Usage limits.
    pub limits: TenantLimits,
    /// Set if the request came with a browser token, which allows less than the key that made it.
    pub token: Option<TokenScope>,
    /// True for a client on this machine, on a server without keys.
    pub is_local: bool,
    /// True for a line of a batch, which takes only the share of the server that others leave.
    pub is_spare: bool,
    /// Set if the request is begun again, for another replica that has counted a part of it.
    pub counted_before: Option<CountedBefore>,
}

/// Usage of a request that another replica has counted before this one begins it again: the
/// request, its prompt, and some tokens of its answer.
#[derive(Debug, Clone)]
pub struct CountedBefore {
    /// Tokens of the answer that are still to be generated again.
    tokens: Arc<AtomicU64>,
}

impl CountedBefore {
    /// Creates the usage with `tokens` of the answer.
    pub fn new(tokens: u64) -> Self {
        Self { tokens: Arc::new(AtomicU64::new(tokens)) }
    }

    /// Takes `tokens` that were generated; returns how many of them were not counted before.
    fn fresh(&self, tokens: u64) -> u64 {
        let take = |left: u64| Some(left.saturating_sub(tokens));
        let before = self.tokens.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        tokens.saturating_sub(before.unwrap_or_default())
    }
}

impl Identity {
    /// Returns the identity of the owner of `key`.
    pub fn of_key(key: Arc<ApiKey>) -> Self {
        Self {
            tenant: key.tenant(),
            limits: key.limits,
            key: Some(key),
            token: None,
            is_local: false,
            is_spare: false,
            counted_before: None,
        }
    }

    /// Returns the identity of the owner's batches: a tenant beside the owner's own, so that a
    /// batch takes nothing of its owner's share either. Tokens count as the owner's.
    pub fn of_batches(&self) -> Self {
        Self {
            tenant: tenant_of(b"batches", &self.tenant.0.to_le_bytes()),
            limits: TenantLimits::default(),
            is_spare: true,
            ..self.clone()
        }
    }

    /// Returns the identity of the holder of a browser token that was made with `key`. Requests
    /// count as the owner's, without the owner's further rights.
    pub fn of_token(key: &ApiKey, token: TokenScope) -> Self {
        let key = ApiKey { may_set_priority: false, is_admin: false, ..key.clone() };
        Self { token: Some(token), ..Self::of_key(Arc::new(key)) }
    }

    /// Checks that the identity may send a request by `method` for `path`.
    ///
    /// # Errors
    /// 403 for a browser token, which allows only completions and reading the list of models.
    pub fn check_scope(&self, method: &Method, path: &str) -> Result<(), ApiError> {
        match self.token.is_none() || BrowserToken::allows(method, path) {
            true => Ok(()),
            false => Err(ApiError::beyond_token(method, path)),
        }
    }

    /// Returns the identity of clients at `address`, on a server without keys.
    pub fn of_address(address: IpAddr) -> Self {
        let tenant = match network(address) {
            IpAddr::V4(v4) => tenant_of(b"v4", &v4.octets()),
            IpAddr::V6(v6) => tenant_of(b"v6", &v6.octets()),
        };
        let is_local = address.to_canonical().is_loopback();
        Self {
            tenant,
            key: None,
            limits: TenantLimits::default(),
            token: None,
            is_local,
            is_spare: false,
            counted_before: None,
        }
    }

    /// Returns the same client, which counts as one on this machine only if `is_direct`: if nothing
    /// says that its request comes from elsewhere.
    pub fn local_if(self, is_direct: bool) -> Self {
        Self { is_local: self.is_local && is_direct, ..self }
    }

    /// Returns the same client, if it has no key, as the tenant that a gateway calls `name`.
    pub fn with_fairness_id(self, name: &[u8]) -> Self {
        match self.key {
            // A key has its own share, limits and objects, whoever passes its requests on.
            Some(_) => self,
            None => Self { tenant: tenant_of(b"fairness", name), ..self },
        }
    }

    /// Returns the identity of this process itself, which has no tenant limits.
    pub fn in_process() -> Self {
        let limits = TenantLimits { max_inflight: Some(usize::MAX), ..TenantLimits::default() };
        Self {
            tenant: TenantId::default(),
            key: None,
            limits,
            token: None,
            is_local: true,
            is_spare: false,
            counted_before: None,
        }
    }

    /// Returns the owner of the objects that its requests store. Without keys clients cannot be
    /// told apart: an object's random id is then its only protection.
    pub fn owner(&self) -> Owner {
        self.key.as_ref().map_or(Owner::NOBODY, |key| key.owner())
    }

    /// Returns the salt that separates the cached prefixes of a browser token from others of the
    /// owner.
    pub fn token_salt(&self) -> Option<&str> {
        self.token.as_ref().map(|token| &*token.cache_salt)
    }

    /// Returns the tenant in the form for the scheduler.
    pub fn scheduled(&self) -> Tenant {
        // A batch has the least weight there is, whatever its owner's.
        let key = self.key.as_ref().filter(|_| !self.is_spare);
        let weight = key.map_or(1, |key| key.weight);
        Tenant { id: self.tenant, weight, is_spare: self.is_spare }
    }

    /// Returns true if `priority` has an effect.
    pub fn may_set_priority(&self) -> bool {
        !self.is_spare && self.key.as_ref().is_some_and(|key| key.may_set_priority)
    }

    /// Returns true if the identity may see the activity of the whole server: on a server without
    /// keys, everyone may.
    pub fn may_watch(&self) -> bool {
        self.key.as_ref().is_none_or(|key| key.is_admin)
    }

    /// Checks that the identity may load and unload models, which concerns all clients: an admin
    /// may, and on a server without keys a client on this machine. `what` names the request in the
    /// error.
    ///
    /// # Errors
    /// 403 for others.
    pub fn check_manages(&self, what: &str) -> Result<(), ApiError> {
        let may = self.key.as_ref().map_or(self.is_local, |key| key.is_admin);
        if may { Ok(()) } else { Err(ApiError::needs_manager(what)) }
    }

    /// Checks that no budget of the owner is spent at `now_s`.
    ///
    /// # Errors
    /// [`Refusal::Spent`].
    pub fn check_budgets(&self, now_s: u64) -> Result<(), Refusal> {
        self.key.as_ref().map_or(Ok(()), |key| key.check_budgets(now_s))
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

    /// Returns how many of `tokens` that were generated are to be counted.
    pub fn fresh(&self, tokens: u64) -> u64 {
        self.counted_before.as_ref().map_or(tokens, |before| before.fresh(tokens))
    }

    /// Subtracts from one of the owner's counters.
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
    //! Tests that a tenant stays the same over reloads and replaced keys, and that tenants differ.
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
    fn batches_are_a_tenant_of_least_weight_and_count_as_their_owners() {
        let key = ApiKey { weight: 9, may_set_priority: true, ..named("a", "k") };
        let owner = Identity::of_key(Arc::new(key));
        let batches = owner.of_batches();
        assert_ne!(batches.tenant, owner.tenant);
        assert_eq!(batches.owner(), owner.owner());
        assert_eq!((batches.scheduled().weight, batches.may_set_priority()), (1, false));
        batches.count(|usage| &usage.requests, 2);
        assert_eq!(owner.key.unwrap().usage.counts().requests, 2);
    }

    #[test]
    fn a_gateway_tells_clients_without_keys_apart() {
        let proxy = Identity::of_address("10.0.0.1".parse().unwrap());
        let named = |name: &str| proxy.clone().with_fairness_id(name.as_bytes()).tenant;
        assert_eq!(named("a"), named("a"));
        assert!(named("a") != named("b") && named("a") != proxy.tenant);
        let key = Identity::of_key(Arc::new(ApiKey::unnamed("sk-key")));
        assert_eq!(key.clone().with_fairness_id(b"a").tenant, key.tenant);
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
    fn only_admins_and_clients_on_this_machine_manage_models() {
        let key = |is_admin| Arc::new(ApiKey { is_admin, ..named("a", "k") });
        let status = |identity: &Identity| {
            identity.check_manages("This").err().map_or(200, |error| error.status())
        };
        let address = |text: &str| Identity::of_address(text.parse().unwrap());
        for (identity, expected) in [
            (Identity::of_key(key(true)), 200),
            (Identity::of_key(key(false)), 403),
            (Identity::of_token(&key(true), TokenScope { cache_salt: "a".into() }), 403),
            (address("127.0.0.1"), 200),
            (address("::1"), 200),
            (address("::ffff:127.0.0.1"), 200),
            (address("10.0.0.1"), 403),
            (address("0.0.0.0"), 403),
            (Identity::in_process(), 200),
        ] {
            assert_eq!(status(&identity), expected, "{identity:?}");
        }
    }

    #[test]
    fn nothing_of_a_key_is_shown() {
        let shown = format!("{:?}", Identity::of_key(Arc::new(named("team", "secret"))));
        assert!(shown.contains("team") && !shown.contains("secret"), "{shown}");
        assert!(!shown.contains("digest"), "{shown}");
    }
}
