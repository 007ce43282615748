//! Who a completion is computed for: whose share of the engine it takes, and whose prefixes it
//! may reuse.

/// An API key's identity, or an address's where there are no keys; opaque to the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TenantId(pub u64);

/// A tenant and its part of the engine's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tenant {
    /// Who it is.
    pub id: TenantId,
    /// Tokens that it gets for each token of a tenant of weight 1 while both have work; at
    /// least 1.
    pub weight: u32,
}

impl Default for Tenant {
    fn default() -> Self {
        Self { id: TenantId::default(), weight: 1 }
    }
}

/// Completions reuse each other's computed prefixes only within one domain, so that the prefix
/// cache tells no client what another asked (CVE-2025-46570 is the same leak in vLLM).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct CacheDomain(pub u64);
