//! The kernels against ggml's own dequantisation, format by format.
use super::micro_kernel::{dot_products, write_columns};
use super::pack::pack;
use super::unpack::WeightFormat;
use super::*;

const ROW: usize = 3 * BLOCK;

/// Numbers between -1 and 1 that repeat in every run.
fn noise(seed: u32, count: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// `values` quantised by ggml, and what ggml makes of them again.
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

/// Activation rows, packed.
fn packed(rows: &[Vec<f32>]) -> Vec<[ActivationBlock; LANES]> {
    let empty = || std::array::from_fn(|_| ActivationBlock::ZERO);
    let mut lanes: Vec<[ActivationBlock; LANES]> = (0..ROW / BLOCK).map(|_| empty()).collect();
    for (lane, row) in rows.iter().enumerate() {
        for (values, into) in row.as_chunks::<BLOCK>().0.iter().zip(&mut lanes) {
            // SAFETY: the tests ask `supported` first.
            unsafe { pack(values, &mut into[lane]) }
        }
    }
    lanes
}

const FORMATS: [(WeightFormat, sys::ggml_type); 4] = [
    (WeightFormat::Q4K, sys::GGML_TYPE_Q4_K),
    (WeightFormat::Q5K, sys::GGML_TYPE_Q5_K),
    (WeightFormat::Q6K, sys::GGML_TYPE_Q6_K),
    (WeightFormat::Q8_0, sys::GGML_TYPE_Q8_0),
];

#[test]
fn single_weights_are_ggmls() {
    if !supported() {
        return eprintln!("skipped: this processor lacks AVX-512 VNNI");
    }
    for (format, kind) in FORMATS {
        let (bytes, back) = quantised(kind, &noise(1, ROW));
        // The product with a row that is 1 at one place and 0 elsewhere is the weight there.
        for at in (0..ROW).step_by(16) {
            let one = |lane: usize| (0..ROW).map(|i| f32::from(u8::from(i == at + lane))).collect();
            let rows: Vec<Vec<f32>> = (0..LANES).map(one).collect();
            let mut found = [0.0; LANES];
            // SAFETY: the processor has been asked.
            unsafe { dot_products(format, &bytes, &packed(&rows), LANES, &mut found) };
            for (lane, (found, weight)) in found.iter().zip(&back[at..]).enumerate() {
                let at = at + lane;
                assert!((found - weight).abs() < 1e-5, "{format:?} {at}: {found} for {weight}");
            }
        }
    }
}

#[test]
fn products_are_sums_of_products() {
    if !supported() {
        return eprintln!("skipped: this processor lacks AVX-512 VNNI");
    }
    let rows: Vec<Vec<f32>> = (0..16).map(|i| noise(100 + i, ROW)).collect();
    let lanes = packed(&rows);
    for (format, kind) in FORMATS {
        let (bytes, weights) = quantised(kind, &noise(2, ROW));
        let mut all = [0.0; LANES];
        // SAFETY: the processor has been asked.
        unsafe { dot_products(format, &bytes, &lanes, LANES, &mut all) };
        for (activations, found) in rows.iter().zip(all) {
            let exact: f32 = weights.iter().zip(activations).map(|(w, a)| w * a).sum();
            // The rounding of 768 activations to 8 bits.
            assert!((found - exact).abs() < 0.1, "{format:?}: {found} for {exact}");
        }
        for count in 1..LANES {
            let mut some = [0.0; LANES];
            // SAFETY: the processor has been asked.
            unsafe { dot_products(format, &bytes, &lanes, count, &mut some) };
            assert_eq!(some[..count], all[..count], "a row's result depends on its company");
        }
    }
}

#[test]
fn sums_go_to_their_rows_and_columns() {
    if !supported() {
        return eprintln!("skipped: this processor lacks AVX-512 VNNI");
    }
    let number = |row: usize, column: usize| (100 * row + column) as f32;
    let rows = std::array::from_fn(|row| std::array::from_fn(|column| number(row, column)));
    for (height, width) in [(1, 1), (3, 16), (16, 5), (16, 16)] {
        let mut found = [[-1.0; LANES]; LANES];
        let start: *mut [f32; LANES] = found.as_mut_ptr();
        // SAFETY: the processor has been asked; there are sixteen rows of sixteen.
        unsafe { write_columns(&rows, (height, width), |column| start.add(column).cast()) };
        for (column, values) in found.iter().enumerate() {
            for (row, value) in values.iter().enumerate() {
                let is_written = row < height && column < width;
                assert_eq!(*value, if is_written { number(row, column) } else { -1.0 });
            }
        }
    }
}

#[test]
fn packing_keeps_zero_and_shows_what_is_broken() {
    if !supported() {
        return eprintln!("skipped: this processor lacks AVX-512 VNNI");
    }
    let mut block = ActivationBlock::ZERO;
    let mut values = [0.0f32; BLOCK];
    // SAFETY: the processor has been asked.
    unsafe { pack(&values, &mut block) };
    assert_eq!(block, ActivationBlock::ZERO);
    values[3] = -2.54;
    values[200] = 1.27;
    // SAFETY: as above.
    unsafe { pack(&values, &mut block) };
    // The third four of sixteen number 12: lane 3 of the third register.
    assert_eq!((block.quants[3], block.quants[140], block.quants[0]), (-127, 64, 0));
    assert!((block.sums[0] + 2.54).abs() < 1e-5, "{}", block.sums[0]);
    for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        values[77] = broken;
        // SAFETY: as above.
        unsafe { pack(&values, &mut block) };
        assert!(block.scale.is_nan() && block.quants == [0; BLOCK]);
    }
}
