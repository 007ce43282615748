//! Products with the experts that a router chose for each row: every format, rows for one token and
//! for many, experts chosen by no token or by every one.

use super::arena::{Arena, ArenaTensor, KernelSide};
use super::products::{cases, with_outliers};
use super::{Deviation, Isa, noise, quantised, sys};

/// Experts of a layer.
const EXPERTS: usize = 6;

/// The sizes of a product.
#[derive(Debug, Clone, Copy)]
struct ExpertSizes {
    format: sys::ggml_type,
    /// Elements of a row of weights or activations.
    inner: usize,
    weight_rows: usize,
    tokens: usize,
    /// Experts chosen for a token.
    used: usize,
    /// True if all experts of a token have the same activations.
    shared: bool,
    threads: usize,
    isa: Isa,
}

impl ExpertSizes {
    /// Experts of each token. The last expert is never chosen, and the first one by every token.
    fn choices(&self) -> Vec<i32> {
        let choice = |token: usize, i: usize| {
            if i == 0 { 0 } else { 1 + (3 * token + i) % (EXPERTS - 2) }
        };
        let tokens = (0..self.tokens).flat_map(|t| (0..self.used).map(move |i| choice(t, i)));
        tokens.map(|expert| expert as i32).collect()
    }

    /// Rows of activations of a token.
    fn beside(&self) -> usize {
        if self.shared { 1 } else { self.used }
    }
}

/// A product with its operands as numbers.
struct ExpertProduct<'a> {
    op: ArenaTensor<'a>,
    weights: ArenaTensor<'a>,
    /// Weights as dequantised by ggml, expert after expert.
    values: Vec<f32>,
    activations: Vec<f32>,
}

impl<'a> ExpertProduct<'a> {
    fn new(arena: &'a Arena, sizes: &ExpertSizes) -> Self {
        let ExpertSizes { format, inner, weight_rows, tokens, used, .. } = *sizes;
        let all = noise(1, inner * weight_rows * EXPERTS);
        let (bytes, values) = quantised(format, &all, inner);
        let shape = |a: usize, b: usize| [inner as i64, a as i64, b as i64, 1];
        let weights = arena.tensor(format, shape(weight_rows, EXPERTS), &bytes);
        let beside = sizes.beside();
        let activations = with_outliers(5, inner * beside * tokens);
        let right = arena.floats(shape(beside, tokens), &activations);
        let choices: Vec<u8> = sizes.choices().iter().flat_map(|i| i.to_ne_bytes()).collect();
        let choices =
            arena.tensor(sys::GGML_TYPE_I32, [used as i64, tokens as i64, 1, 1], &choices);
        // SAFETY: tensors of the context whose sizes fit each other.
        let op = arena.make(|context| unsafe {
            sys::ggml_mul_mat_id(context, weights.as_ptr(), right.as_ptr(), choices.as_ptr())
        });
        Self { op, weights, values, activations }
    }

    /// Activations of row `row` of the output.
    fn activations(&self, sizes: &ExpertSizes, row: usize) -> &[f32] {
        let (token, choice) = (row / sizes.used, row % sizes.used);
        let row = token * sizes.beside() + choice % sizes.beside();
        &self.activations[row * sizes.inner..][..sizes.inner]
    }

    /// Result in double precision.
    fn exact(&self, sizes: &ExpertSizes) -> Vec<f64> {
        let matrix = sizes.inner * sizes.weight_rows;
        let row = |(row, expert): (usize, &i32)| {
            let activations = self.activations(sizes, row).to_vec();
            let weights = &self.values[*expert as usize * matrix..][..matrix];
            weights.chunks_exact(sizes.inner).map(move |weights| {
                let pairs = weights.iter().zip(&activations);
                pairs.map(|(w, a)| f64::from(*w) * f64::from(*a)).sum()
            })
        };
        sizes.choices().iter().enumerate().flat_map(row).collect()
    }
}

