//! Unpacks the formats with grids ([`crate::grids`]) to registers.

use std::arch::x86_64::*;

use super::GROUPS;
use super::registers::turned;
use super::unpack::{UnpackedBlock, by_halves, half, signed, times};
use crate::grids::{self, looked_up, with_eighth_signs};

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn iq3_xxs<const VNNI: bool>(block: &[u8; 98]) -> UnpackedBlock {
    // The block: the unit, 64 indices, for every 32 weights four times seven signs and a scale.
    let (grid, mut quants, mut scales) =
        (&**grids::IQ3_XXS, [_mm256_setzero_si256(); GROUPS], [0; GROUPS]);
    for group in 0..GROUPS {
        let packed = word(block, 66 + 4 * group);
        let run = |i: usize| looked_up(grid, usize::from(block[2 + 8 * group + i]));
        quants[group] = with_signs(fours(run), with_eighth_signs(four_sevens(packed)));
        scales[group] = packed >> 28;
    }
    signed::<VNNI>(turned(quants), whole_scales(scales, 0.25 * half(block[0], block[1])))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn iq3_s<const VNNI: bool>(block: &[u8; 110]) -> UnpackedBlock {
    // The block: the unit, 64 lower bytes of indices, a byte of ninth bits for every 32 weights, 32
    // bytes of signs, eight scales of four bits.
    let (grid, mut quants, mut scales) =
        (&**grids::IQ3_S, [_mm256_setzero_si256(); GROUPS], [0; GROUPS]);
    let numbers = word(block, 106);
    for group in 0..GROUPS {
        let ninth = usize::from(block[66 + group]);
        let run = |i: usize| {
            looked_up(grid, usize::from(block[2 + 8 * group + i]) | (ninth >> i & 1) << 8)
        };
        quants[group] = with_signs(fours(run), word(block, 74 + 4 * group));
        scales[group] = numbers >> (4 * group) & 15;
    }
    signed::<VNNI>(turned(quants), whole_scales(scales, half(block[0], block[1])))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn iq2_xxs<const VNNI: bool>(block: &[u8; 66]) -> UnpackedBlock {
    // The block: the unit; for every 32 weights four indices, four times seven signs and a scale.
    let (grid, mut quants, mut scales) =
        (&**grids::IQ2_XXS, [_mm256_setzero_si256(); GROUPS], [0; GROUPS]);
    for group in 0..GROUPS {
        let packed = word(block, 6 + 8 * group);
        let run = |i: usize| looked_up(grid, usize::from(block[2 + 8 * group + i]));
        quants[group] = with_signs(eights(run), with_eighth_signs(four_sevens(packed)));
        scales[group] = packed >> 28;
    }
    signed::<VNNI>(turned(quants), whole_scales(scales, 0.125 * half(block[0], block[1])))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn iq2_xs<const VNNI: bool>(block: &[u8; 74]) -> UnpackedBlock {
    // The block: the unit, 32 indices of nine bits with seven signs each, sixteen scales of four
    // bits.
    let (grid, mut quants) = (&**grids::IQ2_XS, [_mm256_setzero_si256(); GROUPS]);
    for (group, quants) in quants.iter_mut().enumerate() {
        let (low, high) = (word(block, 2 + 8 * group), word(block, 6 + 8 * group));
        let packed = |i: usize| (if i < 2 { low } else { high }) >> (16 * (i % 2));
        let run = |i: usize| looked_up(grid, packed(i) as usize & 0x1ff);
        let seven = |i: usize| (packed(i) >> 9 & 0x7f) << (8 * i);
        let signs = with_eighth_signs(seven(0) | seven(1) | seven(2) | seven(3));
        *quants = with_signs(eights(run), signs);
    }
    let numbers = [word(block, 66), word(block, 70)];
    signed_halves::<VNNI>(quants, numbers, half(block[0], block[1]))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn iq2_s<const VNNI: bool>(block: &[u8; 82]) -> UnpackedBlock {
    // The block: the unit, 32 lower bytes of indices, 32 bytes of signs, a byte with two upper bits
    // of four indices for every 32 weights, sixteen scales of four bits.
    let (grid, mut quants) = (&**grids::IQ2_S, [_mm256_setzero_si256(); GROUPS]);
    for (group, quants) in quants.iter_mut().enumerate() {
        let upper = usize::from(block[66 + group]);
        let run = |i: usize| {
            let index = usize::from(block[2 + 4 * group + i]) | (upper >> (2 * i) & 3) << 8;
            looked_up(grid, index)
        };
        *quants = with_signs(eights(run), word(block, 34 + 4 * group));
    }
    let numbers = [word(block, 74), word(block, 78)];
    signed_halves::<VNNI>(quants, numbers, half(block[0], block[1]))
}

/// Creates a block of signed bytes, in natural order, with a scale for every sixteen, whose numbers
/// have four bits. VNNI multiplies unsigned bytes, so there they become unsigned around 128.
#[inline]
#[target_feature(enable = "avx2")]
fn signed_halves<const VNNI: bool>(
    mut quants: [__m256i; GROUPS],
    [first, second]: [u32; 2],
    unit: f32,
) -> UnpackedBlock {
    let both = _mm_cvtsi64_si128((u64::from(second) << 32 | u64::from(first)) as i64);
    let nibble = _mm_set1_epi8(0x0f);
    let low = _mm_and_si128(both, nibble);
    let high = _mm_and_si128(_mm_srli_epi16::<4>(both), nibble);
    let numbers = _mm_unpacklo_epi8(low, high);
    let odd = _mm_or_si128(_mm_add_epi8(numbers, numbers), _mm_set1_epi8(1));
    let (whole, unit) = (by_halves(odd), _mm256_set1_ps(0.125 * unit));
    let mut mins = [_mm256_setzero_ps(); 2];
    if VNNI {
        mins = times(whole, _mm256_mul_ps(unit, _mm256_set1_ps(128.0)));
        for quants in &mut quants {
            *quants = _mm256_xor_si256(*quants, _mm256_set1_epi8(-128));
        }
    }
    UnpackedBlock::new::<VNNI>(quants, unit, whole, mins)
}

/// Returns the scales of every 32 weights with these numbers.
#[inline]
#[target_feature(enable = "avx2")]
fn whole_scales(numbers: [u32; GROUPS], unit: f32) -> __m256 {
    // SAFETY: an array of eight 32-bit integers.
    let numbers = unsafe { _mm256_loadu_si256(numbers.as_ptr().cast()) };
    let odd = _mm256_or_si256(_mm256_slli_epi32::<1>(numbers), _mm256_set1_epi32(1));
    _mm256_mul_ps(_mm256_cvtepi32_ps(odd), _mm256_set1_ps(unit))
}

/// Returns eight runs of four bytes.
#[inline]
#[target_feature(enable = "avx2")]
fn fours(run: impl Fn(usize) -> u32) -> __m256i {
    let run = |i: usize| run(i) as i32;
    _mm256_setr_epi32(run(0), run(1), run(2), run(3), run(4), run(5), run(6), run(7))
}

/// Returns four runs of eight bytes.
#[inline]
#[target_feature(enable = "avx2")]
fn eights(run: impl Fn(usize) -> u64) -> __m256i {
    let run = |i: usize| run(i) as i64;
    _mm256_setr_epi64x(run(0), run(1), run(2), run(3))
}

/// Gives 32 magnitudes their signs, a bit each.
#[inline]
#[target_feature(enable = "avx2")]
fn with_signs(magnitudes: __m256i, signs: u32) -> __m256i {
    let byte_of_each =
        _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
    let spread = _mm256_shuffle_epi8(_mm256_set1_epi32(signs as i32), byte_of_each);
    let wanted = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
    let negative = _mm256_cmpeq_epi8(_mm256_and_si256(spread, wanted), wanted);
    _mm256_sub_epi8(_mm256_xor_si256(magnitudes, negative), negative)
}

/// Returns the lowest 28 bits as four bytes of seven bits.
#[inline]
fn four_sevens(packed: u32) -> u32 {
    packed & 0x7f | packed << 1 & 0x7f00 | packed << 2 & 0x7f_0000 | packed << 3 & 0x7f00_0000
}

#[inline]
fn word<const N: usize>(block: &[u8; N], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}
