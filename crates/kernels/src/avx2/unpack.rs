//! Unpacks ggml's block formats to registers; [`crate::weight_format`] describes
//! the formats.

use std::arch::x86_64::*;

use super::GROUPS;
use super::registers::{crossed, turned};
use crate::weight_format::{IQ4_VALUES, MXFP4_VALUES};

/// A block of 256 weights: weight = scale * quant - min.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct UnpackedBlock {
    /// 256 quants in the order of [`turned`]: unsigned bytes, but without VNNI signed ones for
    /// Q8_0 and all formats that begin with IQ.
    pub(super) quants: [__m256i; 8],
    /// Integer part of the scales of first and second halves of groups, twice in each lane as 16
    /// bits. Used without VNNI, where sums of two products have 16 bits and are multiplied with it.
    pub(super) factors: [__m256i; 2],
    /// Scales of first and second halves of groups, or of whole groups and zeros; without the part
    /// in [`UnpackedBlock::factors`].
    pub(super) scales: [__m256; 2],
    /// Minima, in the same way.
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

    /// Creates a block from quants in natural order and scales `unit * whole`, in the form for VNNI
    /// or for its absence.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn new<const VNNI: bool>(
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

/// Pads the bytes of an incomplete block with zeros.
pub(super) fn filled<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut whole = [0; N];
    whole[..bytes.len()].copy_from_slice(bytes);
    whole
}

#[inline]
#[target_feature(enable = "f16c")]
pub(super) fn half(low: u8, high: u8) -> f32 {
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(u16::from_le_bytes([low, high])))))
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load<const N: usize>(bytes: &[u8; N], at: usize) -> __m256i {
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

/// Returns eight scales, then eight minima, of 32 weights each as bytes, in both halves of a
/// register. They are packed in 6 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn packed_scales_and_mins<const N: usize>(block: &[u8; N]) -> __m256i {
    assert!(4 + 16 <= N);
    // SAFETY: the array has these 16 bytes, of which they are the first twelve.
    let packed = unsafe { _mm_loadu_si128(block.as_ptr().add(4).cast()) };
    let packed = _mm256_broadcastsi128_si256(packed);
    // The first four scales and minima have 6 bits in a byte each, whose upper two bits are those
    // of the last four; the lower four bits of these share bytes. Lane 0: scales, lane 1: minima.
    let last = _mm256_srlv_epi32(
        _mm256_shuffle_epi32::<0b10_10_10_10>(packed),
        _mm256_setr_epi32(0, 4, 0, 4, 0, 4, 0, 4),
    );
    let upper = _mm256_and_si256(_mm256_srli_epi32::<2>(packed), _mm256_set1_epi8(0x30));
    let first = _mm256_and_si256(packed, _mm256_set1_epi8(0x3f));
    _mm256_unpacklo_epi32(first, _mm256_or_si256(low(last), upper))
}

/// Same, as 32-bit integers.
#[inline]
#[target_feature(enable = "avx2")]
fn scales_and_mins<const N: usize>(block: &[u8; N]) -> (__m256i, __m256i) {
    let both = _mm256_castsi256_si128(packed_scales_and_mins(block));
    (_mm256_cvtepu8_epi32(both), _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(both, both)))
}

/// Creates a block of Q4_K or Q5_K from its quants.
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
    // SAFETY: sixteen bytes from 192 on, within the block of 210.
    let scales = unsafe { _mm_loadu_si128(block.as_ptr().add(192).cast()) };
    // The quants 0 to 63 mean -32 to 31.
    around_halves::<VNNI>(32.0, quants, scales, half(block[208], block[209]))
}

/// Sorts a signed byte for every sixteen weights into those of first halves of groups, and those of
/// second halves.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn by_halves(sixteen: __m128i) -> [__m256i; 2] {
    let order = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    let sorted = _mm_shuffle_epi8(sixteen, order);
    [_mm256_cvtepi8_epi32(sorted), _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(sorted, sorted))]
}

