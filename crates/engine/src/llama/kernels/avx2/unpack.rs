//! From ggml's block formats to registers; [`crate::llama::kernels::weight_format`] describes the
//! formats.

use std::arch::x86_64::*;

use super::registers::turned;
use crate::llama::kernels::weight_format::{IQ4_VALUES, MXFP4_VALUES};

/// A block of 256 weights: weight = scale * quant - min.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct UnpackedBlock {
    /// 256 quants in the order of [`turned`]: unsigned bytes, but signed ones for Q8_0 and IQ4
    /// without VNNI.
    pub(super) quants: [__m256i; 8],
    /// The whole part of the scales of first and second halves of groups, twice in each lane as 16
    /// bits: without VNNI, where sums of two products have 16 bits and are multiplied with it.
    pub(super) factors: [__m256i; 2],
    /// The scales of first and second halves of groups, or of whole groups and none; without
    /// [`UnpackedBlock::factors`]' part.
    pub(super) scales: [__m256; 2],
    /// Minima likewise.
    pub(super) mins: [__m256; 2],
}

impl UnpackedBlock {
    /// All zero.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn zero() -> Self {
        let (integers, floats) = (_mm256_setzero_si256(), _mm256_setzero_ps());
        Self {
            quants: [integers; 8],
            factors: [integers; 2],
            scales: [floats; 2],
            mins: [floats; 2],
        }
    }

    /// With quants in their natural order, and scales `unit * whole`, in the form that VNNI, or
    /// its absence, wants.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn new<const VNNI: bool>(
        quants: [__m256i; 8],
        unit: __m256,
        whole: [__m256i; 2],
        mins: [__m256; 2],
    ) -> Self {
        let mut block = Self { quants: turned(quants), mins, ..Self::zero() };
        for (i, whole) in whole.into_iter().enumerate() {
            if VNNI {
                block.scales[i] = _mm256_mul_ps(_mm256_cvtepi32_ps(whole), unit);
            } else {
                let low = _mm256_and_si256(whole, _mm256_set1_epi32(0xffff));
                block.factors[i] = _mm256_or_si256(low, _mm256_slli_epi32::<16>(whole));
                block.scales[i] = unit;
            }
        }
        block
    }
}

/// The bytes, with zeros behind them: a block of which there is only a part.
pub(super) fn filled<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut whole = [0; N];
    whole[..bytes.len()].copy_from_slice(bytes);
    whole
}

#[inline]
#[target_feature(enable = "f16c")]
fn half(low: u8, high: u8) -> f32 {
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(u16::from_le_bytes([low, high])))))
}

#[inline]
#[target_feature(enable = "avx2")]
fn load<const N: usize>(bytes: &[u8; N], at: usize) -> __m256i {
    assert!(at + 32 <= N);
    // SAFETY: the array has these 32 bytes.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().add(at).cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn low(v: __m256i) -> __m256i {
    _mm256_and_si256(v, _mm256_set1_epi8(0x0f))
}

#[inline]
#[target_feature(enable = "avx2")]
fn high(v: __m256i) -> __m256i {
    low(_mm256_srli_epi16::<4>(v))
}

/// Eight scales and minima of 32 weights each, packed in 6 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn scales_and_mins<const N: usize>(block: &[u8; N]) -> (__m256i, __m256i) {
    let word =
        |at: usize| u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    // Twelve bytes: the first four scales and minima have 6 bits in a byte each, whose upper two
    // bits are those of the last four; the lower four bits of these share bytes.
    let (first, mid, last) = (word(4), word(8), word(12));
    let join = |first: u32, last: u32| ((u64::from(last) << 32) | u64::from(first)) as i64;
    let upper = |word: u32| ((word >> 6) & 0x0303_0303) << 4;
    let scales = join(first & 0x3f3f_3f3f, (last & 0x0f0f_0f0f) | upper(first));
    let mins = join(mid & 0x3f3f_3f3f, ((last >> 4) & 0x0f0f_0f0f) | upper(mid));
    let wide = |bytes: i64| _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes));
    (wide(scales), wide(mins))
}

