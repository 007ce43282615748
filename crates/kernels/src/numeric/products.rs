//! Matrix products: every format of weights, any number of rows of either side, any number of
//! threads, rows of several parts.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use super::arena::{Arena, ArenaTensor, KernelSide};
use super::{Deviation, Isa, isas, noise, quantised, sys};
use crate::ggml_hook::Operation;

/// Formats with a scale for every 32 weights: a row of any multiple of 32.
const FINE_FORMATS: [sys::ggml_type; 7] = [
    sys::GGML_TYPE_Q8_0,
    sys::GGML_TYPE_Q5_0,
    sys::GGML_TYPE_Q4_0,
    sys::GGML_TYPE_Q5_1,
    sys::GGML_TYPE_Q4_1,
    sys::GGML_TYPE_IQ4_NL,
    sys::GGML_TYPE_MXFP4,
];
/// Formats with blocks of 256 weights.
const WIDE_FORMATS: [sys::ggml_type; 11] = [
    sys::GGML_TYPE_Q2_K,
    sys::GGML_TYPE_Q3_K,
    sys::GGML_TYPE_Q4_K,
    sys::GGML_TYPE_Q5_K,
    sys::GGML_TYPE_Q6_K,
    sys::GGML_TYPE_IQ4_XS,
    sys::GGML_TYPE_IQ2_XXS,
    sys::GGML_TYPE_IQ2_XS,
    sys::GGML_TYPE_IQ2_S,
    sys::GGML_TYPE_IQ3_XXS,
    sys::GGML_TYPE_IQ3_S,
];

/// Weights that are floats, in rows of any multiple of 16.
pub(super) const FLOATS: [sys::ggml_type; 3] =
    [sys::GGML_TYPE_F32, sys::GGML_TYPE_F16, sys::GGML_TYPE_BF16];

/// Each instruction set with each quantised format.
pub(super) fn cases() -> impl Iterator<Item = (Isa, sys::ggml_type)> {
    let formats = || WIDE_FORMATS.into_iter().chain(FINE_FORMATS);
    isas().flat_map(move |isa| formats().map(move |format| (isa, format)))
}

/// The same, and floats.
pub(super) fn cases_with_floats() -> impl Iterator<Item = (Isa, sys::ggml_type)> {
    cases().chain(isas().flat_map(|isa| FLOATS.map(|format| (isa, format))))
}

/// Maximum number of different weight rows.
const DIFFERENT_ROWS: usize = 43;

/// Sizes of a product.
#[derive(Debug, Clone, Copy)]
struct ProductSizes {
    format: sys::ggml_type,
    /// Elements of a row of weights or activations.
    inner: usize,
    weight_rows: usize,
    rows: usize,
    threads: usize,
    isa: Isa,
}

/// A product with its operands as numbers.
struct Product<'a> {
    op: ArenaTensor<'a>,
    /// Weights as dequantised by ggml.
    weights: Vec<f32>,
    activations: Vec<f32>,
}

impl<'a> Product<'a> {
    fn new(arena: &'a Arena, sizes: &ProductSizes, activations: Vec<f32>) -> Self {
        let ProductSizes { format, inner, weight_rows, rows, .. } = *sizes;
        // Quantising takes longest: some rows, again and again. Their number has no factor in
        // common with that of a tile, so that a row in the place of another is noticed.
        let different = weight_rows.min(DIFFERENT_ROWS);
        let (bytes, weights) = quantised_noise(format, different, inner);
        let bytes: Vec<u8> =
            bytes.iter().copied().cycle().take(bytes.len() / different * weight_rows).collect();
        let weights: Vec<f32> = weights.iter().copied().cycle().take(inner * weight_rows).collect();
        let shape = |rows: usize| [inner as i64, rows as i64, 1, 1];
        let left = arena.tensor(format, shape(weight_rows), &bytes);
        let right = arena.floats(shape(rows), &activations);
        // SAFETY: tensors of the context with rows of the same length.
        let op = arena
            .make(|context| unsafe { sys::ggml_mul_mat(context, left.as_ptr(), right.as_ptr()) });
        Self { op, weights, activations }
    }

    /// Row `row` of the result in double precision.
    fn exact(&self, sizes: &ProductSizes, row: usize) -> Vec<f64> {
        let activations = &self.activations[row * sizes.inner..][..sizes.inner];
        let product = |weights: &[f32]| {
            weights.iter().zip(activations).map(|(w, a)| f64::from(*w) * f64::from(*a)).sum()
        };
        self.weights.chunks_exact(sizes.inner).map(product).collect()
    }
}

/// Rows of numbers, quantised once for all tests.
fn quantised_noise(format: sys::ggml_type, rows: usize, inner: usize) -> (Vec<u8>, Vec<f32>) {
    type KnownRows = HashMap<(sys::ggml_type, usize, usize), (Vec<u8>, Vec<f32>)>;
    static KNOWN: LazyLock<Mutex<KnownRows>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let make = || quantised(format, &noise(1, inner * rows), inner);
    known.entry((format, rows, inner)).or_insert_with(make).clone()
}