/// Multiplies the numbers of first and of second halves with `unit`.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn times([first, second]: [__m256i; 2], unit: __m256) -> [__m256; 2] {
    [
        _mm256_mul_ps(_mm256_cvtepi32_ps(first), unit),
        _mm256_mul_ps(_mm256_cvtepi32_ps(second), unit),
    ]
}

/// Creates a block of unsigned bytes around `zero`, in natural order, with scales `unit * scale`
/// for every sixteen.
#[inline]
#[target_feature(enable = "avx2")]
fn around_halves<const VNNI: bool>(
    zero: f32,
    quants: [__m256i; 8],
    scales: __m128i,
    unit: f32,
) -> UnpackedBlock {
    let whole = by_halves(scales);
    let mins = times(whole, _mm256_set1_ps(zero * unit));
    UnpackedBlock::new::<VNNI>(quants, _mm256_set1_ps(unit), whole, mins)
}

/// Returns the weights of 2 bits in the 64 bytes from byte `at` on, in natural order: a byte has
/// those of four groups.
#[inline]
#[target_feature(enable = "avx2")]
fn bit_pairs<const N: usize>(block: &[u8; N], at: usize) -> [__m256i; 8] {
    let pair = _mm256_set1_epi8(3);
    let mut quants = [_mm256_setzero_si256(); 8];
    for (half, four) in quants.as_chunks_mut().0.iter_mut().enumerate() {
        let packed = load(block, at + 32 * half);
        *four = [
            _mm256_and_si256(packed, pair),
            _mm256_and_si256(_mm256_srli_epi16::<2>(packed), pair),
            _mm256_and_si256(_mm256_srli_epi16::<4>(packed), pair),
            _mm256_and_si256(_mm256_srli_epi16::<6>(packed), pair),
        ];
    }
    quants
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn q2_k<const VNNI: bool>(block: &[u8; 84]) -> UnpackedBlock {
    // The block: sixteen scales and minima of 4 bits, 64 bytes of bit pairs, both units.
    // SAFETY: sixteen bytes of 84.
    let both = unsafe { _mm_loadu_si128(block.as_ptr().cast()) };
    let nibble = _mm_set1_epi8(0x0f);
    let scales = _mm_and_si128(both, nibble);
    let mins = by_halves(_mm_and_si128(_mm_srli_epi16::<4>(both), nibble));
    let unit = _mm256_set1_ps(half(block[80], block[81]));
    let min_unit = _mm256_set1_ps(half(block[82], block[83]));
    UnpackedBlock::new::<VNNI>(bit_pairs(block, 16), unit, by_halves(scales), times(mins, min_unit))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn q3_k<const VNNI: bool>(block: &[u8; 110]) -> UnpackedBlock {
    // The block: 32 bytes of third bits, 64 of bit pairs, twelve of scales, the unit.
    let mut quants = bit_pairs(block, 32);
    // Bit `n` of byte `i` is the third bit of weight `i` in group `n`.
    let (third, four) = (load(block, 0), _mm256_set1_epi8(4));
    for (group, quants) in quants.iter_mut().enumerate() {
        let wanted = _mm256_set1_epi8((1u8 << group) as i8);
        let is_set = _mm256_cmpeq_epi8(_mm256_and_si256(third, wanted), wanted);
        *quants = _mm256_or_si256(*quants, _mm256_and_si256(is_set, four));
    }
    // The quants 0 to 7 mean -4 to 3.
    around_halves::<VNNI>(4.0, quants, q3_k_scales(block), half(block[108], block[109]))
}

/// Returns the sixteen scales of Q3_K, packed in 6 bits: four bits in the first eight bytes, low
/// nibbles before high ones, and two in the last four.
#[inline]
#[target_feature(enable = "avx2")]
fn q3_k_scales(block: &[u8; 110]) -> __m128i {
    let word =
        |at: usize| u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    let (first, second, upper) = (word(96), word(100), word(104));
    let low = |word: u32| word & 0x0f0f_0f0f;
    let with =
        |lower: u32, group: u32| (lower | (((upper >> (2 * group)) & 0x0303_0303) << 4)) as i32;
    let packed = _mm_setr_epi32(
        with(low(first), 0),
        with(low(second), 1),
        with(low(first >> 4), 2),
        with(low(second >> 4), 3),
    );
    _mm_sub_epi8(packed, _mm_set1_epi8(32))
}

/// Order of groups in [`q4_k_crossed`] and [`q5_k_crossed`]: two groups share bytes.
pub(super) const CROSSED_PAIRS: [usize; GROUPS] = [0, 2, 4, 6, 1, 3, 5, 7];
/// Order of groups in [`q6_k_crossed`].
pub(super) const CROSSED_FOURS: [usize; GROUPS] = [0, 1, 4, 5, 2, 3, 6, 7];

/// Loads four registers from byte `at` on, [`crossed`].
#[inline]
#[target_feature(enable = "avx2")]
fn loaded_crossed<const N: usize>(block: &[u8; N], at: usize) -> [__m256i; 4] {
    crossed([load(block, at), load(block, at + 32), load(block, at + 64), load(block, at + 96)])
}

/// [`q4_k`] as [`super::Arrangement::Crossed`], in the order of [`CROSSED_PAIRS`].
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn q4_k_crossed<const VNNI: bool>(block: &[u8; 144]) -> UnpackedBlock {
    let [a, b, c, d] = loaded_crossed(block, 16);
    let quants = [low(a), low(b), low(c), low(d), high(a), high(b), high(c), high(d)];
    with_crossed_mins::<VNNI, 144>(block, quants)
}

/// [`q5_k`] in the same way.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn q5_k_crossed<const VNNI: bool>(block: &[u8; 176]) -> UnpackedBlock {
    let [a, b, c, d] = loaded_crossed(block, 48);
    let mut quants = [low(a), low(b), low(c), low(d), high(a), high(b), high(c), high(d)];
    // Bit `n` of byte `i` is the fifth bit of weight `i` in group `n`. Each lane gets those of its
    // two groups as its lowest bits.
    let fifth = load(block, 16);
    let words = [
        _mm256_shuffle_epi32::<0x00>(fifth),
        _mm256_shuffle_epi32::<0x55>(fifth),
        _mm256_shuffle_epi32::<0xaa>(fifth),
        _mm256_shuffle_epi32::<0xff>(fifth),
    ];
    let (groups, sixteen) = (_mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6), _mm256_set1_epi8(16));
    for i in 0..4 {
        let bits = _mm256_srlv_epi32(words[i], groups);
        let even = _mm256_and_si256(_mm256_slli_epi32::<4>(bits), sixteen);
        let odd = _mm256_and_si256(_mm256_slli_epi32::<3>(bits), sixteen);
        quants[i] = _mm256_or_si256(quants[i], even);
        quants[4 + i] = _mm256_or_si256(quants[4 + i], odd);
    }
    with_crossed_mins::<VNNI, 176>(block, quants)
}

