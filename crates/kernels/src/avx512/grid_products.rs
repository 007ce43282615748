//! Products of the formats with grids ([`crate::grids`]). Runs are looked up and get their signs
//! row by row. For few rows of activations they are multiplied at once; for more, sixteen rows are
//! transposed to a tile. Sums of a block are integers, so the results are the same.

use std::arch::x86_64::*;

use super::scaling::whole_sum;
use super::tile::{RowBlocks, Tile, WeightRows, transposed};
use super::{ActivationBlock, LANES};
use crate::grids::{self, four_sevens, looked_up, nibbles, with_eighth_signs};

/// A format with a grid, as blocks of `BYTES` bytes that begin with a unit.
pub(super) trait GridFormat<const BYTES: usize> {
    /// The grid.
    type Grid: 'static;
    /// Factor of the unit: scale number `n` is `(2 n + 1) * FACTOR` times the unit.
    const FACTOR: f32;
    /// True if every sixteen weights have a scale, otherwise every 32.
    const HAS_HALVES: bool;

    /// Returns the grid.
    fn grid() -> &'static Self::Grid;

    /// Returns run number `run` of 32: eight magnitudes.
    fn eight(grid: &Self::Grid, block: &[u8; BYTES], run: usize) -> u64;

    /// Returns the parts of a block that are read as a whole.
    ///
    /// # Safety
    /// The processor has AVX-512 F and BW.
    unsafe fn parts(block: &[u8; BYTES]) -> RowParts;
}

/// The parts of a row's block that are read as a whole.
pub(super) struct RowParts {
    /// A bit for each of 256 weights, set if it is negative.
    signs: [u64; 4],
    /// Numbers of the scales, of four bits each, as 32-bit integers.
    numbers: __m512i,
}

/// Indices of eight bits for four weights; for every 32 weights four times seven signs and a scale.
pub(super) struct Iq3Xxs;

impl GridFormat<98> for Iq3Xxs {
    type Grid = [u32; 256];
    const FACTOR: f32 = 0.25;
    const HAS_HALVES: bool = false;

    fn grid() -> &'static Self::Grid {
        &grids::IQ3_XXS
    }

    #[inline]
    fn eight(grid: &Self::Grid, block: &[u8; 98], run: usize) -> u64 {
        pair(|four| looked_up(grid, usize::from(block[2 + four])), run)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn parts(block: &[u8; 98]) -> RowParts {
        // SAFETY: 32 bytes from 66 on, of 98.
        RowParts::of_packed(unsafe { _mm256_loadu_si256(block.as_ptr().add(66).cast()) })
    }
}

/// Lower bytes of indices for four weights, a byte of ninth bits for every 32 weights, 32 bytes of
/// signs, eight scales.
pub(super) struct Iq3S;

impl GridFormat<110> for Iq3S {
    type Grid = [u32; 512];
    const FACTOR: f32 = 1.0;
    const HAS_HALVES: bool = false;

    fn grid() -> &'static Self::Grid {
        &grids::IQ3_S
    }

    #[inline]
    fn eight(grid: &Self::Grid, block: &[u8; 110], run: usize) -> u64 {
        let ninths = usize::from(block[66 + run / 4]) << 8 >> (2 * (run % 4));
        let four = |four: usize| {
            let ninth = ninths >> (four % 2) & 256;
            looked_up(grid, usize::from(block[2 + four]) | ninth)
        };
        pair(four, run)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn parts(block: &[u8; 110]) -> RowParts {
        let packed = u32::from_le_bytes(bytes_at(block, 106));
        RowParts { signs: signs_at(block, 74), numbers: wide_nibbles(packed.into()) }
    }
}

/// For every 32 weights four indices for eight weights, four times seven signs and a scale.
pub(super) struct Iq2Xxs;

impl GridFormat<66> for Iq2Xxs {
    type Grid = [u64; 256];
    const FACTOR: f32 = 0.125;
    const HAS_HALVES: bool = false;

    fn grid() -> &'static Self::Grid {
        &grids::IQ2_XXS
    }

    #[inline]
    fn eight(grid: &Self::Grid, block: &[u8; 66], run: usize) -> u64 {
        looked_up(grid, usize::from(block[2 + run / 4 * 8 + run % 4]))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn parts(block: &[u8; 66]) -> RowParts {
        let odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 1, 3, 5, 7, 9, 11, 13, 15);
        // SAFETY: 64 bytes from 2 on, of 66.
        let words = unsafe { _mm512_loadu_si512(block.as_ptr().add(2).cast()) };
        RowParts::of_packed(_mm512_castsi512_si256(_mm512_permutexvar_epi32(odd, words)))
    }
}

