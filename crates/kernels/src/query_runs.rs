//! Lists of the cells that a query sees, read from the mask, and runs of queries that see nearly
//! the same cells.

use std::sync::atomic::{AtomicU64, Ordering};

use half::f16;

/// Cells whose mask is read at once.
pub(super) const MASK_LANES: usize = 32;
/// Some numbers of a mask, 16-bit floats.
pub(super) type MaskLanes = [u16; MASK_LANES];
/// Negative infinity as a 16-bit float: the cell does not count.
pub(super) const MASKED: u16 = 0xfc00;
/// Maximum queries of a [`QueryRun`].
pub(super) const MOST_RUN: usize = 16;

/// Cells for which a number of [`MaskRow::parts`] has bits.
const PARTS_CELLS: usize = MASK_LANES * u64::BITS as usize;

/// The mask of a query.
#[derive(Clone, Copy)]
pub(super) struct MaskRow<'a> {
    pub(super) lanes: &'a [u16],
    /// A bit for every [`MASK_LANES`] cells, set if one of them counts: most of a large cache are
    /// other sequences' cells, and are read once for all heads.
    pub(super) parts: &'a [u64],
}

impl MaskRow<'_> {
    fn part(&self, index: usize) -> &MaskLanes {
        &self.lanes.as_chunks().0[index]
    }
}

/// Returns the length of [`MaskRow::parts`] for a mask of `cells`.
pub(super) const fn parts_len(cells: usize) -> usize {
    cells.div_ceil(PARTS_CELLS)
}

/// Writes the [`MaskRow::parts`] of the mask `lanes`; `seen` is that of [`run_of`].
#[inline(always)]
pub(super) fn write_parts(lanes: &[u16], parts: &mut [u64], seen: impl Fn(&MaskLanes) -> u32) {
    for (bits, lanes) in parts.iter_mut().zip(lanes.chunks(PARTS_CELLS)) {
        *bits = 0;
        for (i, lanes) in lanes.as_chunks().0.iter().enumerate() {
            *bits |= u64::from(seen(lanes) != 0) << i;
        }
    }
}

/// Returns the indices of the bits that are set in `parts`.
#[inline(always)]
fn set_bits(parts: impl Iterator<Item = u64>) -> impl Iterator<Item = usize> {
    parts.enumerate().flat_map(|(at, mut bits)| {
        std::iter::from_fn(move || {
            let bit = bits.trailing_zeros();
            bits &= bits.checked_sub(1)?;
            Some(at * u64::BITS as usize + bit as usize)
        })
    })
}

/// Cells that count, in the order in which they were written.
pub(super) struct VisibleCells<'a> {
    pub(super) indices: &'a mut [u32],
    /// Biases, added to the cells' scores; 0 after the last up to a multiple of [`MASK_LANES`].
    pub(super) biases: &'a mut [f32],
}

/// Successive queries of one sequence: each sees the same as the previous one and, being later, at
/// most one cell more. They are computed together, over the cells of the last.
pub(super) struct QueryRun {
    pub(super) queries: usize,
    pub(super) cells: usize,
    /// Pairs of a query and the index, in the list of cells, of one that it does not see.
    hidden: [(u8, u32); NONE_HIDDEN.len()],
    hidden_count: usize,
}

/// Room for the maximum: each query sees at most one cell less than the next.
const NONE_HIDDEN: [(u8, u32); MOST_RUN * (MOST_RUN - 1) / 2] =
    [(0, 0); MOST_RUN * (MOST_RUN - 1) / 2];

impl QueryRun {
    /// Indices in the list of cells that the run's query number `query` does not see.
    pub(super) fn hidden_from(&self, query: usize) -> impl Iterator<Item = usize> {
        let hidden = &self.hidden[..self.hidden_count];
        hidden.iter().filter(move |(of, _)| usize::from(*of) == query).map(|(_, at)| *at as usize)
    }

    /// Sorts the cells, which are in cache order, by the order of `written`, so that sums do not
    /// depend on their place in the cache. `last` is the mask of the run's last query.
    #[inline]
    pub(super) fn put_in_order(
        &mut self,
        last: &[u16],
        cells: &mut VisibleCells<'_>,
        written: &[AtomicU64],
    ) {
        let when = |cell: &u32| {
            written.get(*cell as usize).map_or(0, |number| number.load(Ordering::Relaxed))
        };
        if !cells.indices[..self.cells].is_sorted_by_key(when) {
            self.sort(last, cells, when);
        }
    }

