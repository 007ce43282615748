//! Stateless random numbers: each is a function of a seed and an index.

/// The fractional part of the golden ratio in 64 bits: spreads consecutive indices.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// The finishing mix of splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom
/// number generators", 2014; constants by Stafford, variant 13): a bijection in which
/// every input bit changes every output bit with probability one half.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Returns the `index`-th number of `seed`, uniform in `0.0..1.0`. The seed is mixed before the
/// index is added, so that neighbouring seeds do not share shifted streams.
pub(super) fn uniform(seed: u64, index: u64) -> f64 {
    let start = mix(seed.wrapping_add(GOLDEN));
    let bits = mix(start.wrapping_add(index.wrapping_mul(GOLDEN)));
    // 53 bits fill a 64-bit float's mantissa exactly, so 1.0 is never returned.
    (bits >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

#[cfg(test)]
mod tests {
    //! The numbers are uniform and seeds are independent, as far as simple counts tell.
    use super::*;

    #[test]
    fn is_uniform_over_indices_and_seeds() {
        for by_seed in [false, true] {
            let mut bins = [0u32; 20];
            for i in 0..100_000u64 {
                let u = if by_seed { uniform(i, 3) } else { uniform(3, i) };
                bins[(u * 20.0) as usize] += 1;
            }
            // Expected 5000 each, standard deviation 69: five of them.
            assert!(bins.iter().all(|&n| n.abs_diff(5000) < 345), "{bins:?}");
        }
    }

    #[test]
    fn neighbouring_seeds_do_not_correlate() {
        let pairs = (0..100_000).map(|i| (uniform(1, i) - 0.5) * (uniform(2, i) - 0.5));
        let correlation = pairs.sum::<f64>() / 100_000.0 * 12.0;
        assert!(correlation.abs() < 0.016, "{correlation}");
    }
}
