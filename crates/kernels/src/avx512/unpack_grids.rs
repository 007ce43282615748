//! Unpacks the formats with grids ([`crate::grids`]) to tiles: an index in each lane fetches the
//! run of its row.

use std::arch::x86_64::*;

use super::LANES;
use super::unpack::{Prefetch, RowBlocks, Tile, byte, mask_of_bits};
use crate::grids;

/// Words of four weights in a group of 32.
const GROUP_WORDS: usize = 8;

/// Unpacks a block of IQ3_XXS.
///
/// # Safety
/// All sixteen rows have a readable block of 98 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn iq3_xxs(rows: RowBlocks, tile: &mut Tile, ahead: &mut Prefetch, lines: usize) {
    // The block: the unit, 64 bytes of indices, eight words of signs and a scale.
    // SAFETY: a block has 98 bytes; the last that is read is 82 + 15.
    let (unit, indices, signs) = unsafe {
        (rows.halves(0), rows.columns(2), [rows.four_columns(66), rows.four_columns(82)])
    };
    let unit = _mm512_mul_ps(unit, _mm512_set1_ps(0.25));
    for (group, packed) in signs.as_flattened().iter().enumerate() {
        ahead.lines(lines);
        tile.scales[group] = scale(_mm512_srli_epi32::<28>(*packed), unit);
        let signs = with_eighth_signs(four_sevens(*packed));
        let index = |word: usize| byte(indices[2 * group + word / 4], word % 4);
        // SAFETY: a byte is an index of this grid.
        unsafe { put_fours(&grids::IQ3_XXS[..], index, signs, group, tile) }
    }
}

/// Unpacks a block of IQ3_S.
///
/// # Safety
/// All sixteen rows have a readable block of 110 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn iq3_s(rows: RowBlocks, tile: &mut Tile, ahead: &mut Prefetch, lines: usize) {
    // The block: the unit, 64 lower bytes of indices, a byte of ninth bits for every 32 weights, 32
    // bytes of signs, eight scales of four bits.
    // SAFETY: a block has 110 bytes.
    let (unit, indices, [upper, [a, b, c, d], [_, e, f, scales]]) = unsafe {
        let columns = [rows.four_columns(66), rows.four_columns(82), rows.four_columns(94)];
        (rows.halves(0), rows.columns(2), columns)
    };
    let [upper, signs] = [[upper[0], upper[1]], [upper[2], upper[3]]];
    let signs = [signs[0], signs[1], a, b, c, d, e, f];
    for (group, signs) in signs.into_iter().enumerate() {
        ahead.lines(lines);
        tile.scales[group] = scale(bits(scales, 4 * group, 15), unit);
        let ninth = byte(upper[group / 4], group % 4);
        let index = |word: usize| {
            let ninth = _mm512_slli_epi32::<8>(bits(ninth, word, 1));
            _mm512_or_si512(byte(indices[2 * group + word / 4], word % 4), ninth)
        };
        // SAFETY: nine bits are an index of this grid.
        unsafe { put_fours(&grids::IQ3_S[..], index, signs, group, tile) }
    }
}

/// Unpacks a block of IQ2_XXS.
///
/// # Safety
/// All sixteen rows have a readable block of 66 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn iq2_xxs(rows: RowBlocks, tile: &mut Tile, ahead: &mut Prefetch, lines: usize) {
    // The block: the unit; for every 32 weights a word of indices, and one of signs and a scale.
    // SAFETY: a block has 66 bytes.
    let (unit, words) = unsafe { (rows.halves(0), rows.columns(2)) };
    let unit = _mm512_mul_ps(unit, _mm512_set1_ps(0.125));
    for (group, [indices, packed]) in words.as_chunks().0.iter().enumerate() {
        ahead.lines(lines);
        tile.scales[group] = scale(_mm512_srli_epi32::<28>(*packed), unit);
        let signs = with_eighth_signs(four_sevens(*packed));
        // SAFETY: a byte is an index of this grid.
        unsafe { put_eights(&grids::IQ2_XXS[..], |run| byte(*indices, run), signs, group, tile) }
    }
}

