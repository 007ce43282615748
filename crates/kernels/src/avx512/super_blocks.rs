//! Products of the formats with blocks of 256 weights that share a unit, in units of 32 weights.
//! For few rows of activations a unit goes from memory through registers into its products; for
//! more, the eight of a block are unpacked to a tile.

use std::arch::x86_64::*;
use std::sync::atomic::{Ordering, compiler_fence};

use super::ActivationBlock;
use super::scaling::{HALF_MINIMA, MINIMA, OFFSET, is_offset, products_with, total_with};
use super::tile::{CALLS, RowBlocks, Tile, WeightRows, byte, high, low, table};
use crate::weight_format::IQ4_VALUES;

/// The quants of 32 weights of sixteen rows, as in [`Tile::quants`].
type Quants = [__m512i; 8];

/// A format with blocks of 256 weights.
pub(super) trait SuperBlockFormat {
    /// Bytes of a block.
    const BYTES: usize;
    /// Groups of a block with a scale each: eight or sixteen.
    const GROUPS: usize;
    /// Number of the format's [`super::scaling::Zero`].
    const ZERO: u8;
    /// Words of each row that several units share.
    type Shared;
    /// Words of each row of half a block, four units.
    type Half;

    /// Stores the scales and minima of a block in `tile`, and returns what both halves need.
    ///
    /// # Safety
    /// All sixteen rows have a readable block, and the processor has AVX-512 F and BW.
    unsafe fn begin(rows: RowBlocks, tile: &mut Tile) -> Self::Shared;

    /// Returns the rest of a half, number `half`.
    ///
    /// # Safety
    /// As for `begin`.
    unsafe fn half(rows: RowBlocks, half: usize) -> Self::Half;

    /// Returns the quants of unit number `UNIT`, which is in this half.
    ///
    /// # Safety
    /// The processor has AVX-512 F and BW.
    unsafe fn unit<const UNIT: usize>(shared: &Self::Shared, half: &Self::Half) -> Quants;
}

/// Unit and minima's unit, scales and minima of six bits, 128 bytes of nibbles.
pub(super) struct Q4K;

