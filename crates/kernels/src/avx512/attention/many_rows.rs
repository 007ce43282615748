//! Attention for so many rows that converting keys and values once for all of them pays off.
//!
//! Keys of some cells are converted to floats and transposed: a register then has one number of
//! sixteen cells, and a row's products need no sums across lanes. Values are converted some cells
//! at a time. Scores and sums are those of [`super::micro_kernel`], added in the same order, bit
//! for bit: whether a prompt's row is computed here or alone makes no difference.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use super::micro_kernel::{load, prefetch};
use crate::attention::{Matrix, kv_bytes};

/// Minimum rows: fewer hardly repay the transposition. Chosen by hand.
pub(super) const LEAST_ROWS: usize = 12;
/// Maximum rows.
pub(super) const MOST_ROWS: usize = 32;
/// Maximum numbers of a row.
const MOST_NUMBERS: usize = 256;
/// Cells whose keys are transposed at a time: two registers, which share the loads of queries.
const KEY_CELLS: usize = 32;
/// Numbers of values that are converted at a time: at most half of the first-level cache.
const VALUE_NUMBERS: usize = 4096;
/// Rows of scores that are computed at once, and rows of sums: as many as registers allow.
const SCORE_ROWS: usize = 3;
const SUM_ROWS: usize = 4;
/// The order in which the lanes of a product are added by `micro_kernel::sum_each`, pair by pair.
const LANE_ORDER: [usize; 16] = [0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15];

/// Work memory of one thread.
#[repr(align(64))]
struct Numbers([MaybeUninit<f32>; MOST_ROWS * MOST_NUMBERS]);

impl Numbers {
    fn new() -> Self {
        Self([MaybeUninit::uninit(); MOST_ROWS * MOST_NUMBERS])
    }

    fn start(&mut self) -> *mut f32 {
        self.0.as_mut_ptr().cast()
    }
}

/// Computes the scaled products of `rows` of `16 N` numbers with the cells' keys. `scores` has a
/// row of `pitch` numbers for each; those up to the next multiple of [`KEY_CELLS`] are written.
///
/// # Safety
/// `rows`, at most [`MOST_ROWS`], have `16 N` readable numbers each, and `keys` the keys of all
/// `cells`, of which there are some. There are scores for all rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
pub(super) unsafe fn score<const N: usize, const KV: u8>(
    rows: &[*const f32],
    keys: Matrix,
    cells: &[u32],
    scale: f32,
    scores: &mut [f32],
    pitch: usize,
) {
    const { assert!(16 * N <= MOST_NUMBERS && KEY_CELLS <= MOST_ROWS) }
    assert!(rows.len() <= MOST_ROWS && scores.len() >= rows.len() * pitch);
    assert!(cells.len().next_multiple_of(KEY_CELLS) <= pitch);
    let (mut queries, mut tile) = (Numbers::new(), Numbers::new());
    let (queries, tile) = (queries.start(), tile.start());
    for (r, row) in rows.iter().enumerate() {
        // SAFETY: there is room for `MOST_ROWS` rows, each of which has `16 N` numbers.
        unsafe { put_in_lane_order::<N>(*row, queries.add(r * 16 * N)) }
    }
    for first in (0..cells.len()).step_by(KEY_CELLS) {
        // SAFETY: a tile has `KEY_CELLS` rows of at most `MOST_NUMBERS`; the scores of all rows
        // have room for whole tiles, as asserted.
        unsafe {
            transpose::<N, KV>(keys, cells, first, tile);
            let to = scores.as_mut_ptr().add(first);
            let mut row = 0;
            while row < rows.len() {
                let (queries, to) = (queries.add(row * 16 * N), to.add(row * pitch));
                row += match rows.len() - row {
                    SCORE_ROWS.. => score_tile::<N, SCORE_ROWS>(queries, tile, scale, to, pitch),
                    2 => score_tile::<N, 2>(queries, tile, scale, to, pitch),
                    _ => score_tile::<N, 1>(queries, tile, scale, to, pitch),
                };
            }
        }
    }
}

/// Copies a row's numbers so that those of each lane follow each other, in [`LANE_ORDER`].
///
/// # Safety
/// There are `16 N` numbers, and room for as many.
unsafe fn put_in_lane_order<const N: usize>(row: *const f32, to: *mut f32) {
    for (place, lane) in LANE_ORDER.into_iter().enumerate() {
        for j in 0..N {
            // SAFETY: by the caller.
            unsafe { to.add(place * N + j).write(row.add(16 * j + lane).read()) }
        }
    }
}

