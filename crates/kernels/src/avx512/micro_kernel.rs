//! Multiplies sixteen or 32 weight rows with some activation rows.

use std::arch::x86_64::*;

use super::fine_units::{self, Iq4Nl, Mxfp4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
use super::grid_products::{self, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs};
use super::scaling::{Zero, group_with, is_offset, total_with};
use super::super_blocks::{self, Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K};
use super::tile::{CacheLevel, Prefetch, RowBlocks, Tile, WeightRows};
use super::{ActivationBlock, few_rows};
use crate::BLOCK;
use crate::weight_format::WeightFormat;

/// Activation rows that are multiplied at once: with two tiles eight sums of integers and eight of
/// floats, which leaves registers for the weights. More rows at once were not faster.
const ROWS_AT_ONCE: usize = 8;

/// Up to this many rows, memory is prefetched into the second-level cache: it accepts more
/// prefetches at a time, which more rows do not need.
const SECOND_LEVEL_ROWS: usize = 16;

/// Adds to `totals` the products of `16 W` rows of weights with all rows of `activations`, whose
/// blocks are side by side: all first blocks, all second ones. A total has sixteen results of one
/// activation row. The result of an activation row does not depend on the others.
///
/// # Safety
/// The weight rows are readable, and the processor has the instructions of `products`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
pub(super) unsafe fn multiply<const W: usize, P: BlockProducts>(
    format: WeightFormat,
    weights: WeightRows,
    activations: &[ActivationBlock],
    tiles: &mut [Tile; W],
    totals: &mut [[__m512; W]],
    products: &mut P,
) {
    assert_eq!(activations.len(), weights.blocks * totals.len(), "as many blocks of both");
    macro_rules! rows {
        ($($format:ident => $module:ident),*) => {
            match format {
                $(WeightFormat::$format => {
                    $module::multiply(weights, activations, tiles, totals, products)
                })*
            }
        };
    }
    // SAFETY: by the caller the weight rows are readable, and the processor has the instructions of
    // `products`.
    unsafe {
        if let [tile] = &mut tiles[..]
            && totals.len() <= few_rows::most_rows(format).min(P::FEW_ROWS)
        {
            few_rows::multiply(format, weights, activations, tile, totals.as_flattened_mut());
            return;
        }
        rows!(
            Q2K => q2_k_rows,
            Q3K => q3_k_rows,
            Q4K => q4_k_rows,
            Q5K => q5_k_rows,
            Q6K => q6_k_rows,
            Iq4Xs => iq4_xs_rows,
            Iq2Xxs => iq2_xxs_rows,
            Iq2Xs => iq2_xs_rows,
            Iq2S => iq2_s_rows,
            Iq3Xxs => iq3_xxs_rows,
            Iq3S => iq3_s_rows,
            Q8_0 => q8_0_rows,
            Q5_0 => q5_0_rows,
            Q4_0 => q4_0_rows,
            Q5_1 => q5_1_rows,
            Q4_1 => q4_1_rows,
            Iq4Nl => iq4_nl_rows,
            Mxfp4 => mxfp4_rows
        )
    }
}

/// Multiplication of a block of weights with activations. Implementations differ in the
/// instructions, not in the order of additions.
pub(super) trait BlockProducts {
    /// Up to this many activation rows [`few_rows`] may be faster.
    const FEW_ROWS: usize;

    /// Adds to `totals` the products of the first `groups` of a block of weights, whose `G` groups
    /// have a scale each, with all `activations`; the other groups are zero. `Z` is the number of a
    /// [`Zero`]. Meanwhile memory is prefetched by `ahead`. Tiles may be changed: they are unpacked
    /// again for the next block.
    ///
    /// # Safety
    /// The processor has the instructions.
    unsafe fn add<const W: usize, const G: usize, const Z: u8>(
        &mut self,
        tiles: &mut [Tile; W],
        groups: usize,
        activations: &[ActivationBlock],
        totals: &mut [[__m512; W]],
        ahead: Prefetch,
    );
}

/// Products with registers.
pub(super) struct RegisterProducts;

impl BlockProducts for RegisterProducts {
    const FEW_ROWS: usize = 8;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn add<const W: usize, const G: usize, const Z: u8>(
        &mut self,
        tiles: &mut [Tile; W],
        groups: usize,
        activations: &[ActivationBlock],
        totals: &mut [[__m512; W]],
        mut ahead: Prefetch,
    ) {
        let times = activations.len().div_ceil(ROWS_AT_ONCE) * groups;
        let pieces = ahead.share(times);
        let tiles = (&*tiles, groups);
        let (eights, rest) = activations.as_chunks::<ROWS_AT_ONCE>();
        let (totals, rest_totals) = totals.as_chunks_mut::<ROWS_AT_ONCE>();
        for (activations, totals) in eights.iter().zip(totals) {
            let ahead = (&mut ahead, pieces);
            block::<W, ROWS_AT_ONCE, G, Z>(tiles, activations, totals, ahead);
        }
        macro_rules! last {
            ($rest:expr, $totals:expr, $count:literal) => {
                if let (Ok(activations), Ok(totals)) =
                    (<&[_; $count]>::try_from($rest), <&mut [_; $count]>::try_from(&mut *$totals))
                {
                    let ahead = (&mut ahead, pieces);
                    block::<W, $count, G, Z>(tiles, activations, totals, ahead);
                }
            };
        }
        let four = rest.len() & 4;
        let ((four, few), (four_totals, few_totals)) =
            (rest.split_at(four), rest_totals.split_at_mut(four));
        last!(four, four_totals, 4);
        last!(few, few_totals, 1);
        last!(few, few_totals, 2);
        last!(few, few_totals, 3);
    }
}

/// Multiplies the first `groups` of a block of weights with one block of `R` activation rows. `G`
/// groups have a scale each; `Z` is the number of a [`Zero`]. For every group `pieces` are
/// prefetched by `ahead`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn block<const W: usize, const R: usize, const G: usize, const Z: u8>(
    (tiles, groups): (&[Tile; W], usize),
    activations: &[ActivationBlock; R],
    totals: &mut [[__m512; W]; R],
    (ahead, pieces): (&mut Prefetch, usize),
) {
    let words = const { BLOCK / 4 / G };
    let mut sums = [[_mm512_setzero_ps(); W]; R];
    for group in 0..groups.min(G) {
        ahead.pieces(pieces);
        let mut products = [[_mm512_setzero_si512(); W]; R];
        if const { is_offset(Z) } {
            for (products, activations) in products.iter_mut().zip(activations) {
                *products = [_mm512_set1_epi32(activations.sums[group]); W];
            }
        }
        // Products of bytes are summed as integers, hence exact, so one multiplication with the
        // scale serves all of a group.
        for word in words * group..words * (group + 1) {
            for (products, activations) in products.iter_mut().zip(activations) {
                let four = _mm512_set1_epi32(activations.words()[word]);
                for (products, tile) in products.iter_mut().zip(tiles) {
                    *products = _mm512_dpbusd_epi32(*products, tile.quants[word], four);
                }
            }
        }
        for r in 0..R {
            for w in 0..W {
                let factors = activations[r].factors(group);
                let weights = tiles[w].group(group);
                sums[r][w] = group_with::<Z>(sums[r][w], products[r][w], weights, factors);
            }
        }
    }
    for r in 0..R {
        for w in 0..W {
            let total = totals[r][w];
            totals[r][w] = total_with::<Z>(total, sums[r][w], &tiles[w], &activations[r]);
        }
    }
}

