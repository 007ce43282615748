//! Lists of the cells that a query sees, read from the mask, and runs of queries that see nearly
//! the same cells.

use std::arch::x86_64::*;

/// Cells whose mask is read at once: one register of 16-bit floats.
pub(super) const MASK_LANES: usize = 32;
/// Negative infinity as a 16-bit float: a cell that does not count.
const MASKED: i16 = 0xfc00u16 as i16;
/// Most queries of a [`QueryRun`].
pub(super) const MOST_RUN: usize = 8;

/// The cells that count, in the order of the cache.
pub(super) struct VisibleCells<'a> {
    pub(super) indices: &'a mut [u32],
    /// Added to their scores; 0 after the last up to a multiple of [`MASK_LANES`].
    pub(super) biases: &'a mut [f32],
}

/// Successive queries of one sequence: each sees what the one before it sees and, being later, at
/// most one cell more. They are computed together, over the cells of the last.
pub(super) struct QueryRun {
    pub(super) queries: usize,
    pub(super) cells: usize,
    /// Pairs of a query and the place, in the list of cells, of one that it does not see.
    hidden: [(u8, u32); NONE_HIDDEN.len()],
    hidden_count: usize,
}

/// Room for all: each query sees at most one cell less than the next.
const NONE_HIDDEN: [(u8, u32); MOST_RUN * (MOST_RUN - 1) / 2] =
    [(0, 0); MOST_RUN * (MOST_RUN - 1) / 2];

impl QueryRun {
    /// The places in the list of cells that the run's query number `query` does not see.
    pub(super) fn hidden_from(&self, query: usize) -> impl Iterator<Item = usize> {
        let hidden = &self.hidden[..self.hidden_count];
        hidden.iter().filter(move |(of, _)| usize::from(*of) == query).map(|(_, at)| *at as usize)
    }
}

/// The run at the beginning of `rows`, the masks of successive queries; lists its cells.
#[target_feature(enable = "avx512f,avx512bw,f16c")]
pub(super) fn run_of(rows: &[&[u16]], cells: &mut VisibleCells<'_>) -> QueryRun {
    let most = rows.len().min(MOST_RUN);
    let mut queries = 1;
    while queries < most && follows(rows[queries - 1], rows[queries]) {
        queries += 1;
    }
    let mut run = QueryRun { queries, cells: 0, hidden: NONE_HIDDEN, hidden_count: 0 };
    let last = rows[queries - 1];
    for (i, lanes) in last.as_chunks::<MASK_LANES>().0.iter().enumerate() {
        let mut seen = seen(lanes);
        for (query, row) in rows[..queries - 1].iter().enumerate() {
            let mut hidden = seen & !self::seen(&row.as_chunks::<MASK_LANES>().0[i]);
            while hidden != 0 {
                // Its place in the list: the cells listed so far and those before it in this word.
                let before = (seen & ((hidden & hidden.wrapping_neg()) - 1)).count_ones();
                run.hidden[run.hidden_count] = (query as u8, run.cells as u32 + before);
                run.hidden_count += 1;
                hidden &= hidden - 1;
            }
        }
        // One set bit at a time: masks are sparse where a cache holds many sequences.
        while seen != 0 {
            let lane = seen.trailing_zeros();
            seen &= seen - 1;
            let bits = _mm_cvtsi32_si128(i32::from(lanes[lane as usize]));
            cells.indices[run.cells] = (i * MASK_LANES) as u32 + lane;
            cells.biases[run.cells] = _mm_cvtss_f32(_mm_cvtph_ps(bits));
            run.cells += 1;
        }
    }
    // Whole registers are read later: what follows the last cell must be numbers.
    let padded = run.cells.next_multiple_of(MASK_LANES);
    cells.biases[run.cells..padded].fill(0.0);
    run
}

