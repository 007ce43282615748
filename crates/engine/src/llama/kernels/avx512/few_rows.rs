//! Multiplies sixteen weight rows with so few activation rows that unpacking is most of the work:
//! quants go from memory through registers into their products. The results are those of
//! [`super::micro_kernel::multiply`], computed in the same order, bit for bit.

use std::arch::x86_64::*;

use super::unpack::{
    CacheLevel, Prefetch, RowBlocks, Tile, WeightRows, high, low, scales_and_mins,
};
use super::{ActivationBlock, LANES};
use crate::llama::kernels::weight_format::WeightFormat;

/// Number of prefetches while a block is multiplied. More often was slower.
const CALLS: usize = 4;

/// Adds to `totals` the products of sixteen rows of weights with all rows of `activations`, and
/// returns true, if there are few enough rows and the format is Q4_K. `tile` is used for scales.
///
/// # Safety
/// As for [`super::micro_kernel::multiply`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
pub(super) unsafe fn multiply(
    format: WeightFormat,
    weights: WeightRows,
    activations: &[ActivationBlock],
    tile: &mut Tile,
    totals: &mut [__m512],
) -> bool {
    macro_rules! q4_k {
        ($totals:expr) => {
            multiply_q4_k(weights, activations.as_chunks().0, tile, $totals)
        };
    }
    // SAFETY: passed on from the caller; `multiply_q4_k` requires only that the weights are
    // readable.
    unsafe {
        match (format, totals) {
            (WeightFormat::Q4K, [a]) => q4_k!([a]),
            (WeightFormat::Q4K, [a, b]) => q4_k!([a, b]),
            (WeightFormat::Q4K, [a, b, c]) => q4_k!([a, b, c]),
            (WeightFormat::Q4K, [a, b, c, d]) => q4_k!([a, b, c, d]),
            _ => return false,
        }
    }
    true
}

/// Returns the same block of the rows, and the memory to prefetch meanwhile, with the lines of each
/// call.
fn block_of<const BYTES: usize>(
    weights: &WeightRows,
    block: usize,
) -> (RowBlocks, Prefetch, usize) {
    let start = weights.start.wrapping_add(block * BYTES);
    let bytes = LANES * BYTES;
    let next = weights.next.wrapping_add(block * bytes);
    let ahead = Prefetch::new(next, bytes, CacheLevel::Second);
    let lines = ahead.share(CALLS);
    (RowBlocks { start, row_bytes: weights.row_bytes }, ahead, lines)
}

/// # Safety
/// The sixteen weight rows are readable.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
unsafe fn multiply_q4_k<const R: usize>(
    weights: WeightRows,
    activations: &[[ActivationBlock; R]],
    tile: &mut Tile,
    totals: [&mut __m512; R],
) {
    let mut results = [_mm512_setzero_ps(); R];
    for (result, total) in results.iter_mut().zip(&totals) {
        *result = **total;
    }
    for (i, activations) in activations.iter().enumerate() {
        let (rows, mut ahead, lines) = block_of::<144>(&weights, i);
        // SAFETY: by the caller the sixteen rows are readable, and a block of Q4_K has the 16 bytes
        // of scales and minima.
        unsafe { scales_and_mins(rows, tile) }
        let mut sums = [_mm512_setzero_ps(); R];
        for half in 0..2 {
            // SAFETY: a block has 144 bytes.
            let packed = unsafe { rows.columns(16 + 64 * half) };
            for (pair, packed) in packed.as_chunks::<8>().0.iter().enumerate() {
                let group = 4 * half + 2 * pair;
                let mut products = [[_mm512_setzero_si512(); 2]; R];
                ahead.lines(lines);
                for (word, packed) in (8 * group..).zip(packed) {
                    let quants = [low(*packed), high(*packed)];
                    for (products, activations) in products.iter_mut().zip(activations) {
                        add_products(products, quants, activations, word);
                    }
                }
                add_groups(&mut sums, &products, &tile.scales[group..]);
            }
        }
        for ((result, sum), activations) in results.iter_mut().zip(sums).zip(activations) {
            let sum = tile.less_minima(sum, activations);
            *result = _mm512_fmadd_ps(sum, _mm512_set1_ps(activations.scales[0]), *result);
        }
    }
    for (total, result) in totals.into_iter().zip(results) {
        *total = result;
    }
}

/// Adds the products of words of weights that are eight words apart, from `word` on.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn add_products<const N: usize>(
    products: &mut [__m512i; N],
    quants: [__m512i; N],
    activations: &ActivationBlock,
    word: usize,
) {
    for (j, (products, quants)) in products.iter_mut().zip(quants).enumerate() {
        let four = _mm512_set1_epi32(activations.words()[word + 8 * j]);
        *products = _mm512_dpbusd_epi32(*products, quants, four);
    }
}

/// Adds the scaled groups of each row.
#[inline]
#[target_feature(enable = "avx512f")]
fn add_groups<const R: usize, const N: usize>(
    sums: &mut [__m512; R],
    products: &[[__m512i; N]; R],
    scales: &[__m512],
) {
    for (sum, products) in sums.iter_mut().zip(products) {
        for (products, scale) in products.iter().zip(scales) {
            *sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(*products), *scale, *sum);
        }
    }
}
