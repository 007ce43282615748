//! Shares of a bounded resource, by tenant: places, waiting tokens, bytes.
//!
//! A tenant may hold [`FAIR_MULTIPLE`] times what stays free. A single tenant thus gets three
//! quarters, and however many come, the next finds something. (The dynamic thresholds of shared
//! switch buffers, Choudhury and Hahne 1998, with their alpha.)

use std::collections::HashMap;

use crate::tenant::TenantId;

/// Units that a tenant may hold for each one that stays free.
pub const FAIR_MULTIPLE: usize = 3;

/// Kind of a pool. A pool of a new kind does not compile without its row in the test of all pools:
/// that one greedy tenant leaves an honest one its share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolKind {
    /// Prompt tokens of completions that have not begun.
    QueuedTokens,
    /// Prompts and grammars that wait for a thread.
    WaitingPrompts,
    /// Memory of small requests.
    SmallBodies,
    /// Memory of large requests.
    LargeBodies,
    /// Bytes of resumable answers that are kept.
    KeptAnswers,
    /// Browser tokens whose requests are counted.
    CountedTokens,
}

/// Inverse of the fraction of the limit that the tenants divide equally under
/// [`Overflow::EqualParts`].
const GUARANTEED_FRACTION: usize = 4;

/// Rule for a tenant with little when others hold everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overflow {
    /// The limit is never exceeded.
    Never,
    /// Each tenant may hold an equal part of a quarter of the limit. The total exceeds the limit by
    /// a quarter times the harmonic number of the tenants at most, which is 6.1 for 256.
    EqualParts,
}

/// Reason why a tenant gets nothing now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ShareRefusal {
    /// The tenant would hold more than its share.
    #[error("this client holds {held}, and others need the rest")]
    Share {
        /// Units that the tenant holds.
        held: usize,
    },
    /// The tenant holds nothing, and too little is free.
    #[error("all {limit} are taken")]
    Full {
        /// The limit of all tenants together.
        limit: usize,
    },
}

/// Units of one resource, and the tenants that hold them.
#[derive(Debug, Clone)]
pub struct SharedPool {
    kind: PoolKind,
    limit: usize,
    overflow: Overflow,
    held: usize,
    tenants: HashMap<TenantId, usize>,
}

impl SharedPool {
    /// Creates a pool of `limit` units, all free.
    pub fn new(kind: PoolKind, limit: usize, overflow: Overflow) -> Self {
        Self { kind, limit, overflow, held: 0, tenants: HashMap::new() }
    }

    /// Returns the kind of the pool.
    pub fn kind(&self) -> PoolKind {
        self.kind
    }

    /// Returns the number of units that all tenants hold.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Returns the number of units that `tenant` holds.
    pub fn held_by(&self, tenant: TenantId) -> usize {
        self.tenants.get(&tenant).copied().unwrap_or(0)
    }

    /// Returns the number of tenants that hold something.
    pub fn tenants(&self) -> usize {
        self.tenants.len()
    }

    /// Returns the limit of all tenants together.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Gives `units` more to `tenant`.
    ///
    /// # Errors
    /// [`ShareRefusal`]; nothing is given then. An empty pool gives any number of units.
    pub fn take(&mut self, tenant: TenantId, units: usize) -> Result<(), ShareRefusal> {
        self.check(tenant, units)?;
        self.force(tenant, units);
        Ok(())
    }

    /// Gives `units` more to `tenant`, whatever its share.
    pub fn force(&mut self, tenant: TenantId, units: usize) {
        if units > 0 {
            self.held = self.held.saturating_add(units);
            let own = self.tenants.entry(tenant).or_default();
            *own = own.saturating_add(units);
        }
    }

