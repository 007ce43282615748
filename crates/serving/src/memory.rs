//! Memory limit for all requests together until their prompts are tokenized, and for answers that
//! are held whole.
//!
//! A request is charged for its body as the body arrives, then for the values that the body is
//! parsed into. The charge is returned when both are dropped: once the prompt is tokenized or, if
//! the conversation is stored with its answer, at the end of the answer. Small requests have a
//! separate part, so that large ones, however many, never block them. Of either part a tenant may
//! have three times what stays free, and a quarter while others wait.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use loquent_infer::share::{Overflow, PoolKind, SharedPool};
use loquent_infer::tenant::TenantId;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::error::ApiError;
use crate::identity::Identity;

/// Maximum size of a small request, in bytes.
pub const SMALL_BYTES: usize = 64 * 1024;
/// Inverse of the fraction of memory reserved for small requests.
const SMALL_SHARE: usize = 4;
/// Inverse of the fraction of either part that a tenant may have while others wait.
const CONTENDED_SHARE: usize = 4;
/// Time limit for waiting for memory. A longer wait would block others with the memory that the
/// request already holds.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// `Retry-After` in seconds when there is no memory.
const FULL_RETRY_S: u64 = 5;
/// Bytes per unit.
const UNIT_BYTES: usize = 1024;

/// Memory of all requests.
#[derive(Debug)]
pub struct RequestMemory {
    small: Arc<MemoryPart>,
    large: Arc<MemoryPart>,
    large_units: usize,
}

/// One request's charge, returned on drop.
#[derive(Debug, Default)]
pub struct MemoryCharge {
    tenant: TenantId,
    bytes: usize,
    /// Units of the small requests' part or, once the request is large, of the others'.
    held: Option<HeldUnits>,
    is_large: bool,
}

/// Memory of either small or large requests.
#[derive(Debug)]
struct MemoryPart {
    state: Mutex<PartState>,
    freed: Notify,
}

#[derive(Debug)]
struct PartState {
    pool: SharedPool,
    /// Number of waiting requests of each tenant.
    waiting: HashMap<TenantId, usize>,
}

/// Units that one request holds.
#[derive(Debug)]
struct HeldUnits {
    part: Arc<MemoryPart>,
    tenant: TenantId,
    units: usize,
}

/// Units that a request needs to hold `total` bytes.
struct Growth {
    total: usize,
    is_large: bool,
    /// Units of this part that it holds.
    held: usize,
    more: usize,
}

/// A request that waits for units.
struct WaitingTenant<'a> {
    part: &'a MemoryPart,
    tenant: TenantId,
}

impl PartState {
    /// Takes `more` units for a request of `tenant` that holds `own` units. Returns false if the
    /// tenant may not have them now.
    fn take(&mut self, tenant: TenantId, own: usize, more: usize) -> bool {
        let held = self.pool.held_by(tenant);
        let others_wait = self.waiting.keys().any(|&waiting| waiting != tenant);
        let contended = others_wait && held + more > self.pool.limit() / CONTENDED_SHARE;
        // Alone, a request may have everything.
        let is_alone = self.pool.held() == own && own + more <= self.pool.limit();
        if is_alone {
            self.pool.force(tenant, more);
            return true;
        }
        !contended && self.pool.take(tenant, more).is_ok()
    }
}

impl MemoryPart {
    fn new(kind: PoolKind, units: usize) -> Arc<Self> {
        let pool = SharedPool::new(kind, units, Overflow::Never);
        let state = Mutex::new(PartState { pool, waiting: HashMap::new() });
        Arc::new(Self { state, freed: Notify::new() })
    }

    fn lock(&self) -> MutexGuard<'_, PartState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes `more` units for a request of `tenant` that holds `own`; waits for them if necessary.
    async fn acquire(
        self: &Arc<Self>,
        tenant: TenantId,
        own: usize,
        more: usize,
    ) -> Result<(), ApiError> {
        if self.try_acquire(tenant, own, more).is_ok() {
            return Ok(());
        }
        let _waiting = WaitingTenant::begin(self, tenant);
        let taken = async {
            loop {
                let mut freed = std::pin::pin!(self.freed.notified());
                // Before looking, so that nothing that is freed after it is missed.
                freed.as_mut().enable();
                if self.lock().take(tenant, own, more) {
                    return;
                }
                freed.await;
            }
        };
        timeout(MAX_WAIT, taken).await.map_err(|_| no_room())
    }

    /// Takes `more` units for a request of `tenant` that holds `own`, if it may have them now.
    fn try_acquire(&self, tenant: TenantId, own: usize, more: usize) -> Result<(), ApiError> {
        match self.lock().take(tenant, own, more) {
            true => Ok(()),
            false => Err(no_room()),
        }
    }