    #[cold]
    fn sort(&mut self, last: &[u16], cells: &mut VisibleCells<'_>, when: impl Fn(&u32) -> u64) {
        let indices = &mut cells.indices[..self.cells];
        let hidden = &mut self.hidden[..self.hidden_count];
        // Cells while they move, then their places again.
        hidden.iter_mut().for_each(|(_, at)| *at = indices[*at as usize]);
        // Not `unstable`: there are few runs, each in order.
        indices.sort_by_key(when);
        for (_, at) in hidden {
            // What earlier queries do not see was written last.
            let place = indices.iter().rposition(|cell| cell == at);
            *at = place.expect("the same cells") as u32;
        }
        for (bias, &cell) in cells.biases.iter_mut().zip(&*indices) {
            *bias = bias_of(last[cell as usize]);
        }
    }
}

/// Bias that a mask's number adds to a score.
#[inline]
fn bias_of(mask: u16) -> f32 {
    match mask {
        0 => 0.0, // nearly always
        bits => f16::from_bits(bits).to_f32(),
    }
}

/// Returns the run at the beginning of `rows`, the masks of successive queries; lists its cells.
///
/// `seen` returns a bit for each cell that counts, `differ` one for each at which two masks differ:
/// each instruction set has its own way to do that. They are inlined into the caller, so that they
/// are not called for every 32 cells.
#[inline(always)]
pub(super) fn run_of(
    rows: &[MaskRow<'_>],
    cells: &mut VisibleCells<'_>,
    seen: impl Fn(&MaskLanes) -> u32,
    differ: impl Fn(&MaskLanes, &MaskLanes) -> u32,
) -> QueryRun {
    let most = rows.len().min(MOST_RUN);
    let mut queries = 1;
    while queries < most && follows(&rows[queries - 1], &rows[queries], &seen, &differ) {
        queries += 1;
    }
    let mut run = QueryRun { queries, cells: 0, hidden: NONE_HIDDEN, hidden_count: 0 };
    let last = rows[queries - 1];
    for i in set_bits(last.parts.iter().copied()) {
        let lanes = last.part(i);
        let mut left = seen(lanes);
        for (query, row) in rows[..queries - 1].iter().enumerate() {
            let mut hidden = left & !seen(row.part(i));
            while hidden != 0 {
                // Its place in the list: the cells listed so far and those before it in this word.
                let before = (left & ((hidden & hidden.wrapping_neg()) - 1)).count_ones();
                run.hidden[run.hidden_count] = (query as u8, run.cells as u32 + before);
                run.hidden_count += 1;
                hidden &= hidden - 1;
            }
        }
        // One set bit at a time: masks are sparse where a cache holds many sequences.
        while left != 0 {
            let lane = left.trailing_zeros();
            left &= left - 1;
            cells.indices[run.cells] = (i * MASK_LANES) as u32 + lane;
            cells.biases[run.cells] = bias_of(lanes[lane as usize]);
            run.cells += 1;
        }
    }
    // Whole registers are read later: what follows the last cell must be numbers.
    let padded = run.cells.next_multiple_of(MASK_LANES);
    cells.biases[run.cells..padded].fill(0.0);
    run
}

/// Returns true if the query with the mask `next` sees everything that the one with `row` sees,
/// with the same biases, and at most one cell more, its own: a run then hides no cells of others.
#[inline(always)]
fn follows(
    row: &MaskRow<'_>,
    next: &MaskRow<'_>,
    seen: &impl Fn(&MaskLanes) -> u32,
    differ: &impl Fn(&MaskLanes, &MaskLanes) -> u32,
) -> bool {
    let mut more = 0;
    for i in set_bits(row.parts.iter().zip(next.parts).map(|(row, next)| row | next)) {
        let (lanes, next) = (row.part(i), next.part(i));
        let (before, after) = (seen(lanes), seen(next));
        more += (after & !before).count_ones();
        // Biases are compared too: with a bias per position (not only 0 and minus infinity) two
        // queries may see the same cells differently.
        if before & differ(lanes, next) != 0 || more > 1 {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    //! Runs of queries, from explicit masks.
    use super::*;

    /// Returns a bit for each index at which `is` holds.
    fn bits(is: impl Fn(usize) -> bool) -> u32 {
        (0..MASK_LANES).map(|i| u32::from(is(i)) << i).sum()
    }

    /// Returns a mask in which the cells of `seen` count.
    fn mask(seen: &[usize]) -> Vec<u16> {
        (0..64).map(|cell| if seen.contains(&cell) { 0 } else { MASKED }).collect()
    }

    /// Returns the parts of `masks` in which a cell counts.
    fn parts(masks: &[Vec<u16>]) -> Vec<[u64; parts_len(64)]> {
        let seen = |lanes: &MaskLanes| bits(|i| lanes[i] != MASKED);
        let mut parts = vec![[u64::MAX]; masks.len()];
        masks.iter().zip(&mut parts).for_each(|(mask, parts)| write_parts(mask, parts, seen));
        parts
    }

    /// Returns `masks` as the rows of queries.
    fn rows<'a>(masks: &'a [Vec<u16>], parts: &'a [[u64; 1]]) -> Vec<MaskRow<'a>> {
        masks.iter().zip(parts).map(|(lanes, parts)| MaskRow { lanes, parts }).collect()
    }

    /// Returns the run of these queries: its length, cells, and the cells hidden from each query.
    fn run(masks: &[Vec<u16>]) -> (usize, Vec<u32>, Vec<Vec<usize>>) {
        let parts = parts(masks);
        let rows = rows(masks, &parts);
        let (mut indices, mut biases) = ([0; 64], [0.0; 64]);
        let mut cells = VisibleCells { indices: &mut indices, biases: &mut biases };
        let seen = |lanes: &MaskLanes| bits(|i| lanes[i] != MASKED);
        let differ = |one: &MaskLanes, other: &MaskLanes| bits(|i| one[i] != other[i]);
        let run = run_of(&rows, &mut cells, seen, differ);
        let hidden = (0..run.queries).map(|query| run.hidden_from(query).collect()).collect();
        (run.queries, indices[..run.cells].to_vec(), hidden)
    }

    #[test]
    fn successive_queries_of_a_sequence_run_together() {
        // The second token took a cell before the others.
        let masks = [mask(&[8, 40]), mask(&[3, 8, 40]), mask(&[3, 8, 40, 41])];
        let (queries, cells, hidden) = run(&masks);
        assert_eq!((queries, cells), (3, vec![3, 8, 40, 41]));
        assert_eq!(hidden, [vec![0, 3], vec![3], vec![]]);
    }

    #[test]
    fn cells_are_put_in_the_order_in_which_they_were_written() {
        // Two tokens, then two that took cells before and between them.
        let mut masks = [vec![8, 40], vec![3, 8, 40], vec![3, 8, 20, 40]].map(|seen| mask(&seen));
        masks.iter_mut().for_each(|mask| mask[8] = 0x3c00);
        let parts = parts(&masks);
        let rows = rows(&masks, &parts);
        let (mut indices, mut biases) = ([0; 64], [0.0; 64]);
        let mut cells = VisibleCells { indices: &mut indices, biases: &mut biases };
        let seen = |lanes: &MaskLanes| bits(|i| lanes[i] != MASKED);
        let differ = |one: &MaskLanes, other: &MaskLanes| bits(|i| one[i] != other[i]);
        let mut run = run_of(&rows, &mut cells, seen, differ);
        let written: Vec<AtomicU64> = (0..64).map(|_| AtomicU64::new(0)).collect();
        for (number, cell) in (1..).zip([8, 40, 3, 20]) {
            written[cell].store(number, Ordering::Relaxed);
        }
        run.put_in_order(rows[2].lanes, &mut cells, &written);
        assert_eq!((run.queries, &cells.indices[..run.cells]), (3, &[8, 40, 3, 20][..]));
        assert_eq!(cells.biases[..run.cells], [1.0, 0.0, 0.0, 0.0]);
        let mut hidden = [0, 1, 2].map(|query| run.hidden_from(query).collect::<Vec<_>>());
        hidden.iter_mut().for_each(|places| places.sort_unstable());
        assert_eq!(hidden, [vec![2, 3], vec![3], vec![]]);
    }

    #[test]
    fn others_end_a_run() {
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
    fn parts_without_a_cell_that_counts_are_left_out() {
        let mut lanes = vec![MASKED; 3 * PARTS_CELLS];
        for cell in [0, 31, 64, PARTS_CELLS - 1, 2 * PARTS_CELLS + 32] {
            lanes[cell] = 0;
        }
        let mut parts = vec![u64::MAX; parts_len(lanes.len())];
        write_parts(&lanes, &mut parts, |lanes| bits(|i| lanes[i] != MASKED));
        assert_eq!(parts, [1 | 1 << 2 | 1 << 63, 0, 1 << 1]);
        assert_eq!(set_bits(parts.into_iter()).collect::<Vec<_>>(), [0, 2, 63, 129]);
        assert_eq!(parts_len(PARTS_CELLS + 32), 2);
    }

    #[test]
    fn a_run_has_an_end() {
        let all: Vec<usize> = (0..64).collect();
        let masks: Vec<_> = (1..20).map(|end| mask(&all[..end])).collect();
        assert_eq!(run(&masks).0, MOST_RUN);
        assert_eq!(run(&[mask(&[])]), (1, vec![], vec![vec![]]), "nothing to attend to");
    }
}
