//! Separation of prefix caches between tenants.

use std::hash::{BuildHasher, RandomState};

use loquent_infer::tenant::{CacheDomain, TenantId};

use crate::identity::Identity;

/// Creates domains of the prefix cache. Their numbers depend on a secret of this process, so that
/// no client can choose a salt that leads into another's domain.
#[derive(Debug)]
pub struct CacheDomains {
    secret: RandomState,
    is_shared: bool,
}

impl CacheDomains {
    /// Creates domains by tenant or, if `is_shared`, one for all tenants.
    pub fn new(is_shared: bool) -> Self {
        Self { secret: RandomState::new(), is_shared }
    }

    /// Returns the domain of the requests of `who` with `salt` (`cache_salt`), if given. Different
    /// browser tokens of one tenant have different domains.
    pub fn of_request(&self, who: &Identity, salt: Option<&str>) -> CacheDomain {
        match who.token_salt().filter(|_| !self.is_shared) {
            Some(token) => CacheDomain(self.secret.hash_one((who.tenant, token, salt))),
            None => self.of(who.tenant, salt),
        }
    }

    fn of(&self, tenant: TenantId, salt: Option<&str>) -> CacheDomain {
        let tenant = (!self.is_shared).then_some(tenant);
        CacheDomain(self.secret.hash_one((tenant, salt)))
    }
}

#[cfg(test)]
mod tests {
    //! Tenants and salts separate; only the operator can join tenants.
    use super::*;

    const ALICE: TenantId = TenantId(1);
    const BOB: TenantId = TenantId(2);

    #[test]
    fn tenants_and_salts_have_domains_of_their_own() {
        let domains = CacheDomains::new(false);
        assert_eq!(domains.of(ALICE, None), domains.of(ALICE, None));
        assert_ne!(domains.of(ALICE, None), domains.of(BOB, None));
        assert_ne!(domains.of(ALICE, None), domains.of(ALICE, Some("x")));
        assert_ne!(domains.of(ALICE, Some("x")), domains.of(ALICE, Some("y")));
        assert_ne!(domains.of(ALICE, Some("x")), domains.of(BOB, Some("x")));
        assert_ne!(domains.of(ALICE, None), CacheDomains::new(false).of(ALICE, None));
    }

    #[test]
    fn a_shared_cache_is_still_separated_by_salts() {
        let domains = CacheDomains::new(true);
        assert_eq!(domains.of(ALICE, None), domains.of(BOB, None));
        assert_eq!(domains.of(ALICE, Some("x")), domains.of(BOB, Some("x")));
        assert_ne!(domains.of(ALICE, Some("x")), domains.of(BOB, None));
    }
}
