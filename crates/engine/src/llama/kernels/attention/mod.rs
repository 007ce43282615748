//! Attention of queries over a cache that many sequences share.
//!
//! llama.cpp's kernel visits, for each query and head, every cell of a unified cache, those of
//! other sequences and of kept prefixes included, and looks up in the mask whether it counts.
//! Here the mask is read once per query and group of heads, many cells at a time, and the cells
//! that count are read once for all heads that share them, and for up to eight rows of a prompt.
//! What a step costs depends on its own sequences, not on what else the cache keeps; and a masked
//! cell's numbers, NaN included, reach no other sequence.

mod cells;
mod micro_kernel;

use std::arch::x86_64::*;

use self::cells::{MASK_LANES, MOST_RUN, QueryRun, VisibleCells, run_of};
use self::micro_kernel::{MOST_ROWS, Matrix, exponentials, score, weigh};
use super::sys;
use super::work_queue::WorkQueue;

/// A fused attention of the graph that the kernel can compute: f32 queries, f16 keys and values.
pub(super) struct Attention<'a> {
    queries: &'a sys::ggml_tensor,
    keys: &'a sys::ggml_tensor,
    values: &'a sys::ggml_tensor,
    mask: &'a sys::ggml_tensor,
    output: &'a sys::ggml_tensor,
    scale: f32,
    cells: usize,
}

impl<'a> Attention<'a> {
    /// `op` as attention, if it is one that the kernel can compute.
    pub(super) fn of(op: &'a sys::ggml_tensor) -> Option<Self> {
        if op.op != sys::GGML_OP_FLASH_ATTN_EXT || !op.src[4].is_null() {
            return None;
        }
        // SAFETY: null, or operands that live as long as the operation.
        let [queries, keys, values, mask] = unsafe {
            [op.src[0].as_ref()?, op.src[1].as_ref()?, op.src[2].as_ref()?, op.src[3].as_ref()?]
        };
        let parameter = |i: usize| f32::from_bits(op.op_params[i] as u32);
        let (scale, max_bias, softcap) = (parameter(0), parameter(1), parameter(2));
        let head_size = queries.ne[0];
        // Attention sinks, ALiBi, soft caps and other head sizes are left to ggml.
        let fits = queries.type_ == sys::GGML_TYPE_F32
            && [keys, values, mask].iter().all(|t| t.type_ == sys::GGML_TYPE_F16 && t.nb[0] == 2)
            && queries.nb[0] == 4
            && op.nb[0] == 4
            && (head_size == 64 || head_size == 128)
            && keys.ne[0] == head_size
            && values.ne[0] == head_size
            && keys.ne[1] == values.ne[1]
            && keys.ne[1] % MASK_LANES as i64 == 0
            && mask.ne[0] >= keys.ne[1]
            && mask.ne[1] >= queries.ne[1]
            && mask.ne[2] == 1
            && queries.ne[3] % mask.ne[3] == 0
            && keys.ne[2] == values.ne[2]
            && queries.ne[2] % keys.ne[2] == 0
            && queries.ne[3] == keys.ne[3]
            && queries.ne[3] == values.ne[3]
            && max_bias == 0.0
            && softcap == 0.0;
        let cells = usize::try_from(keys.ne[1]).ok()?;
        fits.then_some(Self { queries, keys, values, mask, output: op, scale, cells })
    }

    /// Bytes of one thread's lists: cells with their biases, and scores of the rows of a pass.
    fn thread_bytes(&self) -> usize {
        self.cells * (size_of::<u32>() + (1 + MOST_ROWS) * size_of::<f32>())
    }

    /// Work memory in bytes.
    pub(super) fn memory_bytes(&self, threads: usize) -> usize {
        threads * self.thread_bytes() + 64
    }