/// Unpacks a block of IQ2_XS.
///
/// # Safety
/// All sixteen rows have a readable block of 74 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn iq2_xs(rows: RowBlocks, tile: &mut Tile, ahead: &mut Prefetch, lines: usize) {
    // The block: the unit, 32 indices of nine bits with seven signs each, sixteen scales of four
    // bits.
    // SAFETY: a block has 74 bytes.
    let (unit, words, [_, _, scales @ ..]) =
        unsafe { (rows.halves(0), rows.columns(2), rows.four_columns(58)) };
    put_half_scales(scales, unit, tile);
    for (group, pair) in words.as_chunks::<2>().0.iter().enumerate() {
        ahead.lines(lines);
        let seven = |run: usize| bits(pair[run / 2], 16 * (run % 2) + 9, 0x7f);
        let sevens = [
            _mm512_or_si512(seven(0), _mm512_slli_epi32::<8>(seven(1))),
            _mm512_or_si512(_mm512_slli_epi32::<16>(seven(2)), _mm512_slli_epi32::<24>(seven(3))),
        ];
        let signs = with_eighth_signs(_mm512_or_si512(sevens[0], sevens[1]));
        let index = |run: usize| bits(pair[run / 2], 16 * (run % 2), 0x1ff);
        // SAFETY: nine bits are an index of this grid.
        unsafe { put_eights(&grids::IQ2_XS[..], index, signs, group, tile) }
    }
}

/// Unpacks a block of IQ2_S.
///
/// # Safety
/// All sixteen rows have a readable block of 82 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn iq2_s(rows: RowBlocks, tile: &mut Tile, ahead: &mut Prefetch, lines: usize) {
    // The block: the unit, 32 lower bytes of indices, 32 bytes of signs, a byte with two upper bits
    // of four indices for every 32 weights, sixteen scales of four bits.
    // SAFETY: a block has 82 bytes.
    let (unit, words, [upper @ .., first, second]) =
        unsafe { (rows.halves(0), rows.columns(2), rows.four_columns(66)) };
    put_half_scales([first, second], unit, tile);
    let (indices, signs) = words.split_at(GROUP_WORDS);
    for (group, (indices, signs)) in indices.iter().zip(signs).enumerate() {
        ahead.lines(lines);
        let index = |run: usize| {
            let upper = bits(upper[group / 4], 8 * (group % 4) + 2 * run, 3);
            _mm512_or_si512(byte(*indices, run), _mm512_slli_epi32::<8>(upper))
        };
        // SAFETY: ten bits are an index of this grid.
        unsafe { put_eights(&grids::IQ2_S[..], index, *signs, group, tile) }
    }
}

/// Stores the 32 weights of group `group`: four for each index.
///
/// # Safety
/// All indices are within the grid.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn put_fours(
    grid: &[u32],
    index: impl Fn(usize) -> __m512i,
    signs: __m512i,
    group: usize,
    tile: &mut Tile,
) {
    for word in 0..GROUP_WORDS {
        // SAFETY: by the caller the indices are within the grid, whose entries have four bytes.
        let four = unsafe { _mm512_i32gather_epi32::<4>(index(word), grid.as_ptr().cast()) };
        tile.quants[GROUP_WORDS * group + word] = signed(four, signs, word);
    }
}

