//! Scales of products of bytes: by group of weights and by block, in an order that is the same for
//! all ways to compute the products.

use std::arch::x86_64::*;

use super::tile::Tile;
use super::{ActivationBlock, GroupFactors};

/// Conversion of a format's weights to numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Zero {
    /// Weights with minima: `scale * quant - min`.
    Minima,
    /// The same with a minimum for every sixteen.
    HalfMinima,
    /// Weights around a constant, which is included in the initial sums.
    Offset,
    /// Like `Offset`, with a scale for each group of activations.
    FineOffset,
    /// Weights with a minimum for every 32: `scale * quant + min`, with a scale for each group of
    /// activations.
    FineMinima,
    /// Like `Offset`, with scales that are integers times the block's unit. Sums of a block are
    /// integers too, hence the same in any order; registers of floats hold their bits.
    WholeOffset,
}

pub(super) const MINIMA: u8 = Zero::Minima as u8;
pub(super) const HALF_MINIMA: u8 = Zero::HalfMinima as u8;
pub(super) const OFFSET: u8 = Zero::Offset as u8;
pub(super) const FINE_OFFSET: u8 = Zero::FineOffset as u8;
pub(super) const FINE_MINIMA: u8 = Zero::FineMinima as u8;
pub(super) const WHOLE_OFFSET: u8 = Zero::WholeOffset as u8;

/// Returns true if products begin with the corrections for a constant that is added to weights.
pub(super) const fn is_offset(zero: u8) -> bool {
    zero != MINIMA && zero != HALF_MINIMA && zero != FINE_MINIMA
}

/// Returns true if each group of activations has its own scale.
pub(super) const fn is_fine(zero: u8) -> bool {
    zero == FINE_OFFSET || zero == FINE_MINIMA
}

/// Adds to `sum` the products of a group, whose quants are `WORDS` words, with its activations.
/// `weights` are the scale and the minimum of its weights.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
pub(super) fn products_with<const Z: u8, const WORDS: usize>(
    sum: __m512,
    quants: &[__m512i; WORDS],
    weights: [__m512; 2],
    activations: &ActivationBlock,
    group: usize,
) -> __m512 {
    let mut products = match const { is_offset(Z) } {
        true => _mm512_set1_epi32(activations.sums[group]),
        false => _mm512_setzero_si512(),
    };
    // An array, not a slice of it: that loop would be unrolled too late for good code.
    let words = &activations.words().as_chunks::<WORDS>().0[group];
    for (quants, word) in quants.iter().zip(words) {
        products = _mm512_dpbusd_epi32(products, *quants, _mm512_set1_epi32(*word));
    }
    group_with::<Z>(sum, products, weights, activations.factors(group))
}

/// Adds the products of a group, multiplied with its scales, to the sum of a block. `weights` are
/// the scale and the minimum of its weights.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn group_with<const Z: u8>(
    sum: __m512,
    products: __m512i,
    [mut scale, min]: [__m512; 2],
    factors: GroupFactors,
) -> __m512 {
    if Z == WHOLE_OFFSET {
        let scaled = _mm512_mullo_epi32(products, _mm512_castps_si512(scale));
        return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(sum), scaled));
    }
    if const { is_fine(Z) } {
        scale = _mm512_mul_ps(scale, _mm512_set1_ps(factors.scale));
    }
    let sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products), scale, sum);
    if Z != FINE_MINIMA {
        return sum;
    }
    _mm512_fmadd_ps(min, _mm512_set1_ps(factors.sum), sum)
}

/// Adds the sum of a block, multiplied with the remaining scales, to a total.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
pub(super) fn total_with<const Z: u8>(
    total: __m512,
    sum: __m512,
    tile: &Tile,
    activations: &ActivationBlock,
) -> __m512 {
    if const { is_fine(Z) } {
        return _mm512_add_ps(total, sum);
    }
    let sum = match Z {
        MINIMA => tile.less_minima::<4>(sum, activations),
        HALF_MINIMA => tile.less_minima::<8>(sum, activations),
        WHOLE_OFFSET => whole_sum(_mm512_castps_si512(sum), tile.unit),
        _ => sum,
    };
    _mm512_fmadd_ps(sum, _mm512_set1_ps(activations.scales[0]), total)
}

/// Returns a block's sum of integers, multiplied with the unit of its scales.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn whole_sum(sum: __m512i, unit: __m512) -> __m512 {
    _mm512_mul_ps(_mm512_cvtepi32_ps(sum), unit)
}