    /// Computes one thread's share: runs of queries, one group of heads at a time.
    ///
    /// # Safety
    /// The processor is [`super::supported`]; all threads of `queue` call this with the same
    /// `memory` of [`Attention::memory_bytes`]; the tensors have their data.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
    pub(super) unsafe fn compute(&self, queue: &WorkQueue, memory: *mut u8) {
        // SAFETY: a part of the memory for each thread, aligned; plain numbers, which any bytes
        // are.
        let (mut cells, scores) = unsafe {
            // Floats first, then indices, each thread its own: nothing is shared but the queue.
            let own = memory.add(memory.align_offset(64) + queue.thread * self.thread_bytes());
            let floats = own.cast::<f32>();
            let part = |i: usize, parts| {
                std::slice::from_raw_parts_mut(floats.add(i * self.cells), parts * self.cells)
            };
            let indices = own.add((1 + MOST_ROWS) * self.cells * size_of::<f32>());
            let indices = std::slice::from_raw_parts_mut(indices.cast::<u32>(), self.cells);
            (VisibleCells { indices, biases: part(0, 1) }, part(1, MOST_ROWS))
        };
        queue.begin();
        let [_, queries, heads, streams] = self.queries.ne.map(|n| n as usize);
        let groups = self.keys.ne[2] as usize;
        let together = heads / groups;
        // Queries per chunk: as many as fill a pass with the heads that share keys and values
        // (grouped-query attention), so that each cell is read once for all of them.
        let tile = (MOST_ROWS / together).clamp(1, MOST_RUN);
        let tiles = queries.div_ceil(tile);
        while let Some(chunk) = queue.next(streams * groups * tiles) {
            let (stream, rest) = (chunk / (groups * tiles), chunk % (groups * tiles));
            let (group, first) = (rest / tiles, rest % tiles * tile);
            let end = queries.min(first + tile);
            let mut at = first;
            // Queries of different sequences see different cells, so a tile may be several runs.
            while at < end {
                // SAFETY: the queries and the stream exist.
                let masks: [&[u16]; MOST_RUN] = std::array::from_fn(|i| unsafe {
                    self.mask_row((at + i).min(end - 1), stream)
                });
                let run = run_of(&masks[..end - at], &mut cells);
                let heads = Heads { query: at, head: group * together, together, group, stream };
                // SAFETY: passed on.
                unsafe { self.attend(&heads, &run, &cells, scores) }
                at += run.queries;
            }
        }
    }

    /// The mask of `query` in `stream`.
    ///
    /// # Safety
    /// They exist.
    unsafe fn mask_row(&self, query: usize, stream: usize) -> &[u16] {
        let stream = stream % self.mask.ne[3] as usize;
        // SAFETY: the mask has this row, of at least `cells` numbers.
        unsafe {
            let start = self.mask.data.byte_add(query * self.mask.nb[1] + stream * self.mask.nb[3]);
            std::slice::from_raw_parts(start.cast::<u16>(), self.cells)
        }
    }

    /// Attention of a run's rows, as many at a time as a pass takes.
    ///
    /// # Safety
    /// `heads` and the cells are within the tensors; `scores` has room for [`MOST_ROWS`].
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
    unsafe fn attend(
        &self,
        heads: &Heads,
        run: &QueryRun,
        cells: &VisibleCells<'_>,
        scores: &mut [f32],
    ) {
        let rows = run.queries * heads.together;
        let mut first = 0;
        while first < rows {
            let left = rows - first;
            // SAFETY: passed on; these rows exist.
            // Fewer rows leave registers for more cells or columns at a time: 16 sums in any case
            // while scoring, up to 16 while weighing.
            first += unsafe {
                match (self.queries.ne[0], left) {
                    (64, 8..) => self.pass::<4, 8, 2, 2>(heads, first, run, cells, scores),
                    (64, 4..) => self.pass::<4, 4, 4, 4>(heads, first, run, cells, scores),
                    (64, 2..) => self.pass::<4, 2, 8, 4>(heads, first, run, cells, scores),
                    (64, _) => self.pass::<4, 1, 16, 4>(heads, first, run, cells, scores),
                    (_, 8..) => self.pass::<8, 8, 2, 2>(heads, first, run, cells, scores),
                    (_, 4..) => self.pass::<8, 4, 4, 4>(heads, first, run, cells, scores),
                    (_, 2..) => self.pass::<8, 2, 8, 8>(heads, first, run, cells, scores),
                    (_, _) => self.pass::<8, 1, 16, 8>(heads, first, run, cells, scores),
                }
            };
        }
    }

