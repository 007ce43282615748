//! Matrix products with weights that are floats: F32, F16 and BF16, for all instruction sets.
//!
//! llama.cpp multiplies one row of activations by another way than several, and its sums differ.
//! Here each result is the sum of the same numbers in the same order, however many rows there are:
//! lane `l` of a register adds the products `l`, `l + LANES`, `l + 2 LANES`…, and the lanes are
//! added at the end. Activations are not rounded, except for BF16 on a processor that multiplies
//! pairs of them.

use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
use std::marker::PhantomData;
use std::ops::Range;

use super::sys;
use super::work_queue::WorkQueue;

/// Weight rows that share the loads of activations.
const TILE: usize = 4;
/// Weight rows that a thread takes at a time; they stay in its second-level cache while they are
/// multiplied with all activations.
const ROWS_PER_CHUNK: usize = 64;
/// Bytes of the activations that a chunk is multiplied with before the next ones: the other half
/// of that cache.
const GROUP_BYTES: usize = 256 << 10;
/// A row of weights or activations is a multiple of this many numbers: of the widest register.
const UNIT: usize = 16;
/// Bytes of a cache line.
const LINE: usize = 64;

/// A matrix product of the graph with weights that are floats.
pub(super) struct FloatMatMul<'a> {
    format: FloatFormat,
    weights: &'a sys::ggml_tensor,
    activations: &'a sys::ggml_tensor,
    output: &'a sys::ggml_tensor,
    /// Numbers in a row of weights or of activations.
    elements: usize,
    /// Rows of weights: values per row of output.
    weight_rows: usize,
    /// Rows of output, each the product with one row of activations.
    rows: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FloatFormat {
    F32,
    F16,
    Bf16,
}

impl FloatFormat {
    fn of(kind: sys::ggml_type) -> Option<Self> {
        match kind {
            sys::GGML_TYPE_F32 => Some(Self::F32),
            sys::GGML_TYPE_F16 => Some(Self::F16),
            sys::GGML_TYPE_BF16 => Some(Self::Bf16),
            _ => None,
        }
    }

    fn bytes(self) -> usize {
        match self {
            Self::F32 => F32::BYTES,
            Self::F16 => F16::BYTES,
            Self::Bf16 => Bf16::BYTES,
        }
    }
}

/// Returns true if weights of ggml's type `kind` are floats that these products read.
pub(super) fn reads(kind: sys::ggml_type) -> bool {
    FloatFormat::of(kind).is_some()
}

impl<'a> FloatMatMul<'a> {
    /// Returns `op` as a product with floats, if it is one that can be computed here.
    pub(super) fn of(op: &'a sys::ggml_tensor) -> Option<Self> {
        if op.op != sys::GGML_OP_MUL_MAT {
            return None;
        }
        // SAFETY: a matrix product has two operands that live as long as it does.
        let (weights, activations) = unsafe { (op.src[0].as_ref()?, op.src[1].as_ref()?) };
        let format = FloatFormat::of(weights.type_)?;
        let elements = usize::try_from(weights.ne[0]).ok()?;
        // A rotation of llama.cpp's quantised KV cache, for which ggml has a fast transform.
        let is_hadamard = op.op_params[1] == sys::GGML_HINT_SRC0_IS_HADAMARD as i32;
        // Anything else (products of several matrices, columns with gaps) is left to ggml.
        let fits = weights.extra.is_null() // otherwise in another back end's own layout
            && !is_hadamard
            && elements.is_multiple_of(UNIT)
            && weights.nb[0] == format.bytes()
            && [activations, op].into_iter().all(|tensor| {
                tensor.type_ == sys::GGML_TYPE_F32
                    && tensor.nb[0] == size_of::<f32>()
                    // Recurrent models have a matrix of activations for each sequence.
                    && (tensor.ne[2] == 1 || tensor.nb[2] == tensor.nb[1] * tensor.ne[1] as usize)
            })
            && [weights.ne[2], weights.ne[3], activations.ne[3], op.ne[3]] == [1; 4];
        fits.then_some(Self {
            format,
            weights,
            activations,
            output: op,
            elements,
            weight_rows: usize::try_from(weights.ne[1]).ok()?,
            rows: usize::try_from(op.ne[1] * op.ne[2]).ok()?,
        })
    }

