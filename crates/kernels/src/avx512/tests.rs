//! Compares the kernels with ggml's own dequantisation, format by format.
use std::sync::atomic::AtomicUsize;

use super::amx::{LEAST_ROWS, TileProducts};
use super::micro_kernel::{BlockProducts, RegisterProducts, multiply};
use super::pack::pack;
use super::tile::{Tile, WeightRows};
use super::*;
use crate::amx::{Amx, SoftTiles};
use crate::numeric::{noise, quantised};
use crate::weight_format::WeightFormat;
use crate::{Isa, sys};

const BLOCKS: usize = 3;
const ROW: usize = BLOCKS * BLOCK;

const FORMATS: [(WeightFormat, sys::ggml_type); 18] = [
    (WeightFormat::Q2K, sys::GGML_TYPE_Q2_K),
    (WeightFormat::Q3K, sys::GGML_TYPE_Q3_K),
    (WeightFormat::Q4K, sys::GGML_TYPE_Q4_K),
    (WeightFormat::Q5K, sys::GGML_TYPE_Q5_K),
    (WeightFormat::Q6K, sys::GGML_TYPE_Q6_K),
    (WeightFormat::Iq4Xs, sys::GGML_TYPE_IQ4_XS),
    (WeightFormat::Iq2Xxs, sys::GGML_TYPE_IQ2_XXS),
    (WeightFormat::Iq2Xs, sys::GGML_TYPE_IQ2_XS),
    (WeightFormat::Iq2S, sys::GGML_TYPE_IQ2_S),
    (WeightFormat::Iq3Xxs, sys::GGML_TYPE_IQ3_XXS),
    (WeightFormat::Iq3S, sys::GGML_TYPE_IQ3_S),
    (WeightFormat::Q8_0, sys::GGML_TYPE_Q8_0),
    (WeightFormat::Q5_0, sys::GGML_TYPE_Q5_0),
    (WeightFormat::Q4_0, sys::GGML_TYPE_Q4_0),
    (WeightFormat::Q5_1, sys::GGML_TYPE_Q5_1),
    (WeightFormat::Q4_1, sys::GGML_TYPE_Q4_1),
    (WeightFormat::Iq4Nl, sys::GGML_TYPE_IQ4_NL),
    (WeightFormat::Mxfp4, sys::GGML_TYPE_MXFP4),
];

fn is_available() -> bool {
    Isa::Avx512Vnni.is_here_for_a_test()
}

/// Activation rows, packed: all first blocks, all second ones.
fn packed(format: WeightFormat, rows: &[Vec<f32>]) -> Vec<ActivationBlock> {
    let blocks = (0..BLOCKS).flat_map(|i| rows.iter().map(move |row| &row.as_chunks().0[i]));
    let pack_one = |values: &[f32; BLOCK]| {
        let mut block = ActivationBlock::ZERO;
        // SAFETY: the tests ask for the processor first.
        unsafe { pack(values, format, &mut block) };
        block
    };
    blocks.map(pack_one).collect()
}

/// Returns the results of `W` tiles of weights, one activation row after the other.
fn product<const W: usize>(
    format: WeightFormat,
    weights: &[u8],
    rows: &[Vec<f32>],
) -> Vec<[f32; LANES]> {
    product_by::<W>(&mut RegisterProducts, format, weights, rows)
}

/// Same, with `products` for the blocks.
fn product_by<const W: usize>(
    products: &mut impl BlockProducts,
    format: WeightFormat,
    weights: &[u8],
    rows: &[Vec<f32>],
) -> Vec<[f32; LANES]> {
    let row_bytes = BLOCKS * format.block_bytes();
    assert_eq!(weights.len(), W * LANES * row_bytes);
    let start = weights.as_ptr();
    let last_bytes = format.block_bytes();
    let weights = WeightRows { start, row_bytes, blocks: BLOCKS, last_bytes, next: start };
    let activations = packed(format, rows);
    // SAFETY: the tests ask for the processor first; registers are as many floats.
    unsafe {
        let mut tiles = [Tile::zero(); W];
        let mut totals = vec![[std::mem::zeroed(); W]; rows.len()];
        multiply(format, weights, &activations, &mut tiles, &mut totals, products);
        totals.iter().flatten().map(|total| std::mem::transmute(*total)).collect()
    }
}

