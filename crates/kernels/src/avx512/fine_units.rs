//! Products of the formats with blocks of 32 weights, each with a scale and, of some, a minimum:
//! units. For few rows of activations a unit goes from memory through registers into its products;
//! for more, eight are unpacked to a tile.

use std::arch::x86_64::*;

use super::ActivationBlock;
use super::scaling::{FINE_MINIMA, FINE_OFFSET, products_with};
use super::tile::{CALLS, FINE_UNITS, RowBlocks, Tile, WeightRows, high, low, table};
use crate::weight_format::{IQ4_VALUES, MXFP4_VALUES};

/// 32 weights of sixteen rows.
pub(super) struct Unit {
    /// Quants as in [`Tile::quants`].
    quants: [__m512i; 8],
    scale: __m512,
    /// Minimum, which is added; zero of formats without one.
    min: __m512,
}

/// A format with blocks of 32 weights.
pub(super) trait FineFormat {
    /// Bytes of a unit.
    const BYTES: usize;
    /// Number of the format's [`super::scaling::Zero`].
    const ZERO: u8 = FINE_OFFSET;

    /// Returns the unit of sixteen rows that begins at byte `at`.
    ///
    /// # Safety
    /// All sixteen rows have its bytes, and the processor has AVX-512 F and BW.
    unsafe fn unit(rows: RowBlocks, at: usize) -> Unit;

    /// Calls `take` with the first `count` units of sixteen rows, and their numbers.
    ///
    /// # Safety
    /// All sixteen rows have these units, and the processor has AVX-512 F, BW and VNNI.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni,f16c")]
    unsafe fn each(rows: RowBlocks, count: usize, mut take: impl FnMut(usize, Unit)) {
        for group in 0..count {
            // SAFETY: by the caller the rows have this unit.
            take(group, unsafe { Self::unit(rows, group * Self::BYTES) });
        }
    }
}

/// A 16-bit scale, sixteen bytes of nibbles.
pub(super) struct Q4_0;

impl FineFormat for Q4_0 {
    const BYTES: usize = 18;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn unit(rows: RowBlocks, at: usize) -> Unit {
        // SAFETY: by the caller the rows have 18 bytes.
        unsafe { Unit::around_zero(rows.halves(at), nibbles(rows.four_columns(at + 2))) }
    }
}

/// A 16-bit scale, sixteen bytes of nibbles, which are indices of values.
pub(super) struct Iq4Nl;

impl FineFormat for Iq4Nl {
    const BYTES: usize = 18;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn unit(rows: RowBlocks, at: usize) -> Unit {
        // SAFETY: by the caller the rows have 18 bytes.
        let (scale, packed) = unsafe { (rows.halves(at), rows.four_columns(at + 2)) };
        Unit::around_zero(scale, looked_up(&IQ4_VALUES, packed))
    }
}

/// An exponent of eight bits, sixteen bytes of nibbles, which are indices of values.
pub(super) struct Mxfp4;

impl FineFormat for Mxfp4 {
    const BYTES: usize = 17;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn unit(rows: RowBlocks, at: usize) -> Unit {
        // SAFETY: by the caller the rows have 17 bytes.
        let (exponents, packed) = unsafe { (rows.bytes(at), rows.four_columns(at + 1)) };
        Unit::around_zero(half_powers(exponents), looked_up(&MXFP4_VALUES, packed))
    }
}

/// A 16-bit scale, 32 fifth bits, sixteen bytes of nibbles.
pub(super) struct Q5_0;

impl FineFormat for Q5_0 {
    const BYTES: usize = 22;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn unit(rows: RowBlocks, at: usize) -> Unit {
        // SAFETY: by the caller the rows have 22 bytes.
        let (scale, [fifth, ..], packed) =
            unsafe { (rows.halves(at), rows.four_columns(at + 2), rows.four_columns(at + 6)) };
        let mut quants = nibbles(packed);
        add_fifth_bits(fifth, &mut quants);
        Unit::around_zero(scale, quants)
    }
}