/// Returns the unit of scales and that of minima of Q4_K and Q5_K, the first two numbers.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn units_of_both<const N: usize>(block: &[u8; N]) -> (__m256, __m256) {
    let word = i32::from_le_bytes([block[0], block[1], block[2], block[3]]);
    let both = _mm256_cvtph_ps(_mm_set1_epi32(word));
    (_mm256_moveldup_ps(both), _mm256_movehdup_ps(both))
}

/// Adds the scales and minima of Q4_K or Q5_K in the order of [`CROSSED_PAIRS`].
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn with_crossed_mins<const VNNI: bool, const N: usize>(
    block: &[u8; N],
    quants: [__m256i; 8],
) -> UnpackedBlock {
    let both = packed_scales_and_mins(block);
    let (unit, min_unit) = units_of_both(block);
    // A byte of each group, even ones first, in the lowest byte of each lane.
    let no = -1;
    let min_order = _mm256_setr_epi8(
        8, no, no, no, 10, no, no, no, 12, no, no, no, 14, no, no, no, //
        9, no, no, no, 11, no, no, no, 13, no, no, no, 15, no, no, no,
    );
    let mins = _mm256_cvtepi32_ps(_mm256_shuffle_epi8(both, min_order));
    let mut block = UnpackedBlock { quants, ..UnpackedBlock::zero() };
    block.mins[0] = _mm256_mul_ps(mins, min_unit);
    let scale_order = _mm256_sub_epi8(min_order, _mm256_set1_epi32(8));
    if VNNI {
        let scales = _mm256_cvtepi32_ps(_mm256_shuffle_epi8(both, scale_order));
        block.scales[0] = _mm256_mul_ps(scales, unit);
    } else {
        // In both halves of each lane.
        let twice = _mm256_setr_epi8(
            0, no, 0, no, 2, no, 2, no, 4, no, 4, no, 6, no, 6, no, //
            1, no, 1, no, 3, no, 3, no, 5, no, 5, no, 7, no, 7, no,
        );
        block.factors[0] = _mm256_shuffle_epi8(both, twice);
        block.scales[0] = unit;
    }
    block
}

