//! Matrix product, computed by all threads together.

use std::arch::x86_64::*;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::amx::{LEAST_ROWS, TileProducts};
use super::micro_kernel::{RegisterProducts, multiply};
use super::pack::pack;
use super::tile::{Prefetch, Tile, WeightRows};
use super::{ActivationBlock, LANES};
use crate::BLOCK;
use crate::amx::TileUnit;
use crate::matmul::{ExpertRoutes, MatMul, MatrixRows};
use crate::weight_format::WeightFormat;
use crate::work_queue::WorkQueue;

/// Activation rows that a tile of weights is multiplied with before the next tile. A block of each
/// comes from the second-level cache (88 KiB), in order, and is used for thousands of cycles; with
/// 64, which fit the first level, unpacking took 4 % more of the time.
const ROWS_AT_ONCE: usize = 256;
/// Weight rows of two tiles, which share the loads of activations.
const TWO_TILES: usize = 2 * LANES;
/// Up to this many activation rows, tiles are computed one by one: two, with the prefetched lines
/// of the next two, take more of the first-level cache than they save in loads.
const FEW_ROWS: usize = 16;
/// Weight rows that a thread takes at a time: few enough that the others can take over from a
/// thread displaced by other work, and enough that taking them costs nothing next to computing
/// them.
const ROWS_PER_CHUNK: usize = 2 * TWO_TILES;
/// Lines of its first weights that a thread prefetches before it packs activations, and with each
/// block of them.
const FIRST_LINES: (usize, usize) = (24, 4);

/// Bytes of packed activations.
fn packed_bytes(op: &MatMul<'_>) -> usize {
    op.rows * op.blocks * size_of::<ActivationBlock>()
}

/// Bytes of a copy of the weights, needed if there are fewer rows than a tile has.
fn padded_bytes(op: &MatMul<'_>) -> usize {
    if op.weight_rows < LANES { LANES * op.row_bytes } else { 0 }
}

/// Work memory in bytes.
pub(crate) fn memory_bytes(op: &MatMul<'_>, threads: usize) -> usize {
    let counters = threads * size_of::<Counter>();
    packed_bytes(op) + padded_bytes(op) + counters + align_of::<Counter>()
}

/// Computes one thread's share: packs activations, waits for the others, multiplies; many rows with
/// the tiles of `unit`, if given.
///
/// # Safety
/// The processor has AVX-512 VNNI, and the unit's instructions; all threads of `queue` call this
/// with the same `memory` of [`memory_bytes`]; the tensors have their data.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
pub(crate) unsafe fn compute<U: TileUnit>(
    op: &MatMul<'_>,
    queue: &WorkQueue,
    memory: *mut u8,
    unit: Option<U>,
) {
    // SAFETY: within the memory, and aligned; each thread writes its own counter.
    let (counters, memory) = unsafe {
        let counters = memory.add(memory.align_offset(align_of::<Counter>())).cast::<Counter>();
        counters.add(queue.thread).write(Counter::default());
        (counters, counters.add(queue.threads).cast::<u8>())
    };
    // SAFETY: by the caller the tensors have their data, so the choices have been computed.
    let routes = unsafe { op.routes() };
    let shares = RowShares::new(op.weight_rows, &routes.parts, queue.threads);
    // Weights come from far away; they are on their way while activations are packed.
    let first = shares.first_row(op, queue.thread, 0);
    let mut ahead = Prefetch::lines(first, LANES * op.row_bytes);
    ahead.pieces(FIRST_LINES.0);
    // SAFETY: within the memory, and aligned; threads write different blocks.
    let padded = unsafe {
        pack_share(op, &routes, memory.cast(), queue, ahead);
        let padded = memory.add(packed_bytes(op));
        (padded_bytes(op) > 0).then(|| pad_weights(op, padded, queue.thread))
    };
    queue.begin();
    // SAFETY: all threads are past writing their counters and blocks.
    let (counters, packed) = unsafe {
        let counters = std::slice::from_raw_parts(counters, queue.threads);
        (counters, std::slice::from_raw_parts(memory.cast(), op.rows * op.blocks))
    };
    let totals = [[_mm512_setzero_ps(); 2]; ROWS_AT_ONCE];
    let operands = Operands { op, routes: &routes, padded, packed };
    let many_rows = unit.map(|unit| TileProducts::new(unit, op.format));
    let mut share = ThreadShare { operands, tiles: [Tile::zero(); 2], totals, many_rows };
    // First a thread's own share, then what is left of the others'.
    for thread in (queue.thread..queue.threads).chain(0..queue.thread) {
        loop {
            let chunk = counters[thread].next();
            let Some((part, rows)) = shares.rows(thread, chunk) else { break };
            let after = shares.first_row(op, thread, chunk + 1);
            // SAFETY: the rows exist, and no other thread has taken them.
            unsafe { share.multiply(part, rows, after) }
        }
    }
}