#[test]
fn single_weights_are_ggmls() {
    if !is_available() {
        return;
    }
    for (format, kind) in FORMATS {
        let (bytes, back) = quantised(kind, &noise(1, LANES * ROW), ROW);
        // The product with a row that is 1 at one place and 0 elsewhere is the weight there.
        let one = |at: usize| (0..ROW).map(|i| f32::from(u8::from(i == at))).collect();
        let rows: Vec<Vec<f32>> = (0..ROW).map(one).collect();
        for (at, found) in product::<1>(format, &bytes, &rows).iter().enumerate() {
            for (row, found) in found.iter().enumerate() {
                let weight = back[row * ROW + at];
                assert!((found - weight).abs() < 1e-5, "{format:?} {row} {at}: {found}, {weight}");
            }
        }
    }
}

#[test]
fn a_row_does_not_depend_on_its_company() {
    if !is_available() {
        return;
    }
    let rows: Vec<Vec<f32>> = (0..11).map(|i| noise(100 + i, ROW)).collect();
    for (format, kind) in FORMATS {
        let (bytes, _) = quantised(kind, &noise(2, 2 * LANES * ROW), ROW);
        let all = product::<2>(format, &bytes, &rows);
        for count in 1..rows.len() {
            let some = product::<2>(format, &bytes, &rows[..count]);
            assert_eq!(some, all[..2 * count], "{count} rows of {format:?}");
        }
        let half = bytes.len() / 2;
        for (tile, bytes) in [&bytes[..half], &bytes[half..]].into_iter().enumerate() {
            let one: Vec<_> = all.iter().skip(tile).step_by(2).copied().collect();
            assert_eq!(product::<1>(format, bytes, &rows), one, "tile {tile} of {format:?}");
            for count in 1..rows.len() {
                let few = product::<1>(format, bytes, &rows[..count]);
                assert_eq!(few, one[..count], "{count} rows, tile {tile} of {format:?}");
            }
        }
    }
}

#[test]
fn tiles_give_the_very_bits_of_registers() {
    if !is_available() {
        return;
    }
    let rows: Vec<Vec<f32>> = (0..35).map(|i| noise(200 + i, ROW)).collect();
    for (format, kind) in FORMATS {
        let (bytes, _) = quantised(kind, &noise(3, 2 * LANES * ROW), ROW);
        let (half, counted) = (bytes.len() / 2, AtomicUsize::new(0));
        let soft = &mut TileProducts::new(SoftTiles::new(&counted), format);
        let amx = &mut TileProducts::new(Amx::default(), format);
        for count in LEAST_ROWS..=rows.len() {
            let rows = &rows[..count];
            let two = product::<2>(format, &bytes, rows);
            let one = product::<1>(format, &bytes[..half], rows);
            assert_eq!(product_by::<2>(soft, format, &bytes, rows), two, "{count} of {format:?}");
            assert_eq!(product_by::<1>(soft, format, &bytes[..half], rows), one, "{count}");
            if Isa::Amx.is_available() {
                assert_eq!(product_by::<2>(amx, format, &bytes, rows), two, "{count}, {format:?}");
                assert_eq!(product_by::<1>(amx, format, &bytes[..half], rows), one, "{count}");
            }
        }
        assert!(counted.into_inner() > 0, "tiles were used");
    }
}

#[test]
fn packing_keeps_zero_and_shows_what_is_broken() {
    if !is_available() {
        return;
    }
    let mut block = ActivationBlock::ZERO;
    let mut values = [0.0f32; BLOCK];
    // SAFETY: the processor has been asked.
    unsafe { pack(&values, WeightFormat::Q6K, &mut block) };
    assert_eq!(block, ActivationBlock::ZERO);
    values[3] = -2.54;
    values[200] = 1.27;
    // SAFETY: the processor has been checked above.
    unsafe { pack(&values, WeightFormat::Q6K, &mut block) };
    assert_eq!((block.quants[3], block.quants[200], block.quants[0]), (-127, 64, 0));
    assert_eq!((block.sums[0], block.sums[12], block.sums[1]), (32 * 127, -32 * 64, 0));
    assert!((block.scales[0] - 0.02).abs() < 1e-6);
    // With minima: pairs of sums of 32, the first beside the third.
    // SAFETY: the processor has been checked above.
    unsafe { pack(&values, WeightFormat::Q4K, &mut block) };
    assert_eq!((block.sums[0], block.sums[2]), (-127 & 0xffff, 64 << 16));
    // SAFETY: the processor has been checked above.
    unsafe { pack(&values, WeightFormat::Q8_0, &mut block) };
    assert_eq!((block.quants[3], block.quants[200]), (-127, 127), "each of 32 has its scale");
    assert_eq!((block.sums[0], block.sums[6]), (128 * 127, -128 * 127));
    for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        values[77] = broken;
        for (format, _) in FORMATS {
            // SAFETY: the processor has been checked above.
            unsafe { pack(&values, format, &mut block) };
            assert!(block.scales[2].is_nan(), "{format:?}");
        }
    }
}
