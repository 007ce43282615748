//! Tenants: owners of completions, with their shares of the engine and domains of the prefix cache.

/// Identity of an API key, or of an address if there are no keys; opaque to the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TenantId(pub u64);

/// A tenant and its share of the engine's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tenant {
    /// Identity.
    pub id: TenantId,
    /// Tokens that the tenant gets for each token of a tenant of weight 1 while both have work; at
    /// least 1.
    pub weight: u32,
    /// True for work that takes only what others leave, such as a batch of requests that nobody
    /// waits for.
    pub is_spare: bool,
}

impl Default for Tenant {
    fn default() -> Self {
        Self { id: TenantId::default(), weight: 1, is_spare: false }
    }
}

/// Domain within which completions reuse each other's computed prefixes, so that the prefix cache
/// does not reveal one client's prompts to another (CVE-2025-46570 is the same leak in vLLM).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct CacheDomain(pub u64);
