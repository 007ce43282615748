//! Rounds a row of activations to 8 bits.

use std::arch::x86_64::*;

use super::{ActivationBlock, GROUPS};
use crate::BLOCK;
use crate::weight_format::WeightFormat;

/// Groups of a block with a scale of their own, used for weights with a scale for every 32.
/// llama.cpp rounds activations for these in the same way: one large value among 32 spoils less
/// than one among 256.
const FINE_GROUPS: usize = 8;

/// Rounds `values` to 8 bits for products with weights of `format`. Values that are not finite make
/// the scale NaN, and with it every product of the row: a broken sequence stays visible.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn pack(values: &[f32; BLOCK], format: WeightFormat, into: &mut ActivationBlock) {
    let (groups, _) = values.as_chunks::<16>();
    let mut loaded = [_mm512_setzero_ps(); GROUPS];
    for (loaded, group) in loaded.iter_mut().zip(groups) {
        // SAFETY: `group` is an array of sixteen floats.
        *loaded = unsafe { _mm512_loadu_ps(group.as_ptr()) };
    }
    let mut bytes = [_mm_setzero_si128(); GROUPS];
    let mut round = |first: usize, count: usize| {
        let (scale, inverse) = scale_of(&loaded[first..first + count]);
        for i in first..first + count {
            bytes[i] = rounded(loaded[i], inverse);
        }
        scale
    };
    if format.is_fine() {
        for i in 0..FINE_GROUPS {
            into.scales[i] = round(2 * i, 2);
        }
    } else {
        into.scales = [round(0, GROUPS); FINE_GROUPS];
    }
    // SAFETY: `bytes` is 16 registers of 16 bytes and `into.quants` has 256 bytes, so both have the
    // size of four registers.
    let quants = unsafe {
        let from = bytes.as_ptr().cast::<__m512i>();
        let at = |index| from.add(index).read_unaligned();
        let quants = [at(0), at(1), at(2), at(3)];
        into.quants.as_mut_ptr().cast::<[__m512i; 4]>().write_unaligned(quants);
        quants
    };
    into.sums = sums_for(format, sums_of_sixteens(&quants), &into.scales);
}

/// Returns the scale of some registers' values, and its inverse; NaN and zero if the values cannot
/// be rounded.
#[inline]
#[target_feature(enable = "avx512f")]
fn scale_of(values: &[__m512]) -> (f32, __m512) {
    // As bits, magnitudes order like integers, and NaN is above infinity is above all numbers.
    let magnitude = _mm512_set1_epi32(0x7fff_ffff);
    let mut bits = _mm512_setzero_si512();
    for values in values {
        bits = _mm512_max_epu32(bits, _mm512_and_si512(_mm512_castps_si512(*values), magnitude));
    }
    let most = f32::from_bits(_mm512_reduce_max_epu32(bits));
    if !most.is_finite() {
        return (f32::NAN, _mm512_setzero_ps());
    }
    // 127 on both sides, as in llama.cpp's Q8_K: -128 would have no counterpart.
    let scale = most / 127.0;
    // Below the smallest normal number the inverse would overflow: such a block is zero.
    let inverse = if scale >= f32::MIN_POSITIVE { 1.0 / scale } else { 0.0 };
    (scale, _mm512_set1_ps(inverse))
}

/// Rounds to sixteen bytes. If a value is not finite, the inverse is 0 and the bytes are arbitrary:
/// the scale is NaN.
#[inline]
#[target_feature(enable = "avx512f")]
fn rounded(values: __m512, inverse: __m512) -> __m128i {
    _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(values, inverse)))
}

/// Sums every sixteen quants.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn sums_of_sixteens(quants: &[__m512i; 4]) -> [i32; GROUPS] {
    let ones = _mm512_set1_epi8(1);
    let mut fours = [_mm512_setzero_si512(); 4];
    for (fours, quants) in fours.iter_mut().zip(quants) {
        *fours = _mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, *quants);
    }
    let [a, b, c, d] = fours;
    // Every 128 bits hold the four sums of a sixteen: added across, register by register.
    let pairs = |one: __m512i, other: __m512i| {
        _mm512_add_epi32(_mm512_unpacklo_epi32(one, other), _mm512_unpackhi_epi32(one, other))
    };
    let (ab, cd) = (pairs(a, b), pairs(c, d));
    let sums = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    // Lane 4 i + r has the sum of sixteen number i of register r.
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    let mut natural = [0; GROUPS];
    // SAFETY: `natural` is an array of sixteen 32-bit integers.
    unsafe {
        _mm512_storeu_si512(natural.as_mut_ptr().cast(), _mm512_permutexvar_epi32(order, sums));
    }
    natural
}

/// Returns the sums in the form for products with weights of `format` (see
/// [`ActivationBlock::sums`]).
#[inline]
fn sums_for(
    format: WeightFormat,
    sixteens: [i32; GROUPS],
    scales: &[f32; FINE_GROUPS],
) -> [i32; GROUPS] {
    let mut sums = [0; GROUPS];
    let of_32 = |group: usize| sixteens[2 * group] + sixteens[2 * group + 1];
    match format {
        WeightFormat::Q4K | WeightFormat::Q5K => {
            // In the order of the minima's bytes: the even ones of four, then the odd ones.
            for (sums, [low, high]) in sums.iter_mut().zip([[0, 2], [1, 3], [4, 6], [5, 7]]) {
                *sums = (of_32(low) & 0xffff) | (of_32(high) << 16);
            }
        }
        WeightFormat::Q2K => {
            // In the same order, of sixteen weights each.
            for (pair, sums) in sums[..GROUPS / 2].iter_mut().enumerate() {
                let low = 4 * (pair / 2) + pair % 2;
                *sums = (sixteens[low] & 0xffff) | (sixteens[low + 2] << 16);
            }
        }
        // The quants 0 to 7 mean -4 to 3.
        WeightFormat::Q3K => sums = sixteens.map(|sum| -4 * sum),
        // The quants 0 to 63 mean -32 to 31.
        WeightFormat::Q6K => sums = sixteens.map(|sum| -32 * sum),
        WeightFormat::Q5_0 => offset_by_32(&mut sums, -16, of_32),
        WeightFormat::Q4_0 => offset_by_32(&mut sums, -8, of_32),
        // The sums of the activations, which are multiplied with the minima.
        WeightFormat::Q5_1 | WeightFormat::Q4_1 => {
            for (group, (sum, scale)) in sums.iter_mut().zip(scales).enumerate() {
                *sum = (scale * of_32(group) as f32).to_bits().cast_signed();
            }
        }
        // Signed bytes, or tables of them, became unsigned around 128.
        WeightFormat::Q8_0
        | WeightFormat::Iq4Nl
        | WeightFormat::Iq4Xs
        | WeightFormat::Iq2Xxs
        | WeightFormat::Iq3Xxs
        | WeightFormat::Iq3S
        | WeightFormat::Mxfp4 => offset_by_32(&mut sums, -128, of_32),
        WeightFormat::Iq2Xs | WeightFormat::Iq2S => sums = sixteens.map(|sum| -128 * sum),
    }
    sums
}

/// Sets the initial sums of groups of 32, if `offset` is to be added to each weight.
#[inline]
fn offset_by_32(sums: &mut [i32; GROUPS], offset: i32, of_32: impl Fn(usize) -> i32) {
    for (group, sum) in sums[..FINE_GROUPS].iter_mut().enumerate() {
        *sum = offset * of_32(group);
    }
}
