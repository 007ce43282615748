//! Fingerprints of states.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::world::ModelWorld;

/// Fingerprints of states, of 64 bits each. Of n states, two share one with a probability of about
/// n²/2⁶⁵: one in three hundred thousand for ten million states.
pub type Fingerprints = HashSet<u64>;

/// Returns the fingerprint of `world`.
pub fn fingerprint(world: &ModelWorld) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish()
}