    /// Returns true if the weights are BF16 and rows have a multiple of `unit` numbers.
    pub(super) fn is_bf16_in(&self, unit: usize) -> bool {
        self.format == FloatFormat::Bf16 && self.elements.is_multiple_of(unit)
    }

    /// Numbers of all activations.
    pub(super) fn activations(&self) -> usize {
        self.rows * self.elements
    }

    /// Returns the activations of thread `thread` of `threads`: rows of as many numbers as a row of
    /// weights has, each with its number.
    ///
    /// # Safety
    /// The activations have been computed.
    pub(super) unsafe fn activations_of(
        &self,
        thread: usize,
        threads: usize,
    ) -> impl Iterator<Item = (usize, &[f32])> {
        (thread..self.rows).step_by(threads).map(|row| {
            let start = StridedRows::of(self.activations).row(row).cast::<f32>();
            // SAFETY: the row exists, its numbers are side by side, and by the caller there.
            (row, unsafe { std::slice::from_raw_parts(start, self.elements) })
        })
    }

    /// Computes one thread's share with registers `R`, activations as they are.
    ///
    /// # Safety
    /// The processor has these registers; all threads of `queue` call this; the tensors have their
    /// data.
    #[inline(always)]
    pub(super) unsafe fn compute<R: FloatRegister>(&self, queue: &WorkQueue) {
        let activations = StridedRows::of(self.activations);
        // SAFETY: passed on from the caller.
        unsafe {
            match self.format {
                FloatFormat::F32 => self.share::<Floats<R, F32>>(queue, activations),
                FloatFormat::F16 => self.share::<Floats<R, F16>>(queue, activations),
                FloatFormat::Bf16 => self.share::<Floats<R, Bf16>>(queue, activations),
            }
        }
    }

    /// Computes one thread's share with activations that were rounded, in rows without gaps.
    ///
    /// # Safety
    /// As for `compute`; every thread has written its share of `activations` for `O`.
    #[inline(always)]
    pub(super) unsafe fn compute_rounded<O: FloatOperands>(
        &self,
        queue: &WorkQueue,
        activations: *const u8,
    ) {
        let stride = self.elements * O::ACTIVATION_BYTES;
        // SAFETY: passed on from the caller.
        unsafe { self.share::<O>(queue, StridedRows { start: activations, stride }) }
    }

    /// Computes one thread's share, chunk by chunk.
    ///
    /// # Safety
    /// As for `compute`; `activations` are the operands'.
    #[inline(always)]
    unsafe fn share<O: FloatOperands>(&self, queue: &WorkQueue, activations: StridedRows) {
        queue.begin();
        let chunks = self.weight_rows.div_ceil(ROWS_PER_CHUNK);
        let mut taken = queue.next(chunks);
        while let Some(chunk) = taken {
            // One more than is computed, so that its first rows are on their way.
            taken = queue.next(chunks);
            let next = self.weight_row(taken.unwrap_or(chunk + 1) * ROWS_PER_CHUNK);
            let start = chunk * ROWS_PER_CHUNK;
            let rows = start..self.weight_rows.min(start + ROWS_PER_CHUNK);
            // SAFETY: passed on from the caller; no other thread takes these rows.
            unsafe { self.rows::<O>(rows, next, activations) }
        }
    }