/// Cache level for prefetching weights that are multiplied with this number of rows.
#[inline]
fn cache_level(rows: usize) -> CacheLevel {
    if rows <= SECOND_LEVEL_ROWS { CacheLevel::Second } else { CacheLevel::First }
}

/// Defines the products of a format. Parameters: the unpacking function, bytes of a block, groups.
macro_rules! format_rows {
    ($module:ident, $unpack:expr, $bytes:literal, $groups:literal, $zero:expr) => {
        mod $module {
            use super::*;

            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
            pub(super) unsafe fn multiply<const W: usize, P: BlockProducts>(
                weights: WeightRows,
                activations: &[ActivationBlock],
                tiles: &mut [Tile; W],
                totals: &mut [[__m512; W]],
                products: &mut P,
            ) {
                let WeightRows { start, row_bytes, blocks, last_bytes, .. } = weights;
                let level = cache_level(totals.len());
                for (i, activations) in activations.chunks_exact(totals.len()).enumerate() {
                    for (w, tile) in tiles.iter_mut().enumerate() {
                        let start = start.wrapping_add(16 * w * row_bytes + i * $bytes);
                        let rows = RowBlocks { start, row_bytes };
                        // SAFETY: by the caller: these are the rows' blocks.
                        unsafe {
                            if i + 1 < blocks || last_bytes == $bytes {
                                ($unpack)(rows, tile);
                            } else {
                                let filled = rows.filled(last_bytes);
                                let start = filled.as_ptr().cast();
                                let rows = RowBlocks { start, row_bytes: size_of_val(&filled[0]) };
                                ($unpack)(rows, tile);
                            }
                        }
                    }
                    // Only blocks of groups of 32 weights end early: a row of 576 has two and a
                    // quarter of them.
                    let groups = match i + 1 < blocks {
                        true => $groups,
                        false => last_bytes.div_ceil(const { $bytes / $groups }).min($groups),
                    };
                    // Memory is prefetched while there is much to compute, not while weights are
                    // unpacked, which wait for memory themselves.
                    let ahead = weights.ahead(i, $bytes, 16 * W, level);
                    // SAFETY: the caller of `multiply` guarantees that the processor has the
                    // instructions of `products`.
                    unsafe {
                        products.add::<W, $groups, { $zero as u8 }>(
                            tiles,
                            groups,
                            activations,
                            totals,
                            ahead,
                        );
                    }
                }
            }
        }
    };
}