/// A 16-bit scale, 32 signed bytes.
pub(super) struct Q8_0;

impl FineFormat for Q8_0 {
    const BYTES: usize = 34;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn unit(rows: RowBlocks, at: usize) -> Unit {
        // SAFETY: by the caller the rows have 34 bytes.
        let (scale, mut quants) = unsafe { (rows.halves(at), rows.eight_columns(at + 2)) };
        // Signed bytes become unsigned ones around 128.
        let sign = _mm512_set1_epi32(0x8080_8080u32 as i32);
        for quants in &mut quants {
            *quants = _mm512_xor_si512(*quants, sign);
        }
        Unit::around_zero(scale, quants)
    }
}

/// A format of whole words, `WORDS` of them: two 16-bit floats, scale and minimum; if there are six
/// words, 32 fifth bits; sixteen bytes of nibbles.
pub(super) struct WithMinima<const WORDS: usize>;

pub(super) type Q4_1 = WithMinima<5>;
pub(super) type Q5_1 = WithMinima<Q5_1_WORDS>;

const Q5_1_WORDS: usize = 6;

impl<const WORDS: usize> FineFormat for WithMinima<WORDS> {
    const BYTES: usize = 4 * WORDS;
    const ZERO: u8 = FINE_MINIMA;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn unit(rows: RowBlocks, at: usize) -> Unit {
        // SAFETY: by the caller the rows have as many words.
        let ([scale, min], packed) =
            unsafe { (rows.two_halves(at), rows.four_columns(at + Self::BYTES - 16)) };
        let mut quants = nibbles(packed);
        if WORDS == Q5_1_WORDS {
            // SAFETY: as above.
            let [fifth, ..] = unsafe { rows.four_columns(at + 4) };
            add_fifth_bits(fifth, &mut quants);
        }
        Unit { quants, scale, min }
    }

    /// Four units are transposed together, which is faster if nothing is written in between.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni,f16c")]
    unsafe fn each(rows: RowBlocks, count: usize, mut take: impl FnMut(usize, Unit)) {
        let fours = count / 4;
        for four in 0..fours {
            let at = 4 * four * Self::BYTES;
            let mut words = [_mm512_setzero_si512(); 4 * Q5_1_WORDS];
            // SAFETY: by the caller the rows have these four units: the last four words are read
            // once more if there are twenty.
            unsafe {
                words[..16].copy_from_slice(&rows.columns(at));
                words[16..20].copy_from_slice(&rows.four_columns(at + 64));
                words[20..].copy_from_slice(&rows.four_columns(at + 4 * Self::BYTES - 16));
            }
            for (i, words) in words.as_chunks::<WORDS>().0[..4].iter().enumerate() {
                take(4 * four + i, Self::of_words(words));
            }
        }
        for group in 4 * fours..count {
            // SAFETY: by the caller the rows have this unit.
            take(group, unsafe { Self::unit(rows, group * Self::BYTES) });
        }
    }
}

impl<const WORDS: usize> WithMinima<WORDS> {
    /// Returns the unit with these words.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn of_words(words: &[__m512i; WORDS]) -> Unit {
        let mut quants = nibbles(*words.last_chunk().expect("at least four words"));
        if WORDS == Q5_1_WORDS {
            add_fifth_bits(words[1], &mut quants);
        }
        let half = |words: __m512i| _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words));
        Unit { quants, scale: half(words[0]), min: half(_mm512_srli_epi32::<16>(words[0])) }
    }
}

impl Unit {
    /// Creates a unit of a format without minima.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn around_zero(scale: __m512, quants: [__m512i; 8]) -> Self {
        Self { quants, scale, min: _mm512_setzero_ps() }
    }
}

/// Unpacks eight units.
///
/// # Safety
/// All sixteen rows have eight readable units.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn unpack<F: FineFormat>(rows: RowBlocks, tile: &mut Tile) {
    for group in 0..FINE_UNITS {
        // SAFETY: by the caller the rows have this unit; this function has AVX-512.
        let unit = unsafe { F::unit(rows, group * F::BYTES) };
        tile.quants[8 * group..][..8].copy_from_slice(&unit.quants);
        tile.scales[group] = unit.scale;
        tile.fine_mins[group] = unit.min;
    }
}

