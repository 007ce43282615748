//! Memory limit for all requests together until their prompts are tokenized.
//!
//! A request is charged for its body as the body arrives, then for the values that the body is
//! parsed into. The charge is returned when both are dropped: once the prompt is tokenized or, if
//! the conversation is stored with its answer, at the end of the answer. Small requests have a
//! separate share, so that large ones, however many, never block them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::error::ApiError;

/// Maximum size of a small request, in bytes.
pub const SMALL_BYTES: usize = 64 * 1024;
/// Inverse of the fraction of memory reserved for small requests.
const SMALL_SHARE: usize = 4;
/// Time limit for waiting for memory. A longer wait would block others with the memory that the
/// request already holds.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// `Retry-After` in seconds when there is no memory.
const FULL_RETRY_S: u64 = 5;
/// Bytes per permit.
const UNIT_BYTES: usize = 1024;

/// Memory of all requests.
#[derive(Debug)]
pub struct RequestMemory {
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    large_units: usize,
}

/// One request's charge, returned on drop.
#[derive(Debug, Default)]
pub struct MemoryCharge {
    bytes: usize,
    /// Permit from the small requests' share or, once the request is large, from the others'.
    permit: Option<OwnedSemaphorePermit>,
    is_large: bool,
}

impl RequestMemory {
    /// Creates a memory of `total_bytes` for all requests together.
    pub fn new(total_bytes: usize) -> Self {
        let units = (total_bytes / UNIT_BYTES).clamp(SMALL_SHARE, u32::MAX as usize / 2);
        let small = units / SMALL_SHARE;
        Self {
            small: Arc::new(Semaphore::new(small)),
            large: Arc::new(Semaphore::new(units - small)),
            large_units: units - small,
        }
    }

    /// Charges `bytes` more to `charge`.
    ///
    /// # Errors
    /// 503 when the memory is full, and stays so for some seconds.
    pub async fn take(&self, charge: &mut MemoryCharge, bytes: usize) -> Result<(), ApiError> {
        let total = charge.bytes + bytes;
        let is_large = total > SMALL_BYTES;
        let from = if is_large { &self.large } else { &self.small };
        let held = match charge.is_large == is_large {
            true => charge.permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits),
            false => 0,
        };
        // A request larger than all memory gets all of it: alone, it may run.
        let units = total.div_ceil(UNIT_BYTES).min(self.large_units);
        let more = units.saturating_sub(held) as u32;
        if more > 0 {
            let permit = acquire(from.clone(), more).await?;
            match &mut charge.permit {
                Some(held) if charge.is_large == is_large => held.merge(permit),
                held => *held = Some(permit),
            }
            charge.is_large = is_large;
        }
        charge.bytes = total;
        Ok(())
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
        if let Some(permit) = &mut charge.permit {
            let spare = permit.num_permits().saturating_sub(bytes.div_ceil(UNIT_BYTES));
            drop(permit.split(spare));
        }
        Ok(())
    }

    /// Returns the free bytes, for tests and statistics.
    pub fn free_bytes(&self) -> usize {
        (self.small.available_permits() + self.large.available_permits()) * UNIT_BYTES
    }
}

impl MemoryCharge {
    /// Returns the number of bytes charged.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }
}

async fn acquire(from: Arc<Semaphore>, units: u32) -> Result<OwnedSemaphorePermit, ApiError> {
    if let Ok(permit) = from.clone().try_acquire_many_owned(units) {
        return Ok(permit);
    }
    match timeout(MAX_WAIT, from.acquire_many_owned(units)).await {
        Ok(permit) => Ok(permit.expect("the semaphore is never closed")),
        Err(_) => {
            let message = "The memory for incoming requests is full. Try again later, or raise \
                           --max-request-memory-bytes.";
            Err(ApiError::unavailable(message, FULL_RETRY_S))
        }
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
}
