//! Memory of answers that are held whole before a client or the store gets them: each is charged
//! to the memory of requests as it arrives, because an upstream server may send as much as it
//! likes.

use std::sync::Arc;

use loquent_infer::tenant::TenantId;

use crate::body::RequestBodies;
use crate::error::ApiError;
use crate::flush::Flush;
use crate::memory::MemoryCharge;

/// The charge of one answer, returned on drop.
pub struct HeldAnswer {
    bodies: Arc<RequestBodies>,
    charge: MemoryCharge,
}

impl HeldAnswer {
    /// Returns the empty charge of an answer to a request of `tenant`.
    pub fn new(bodies: Arc<RequestBodies>, tenant: TenantId) -> Self {
        Self { bodies, charge: MemoryCharge::of_tenant(tenant) }
    }

    /// Charges `flush`.
    ///
    /// # Errors
    /// 503 when the memory is full, or the tenant has its share of it.
    pub fn add(&mut self, flush: &Flush) -> Result<(), ApiError> {
        self.add_bytes(flush.bytes())
    }

    /// Charges `bytes`.
    ///
    /// # Errors
    /// 503 when the memory is full, or the tenant has its share of it.
    pub fn add_bytes(&mut self, bytes: usize) -> Result<(), ApiError> {
        self.bodies.memory().try_take(&mut self.charge, bytes)
    }

    /// Returns the charge: the answer is held no longer.
    pub fn give_back(&mut self) {
        self.charge = MemoryCharge::of_tenant(self.charge.tenant());
    }
}

#[cfg(test)]
mod tests {
    use loquent_proto::Delta;

    use super::*;
    use crate::body::BodyLimits;

    #[test]
    fn an_answer_is_charged_as_it_grows_and_given_back() {
        const MIB: usize = 1 << 20;
        let bodies = RequestBodies::new(BodyLimits { max_bytes: MIB, total_bytes: 16 * MIB });
        let free = bodies.memory().free_bytes();
        let mut held = HeldAnswer::new(bodies.clone(), TenantId::default());
        let text = Delta::Text { choice: 0, tokens: 1, text: "a".repeat(MIB) };
        let flush = Flush { deltas: vec![text], ..Flush::default() };
        let whole = (0..32).take_while(|_| held.add(&flush).is_ok()).count();
        assert!((4..16).contains(&whole), "{whole} MiB of 16");
        assert_eq!(held.add(&flush).unwrap_err().status(), 503);
        drop(held);
        assert_eq!(bodies.memory().free_bytes(), free);
    }
}