/// A block of Q4_K or Q5_K, given its quants.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn with_mins<const VNNI: bool, const N: usize>(
    block: &[u8; N],
    quants: [__m256i; 8],
) -> UnpackedBlock {
    let (scales, mins) = scales_and_mins(block);
    let min_unit = _mm256_set1_ps(half(block[2], block[3]));
    let mins = _mm256_mul_ps(_mm256_cvtepi32_ps(mins), min_unit);
    let (unit, none) = (_mm256_set1_ps(half(block[0], block[1])), _mm256_setzero_si256());
    UnpackedBlock::new::<VNNI>(quants, unit, [scales, none], [mins, _mm256_setzero_ps()])
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn q4_k<const VNNI: bool>(block: &[u8; 144]) -> UnpackedBlock {
    let mut quants = [_mm256_setzero_si256(); 8];
    for (j, pair) in quants.as_chunks_mut().0.iter_mut().enumerate() {
        let packed = load(block, 16 + 32 * j);
        *pair = [low(packed), high(packed)];
    }
    with_mins::<VNNI, 144>(block, quants)
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn q5_k<const VNNI: bool>(block: &[u8; 176]) -> UnpackedBlock {
    // Bit `n` of byte `i` is the fifth bit of weight `i` in group `n`.
    let fifth = load(block, 16);
    let sixteen = _mm256_set1_epi8(16);
    let bit = |n: usize| {
        let wanted = _mm256_set1_epi8((1u8 << n) as i8);
        let is_set = _mm256_cmpeq_epi8(_mm256_and_si256(fifth, wanted), wanted);
        _mm256_and_si256(is_set, sixteen)
    };
    let mut quants = [_mm256_setzero_si256(); 8];
    for (j, pair) in quants.as_chunks_mut().0.iter_mut().enumerate() {
        let packed = load(block, 48 + 32 * j);
        *pair = [
            _mm256_or_si256(low(packed), bit(2 * j)),
            _mm256_or_si256(high(packed), bit(2 * j + 1)),
        ];
    }
    with_mins::<VNNI, 176>(block, quants)
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn q6_k<const VNNI: bool>(block: &[u8; 210]) -> UnpackedBlock {
    // The block: 128 bytes of low nibbles, 64 of upper bit pairs, 16 scales, the unit.
    let pair = _mm256_set1_epi8(0x30);
    let with = |v: __m256i, upper: __m256i| _mm256_or_si256(v, _mm256_and_si256(upper, pair));
    let mut quants = [_mm256_setzero_si256(); 8];
    for (n, four) in quants.as_chunks_mut().0.iter_mut().enumerate() {
        let (a, b) = (load(block, 64 * n), load(block, 64 * n + 32));
        let upper = load(block, 128 + 32 * n);
        *four = [
            with(low(a), _mm256_slli_epi16::<4>(upper)),
            with(low(b), _mm256_slli_epi16::<2>(upper)),
            with(high(a), upper),
            with(high(b), _mm256_srli_epi16::<2>(upper)),
        ];
    }
    // SAFETY: sixteen bytes of scales.
    let scales = unsafe { _mm_loadu_si128(block.as_ptr().add(192).cast()) };
    // Those of first halves, then those of second halves.
    let order = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    let scales = _mm_shuffle_epi8(scales, order);
    let whole =
        [_mm256_cvtepi8_epi32(scales), _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(scales, scales))];
    let unit = half(block[208], block[209]);
    // The quants 0 to 63 mean -32 to 31.
    let offset = _mm256_set1_ps(32.0 * unit);
    let [first, second] = whole;
    let mins = [
        _mm256_mul_ps(_mm256_cvtepi32_ps(first), offset),
        _mm256_mul_ps(_mm256_cvtepi32_ps(second), offset),
    ];
    UnpackedBlock::new::<VNNI>(quants, _mm256_set1_ps(unit), whole, mins)
}

/// The two bytes in front of each of eight blocks of `BYTES` bytes, as 16-bit floats.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn units<const BYTES: usize, const N: usize>(block: &[u8; N]) -> __m256 {
    let word = |i: usize| i16::from_le_bytes([block[BYTES * i], block[BYTES * i + 1]]);
    let units =
        _mm_setr_epi16(word(0), word(1), word(2), word(3), word(4), word(5), word(6), word(7));
    _mm256_cvtph_ps(units)
}

/// Signed bytes with a scale for every 32. VNNI multiplies unsigned bytes: there they become
/// unsigned around 128.
#[inline]
#[target_feature(enable = "avx2")]
fn signed<const VNNI: bool>(quants: [__m256i; 8], scales: __m256) -> UnpackedBlock {
    let sign = _mm256_set1_epi8(if VNNI { -128 } else { 0 });
    let mins = _mm256_mul_ps(scales, _mm256_set1_ps(128.0));
    let mut block = UnpackedBlock { quants: turned(quants), ..UnpackedBlock::zero() };
    for quants in &mut block.quants {
        *quants = _mm256_xor_si256(*quants, sign);
    }
    (block.scales[0], block.mins[0]) = (scales, mins);
    block
}

/// Unsigned bytes around `zero`, with a scale for every 32.
#[inline]
#[target_feature(enable = "avx2")]
fn around(zero: f32, quants: [__m256i; 8], scales: __m256) -> UnpackedBlock {
    let mut block = UnpackedBlock { quants: turned(quants), ..UnpackedBlock::zero() };
    // The whole part of each scale is 1.
    block.factors[0] = _mm256_set1_epi16(1);
    (block.scales[0], block.mins[0]) = (scales, _mm256_mul_ps(scales, _mm256_set1_ps(zero)));
    block
}

/// Eight blocks of 32 nibbles, of `BYTES` bytes each, whose last sixteen are the nibbles: the lower
/// ones of all, then the upper ones.
#[inline]
#[target_feature(enable = "avx2")]
fn nibbles<const BYTES: usize, const N: usize>(block: &[u8; N]) -> [__m256i; 8] {
    let mut quants = [_mm256_setzero_si256(); 8];
    for (block, quants) in block.as_chunks::<BYTES>().0.iter().zip(&mut quants) {
        // SAFETY: the last sixteen bytes of a block.
        let packed = unsafe { _mm_loadu_si128(block.as_ptr().add(BYTES - 16).cast()) };
        *quants = low(_mm256_set_m128i(_mm_srli_epi16::<4>(packed), packed));
    }
    quants
}

/// What the nibbles mean.
#[inline]
#[target_feature(enable = "avx2")]
fn looked_up(values: [i8; 16], mut nibbles: [__m256i; 8]) -> [__m256i; 8] {
    // SAFETY: sixteen bytes.
    let values = unsafe { _mm_loadu_si128(values.as_ptr().cast()) };
    for nibbles in &mut nibbles {
        *nibbles = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), *nibbles);
    }
    nibbles
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn q8_0<const VNNI: bool>(block: &[u8; 272]) -> UnpackedBlock {
    let mut quants = [_mm256_setzero_si256(); 8];
    for (g, quants) in quants.iter_mut().enumerate() {
        *quants = load(block, 34 * g + 2);
    }
    signed::<VNNI>(quants, units::<34, 272>(block))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn q5_0<const VNNI: bool>(block: &[u8; 176]) -> UnpackedBlock {
    // Bit `n` is the fifth bit of weight `n`: a byte of bits for eight bytes of weights.
    let bytes =
        _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
    let wanted = _mm256_set1_epi64x(0x8040_2010_0804_0201u64 as i64);
    let sixteen = _mm256_set1_epi8(16);
    let mut quants = nibbles::<22, 176>(block);
    for (block, quants) in block.as_chunks::<22>().0.iter().zip(&mut quants) {
        let fifth = i32::from_le_bytes([block[2], block[3], block[4], block[5]]);
        let spread = _mm256_shuffle_epi8(_mm256_set1_epi32(fifth), bytes);
        let is_set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, wanted), wanted);
        *quants = _mm256_or_si256(*quants, _mm256_and_si256(is_set, sixteen));
    }
    around(16.0, quants, units::<22, 176>(block))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn q4_0<const VNNI: bool>(block: &[u8; 144]) -> UnpackedBlock {
    around(8.0, nibbles::<18, 144>(block), units::<18, 144>(block))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn iq4_nl<const VNNI: bool>(block: &[u8; 144]) -> UnpackedBlock {
    let quants = looked_up(IQ4_VALUES, nibbles::<18, 144>(block));
    signed::<VNNI>(quants, units::<18, 144>(block))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn mxfp4<const VNNI: bool>(block: &[u8; 136]) -> UnpackedBlock {
    const ZERO: i8 = 12;
    let quants = looked_up(MXFP4_VALUES.map(|value| value + ZERO), nibbles::<17, 136>(block));
    // Half of two to the powers of the exponents, which are those of 32-bit floats.
    let half_power = |exponent: u8| match exponent {
        0 | 1 => f32::from_bits(0x0020_0000 << exponent),
        _ => f32::from_bits(u32::from(exponent - 1) << 23),
    };
    let mut scales = [0.0; 8];
    for (block, scale) in block.as_chunks::<17>().0.iter().zip(&mut scales) {
        *scale = half_power(block[0]);
    }
    // SAFETY: eight floats.
    around(f32::from(ZERO), quants, unsafe { _mm256_loadu_ps(scales.as_ptr()) })
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn iq4_xs<const VNNI: bool>(block: &[u8; 136]) -> UnpackedBlock {
    // The block: the unit, two upper bits of each scale, four lower ones, 128 bytes of nibbles.
    let (_, packed) = block.split_at(8);
    let packed: &[u8; 128] = packed.try_into().expect("what is left of 136");
    let quants = looked_up(IQ4_VALUES, nibbles::<16, 128>(packed));
    let upper = u32::from(u16::from_le_bytes([block[2], block[3]]));
    let lower = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
    let wide = |bits: u32| _mm256_set1_epi32(bits as i32);
    let places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    let (twice, four) = (_mm256_slli_epi32::<1>(places), _mm256_slli_epi32::<2>(places));
    let upper = _mm256_and_si256(_mm256_srlv_epi32(wide(upper), twice), wide(3));
    let lower = _mm256_and_si256(_mm256_srlv_epi32(wide(lower), four), wide(15));
    let scales = _mm256_or_si256(lower, _mm256_slli_epi32::<4>(upper));
    let scales = _mm256_cvtepi32_ps(_mm256_sub_epi32(scales, wide(32)));
    let unit = _mm256_set1_ps(half(block[0], block[1]));
    signed::<VNNI>(quants, _mm256_mul_ps(scales, unit))
}
