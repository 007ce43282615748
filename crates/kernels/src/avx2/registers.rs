//! Registers of eight lanes, rearranged and summed.

use std::arch::x86_64::*;

/// Transposes a square of 32-bit lanes: register `r` of the result has lane `r` of each register,
/// in order. For eight groups of 32 bytes, this brings bytes `4 r` to `4 r + 3` of all groups
/// together.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn turned(rows: [__m256i; 8]) -> [__m256i; 8] {
    let [a, b, c, d, e, f, g, h] = rows;
    // Four by four within the halves of the registers, for two times four rows.
    let (upper, lower) = (crossed([a, b, c, d]), crossed([e, f, g, h]));
    let mut columns = [_mm256_setzero_si256(); 8];
    for i in 0..4 {
        columns[i] = _mm256_permute2x128_si256::<0x20>(upper[i], lower[i]);
        columns[4 + i] = _mm256_permute2x128_si256::<0x31>(upper[i], lower[i]);
    }
    columns
}

/// Transposes squares of four 32-bit lanes, in each half of the registers.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn crossed([a, b, c, d]: [__m256i; 4]) -> [__m256i; 4] {
    let (ab_low, ab_high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    let (cd_low, cd_high) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
    [
        _mm256_unpacklo_epi64(ab_low, cd_low),
        _mm256_unpackhi_epi64(ab_low, cd_low),
        _mm256_unpacklo_epi64(ab_high, cd_high),
        _mm256_unpackhi_epi64(ab_high, cd_high),
    ]
}

/// Sums each register's lanes: lane `i` of the result is the sum of register `i`, added in the same
/// order for all.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn sum_each(sums: &[__m256; 8]) -> __m256 {
    // Lanes 0 + 2 and 1 + 3 of both halves, then all four; the halves at last.
    let pair = |a, b| _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    let four = |a, b, c, d| {
        let (one, other) = (_mm256_castps_pd(pair(a, b)), _mm256_castps_pd(pair(c, d)));
        let (low, high) = (_mm256_unpacklo_pd(one, other), _mm256_unpackhi_pd(one, other));
        _mm256_add_ps(_mm256_castpd_ps(low), _mm256_castpd_ps(high))
    };
    let [a, b, c, d, e, f, g, h] = *sums;
    let (upper, lower) = (four(a, b, c, d), four(e, f, g, h));
    let low = _mm256_permute2f128_ps::<0x20>(upper, lower);
    _mm256_add_ps(low, _mm256_permute2f128_ps::<0x31>(upper, lower))
}

/// Greatest lane, as unsigned integers.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn greatest(v: __m256i) -> u32 {
    let half = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
    let two = _mm_max_epu32(half, _mm_shuffle_epi32::<0b01_00_11_10>(half));
    let one = _mm_max_epu32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two));
    _mm_cvtsi128_si32(one) as u32
}
