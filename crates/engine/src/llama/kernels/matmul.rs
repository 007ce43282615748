//! A matrix product of the graph, computed by all threads together.

use super::micro_kernel::{FEW_LANES, dot_products, padded, write_columns};
use super::pack::pack;
use super::unpack::WeightFormat;
use super::work_queue::WorkQueue;
use super::{ActivationBlock, BLOCK, LANES, sys};

/// Weight rows multiplied with one part of the activations before the next part. With sixteen, a
/// column of results is one whole cache line: written one by one, values of different rows hit
/// lines that displace each other.
const ROWS_AT_ONCE: usize = 16;
/// Most blocks of a part: with all lanes 36 KiB, which stay in a first-level cache of 48 KiB while
/// sixteen weight rows pass. Rows of 3,072 (12 blocks) did not fit; in parts, steps of 16 rows of
/// the 0.6B shape take 38.4 ms instead of 44.8 and of 32 rows 74.4 instead of 88.9
/// (`bench/RESULTS.md`, "What the profile asked for"). The sum over a row is the sum of its parts'
/// sums for any number of activation rows, so that results do not depend on the batch.
const BLOCKS_AT_ONCE: usize = 6;
/// Fewest and most weight rows that a thread takes at a time: few enough that a thread displaced
/// by other work leaves the rest to the others, and enough that taking them costs nothing next to
/// computing them. Chosen by hand.
const ROWS_PER_CHUNK: (usize, usize) = (16, 256);

/// A matrix product of the graph whose operands the kernels can read.
pub(super) struct MatMul<'a> {
    format: WeightFormat,
    weights: &'a sys::ggml_tensor,
    activations: &'a sys::ggml_tensor,
    output: &'a sys::ggml_tensor,
    /// Blocks in a row of weights or of activations.
    blocks: usize,
    /// Rows of weights: values per row of output.
    weight_rows: usize,
    /// Rows of activations and of output.
    rows: usize,
}

impl<'a> MatMul<'a> {
    /// `op` as a product, if it is one that the kernels can compute.
    pub(super) fn of(op: &'a sys::ggml_tensor) -> Option<Self> {
        if op.op != sys::GGML_OP_MUL_MAT {
            return None;
        }
        // SAFETY: a matrix product has two operands that live as long as it does.
        let (weights, activations) = unsafe { (op.src[0].as_ref()?, op.src[1].as_ref()?) };
        let format = WeightFormat::of(weights.type_)?;
        let is_matrix = |t: &sys::ggml_tensor| t.ne[2] == 1 && t.ne[3] == 1;
        let blocks = usize::try_from(weights.ne[0]).ok()? / BLOCK;
        // Anything else (batched products, views with gaps, other types) is left to ggml.
        let fits = weights.extra.is_null() // otherwise in another back end's own layout
            && weights.ne[0] % BLOCK as i64 == 0
            && weights.nb[0] == format.unit_bytes()
            && weights.nb[1] == blocks * format.block_bytes()
            && activations.type_ == sys::GGML_TYPE_F32
            && op.type_ == sys::GGML_TYPE_F32
            && activations.nb[0] == size_of::<f32>()
            && op.nb[0] == size_of::<f32>()
            && [weights, activations, op].into_iter().all(is_matrix);
        fits.then_some(Self {
            format,
            weights,
            activations,
            output: op,
            blocks,
            weight_rows: usize::try_from(weights.ne[1]).ok()?,
            rows: usize::try_from(activations.ne[1]).ok()?,
        })
    }

    /// Blocks of packed activations: groups of [`LANES`] rows.
    fn packed_blocks(&self) -> usize {
        self.rows.div_ceil(LANES) * LANES * self.blocks
    }