/// [`q6_k`] as [`super::Arrangement::Crossed`], in the order of [`CROSSED_FOURS`]: first halves of
/// groups are in the lower halves of registers. The factors, integer parts of scales, are those of
/// both halves of the first four groups, then of the others.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn q6_k_crossed<const VNNI: bool>(block: &[u8; 210]) -> UnpackedBlock {
    let [a, b, c, d] = loaded_crossed(block, 0);
    let mut quants = [low(a), low(b), low(c), low(d), high(a), high(b), high(c), high(d)];
    // A byte of these has two bits of each of four groups.
    let (one, other) = (load(block, 128), load(block, 160));
    let (ab, cd) = (_mm256_unpacklo_epi32(one, other), _mm256_unpackhi_epi32(one, other));
    let words = [
        _mm256_shuffle_epi32::<0b01_01_00_00>(ab),
        _mm256_shuffle_epi32::<0b11_11_10_10>(ab),
        _mm256_shuffle_epi32::<0b01_01_00_00>(cd),
        _mm256_shuffle_epi32::<0b11_11_10_10>(cd),
    ];
    let (groups, pair) = (_mm256_setr_epi32(0, 2, 0, 2, 0, 2, 0, 2), _mm256_set1_epi8(0x30));
    for i in 0..4 {
        let bits = _mm256_srlv_epi32(words[i], groups);
        let early = _mm256_and_si256(_mm256_slli_epi32::<4>(bits), pair);
        quants[i] = _mm256_or_si256(quants[i], early);
        quants[4 + i] = _mm256_or_si256(quants[4 + i], _mm256_and_si256(bits, pair));
    }
    with_crossed_halves::<VNNI>(block, quants)
}

/// Adds the scales of Q6_K in the order of [`CROSSED_FOURS`].
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn with_crossed_halves<const VNNI: bool>(block: &[u8; 210], quants: [__m256i; 8]) -> UnpackedBlock {
    // SAFETY: sixteen bytes of scales, of the first and second half of each group.
    let scales = unsafe { _mm_loadu_si128(block.as_ptr().add(192).cast()) };
    let order = _mm_setr_epi8(0, 2, 8, 10, 4, 6, 12, 14, 1, 3, 9, 11, 5, 7, 13, 15);
    let ordered = _mm_shuffle_epi8(scales, order);
    let unit = half(block[208], block[209]);
    // The quants 0 to 63 mean -32 to 31.
    let offset = _mm256_set1_ps(32.0 * unit);
    let unit = _mm256_set1_ps(unit);
    let first = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(ordered));
    let second = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(ordered, ordered)));
    let mut block = UnpackedBlock { quants, ..UnpackedBlock::zero() };
    block.mins = [_mm256_mul_ps(first, offset), _mm256_mul_ps(second, offset)];
    if VNNI {
        block.scales = [_mm256_mul_ps(first, unit), _mm256_mul_ps(second, unit)];
    } else {
        // The upper bytes of 16 bits, for each half of a lane.
        let both = _mm256_broadcastsi128_si256(scales);
        let early = _mm256_setr_epi8(
            0, 0, 0, 0, 2, 2, 2, 2, 8, 8, 8, 8, 10, 10, 10, 10, //
            1, 1, 1, 1, 3, 3, 3, 3, 9, 9, 9, 9, 11, 11, 11, 11,
        );
        let late = _mm256_add_epi8(early, _mm256_set1_epi8(4));
        block.factors = [
            _mm256_srai_epi16::<8>(_mm256_shuffle_epi8(both, early)),
            _mm256_srai_epi16::<8>(_mm256_shuffle_epi8(both, late)),
        ];
        block.scales[0] = unit;
    }
    block
}