/// Converts and transposes the keys of [`KEY_CELLS`] cells from `first` on: for every number, in
/// the order of [`put_in_lane_order`], that of each cell. Beyond the end the last cell is repeated.
///
/// # Safety
/// `keys` has the keys of `cells`, and `tile` room for [`KEY_CELLS`] of them.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
unsafe fn transpose<const N: usize, const KV: u8>(
    keys: Matrix,
    cells: &[u32],
    first: usize,
    tile: *mut f32,
) {
    let cell = |i: usize| keys.at(cells[(first + i).min(cells.len() - 1)]);
    for half in (0..KEY_CELLS).step_by(16) {
        for i in 0..16 {
            prefetch(cell(KEY_CELLS + half + i), kv_bytes::<KV>(16 * N));
        }
        for j in 0..N {
            let mut square = [_mm512_setzero_ps(); 16];
            for (i, row) in square.iter_mut().enumerate() {
                // SAFETY: the key has `16 N` numbers.
                *row = unsafe { load::<KV>(cell(half + i), 16 * j) };
            }
            let square = transposed(square);
            for (place, lane) in LANE_ORDER.into_iter().enumerate() {
                // SAFETY: within the tile.
                unsafe {
                    let to = tile.add((place * N + j) * KEY_CELLS + half);
                    _mm512_store_ps(to, square[lane]);
                }
            }
        }
    }
}

/// Swaps rows and columns.
#[inline]
#[target_feature(enable = "avx512f")]
fn transposed(rows: [__m512; 16]) -> [__m512; 16] {
    let mut pairs = [_mm512_setzero_ps(); 16];
    for i in 0..8 {
        pairs[2 * i] = _mm512_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
        pairs[2 * i + 1] = _mm512_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
    }
    // Column `4 q + c` of rows `4 i` to `4 i + 3` is quarter `q` of `fours[4 * i + c]`.
    let mut fours = [_mm512_setzero_ps(); 16];
    for i in 0..4 {
        for c in 0..2 {
            let low = _mm512_castps_pd(pairs[4 * i + c]);
            let high = _mm512_castps_pd(pairs[4 * i + 2 + c]);
            fours[4 * i + 2 * c] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
            fours[4 * i + 2 * c + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
        }
    }
    let mut columns = [_mm512_setzero_ps(); 16];
    for c in 0..4 {
        let [a, b, d, e] = [fours[c], fours[4 + c], fours[8 + c], fours[12 + c]];
        let (even, odd) = (_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b));
        let (even_2, odd_2) =
            (_mm512_shuffle_f32x4::<0x88>(d, e), _mm512_shuffle_f32x4::<0xdd>(d, e));
        columns[c] = _mm512_shuffle_f32x4::<0x88>(even, even_2);
        columns[8 + c] = _mm512_shuffle_f32x4::<0xdd>(even, even_2);
        columns[4 + c] = _mm512_shuffle_f32x4::<0x88>(odd, odd_2);
        columns[12 + c] = _mm512_shuffle_f32x4::<0xdd>(odd, odd_2);
    }
    columns
}

/// One register for each of `R` rows and each half of a tile.
type Sums<const R: usize> = [[__m512; 2]; R];

/// Computes the scores of `R` rows for the cells of `tile`; returns `R`.
///
/// # Safety
/// `queries` are `R` rows and `tile` the keys, both of `16 N` numbers in [`LANE_ORDER`]; `to` has
/// room for the tile's cells in each of `R` rows, which are `pitch` apart.
#[target_feature(enable = "avx512f")]
unsafe fn score_tile<const N: usize, const R: usize>(
    queries: *const f32,
    tile: *const f32,
    scale: f32,
    to: *mut f32,
    pitch: usize,
) -> usize {
    // A macro: a function that returns so many registers would pass them through memory.
    macro_rules! lane {
        ($place:expr) => {{
            let mut sums: Sums<R> = [[_mm512_setzero_ps(); 2]; R];
            for at in $place * N..($place + 1) * N {
                // SAFETY: by the caller.
                let keys = unsafe {
                    let keys = tile.add(at * KEY_CELLS);
                    [_mm512_load_ps(keys), _mm512_load_ps(keys.add(16))]
                };
                for (r, sums) in sums.iter_mut().enumerate() {
                    // SAFETY: by the caller.
                    let query = _mm512_set1_ps(unsafe { *queries.add(r * 16 * N + at) });
                    for (sum, keys) in sums.iter_mut().zip(keys) {
                        *sum = _mm512_fmadd_ps(query, keys, *sum);
                    }
                }
            }
            sums
        }};
    }
    let mut quarters = [[[_mm512_setzero_ps(); 2]; R]; 4];
    for (i, quarter) in quarters.iter_mut().enumerate() {
        let one = add(lane!(4 * i), lane!(4 * i + 1));
        *quarter = add(one, add(lane!(4 * i + 2), lane!(4 * i + 3)));
    }
    let [a, b, c, d] = quarters;
    let sums = add(add(a, b), add(c, d));
    let scale = _mm512_set1_ps(scale);
    for (r, sums) in sums.iter().enumerate() {
        for (half, sum) in sums.iter().enumerate() {
            // SAFETY: within the row's scores.
            unsafe { _mm512_storeu_ps(to.add(r * pitch + 16 * half), _mm512_mul_ps(*sum, scale)) }
        }
    }
    R
}

