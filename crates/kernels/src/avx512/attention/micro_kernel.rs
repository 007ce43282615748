//! Scores, their exponentials and the weighted sum of values, for some rows at once.
//!
//! A row is one head of one query. Rows that see the same cells of one group of heads share the
//! loads of each key and value: as many rows and cells (or columns) at once as fill sixteen
//! registers with sums. A row's result does not depend on the other rows of its pass.

use std::arch::x86_64::*;

use crate::attention::{HALF, Matrix, kv_bytes, q8_0_places};

/// Maximum rows of one pass.
pub(super) const MOST_ROWS: usize = 8;
/// Number of cells by which keys or values are prefetched: they are a whole row of the cache apart,
/// which the hardware prefetcher does not follow. A larger number gained nothing (`cargo run
/// --release -p loquent-engine --example decode_speed`).
const PREFETCH_CELLS: usize = 16;

/// Computes the scaled products of `R` rows of `16 N` numbers with the cells' keys, `C = 16 / R`
/// cells at a time. `scores` has a row of `pitch` numbers for each; those up to the next multiple
/// of sixteen cells are written.
///
/// # Safety
/// `rows` have `16 N` readable numbers each, and `keys` the keys of all `cells`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
pub(super) unsafe fn score<const N: usize, const R: usize, const C: usize, const KV: u8>(
    rows: [*const f32; R],
    keys: Matrix,
    cells: &[u32],
    scale: f32,
    scores: &mut [f32],
    pitch: usize,
) {
    // Sixteen sums: enough independent chains to hide the latency of a multiply-add, and one
    // register of results after `sum_each`.
    const { assert!(R * C == 16) }
    let scale = _mm512_set1_ps(scale);
    for first in (0..cells.len()).step_by(C) {
        // Beyond the end the last cell is computed again; its scores are overwritten later.
        let cell = |i: usize| cells[(first + i).min(cells.len() - 1)];
        for i in 0..C {
            prefetch(keys.at(cell(PREFETCH_CELLS + i)), kv_bytes::<KV>(16 * N));
        }
        let mut sums = [[_mm512_setzero_ps(); C]; R];
        for j in 0..N {
            let mut numbers = [_mm512_setzero_ps(); C];
            for (c, numbers) in numbers.iter_mut().enumerate() {
                // SAFETY: the key has `16 N` numbers.
                *numbers = unsafe { load::<KV>(keys.at(cell(c)), 16 * j) };
            }
            for (row, sums) in rows.iter().zip(&mut sums) {
                // SAFETY: the row has `16 N` numbers.
                let query = unsafe { _mm512_loadu_ps(row.add(16 * j)) };
                for (numbers, sum) in numbers.iter().zip(sums) {
                    *sum = _mm512_fmadd_ps(query, *numbers, *sum);
                }
            }
        }
        let mut values = [0.0f32; 16];
        // SAFETY: `values` is an array of sixteen floats.
        unsafe {
            _mm512_storeu_ps(
                values.as_mut_ptr(),
                _mm512_mul_ps(sum_each(sums.as_flattened()), scale),
            )
        };
        for (r, values) in values.chunks_exact(C).enumerate() {
            scores[r * pitch + first..][..C].copy_from_slice(values);
        }
    }
}

