//! Matrix product, computed by all threads together.

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch, _mm256_setzero_ps};
use std::ops::Range;

use super::one_row::{MOST_PARTS, PartSums, RowProducts, arrangement, row_products};
use super::pack::pack;
use super::products::{DotProducts, dot_products};
use super::unpack::{
    UnpackedBlock, filled, iq4_nl, iq4_xs, mxfp4, q2_k, q3_k, q4_0, q4_1, q4_k, q5_0, q5_1, q5_k,
    q6_k, q8_0,
};
use super::unpack_grids::{iq2_s, iq2_xs, iq2_xxs, iq3_s, iq3_xxs};
use super::{Arrangement, GroupedActivations, LANES, ROWS_AT_ONCE};
use crate::BLOCK;
use crate::matmul::{ExpertRoutes, MatMul, MatrixRows};
use crate::weight_format::WeightFormat;
use crate::work_queue::WorkQueue;

/// Maximum blocks of a part of a row. With all lanes a part of the activations takes 22 KiB, and
/// that of the unpacked weights 14 KiB; they share a first-level cache of 32 or 48 KiB. The sum
/// over a row is the sum of its parts' sums for any number of activation rows, so that results do
/// not depend on the batch.
const BLOCKS_AT_ONCE: usize = 4;
/// Minimum and maximum weight rows that a thread takes at a time, as with AVX-512.
const ROWS_PER_CHUNK: (usize, usize) = (16, 256);

/// Unpacked weights: a part of [`ROWS_AT_ONCE`] rows, row by row.
type Tile = [UnpackedBlock; ROWS_AT_ONCE * BLOCKS_AT_ONCE];

/// Work memory in bytes.
pub(crate) fn memory_bytes(op: &MatMul<'_>) -> usize {
    op.rows * op.blocks * size_of::<GroupedActivations>() + align_of::<GroupedActivations>()
}

/// Computes one thread's share: packs activations, waits for the others, multiplies.
///
/// # Safety
/// The processor has AVX2, FMA and F16C, and AVX-VNNI if `vnni`; all threads of `queue` call this
/// with the same `memory` of [`memory_bytes`]; the tensors have their data.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn compute(op: &MatMul<'_>, queue: &WorkQueue, memory: *mut u8, vnni: bool) {
    // SAFETY: by the caller the tensors have their data, so the choices have been computed.
    let routes = unsafe { op.routes() };
    // SAFETY: within the memory, and aligned; threads write different blocks. After `begin` all
    // are written.
    let packed = unsafe {
        let packed = memory.add(memory.align_offset(align_of::<GroupedActivations>())).cast();
        pack_share(op, &routes, packed, queue);
        queue.begin();
        std::slice::from_raw_parts(packed.cast_const(), op.rows * op.blocks)
    };
    let product = TiledProduct {
        op,
        routes: &routes,
        packed,
        dot_products: dot_products(op.format, vnni),
        row_products: row_products(op.format, vnni),
        vnni,
    };
    let (least, most) = ROWS_PER_CHUNK;
    // Sixteen chunks per thread: at the end at most a sixteenth of its work is waited for.
    let all_rows = op.weight_rows * routes.parts.len();
    let per_chunk = (all_rows / (16 * queue.threads)).clamp(least, most);
    let chunks = op.weight_rows.div_ceil(per_chunk);
    let mut tile = [UnpackedBlock::zero(); ROWS_AT_ONCE * BLOCKS_AT_ONCE];
    let mut sums = [[_mm256_setzero_ps(); ROWS_AT_ONCE]; MOST_PARTS];
    while let Some(chunk) = queue.next(chunks * routes.parts.len()) {
        let (part, chunk) = (routes.parts[chunk / chunks], chunk % chunks);
        let end = ((chunk + 1) * per_chunk).min(op.weight_rows);
        for first in (chunk * per_chunk..end).step_by(ROWS_AT_ONCE) {
            // SAFETY: the rows exist, and are in this thread's chunk.
            unsafe {
                let rows = first..end.min(first + ROWS_AT_ONCE);
                if is_single(op, part) {
                    product.multiply_row(&mut sums, part, rows);
                } else {
                    product.multiply(&mut tile, part, rows);
                }
            }
        }
    }
}

