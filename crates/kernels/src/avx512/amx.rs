//! Products by AMX: tiles of sixteen rows of activations and sixteen of weights.
//!
//! Only the sums of products of bytes are computed differently than with AVX-512 VNNI, and these
//! are exact. Blocks, rounded activations, scales and the order of the float sums are the same, so
//! the results are too, bit for bit. The instructions may therefore depend on the number of rows.
//!
//! An unpacked block already has the layout of the right side of a product of tiles, four weights
//! of sixteen rows per register, and rounded activations are the left side as stored.

use std::arch::x86_64::*;

use super::micro_kernel::BlockProducts;
use super::scaling::{group_with, is_fine, is_offset, total_with};
use super::tile::{Prefetch, Tile};
use super::{ActivationBlock, GroupFactors, LANES};
use crate::BLOCK;
use crate::amx::{TILE_ROWS, TileOperands, TileShape, TileSums, TileUnit};
use crate::weight_format::WeightFormat;

/// Minimum activation rows for tiles: with fewer, most of a tile is empty.
pub(super) const LEAST_ROWS: usize = 8;
/// Up to this many rows of a tile, only half of its sums are multiplied with scales.
const HALF: usize = TILE_ROWS / 2;

/// Products of tiles.
pub(super) struct TileProducts<U> {
    unit: U,
    /// Sums of a group, and of the previous one, which are meanwhile converted to floats.
    sums: [TileSums; 2],
    /// Factors of a tile's activation rows, by group.
    factors: [[GroupFactors; 8]; TILE_ROWS],
    /// Subtracted from every byte of unpacked weights.
    zero: i8,
}

impl<U: TileUnit> TileProducts<U> {
    pub(super) fn new(unit: U, format: WeightFormat) -> Self {
        let zero = match format {
            WeightFormat::Q2K
            | WeightFormat::Q4K
            | WeightFormat::Q5K
            | WeightFormat::Q5_1
            | WeightFormat::Q4_1 => 0,
            WeightFormat::Q3K => 4,
            WeightFormat::Q4_0 => 8,
            WeightFormat::Q5_0 => 16,
            WeightFormat::Q6K => 32,
            // 128, which as a byte is its own negative.
            WeightFormat::Q8_0
            | WeightFormat::Iq4Nl
            | WeightFormat::Iq4Xs
            | WeightFormat::Iq2Xxs
            | WeightFormat::Iq2Xs
            | WeightFormat::Iq2S
            | WeightFormat::Iq3Xxs
            | WeightFormat::Iq3S
            | WeightFormat::Mxfp4 => i8::MIN,
        };
        let factors = [[GroupFactors { scale: 0.0, sum: 0.0 }; 8]; TILE_ROWS];
        Self { unit, sums: [TileSums::ZERO; 2], factors, zero }
    }