/// Number of chunks of a share that have been taken. On its own cache line, as each thread writes
/// mostly its own.
#[derive(Default)]
#[repr(align(64))]
struct Counter(AtomicUsize);

impl Counter {
    fn next(&self) -> usize {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

/// Distribution of weight rows: each thread has a share of successive rows, which the hardware
/// prefetcher can follow through memory, and takes it chunk by chunk. The rows of one matrix follow
/// those of another; no chunk has rows of two.
struct RowShares<'a> {
    parts: &'a [MatrixRows],
    weight_rows: usize,
    /// Chunks of a matrix.
    chunks: usize,
    per_share: usize,
}

impl<'a> RowShares<'a> {
    fn new(weight_rows: usize, parts: &'a [MatrixRows], threads: usize) -> Self {
        let chunks = weight_rows.div_ceil(ROWS_PER_CHUNK);
        Self { parts, weight_rows, chunks, per_share: (parts.len() * chunks).div_ceil(threads) }
    }

    /// Returns the rows of a chunk of the share of `thread`, and the part that they are multiplied
    /// with; `None` beyond its last.
    fn rows(&self, thread: usize, chunk: usize) -> Option<(MatrixRows, Range<usize>)> {
        if chunk >= self.per_share {
            return None;
        }
        let chunk = thread * self.per_share + chunk;
        let part = self.parts.get(chunk / self.chunks)?;
        let start = chunk % self.chunks * ROWS_PER_CHUNK;
        Some((*part, start..self.weight_rows.min(start + ROWS_PER_CHUNK)))
    }

    /// Returns the start of the first row of a chunk; beyond the last, any address.
    fn first_row(&self, op: &MatMul<'_>, thread: usize, chunk: usize) -> *const u8 {
        let chunk = self.rows(thread, chunk);
        chunk.map_or(op.weight_row(0, 0), |(part, rows)| op.weight_row(part.matrix, rows.start))
    }
}

/// Packs this thread's share of the activations: of every [`ROWS_AT_ONCE`] rows of a part the first
/// blocks side by side, then the second ones, in the order of reading.
///
/// # Safety
/// `packed` has room for all; no other thread writes this thread's share.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn pack_share(
    op: &MatMul<'_>,
    routes: &ExpertRoutes,
    packed: *mut ActivationBlock,
    queue: &WorkQueue,
    mut ahead: Prefetch,
) {
    let mut room = [0.0; BLOCK];
    for part in &routes.parts {
        for index in (0..part.rows * op.blocks).skip(queue.thread).step_by(queue.threads) {
            ahead.pieces(FIRST_LINES.1);
            let (row, block) = (index / op.blocks, index % op.blocks);
            let first = row / ROWS_AT_ONCE * ROWS_AT_ONCE;
            let beside = ROWS_AT_ONCE.min(part.rows - first);
            let place = (part.first + first) * op.blocks + block * beside + (row - first);
            // SAFETY: the row and block are within the tensor, the place within `packed`.
            unsafe {
                let values = op.activations(routes.row(part.first + row), block, &mut room);
                let place = packed.add(place);
                place.write(ActivationBlock::ZERO);
                pack(values, op.format, &mut *place);
            }
        }
    }
}