    fn free_units(&self) -> usize {
        let state = self.lock();
        state.pool.limit() - state.pool.held()
    }
}

fn no_room() -> ApiError {
    let message = "The memory for requests is full, or this client has its share of it. Try again \
                   later, or raise --max-request-memory-bytes.";
    ApiError::unavailable(message, FULL_RETRY_S)
}

impl<'a> WaitingTenant<'a> {
    fn begin(part: &'a MemoryPart, tenant: TenantId) -> Self {
        *part.lock().waiting.entry(tenant).or_default() += 1;
        Self { part, tenant }
    }
}

impl Drop for WaitingTenant<'_> {
    fn drop(&mut self) {
        let mut state = self.part.lock();
        if let Some(count) = state.waiting.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                state.waiting.remove(&self.tenant);
            }
        }
        drop(state);
        // Others may have waited only because this one did.
        self.part.freed.notify_waiters();
    }
}

impl HeldUnits {
    fn give_back(&mut self, units: usize) {
        self.units -= units;
        self.part.lock().pool.give_back(self.tenant, units);
        self.part.freed.notify_waiters();
    }
}

impl Drop for HeldUnits {
    fn drop(&mut self) {
        self.give_back(self.units);
    }
}

impl RequestMemory {
    /// Creates a memory of `total_bytes` for all requests together.
    pub fn new(total_bytes: usize) -> Self {
        let units = (total_bytes / UNIT_BYTES).clamp(SMALL_SHARE, u32::MAX as usize / 2);
        let small = units / SMALL_SHARE;
        Self {
            small: MemoryPart::new(PoolKind::SmallBodies, small),
            large: MemoryPart::new(PoolKind::LargeBodies, units - small),
            large_units: units - small,
        }
    }

    /// Charges `bytes` more to `charge`.
    ///
    /// # Errors
    /// 503 when the memory is full, or the tenant has its share of it, and that stays so for some
    /// seconds.
    pub async fn take(&self, charge: &mut MemoryCharge, bytes: usize) -> Result<(), ApiError> {
        let growth = self.growth(charge, bytes);
        let part = self.part(growth.is_large);
        if growth.more > 0 {
            part.acquire(charge.tenant, growth.held, growth.more).await?;
        }
        charge.grow(part, growth);
        Ok(())
    }

    /// Charges `bytes` more to `charge`, without waiting for them, and never more than there is.
    ///
    /// # Errors
    /// 503 when the memory is full, or the tenant has its share of it.
    pub fn try_take(&self, charge: &mut MemoryCharge, bytes: usize) -> Result<(), ApiError> {
        let growth = self.growth(charge, bytes);
        if growth.total > self.large_units * UNIT_BYTES {
            return Err(no_room());
        }
        let part = self.part(growth.is_large);
        if growth.more > 0 {
            part.try_acquire(charge.tenant, growth.held, growth.more)?;
        }
        charge.grow(part, growth);
        Ok(())
    }

    const fn part(&self, is_large: bool) -> &Arc<MemoryPart> {
        if is_large { &self.large } else { &self.small }
    }

    fn growth(&self, charge: &MemoryCharge, bytes: usize) -> Growth {
        let total = charge.bytes.saturating_add(bytes);
        let is_large = total > SMALL_BYTES;
        let held = match charge.is_large == is_large {
            true => charge.held.as_ref().map_or(0, |held| held.units),
            false => 0,
        };
        // A request larger than all memory gets all of it: alone, it may run.
        let units = total.div_ceil(UNIT_BYTES).min(self.large_units);
        Growth { total, is_large, held, more: units.saturating_sub(held) }
    }

    /// Changes `charge` to exactly `bytes`.
    ///
    /// # Errors
    /// The errors of [`Self::take`], if it grows.
    pub async fn settle(&self, charge: &mut MemoryCharge, bytes: usize) -> Result<(), ApiError> {
        if let Some(more) = bytes.checked_sub(charge.bytes) {
            return self.take(charge, more).await;
        }
        charge.bytes = bytes;
        if let Some(held) = &mut charge.held {
            held.give_back(held.units.saturating_sub(bytes.div_ceil(UNIT_BYTES)));
        }
        Ok(())
    }

    /// Returns the free bytes, for tests and statistics.
    pub fn free_bytes(&self) -> usize {
        (self.small.free_units() + self.large.free_units()) * UNIT_BYTES
    }
}

impl MemoryCharge {
    /// Returns an empty charge of `identity`. The default is one of this process itself.
    pub fn of(identity: &Identity) -> Self {
        Self::of_tenant(identity.tenant)
    }

