//! Whole operations of a graph, by our kernels and by llama.cpp's, against double precision.
//!
//! Both run on ggml's own threads, ours as a "custom" operation: the hook, which is for the whole
//! process, stays out of it, and llama.cpp's side is llama.cpp's alone. Ours has to come as close
//! to the exact result as llama.cpp's does on the same numbers, so that no bound is a guess.

mod arena;
mod attention;
mod experts;
mod products;
mod speed;

use super::{Isa, sys};

/// How much larger than llama.cpp's error ours may be: both round the same numbers to the same
/// grids, but break ties and add in another order. Measured: 0.9 to 1.02 where activations are
/// rounded.
const MOST_ERROR_RATIO: f64 = 1.15;

/// The instruction sets that this processor has. Those that it lacks are named: their kernels were
/// not tried.
fn isas() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_here_for_a_test())
}

/// Numbers between -1 and 1 that repeat in every run.
fn noise(seed: u32, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// How far results are from the exact ones.
#[derive(Debug, Clone, Copy)]
struct Deviation {
    /// Root of the mean square, relative to that of the exact values.
    rms: f64,
    /// The largest, relative to the same.
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

    /// Asserts that this, our own, is within the factor of `llama`, or below `floor`: what no one
    /// can tell apart.
    fn check(self, llama: Self, floor: f64, case: &dyn std::fmt::Debug) {
        let within = |own: f64, llama: f64| own <= (MOST_ERROR_RATIO * llama).max(floor);
        assert!(
            within(self.rms, llama.rms) && within(self.largest, 1.5 * llama.largest),
            "{case:?}: {self:?}, llama.cpp's {llama:?}"
        );
    }
}