/// Returns the two bytes from byte `at` on of each of eight blocks of `BYTES` bytes, as 16-bit
/// floats.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn units<const BYTES: usize, const N: usize>(block: &[u8; N], at: usize) -> __m256 {
    let word = |i: usize| i16::from_le_bytes([block[BYTES * i + at], block[BYTES * i + at + 1]]);
    let units =
        _mm_setr_epi16(word(0), word(1), word(2), word(3), word(4), word(5), word(6), word(7));
    _mm256_cvtph_ps(units)
}

/// Creates a block of signed bytes, turned, with a scale for every 32. VNNI multiplies unsigned
/// bytes, so there they become unsigned around 128.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn signed<const VNNI: bool>(quants: [__m256i; 8], scales: __m256) -> UnpackedBlock {
    let sign = _mm256_set1_epi8(if VNNI { -128 } else { 0 });
    let mins = _mm256_mul_ps(scales, _mm256_set1_ps(128.0));
    let mut block = UnpackedBlock { quants, ..UnpackedBlock::zero() };
    for quants in &mut block.quants {
        *quants = _mm256_xor_si256(*quants, sign);
    }
    (block.scales[0], block.mins[0]) = (scales, mins);
    block
}

/// Creates a block of unsigned bytes around `zero`, turned, with a scale for every 32.
#[inline]
#[target_feature(enable = "avx2")]
fn around(zero: f32, quants: [__m256i; 8], scales: __m256) -> UnpackedBlock {
    above(_mm256_mul_ps(scales, _mm256_set1_ps(-zero)), quants, scales)
}

/// Creates a block of unsigned bytes, turned, with a scale and a lowest weight for every 32.
#[inline]
#[target_feature(enable = "avx2")]
fn above(lowest: __m256, quants: [__m256i; 8], scales: __m256) -> UnpackedBlock {
    let mut block = UnpackedBlock { quants, ..UnpackedBlock::zero() };
    // The whole part of each scale is 1.
    block.factors[0] = _mm256_set1_epi16(1);
    block.scales[0] = scales;
    block.mins[0] = _mm256_sub_ps(_mm256_setzero_ps(), lowest);
    block
}

/// Loads sixteen bytes of each of eight blocks of `BYTES` bytes, from byte `at` on: register `r`
/// has their bytes `4 r` to `4 r + 3`.
#[inline]
#[target_feature(enable = "avx2")]
fn turned_sixteen<const BYTES: usize, const N: usize>(block: &[u8; N], at: usize) -> [__m256i; 4] {
    let (blocks, _) = block.as_chunks::<BYTES>();
    assert!(at + 16 <= BYTES);
    // SAFETY: a block has these bytes.
    let sixteen = |i: usize| unsafe { _mm_loadu_si128(blocks[i].as_ptr().add(at).cast()) };
    let mut pairs = [_mm256_setzero_si256(); 4];
    for (i, pair) in pairs.iter_mut().enumerate() {
        *pair = _mm256_set_m128i(sixteen(i + 4), sixteen(i));
    }
    crossed(pairs)
}

