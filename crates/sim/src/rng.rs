//! Indexed random values.
//!
//! Every scheme must meet the same schedule, regardless of the packets it sends and their order. So
//! a draw is a pure function of (seed, purpose, index) and never depends on the number of earlier
//! draws. The generator is implemented here rather than taken from a crate, because published
//! figures must not change when a dependency does.

/// An indexed family of random values for one purpose of one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draws {
    key: u64,
}

impl Draws {
    /// Creates the family for `purpose` from `seed`; different purposes are independent.
    pub fn new(seed: u64, purpose: &str) -> Self {
        let key = purpose
            .bytes()
            .fold(mix(seed ^ 0x6c6f_7175_656e_7400), |key, byte| mix(key ^ u64::from(byte)));
        Self { key }
    }

    /// Returns 64 uniform bits for `index`.
    pub fn bits(&self, index: u64) -> u64 {
        mix(self.key.wrapping_add(mix(index.wrapping_mul(0x9e37_79b9_7f4a_7c15))))
    }

    /// Returns a uniform value in [0, 1) for `index`.
    pub fn unit(&self, index: u64) -> f64 {
        (self.bits(index) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns the same family as a sequence, for a purpose whose draws have one consumer.
    pub fn stream(self) -> DrawSequence {
        DrawSequence { draws: self, next: 0 }
    }
}

/// Draws taken in sequence.
#[derive(Debug, Clone)]
pub struct DrawSequence {
    draws: Draws,
    next: u64,
}

impl DrawSequence {
    /// Returns 64 uniform bits.
    pub fn bits(&mut self) -> u64 {
        self.next += 1;
        self.draws.bits(self.next)
    }

    /// Returns a uniform value in [0, 1).
    pub fn unit(&mut self) -> f64 {
        self.next += 1;
        self.draws.unit(self.next)
    }

    /// Returns a uniform value in [low, high).
    pub fn range(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Returns an exponentially distributed value with this mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// Returns true with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }
}

/// Mixes 64 bits bijectively (the finalizer of SplitMix64).
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_uniform_and_depend_on_seed_purpose_and_index() {
        let draws = Draws::new(1, "loss");
        let mean = (0..100_000).map(|i| draws.unit(i)).sum::<f64>() / 100_000.0;
        assert!((mean - 0.5).abs() < 0.005, "mean {mean}");
        assert_ne!(draws.bits(7), draws.bits(8));
        assert_ne!(draws.bits(7), Draws::new(2, "loss").bits(7));
        assert_ne!(draws.bits(7), Draws::new(1, "acks").bits(7));
    }

    #[test]
    fn exponential_has_the_mean_it_was_given() {
        let mut stream = Draws::new(3, "holding").stream();
        let mean = (0..50_000).map(|_| stream.exponential(200.0)).sum::<f64>() / 50_000.0;
        assert!((mean - 200.0).abs() < 4.0, "mean {mean}");
    }
}