    /// Multiplies the weight rows `rows` with all activations; those from `next` on come next.
    ///
    /// # Safety
    /// As for `share`; the rows exist, and no other thread writes their results.
    #[inline(always)]
    unsafe fn rows<O: FloatOperands>(
        &self,
        rows: Range<usize>,
        next: *const u8,
        activations: StridedRows,
    ) {
        let together = GROUP_BYTES / (O::ACTIVATION_BYTES * self.elements.max(1));
        let together = together.max(O::Register::ROWS);
        for group in (0..self.rows).step_by(together) {
            let group = group..self.rows.min(group + together);
            for first in rows.clone().step_by(TILE) {
                let tile = first..rows.end.min(first + TILE);
                let next = if tile.end < rows.end { self.weight_row(tile.end) } else { next };
                // While they are multiplied for the first time.
                let mut next = (group.start == 0).then_some(next);
                let mut row = group.start;
                while row < group.end {
                    let next = next.take();
                    // SAFETY: passed on from the caller; the rows exist.
                    row += unsafe {
                        match O::Register::ROWS.min(group.end - row) {
                            1 => self.tile::<O, 1>(&tile, next, activations, row),
                            2 => self.tile::<O, 2>(&tile, next, activations, row),
                            3 => self.tile::<O, 3>(&tile, next, activations, row),
                            4 => self.tile::<O, 4>(&tile, next, activations, row),
                            5 => self.tile::<O, 5>(&tile, next, activations, row),
                            _ => self.tile::<O, 6>(&tile, next, activations, row),
                        }
                    };
                }
            }
        }
    }

    /// Multiplies up to [`TILE`] weight rows with `N` rows of activations from `row` on, and
    /// prefetches those at `next`, if given; returns `N`.
    ///
    /// # Safety
    /// As for `rows`; the rows of activations exist.
    #[inline(always)]
    unsafe fn tile<O: FloatOperands, const N: usize>(
        &self,
        tile: &Range<usize>,
        next: Option<*const u8>,
        activations: StridedRows,
        row: usize,
    ) -> usize {
        // A tile has four rows: the last one again where there are fewer.
        let weights: [*const u8; TILE] =
            std::array::from_fn(|i| self.weight_row((tile.start + i).min(tile.end - 1)));
        let activations: [*const u8; N] = std::array::from_fn(|i| activations.row(row + i));
        let mut sums = [[O::Register::zero(); TILE]; N];
        // SAFETY: by the caller the rows exist; each has `elements` numbers, a multiple of a
        // register's. What is prefetched need not exist.
        unsafe {
            for at in (0..self.elements).step_by(O::STEP) {
                if let Some(next) = next {
                    for line in (0..TILE * O::STEP * O::WEIGHT_BYTES).step_by(LINE) {
                        let place = TILE * at * O::WEIGHT_BYTES + line;
                        prefetch(next.wrapping_add(place));
                    }
                }
                let mut four = [O::Register::zero(); TILE];
                for i in 0..TILE {
                    four[i] = O::weights(weights[i].add(at * O::WEIGHT_BYTES));
                }
                for n in 0..N {
                    let values = O::activations(activations[n].add(at * O::ACTIVATION_BYTES));
                    for i in 0..TILE {
                        sums[n][i] = O::multiplied(four[i], values, sums[n][i]);
                    }
                }
            }
            for (n, sums) in sums.into_iter().enumerate() {
                let results = O::Register::lane_sums(sums);
                let to = StridedRows::of(self.output).row(row + n).cast_mut().cast::<f32>();
                let to = to.add(tile.start);
                std::ptr::copy_nonoverlapping(results.as_ptr(), to, tile.len());
            }
        }
        N
    }

    /// Returns the start of a row of weights; possibly beyond the last.
    #[inline(always)]
    fn weight_row(&self, row: usize) -> *const u8 {
        self.weights.data.cast::<u8>().wrapping_add(row * self.weights.nb[1])
    }
}

/// Rows at equal distances in memory.
#[derive(Clone, Copy)]
struct StridedRows {
    start: *const u8,
    stride: usize,
}

impl StridedRows {
    #[inline(always)]
    fn of(tensor: &sys::ggml_tensor) -> Self {
        Self { start: tensor.data.cast::<u8>().cast_const(), stride: tensor.nb[1] }
    }

    #[inline(always)]
    fn row(&self, row: usize) -> *const u8 {
        self.start.wrapping_add(row * self.stride)
    }
}

/// Asks for the cache line at `at`, which need not exist.
#[inline(always)]
fn prefetch(at: *const u8) {
    // SAFETY: all x86-64 processors have SSE, and a program cannot see what a prefetch reads.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
}