    /// Returns an empty charge of `tenant`.
    pub fn of_tenant(tenant: TenantId) -> Self {
        Self { tenant, ..Self::default() }
    }

    /// Adds units that have been acquired.
    fn grow(&mut self, part: &Arc<MemoryPart>, growth: Growth) {
        let Growth { total, is_large, more, .. } = growth;
        self.bytes = total;
        if more == 0 {
            return;
        }
        match &mut self.held {
            Some(held) if self.is_large == is_large => held.units += more,
            held => {
                let part = part.clone();
                *held = Some(HeldUnits { part, tenant: self.tenant, units: more });
            }
        }
        self.is_large = is_large;
    }

    /// Returns the tenant that is charged.
    pub const fn tenant(&self) -> TenantId {
        self.tenant
    }

    /// Returns the number of bytes charged.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    //! Tests that charges are returned, and that large requests leave small ones their share.
    use super::*;

    const MIB: usize = 1024 * 1024;

    #[tokio::test]
    async fn a_charge_grows_with_its_request_and_is_given_back() {
        let memory = RequestMemory::new(4 * MIB);
        let free = memory.free_bytes();
        let mut charge = MemoryCharge::default();
        for (bytes, taken) in [(1, 1024), (1000, 1024), (50_000, 50 * 1024), (MIB, 1074 * 1024)] {
            memory.take(&mut charge, bytes).await.unwrap();
            assert_eq!(free - memory.free_bytes(), taken);
        }
        for (bytes, taken) in [(2 * MIB, 2 * MIB), (100_000, 98 * 1024), (1, 1024)] {
            memory.settle(&mut charge, bytes).await.unwrap();
            assert_eq!((charge.bytes(), free - memory.free_bytes()), (bytes, taken));
        }
        drop(charge);
        assert_eq!(memory.free_bytes(), free);
    }

    #[tokio::test(start_paused = true)]
    async fn small_requests_pass_while_large_ones_hold_all_the_rest() {
        let memory = RequestMemory::new(4 * MIB);
        let (mut one, mut two) = (MemoryCharge::default(), MemoryCharge::default());
        memory.take(&mut one, 100 * MIB).await.expect("alone, it gets all there is");
        let refused = memory.take(&mut two, MIB).await.unwrap_err();
        assert_eq!((refused.status(), refused.retry_after_s()), (503, Some(FULL_RETRY_S)));
        let mut small = MemoryCharge::default();
        memory.take(&mut small, SMALL_BYTES).await.unwrap();
        drop(one);
        memory.take(&mut two, MIB).await.unwrap();
    }

    fn charge_of(host: u8) -> MemoryCharge {
        MemoryCharge::of(&Identity::of_address([10, 0, 0, host].into()))
    }

    /// Lets the client at 10.0.0.1 hold requests of `bytes` until it gets no more.
    async fn hold_all(memory: &RequestMemory, bytes: usize) -> Vec<MemoryCharge> {
        let mut held = Vec::new();
        loop {
            let mut one = charge_of(1);
            match memory.take(&mut one, bytes).await {
                Ok(()) => held.push(one),
                Err(refused) => {
                    assert_eq!(refused.status(), 503);
                    return held;
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_holds_all_it_gets_leaves_others_their_share() {
        let memory = RequestMemory::new(64 * MIB);
        for bytes in [SMALL_BYTES - 1, 8 * MIB - 1] {
            let held = hold_all(&memory, bytes).await;
            assert!(!held.is_empty());
            let begun = tokio::time::Instant::now();
            let mut honest = charge_of(2);
            memory.take(&mut honest, bytes.min(4 * MIB)).await.expect("there is room for others");
            assert_eq!(begun.elapsed(), Duration::ZERO, "nor do they wait");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn while_others_wait_a_client_gets_no_more_than_a_quarter() {
        let memory = RequestMemory::new(32 * MIB);
        let mut held = hold_all(&memory, 2 * MIB).await;
        let mut honest = charge_of(2);
        // More than is free: it waits until the greedy client's requests have ended.
        let wait = memory.take(&mut honest, 10 * MIB);
        let release = async {
            tokio::task::yield_now().await;
            while let Some(one) = held.pop() {
                drop(one);
                let mut again = charge_of(1);
                if held.len() > 6 {
                    let now = timeout(Duration::ZERO, memory.take(&mut again, 2 * MIB)).await;
                    assert!(now.is_err(), "{} are held while another waits", held.len());
                }
                tokio::task::yield_now().await;
            }
        };
        let (honest, ()) = tokio::join!(wait, release);
        honest.expect("its turn came");
    }
}