    /// Work memory in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.packed_blocks() * size_of::<ActivationBlock>() + align_of::<ActivationBlock>()
    }

    /// Computes one thread's share: packs activations, waits for the others, multiplies.
    ///
    /// # Safety
    /// The processor is [`super::supported`]; all threads of `queue` call this with the same
    /// `memory` of [`MatMul::memory_bytes`]; the tensors have their data.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
    pub(super) unsafe fn compute(&self, queue: &WorkQueue, memory: *mut u8) {
        // SAFETY: within the memory, and aligned; threads write different blocks.
        let packed = unsafe {
            let packed = memory.add(memory.align_offset(align_of::<ActivationBlock>()));
            self.pack(packed.cast(), queue.thread, queue.threads);
            packed
        };
        queue.begin();
        // SAFETY: all threads are past packing, and all lanes that are read were written; so
        // were the others, as memory of C's allocator that any bytes are valid in.
        let packed = unsafe {
            let groups = packed.cast::<[ActivationBlock; LANES]>();
            std::slice::from_raw_parts(groups, self.packed_blocks() / LANES)
        };
        let (least, most) = ROWS_PER_CHUNK;
        // Sixteen chunks per thread: at the end at most a sixteenth of its work is waited for.
        let per_chunk = (self.weight_rows / (16 * queue.threads)).clamp(least, most);
        while let Some(chunk) = queue.next(self.weight_rows.div_ceil(per_chunk)) {
            let end = ((chunk + 1) * per_chunk).min(self.weight_rows);
            for first in (chunk * per_chunk..end).step_by(ROWS_AT_ONCE) {
                // SAFETY: the rows exist, and are in this thread's chunk.
                unsafe { self.multiply(packed, first..end.min(first + ROWS_AT_ONCE)) }
            }
        }
    }

    /// Packs this thread's share of the activations, and zeros for lanes of the last group that
    /// are computed but not used.
    ///
    /// # Safety
    /// `packed` has room for all; no other thread writes this thread's share.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn pack(&self, packed: *mut ActivationBlock, thread: usize, threads: usize) {
        let full = self.rows / LANES * LANES;
        let rows = full + padded(self.rows - full);
        for index in (thread..rows * self.blocks).step_by(threads) {
            let (row, block) = (index / self.blocks, index % self.blocks);
            // The same block of sixteen rows side by side: the order in which it is read.
            let place = (row / LANES * self.blocks + block) * LANES + row % LANES;
            // SAFETY: the row and block are within the tensor, the place within `packed`.
            unsafe {
                if row >= self.rows {
                    packed.add(place).write(ActivationBlock::ZERO);
                    continue;
                }
                let row = self.activations.data.byte_add(row * self.activations.nb[1]);
                let values = row.cast::<f32>().add(block * BLOCK).cast::<[f32; BLOCK]>();
                pack(&*values, &mut *packed.add(place));
            }
        }
    }

    /// The weight rows `rows`, times all activations.
    ///
    /// # Safety
    /// The rows exist, and no other thread writes their part of the output.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
    unsafe fn multiply(&self, packed: &[[ActivationBlock; LANES]], rows: std::ops::Range<usize>) {
        let parts = self.blocks.div_ceil(BLOCKS_AT_ONCE);
        let part_blocks = self.blocks.div_ceil(parts);
        for (group, lanes) in packed.chunks_exact(self.blocks).enumerate() {
            let count = LANES.min(self.rows - group * LANES);
            let mut values = [[0.0; LANES]; ROWS_AT_ONCE];
            // If all activations fit the cache, a weight row is read from begin to end, as the
            // processor's prefetch likes it; else each part of them serves all rows in turn.
            let row_by_row = self.blocks * count <= BLOCKS_AT_ONCE * LANES;
            for i in 0..rows.len() * parts {
                // Either order adds a row's parts in the same sequence, so the sums are equal.
                let (row, part) = match row_by_row {
                    true => (i / parts, i % parts),
                    false => (i % rows.len(), i / rows.len()),
                };
                let first = part * part_blocks;
                let lanes = &lanes[first..self.blocks.min(first + part_blocks)];
                // SAFETY: the row exists.
                let bytes = unsafe { self.weights(rows.start + row, first, lanes.len()) };
                dot_products(self.format, bytes, lanes, count, &mut values[row]);
            }
            if count <= FEW_LANES {
                for (row, values) in rows.clone().zip(&values) {
                    for (lane, value) in values[..count].iter().enumerate() {
                        // SAFETY: the row and the column are within the output.
                        unsafe { *self.output(row, group * LANES + lane) = *value }
                    }
                }
                continue;
            }
            // SAFETY: the rows and the columns are within the output.
            unsafe {
                let column = |lane| self.output(rows.start, group * LANES + lane);
                write_columns(&values, (rows.len(), count), column);
            }
        }
    }

    /// The place in the output of a row of weights times a row of activations.
    ///
    /// # Safety
    /// Both rows exist.
    unsafe fn output(&self, weights: usize, activations: usize) -> *mut f32 {
        // SAFETY: by the caller.
        unsafe {
            self.output.data.byte_add(activations * self.output.nb[1]).cast::<f32>().add(weights)
        }
    }

    /// Blocks of a row of weights.
    ///
    /// # Safety
    /// The row exists, and has these blocks.
    unsafe fn weights(&self, row: usize, first: usize, blocks: usize) -> &[u8] {
        let block = self.format.block_bytes();
        // SAFETY: by the caller; rows are whole blocks, one after the other.
        unsafe {
            let start = self.weights.data.byte_add(row * self.weights.nb[1] + first * block);
            std::slice::from_raw_parts(start.cast::<u8>(), blocks * block)
        }
    }
}