    /// Attention of `R` rows of `16 N` numbers from the run's row `first` on; returns `R`.
    /// Scores are computed for `C` cells at a time, sums of values for `16 J` columns.
    ///
    /// # Safety
    /// As for `attend`.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
    unsafe fn pass<const N: usize, const R: usize, const C: usize, const J: usize>(
        &self,
        heads: &Heads,
        first: usize,
        run: &QueryRun,
        cells: &VisibleCells<'_>,
        scores: &mut [f32],
    ) -> usize {
        const { assert!(R <= MOST_ROWS && N.is_multiple_of(J)) }
        let (pitch, padded) = (self.cells, run.cells.next_multiple_of(16));
        let indices = &cells.indices[..run.cells];
        let [keys, values] = [self.keys, self.values].map(|t| heads.matrix(t));
        let rows = std::array::from_fn(|r| {
            heads.row(self.queries, first + r, false).cast::<f32>().cast_const()
        });
        // SAFETY: passed on.
        unsafe { score::<N, R, C>(rows, keys, indices, self.scale, scores, pitch) }
        // Scores become weights in place. They are divided by their sum only at the end, at the
        // output's few numbers instead of every cell's weight.
        let mut shares = [_mm512_setzero_ps(); R];
        for (r, share) in shares.iter_mut().enumerate() {
            let scores = &mut scores[r * pitch..][..padded];
            scores[run.cells..].fill(f32::NEG_INFINITY);
            // A run is computed over the cells of its last query; earlier ones do not see all.
            for at in run.hidden_from((first + r) / heads.together) {
                scores[at] = f32::NEG_INFINITY;
            }
            let sum = exponentials(scores, &cells.biases[..padded]);
            *share = _mm512_set1_ps(if sum == 0.0 { 0.0 } else { 1.0 / sum });
        }
        for column in (0..16 * N).step_by(16 * J) {
            // SAFETY: passed on.
            let totals = unsafe { weigh::<R, J>(scores, pitch, values, indices, column) };
            for (r, totals) in totals.iter().enumerate() {
                let to = heads.row(self.output, first + r, true).cast::<f32>();
                for (j, total) in totals.iter().enumerate() {
                    // SAFETY: the output has this row, of `16 N` numbers.
                    unsafe {
                        let to = to.add(column + 16 * j);
                        _mm512_storeu_ps(to, _mm512_mul_ps(*total, shares[r]));
                    }
                }
            }
        }
        R
    }
}

/// The rows of a run: the heads of one group, of the queries from `query` on.
struct Heads {
    query: usize,
    head: usize,
    /// Heads of the group: rows of a query.
    together: usize,
    group: usize,
    stream: usize,
}

impl Heads {
    /// The beginning of row `row` in `tensor`: the queries, or the output, in which heads and
    /// queries have changed places.
    fn row(&self, tensor: &sys::ggml_tensor, row: usize, output: bool) -> *mut u8 {
        let (query, head) = (self.query + row / self.together, self.head + row % self.together);
        let (b, c) = if output { (head, query) } else { (query, head) };
        let start = tensor.data.cast::<u8>();
        start.wrapping_add(b * tensor.nb[1] + c * tensor.nb[2] + self.stream * tensor.nb[3])
    }

    /// The group's keys or values.
    fn matrix(&self, tensor: &sys::ggml_tensor) -> Matrix {
        let start = tensor.data.cast::<u8>();
        let start = start.wrapping_add(self.group * tensor.nb[2] + self.stream * tensor.nb[3]);
        Matrix { start, stride: tensor.nb[1] }
    }
}
