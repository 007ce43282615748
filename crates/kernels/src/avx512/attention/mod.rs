//! Attention of queries over a cache that many sequences share.
//!
//! llama.cpp's kernel visits, for each query and head, every cell of a unified cache, including
//! those of other sequences and of kept prefixes, and looks up in the mask whether it counts. Here
//! the mask is read once per query, many cells at a time, and the cells that count are read once
//! for all heads that share them, and for up to 32 rows of a prompt. The cost of a step depends
//! on its own sequences, and of the rest of the cache on the reading of masks alone; and a masked
//! cell's numbers, NaN included, reach no other sequence.

mod many_rows;
mod masks;
mod micro_kernel;

use std::arch::x86_64::*;
use std::ops::Range;

use self::masks::{run_of, write_parts};
use self::micro_kernel::{MOST_ROWS, exponentials, score, weigh};
use crate::attention::{Attention, HALF, Heads, KvFormat, Matrix, Q8_0};
use crate::query_runs::{QueryRun, VisibleCells};
use crate::work_queue::WorkQueue;

/// Work memory in bytes.
pub(crate) fn memory_bytes(op: &Attention<'_>, threads: usize) -> usize {
    op.memory_bytes(many_rows::MOST_ROWS, threads)
}

/// Computes one thread's share: runs of queries, one group of heads at a time.
///
/// # Safety
/// The processor has AVX-512 VNNI; all threads of `queue` call this with the same
/// `memory` of [`memory_bytes`]; the tensors have their data.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
pub(crate) unsafe fn compute(op: &Attention<'_>, queue: &WorkQueue, memory: *mut u8) {
    // SAFETY: passed on; the cells of a run are within the tensors.
    unsafe {
        op.compute_runs(
            many_rows::MOST_ROWS,
            queue,
            memory,
            |lanes, parts| write_parts(lanes, parts),
            |masks, cells| run_of(masks, cells),
            |heads, run, cells, scores| {
                let rows = RunRows { op, heads, run, cells };
                match op.kv {
                    KvFormat::Half => rows.attend::<HALF>(scores),
                    KvFormat::Q8_0 => rows.attend::<Q8_0>(scores),
                }
            },
        );
    }
}

/// Rows of a run: the heads of one group, of each of its queries.
#[derive(Clone, Copy)]
struct RunRows<'a> {
    op: &'a Attention<'a>,
    heads: &'a Heads,
    run: &'a QueryRun,
    cells: &'a VisibleCells<'a>,
}