/// Indices of nine bits for eight weights, with seven signs each; sixteen scales.
pub(super) struct Iq2Xs;

impl GridFormat<74> for Iq2Xs {
    type Grid = [u64; 512];
    const FACTOR: f32 = 0.125;
    const HAS_HALVES: bool = true;

    fn grid() -> &'static Self::Grid {
        &grids::IQ2_XS
    }

    #[inline]
    fn eight(grid: &Self::Grid, block: &[u8; 74], run: usize) -> u64 {
        let index = u16::from_le_bytes(bytes_at(block, 2 + 2 * run)) & 0x1ff;
        looked_up(grid, index.into())
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn parts(block: &[u8; 74]) -> RowParts {
        // SAFETY: 64 bytes from 2 on, of 74.
        let words = unsafe { _mm512_loadu_si512(block.as_ptr().add(2).cast()) };
        let sevens = _mm512_cvtepi16_epi8(_mm512_srli_epi16::<9>(words));
        let numbers = wide_nibbles(u64::from_le_bytes(bytes_at(block, 66)));
        RowParts { signs: signs_of(sevens), numbers }
    }
}

/// Lower bytes of indices for eight weights, 32 bytes of signs, a byte with two upper bits of four
/// indices for every 32 weights, sixteen scales.
pub(super) struct Iq2S;

impl GridFormat<82> for Iq2S {
    type Grid = [u64; 1024];
    const FACTOR: f32 = 0.125;
    const HAS_HALVES: bool = true;

    fn grid() -> &'static Self::Grid {
        &grids::IQ2_S
    }

    #[inline]
    fn eight(grid: &Self::Grid, block: &[u8; 82], run: usize) -> u64 {
        let upper = usize::from(block[66 + run / 4]) >> (2 * (run % 4)) & 3;
        looked_up(grid, usize::from(block[2 + run]) | upper << 8)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn parts(block: &[u8; 82]) -> RowParts {
        let packed = u64::from_le_bytes(bytes_at(block, 74));
        RowParts { signs: signs_at(block, 34), numbers: wide_nibbles(packed) }
    }
}

/// Unpacks a block.
///
/// # Safety
/// All sixteen rows have a readable block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn unpack<F: GridFormat<BYTES>, const BYTES: usize>(
    rows: RowBlocks,
    tile: &mut Tile,
) {
    // SAFETY: by the caller the rows have their blocks.
    let block = |row: usize| unsafe { &*rows.row(row).cast::<[u8; BYTES]>() };
    let grid = F::grid();
    let (mut signs, mut numbers) = ([[0; 4]; LANES], [_mm512_setzero_si512(); LANES]);
    for row in 0..LANES {
        // SAFETY: this function has AVX-512.
        RowParts { signs: signs[row], numbers: numbers[row] } = unsafe { F::parts(block(row)) };
    }
    // SAFETY: blocks begin with a unit.
    tile.unit = _mm512_mul_ps(unsafe { rows.halves(0) }, _mm512_set1_ps(F::FACTOR));
    for (to, numbers) in tile.scales.iter_mut().zip(transposed(numbers)) {
        *to = _mm512_castsi512_ps(odd(numbers));
    }
    for (quarter, quants) in tile.quants.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
        let mut words = [_mm512_setzero_si512(); LANES];
        for (row, words) in words.iter_mut().enumerate() {
            let magnitudes = eights(|run| F::eight(grid, block(row), 8 * quarter + run));
            let signed = negated(magnitudes, signs[row][quarter]);
            // Signed bytes become unsigned ones around 128.
            *words = _mm512_xor_si512(signed, _mm512_set1_epi32(0x8080_8080u32 as i32));
        }
        *quants = transposed(words);
    }
}

