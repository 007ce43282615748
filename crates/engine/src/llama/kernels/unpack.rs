//! From ggml's block formats to registers.
//!
//! The formats are those of ggml-common.h: Q4_K and Q5_K have eight groups of 32 with 6-bit
//! scales and minima, Q6_K sixteen groups of 16 with 8-bit scales around 32. Q8_0 has blocks of
//! 32 with a scale each, of which eight are taken together here.

use std::arch::x86_64::*;

use super::sys;

/// A block format of weights that these kernels read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WeightFormat {
    Q4K,
    Q5K,
    Q6K,
    Q8_0,
}

impl WeightFormat {
    /// The format of ggml's type `kind`, if the kernels read it.
    pub(super) fn of(kind: sys::ggml_type) -> Option<Self> {
        match kind {
            sys::GGML_TYPE_Q4_K => Some(WeightFormat::Q4K),
            sys::GGML_TYPE_Q5_K => Some(WeightFormat::Q5K),
            sys::GGML_TYPE_Q6_K => Some(WeightFormat::Q6K),
            sys::GGML_TYPE_Q8_0 => Some(WeightFormat::Q8_0),
            _ => None,
        }
    }

    /// Bytes of [`super::BLOCK`] weights.
    pub(super) fn block_bytes(self) -> usize {
        match self {
            WeightFormat::Q4K => 144,
            WeightFormat::Q5K => 176,
            WeightFormat::Q6K => 210,
            WeightFormat::Q8_0 => 8 * self.unit_bytes(),
        }
    }

    /// Bytes of one block as ggml counts them.
    pub(super) fn unit_bytes(self) -> usize {
        match self {
            WeightFormat::Q8_0 => 34,
            kind => kind.block_bytes(),
        }
    }
}

/// A block of 256 weights in registers: weight = scale * quant - min.
pub(super) struct UnpackedBlock {
    /// 256 quants, unsigned bytes, in the order of [`turned`].
    pub(super) quants: [__m512i; 4],
    /// A scale for every sixteen weights; each lane has that of the quants in the same lane.
    pub(super) scales: __m512,
    /// A minimum for every sixteen, in their natural order.
    pub(super) mins: __m512,
}

impl UnpackedBlock {
    /// From quants in their natural order and a scale for every sixteen of them.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new(quants: [__m512i; 4], scales: __m512, mins: __m512) -> Self {
        let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        Self { quants: turned(quants), scales: _mm512_permutexvar_ps(order, scales), mins }
    }
}

/// 256 bytes in another order, in which each 32-bit lane of all four registers has bytes of the
/// same sixteen: so their products are summed as integers before the scale is applied. Lane
/// `4 m + i` has those of sixteen number `4 i + m`.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn turned([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    let (ab_low, ab_high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let (cd_low, cd_high) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    [
        _mm512_unpacklo_epi64(ab_low, cd_low),
        _mm512_unpackhi_epi64(ab_low, cd_low),
        _mm512_unpacklo_epi64(ab_high, cd_high),
        _mm512_unpackhi_epi64(ab_high, cd_high),
    ]
}

#[inline]
#[target_feature(enable = "f16c")]
fn half(low: u8, high: u8) -> f32 {
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(u16::from_le_bytes([low, high])))))
}

#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
fn load32<const N: usize>(bytes: &[u8; N], at: usize) -> __m256i {
    assert!(at + 32 <= N);
    // SAFETY: the array has these 32 bytes.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().add(at).cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn both(first: __m256i, second: __m256i) -> __m512i {
    _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1)
}

/// Eight scales and minima of 32 weights each, packed in 6 bits: each twice.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512vl,f16c")]
fn scales_and_mins<const N: usize>(block: &[u8; N]) -> (__m512, __m512) {
    let word =
        |at: usize| u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    // Twelve bytes: the first four scales and minima have 6 bits in a byte each, whose upper two
    // bits are those of the last four; the lower four bits of these share bytes.
    let (low, mid, high) = (word(4), word(8), word(12));
    let join = |first: u32, last: u32| ((u64::from(last) << 32) | u64::from(first)) as i64;
    let upper = |word: u32| ((word >> 6) & 0x0303_0303) << 4;
    let scales = join(low & 0x3f3f_3f3f, (high & 0x0f0f_0f0f) | upper(low));
    let mins = join(mid & 0x3f3f_3f3f, ((high >> 4) & 0x0f0f_0f0f) | upper(mid));
    let floats = |bytes: i64, unit: f32| {
        let floats = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes)));
        let floats = _mm256_mul_ps(floats, _mm256_set1_ps(unit));
        _mm512_permutexvar_ps(twos(), _mm512_castps256_ps512(floats))
    };
    let scales = floats(scales, half(block[0], block[1]));
    let mins = floats(mins, half(block[2], block[3]));
    (scales, mins)
}