/// Blocks of a part of a row: all but the last have as many.
fn part_blocks(op: &MatMul<'_>) -> usize {
    op.blocks.div_ceil(op.blocks.div_ceil(BLOCKS_AT_ONCE))
}

/// Returns true if a part has a single row of activations, for which there is a faster path.
fn is_single(op: &MatMul<'_>, part: MatrixRows) -> bool {
    part.rows == 1 && op.blocks <= MOST_PARTS * part_blocks(op)
}

/// Index of a block among the packed ones: a part's rows in groups of [`LANES`], of which the last
/// may have fewer, and the same block of a group's rows side by side.
fn place(op: &MatMul<'_>, part: MatrixRows, row: usize, block: usize) -> usize {
    let first = row / LANES * LANES;
    let count = LANES.min(part.rows - first);
    (part.first + first) * op.blocks + block * count + row % LANES
}

/// Packs this thread's share of the activations.
///
/// # Safety
/// `packed` has room for all; no other thread writes this thread's share.
#[target_feature(enable = "avx2,fma")]
unsafe fn pack_share(
    op: &MatMul<'_>,
    routes: &ExpertRoutes,
    packed: *mut GroupedActivations,
    queue: &WorkQueue,
) {
    let halves = op.format.has_halves();
    let mut room = [0.0; BLOCK];
    for part in &routes.parts {
        let arrangement =
            if is_single(op, *part) { arrangement(op.format) } else { Arrangement::Turned };
        for index in (0..part.rows * op.blocks).skip(queue.thread).step_by(queue.threads) {
            let (row, block) = (index / op.blocks, index % op.blocks);
            // SAFETY: the row and block are within the tensor, the place within `packed`, where
            // any bytes are valid numbers.
            unsafe {
                let values = op.activations(routes.row(part.first + row), block, &mut room);
                pack(values, halves, arrangement, &mut *packed.add(place(op, *part, row, block)));
            }
        }
    }
}

/// A product whose activations are packed.
struct TiledProduct<'a> {
    op: &'a MatMul<'a>,
    routes: &'a ExpertRoutes,
    packed: &'a [GroupedActivations],
    dot_products: DotProducts,
    row_products: RowProducts,
    vnni: bool,
}

