//! Separation of prefix caches between tenants.

use std::fmt;

use loquent_infer::tenant::{CacheDomain, TenantId};
use sha2::{Digest, Sha256};

use crate::identity::Identity;

/// Secret that the numbers of cache domains depend on: without it no client can choose a salt that
/// leads into another's domain. The default is a new one.
#[derive(Clone, PartialEq, Eq)]
pub struct DomainSecret(pub [u8; 32]);

impl Default for DomainSecret {
    fn default() -> Self {
        Self(rand::random())
    }
}

impl fmt::Debug for DomainSecret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("DomainSecret")
    }
}

/// Creates domains of the prefix cache. With the same secret they are the same in every process.
#[derive(Debug)]
pub struct CacheDomains {
    secret: DomainSecret,
    is_shared: bool,
}

impl CacheDomains {
    /// Creates domains by tenant or, if `is_shared`, one for all tenants.
    pub fn new(is_shared: bool, secret: DomainSecret) -> Self {
        Self { secret, is_shared }
    }

    /// Returns the domain of the requests of `who` with `salt` (`cache_salt`), if given. Different
    /// browser tokens of one tenant have different domains.
    pub fn of_request(&self, who: &Identity, salt: Option<&str>) -> CacheDomain {
        self.of(who.tenant, who.token_salt(), salt)
    }

    fn of(&self, tenant: TenantId, token: Option<&str>, salt: Option<&str>) -> CacheDomain {
        let mut hash = Sha256::new();
        hash.update(self.secret.0);
        // Every field says whether it is there and how long it is, so that none runs into the next.
        let (tenant, token) = match self.is_shared {
            true => (None, None),
            false => (Some(tenant.0.to_le_bytes()), token),
        };
        let fields = [tenant.as_ref().map(|id| &id[..]), token.map(str::as_bytes)];
        for field in fields.into_iter().chain([salt.map(str::as_bytes)]) {
            hash.update([u8::from(field.is_some())]);
            hash.update((field.map_or(0, <[u8]>::len) as u64).to_le_bytes());
            hash.update(field.unwrap_or_default());
        }
        let digest: [u8; 32] = hash.finalize().into();
        let (first, _) = digest.split_first_chunk().expect("a digest is longer");
        CacheDomain(u64::from_le_bytes(*first))
    }
}

#[cfg(test)]
mod tests {
    //! Tenants and salts separate; only the operator can join tenants.
    use super::*;

    const ALICE: TenantId = TenantId(1);
    const BOB: TenantId = TenantId(2);

    fn domains(is_shared: bool) -> CacheDomains {
        CacheDomains::new(is_shared, DomainSecret::default())
    }

    #[test]
    fn tenants_and_salts_have_domains_of_their_own() {
        let domains = domains(false);
        let of = |who, salt| domains.of(who, None, salt);
        assert_eq!(of(ALICE, None), of(ALICE, None));
        assert_ne!(of(ALICE, None), of(BOB, None));
        assert_ne!(of(ALICE, None), of(ALICE, Some("x")));
        assert_ne!(of(ALICE, None), of(ALICE, Some("")));
        assert_ne!(of(ALICE, Some("x")), of(ALICE, Some("y")));
        assert_ne!(of(ALICE, Some("x")), of(BOB, Some("x")));
        assert_ne!(domains.of(ALICE, Some("x"), None), of(ALICE, Some("x")));
        assert_ne!(domains.of(ALICE, Some("x"), None), domains.of(ALICE, Some("y"), None));
    }

    #[test]
    fn domains_depend_on_the_secret_alone() {
        let secret = DomainSecret::default();
        let of = |secret: &DomainSecret| {
            CacheDomains::new(false, secret.clone()).of(ALICE, None, Some("x"))
        };
        assert_eq!(of(&secret), of(&secret), "the same in another process");
        assert_ne!(of(&secret), of(&DomainSecret::default()));
    }

    #[test]
    fn a_shared_cache_is_still_separated_by_salts() {
        let domains = domains(true);
        let of = |who, salt| domains.of(who, None, salt);
        assert_eq!(of(ALICE, None), of(BOB, None));
        assert_eq!(of(ALICE, Some("x")), of(BOB, Some("x")));
        assert_ne!(of(ALICE, Some("x")), of(BOB, None));
    }
}