/// Compares a product of both sides with the exact one, row by row; returns ours.
fn check(sizes: &ProductSizes, activations: Vec<f32>) -> Vec<f32> {
    let arena = Arena::new();
    let product = Product::new(&arena, sizes, activations);
    let own = arena.compute(product.op, KernelSide::Own(sizes.isa), sizes.threads);
    let llama = arena.compute(product.op, KernelSide::Llama, sizes.threads);
    // Of one row the errors may be luck; of all together they are not.
    let exact: Vec<f64> = (0..sizes.rows).flat_map(|row| product.exact(sizes, row)).collect();
    // Where llama.cpp rounds hardly at all, ours may be off by what f32 sums lose.
    Deviation::of(&own, &exact).check(Deviation::of(&llama, &exact), 4e-6, sizes);
    own
}

/// Numbers as in real models: a few in a row are much larger than the others.
pub(super) fn with_outliers(seed: u32, count: usize) -> Vec<f32> {
    let mut values = noise(seed, count);
    values.iter_mut().skip(seed as usize % 97).step_by(200).for_each(|value| *value *= 40.0);
    values
}

#[test]
fn any_number_of_rows_is_as_exact_as_llama_cpps() {
    for (isa, format) in cases_with_floats() {
        let inner = 3 * 256;
        let all = with_outliers(7, 40 * inner);
        let product = |rows: usize| {
            let sizes =
                ProductSizes { format, inner, weight_rows: 43, rows, threads: 1 + rows % 3, isa };
            check(&sizes, all[..rows * inner].to_vec())
        };
        let together = product(40);
        for rows in (1..=9).chain([12, 15, 16, 17, 24, 31, 32, 33]) {
            // Bit by bit: a row's result does not depend on its company.
            assert_eq!(product(rows), together[..rows * 43], "{rows} rows of {format}");
        }
    }
}

#[test]
fn any_number_of_weight_rows_and_parts_is_as_exact() {
    for (isa, format) in cases_with_floats() {
        for blocks in [1, 2, 5, 6, 7, 12, 13, 25] {
            for (weight_rows, rows, threads) in
                [(1, 5, 2), (15, 1, 1), (16, 2, 1), (17, 16, 1), (33, 17, 3), (530, 3, 2)]
            {
                let inner = 256 * blocks;
                let sizes = ProductSizes { format, inner, weight_rows, rows, threads, isa };
                check(&sizes, with_outliers(blocks as u32, rows * inner));
            }
        }
    }
}

#[test]
fn more_rows_than_are_computed_together_are_as_exact() {
    for (isa, format) in cases_with_floats() {
        let (inner, rows) = (512, 270);
        let sizes = ProductSizes { format, inner, weight_rows: 33, rows, threads: 2, isa };
        check(&sizes, with_outliers(5, rows * inner));
    }
}

#[test]
fn rows_that_end_within_eight_blocks_are_as_exact() {
    for (isa, format) in cases().filter(|(_, format)| FINE_FORMATS.contains(format)) {
        for inner in [32, 96, 288, 480, 2880] {
            let all = with_outliers(inner as u32, 18 * inner);
            let product = |weight_rows: usize, rows: usize, threads: usize| {
                let sizes = ProductSizes { format, inner, weight_rows, rows, threads, isa };
                check(&sizes, all[..rows * inner].to_vec())
            };
            product(5, 1, 1);
            product(70, 3, 3);
            let together = product(43, 18, 2);
            for rows in 1..=9 {
                assert_eq!(product(43, rows, 2), together[..rows * 43], "{rows} rows of {format}");
            }
        }
    }
}

#[test]
fn rows_of_floats_of_any_length_are_as_exact() {
    for (isa, format) in cases_with_floats().filter(|(_, format)| FLOATS.contains(format)) {
        for inner in [16, 48, 576, 2896] {
            for (weight_rows, rows, threads) in
                [(1, 1, 1), (3, 2, 2), (43, 7, 2), (70, 40, 3), (65, 350, 2)]
            {
                let sizes = ProductSizes { format, inner, weight_rows, rows, threads, isa };
                check(&sizes, with_outliers(inner as u32, rows * inner));
            }
        }
    }
}

