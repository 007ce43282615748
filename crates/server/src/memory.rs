//! The memory that all requests together may take before their prompts are tokens.
//!
//! A request is charged for its body as the body arrives, then for the values that the body is
//! parsed into, and pays back when both are gone: once its prompt is tokens, or, if the
//! conversation is stored with its answer, at the end of that. Small requests have a part of their
//! own, so that large ones, however many, never keep them out.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::error::ApiError;

/// Up to this size a request is small, bytes.
pub const SMALL_BYTES: usize = 64 * 1024;
/// The part of the memory that only small requests get: one in so many.
const SMALL_SHARE: usize = 4;
/// How long a request may wait for memory. Longer waits would hold what it has already from the
/// others.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// `Retry-After` when there is no memory, in seconds.
const FULL_RETRY_S: u64 = 5;
/// What one permit stands for, bytes.
const UNIT_BYTES: usize = 1024;

/// The memory of all requests.
#[derive(Debug)]
pub struct RequestMemory {
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    large_units: usize,
}

/// One request's part of it, given back when this is dropped.
#[derive(Debug, Default)]
pub struct MemoryCharge {
    bytes: usize,
    /// Of the small requests' part, or, once the request is large, of the others'.
    permit: Option<OwnedSemaphorePermit>,
    is_large: bool,
}

impl RequestMemory {
    /// `total_bytes` for all requests together.
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
    /// 503 when the memory is taken, and stays so for some seconds.
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

    /// Makes `charge` stand for `bytes` instead of what it stood for.
    ///
    /// # Errors
    /// Those of [`Self::take`], if it is more.
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

    /// Bytes that are free, for tests and figures.
    pub fn free_bytes(&self) -> usize {
        (self.small.available_permits() + self.large.available_permits()) * UNIT_BYTES
    }
}

impl MemoryCharge {
    /// How many bytes it stands for.
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
    //! What is charged is given back, and large requests leave small ones their part.
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
