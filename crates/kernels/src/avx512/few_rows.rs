//! Multiplies sixteen weight rows with so few activation rows that unpacking is most of the work:
//! quants go from memory through registers into their products. The results are those of
//! [`super::micro_kernel::multiply`], computed in the same order, bit for bit.

use std::arch::x86_64::*;

use super::ActivationBlock;
use super::fine_units::{self, Iq4Nl, Mxfp4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
use super::grid_products::{self, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs};
use super::super_blocks::{self, Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K};
use super::tile::{Tile, WeightRows};
use crate::weight_format::WeightFormat;

/// Returns the number of activation rows up to which this is faster than unpacking to a tile. For
/// formats with grids each row costs more: it takes the signs.
pub(super) fn most_rows(format: WeightFormat) -> usize {
    match format {
        WeightFormat::Iq2Xxs
        | WeightFormat::Iq2Xs
        | WeightFormat::Iq2S
        | WeightFormat::Iq3Xxs
        | WeightFormat::Iq3S => 4,
        _ => 8,
    }
}

/// Adds to `totals` the products of sixteen rows of weights with all rows of `activations`, at most
/// [`most_rows`]. `tile` is used for scales.
///
/// # Safety
/// As for [`super::micro_kernel::multiply`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
pub(super) unsafe fn multiply(
    format: WeightFormat,
    weights: WeightRows,
    activations: &[ActivationBlock],
    tile: &mut Tile,
    totals: &mut [__m512],
) {
    macro_rules! rows {
        ($($rows:literal),*) => {
            match totals.len() {
                $($rows => {
                    let activations = activations.as_chunks::<$rows>().0;
                    let totals = &mut totals.as_chunks_mut::<$rows>().0[0];
                    multiply_rows(format, weights, activations, tile, totals)
                })*
                _ => unreachable!("few rows"),
            }
        };
    }
    // SAFETY: passed on from the caller.
    unsafe { rows!(1, 2, 3, 4, 5, 6, 7, 8) }
}

/// Multiplies with `R` rows.
///
/// # Safety
/// As for `multiply`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
unsafe fn multiply_rows<const R: usize>(
    format: WeightFormat,
    weights: WeightRows,
    activations: &[[ActivationBlock; R]],
    tile: &mut Tile,
    totals: &mut [__m512; R],
) {
    macro_rules! product {
        (super_blocks $format:ty) => {
            super_blocks::multiply::<$format, R>(weights, activations, tile, totals)
        };
        (fine_units $format:ty) => {
            fine_units::multiply::<$format, R>(weights, activations, totals)
        };
        (grid $format:ty, $bytes:literal) => {
            grid_products::multiply::<$format, $bytes, R>(weights, activations, totals)
        };
    }
    // SAFETY: passed on from the caller; the functions require only that the weights are readable.
    unsafe {
        match format {
            WeightFormat::Q2K => product!(super_blocks Q2K),
            WeightFormat::Q3K => product!(super_blocks Q3K),
            WeightFormat::Q4K => product!(super_blocks Q4K),
            WeightFormat::Q5K => product!(super_blocks Q5K),
            WeightFormat::Q6K => product!(super_blocks Q6K),
            WeightFormat::Iq4Xs => product!(super_blocks Iq4Xs),
            WeightFormat::Iq2Xxs => product!(grid Iq2Xxs, 66),
            WeightFormat::Iq2Xs => product!(grid Iq2Xs, 74),
            WeightFormat::Iq2S => product!(grid Iq2S, 82),
            WeightFormat::Iq3Xxs => product!(grid Iq3Xxs, 98),
            WeightFormat::Iq3S => product!(grid Iq3S, 110),
            WeightFormat::Q8_0 => product!(fine_units Q8_0),
            WeightFormat::Q5_0 => product!(fine_units Q5_0),
            WeightFormat::Q4_0 => product!(fine_units Q4_0),
            WeightFormat::Q5_1 => product!(fine_units Q5_1),
            WeightFormat::Q4_1 => product!(fine_units Q4_1),
            WeightFormat::Iq4Nl => product!(fine_units Iq4Nl),
            WeightFormat::Mxfp4 => product!(fine_units Mxfp4),
        }
    }
}