#[test]
fn tiles_give_the_very_bits_of_avx512() {
    if !Isa::Avx512Vnni.is_here_for_a_test() {
        return;
    }
    let formats = WIDE_FORMATS.map(|format| (format, 512)).into_iter();
    for (format, inner) in formats.chain(FINE_FORMATS.map(|format| (format, 288))) {
        // Parts of a tile, of two tiles and of the rows that are computed with them.
        for (weight_rows, rows, threads) in
            [(5, 8, 1), (43, 9, 2), (96, 16, 3), (70, 24, 2), (33, 257, 2), (64, 300, 3)]
        {
            let isa = Isa::Avx512Vnni;
            let sizes = ProductSizes { format, inner, weight_rows, rows, threads, isa };
            let arena = Arena::new();
            let product = Product::new(&arena, &sizes, with_outliers(9, rows * inner));
            let compute = |side| arena.compute(product.op, side, threads);
            let registers = compute(KernelSide::Own(isa));
            assert_eq!(compute(KernelSide::SoftTiles), registers, "{sizes:?}");
            if Isa::Amx.is_available() {
                assert_eq!(compute(KernelSide::Own(Isa::Amx)), registers, "{sizes:?}");
            }
        }
    }
}

#[test]
fn rows_with_gaps_between_them_are_read_in_place() {
    let (inner, rows, weight_rows) = (512, 9, 20);
    for (isa, format) in cases_with_floats() {
        let arena = Arena::new();
        let (bytes, _) = quantised(format, &noise(1, inner * weight_rows), inner);
        let weights = arena.tensor(format, [inner as i64, weight_rows as i64, 1, 1], &bytes);
        let wide = arena.floats([2 * inner as i64, rows as i64, 1, 1], &noise(2, 2 * inner * rows));
        // SAFETY: a view within `wide`, a copy of it, and their products with the weights.
        let [gaps, none] = unsafe {
            let view = arena.make(|context| {
                let (row, stride) = (inner as i64, 8 * inner);
                sys::ggml_view_2d(context, wide.as_ptr(), row, rows as i64, stride, 4 * inner)
            });
            let values: Vec<f32> =
                wide.floats().chunks(inner).skip(1).step_by(2).flatten().copied().collect();
            let copy = arena.floats([inner as i64, rows as i64, 1, 1], &values);
            [view, copy].map(|right| {
                let product =
                    |context| sys::ggml_mul_mat(context, weights.as_ptr(), right.as_ptr());
                arena.compute(arena.make(product), KernelSide::Own(isa), 2)
            })
        };
        assert_eq!(gaps, none, "format {format}");
    }
}

#[test]
fn rows_of_several_sequences_are_the_bits_of_one() {
    let (inner, rows, weight_rows) = (512, 6, 20);
    for (isa, format) in cases_with_floats() {
        let arena = Arena::new();
        let (bytes, _) = quantised(format, &noise(1, inner * weight_rows), inner);
        let weights = arena.tensor(format, [inner as i64, weight_rows as i64, 1, 1], &bytes);
        let values = with_outliers(2, inner * rows);
        let product = |sequences: usize| {
            let shape = [inner as i64, (rows / sequences) as i64, sequences as i64, 1];
            let right = arena.floats(shape, &values);
            // SAFETY: tensors of the context with rows of the same length.
            let op = arena.make(|context| unsafe {
                sys::ggml_mul_mat(context, weights.as_ptr(), right.as_ptr())
            });
            arena.compute(op, KernelSide::Own(isa), 2)
        };
        let together = product(1);
        for sequences in [2, 3, 6] {
            assert_eq!(product(sequences), together, "{sequences} sequences, format {format}");
        }
    }
}

#[test]
fn rotations_for_which_ggml_has_a_transform_are_left_to_it() {
    let arena = Arena::new();
    let [left, right] = [1, 2].map(|seed| arena.floats([64, 64, 1, 1], &noise(seed, 64 * 64)));
    // SAFETY: tensors of the context with rows of the same length; nobody else has the product.
    let is_ours = |hint: sys::ggml_op_hint| unsafe {
        let op = arena.make(|context| sys::ggml_mul_mat(context, left.as_ptr(), right.as_ptr()));
        (*op.as_ptr()).op_params[1] = hint as i32;
        Operation::of(op.get()).is_some()
    };
    assert!(is_ours(sys::GGML_HINT_NONE));
    assert!(!is_ours(sys::GGML_HINT_SRC0_IS_HADAMARD));
}

#[test]
fn a_broken_row_stays_visible_and_alone() {
    for (isa, format) in cases_with_floats() {
        for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let sizes =
                ProductSizes { format, inner: 512, weight_rows: 20, rows: 18, threads: 2, isa };
            let (good, mut values) = (noise(3, 18 * 512), noise(3, 18 * 512));
            values[4 * 512 + 300] = broken;
            let results = [good, values].map(|values| {
                let arena = Arena::new();
                let product = Product::new(&arena, &sizes, values);
                arena.compute(product.op, KernelSide::Own(isa), 2)
            });
            let [good, found] = results.each_ref().map(|all| all.chunks_exact(20));
            for (row, (good, found)) in good.zip(found).enumerate() {
                match row {
                    4 => assert!(!found.iter().any(|value| value.is_finite()), "format {format}"),
                    _ => assert_eq!(good, found, "row {row} of format {format}"),
                }
            }
        }
    }
}
