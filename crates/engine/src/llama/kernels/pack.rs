//! Rounding a row of activations to 8 bits.

use std::arch::x86_64::*;

use super::unpack::turned;
use super::{ActivationBlock, BLOCK, GROUPS};

/// Rounds `values` to 8 bits with one scale. Values that are not finite make the scale NaN, and
/// with it every product of the row: a broken sequence stays visible.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn pack(values: &[f32; BLOCK], into: &mut ActivationBlock) {
    let (groups, _) = values.as_chunks::<16>();
    let load = |group: &[f32; 16]| {
        // SAFETY: sixteen floats.
        unsafe { _mm512_loadu_ps(group.as_ptr()) }
    };
    // As bits, magnitudes order like integers, and NaN is above infinity is above all numbers.
    let magnitude = _mm512_set1_epi32(0x7fff_ffff);
    let bits = groups.iter().fold(_mm512_setzero_si512(), |most, group| {
        _mm512_max_epu32(most, _mm512_and_si512(_mm512_castps_si512(load(group)), magnitude))
    });
    let most = f32::from_bits(_mm512_reduce_max_epu32(bits));
    let finite = most.is_finite();
    // 127 on both sides, as in llama.cpp's Q8_K: -128 would have no counterpart.
    let scale = most / 127.0;
    // Below the smallest normal number the inverse would overflow: such a block is zero.
    let inverse = if finite && scale >= f32::MIN_POSITIVE { 1.0 / scale } else { 0.0 };
    let inverse = _mm512_set1_ps(inverse);
    let mut bytes = [_mm_setzero_si128(); GROUPS];
    for (i, group) in groups.iter().enumerate() {
        // NaN times zero is NaN; it must not become an integer.
        let scaled = _mm512_mul_ps(load(group), inverse);
        let rounded = _mm512_cvtps_epi32(scaled);
        let rounded = if finite { rounded } else { _mm512_setzero_si512() };
        bytes[i] = _mm512_cvtsepi32_epi8(rounded);
        into.sums[i] = scale * _mm512_reduce_add_epi32(rounded) as f32;
    }
    let mut natural = [_mm512_setzero_si512(); 4];
    for (natural, bytes) in natural.iter_mut().zip(bytes.as_chunks::<4>().0) {
        // SAFETY: 64 bytes.
        *natural = unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) };
    }
    for (j, quants) in turned(natural).iter().enumerate() {
        // SAFETY: 64 of the block's bytes.
        unsafe { _mm512_storeu_si512(into.quants.as_mut_ptr().add(64 * j).cast(), *quants) };
    }
    into.scale = if finite { scale } else { f32::NAN };
    if !finite {
        into.sums = [f32::NAN; GROUPS];
    }
}
