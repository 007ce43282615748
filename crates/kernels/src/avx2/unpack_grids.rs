//! Unpacks the formats with grids ([`crate::grids`]) to registers.

use std::arch::x86_64::*;

use super::GROUPS;
use super::registers::turned;
use super::unpack::{UnpackedBlock, by_halves, half, load, signed, times};
use crate::grids::{self, four_sevens, looked_up, nibbles, with_eighth_signs};

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn iq3_xxs<const VNNI: bool>(block: &[u8; 98]) -> UnpackedBlock {
    // The block: the unit, 64 indices, for every 32 weights four times seven signs and a scale.
    let (grid, packed) = (&**grids::IQ3_XXS, load(block, 66));
    let signs = signs_of(four_sevens(packed));
    let mut quants = [_mm256_setzero_si256(); GROUPS];
    for (group, quants) in quants.iter_mut().enumerate() {
        let run = |i: usize| looked_up(grid, usize::from(block[2 + 8 * group + i]));
        *quants = with_signs(fours(run), signs[group]);
    }
    let scales = whole_scales(_mm256_srli_epi32::<28>(packed), 0.25 * half(block[0], block[1]));
    signed::<VNNI>(turned(quants), scales)
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn iq3_s<const VNNI: bool>(block: &[u8; 110]) -> UnpackedBlock {
    // The block: the unit, 64 lower bytes of indices, a byte of ninth bits for every 32 weights, 32
    // bytes of signs, eight scales of four bits.
    let grid = &**grids::IQ3_S;
    let mut quants = [_mm256_setzero_si256(); GROUPS];
    for (group, quants) in quants.iter_mut().enumerate() {
        let ninth = usize::from(block[66 + group]);
        let run = |i: usize| {
            let index = usize::from(block[2 + 8 * group + i]) | (ninth >> i & 1) << 8;
            looked_up(grid, index)
        };
        *quants = with_signs(fours(run), word(block, 74 + 4 * group));
    }
    let places = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    let numbers = _mm256_srlv_epi32(_mm256_set1_epi32(word(block, 106) as i32), places);
    let numbers = _mm256_and_si256(numbers, _mm256_set1_epi32(15));
    signed::<VNNI>(turned(quants), whole_scales(numbers, half(block[0], block[1])))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn iq2_xxs<const VNNI: bool>(block: &[u8; 66]) -> UnpackedBlock {
    // The block: the unit; for every 32 weights four indices, four times seven signs and a scale.
    let grid = &**grids::IQ2_XXS;
    let [first, second] = [load(block, 2), load(block, 34)].map(|words| _mm256_castsi256_ps(words));
    let odd = _mm256_castps_pd(_mm256_shuffle_ps::<0b11_01_11_01>(first, second));
    let packed = _mm256_castpd_si256(_mm256_permute4x64_pd::<0b11_01_10_00>(odd));
    let signs = signs_of(four_sevens(packed));
    let mut quants = [_mm256_setzero_si256(); GROUPS];
    for (group, quants) in quants.iter_mut().enumerate() {
        let run = |i: usize| looked_up(grid, usize::from(block[2 + 8 * group + i]));
        *quants = with_signs(eights(run), signs[group]);
    }
    let scales = whole_scales(_mm256_srli_epi32::<28>(packed), 0.125 * half(block[0], block[1]));
    signed::<VNNI>(turned(quants), scales)
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn iq2_xs<const VNNI: bool>(block: &[u8; 74]) -> UnpackedBlock {
    // The block: the unit, 32 indices of nine bits with seven signs each, sixteen scales of four
    // bits.
    let grid = &**grids::IQ2_XS;
    let [first, second] =
        [load(block, 2), load(block, 34)].map(|words| _mm256_srli_epi16::<9>(words));
    let sevens = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi16(first, second));
    let signs = signs_of(sevens);
    let mut quants = [_mm256_setzero_si256(); GROUPS];
    for (group, quants) in quants.iter_mut().enumerate() {
        let run = |i: usize| {
            let at = 2 + 8 * group + 2 * i;
            looked_up(grid, usize::from(u16::from_le_bytes([block[at], block[at + 1]]) & 0x1ff))
        };
        *quants = with_signs(eights(run), signs[group]);
    }
    let numbers = [word(block, 66), word(block, 70)];
    signed_halves::<VNNI>(quants, numbers, half(block[0], block[1]))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn iq2_s<const VNNI: bool>(block: &[u8; 82]) -> UnpackedBlock {
    // The block: the unit, 32 lower bytes of indices, 32 bytes of signs, a byte with two upper bits
    // of four indices for every 32 weights, sixteen scales of four bits.
    let grid = &**grids::IQ2_S;
    let mut quants = [_mm256_setzero_si256(); GROUPS];
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
    let numbers = nibbles(u64::from(second) << 32 | u64::from(first));
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
fn whole_scales(numbers: __m256i, unit: f32) -> __m256 {
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

/// Returns the signs of every 32 weights, of which `sevens` has seven in a byte.
#[inline]
#[target_feature(enable = "avx2")]
fn signs_of(sevens: __m256i) -> [u32; GROUPS] {
    let mut bits = [0; GROUPS];
    // SAFETY: `bits` is an array of 32 bytes, the width of the register.
    unsafe { _mm256_storeu_si256(bits.as_mut_ptr().cast(), with_eighth_signs(sevens)) }
    bits
}

#[inline]
fn word<const N: usize>(block: &[u8; N], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}
