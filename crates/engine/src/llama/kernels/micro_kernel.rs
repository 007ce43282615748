//! One weight row times up to [`LANES`] activation rows.

use std::arch::x86_64::*;

use super::unpack::{UnpackedBlock, WeightFormat, q4_k, q5_k, q6_k, q8_0};
use super::{ActivationBlock, LANES};

/// How far ahead of the current block weights are prefetched: the processor's own prefetch ends
/// at every page, and the next one may lie elsewhere. Further ahead brought nothing
/// (`bench/RESULTS.md`, "What the profile asked for").
const PREFETCH_BYTES: usize = 2048;

/// Up to this many sums are added up and written one by one; above, sixteen are reduced by one
/// tree, which takes a third of sixteen single reductions.
pub(super) const FEW_LANES: usize = 4;

/// The number of rows that are computed for `count`; lanes up to it must be initialised. Not
/// every number has a function of its own: up to a third more work for a few sizes instead of
/// sixteen copies of the code per format.
pub(super) fn padded(count: usize) -> usize {
    match count {
        0..=4 => count,
        5..=6 => 6,
        7..=8 => 8,
        9..=12 => 12,
        _ => 16,
    }
}

/// Adds to `into` the dot products of one row's weights in `bytes` with the same blocks of the
/// first `count` activation rows. `lanes` holds the blocks of all [`LANES`] rows side by side.
/// Values of `into` beyond `count` are undefined afterwards.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
pub(super) fn dot_products(
    format: WeightFormat,
    bytes: &[u8],
    lanes: &[[ActivationBlock; LANES]],
    count: usize,
    into: &mut [f32; LANES],
) {
    assert_eq!(bytes.len(), lanes.len() * format.block_bytes(), "as many blocks of both");
    match format {
        WeightFormat::Q4K => q4_k_rows::dot_products(bytes.as_chunks().0, lanes, count, into),
        WeightFormat::Q5K => q5_k_rows::dot_products(bytes.as_chunks().0, lanes, count, into),
        WeightFormat::Q6K => q6_k_rows::dot_products(bytes.as_chunks().0, lanes, count, into),
        WeightFormat::Q8_0 => q8_0_rows::dot_products(bytes.as_chunks().0, lanes, count, into),
    }
}

/// Adds the product of one block of weights with one of activations, in sixteen parts.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn add_block(sum: __m512, weights: &UnpackedBlock, activations: &ActivationBlock) -> __m512 {
    let quants = activations.quants.as_ptr().cast::<__m512i>();
    // Four times four products of bytes per lane, all of one sixteen: integers, hence exact, so
    // one multiplication with the scale serves them all.
    let mut products = _mm512_setzero_si512();
    for (j, weights) in weights.quants.iter().enumerate() {
        // SAFETY: 256 quants, aligned as the block is.
        let quants = unsafe { _mm512_load_si512(quants.add(j)) };
        products = _mm512_dpbusd_epi32(products, *weights, quants);
    }
    // SAFETY: sixteen sums, aligned as the block is.
    let sums = unsafe { _mm512_load_ps(activations.sums.as_ptr()) };
    // sum += weights' scale * activations' scale * products - min * (sum of activations).
    let scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(products), weights.scales);
    let sum = _mm512_fmadd_ps(scaled, _mm512_set1_ps(activations.scale), sum);
    _mm512_fnmadd_ps(weights.mins, sums, sum)
}

/// The sum of each vector's elements, in the order of the vectors and added up in the order of
/// [`_mm512_reduce_add_ps`]; sixteen at once take a third of its instructions.
/// Attention has one in another order, which is faster there.
#[inline]
#[target_feature(enable = "avx512f")]
fn sums_of(vectors: &[__m512; LANES]) -> __m512 {
    const { assert!(LANES == 16) };
    // Halves, then quarters: each 128 bits of `quarters[i]` belong to vector i, i + 4, i + 8 or
    // i + 12.
    let halves = |i: usize| {
        let (one, other) = (vectors[i], vectors[i + 4]);
        let low = _mm512_shuffle_f32x4::<0b01_00_01_00>(one, other);
        _mm512_add_ps(low, _mm512_shuffle_f32x4::<0b11_10_11_10>(one, other))
    };
    let quarters = |i: usize| {
        let (one, other) = (halves(i), halves(i + 8));
        let even = _mm512_shuffle_f32x4::<0b10_00_10_00>(one, other);
        _mm512_add_ps(even, _mm512_shuffle_f32x4::<0b11_01_11_01>(one, other))
    };
    let pairs = |one: __m512, other: __m512| {
        _mm512_add_ps(_mm512_unpacklo_ps(one, other), _mm512_unpackhi_ps(one, other))
    };
    pairs(pairs(quarters(0), quarters(2)), pairs(quarters(1), quarters(3)))
}