/// Copies the few rows of weights to `to`, followed by rows of zeros up to a whole tile, if this is
/// the first thread.
///
/// # Safety
/// `to` has room for a tile's rows.
unsafe fn pad_weights(op: &MatMul<'_>, to: *mut u8, thread: usize) -> *const u8 {
    if thread == 0 {
        // SAFETY: the rows exist, and `to` has room for those of a tile.
        unsafe {
            for row in 0..op.weight_rows {
                let bytes = op.weight_blocks((0, row), 0..op.blocks);
                std::ptr::copy_nonoverlapping(
                    bytes.as_ptr(),
                    to.add(row * bytes.len()),
                    bytes.len(),
                );
            }
            let copied = op.weight_rows * op.row_bytes;
            std::ptr::write_bytes(to.add(copied), 0, padded_bytes(op) - copied);
        }
    }
    to
}

/// Operands of the product.
#[derive(Clone, Copy)]
struct Operands<'a> {
    op: &'a MatMul<'a>,
    routes: &'a ExpertRoutes,
    /// The weights, if they had to be padded.
    padded: Option<*const u8>,
    packed: &'a [ActivationBlock],
}

impl<'a> Operands<'a> {
    /// Returns the blocks of a group of a part's activation rows.
    fn activations(&self, part: MatrixRows, group: usize) -> &'a [ActivationBlock] {
        let end = part.rows.min((group + 1) * ROWS_AT_ONCE);
        let rows = part.first + group * ROWS_AT_ONCE..part.first + end;
        &self.packed[rows.start * self.op.blocks..rows.end * self.op.blocks]
    }

    /// Returns the rows of a part's matrix from `first` on, with those from `next` on to follow.
    fn weight_rows(&self, part: MatrixRows, first: usize, next: *const u8) -> WeightRows {
        let row_bytes = self.op.row_bytes;
        let start = match self.padded {
            Some(start) => start.wrapping_add(first * row_bytes),
            None => self.op.weight_row(part.matrix, first),
        };
        let last_bytes = self.op.last_block_bytes();
        WeightRows { start, row_bytes, blocks: self.op.blocks, last_bytes, next }
    }

    /// Returns the address of the result for weight row `weights` and row `row` of a part's group.
    ///
    /// # Safety
    /// Both rows exist.
    unsafe fn output(
        &self,
        part: MatrixRows,
        weights: usize,
        group: usize,
        row: usize,
    ) -> *mut f32 {
        let row = self.routes.row(part.first + group * ROWS_AT_ONCE + row);
        // SAFETY: by the caller both rows exist, as `MatMul::output` requires.
        unsafe { self.op.output(weights, row) }
    }
}

/// Operands and memory of one thread.
struct ThreadShare<'a, U> {
    operands: Operands<'a>,
    tiles: [Tile; 2],
    totals: [[__m512; 2]; ROWS_AT_ONCE],
    /// Products for many activation rows, if not computed with registers.
    many_rows: Option<TileProducts<U>>,
}

