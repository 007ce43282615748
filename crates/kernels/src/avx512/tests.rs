//! Compares the kernels with ggml's own dequantisation, format by format.
use std::sync::atomic::AtomicUsize;

use super::amx::{LEAST_ROWS, TileProducts};
use super::micro_kernel::{BlockProducts, RegisterProducts, multiply};
use super::pack::pack;
use super::unpack::{Tile, WeightRows};
use super::*;
use crate::amx::{Amx, SoftTiles};
use crate::weight_format::WeightFormat;
use crate::{Isa, sys};

const BLOCKS: usize = 3;
const ROW: usize = BLOCKS * BLOCK;

const FORMATS: [(WeightFormat, sys::ggml_type); 13] = [
    (WeightFormat::Q2K, sys::GGML_TYPE_Q2_K),
    (WeightFormat::Q3K, sys::GGML_TYPE_Q3_K),
    (WeightFormat::Q4K, sys::GGML_TYPE_Q4_K),
    (WeightFormat::Q5K, sys::GGML_TYPE_Q5_K),
    (WeightFormat::Q6K, sys::GGML_TYPE_Q6_K),
    (WeightFormat::Iq4Xs, sys::GGML_TYPE_IQ4_XS),
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

/// Pseudo-random numbers between -1 and 1, the same in every run.
fn noise(seed: u32, count: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Returns `values` quantised by ggml, and dequantised again.
fn quantised(kind: sys::ggml_type, values: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let rows = (values.len() / ROW) as i64;
    // SAFETY: ggml writes as many bytes as the type's row size, of which 4 per value is a bound,
    // and reads them back into as many floats.
    unsafe {
        sys::ggml_quantize_init(kind);
        let mut bytes = vec![0u8; values.len() * 4];
        let from = values.as_ptr();
        let to = bytes.as_mut_ptr().cast();
        let len = sys::ggml_quantize_chunk(kind, from, to, 0, rows, ROW as i64, std::ptr::null());
        bytes.truncate(len);
        let mut back = vec![0.0; values.len()];
        let to_float = (*sys::ggml_get_type_traits(kind)).to_float.expect("a quantised type");
        to_float(bytes.as_ptr().cast(), back.as_mut_ptr(), values.len() as i64);
        (bytes, back)
    }
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
        let (bytes, back) = quantised(kind, &noise(1, LANES * ROW));
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
        let (bytes, _) = quantised(kind, &noise(2, 2 * LANES * ROW));
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
        let (bytes, _) = quantised(kind, &noise(3, 2 * LANES * ROW));
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