    /// Checks that `tenant` may have `units` more.
    ///
    /// # Errors
    /// [`ShareRefusal`] if not.
    pub fn check(&self, tenant: TenantId, units: usize) -> Result<(), ShareRefusal> {
        let held = self.held_by(tenant);
        let (own, all) = (held.saturating_add(units), self.held.saturating_add(units));
        let free = self.limit.saturating_sub(all);
        let fits = units == 0
            || self.held == 0
            // Whoever holds nothing may have something, as long as there is room.
            || held == 0 && all <= self.limit
            || own <= FAIR_MULTIPLE.saturating_mul(free)
            || own <= self.equal_part(held == 0);
        match held {
            _ if fits => Ok(()),
            0 => Err(ShareRefusal::Full { limit: self.limit }),
            held => Err(ShareRefusal::Share { held }),
        }
    }

    /// Returns the units that a tenant may hold whatever the others do.
    fn equal_part(&self, is_new: bool) -> usize {
        match self.overflow {
            Overflow::Never => 0,
            Overflow::EqualParts => {
                let tenants = self.tenants.len() + usize::from(is_new);
                self.limit / GUARANTEED_FRACTION / tenants.max(1)
            }
        }
    }

    /// Takes `units` back from `tenant`.
    pub fn give_back(&mut self, tenant: TenantId, units: usize) {
        let Some(own) = self.tenants.get_mut(&tenant) else {
            debug_assert_eq!(units, 0, "a tenant gives back what it holds");
            return;
        };
        debug_assert!(units <= *own, "a tenant gives back what it holds");
        let units = units.min(*own);
        *own -= units;
        self.held -= units;
        if *own == 0 {
            self.tenants.remove(&tenant);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Takes ever smaller amounts until the pool gives `tenant` nothing more.
    fn take_all(pool: &mut SharedPool, tenant: u64) -> usize {
        for units in [512, 64, 8, 1] {
            while pool.take(TenantId(tenant), units).is_ok() {}
        }
        pool.held_by(TenantId(tenant))
    }

    #[test]
    fn a_greedy_tenant_leaves_a_quarter() {
        let mut pool = SharedPool::new(PoolKind::QueuedTokens, 4000, Overflow::Never);
        assert_eq!([1, 2].map(|tenant| take_all(&mut pool, tenant)), [3000, 750]);
        assert_eq!(pool.take(TenantId(1), 1), Err(ShareRefusal::Share { held: 3000 }));
        pool.take(TenantId(3), 250).expect("whoever has nothing gets what is free");
        assert_eq!(pool.take(TenantId(4), 1), Err(ShareRefusal::Full { limit: 4000 }));
    }

    #[test]
    fn equal_parts_are_there_for_everybody() {
        let mut pool = SharedPool::new(PoolKind::QueuedTokens, 10_000, Overflow::EqualParts);
        (0..20).for_each(|tenant| _ = take_all(&mut pool, tenant));
        assert!(pool.held() > 9_900);
        pool.take(TenantId(99), 100).expect("a twenty-first of a quarter is more");
    }

    proptest! {
        /// Whoever comes and goes, the pool is bounded, and its counts return to nothing.
        #[test]
        fn a_pool_is_bounded(
            steps in prop::collection::vec((0u64..40, 1usize..3000, any::<bool>()), 1..400),
            overflow in prop::sample::select(vec![Overflow::Never, Overflow::EqualParts]),
        ) {
            let mut pool = SharedPool::new(PoolKind::QueuedTokens, 4000, overflow);
            let mut taken = Vec::new();
            for (tenant, units, ends) in steps {
                if ends && !taken.is_empty() {
                    let (tenant, units) = taken.swap_remove(units % taken.len());
                    pool.give_back(tenant, units);
                } else if pool.take(TenantId(tenant), units).is_ok() {
                    taken.push((TenantId(tenant), units));
                }
                // The fortieth harmonic number is below 4.3.
                let over = if overflow == Overflow::Never { 0 } else { 4000 * 43 / 40 };
                prop_assert!(pool.held() <= 4000 + over, "{}", pool.held());
            }
            taken.into_iter().for_each(|(tenant, units)| pool.give_back(tenant, units));
            prop_assert_eq!((pool.held(), pool.tenants()), (0, 0));
        }
    }
}