/// Loads eight blocks of 32 nibbles, of `BYTES` bytes each, whose last sixteen are the nibbles: the
/// lower ones of all, then the upper ones; turned. Packed nibbles need only half as many registers
/// to turn.
#[inline]
#[target_feature(enable = "avx2")]
fn nibbles<const BYTES: usize, const N: usize>(block: &[u8; N]) -> [__m256i; 8] {
    let [a, b, c, d] = turned_sixteen::<BYTES, N>(block, const { BYTES - 16 });
    [low(a), low(b), low(c), low(d), high(a), high(b), high(c), high(d)]
}

/// Looks up the values of the nibbles.
#[inline]
#[target_feature(enable = "avx2")]
fn looked_up(values: [i8; 16], mut nibbles: [__m256i; 8]) -> [__m256i; 8] {
    // SAFETY: `values` is an array of sixteen bytes.
    let values = unsafe { _mm_loadu_si128(values.as_ptr().cast()) };
    for nibbles in &mut nibbles {
        *nibbles = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), *nibbles);
    }
    nibbles
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn q8_0<const VNNI: bool>(block: &[u8; 272]) -> UnpackedBlock {
    let [a, b, c, d] = turned_sixteen::<34, 272>(block, 2);
    let [e, f, g, h] = turned_sixteen::<34, 272>(block, 18);
    let quants = [a, b, c, d, e, f, g, h];
    signed::<VNNI>(quants, units::<34, 272>(block, 0))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn q5_0<const VNNI: bool>(block: &[u8; 176]) -> UnpackedBlock {
    around(16.0, with_fifth_bits::<22, 176>(block, 2), units::<22, 176>(block, 0))
}

/// Loads eight blocks of 32 weights of five bits, of `BYTES` bytes each, whose fifth bits begin at
/// byte `at` and whose last sixteen are the nibbles; turned.
#[inline]
#[target_feature(enable = "avx2")]
fn with_fifth_bits<const BYTES: usize, const N: usize>(block: &[u8; N], at: usize) -> [__m256i; 8] {
    // Bit `n` is the fifth bit of weight `n`: a byte of bits for eight bytes of weights, which are
    // those of two registers.
    let (blocks, _) = block.as_chunks::<BYTES>();
    let bits = |i: usize| {
        let block = &blocks[i][at..];
        i32::from_le_bytes([block[0], block[1], block[2], block[3]])
    };
    let fifth =
        _mm256_setr_epi32(bits(0), bits(1), bits(2), bits(3), bits(4), bits(5), bits(6), bits(7));
    let each =
        _mm256_broadcastsi128_si256(_mm_setr_epi32(0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c));
    let sixteen = _mm256_set1_epi8(16);
    let mut quants = nibbles::<BYTES, N>(block);
    for (byte, pair) in quants.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        let place = _mm256_add_epi8(each, _mm256_set1_epi8(byte as i8));
        let spread = _mm256_shuffle_epi8(fifth, place);
        for (quants, wanted) in pair.iter_mut().zip([0x0804_0201u32, 0x8040_2010]) {
            let wanted = _mm256_set1_epi32(wanted as i32);
            let is_set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, wanted), wanted);
            *quants = _mm256_or_si256(*quants, _mm256_and_si256(is_set, sixteen));
        }
    }
    quants
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn q5_1<const VNNI: bool>(block: &[u8; 192]) -> UnpackedBlock {
    let quants = with_fifth_bits::<24, 192>(block, 4);
    above(units::<24, 192>(block, 2), quants, units::<24, 192>(block, 0))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn q4_1<const VNNI: bool>(block: &[u8; 160]) -> UnpackedBlock {
    let quants = nibbles::<20, 160>(block);
    above(units::<20, 160>(block, 2), quants, units::<20, 160>(block, 0))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn q4_0<const VNNI: bool>(block: &[u8; 144]) -> UnpackedBlock {
    around(8.0, nibbles::<18, 144>(block), units::<18, 144>(block, 0))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn iq4_nl<const VNNI: bool>(block: &[u8; 144]) -> UnpackedBlock {
    let quants = looked_up(IQ4_VALUES, nibbles::<18, 144>(block));
    signed::<VNNI>(quants, units::<18, 144>(block, 0))
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
    // SAFETY: `scales` is an array of eight floats.
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