/// Computes the sums of the cells' values weighted by `R` rows: the `16 J` columns from `column`
/// on.
///
/// # Safety
/// `values` has the values of all `cells`, including these columns.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
pub(super) unsafe fn weigh<const R: usize, const J: usize, const KV: u8>(
    weights: &[f32],
    pitch: usize,
    values: Matrix,
    cells: &[u32],
    column: usize,
) -> [[__m512; J]; R] {
    // `R * J` sums stay in registers while all cells pass once per column group.
    let mut totals = [[_mm512_setzero_ps(); J]; R];
    let weights: [&[f32]; R] = std::array::from_fn(|r| &weights[r * pitch..][..cells.len()]);
    for (i, &cell) in cells.iter().enumerate() {
        let ahead = cells[(i + PREFETCH_CELLS).min(cells.len() - 1)];
        let start = values.at(ahead).wrapping_add(kv_bytes::<KV>(column));
        prefetch(start, kv_bytes::<KV>(16 * J));
        let mut value = [_mm512_setzero_ps(); J];
        for (j, value) in value.iter_mut().enumerate() {
            // SAFETY: the value has these numbers.
            *value = unsafe { load::<KV>(values.at(cell), column + 16 * j) };
        }
        for (weights, totals) in weights.iter().zip(&mut totals) {
            let weight = _mm512_set1_ps(weights[i]);
            for (value, total) in value.iter().zip(totals) {
                *total = _mm512_fmadd_ps(*value, weight, *total);
            }
        }
    }
    totals
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn prefetch(from: *const u8, bytes: usize) {
    for line in 0..bytes.div_ceil(64) {
        _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(64 * line).cast());
    }
}

/// Loads sixteen numbers of a key or value at `row`, from number `first` on.
///
/// # Safety
/// The row has these numbers, in the format `KV`.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn load<const KV: u8>(row: *const u8, first: usize) -> __m512 {
    // SAFETY: the caller guarantees that the row has these sixteen numbers; in Q8_0 they are within
    // one block.
    unsafe {
        if KV == HALF {
            return _mm512_cvtph_ps(_mm256_loadu_si256(row.add(2 * first).cast()));
        }
        let (scale, bytes) = q8_0_places(first);
        let scale = _mm256_set1_epi16(row.add(scale).cast::<i16>().read_unaligned());
        let bytes = _mm512_cvtepi8_epi32(_mm_loadu_si128(row.add(bytes).cast()));
        _mm512_mul_ps(_mm512_cvtepi32_ps(bytes), _mm512_cvtph_ps(scale))
    }
}

/// Sums each register's lanes: lane `i` of the result is the sum of register `i`, added in the same
/// order for all.
#[inline]
#[target_feature(enable = "avx512f")]
fn sum_each(sums: &[__m512]) -> __m512 {
    // Plain loops: a closure given to the library's functions would be called, not inlined, as
    // those are compiled for any processor.
    let mut pairs = [_mm512_setzero_ps(); 8];
    for (pair, sums) in pairs.iter_mut().zip(sums.as_chunks::<2>().0) {
        // Lanes 0 + 2 and 1 + 3 of every four.
        let [a, b] = *sums;
        *pair = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    }
    let mut fours = [_mm512_setzero_ps(); 4];
    for (four, pairs) in fours.iter_mut().zip(pairs.as_chunks::<2>().0) {
        let (a, b) = (_mm512_castps_pd(pairs[0]), _mm512_castps_pd(pairs[1]));
        let (low, high) = (_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b));
        *four = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
    }
    let [a, b, c, d] = fours;
    halves(halves(a, b), halves(c, d))
}

/// Adds quarters 0 + 1 and 2 + 3 of each.
#[inline]
#[target_feature(enable = "avx512f")]
fn halves(a: __m512, b: __m512) -> __m512 {
    _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b))
}

