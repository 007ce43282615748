//! Multiplies sixteen weight rows with so few activation rows that unpacking is most of the work:
//! quants go from memory through registers into their products. The results are those of
//! [`super::micro_kernel::multiply`], computed in the same order, bit for bit.

use std::arch::x86_64::*;

use super::ActivationBlock;
use super::grid_products::{self, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs};
use super::scaling::{FINE_MINIMA, HALF_MINIMA, OFFSET, group_with, is_offset, total_with};
use super::unpack::{
    FINE_UNITS, MinUnit, PackedQ2K, PackedQ3K, PackedSixteens, Q4_1_WORDS, Q5_1_WORDS, Tile,
    UnitWords, WeightRows, high, low, scales_and_mins,
};
use crate::weight_format::WeightFormat;

/// Number of prefetches while a block is multiplied. More often was slower.
const CALLS: usize = 4;

/// Adds to `totals` the products of sixteen rows of weights with all rows of `activations`, and
/// returns true, if there are few enough rows: up to four of Q4_K, Q4_1, Q5_1 or a format with a
/// grid, one of Q2_K or Q3_K. `tile` is used for scales.
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
    macro_rules! grid {
        ($format:ty, $bytes:literal, $activations:expr, $totals:expr) => {
            grid_products::multiply::<$format, $bytes, _>(weights, $activations, $totals)
        };
    }
    macro_rules! product {
        ($totals:expr) => {{
            let (activations, totals) = (activations.as_chunks().0, $totals);
            match format {
                WeightFormat::Q4K => multiply_q4_k(weights, activations, tile, totals),
                WeightFormat::Q4_1 => multiply_units::<Q4_1_WORDS, _>(weights, activations, totals),
                WeightFormat::Q5_1 => multiply_units::<Q5_1_WORDS, _>(weights, activations, totals),
                WeightFormat::Iq2Xxs => grid!(Iq2Xxs, 66, activations, totals),
                WeightFormat::Iq2Xs => grid!(Iq2Xs, 74, activations, totals),
                WeightFormat::Iq2S => grid!(Iq2S, 82, activations, totals),
                WeightFormat::Iq3Xxs => grid!(Iq3Xxs, 98, activations, totals),
                WeightFormat::Iq3S => grid!(Iq3S, 110, activations, totals),
                _ => return false,
            }
        }};
    }
    // SAFETY: passed on from the caller; the functions require only that the weights are readable.
    unsafe {
        match totals {
            [a] if format == WeightFormat::Q2K => {
                multiply_sixteens::<PackedQ2K, HALF_MINIMA>(weights, activations, tile, a);
            }
            [a] if format == WeightFormat::Q3K => {
                multiply_sixteens::<PackedQ3K, OFFSET>(weights, activations, tile, a);
            }
            [a] => product!([a]),
            [a, b] => product!([a, b]),
            [a, b, c] => product!([a, b, c]),
            [a, b, c, d] => product!([a, b, c, d]),
            _ => return false,
        }
    }
    true
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
        let (rows, mut ahead, lines) = weights.block(i, 144, CALLS);
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
            let sum = tile.less_minima::<4>(sum, activations);
            *result = _mm512_fmadd_ps(sum, _mm512_set1_ps(activations.scales[0]), *result);
        }
    }
    for (total, result) in totals.into_iter().zip(results) {
        *total = result;
    }
}

/// Multiplies blocks with a scale for every sixteen weights with one row of activations; `Z` is the
/// number of the format's [`super::scaling::Zero`]. With two rows and more this was not faster than
/// unpacking into memory.
///
/// # Safety
/// The sixteen weight rows are readable.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
unsafe fn multiply_sixteens<P: PackedSixteens, const Z: u8>(
    weights: WeightRows,
    activations: &[ActivationBlock],
    tile: &mut Tile,
    total: &mut __m512,
) {
    for (i, activations) in activations.iter().enumerate() {
        let (rows, mut ahead, lines) = weights.block(i, P::BYTES, CALLS);
        ahead.lines(lines);
        // SAFETY: by the caller the sixteen rows are readable; this function has AVX-512.
        let packed = unsafe { P::read(rows, tile) };
        let mut sum = _mm512_setzero_ps();
        ahead.lines(lines);
        for half in 0..2 {
            sum = half_with::<P, Z>(sum, &packed, half, tile, activations);
            ahead.lines(lines);
        }
        *total = total_with::<Z>(*total, sum, tile, activations);
    }
}

/// Adds to `sum` the scaled products of half `half` of a block: eight groups of sixteen weights.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn half_with<P: PackedSixteens, const Z: u8>(
    mut sum: __m512,
    packed: &P,
    half: usize,
    tile: &Tile,
    activations: &ActivationBlock,
) -> __m512 {
    let mut products = [_mm512_setzero_si512(); 8];
    if const { is_offset(Z) } {
        for (products, sum) in products.iter_mut().zip(&activations.sums[8 * half..]) {
            *products = _mm512_set1_epi32(*sum);
        }
    }
    for (side, words) in [0..4, 4..8].into_iter().enumerate() {
        for word in words {
            // SAFETY: this function has AVX-512.
            let quants = unsafe { packed.words(half, word) };
            for (i, quants) in quants.into_iter().enumerate() {
                let four = _mm512_set1_epi32(activations.words()[32 * half + 8 * i + word]);
                let products = &mut products[2 * i + side];
                *products = _mm512_dpbusd_epi32(*products, quants, four);
            }
        }
    }
    for (group, products) in (8 * half..).zip(products) {
        sum = group_with::<Z>(sum, products, tile.group(group), activations.factors(group));
    }
    sum
}

/// Multiplies blocks of `WORDS` words, of which the last eight may be incomplete.
///
/// # Safety
/// The sixteen weight rows are readable.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
unsafe fn multiply_units<const WORDS: usize, const R: usize>(
    weights: WeightRows,
    activations: &[[ActivationBlock; R]],
    mut totals: [&mut __m512; R],
) {
    let unit_bytes = const { 4 * WORDS };
    let mut room = UnitWords::uninit();
    for (i, activations) in activations.iter().enumerate() {
        let (rows, mut ahead, lines) = weights.block(i, const { FINE_UNITS * 4 * WORDS }, CALLS);
        let is_last = i + 1 == weights.blocks;
        let units = if is_last { weights.last_bytes / unit_bytes } else { FINE_UNITS };
        // SAFETY: by the caller the sixteen rows are readable, the last block up to its end.
        let words = unsafe { rows.unit_words::<WORDS>(units, &mut room) };
        let mut sums = [_mm512_setzero_ps(); R];
        for (group, words) in words.iter().enumerate() {
            if group % (FINE_UNITS / CALLS) == 0 {
                ahead.lines(lines);
            }
            let unit = MinUnit::of(words);
            for (sum, activations) in sums.iter_mut().zip(activations) {
                let mut products = _mm512_setzero_si512();
                for (word, quants) in activations.words()[8 * group..].iter().zip(unit.quants) {
                    products = _mm512_dpbusd_epi32(products, quants, _mm512_set1_epi32(*word));
                }
                let (weights, factors) = ([unit.scale, unit.min], activations.factors(group));
                *sum = group_with::<FINE_MINIMA>(*sum, products, weights, factors);
            }
        }
        for (total, sum) in totals.iter_mut().zip(sums) {
            **total = _mm512_add_ps(**total, sum);
        }
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