/// Whether the query with the mask `next` sees all that the one with `row` sees, with the same
/// biases, and at most one cell more, its own: so that a run hides no cells of others.
#[target_feature(enable = "avx512f,avx512bw")]
fn follows(row: &[u16], next: &[u16]) -> bool {
    let mut more = 0;
    for (lanes, next) in row.as_chunks::<MASK_LANES>().0.iter().zip(next.as_chunks().0) {
        let (before, after) = (seen(lanes), seen(next));
        // Biases are compared too: with a bias per position (not only 0 and minus infinity) two
        // queries may see the same cells differently.
        // SAFETY: 32 numbers of 16 bits each.
        let differ = unsafe {
            let [lanes, next] = [lanes, next].map(|l| _mm512_loadu_si512(l.as_ptr().cast()));
            _mm512_mask_cmpneq_epi16_mask(before, lanes, next)
        };
        more += (after & !before).count_ones();
        if differ != 0 || more > 1 {
            return false;
        }
    }
    true
}

/// A bit for each cell that counts.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn seen(lanes: &[u16; MASK_LANES]) -> u32 {
    // SAFETY: 32 numbers of 16 bits.
    let values = unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) };
    _mm512_cmpneq_epi16_mask(values, _mm512_set1_epi16(MASKED))
}

#[cfg(test)]
mod tests {
    //! Runs of queries, by masks written out.
    use super::*;
    use crate::llama::kernels::supported;

    /// A mask in which the cells of `seen` count.
    fn mask(seen: &[usize]) -> Vec<u16> {
        (0..64).map(|cell| if seen.contains(&cell) { 0 } else { MASKED as u16 }).collect()
    }

    /// The run of these queries: its length, cells, and what each query does not see.
    fn run(masks: &[Vec<u16>]) -> (usize, Vec<u32>, Vec<Vec<usize>>) {
        let rows: Vec<&[u16]> = masks.iter().map(Vec::as_slice).collect();
        let (mut indices, mut biases) = ([0; 64], [0.0; 64]);
        let mut cells = VisibleCells { indices: &mut indices, biases: &mut biases };
        // SAFETY: the tests ask `supported` first.
        let run = unsafe { run_of(&rows, &mut cells) };
        let hidden = (0..run.queries).map(|query| run.hidden_from(query).collect()).collect();
        (run.queries, indices[..run.cells].to_vec(), hidden)
    }

    #[test]
    fn successive_queries_of_a_sequence_run_together() {
        if !supported() {
            return eprintln!("skipped: this processor lacks AVX-512 VNNI");
        }
        // The second token took a cell before the others.
        let masks = [mask(&[8, 40]), mask(&[3, 8, 40]), mask(&[3, 8, 40, 41])];
        let (queries, cells, hidden) = run(&masks);
        assert_eq!((queries, cells), (3, vec![3, 8, 40, 41]));
        assert_eq!(hidden, [vec![0, 3], vec![3], vec![]]);
    }

    #[test]
    fn others_end_a_run() {
        if !supported() {
            return eprintln!("skipped: this processor lacks AVX-512 VNNI");
        }
        let first = mask(&[1, 2]);
        let another_sequence = mask(&[1, 5]);
        let window_moved_on = mask(&[2, 3]);
        let two_more = mask(&[1, 2, 3, 4]);
        let mut biased = mask(&[1, 2, 3]);
        biased[1] = 0x3c00;
        for next in [another_sequence, window_moved_on, two_more, biased] {
            assert_eq!(run(&[first.clone(), next]), (1, vec![1, 2], vec![vec![]]));
        }
    }

    #[test]
    fn a_run_has_an_end() {
        if !supported() {
            return eprintln!("skipped: this processor lacks AVX-512 VNNI");
        }
        let all: Vec<usize> = (0..64).collect();
        let masks: Vec<_> = (1..20).map(|end| mask(&all[..end])).collect();
        assert_eq!(run(&masks).0, MOST_RUN);
        assert_eq!(run(&[mask(&[])]), (1, vec![], vec![vec![]]), "nothing to attend to");
    }
}