/// Adds to `totals` the products of sixteen rows of weights with `R` rows of activations. The last
/// block may be incomplete.
///
/// # Safety
/// The sixteen weight rows are readable.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,f16c")]
pub(super) unsafe fn multiply<F: FineFormat, const R: usize>(
    weights: WeightRows,
    activations: &[[ActivationBlock; R]],
    totals: &mut [__m512; R],
) {
    for (i, activations) in activations.iter().enumerate() {
        let (rows, mut ahead, pieces) = weights.block(i, const { FINE_UNITS * F::BYTES }, CALLS);
        let is_last = i + 1 == weights.blocks;
        let count = if is_last { weights.last_bytes / F::BYTES } else { FINE_UNITS };
        let mut sums = [_mm512_setzero_ps(); R];
        let add = |group: usize, unit: Unit| {
            if group.is_multiple_of(FINE_UNITS / CALLS) {
                ahead.pieces(pieces);
            }
            for (sum, activations) in sums.iter_mut().zip(activations) {
                let (weights, quants) = ([unit.scale, unit.min], &unit.quants);
                *sum = match F::ZERO {
                    FINE_MINIMA => {
                        products_with::<FINE_MINIMA, 8>(*sum, quants, weights, activations, group)
                    }
                    _ => products_with::<FINE_OFFSET, 8>(*sum, quants, weights, activations, group),
                };
            }
        };
        // SAFETY: by the caller the rows have these units.
        unsafe { F::each(rows, count, add) }
        for (total, sum) in totals.iter_mut().zip(sums) {
            *total = _mm512_add_ps(*total, sum);
        }
    }
}

/// Returns the lower nibbles of four words, then the upper ones.
#[inline]
#[target_feature(enable = "avx512f")]
fn nibbles([a, b, c, d]: [__m512i; 4]) -> [__m512i; 8] {
    [low(a), low(b), low(c), low(d), high(a), high(b), high(c), high(d)]
}

/// Returns the values of the nibbles of four words, as bytes around 128.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn looked_up(values: &[i8; 16], packed: [__m512i; 4]) -> [__m512i; 8] {
    let table = table(*values);
    let mut quants = nibbles(packed);
    for quants in &mut quants {
        *quants = _mm512_shuffle_epi8(table, *quants);
    }
    quants
}

/// Adds the fifth bits of 32 weights of each row, of which `fifth` has those of row `r` in lane
/// `r`: bit `n` is that of weight `n`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn add_fifth_bits(fifth: __m512i, quants: &mut [__m512i; 8]) {
    // In each byte of a word of 32 bits: the word's first byte.
    let first = _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c));
    let sixteen = _mm512_set1_epi8(16);
    for (word, quants) in quants.iter_mut().enumerate() {
        // Four bits of a byte for each word.
        let byte = _mm512_add_epi8(first, _mm512_set1_epi8(word as i8 / 2));
        let bits = _mm512_set1_epi32(0x0804_0201 << (4 * (word % 2)));
        let set = _mm512_test_epi8_mask(_mm512_shuffle_epi8(fifth, byte), bits);
        *quants = _mm512_mask_add_epi8(*quants, set, *quants, sixteen);
    }
}

/// Halves of two to the powers of `exponents`, which are those of 32-bit floats.
#[inline]
#[target_feature(enable = "avx512f")]
fn half_powers(exponents: __m512i) -> __m512 {
    let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(exponents, _mm512_set1_epi32(1)));
    // The halves of the two smallest are no normal numbers.
    let small = _mm512_sllv_epi32(_mm512_set1_epi32(0x0020_0000), exponents);
    let is_small = _mm512_cmplt_epu32_mask(exponents, _mm512_set1_epi32(2));
    _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, is_small, small))
}