/// Each of eight lanes twice.
#[inline]
#[target_feature(enable = "avx512f")]
fn twos() -> __m512i {
    _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
pub(super) fn q4_k(block: &[u8; 144]) -> UnpackedBlock {
    let (scales, mins) = scales_and_mins(block);
    let nibble = _mm256_set1_epi8(0x0f);
    let pair = |j: usize| {
        let packed = load32(block, 16 + 32 * j);
        let high = _mm256_and_si256(_mm256_srli_epi16(packed, 4), nibble);
        both(_mm256_and_si256(packed, nibble), high)
    };
    UnpackedBlock::new([pair(0), pair(1), pair(2), pair(3)], scales, mins)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
pub(super) fn q5_k(block: &[u8; 176]) -> UnpackedBlock {
    let (scales, mins) = scales_and_mins(block);
    let (nibble, sixteen) = (_mm256_set1_epi8(0x0f), _mm256_set1_epi8(16));
    // Bit `n` of byte `i` is the fifth bit of weight `i` in group `n`.
    let fifth = load32(block, 16);
    let bit = |n: usize| {
        let wanted = _mm256_set1_epi8((1u8 << n) as i8);
        _mm256_maskz_mov_epi8(_mm256_test_epi8_mask(fifth, wanted), sixteen)
    };
    let pair = |j: usize| {
        let packed = load32(block, 48 + 32 * j);
        let high = _mm256_and_si256(_mm256_srli_epi16(packed, 4), nibble);
        let low = _mm256_or_si256(_mm256_and_si256(packed, nibble), bit(2 * j));
        both(low, _mm256_or_si256(high, bit(2 * j + 1)))
    };
    UnpackedBlock::new([pair(0), pair(1), pair(2), pair(3)], scales, mins)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
pub(super) fn q6_k(block: &[u8; 210]) -> UnpackedBlock {
    // The block: 128 bytes of low nibbles, 64 of upper bit pairs, 16 scales, the unit.
    let (nibble, pair) = (_mm256_set1_epi8(0x0f), _mm256_set1_epi8(0x30));
    let low = |v: __m256i| _mm256_and_si256(v, nibble);
    let high = |v: __m256i| _mm256_and_si256(_mm256_srli_epi16(v, 4), nibble);
    let with = |v: __m256i, upper: __m256i| _mm256_or_si256(v, _mm256_and_si256(upper, pair));
    let quants = |n: usize| {
        let (a, b) = (load32(block, 64 * n), load32(block, 64 * n + 32));
        let upper = load32(block, 128 + 32 * n);
        let first = with(low(a), _mm256_slli_epi16(upper, 4));
        let second = with(low(b), _mm256_slli_epi16(upper, 2));
        let fourth = with(high(b), _mm256_srli_epi16(upper, 2));
        [both(first, second), both(with(high(a), upper), fourth)]
    };
    let ([a, b], [c, d]) = (quants(0), quants(1));
    let unit = _mm512_set1_ps(half(block[208], block[209]));
    // SAFETY: sixteen bytes of scales.
    let bytes = unsafe { _mm_loadu_si128(block.as_ptr().add(192).cast()) };
    let scales = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)), unit);
    // The quants 0 to 63 mean -32 to 31.
    let mins = _mm512_mul_ps(scales, _mm512_set1_ps(32.0));
    UnpackedBlock::new([a, b, c, d], scales, mins)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
pub(super) fn q8_0(block: &[u8; 272]) -> UnpackedBlock {
    let sign = _mm512_set1_epi8(-128);
    // Signed bytes become unsigned ones around 128.
    let pair = |j: usize| {
        let quants = both(load32(block, 68 * j + 2), load32(block, 68 * j + 36));
        _mm512_xor_si512(quants, sign)
    };
    let word = |i: usize| i16::from_le_bytes([block[34 * i], block[34 * i + 1]]);
    let units =
        _mm_setr_epi16(word(0), word(1), word(2), word(3), word(4), word(5), word(6), word(7));
    let scales = _mm512_castps256_ps512(_mm256_cvtph_ps(units));
    let scales = _mm512_permutexvar_ps(twos(), scales);
    let mins = _mm512_mul_ps(scales, _mm512_set1_ps(128.0));
    UnpackedBlock::new([pair(0), pair(1), pair(2), pair(3)], scales, mins)
}
