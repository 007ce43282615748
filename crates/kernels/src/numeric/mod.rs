//! Whole operations of a graph, by our kernels and by llama.cpp's, compared with double precision.
//!
//! Both run on ggml's own threads, ours as a "custom" operation: the hook, which affects the whole
//! process, is not used, so llama.cpp's side is llama.cpp's alone. Our error must be about as small
//! as llama.cpp's on the same numbers, so that no bound is a guess.

mod arena;
mod attention;
mod experts;
mod products;
mod speed;
mod weights;

use super::{Isa, sys};
pub(super) use weights::quantised;

/// Maximum ratio of our error to llama.cpp's: both round the same numbers to the same grids, but
/// break ties and add in another order. Measured: 0.9 to 1.02 if activations are rounded.
const MOST_ERROR_RATIO: f64 = 1.15;

/// Instruction sets of this processor. The missing ones are reported: their kernels were not
/// tested.
fn isas() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_here_for_a_test())
}

/// Pseudo-random numbers between -1 and 1, the same in every run.
pub(super) fn noise(seed: u32, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Deviation of results from the exact ones.
#[derive(Debug, Clone, Copy)]
struct Deviation {
    /// Root of the mean square, relative to that of the exact values.
    rms: f64,
    /// Largest deviation, relative to the same.
    largest: f64,
}

impl Deviation {
    fn of(found: &[f32], exact: &[f64]) -> Self {
        assert_eq!(found.len(), exact.len());
        let mean = |squares: f64| (squares / exact.len() as f64).sqrt();
        let size = mean(exact.iter().map(|x| x * x).sum());
        let errors = || found.iter().zip(exact).map(|(f, x)| (f64::from(*f) - x).abs());
        // `max` would pass over NaN, which a value that nobody wrote is.
        let largest = errors().fold(0.0, |most, e| if e > most || e.is_nan() { e } else { most });
        Self { rms: mean(errors().map(|e| e * e).sum()) / size, largest: largest / size }
    }

    /// Asserts that this deviation, of our kernels, is within the factor of `llama`, or below
    /// `floor`, where differences cannot be told apart.
    fn check(self, llama: Self, floor: f64, case: &dyn std::fmt::Debug) {
        let within = |own: f64, llama: f64| own <= (MOST_ERROR_RATIO * llama).max(floor);
        assert!(
            within(self.rms, llama.rms) && within(self.largest, 1.5 * llama.largest),
            "{case:?}: {self:?}, llama.cpp's {llama:?}"
        );
    }
}