    /// Converts unpacked weights to signed.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn sign(&self, tiles: &mut [Tile]) {
        let zero = _mm512_set1_epi8(self.zero);
        for tile in tiles {
            for quants in &mut tile.quants {
                *quants = _mm512_sub_epi8(*quants, zero);
            }
        }
    }

    /// Computes the sums of group `group` of `G`, with set number `SET`.
    ///
    /// # Safety
    /// Tiles are configured for these rows and groups.
    #[inline]
    unsafe fn group<const SET: usize, const G: usize>(
        &mut self,
        tile: &Tile,
        activations: &[ActivationBlock],
        group: usize,
    ) {
        let (depth, words) = const { (BLOCK / G, BLOCK / G / 4) };
        let left_stride = size_of::<ActivationBlock>();
        let right = tile.quants[words * group..][..words].as_ptr().cast();
        let left = activations.as_ptr().cast::<i8>().wrapping_add(depth * group);
        let sums = &raw mut self.sums[SET];
        // SAFETY: quants come first in a block of activations, of which there are as many as the
        // tile has rows; the weights are as many registers as a row has words.
        unsafe { self.unit.product::<SET>(TileOperands { left, left_stride, right, sums }) }
    }

    /// Adds group `group`, whose sums were computed in set number `SET`, to `sums`: rows from
    /// `from` on.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vnni")]
    fn scaled<const SET: usize, const R: usize, const Z: u8>(
        &self,
        tile: &Tile,
        group: usize,
        from: usize,
        sums: &mut [__m512; R],
    ) {
        let products = &self.sums[SET].0[from..][..R];
        let factors = &self.factors[from..][..R];
        for r in 0..R {
            // SAFETY: a row of `TileSums` is sixteen integers, aligned to 64 bytes.
            let products = unsafe { _mm512_load_si512(products[r].as_ptr().cast()) };
            let factors = factors[r][group % factors[r].len()];
            sums[r] = group_with::<Z>(sums[r], products, tile.group(group), factors);
        }
    }

    /// Multiplies a block of sixteen weight rows, number `w` of `W`, with a tile's activation rows,
    /// and adds the results to `totals`, which are those of the last of these rows, up to `R`.
    ///
    /// # Safety
    /// Tiles are configured for these rows and groups.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn block<const R: usize, const W: usize, const G: usize, const Z: u8>(
        &mut self,
        (tile, w): (&Tile, usize),
        activations: &[ActivationBlock],
        totals: &mut [[__m512; W]],
        (ahead, pieces): (&mut Prefetch, usize),
    ) {
        let from = activations.len().saturating_sub(R);
        let mut sums = [_mm512_setzero_ps(); R];
        // A group is multiplied while the one before it becomes floats.
        // SAFETY: by the caller tiles are configured for these rows and groups.
        unsafe {
            self.group::<0, G>(tile, activations, 0);
            for group in (0..G).step_by(2) {
                ahead.pieces(2 * pieces);
                self.group::<1, G>(tile, activations, group + 1);
                self.scaled::<0, R, Z>(tile, group, from, &mut sums);
                if group + 2 < G {
                    self.group::<0, G>(tile, activations, group + 2);
                }
                self.scaled::<1, R, Z>(tile, group + 1, from, &mut sums);
            }
        }
        let first = activations.len() - totals.len();
        for (r, sum) in sums.into_iter().enumerate() {
            let row = from + r;
            let Some(total) = row.checked_sub(first).and_then(|row| totals.get_mut(row)) else {
                continue;
            };
            total[w] = total_with::<Z>(total[w], sum, tile, &activations[row]);
        }
    }
}

impl<U: TileUnit> BlockProducts for TileProducts<U> {
    const FEW_ROWS: usize = LEAST_ROWS - 1;

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn add<const W: usize, const G: usize, const Z: u8>(
        &mut self,
        tiles: &mut [Tile; W],
        _groups: usize,
        activations: &[ActivationBlock],
        totals: &mut [[__m512; W]],
        mut ahead: Prefetch,
    ) {
        let rows = activations.len().min(TILE_ROWS);
        // SAFETY: by the caller the processor has the instructions of this unit.
        unsafe { self.unit.configure(TileShape { rows: rows as u8, depth: (BLOCK / G) as u8 }) }
        if const { is_offset(Z) } {
            self.sign(tiles);
        }
        let pieces = ahead.share(activations.len().div_ceil(TILE_ROWS) * W * G);
        for first in (0..activations.len()).step_by(TILE_ROWS) {
            let new = (activations.len() - first).min(TILE_ROWS);
            // A tile is always full: if too few rows are left, it begins earlier.
            let activations = &activations[first + new - rows..][..rows];
            let totals = &mut totals[first..][..new];
            if const { is_fine(Z) } {
                for (factors, activations) in self.factors.iter_mut().zip(activations) {
                    *factors = std::array::from_fn(|group| activations.factors(group));
                }
            }
            for (w, tile) in tiles.iter().enumerate() {
                let (tile, ahead) = ((tile, w), (&mut ahead, pieces));
                // SAFETY: tiles were configured above for `rows` rows and `G` groups, and
                // `activations` has that many rows.
                unsafe {
                    if new > HALF {
                        self.block::<TILE_ROWS, W, G, Z>(tile, activations, totals, ahead);
                    } else {
                        self.block::<HALF, W, G, Z>(tile, activations, totals, ahead);
                    }
                }
            }
        }
    }
}

// A register of weights is a row of a tile, and its lanes are the columns.
const _: () = assert!(LANES == TILE_ROWS && std::mem::offset_of!(ActivationBlock, quants) == 0);