impl TiledProduct<'_> {
    /// Multiplies the weight rows `rows` of a part's matrix with all of its activations.
    ///
    /// # Safety
    /// The rows exist, and no other thread writes their part of the output.
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn multiply(&self, tile: &mut Tile, part: MatrixRows, rows: Range<usize>) {
        let op = self.op;
        let part_blocks = part_blocks(op);
        for first in (0..op.blocks).step_by(part_blocks) {
            let blocks = part_blocks.min(op.blocks - first);
            for (row, tile) in rows.clone().zip(tile.chunks_exact_mut(blocks)) {
                // SAFETY: by the caller the weights have this row, with `op.blocks` blocks.
                let bytes = unsafe { op.weight_blocks((part.matrix, row), first..first + blocks) };
                // The same part of the next rows, while these are multiplied.
                prefetch(bytes, ROWS_AT_ONCE * op.row_bytes);
                unpack(op.format, self.vnni, bytes, tile);
            }
            let tile = &tile[..rows.len() * blocks];
            for group in (0..part.rows).step_by(LANES) {
                let blocks = first..first + blocks;
                // SAFETY: passed on; the rows' groups exist.
                unsafe { self.multiply_group(tile, rows.clone(), (part, group), blocks) }
            }
        }
    }

    /// Multiplies the weight rows `rows` of a part's matrix with the part's only row of
    /// activations: the same parts of rows as with many, added in the same order.
    ///
    /// # Safety
    /// As for `multiply`.
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn multiply_row(&self, sums: &mut PartSums, part: MatrixRows, rows: Range<usize>) {
        let op = self.op;
        let activations = &self.packed[part.first * op.blocks..][..op.blocks];
        let mut bytes: [&[u8]; ROWS_AT_ONCE] = [&[]; ROWS_AT_ONCE];
        for (row, bytes) in rows.clone().zip(&mut bytes) {
            // SAFETY: by the caller the weights have this row, with `op.blocks` blocks.
            *bytes = unsafe { op.weight_blocks((part.matrix, row), 0..op.blocks) };
        }
        let (bytes, mut totals) = (&bytes[..rows.len()], [0.0; ROWS_AT_ONCE]);
        // SAFETY: the processor has what was chosen.
        unsafe { (self.row_products)(bytes, activations, part_blocks(op), sums, &mut totals) }
        // SAFETY: the rows and the column are within the output.
        unsafe {
            let to = op.output(rows.start, self.routes.row(part.first));
            std::ptr::copy_nonoverlapping(totals.as_ptr(), to, rows.len());
        }
    }

    /// Multiplies some blocks of some weight rows with the part's activation rows from `group` on.
    ///
    /// # Safety
    /// As for `multiply`.
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn multiply_group(
        &self,
        tile: &[UnpackedBlock],
        rows: Range<usize>,
        (part, group): (MatrixRows, usize),
        blocks: Range<usize>,
    ) {
        let op = self.op;
        let count = LANES.min(part.rows - group);
        let lanes = &self.packed[place(op, part, group, blocks.start)..][..count * blocks.len()];
        let mut values = [[0.0; LANES]; ROWS_AT_ONCE];
        for (weights, values) in tile.chunks_exact(blocks.len()).zip(&mut values) {
            // SAFETY: the processor has what was chosen.
            unsafe { (self.dot_products)(weights, lanes, values) }
        }
        for lane in 0..count {
            // SAFETY: the rows and the column are within the output.
            unsafe {
                let row = self.routes.row(part.first + group + lane);
                let to = op.output(rows.start, row);
                for (i, values) in values[..rows.len()].iter().enumerate() {
                    let before = if blocks.start == 0 { 0.0 } else { *to.add(i) };
                    *to.add(i) = before + values[lane];
                }
            }
        }
    }
}

/// Unpacks the blocks in `bytes`, of which the last may be incomplete.
#[target_feature(enable = "avx2,fma,f16c")]
fn unpack(format: WeightFormat, vnni: bool, bytes: &[u8], into: &mut [UnpackedBlock]) {
    macro_rules! blocks {
        ($unpack:ident) => {{
            let (whole, rest) = bytes.as_chunks();
            let last = filled(rest);
            for (block, into) in whole.iter().chain([&last]).zip(into) {
                *into = if vnni { $unpack::<true>(block) } else { $unpack::<false>(block) };
            }
        }};
    }
    match format {
        WeightFormat::Q2K => blocks!(q2_k),
        WeightFormat::Q3K => blocks!(q3_k),
        WeightFormat::Q4K => blocks!(q4_k),
        WeightFormat::Q5K => blocks!(q5_k),
        WeightFormat::Q6K => blocks!(q6_k),
        WeightFormat::Iq4Xs => blocks!(iq4_xs),
        WeightFormat::Iq2Xxs => blocks!(iq2_xxs),
        WeightFormat::Iq2Xs => blocks!(iq2_xs),
        WeightFormat::Iq2S => blocks!(iq2_s),
        WeightFormat::Iq3Xxs => blocks!(iq3_xxs),
        WeightFormat::Iq3S => blocks!(iq3_s),
        WeightFormat::Q8_0 => blocks!(q8_0),
        WeightFormat::Q5_0 => blocks!(q5_0),
        WeightFormat::Q4_0 => blocks!(q4_0),
        WeightFormat::Q5_1 => blocks!(q5_1),
        WeightFormat::Q4_1 => blocks!(q4_1),
        WeightFormat::Iq4Nl => blocks!(iq4_nl),
        WeightFormat::Mxfp4 => blocks!(mxfp4),
    }
}

/// Prefetches the memory `ahead` bytes after `bytes`; no effect if that is beyond the weights.
fn prefetch(bytes: &[u8], ahead: usize) {
    for line in (0..bytes.len()).step_by(64) {
        // SAFETY: a prefetch may name any address.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().wrapping_add(ahead + line).cast());
        }
    }
}