impl<U: TileUnit> ThreadShare<'_, U> {
    /// Multiplies the weight rows `rows` with all activations of a part; the rows from `after` on
    /// follow.
    ///
    /// # Safety
    /// The rows exist, and no other thread writes their part of the output.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
    unsafe fn multiply(&mut self, part: MatrixRows, rows: Range<usize>, after: *const u8) {
        let tile_rows = if part.rows > FEW_ROWS { TWO_TILES } else { LANES };
        let row = |row: usize| self.operands.op.weight_row(part.matrix, row);
        let (start, groups) = (row(rows.start), part.rows.div_ceil(ROWS_AT_ONCE));
        for group in 0..groups {
            let after = if group + 1 == groups { after } else { start };
            for first in rows.clone().step_by(tile_rows) {
                let end = rows.end.min(first + tile_rows);
                let row = |row: usize| self.operands.op.weight_row(part.matrix, row);
                let next = if end < rows.end { row(end) } else { after };
                let second = row(first + LANES);
                // SAFETY: `first..end` is within `rows`, which by the caller exist and are written
                // by no other thread.
                unsafe {
                    match end - first {
                        TWO_TILES => self.two_tiles(part, first, next, group),
                        ..=LANES => self.tile(part, first..end, next, group),
                        _ => {
                            self.tile(part, first..first + LANES, second, group);
                            self.tile(part, first + LANES..end, next, group);
                        }
                    }
                }
            }
        }
    }

    /// Multiplies 32 weight rows with a group of activation rows.
    ///
    /// # Safety
    /// As for `multiply`.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
    unsafe fn two_tiles(&mut self, part: MatrixRows, first: usize, next: *const u8, group: usize) {
        let Operands { op, .. } = self.operands;
        let weights = self.operands.weight_rows(part, first, next);
        let activations = self.operands.activations(part, group);
        let totals = &mut self.totals[..activations.len() / op.blocks];
        totals.fill([_mm512_setzero_ps(); 2]);
        // SAFETY: by the caller all 32 weight rows exist, and the processor has the unit's
        // instructions.
        unsafe {
            multiply_with(
                &mut self.many_rows,
                op.format,
                weights,
                activations,
                &mut self.tiles,
                totals,
            )
        }
        for (row, [one, other]) in totals.iter().enumerate() {
            // SAFETY: 32 results of the row.
            unsafe {
                let to = self.operands.output(part, first, group, row);
                _mm512_storeu_ps(to, *one);
                _mm512_storeu_ps(to.add(LANES), *other);
            }
        }
    }

    /// Multiplies up to sixteen weight rows with a group of activation rows.
    ///
    /// # Safety
    /// As for `multiply`.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
    unsafe fn tile(&mut self, part: MatrixRows, rows: Range<usize>, next: *const u8, group: usize) {
        let Operands { op, .. } = self.operands;
        // A tile needs sixteen rows: it begins earlier if too few are left, with rows whose
        // results are then not written.
        let first = rows.start.min(op.weight_rows.saturating_sub(LANES));
        let before = rows.start - first;
        let wanted = ((1u32 << (before + rows.len())) - (1 << before)) as __mmask16;
        let weights = self.operands.weight_rows(part, first, next);
        let activations = self.operands.activations(part, group);
        let totals = self.totals.as_flattened_mut().as_chunks_mut::<1>().0;
        let totals = &mut totals[..activations.len() / op.blocks];
        totals.fill([_mm512_setzero_ps()]);
        let tile = std::array::from_mut(&mut self.tiles[0]);
        // SAFETY: the rows exist, or were padded.
        unsafe { multiply_with(&mut self.many_rows, op.format, weights, activations, tile, totals) }
        for (row, [total]) in totals.iter().enumerate() {
            // SAFETY: only wanted results are written, which exist.
            unsafe {
                let to = self.operands.output(part, first, group, row);
                _mm512_mask_storeu_ps(to, wanted, *total);
            }
        }
    }
}

/// Calls [`multiply`] with `many_rows`, if given and there are enough rows, otherwise with
/// registers.
///
/// # Safety
/// As for [`multiply`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
unsafe fn multiply_with<const W: usize, U: TileUnit>(
    many_rows: &mut Option<TileProducts<U>>,
    format: WeightFormat,
    weights: WeightRows,
    activations: &[ActivationBlock],
    tiles: &mut [Tile; W],
    totals: &mut [[__m512; W]],
) {
    // SAFETY: passed on from the caller, whose preconditions are those of `multiply`.
    unsafe {
        match many_rows {
            Some(products) if totals.len() >= LEAST_ROWS => {
                multiply(format, weights, activations, tiles, totals, products);
            }
            _ => multiply(format, weights, activations, tiles, totals, &mut RegisterProducts),
        }
    }
}
