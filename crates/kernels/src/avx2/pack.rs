//! Rounds a row of activations to 8 bits.

use std::arch::x86_64::*;

use super::registers::{crossed, greatest, turned};
use super::{Arrangement, GROUPS, GroupedActivations};
use crate::BLOCK;

/// Rounds `values` to 8 bits with a scale for every 32. With `halves`, sums are of sixteen values,
/// otherwise of all 32. A value that is not finite makes its group's scale NaN, and with it every
/// product of the row: a broken sequence stays visible.
#[target_feature(enable = "avx2,fma")]
pub(super) fn pack(
    values: &[f32; BLOCK],
    halves: bool,
    arrangement: Arrangement,
    into: &mut GroupedActivations,
) {
    let mut quants = [_mm256_setzero_si256(); GROUPS];
    let (groups, _) = values.as_chunks();
    let order = match arrangement {
        Arrangement::Turned => [0, 1, 2, 3, 4, 5, 6, 7],
        Arrangement::Crossed(order) => order,
    };
    for (g, group) in order.into_iter().enumerate() {
        let (scale, rounded) = round(&groups[group]);
        quants[g] = bytes(rounded);
        into.scales[g] = scale;
        let [a, b, c, d] = rounded;
        let (first, second) = (sum(_mm256_add_epi32(a, b)), sum(_mm256_add_epi32(c, d)));
        // What a sum is multiplied with is finite, so that NaN stays NaN.
        let sums = if halves { [first, second] } else { [first + second, 0] };
        (into.sums[0][g], into.sums[1][g]) = (scale * sums[0] as f32, scale * sums[1] as f32);
    }
    let quants = match arrangement {
        Arrangement::Turned => turned(quants),
        Arrangement::Crossed(_) => {
            let [a, b, c, d, e, f, g, h] = quants;
            let ([a, b, c, d], [e, f, g, h]) = (crossed([a, b, c, d]), crossed([e, f, g, h]));
            [a, b, c, d, e, f, g, h]
        }
    };
    for (quants, to) in quants.iter().zip(into.quants.as_chunks_mut::<32>().0) {
        // SAFETY: `to` is an array of 32 bytes, the width of the register.
        unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), *quants) };
    }
}

/// Returns a group's scale and its quants as integers: NaN and zeros if it has numbers that are not
/// finite.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn round(group: &[f32; 32]) -> (f32, [__m256i; 4]) {
    let mut values = [_mm256_setzero_ps(); 4];
    // As bits, magnitudes order like integers, and NaN is above infinity is above all numbers.
    let magnitude = _mm256_set1_epi32(0x7fff_ffff);
    let mut most = _mm256_setzero_si256();
    for (value, eight) in values.iter_mut().zip(group.as_chunks::<8>().0) {
        // SAFETY: `eight` is an array of eight floats.
        *value = unsafe { _mm256_loadu_ps(eight.as_ptr()) };
        most = _mm256_max_epu32(most, _mm256_and_si256(_mm256_castps_si256(*value), magnitude));
    }
    let most = f32::from_bits(greatest(most));
    if !most.is_finite() {
        return (f32::NAN, [_mm256_setzero_si256(); 4]);
    }
    // 127 on both sides, as in llama.cpp's formats: -128 would have no counterpart, and two
    // products with unsigned weights would not fit 16 bits.
    let scale = most / 127.0;
    // Below the smallest normal number the inverse would overflow: such a group is zero.
    let inverse = if scale >= f32::MIN_POSITIVE { 1.0 / scale } else { 0.0 };
    let inverse = _mm256_set1_ps(inverse);
    let mut rounded = [_mm256_setzero_si256(); 4];
    for (rounded, value) in rounded.iter_mut().zip(values) {
        *rounded = _mm256_cvtps_epi32(_mm256_mul_ps(value, inverse));
    }
    (scale, rounded)
}

/// Converts 32 integers to bytes, in order.
#[inline]
#[target_feature(enable = "avx2")]
fn bytes([a, b, c, d]: [__m256i; 4]) -> __m256i {
    // Packing works within halves of registers: the fours come out as 0 2 4 6 1 3 5 7.
    let packed = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
}

/// Sum of the lanes.
#[inline]
#[target_feature(enable = "avx2")]
fn sum(v: __m256i) -> i32 {
    let half = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
    let two = _mm_add_epi32(half, _mm_shuffle_epi32::<0b01_00_11_10>(half));
    _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two)))
}
