//! The source of the random numbers that decide behaviour: ids, names of replicas, numbers of
//! epochs.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};

use rand::distr::{Distribution, StandardUniform};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// A source of random numbers: the cryptographic one of the thread or, for a world whose runs can
/// be repeated, a seeded one. Clones share it.
///
/// ```
/// use loquent_serving::entropy::Entropy;
///
/// let (one, other) = (Entropy::seeded(7), Entropy::seeded(7));
/// assert_eq!(one.draw::<u64>(), other.draw::<u64>());
/// assert_ne!(Entropy::system().draw::<u64>(), Entropy::system().draw::<u64>());
/// ```
#[derive(Clone, Default)]
pub struct Entropy(Option<Arc<Mutex<SmallRng>>>);

impl Entropy {
    /// Returns the source that nobody can guess.
    pub const fn system() -> Self {
        Self(None)
    }

    /// Returns a source that gives the same numbers for the same `seed`.
    pub fn seeded(seed: u64) -> Self {
        Self(Some(Arc::new(Mutex::new(SmallRng::seed_from_u64(seed)))))
    }

    /// Draws a value.
    pub fn draw<T>(&self) -> T
    where
        StandardUniform: Distribution<T>,
    {
        match &self.0 {
            None => rand::rng().random(),
            Some(seeded) => seeded.lock().expect("nothing panics under this lock").random(),
        }
    }

    /// Draws a number of `range`.
    pub fn draw_in(&self, range: RangeInclusive<u64>) -> u64 {
        match &self.0 {
            None => rand::rng().random_range(range),
            Some(seeded) => {
                seeded.lock().expect("nothing panics under this lock").random_range(range)
            }
        }
    }
}

impl fmt::Debug for Entropy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Entropy(seeded)" } else { "Entropy(system)" })
    }
}