/// Adds the biases and replaces the scores by their exponentials relative to the greatest. Returns
/// the sum, in which `sink` counts like the score of one more cell. NaN is preserved. Works on
/// whole groups of sixteen.
#[target_feature(enable = "avx512f,avx512dq")]
pub(super) fn exponentials(scores: &mut [f32], biases: &[f32], sink: f32) -> f32 {
    let (groups, rest) = scores.as_chunks_mut::<16>();
    let biases = biases.as_chunks::<16>().0;
    assert!(rest.is_empty() && biases.len() == groups.len(), "padded");
    // SAFETY: a group is an array of sixteen floats.
    let load = |group: &[f32; 16]| unsafe { _mm512_loadu_ps(group.as_ptr()) };
    let mut most = _mm512_set1_ps(f32::NEG_INFINITY);
    for (group, bias) in groups.iter_mut().zip(biases) {
        let biased = _mm512_add_ps(load(group), load(bias));
        // The second operand is what the instruction gives for NaN: such scores are passed over.
        most = _mm512_max_ps(biased, most);
        // SAFETY: a group is an array of sixteen floats.
        unsafe { _mm512_storeu_ps(group.as_mut_ptr(), biased) };
    }
    let most = _mm512_reduce_max_ps(most).max(sink);
    // Without any cell that counts, all are 0.
    let most = if most == f32::NEG_INFINITY { 0.0 } else { most };
    let of_sink = if sink == f32::NEG_INFINITY { 0.0 } else { (sink - most).exp() };
    let most = _mm512_set1_ps(most);
    let mut sum = _mm512_setzero_ps();
    for group in groups {
        let power = exponential(_mm512_sub_ps(load(group), most));
        sum = _mm512_add_ps(sum, power);
        // SAFETY: a group is an array of sixteen floats.
        unsafe { _mm512_storeu_ps(group.as_mut_ptr(), power) };
    }
    _mm512_reduce_add_ps(sum) + of_sink
}

/// `e` to the power `x` for `x <= 0`, 0 below -87: a power of two and a polynomial, with a relative
/// error within 2e-6 near zero. NaN is preserved.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn exponential(x: __m512) -> __m512 {
    let power = _mm512_mul_ps(x, _mm512_set1_ps(std::f32::consts::LOG2_E));
    let whole = _mm512_roundscale_ps::<8>(power);
    let part = _mm512_sub_ps(power, whole);
    // 2^f = sum of (f ln 2)^k / k!
    let mut sum = _mm512_set1_ps(1.540_353e-4);
    for coefficient in [1.333_355_8e-3, 9.618_129e-3, 5.550_411e-2, 2.402_265e-1, 6.931_472e-1, 1.0]
    {
        sum = _mm512_fmadd_ps(sum, part, _mm512_set1_ps(coefficient));
    }
    let result = _mm512_scalef_ps(sum, whole);
    // Far below, and for minus infinity, whose parts are not numbers.
    let zero = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(x, _mm512_set1_ps(-87.0));
    _mm512_mask_mov_ps(result, zero, _mm512_setzero_ps())
}

#[cfg(test)]
mod tests {
    //! The exponential against the library's.
    use super::*;
    use crate::Isa;
    use crate::attention::NO_SINK;

    #[test]
    fn exponentials_sum_to_one_and_show_nan() {
        if !Isa::Avx512Vnni.is_here_for_a_test() {
            return;
        }
        let scores: Vec<f32> = (0..32).map(|i| i as f32 * 0.37 - 6.0).collect();
        let mut found = scores.clone();
        found[31] = f32::NEG_INFINITY;
        // SAFETY: the processor has been asked.
        let sum = unsafe { exponentials(&mut found, &[0.0; 32], NO_SINK) };
        for (i, value) in found[..31].iter().enumerate() {
            let exact = f64::from(scores[i] - scores[30]).exp();
            assert!((f64::from(*value) - exact).abs() < 3e-6 * exact, "{i}: {value} for {exact}");
        }
        assert_eq!(found[31], 0.0);
        assert!((sum - found.iter().sum::<f32>()).abs() < 1e-5);
        found[5] = f32::NAN;
        // SAFETY: the processor has been checked above.
        assert!(unsafe { exponentials(&mut found, &[0.0; 32], NO_SINK) }.is_nan());
        let mut none = [f32::NEG_INFINITY; 16];
        // SAFETY: the processor has been checked above.
        assert_eq!(
            unsafe { exponentials(&mut none, &[0.0; 16], NO_SINK) },
            0.0,
            "nothing to attend to"
        );
    }
}