impl RunRows<'_> {
    /// Computes attention for all rows, as many at a time as `scores` has room for.
    ///
    /// # Safety
    /// The heads and the cells are within the tensors, whose format is `KV`; `scores` has room for
    /// all rows, or for [`many_rows::MOST_ROWS`].
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
    unsafe fn attend<const KV: u8>(self, scores: &mut [f32]) {
        let rows = self.run.queries * self.heads.together;
        let mut first = 0;
        while first < rows {
            // A head of `16 N` numbers. Fewer rows leave registers for more cells or columns at a
            // time: 16 sums in any case while scoring, up to 16 while weighing `16 J` columns.
            macro_rules! rows {
                ($n:literal; $eight:literal, $four:literal, $two:literal, $many:literal) => {
                    match rows - first {
                        many_rows::LEAST_ROWS.. => {
                            let end = rows.min(first + many_rows::MOST_ROWS);
                            self.many_rows::<$n, $many, KV>(first..end, scores)
                        }
                        8.. => self.pass::<$n, 8, 2, $eight, KV>(first, scores),
                        4.. => self.pass::<$n, 4, 4, $four, KV>(first, scores),
                        2.. => self.pass::<$n, 2, 8, $two, KV>(first, scores),
                        _ => self.pass::<$n, 1, 16, $two, KV>(first, scores),
                    }
                };
            }
            // SAFETY: passed on; these rows exist.
            first += unsafe {
                match self.op.queries.ne[0] {
                    32 => rows!(2; 2, 2, 2, 2),
                    64 => rows!(4; 2, 4, 4, 4),
                    96 => rows!(6; 2, 2, 6, 3),
                    128 => rows!(8; 2, 4, 8, 4),
                    256 => rows!(16; 2, 4, 8, 4),
                    size => unreachable!("heads of {size} are not taken"),
                }
            };
        }
    }

    /// Computes attention for `R` rows of `16 N` numbers from `first` on; returns `R`. Scores are
    /// computed for `C` cells at a time, sums of values for `16 J` columns.
    ///
    /// # Safety
    /// As for `attend`.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
    unsafe fn pass<const N: usize, const R: usize, const C: usize, const J: usize, const KV: u8>(
        self,
        first: usize,
        scores: &mut [f32],
    ) -> usize {
        const { assert!(R <= MOST_ROWS && N.is_multiple_of(J)) }
        let (pitch, indices) = (self.op.cells, self.indices());
        let [keys, values] = self.keys_and_values();
        let rows = std::array::from_fn(|r| self.query(first + r));
        // SAFETY: the caller guarantees that the heads' rows and the cells' keys are within the
        // tensors.
        unsafe { score::<N, R, C, KV>(rows, keys, indices, self.op.scale, scores, pitch) }
        let mut shares = [0.0; R];
        for (r, share) in shares.iter_mut().enumerate() {
            // SAFETY: the processor has what this function needs.
            *share = unsafe { self.weights_of(first + r, &mut scores[r * pitch..]) };
        }
        for column in (0..16 * N).step_by(16 * J) {
            // SAFETY: the caller guarantees that the cells' values, in these columns, are within
            // the tensors.
            let totals = unsafe { weigh::<R, J, KV>(scores, pitch, values, indices, column) };
            for (r, totals) in totals.iter().enumerate() {
                let (to, share) = (self.output(first + r), _mm512_set1_ps(shares[r]));
                for (j, total) in totals.iter().enumerate() {
                    // SAFETY: the output has this row, of `16 N` numbers.
                    unsafe {
                        let to = to.add(column + 16 * j);
                        _mm512_storeu_ps(to, _mm512_mul_ps(*total, share));
                    }
                }
            }
        }
        R
    }

    /// Computes attention for many rows of `16 N` numbers; returns how many.
    ///
    /// # Safety
    /// As for `attend`; there are at most [`many_rows::MOST_ROWS`].
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
    unsafe fn many_rows<const N: usize, const J: usize, const KV: u8>(
        self,
        rows: Range<usize>,
        scores: &mut [f32],
    ) -> usize {
        let (pitch, indices) = (self.op.cells, self.indices());
        let [keys, values] = self.keys_and_values();
        let mut queries = [std::ptr::null(); many_rows::MOST_ROWS];
        let mut outputs = [std::ptr::null_mut(); many_rows::MOST_ROWS];
        for (at, row) in rows.clone().enumerate() {
            (queries[at], outputs[at]) = (self.query(row), self.output(row));
        }
        let (queries, outputs) = (&queries[..rows.len()], &outputs[..rows.len()]);
        // SAFETY: the caller guarantees that the heads' rows and the cells' keys are within the
        // tensors.
        unsafe {
            many_rows::score::<N, KV>(queries, keys, indices, self.op.scale, scores, pitch);
        }
        let mut shares = [0.0; many_rows::MOST_ROWS];
        for (at, row) in rows.clone().enumerate() {
            // SAFETY: the processor has what this function needs.
            shares[at] = unsafe { self.weights_of(row, &mut scores[at * pitch..]) };
        }
        let shares = &shares[..rows.len()];
        // SAFETY: as for the keys; the output has these rows.
        unsafe { many_rows::weigh::<N, J, KV>(scores, pitch, values, indices, shares, outputs) }
        rows.len()
    }

    /// Makes weights of the scores of `row`, in place. Returns one divided by their sum: they are
    /// divided only at the end, at the output's few numbers instead of every cell's weight.
    ///
    /// # Safety
    /// The processor has AVX-512.
    #[target_feature(enable = "avx512f,avx512dq")]
    unsafe fn weights_of(self, row: usize, scores: &mut [f32]) -> f32 {
        let padded = self.run.cells.next_multiple_of(16);
        let scores = &mut scores[..padded];
        scores[self.run.cells..].fill(f32::NEG_INFINITY);
        // A run is computed over the cells of its last query; earlier ones do not see all.
        for at in self.run.hidden_from(row / self.heads.together) {
            scores[at] = f32::NEG_INFINITY;
        }
        let sink = self.heads.sink(self.op, row);
        let sum = exponentials(scores, &self.cells.biases[..padded], sink);
        if sum == 0.0 { 0.0 } else { 1.0 / sum }
    }

    fn indices(&self) -> &[u32] {
        &self.cells.indices[..self.run.cells]
    }

    fn keys_and_values(&self) -> [Matrix; 2] {
        [self.op.keys, self.op.values].map(|tensor| self.heads.matrix(tensor))
    }

    fn query(&self, row: usize) -> *const f32 {
        self.heads.row(self.op.queries, row, false).cast()
    }

    fn output(&self, row: usize) -> *mut f32 {
        self.heads.row(self.op.output, row, true).cast()
    }
}