/// Compares a product of both sides with the exact one; returns ours.
fn check(arena: &Arena, sizes: &ExpertSizes) -> Vec<f32> {
    let product = ExpertProduct::new(arena, sizes);
    let own = arena.compute(product.op, KernelSide::Own(sizes.isa), sizes.threads);
    let llama = arena.compute(product.op, KernelSide::Llama, sizes.threads);
    let exact = product.exact(sizes);
    Deviation::of(&own, &exact).check(Deviation::of(&llama, &exact), 2e-6, sizes);
    own
}

#[test]
fn any_number_of_tokens_is_as_exact_as_llama_cpps() {
    for (isa, format) in cases() {
        for (tokens, used, threads) in [(1, 1, 1), (1, 4, 2), (2, 3, 3), (16, 2, 2), (90, 4, 2)] {
            for (shared, weight_rows) in [(true, 70), (false, 16)] {
                let inner = 512;
                let sizes =
                    ExpertSizes { format, inner, weight_rows, tokens, used, shared, threads, isa };
                check(&Arena::new(), &sizes);
            }
        }
    }
}

#[test]
fn a_row_is_what_its_expert_alone_makes_of_it() {
    for (isa, format) in cases() {
        let sizes = ExpertSizes {
            format,
            inner: 768,
            weight_rows: 40,
            tokens: 23,
            used: 3,
            shared: true,
            threads: 2,
            isa,
        };
        let arena = Arena::new();
        let product = ExpertProduct::new(&arena, &sizes);
        let all = arena.compute(product.op, KernelSide::Own(isa), sizes.threads);
        for (row, expert) in sizes.choices().into_iter().enumerate() {
            let inner = sizes.inner as i64;
            let right = arena.floats([inner, 1, 1, 1], product.activations(&sizes, row));
            // SAFETY: a view of the expert's matrix, and its product with a row of as many numbers.
            let alone = unsafe {
                let matrix = arena.make(|context| {
                    let weights = &*product.weights.as_ptr();
                    let (rows, offset) = (weights.ne[1], expert as usize * weights.nb[2]);
                    let weights = product.weights.as_ptr();
                    sys::ggml_view_2d(context, weights, inner, rows, (*weights).nb[1], offset)
                });
                arena.make(|context| sys::ggml_mul_mat(context, matrix.as_ptr(), right.as_ptr()))
            };
            let alone = arena.compute(alone, KernelSide::Own(isa), 1);
            let found = &all[row * sizes.weight_rows..][..sizes.weight_rows];
            assert_eq!(found, alone, "row {row} of {format}, {isa:?}");
        }
    }
}

#[test]
fn tiles_give_the_very_bits_of_avx512() {
    let isa = Isa::Avx512Vnni;
    for (_, format) in cases().filter(|(found, _)| *found == isa) {
        let (inner, weight_rows, tokens, used) = (512, 40, 37, 3);
        let (shared, threads) = (true, 2);
        let sizes = ExpertSizes { format, inner, weight_rows, tokens, used, shared, threads, isa };
        let arena = Arena::new();
        let product = ExpertProduct::new(&arena, &sizes);
        let compute = |side| arena.compute(product.op, side, threads);
        let registers = compute(KernelSide::Own(isa));
        assert_eq!(compute(KernelSide::SoftTiles), registers, "{sizes:?}");
        if Isa::Amx.is_available() {
            assert_eq!(compute(KernelSide::Own(Isa::Amx)), registers, "{sizes:?}");
        }
    }
}

#[test]
fn experts_of_fewer_rows_than_a_tile_are_left_to_llama_cpp() {
    let format = sys::GGML_TYPE_Q4_K;
    for isa in super::isas() {
        let sizes = ExpertSizes {
            format,
            inner: 256,
            weight_rows: 15,
            tokens: 1,
            used: 2,
            shared: true,
            threads: 1,
            isa,
        };
        assert!(!ExpertProduct::new(&Arena::new(), &sizes).op.is_ours());
        let sizes = ExpertSizes { weight_rows: 16, ..sizes };
        assert!(ExpertProduct::new(&Arena::new(), &sizes).op.is_ours());
    }
}
