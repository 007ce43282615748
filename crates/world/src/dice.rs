//! Seeded draws.

use loquent_serving::entropy::Entropy;

/// A sequence of draws that its seed decides.
pub struct Dice(Entropy);

impl Dice {
    /// Creates the sequence of `seed` for one purpose. Those of different purposes are independent.
    pub fn new(seed: u64, purpose: u64) -> Self {
        Self(Entropy::seeded(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ purpose))
    }

    /// Draws a number from `low` to `high`, both included.
    pub fn between(&self, low: u64, high: u64) -> u64 {
        self.0.draw_in(low..=high)
    }

    /// Returns true in `percent` of a hundred cases.
    pub fn chance(&self, percent: u64) -> bool {
        self.between(0, 99) < percent
    }

    /// Draws an index below `len`, which is not 0.
    pub fn index(&self, len: usize) -> usize {
        self.between(0, len as u64 - 1) as usize
    }
}