/// A register of floats: what the products need of an instruction set.
///
/// Its functions are inlined into a function that has the instructions, as only there they are
/// instructions and not calls.
pub(super) trait FloatRegister: Copy {
    /// Floats in a register.
    const LANES: usize;
    /// Rows of activations, up to 6, whose sums with [`TILE`] rows of weights fit the registers.
    const ROWS: usize;

    fn zero() -> Self;

    /// Loads f32.
    ///
    /// # Safety
    /// The processor has these registers, and there are [`Self::LANES`] numbers.
    unsafe fn f32(at: *const u8) -> Self;

    /// Loads F16.
    ///
    /// # Safety
    /// As for [`Self::f32`].
    unsafe fn f16(at: *const u8) -> Self;

    /// Loads BF16, the upper halves of f32.
    ///
    /// # Safety
    /// As for [`Self::f32`].
    unsafe fn bf16(at: *const u8) -> Self;

    /// Returns `self * factor + sum`, rounded once.
    ///
    /// # Safety
    /// The processor has these registers.
    unsafe fn multiplied(self, factor: Self, sum: Self) -> Self;

    /// Adds the lanes of each register, in the same order for all.
    ///
    /// # Safety
    /// The processor has these registers.
    unsafe fn lane_sums(registers: [Self; TILE]) -> [f32; TILE];
}

/// Operands of a product: how registers of weights and of activations are loaded, and their
/// products added.
pub(super) trait FloatOperands {
    type Register: FloatRegister;
    /// Bytes of a weight.
    const WEIGHT_BYTES: usize;
    /// Bytes of an activation.
    const ACTIVATION_BYTES: usize;
    /// Numbers that are loaded at once.
    const STEP: usize;

    /// Loads weights.
    ///
    /// # Safety
    /// The processor has these registers, and there are [`Self::STEP`] numbers.
    unsafe fn weights(at: *const u8) -> Self::Register;

    /// Loads activations.
    ///
    /// # Safety
    /// As for [`Self::weights`].
    unsafe fn activations(at: *const u8) -> Self::Register;

    /// Adds the products to `sum`.
    ///
    /// # Safety
    /// The processor has these registers.
    unsafe fn multiplied(
        weights: Self::Register,
        activations: Self::Register,
        sum: Self::Register,
    ) -> Self::Register;
}

/// Weights in a format `W`, multiplied as f32 with activations as they are.
struct Floats<R, W>(PhantomData<(R, W)>);

impl<R: FloatRegister, W: StoredFloat> FloatOperands for Floats<R, W> {
    type Register = R;
    const WEIGHT_BYTES: usize = W::BYTES;
    const ACTIVATION_BYTES: usize = size_of::<f32>();
    const STEP: usize = R::LANES;

    #[inline(always)]
    unsafe fn weights(at: *const u8) -> R {
        // SAFETY: passed on from the caller.
        unsafe { W::load(at) }
    }

    #[inline(always)]
    unsafe fn activations(at: *const u8) -> R {
        // SAFETY: passed on from the caller.
        unsafe { R::f32(at) }
    }

    #[inline(always)]
    unsafe fn multiplied(weights: R, activations: R, sum: R) -> R {
        // SAFETY: passed on from the caller.
        unsafe { weights.multiplied(activations, sum) }
    }
}

/// A format of floats in memory.
trait StoredFloat {
    /// Bytes of a number.
    const BYTES: usize;

    /// Loads a register.
    ///
    /// # Safety
    /// As for [`FloatRegister::f32`].
    unsafe fn load<R: FloatRegister>(at: *const u8) -> R;
}

macro_rules! stored_float {
    ($name:ident, $bytes:literal, $load:ident) => {
        struct $name;

        impl StoredFloat for $name {
            const BYTES: usize = $bytes;

            #[inline(always)]
            unsafe fn load<R: FloatRegister>(at: *const u8) -> R {
                // SAFETY: passed on from the caller.
                unsafe { R::$load(at) }
            }
        }
    };
}

stored_float!(F32, 4, f32);
stored_float!(F16, 2, f16);
stored_float!(Bf16, 2, bf16);