#[inline]
#[target_feature(enable = "avx512f")]
fn add<const R: usize>(mut one: Sums<R>, other: Sums<R>) -> Sums<R> {
    for (one, other) in one.as_flattened_mut().iter_mut().zip(other.as_flattened()) {
        *one = _mm512_add_ps(*one, *other);
    }
    one
}

/// Computes the sums of the cells' values weighted by each row, times the row's `share`, into
/// `outputs`. `J` registers of columns are computed at once.
///
/// # Safety
/// `weights` has a row of `pitch` numbers for each of `shares`, at most [`MOST_ROWS`]; `values` has
/// the values of all `cells`, and each output has room for `16 N` numbers.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
pub(super) unsafe fn weigh<const N: usize, const J: usize, const KV: u8>(
    weights: &[f32],
    pitch: usize,
    values: Matrix,
    cells: &[u32],
    shares: &[f32],
    outputs: &[*mut f32],
) {
    const { assert!(16 * N <= MOST_NUMBERS && N.is_multiple_of(J)) }
    let rows = shares.len();
    assert!(rows <= MOST_ROWS && outputs.len() == rows && weights.len() >= rows * pitch);
    let (mut sums, mut tile) = (Numbers::new(), Numbers::new());
    let (sums, tile) = (sums.start(), tile.start());
    // SAFETY: `rows` are at most `MOST_ROWS`, of at most `MOST_NUMBERS`.
    unsafe { sums.write_bytes(0, rows * 16 * N) }
    let at_once = VALUE_NUMBERS / (16 * N);
    for first in (0..cells.len()).step_by(at_once) {
        let count = at_once.min(cells.len() - first);
        // SAFETY: the tile has room for `VALUE_NUMBERS`; the rows and their sums exist.
        unsafe {
            convert::<N, KV>(values, &cells[first..], count, tile);
            let mut row = 0;
            while row < rows {
                let weights = weights.as_ptr().add(row * pitch + first);
                let sums = sums.add(row * 16 * N);
                row += match rows - row {
                    SUM_ROWS.. => add_tile::<N, J, SUM_ROWS>(weights, pitch, tile, count, sums),
                    2.. => add_tile::<N, J, 2>(weights, pitch, tile, count, sums),
                    _ => add_tile::<N, J, 1>(weights, pitch, tile, count, sums),
                };
            }
        }
    }
    for (r, (share, output)) in shares.iter().zip(outputs).enumerate() {
        for column in (0..16 * N).step_by(16) {
            // SAFETY: the row has these sums, and its output room for them.
            unsafe {
                let sum = _mm512_load_ps(sums.add(r * 16 * N + column));
                _mm512_storeu_ps(output.add(column), _mm512_mul_ps(sum, _mm512_set1_ps(*share)));
            }
        }
    }
}

/// Converts the values of the first `count` of `cells`.
///
/// # Safety
/// `values` has them, and `tile` room for them.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
unsafe fn convert<const N: usize, const KV: u8>(
    values: Matrix,
    cells: &[u32],
    count: usize,
    tile: *mut f32,
) {
    for i in 0..count {
        let ahead = cells[(i + count).min(cells.len() - 1)];
        prefetch(values.at(ahead), kv_bytes::<KV>(16 * N));
        for j in 0..N {
            // SAFETY: by the caller.
            unsafe {
                let numbers = load::<KV>(values.at(cells[i]), 16 * j);
                _mm512_store_ps(tile.add(i * 16 * N + 16 * j), numbers);
            }
        }
    }
}

/// Adds the values of `tile`, weighted by `R` rows, to their `sums`; returns `R`.
///
/// # Safety
/// `tile` has the values of `count` cells, and `weights` as many numbers in each of `R` rows, which
/// are `pitch` apart; there are sums for `R` rows.
#[target_feature(enable = "avx512f")]
unsafe fn add_tile<const N: usize, const J: usize, const R: usize>(
    weights: *const f32,
    pitch: usize,
    tile: *const f32,
    count: usize,
    sums: *mut f32,
) -> usize {
    for column in (0..16 * N).step_by(16 * J) {
        let place = |r: usize, j: usize| sums.wrapping_add(r * 16 * N + column + 16 * j);
        let mut totals = [[_mm512_setzero_ps(); J]; R];
        for (r, totals) in totals.iter_mut().enumerate() {
            for (j, total) in totals.iter_mut().enumerate() {
                // SAFETY: the row's sums.
                *total = unsafe { _mm512_load_ps(place(r, j)) };
            }
        }
        for i in 0..count {
            let mut value = [_mm512_setzero_ps(); J];
            for (j, value) in value.iter_mut().enumerate() {
                // SAFETY: the tile has this cell.
                *value = unsafe { _mm512_load_ps(tile.add(i * 16 * N + column + 16 * j)) };
            }
            for (r, totals) in totals.iter_mut().enumerate() {
                // SAFETY: the row has a weight for the cell.
                let weight = _mm512_set1_ps(unsafe { *weights.add(r * pitch + i) });
                for (value, total) in value.iter().zip(totals) {
                    *total = _mm512_fmadd_ps(*value, weight, *total);
                }
            }
        }
        for (r, totals) in totals.iter().enumerate() {
            for (j, total) in totals.iter().enumerate() {
                // SAFETY: the row's sums.
                unsafe { _mm512_store_ps(place(r, j), *total) }
            }
        }
    }
    R
}