format_rows!(q2_k_rows, super_blocks::unpack::<Q2K>, 84, 16, Zero::HalfMinima);
format_rows!(q3_k_rows, super_blocks::unpack::<Q3K>, 110, 16, Zero::Offset);
format_rows!(q4_k_rows, super_blocks::unpack::<Q4K>, 144, 8, Zero::Minima);
format_rows!(q5_k_rows, super_blocks::unpack::<Q5K>, 176, 8, Zero::Minima);
format_rows!(q6_k_rows, super_blocks::unpack::<Q6K>, 210, 16, Zero::Offset);
format_rows!(iq4_xs_rows, super_blocks::unpack::<Iq4Xs>, 136, 8, Zero::Offset);
format_rows!(iq2_xxs_rows, grid_products::unpack::<Iq2Xxs, 66>, 66, 8, Zero::WholeOffset);
format_rows!(iq2_xs_rows, grid_products::unpack::<Iq2Xs, 74>, 74, 16, Zero::WholeOffset);
format_rows!(iq2_s_rows, grid_products::unpack::<Iq2S, 82>, 82, 16, Zero::WholeOffset);
format_rows!(iq3_xxs_rows, grid_products::unpack::<Iq3Xxs, 98>, 98, 8, Zero::WholeOffset);
format_rows!(iq3_s_rows, grid_products::unpack::<Iq3S, 110>, 110, 8, Zero::WholeOffset);
format_rows!(q8_0_rows, fine_units::unpack::<Q8_0>, 272, 8, Zero::FineOffset);
format_rows!(q5_0_rows, fine_units::unpack::<Q5_0>, 176, 8, Zero::FineOffset);
format_rows!(q4_0_rows, fine_units::unpack::<Q4_0>, 144, 8, Zero::FineOffset);
format_rows!(q5_1_rows, fine_units::unpack::<Q5_1>, 192, 8, Zero::FineMinima);
format_rows!(q4_1_rows, fine_units::unpack::<Q4_1>, 160, 8, Zero::FineMinima);
format_rows!(iq4_nl_rows, fine_units::unpack::<Iq4Nl>, 144, 8, Zero::FineOffset);
format_rows!(mxfp4_rows, fine_units::unpack::<Mxfp4>, 136, 8, Zero::FineOffset);
