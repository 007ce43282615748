//! Attention of queries over a cache that many sequences share.
//!
//! llama.cpp's kernel visits, for each query and head, every cell of a unified cache, including
//! those of other sequences and of kept prefixes, and looks up in the mask whether it counts. Here
//! the mask is read once per query, many cells at a time, and the cells that count are read once
//! for all heads that share them, and for up to eight rows of a prompt. The cost of a step depends
//! on its own sequences, and of the rest of the cache on the reading of masks alone; and a masked
//! cell's numbers, NaN included, reach no other sequence.

mod masks;
mod micro_kernel;

use std::arch::x86_64::*;

use self::masks::{run_of, write_parts};
use self::micro_kernel::{MOST_ROWS, exponentials, score, weigh};
use crate::attention::{Attention, HALF, Heads, KvFormat, Q8_0};
use crate::query_runs::{QueryRun, VisibleCells};
use crate::work_queue::WorkQueue;

/// Work memory in bytes.
pub(crate) fn memory_bytes(op: &Attention<'_>, threads: usize) -> usize {
    op.memory_bytes(MOST_ROWS, threads)
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
            MOST_ROWS,
            queue,
            memory,
            |lanes, parts| write_parts(lanes, parts),
            |masks, cells| run_of(masks, cells),
            |heads, run, cells, scores| match op.kv {
                KvFormat::Half => attend::<HALF>(op, heads, run, cells, scores),
                KvFormat::Q8_0 => attend::<Q8_0>(op, heads, run, cells, scores),
            },
        );
    }
}

/// Computes attention for a run's rows, as many at a time as a pass takes.
///
/// # Safety
/// `heads` and the cells are within the tensors, whose format is `KV`; `scores` has room for
/// [`MOST_ROWS`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
unsafe fn attend<const KV: u8>(
    op: &Attention<'_>,
    heads: &Heads,
    run: &QueryRun,
    cells: &VisibleCells<'_>,
    scores: &mut [f32],
) {
    let rows = run.queries * heads.together;
    let mut first = 0;
    while first < rows {
        // A head of `16 N` numbers. Fewer rows leave registers for more cells or columns at a
        // time: 16 sums in any case while scoring, up to 16 while weighing `16 J` columns.
        macro_rules! pass {
            ($n:literal; $eight:literal, $four:literal, $two:literal, $one:literal) => {
                match rows - first {
                    8.. => pass::<$n, 8, 2, $eight, KV>(op, heads, first, run, cells, scores),
                    4.. => pass::<$n, 4, 4, $four, KV>(op, heads, first, run, cells, scores),
                    2.. => pass::<$n, 2, 8, $two, KV>(op, heads, first, run, cells, scores),
                    _ => pass::<$n, 1, 16, $one, KV>(op, heads, first, run, cells, scores),
                }
            };
        }
        // SAFETY: passed on; these rows exist.
        first += unsafe {
            match op.queries.ne[0] {
                32 => pass!(2; 2, 2, 2, 2),
                64 => pass!(4; 2, 4, 4, 4),
                96 => pass!(6; 2, 2, 6, 6),
                128 => pass!(8; 2, 4, 8, 8),
                256 => pass!(16; 2, 4, 8, 8),
                size => unreachable!("heads of {size} are not taken"),
            }
        };
    }
}

/// Computes attention for `R` rows of `16 N` numbers from the run's row `first` on; returns `R`.
/// Scores are computed for `C` cells at a time, sums of values for `16 J` columns.
///
/// # Safety
/// As for `attend`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
unsafe fn pass<const N: usize, const R: usize, const C: usize, const J: usize, const KV: u8>(
    op: &Attention<'_>,
    heads: &Heads,
    first: usize,
    run: &QueryRun,
    cells: &VisibleCells<'_>,
    scores: &mut [f32],
) -> usize {
    const { assert!(R <= MOST_ROWS && N.is_multiple_of(J)) }
    let (pitch, padded) = (op.cells, run.cells.next_multiple_of(16));
    let indices = &cells.indices[..run.cells];
    let [keys, values] = [op.keys, op.values].map(|t| heads.matrix(t));
    let rows =
        std::array::from_fn(|r| heads.row(op.queries, first + r, false).cast::<f32>().cast_const());
    // SAFETY: the caller guarantees that the heads' rows and the cells' keys are within the
    // tensors.
    unsafe { score::<N, R, C, KV>(rows, keys, indices, op.scale, scores, pitch) }
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
        let sink = heads.sink(op, first + r);
        let sum = exponentials(scores, &cells.biases[..padded], sink);
        *share = _mm512_set1_ps(if sum == 0.0 { 0.0 } else { 1.0 / sum });
    }
    for column in (0..16 * N).step_by(16 * J) {
        // SAFETY: the caller guarantees that the cells' values, in these columns, are within the
        // tensors.
        let totals = unsafe { weigh::<R, J, KV>(scores, pitch, values, indices, column) };
        for (r, totals) in totals.iter().enumerate() {
            let to = heads.row(op.output, first + r, true).cast::<f32>();
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