impl SuperBlockFormat for Q4K {
    const BYTES: usize = 144;
    const GROUPS: usize = 8;
    const ZERO: u8 = MINIMA;
    type Shared = ();
    type Half = [__m512i; 16];

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn begin(rows: RowBlocks, tile: &mut Tile) -> Self::Shared {
        // SAFETY: passed on from the caller.
        unsafe { scales_and_mins(rows, tile) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn half(rows: RowBlocks, half: usize) -> [__m512i; 16] {
        // SAFETY: a block has 144 bytes; the last that is read is 16 + 64 + 63.
        unsafe { rows.columns(16 + 64 * half) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn unit<const UNIT: usize>(_shared: &(), half: &[__m512i; 16]) -> Quants {
        pair_of_units::<UNIT>(half)
    }
}

/// The same with 32 bytes of fifth bits before the nibbles.
pub(super) struct Q5K;

impl SuperBlockFormat for Q5K {
    const BYTES: usize = 176;
    const GROUPS: usize = 8;
    const ZERO: u8 = MINIMA;
    type Shared = [__m512i; 8];
    type Half = [__m512i; 16];

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn begin(rows: RowBlocks, tile: &mut Tile) -> Self::Shared {
        // SAFETY: passed on from the caller; a block has 176 bytes, of which 32 from 16 on are
        // read.
        unsafe {
            scales_and_mins(rows, tile);
            rows.eight_columns(16)
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn half(rows: RowBlocks, half: usize) -> [__m512i; 16] {
        // SAFETY: a block has 176 bytes; the last that is read is 48 + 64 + 63.
        unsafe { rows.columns(48 + 64 * half) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn unit<const UNIT: usize>(fifths: &[__m512i; 8], half: &[__m512i; 16]) -> Quants {
        let mut quants = pair_of_units::<UNIT>(half);
        add_bits::<UNIT, 4>(fifths, &mut quants);
        quants
    }
}

/// 128 bytes of lower nibbles, 64 of upper pairs of bits, sixteen scales, the unit.
pub(super) struct Q6K;

impl SuperBlockFormat for Q6K {
    const BYTES: usize = 210;
    const GROUPS: usize = 16;
    const ZERO: u8 = OFFSET;
    type Shared = [__m512i; 16];
    type Half = [__m512i; 16];

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn begin(rows: RowBlocks, tile: &mut Tile) -> Self::Shared {
        // SAFETY: a block has 210 bytes.
        let (scales, unit) = unsafe { (rows.four_columns(192), rows.halves(208)) };
        for (i, scales) in scales.into_iter().enumerate() {
            // Signed bytes: from the top of a word, with their sign.
            let signed = [
                _mm512_slli_epi32::<24>(scales),
                _mm512_slli_epi32::<16>(scales),
                _mm512_slli_epi32::<8>(scales),
                scales,
            ];
            for (j, signed) in signed.into_iter().enumerate() {
                let scale = _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(signed));
                tile.scales[4 * i + j] = _mm512_mul_ps(scale, unit);
            }
        }
        // SAFETY: 64 bytes from 128 on.
        unsafe { rows.columns(128) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn half(rows: RowBlocks, half: usize) -> [__m512i; 16] {
        // SAFETY: a block has 210 bytes; the last that is read is 64 + 63.
        unsafe { rows.columns(64 * half) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn unit<const UNIT: usize>(upper: &[__m512i; 16], half: &[__m512i; 16]) -> Quants {
        let (words, upper) = (&half.as_chunks::<8>().0[UNIT % 2], &upper.as_chunks().0[UNIT / 4]);
        let mut quants: Quants = *upper;
        for (quants, words) in quants.iter_mut().zip(words) {
            // Pair of bits number `UNIT % 4` of each byte, above the four of the nibble.
            let (nibbles, pairs) = match UNIT % 4 {
                0 => (low(*words), _mm512_slli_epi32::<4>(*quants)),
                1 => (low(*words), _mm512_slli_epi32::<2>(*quants)),
                2 => (high(*words), *quants),
                _ => (high(*words), _mm512_srli_epi32::<2>(*quants)),
            };
            let pairs = _mm512_and_si512(pairs, _mm512_set1_epi32(0x3030_3030));
            *quants = _mm512_or_si512(nibbles, pairs);
        }
        quants
    }
}

/// The unit, two upper bits of each scale, four lower ones, 128 bytes of nibbles, which are indices
/// of values.
pub(super) struct Iq4Xs;

impl SuperBlockFormat for Iq4Xs {
    const BYTES: usize = 136;
    const GROUPS: usize = 8;
    const ZERO: u8 = OFFSET;
    type Shared = ();
    type Half = [__m512i; 16];

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn begin(rows: RowBlocks, tile: &mut Tile) -> Self::Shared {
        // SAFETY: a block has 136 bytes.
        let [first, lower, ..] = unsafe { rows.four_columns(0) };
        let unit = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(first));
        let upper = _mm512_srli_epi32::<16>(first);
        let bits = |words: __m512i, at: usize, mask: i32| {
            let moved = _mm512_srl_epi32(words, _mm_cvtsi32_si128(at as i32));
            _mm512_and_si512(moved, _mm512_set1_epi32(mask))
        };
        for i in 0..8 {
            let upper = _mm512_slli_epi32::<4>(bits(upper, 2 * i, 3));
            let scale = _mm512_or_si512(bits(lower, 4 * i, 15), upper);
            let scale = _mm512_sub_epi32(scale, _mm512_set1_epi32(32));
            tile.scales[i] = _mm512_mul_ps(_mm512_cvtepi32_ps(scale), unit);
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn half(rows: RowBlocks, half: usize) -> [__m512i; 16] {
        // SAFETY: a block has 136 bytes; the last that is read is 8 + 64 + 63.
        unsafe { rows.columns(8 + 64 * half) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn unit<const UNIT: usize>(_shared: &(), half: &[__m512i; 16]) -> Quants {
        let mut quants = [_mm512_setzero_si512(); 8];
        for (i, packed) in half.as_chunks::<4>().0[UNIT % 4].iter().enumerate() {
            quants[i] = low(*packed);
            quants[4 + i] = high(*packed);
        }
        let values = table(IQ4_VALUES);
        for quants in &mut quants {
            *quants = _mm512_shuffle_epi8(values, *quants);
        }
        quants
    }
}

/// Sixteen scales and minima of four bits, 64 bytes of pairs of bits, both units.
pub(super) struct Q2K;

impl SuperBlockFormat for Q2K {
    const BYTES: usize = 84;
    const GROUPS: usize = 16;
    const ZERO: u8 = HALF_MINIMA;
    type Shared = [__m512i; 16];
    type Half = ();

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn begin(rows: RowBlocks, tile: &mut Tile) -> Self::Shared {
        // SAFETY: a block has 84 bytes.
        let (scales, [unit, min_unit]) = unsafe { (rows.four_columns(0), rows.two_halves(80)) };
        tile.unit = min_unit;
        let even = _mm512_set1_epi32(0x00ff_00ff);
        for (i, words) in scales.into_iter().enumerate() {
            for j in 0..4 {
                let scale = _mm512_cvtepi32_ps(byte(low(words), j));
                tile.scales[4 * i + j] = _mm512_mul_ps(scale, unit);
            }
            let mins = high(words);
            tile.mins[2 * i] = _mm512_and_si512(mins, even);
            tile.mins[2 * i + 1] = _mm512_and_si512(_mm512_srli_epi32::<8>(mins), even);
        }
        // SAFETY: 64 bytes from 16 on.
        unsafe { rows.columns(16) }
    }

    #[inline]
    unsafe fn half(_rows: RowBlocks, _half: usize) {}

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn unit<const UNIT: usize>(packed: &[__m512i; 16], _half: &()) -> Quants {
        pairs_of_bits::<UNIT>(packed)
    }
}

/// 32 bytes of third bits, 64 of pairs of bits, twelve of scales, the unit.
pub(super) struct Q3K;

impl SuperBlockFormat for Q3K {
    const BYTES: usize = 110;
    const GROUPS: usize = 16;
    const ZERO: u8 = OFFSET;
    type Shared = ([__m512i; 8], [__m512i; 16]);
    type Half = ();

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn begin(rows: RowBlocks, tile: &mut Tile) -> Self::Shared {
        // SAFETY: a block has 110 bytes; the last that is read is 108 + 1.
        let ([_, first, second, upper], unit) =
            unsafe { (rows.four_columns(92), rows.halves(108)) };
        // Scales have four bits in the first eight bytes, low nibbles before high ones, and two in
        // the last four.
        let lower = [low(first), low(second), high(first), high(second)];
        for (i, lower) in lower.into_iter().enumerate() {
            let upper = pair_of_bits(upper, i);
            let words = _mm512_or_si512(lower, _mm512_slli_epi32::<4>(upper));
            for j in 0..4 {
                let scale = _mm512_sub_epi32(byte(words, j), _mm512_set1_epi32(32));
                tile.scales[4 * i + j] = _mm512_mul_ps(_mm512_cvtepi32_ps(scale), unit);
            }
        }
        // SAFETY: 32 bytes from 0, and 64 from 32 on.
        unsafe { (rows.eight_columns(0), rows.columns(32)) }
    }

    #[inline]
    unsafe fn half(_rows: RowBlocks, _half: usize) {}

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn unit<const UNIT: usize>((thirds, packed): &Self::Shared, _half: &()) -> Quants {
        let mut quants = pairs_of_bits::<UNIT>(packed);
        add_bits::<UNIT, 2>(thirds, &mut quants);
        quants
    }
}

/// Unpacks a block.
///
/// # Safety
/// All sixteen rows have a readable block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,f16c")]
pub(super) unsafe fn unpack<F: SuperBlockFormat>(rows: RowBlocks, tile: &mut Tile) {
    // SAFETY: passed on from the caller; this function has AVX-512.
    let shared = unsafe { F::begin(rows, tile) };
    macro_rules! put {
        ($half:expr, $($unit:literal),*) => {
            // SAFETY: passed on from the caller.
            let half = unsafe { F::half(rows, $half) };
            $(
                // SAFETY: as above; the unit is in this half.
                let quants = unsafe { F::unit::<$unit>(&shared, &half) };
                tile.quants[8 * $unit..][..8].copy_from_slice(&quants);
            )*
        };
    }
    put!(0, 0, 1, 2, 3);
    put!(1, 4, 5, 6, 7);
}

/// Adds to `totals` the products of sixteen rows of weights with `R` rows of activations. `tile` is
/// used for scales.
///
/// # Safety
/// The sixteen weight rows are readable.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,f16c")]
pub(super) unsafe fn multiply<F: SuperBlockFormat, const R: usize>(
    weights: WeightRows,
    activations: &[[ActivationBlock; R]],
    tile: &mut Tile,
    totals: &mut [__m512; R],
) {
    let mut results = *totals;
    for (i, activations) in activations.iter().enumerate() {
        let (rows, mut ahead, pieces) = weights.block(i, F::BYTES, CALLS);
        // SAFETY: by the caller the sixteen rows are readable; this function has AVX-512.
        let shared = unsafe { F::begin(rows, tile) };
        let mut sums = [_mm512_setzero_ps(); R];
        macro_rules! add {
            ($half:expr, $($unit:literal),*) => {
                // SAFETY: by the caller the sixteen rows are readable.
                let half = unsafe { F::half(rows, $half) };
                $(
                    if $unit % (8 / CALLS) == 0 {
                        ahead.pieces(pieces);
                    }
                    // SAFETY: this function has AVX-512; the unit is in this half.
                    let quants = unsafe { F::unit::<$unit>(&shared, &half) };
                    for (sum, activations) in sums.iter_mut().zip(activations) {
                        *sum = unit_with::<F, $unit>(*sum, &quants, tile, activations);
                    }
                )*
            };
        }
        add!(0, 0, 1, 2, 3);
        add!(1, 4, 5, 6, 7);
        for ((result, sum), activations) in results.iter_mut().zip(sums).zip(activations) {
            *result = match F::ZERO {
                MINIMA => total_with::<MINIMA>(*result, sum, tile, activations),
                HALF_MINIMA => total_with::<HALF_MINIMA>(*result, sum, tile, activations),
                _ => total_with::<OFFSET>(*result, sum, tile, activations),
            };
        }
    }
    *totals = results;
}

/// Adds to `sum` the products of unit number `unit` of a block: one group, or two.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn unit_with<F: SuperBlockFormat, const UNIT: usize>(
    mut sum: __m512,
    quants: &Quants,
    tile: &Tile,
    activations: &ActivationBlock,
) -> __m512 {
    // Otherwise the compiler loads activations of several units at once, for which there are too
    // few registers: with four rows of Q4_K that took half of the time.
    compiler_fence(Ordering::SeqCst);
    if F::GROUPS == 8 {
        return group_with::<F, 8>(sum, quants, tile, activations, UNIT);
    }
    for (i, quants) in quants.as_chunks::<4>().0.iter().enumerate() {
        sum = group_with::<F, 4>(sum, quants, tile, activations, 2 * UNIT + i);
    }
    sum
}

/// Adds to `sum` the products of a group of `WORDS` words.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn group_with<F: SuperBlockFormat, const WORDS: usize>(
    sum: __m512,
    quants: &[__m512i; WORDS],
    tile: &Tile,
    activations: &ActivationBlock,
    group: usize,
) -> __m512 {
    let weights = tile.group(group);
    match const { is_offset(F::ZERO) } {
        true => products_with::<OFFSET, WORDS>(sum, quants, weights, activations, group),
        false => products_with::<MINIMA, WORDS>(sum, quants, weights, activations, group),
    }
}

/// Unpacks scales and minima of Q4_K and Q5_K, packed in 6 bits after their units: sixteen bytes.
///
/// # Safety
/// All sixteen rows have these bytes.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn scales_and_mins(rows: RowBlocks, tile: &mut Tile) {
    // SAFETY: the caller guarantees that the rows have sixteen bytes, which are all that is read.
    let [units, first, second, third] = unsafe { rows.four_columns(0) };
    tile.unit = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(units)));
    let unit = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(units));
    // The first four scales and minima have 6 bits in a byte each, whose upper two bits are those
    // of the last four; the lower four bits of these share bytes.
    let own = |words: __m512i| _mm512_and_si512(words, _mm512_set1_epi32(0x3f3f_3f3f));
    let upper = |words: __m512i| {
        let bits = _mm512_and_si512(_mm512_srli_epi32::<6>(words), _mm512_set1_epi32(0x0303_0303));
        _mm512_slli_epi32::<4>(bits)
    };
    let scales = [own(first), _mm512_or_si512(low(third), upper(first))];
    let mins = [own(second), _mm512_or_si512(high(third), upper(second))];
    for half in 0..2 {
        for i in 0..4 {
            let scale = _mm512_cvtepi32_ps(byte(scales[half], i));
            tile.scales[4 * half + i] = _mm512_mul_ps(scale, unit);
        }
        let even = _mm512_set1_epi32(0x00ff_00ff);
        tile.mins[2 * half] = _mm512_and_si512(mins[half], even);
        tile.mins[2 * half + 1] = _mm512_and_si512(_mm512_srli_epi32::<8>(mins[half]), even);
    }
}

/// Returns the quants of a unit: the lower nibbles of eight words, which have the next unit's as
/// their upper ones, or these.
#[inline]
#[target_feature(enable = "avx512f")]
fn pair_of_units<const UNIT: usize>(half: &[__m512i; 16]) -> Quants {
    let mut quants = half.as_chunks::<8>().0[UNIT % 4 / 2];
    for quants in &mut quants {
        *quants = if UNIT.is_multiple_of(2) { low(*quants) } else { high(*quants) };
    }
    quants
}

/// Adds bit number `PLACE` of the weights of unit `UNIT`: bit `UNIT` of byte `i` is that of weight
/// `i`.
#[inline]
#[target_feature(enable = "avx512f")]
fn add_bits<const UNIT: usize, const PLACE: u32>(bits: &[__m512i; 8], quants: &mut Quants) {
    for (quants, bits) in quants.iter_mut().zip(bits) {
        let bits = _mm512_srl_epi32(*bits, _mm_cvtsi32_si128(UNIT as i32));
        let bits = _mm512_and_si512(bits, _mm512_set1_epi32(0x0101_0101));
        *quants = _mm512_or_si512(*quants, _mm512_slli_epi32::<PLACE>(bits));
    }
}

/// Returns pair of bits number `pair` of every byte, from the lowest on.
#[inline]
#[target_feature(enable = "avx512f")]
fn pair_of_bits(words: __m512i, pair: usize) -> __m512i {
    let moved = _mm512_srl_epi32(words, _mm_cvtsi32_si128(2 * pair as i32));
    _mm512_and_si512(moved, _mm512_set1_epi32(0x0303_0303))
}

/// Returns pair of bits number `UNIT % 4` of every byte of the words of half `UNIT / 4`.
#[inline]
#[target_feature(enable = "avx512f")]
fn pairs_of_bits<const UNIT: usize>(packed: &[__m512i; 16]) -> Quants {
    let mut quants = packed.as_chunks::<8>().0[UNIT / 4];
    for quants in &mut quants {
        *quants = pair_of_bits(*quants, UNIT % 4);
    }
    quants
}
