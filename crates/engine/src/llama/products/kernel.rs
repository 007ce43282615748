//! One weight row times up to [`LANES`] activation rows.

use std::arch::x86_64::*;

use super::{ActivationBlock, LANES, WeightBlock};

/// Products of `row` with the first `count` of the activation rows in `lanes`, which holds for
/// each block of `row` the blocks of all [`LANES`] rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn products(
    row: &[WeightBlock],
    lanes: &[[ActivationBlock; LANES]],
    count: usize,
    into: &mut [f32; LANES],
) {
    assert_eq!(row.len(), lanes.len(), "weights and activations of the same length");
    let mut done = 0;
    while done < count {
        done += match count - done {
            16.. => sixteen(row, lanes, done, into),
            8.. => eight(row, lanes, done, into),
            4.. => four(row, lanes, done, into),
            2.. => two(row, lanes, done, into),
            _ => one(row, lanes, done, into),
        };
    }
}

/// The product of one block of weights with one of activations, in sixteen parts.
macro_rules! add_block {
    ($sum:expr, $weights:expr, $activations:expr) => {{
        let (weights, activations): (&Loaded, &ActivationBlock) = (&$weights, $activations);
        // SAFETY: 256 quants and 16 sums, aligned as the block is.
        let (quants, sums) = unsafe {
            let from = activations.quants.as_ptr().cast::<__m512i>();
            let load = |j: usize| _mm512_load_si512(from.add(j));
            ([load(0), load(1), load(2), load(3)], _mm512_load_ps(activations.sums.as_ptr()))
        };
        let zero = _mm512_setzero_si512();
        let part = |j: usize| {
            _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(zero, weights.quants[j], quants[j]))
        };
        let mut scaled = _mm512_mul_ps(part(0), weights.scales[0]);
        scaled = _mm512_fmadd_ps(part(1), weights.scales[1], scaled);
        scaled = _mm512_fmadd_ps(part(2), weights.scales[2], scaled);
        scaled = _mm512_fmadd_ps(part(3), weights.scales[3], scaled);
        let sum = _mm512_fmadd_ps(scaled, _mm512_set1_ps(activations.scale), $sum);
        $sum = _mm512_fnmadd_ps(weights.mins, sums, sum);
    }};
}

/// A function for a number of rows: the number must be known for the sums to stay in registers.
macro_rules! rows {
    ($name:ident, $count:literal, $($lane:literal)+) => {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
        fn $name(
            row: &[WeightBlock],
            lanes: &[[ActivationBlock; LANES]],
            from: usize,
            into: &mut [f32; LANES],
        ) -> usize {
            let mut sums = [_mm512_setzero_ps(); $count];
            for (weights, activations) in row.iter().zip(lanes) {
                let weights = Loaded::from(weights);
                let activations: &[ActivationBlock; $count] =
                    activations[from..].first_chunk().expect("as many rows as the kernel takes");
                $( add_block!(sums[$lane], weights, &activations[$lane]); )+
            }
            $( into[from + $lane] = _mm512_reduce_add_ps(sums[$lane]); )+
            $count
        }
    };
}

rows!(sixteen, 16, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
rows!(eight, 8, 0 1 2 3 4 5 6 7);
rows!(four, 4, 0 1 2 3);
rows!(two, 2, 0 1);
rows!(one, 1, 0);

/// A block of weights in registers.
struct Loaded {
    quants: [__m512i; 4],
    scales: [__m512; 4],
    mins: __m512,
}

impl Loaded {
    #[target_feature(enable = "avx512f")]
    fn from(block: &WeightBlock) -> Self {
        // SAFETY: 256 quants, 64 scales and 16 minima, aligned as the block is.
        unsafe {
            let quants = block.quants.as_ptr().cast::<__m512i>();
            let load = |j: usize| _mm512_load_si512(quants.add(j));
            let scale = |j: usize| _mm512_load_ps(block.scales.as_ptr().add(16 * j));
            Self {
                quants: [load(0), load(1), load(2), load(3)],
                scales: [scale(0), scale(1), scale(2), scale(3)],
                mins: _mm512_load_ps(block.mins.as_ptr()),
            }
        }
    }
}