/// The transposed square: register `j` has column `j` of the rows.
#[inline]
#[target_feature(enable = "avx512f")]
fn transposed(rows: &[[f32; LANES]; LANES]) -> [__m512; LANES] {
    // SAFETY: sixteen floats.
    let row = |i: usize| unsafe { _mm512_loadu_ps(rows[i].as_ptr()) };
    // Each 128 bits of `square(i)` hold columns of the rows 4 i to 4 i + 3.
    let square = |i: usize| {
        let (a, b, c, d) = (row(4 * i), row(4 * i + 1), row(4 * i + 2), row(4 * i + 3));
        let wide = |low: __m512, high: __m512| (_mm512_castps_pd(low), _mm512_castps_pd(high));
        let (low, high) = wide(_mm512_unpacklo_ps(a, b), _mm512_unpacklo_ps(c, d));
        let (low2, high2) = wide(_mm512_unpackhi_ps(a, b), _mm512_unpackhi_ps(c, d));
        [
            _mm512_castpd_ps(_mm512_unpacklo_pd(low, high)),
            _mm512_castpd_ps(_mm512_unpackhi_pd(low, high)),
            _mm512_castpd_ps(_mm512_unpacklo_pd(low2, high2)),
            _mm512_castpd_ps(_mm512_unpackhi_pd(low2, high2)),
        ]
    };
    let squares = [square(0), square(1), square(2), square(3)];
    let mut columns = [_mm512_setzero_ps(); LANES];
    for j in 0..4 {
        let [a, b, c, d] = [squares[0][j], squares[1][j], squares[2][j], squares[3][j]];
        let (even, odd) = (_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b));
        let (even2, odd2) =
            (_mm512_shuffle_f32x4::<0x88>(c, d), _mm512_shuffle_f32x4::<0xdd>(c, d));
        columns[j] = _mm512_shuffle_f32x4::<0x88>(even, even2);
        columns[4 + j] = _mm512_shuffle_f32x4::<0x88>(odd, odd2);
        columns[8 + j] = _mm512_shuffle_f32x4::<0xdd>(even, even2);
        columns[12 + j] = _mm512_shuffle_f32x4::<0xdd>(odd, odd2);
    }
    columns
}

/// Writes the first `width` columns of the first `height` rows, column `i` to `to(i)`.
///
/// # Safety
/// There is room for `height` floats.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn write_columns(
    rows: &[[f32; LANES]; LANES],
    (height, width): (usize, usize),
    to: impl Fn(usize) -> *mut f32,
) {
    let mask = ((1u32 << height) - 1) as __mmask16;
    for (i, column) in transposed(rows)[..width].iter().enumerate() {
        // SAFETY: by the caller.
        unsafe { _mm512_mask_storeu_ps(to(i), mask, *column) }
    }
}

/// A function for a fixed number of rows: with a number known at compile time, the loop over
/// lanes is unrolled and every sum stays in its register for the whole row.
macro_rules! rows {
    ($name:ident, $load:ident, $bytes:literal, $count:literal, $($lane:literal)+) => {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
        fn $name(
            row: &[[u8; $bytes]],
            lanes: &[[ActivationBlock; LANES]],
            into: &mut [f32; LANES],
        ) {
            let mut sums = [_mm512_setzero_ps(); LANES];
            for (block, activations) in row.iter().zip(lanes) {
                for line in 0..$bytes / 64 + 1 {
                    // May point beyond the weights: a prefetch of unmapped memory does nothing.
                    let ahead = block.as_ptr().wrapping_add(PREFETCH_BYTES + 64 * line);
                    _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                }
                let weights = $load(block);
                $( sums[$lane] = add_block(sums[$lane], &weights, &activations[$lane]); )+
            }
            if $count > FEW_LANES {
                // SAFETY: sixteen floats.
                unsafe {
                    let before = _mm512_loadu_ps(into.as_ptr());
                    _mm512_storeu_ps(into.as_mut_ptr(), _mm512_add_ps(before, sums_of(&sums)));
                }
            } else {
                $( into[$lane] += _mm512_reduce_add_ps(sums[$lane]); )+
            }
        }
    };
}

macro_rules! format_rows {
    ($module:ident, $load:ident, $bytes:literal) => {
        mod $module {
            use super::*;

            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
            pub(super) fn dot_products(
                row: &[[u8; $bytes]],
                lanes: &[[ActivationBlock; LANES]],
                count: usize,
                into: &mut [f32; LANES],
            ) {
                match padded(count) {
                    16 => rows_16(row, lanes, into),
                    12 => rows_12(row, lanes, into),
                    8 => rows_8(row, lanes, into),
                    6 => rows_6(row, lanes, into),
                    4 => rows_4(row, lanes, into),
                    3 => rows_3(row, lanes, into),
                    2 => rows_2(row, lanes, into),
                    1 => rows_1(row, lanes, into),
                    _ => {}
                }
            }

            rows!(rows_16, $load, $bytes, 16, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
            rows!(rows_12, $load, $bytes, 12, 0 1 2 3 4 5 6 7 8 9 10 11);
            rows!(rows_8, $load, $bytes, 8, 0 1 2 3 4 5 6 7);
            rows!(rows_6, $load, $bytes, 6, 0 1 2 3 4 5);
            rows!(rows_4, $load, $bytes, 4, 0 1 2 3);
            rows!(rows_3, $load, $bytes, 3, 0 1 2);
            rows!(rows_2, $load, $bytes, 2, 0 1);
            rows!(rows_1, $load, $bytes, 1, 0);
        }
    };
}

format_rows!(q4_k_rows, q4_k, 144);
format_rows!(q5_k_rows, q5_k, 176);
format_rows!(q6_k_rows, q6_k, 210);
format_rows!(q8_0_rows, q8_0, 272);