#[cfg(test)]
mod tests {
    //! The same bits as row by row.
    use half::f16;

    use super::super::micro_kernel;
    use super::*;
    use crate::Isa;
    use crate::attention::{HALF, Q8_0};

    /// Numbers between -1 and 1.
    fn noise(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    /// Rows of `16 N` numbers in the format `KV`.
    fn stored<const N: usize, const KV: u8>(rows: usize, seed: u32) -> Vec<u8> {
        let numbers = noise(rows * 16 * N, seed);
        if KV == HALF {
            return numbers.iter().flat_map(|x| f16::from_f32(*x).to_ne_bytes()).collect();
        }
        let block = |numbers: &[f32]| {
            let quants = numbers.iter().map(|x| (127.0 * x) as i8 as u8);
            let scale = f16::from_f32(numbers[0] / 100.0).to_ne_bytes();
            scale.into_iter().chain(quants).collect::<Vec<_>>()
        };
        numbers.chunks(32).flat_map(block).collect()
    }

    fn check<const N: usize, const J: usize, const KV: u8>(rows: usize, count: usize) {
        let pitch = count.next_multiple_of(KEY_CELLS);
        let (keys, values) = (stored::<N, KV>(2 * count, 1), stored::<N, KV>(2 * count, 2));
        let [keys, values] = [&keys, &values]
            .map(|of| Matrix { start: of.as_ptr(), stride: kv_bytes::<KV>(16 * N) });
        let cells: Vec<u32> = (0..count as u32).map(|i| 2 * i + i % 2).collect();
        let queries = noise(rows * 16 * N, 3);
        let queries: Vec<_> = queries.chunks(16 * N).map(<[f32]>::as_ptr).collect();
        let shares = noise(rows, 4);
        let mut scores = vec![0.0; rows * pitch];
        let mut found = vec![0.0f32; rows * 16 * N];
        let outputs: Vec<_> = found.chunks_mut(16 * N).map(<[f32]>::as_mut_ptr).collect();
        // SAFETY: the processor has been asked; all rows have their numbers.
        unsafe {
            score::<N, KV>(&queries, keys, &cells, 0.3, &mut scores, pitch);
            weigh::<N, J, KV>(&scores, pitch, values, &cells, &shares, &outputs);
        }
        for (r, query) in queries.iter().enumerate() {
            let mut expected = vec![0.0; count.next_multiple_of(16)];
            let len = expected.len();
            // SAFETY: as above.
            unsafe {
                micro_kernel::score::<N, 1, 16, KV>(
                    [*query],
                    keys,
                    &cells,
                    0.3,
                    &mut expected,
                    len,
                );
            }
            assert_eq!(scores[r * pitch..][..count], expected[..count], "row {r} of {rows}");
            for column in (0..16 * N).step_by(16) {
                let mut expected_sums = [0.0f32; 16];
                // SAFETY: as above.
                unsafe {
                    let [[sum]] =
                        micro_kernel::weigh::<1, 1, KV>(&expected, len, values, &cells, column);
                    let product = _mm512_mul_ps(sum, _mm512_set1_ps(shares[r]));
                    _mm512_storeu_ps(expected_sums.as_mut_ptr(), product);
                }
                assert_eq!(found[r * 16 * N + column..][..16], expected_sums, "row {r} of {rows}");
            }
        }
    }

    #[test]
    fn many_rows_give_what_each_gives_alone() {
        if !Isa::Avx512Vnni.is_here_for_a_test() {
            return;
        }
        for (rows, count) in [(12, 1), (13, 15), (14, 32), (17, 67), (32, 300)] {
            check::<2, 2, HALF>(rows, count);
            check::<4, 4, HALF>(rows, count);
            check::<4, 4, Q8_0>(rows, count);
            check::<6, 3, Q8_0>(rows, count);
            check::<8, 4, HALF>(rows, count);
            check::<16, 4, Q8_0>(rows, count);
        }
    }
}