/// Adds to `totals` the products of sixteen rows of weights with `R` rows of activations.
///
/// # Safety
/// The sixteen weight rows are readable.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(super) unsafe fn multiply<F: GridFormat<BYTES>, const BYTES: usize, const R: usize>(
    weights: WeightRows,
    activations: &[[ActivationBlock; R]],
    totals: &mut [__m512; R],
) {
    let grid = F::grid();
    let mut results = *totals;
    for (i, activations) in activations.iter().enumerate() {
        let (rows, mut ahead, pieces) = weights.block(i, BYTES, LANES);
        let mut sums = [[0; LANES]; R];
        for row in 0..LANES {
            ahead.pieces(pieces);
            // SAFETY: by the caller the rows are readable; this function has AVX-512.
            let (block, parts) = unsafe {
                let block = &*rows.row(row).cast::<[u8; BYTES]>();
                (block, F::parts(block))
            };
            let scales = odd(parts.numbers);
            let mut products = [_mm512_setzero_si512(); R];
            for (quarter, signs) in parts.signs.into_iter().enumerate() {
                let magnitudes = eights(|run| F::eight(grid, block, 8 * quarter + run));
                let scales = scales_of::<F, BYTES>(scales, quarter);
                for (products, activations) in products.iter_mut().zip(activations) {
                    // The instruction multiplies unsigned with signed bytes, so the weights' signs
                    // are moved to the activations.
                    // SAFETY: 64 of 256 bytes.
                    let quants = unsafe {
                        _mm512_loadu_si512(activations.quants.as_ptr().add(64 * quarter).cast())
                    };
                    let quants = negated(quants, signs);
                    let fours = _mm512_dpbusd_epi32(_mm512_setzero_si512(), magnitudes, quants);
                    *products = _mm512_add_epi32(*products, _mm512_mullo_epi32(fours, scales));
                }
            }
            for (sums, products) in sums.iter_mut().zip(products) {
                sums[row] = _mm512_reduce_add_epi32(products);
            }
        }
        // SAFETY: blocks begin with a unit.
        let unit = _mm512_mul_ps(unsafe { rows.halves(0) }, _mm512_set1_ps(F::FACTOR));
        for ((result, sums), activations) in results.iter_mut().zip(&sums).zip(activations) {
            // SAFETY: `sums` is an array of sixteen 32-bit integers.
            let sum = whole_sum(unsafe { _mm512_loadu_si512(sums.as_ptr().cast()) }, unit);
            *result = _mm512_fmadd_ps(sum, _mm512_set1_ps(activations.scales[0]), *result);
        }
    }
    *totals = results;
}

/// Returns the scales of the products of quarter `quarter` of a block, four weights to a product.
#[inline]
#[target_feature(enable = "avx512f")]
fn scales_of<F: GridFormat<BYTES>, const BYTES: usize>(scales: __m512i, quarter: usize) -> __m512i {
    let first = quarter as i32 * if F::HAS_HALVES { 4 } else { 2 };
    let order = match F::HAS_HALVES {
        true => _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3),
        false => _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1),
    };
    _mm512_permutexvar_epi32(_mm512_add_epi32(order, _mm512_set1_epi32(first)), scales)
}

impl RowParts {
    /// Returns the parts from eight words of four times seven signs and a scale.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn of_packed(packed: __m256i) -> Self {
        let numbers = _mm512_zextsi256_si512(_mm256_srli_epi32::<28>(packed));
        Self { signs: signs_of(four_sevens(packed)), numbers }
    }
}

/// Returns run number `run` of eight weights from two of four.
#[inline]
fn pair(four: impl Fn(usize) -> u32, run: usize) -> u64 {
    u64::from(four(2 * run)) | u64::from(four(2 * run + 1)) << 32
}

/// Returns eight runs of eight bytes.
#[inline]
#[target_feature(enable = "avx512f")]
fn eights(run: impl Fn(usize) -> u64) -> __m512i {
    let run = |i: usize| run(i) as i64;
    _mm512_setr_epi64(run(0), run(1), run(2), run(3), run(4), run(5), run(6), run(7))
}

/// Returns the scales with these numbers, as multiples of half the unit.
#[inline]
#[target_feature(enable = "avx512f")]
fn odd(numbers: __m512i) -> __m512i {
    _mm512_or_si512(_mm512_slli_epi32::<1>(numbers), _mm512_set1_epi32(1))
}

/// Negates those of 64 bytes whose bit is set.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn negated(bytes: __m512i, negative: u64) -> __m512i {
    _mm512_mask_sub_epi8(bytes, negative, _mm512_setzero_si512(), bytes)
}

/// Returns the signs of which `sevens` has seven in a byte.
#[inline]
#[target_feature(enable = "avx2")]
fn signs_of(sevens: __m256i) -> [u64; 4] {
    let mut bits = [0; 4];
    // SAFETY: `bits` is an array of 32 bytes, the width of the register.
    unsafe { _mm256_storeu_si256(bits.as_mut_ptr().cast(), with_eighth_signs(sevens)) }
    bits
}

/// Returns sixteen numbers of four bits as 32-bit integers.
#[inline]
#[target_feature(enable = "avx512f")]
fn wide_nibbles(packed: u64) -> __m512i {
    _mm512_cvtepu8_epi32(nibbles(packed))
}

/// Returns the signs in the 32 bytes from byte `at` on.
#[inline]
fn signs_at<const N: usize>(block: &[u8; N], at: usize) -> [u64; 4] {
    [0, 8, 16, 24].map(|i| u64::from_le_bytes(bytes_at(block, at + i)))
}

#[inline]
fn bytes_at<const N: usize, const M: usize>(block: &[u8; N], at: usize) -> [u8; M] {
    std::array::from_fn(|i| block[at + i])
}