/// Stores the 32 weights of group `group`: eight for each index.
///
/// # Safety
/// All indices are within the grid.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn put_eights(
    grid: &[u64],
    index: impl Fn(usize) -> __m512i,
    signs: __m512i,
    group: usize,
    tile: &mut Tile,
) {
    let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    let odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    for run in 0..GROUP_WORDS / 2 {
        let index = index(run);
        let halves = [_mm512_castsi512_si256(index), _mm512_extracti64x4_epi64::<1>(index)];
        // SAFETY: by the caller the indices are within the grid, whose entries have eight bytes.
        let [low, high] = halves
            .map(|index| unsafe { _mm512_i32gather_epi64::<8>(index, grid.as_ptr().cast()) });
        let first = _mm512_permutex2var_epi32(low, even, high);
        let second = _mm512_permutex2var_epi32(low, odd, high);
        let quants = &mut tile.quants[GROUP_WORDS * group + 2 * run..][..2];
        quants[0] = signed(first, signs, 2 * run);
        quants[1] = signed(second, signs, 2 * run + 1);
    }
}

/// Gives the magnitudes of word `word` of 32 weights their signs, a bit each of `signs`: bytes
/// around 128.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn signed(magnitudes: __m512i, signs: __m512i, word: usize) -> __m512i {
    let (negative, none) = (mask_of_bits(signs, word), _mm512_setzero_si512());
    let signed = _mm512_mask_sub_epi8(magnitudes, negative, none, magnitudes);
    _mm512_xor_si512(signed, _mm512_set1_epi32(0x8080_8080u32 as i32))
}

/// Returns the lowest 28 bits of each lane as four bytes of seven bits.
#[inline]
#[target_feature(enable = "avx512f")]
fn four_sevens(packed: __m512i) -> __m512i {
    let one = _mm512_and_si512(packed, _mm512_set1_epi32(0x7f));
    let two = _mm512_and_si512(_mm512_slli_epi32::<1>(packed), _mm512_set1_epi32(0x7f00));
    let three = _mm512_and_si512(_mm512_slli_epi32::<2>(packed), _mm512_set1_epi32(0x7f_0000));
    let four = _mm512_and_si512(_mm512_slli_epi32::<3>(packed), _mm512_set1_epi32(0x7f00_0000));
    _mm512_or_si512(_mm512_or_si512(one, two), _mm512_or_si512(three, four))
}

/// [`grids::with_eighth_signs`] in every lane.
#[inline]
#[target_feature(enable = "avx512f")]
fn with_eighth_signs(sevens: __m512i) -> __m512i {
    let pairs = _mm512_xor_si512(sevens, _mm512_srli_epi32::<4>(sevens));
    let pairs = _mm512_xor_si512(pairs, _mm512_srli_epi32::<2>(pairs));
    let parity = _mm512_xor_si512(pairs, _mm512_srli_epi32::<1>(pairs));
    let parity = _mm512_and_si512(parity, _mm512_set1_epi32(0x0101_0101));
    _mm512_or_si512(sevens, _mm512_slli_epi32::<7>(parity))
}

/// Returns the scale with the number `number`: `(2 number + 1) * unit`.
#[inline]
#[target_feature(enable = "avx512f")]
fn scale(number: __m512i, unit: __m512) -> __m512 {
    let odd = _mm512_or_si512(_mm512_slli_epi32::<1>(number), _mm512_set1_epi32(1));
    _mm512_mul_ps(_mm512_cvtepi32_ps(odd), unit)
}

/// Stores the scales of every sixteen weights of IQ2_XS and IQ2_S, whose numbers have four bits.
#[inline]
#[target_feature(enable = "avx512f")]
fn put_half_scales(numbers: [__m512i; 2], unit: __m512, tile: &mut Tile) {
    let unit = _mm512_mul_ps(unit, _mm512_set1_ps(0.125));
    for (half, to) in tile.scales[..LANES].iter_mut().enumerate() {
        *to = scale(bits(numbers[half / 8], 4 * (half % 8), 15), unit);
    }
}

/// Returns bits of each lane, from bit `at` on, as many as `mask` has.
#[inline]
#[target_feature(enable = "avx512f")]
fn bits(words: __m512i, at: usize, mask: i32) -> __m512i {
    let moved = _mm512_srl_epi32(words, _mm_cvtsi32_si128(at as i32));
    _mm512_and_si512(moved, _mm512_set1_epi32(mask))
}
