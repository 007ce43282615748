//! One weight row times up to [`LANES`] activation rows, or some weight rows times one activation
//! row.
//!
//! Without VNNI two products are summed in 16 bits, and as many of these sums as cannot overflow
//! before they are widened: eight for Q4_K and Q4_0 (8 * 2 * 15 * 127), four for Q5_K, Q5_0 and
//! MXFP4 (4 * 2 * 31 * 127), two for Q6_K (2 * 2 * 63 * 127), one for Q8_0 and IQ4 (2 * 128 * 127).

use std::arch::x86_64::*;

use super::registers::sum_each;
use super::unpack::{self, UnpackedBlock, filled};
use super::{GroupedActivations, LANES, ROWS_AT_ONCE};
use crate::llama::kernels::weight_format::WeightFormat;

/// Adds to the first numbers of `into` the dot products of a weight row's blocks with the same
/// blocks of some activation rows, which `lanes` holds side by side.
///
/// # Safety
/// The processor has AVX2, FMA, and VNNI if it was chosen with it.
pub(super) type DotProducts =
    unsafe fn(row: &[UnpackedBlock], lanes: &[GroupedActivations], into: &mut [f32; LANES]);

/// The function for a format.
pub(super) fn dot_products(format: WeightFormat, vnni: bool) -> DotProducts {
    match (format, vnni) {
        (WeightFormat::Q6K, true) => halves_vnni,
        (_, true) => whole_vnni,
        (WeightFormat::Q4K | WeightFormat::Q4_0, false) => four_bits,
        (WeightFormat::Q5K | WeightFormat::Q5_0 | WeightFormat::Mxfp4, false) => five_bits,
        (WeightFormat::Q6K, false) => q6_k,
        (WeightFormat::Q8_0 | WeightFormat::Iq4Nl | WeightFormat::Iq4Xs, false) => signed_bytes,
    }
}

/// A loop over blocks and rows for a way to multiply one block: `$scaled` gives the products of
/// each lane times the weights' scales, `$mins` the number of minima that a lane has.
macro_rules! rows {
    ($name:ident, $features:literal, $scaled:ident, $mins:literal) => {
        #[target_feature(enable = $features)]
        fn $name(row: &[UnpackedBlock], lanes: &[GroupedActivations], into: &mut [f32; LANES]) {
            let count = lanes.len() / row.len();
            assert!(count <= LANES && lanes.len() == count * row.len(), "as many blocks of both");
            let mut sums = [_mm256_setzero_ps(); LANES];
            for (weights, lanes) in row.iter().zip(lanes.chunks_exact(count)) {
                for (activations, sum) in lanes.iter().zip(&mut sums) {
                    let scaled = $scaled(weights, activations);
                    *sum = with_block::<$mins>(*sum, scaled, weights, activations);
                }
            }
            for (sums, into) in sums.as_chunks().0.iter().zip(into.as_chunks_mut::<8>().0) {
                // SAFETY: eight floats.
                unsafe {
                    let before = _mm256_loadu_ps(into.as_ptr());
                    _mm256_storeu_ps(into.as_mut_ptr(), _mm256_add_ps(before, sum_each(sums)));
                }
            }
        }
    };
}

/// Most parts that [`RowProducts`] can keep the sums of.
pub(super) const MOST_PARTS: usize = 16;
/// How far ahead memory is called: what one thread reads while a call is answered.
const AHEAD_BYTES: usize = 3072;

/// Puts into the first numbers of `into` the dot products of up to [`ROWS_AT_ONCE`] weight rows,
/// which are given as bytes, with one activation row, whose parts have `part_blocks` blocks. Each
/// is what [`DotProducts`] makes of the parts, added in their order, bit for bit; but a block goes
/// from memory through registers into its product, without a place for many rows to find it, and
/// a row is read from its beginning to its end.
///
/// # Safety
/// As for [`DotProducts`].
pub(super) type RowProducts = unsafe fn(
    rows: &[&[u8]],
    activations: &[GroupedActivations],
    part_blocks: usize,
    into: &mut [f32; ROWS_AT_ONCE],
);

/// The function for a format.
pub(super) fn row_products(format: WeightFormat, vnni: bool) -> RowProducts {
    match (format, vnni) {
        (WeightFormat::Q4K, false) => one_row::q4_k,
        (WeightFormat::Q5K, false) => one_row::q5_k,
        (WeightFormat::Q6K, false) => one_row::q6_k,
        (WeightFormat::Iq4Xs, false) => one_row::iq4_xs,
        (WeightFormat::Q8_0, false) => one_row::q8_0,
        (WeightFormat::Q5_0, false) => one_row::q5_0,
        (WeightFormat::Q4_0, false) => one_row::q4_0,
        (WeightFormat::Iq4Nl, false) => one_row::iq4_nl,
        (WeightFormat::Mxfp4, false) => one_row::mxfp4,
        (WeightFormat::Q4K, true) => one_row_vnni::q4_k,
        (WeightFormat::Q5K, true) => one_row_vnni::q5_k,
        (WeightFormat::Q6K, true) => one_row_vnni::q6_k,
        (WeightFormat::Iq4Xs, true) => one_row_vnni::iq4_xs,
        (WeightFormat::Q8_0, true) => one_row_vnni::q8_0,
        (WeightFormat::Q5_0, true) => one_row_vnni::q5_0,
        (WeightFormat::Q4_0, true) => one_row_vnni::q4_0,
        (WeightFormat::Iq4Nl, true) => one_row_vnni::iq4_nl,
        (WeightFormat::Mxfp4, true) => one_row_vnni::mxfp4,
    }
}

/// Functions for one row of activations, named as the functions that unpack, for what multiplies
/// a block and the number of minima that a lane has.
macro_rules! one_row {
    (
        $module:ident,
        $features:literal,
        $vnni:literal,
        $(($unpack:ident, $scaled:ident, $mins:literal)),*
    ) => {
        mod $module {
            use super::*;

            $(
            #[target_feature(enable = $features)]
            pub(super) fn $unpack(
                rows: &[&[u8]],
                activations: &[GroupedActivations],
                part_blocks: usize,
                into: &mut [f32; ROWS_AT_ONCE],
            ) {
                let mut sums = [[_mm256_setzero_ps(); ROWS_AT_ONCE]; MOST_PARTS];
                for (row, bytes) in rows.iter().enumerate() {
                    let (whole, rest) = bytes.as_chunks();
                    let parts = activations.chunks(part_blocks).zip(&mut sums);
                    for (part, (activations, sums)) in parts.enumerate() {
                        let blocks = &whole[whole.len().min(part * part_blocks)..];
                        let sum = &mut sums[row];
                        for (block, activations) in blocks.iter().zip(activations) {
                            prefetch(block);
                            let weights = unpack::$unpack::<$vnni>(block);
                            let scaled = $scaled(&weights, activations);
                            *sum = with_block::<$mins>(*sum, scaled, &weights, activations);
                        }
                        if let Some(activations) = activations.get(blocks.len()) {
                            let weights = unpack::$unpack::<$vnni>(&filled(rest));
                            let scaled = $scaled(&weights, activations);
                            *sum = with_block::<$mins>(*sum, scaled, &weights, activations);
                        }
                    }
                }
                let mut total = _mm256_setzero_ps();
                for sums in &sums[..activations.len().div_ceil(part_blocks)] {
                    total = _mm256_add_ps(total, sum_each(sums));
                }
                // SAFETY: eight floats.
                unsafe { _mm256_storeu_ps(into.as_mut_ptr(), total) };
            }
            )*
        }
    };
}

/// Calls what lies [`AHEAD_BYTES`] behind a block; that may be beyond the weights, where it does
/// nothing.
#[inline]
fn prefetch<const N: usize>(block: &[u8; N]) {
    for line in (0..N).step_by(64) {
        // SAFETY: a prefetch may name any address.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(block.as_ptr().wrapping_add(AHEAD_BYTES + line).cast());
        }
    }
}

one_row!(
    one_row,
    "avx2,fma,f16c",
    false,
    (q4_k, four_bits_scaled, 1),
    (q5_k, five_bits_scaled, 1),
    (q6_k, q6_k_scaled, 2),
    (iq4_xs, signed_bytes_scaled, 0),
    (q8_0, signed_bytes_scaled, 0),
    (q5_0, five_bits_scaled, 1),
    (q4_0, four_bits_scaled, 1),
    (iq4_nl, signed_bytes_scaled, 0),
    (mxfp4, five_bits_scaled, 1)
);
one_row!(
    one_row_vnni,
    "avx2,fma,f16c,avxvnni",
    true,
    (q4_k, whole_vnni_scaled, 1),
    (q5_k, whole_vnni_scaled, 1),
    (q6_k, halves_vnni_scaled, 2),
    (iq4_xs, whole_vnni_scaled, 1),
    (q8_0, whole_vnni_scaled, 1),
    (q5_0, whole_vnni_scaled, 1),
    (q4_0, whole_vnni_scaled, 1),
    (iq4_nl, whole_vnni_scaled, 1),
    (mxfp4, whole_vnni_scaled, 1)
);

rows!(four_bits, "avx2,fma", four_bits_scaled, 1);
rows!(five_bits, "avx2,fma", five_bits_scaled, 1);
rows!(q6_k, "avx2,fma", q6_k_scaled, 2);
rows!(signed_bytes, "avx2,fma", signed_bytes_scaled, 0);
rows!(whole_vnni, "avx2,fma,avxvnni", whole_vnni_scaled, 1);
rows!(halves_vnni, "avx2,fma,avxvnni", halves_vnni_scaled, 2);

/// `sum` and what a block adds to it: `scaled`, less `MINS` minima for each lane.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn with_block<const MINS: usize>(
    sum: __m256,
    scaled: __m256,
    weights: &UnpackedBlock,
    activations: &GroupedActivations,
) -> __m256 {
    // SAFETY: eight scales, aligned as the block is.
    let scales = unsafe { _mm256_load_ps(activations.scales.as_ptr()) };
    let mut total = _mm256_fmadd_ps(scaled, scales, sum);
    for (mins, sums) in weights.mins.iter().zip(&activations.sums).take(MINS) {
        // SAFETY: as above.
        let sums = unsafe { _mm256_load_ps(sums.as_ptr()) };
        total = _mm256_fnmadd_ps(*mins, sums, total);
    }
    total
}

#[inline]
#[target_feature(enable = "avx2")]
fn quants(activations: &GroupedActivations, r: usize) -> __m256i {
    // SAFETY: 32 of the quants, aligned as the block is.
    unsafe { _mm256_load_si256(activations.quants.as_ptr().cast::<__m256i>().add(r)) }
}

/// The products of registers `FROM` to `TO`, two by two, summed in 16 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn pairs<const FROM: usize, const TO: usize>(
    weights: &UnpackedBlock,
    activations: &GroupedActivations,
) -> __m256i {
    let mut sum = _mm256_maddubs_epi16(weights.quants[FROM], quants(activations, FROM));
    for r in FROM + 1..TO {
        let products = _mm256_maddubs_epi16(weights.quants[r], quants(activations, r));
        sum = _mm256_add_epi16(sum, products);
    }
    sum
}

#[inline]
#[target_feature(enable = "avx2")]
fn four_bits_scaled(weights: &UnpackedBlock, activations: &GroupedActivations) -> __m256 {
    let products = _mm256_madd_epi16(pairs::<0, 8>(weights, activations), weights.factors[0]);
    _mm256_mul_ps(_mm256_cvtepi32_ps(products), weights.scales[0])
}

#[inline]
#[target_feature(enable = "avx2")]
fn five_bits_scaled(weights: &UnpackedBlock, activations: &GroupedActivations) -> __m256 {
    let one = _mm256_madd_epi16(pairs::<0, 4>(weights, activations), weights.factors[0]);
    let other = _mm256_madd_epi16(pairs::<4, 8>(weights, activations), weights.factors[0]);
    _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_add_epi32(one, other)), weights.scales[0])
}

#[inline]
#[target_feature(enable = "avx2")]
fn q6_k_scaled(weights: &UnpackedBlock, activations: &GroupedActivations) -> __m256 {
    let [first, second] = weights.factors;
    let a = _mm256_madd_epi16(pairs::<0, 2>(weights, activations), first);
    let b = _mm256_madd_epi16(pairs::<2, 4>(weights, activations), first);
    let c = _mm256_madd_epi16(pairs::<4, 6>(weights, activations), second);
    let d = _mm256_madd_epi16(pairs::<6, 8>(weights, activations), second);
    let products = _mm256_add_epi32(_mm256_add_epi32(a, b), _mm256_add_epi32(c, d));
    _mm256_mul_ps(_mm256_cvtepi32_ps(products), weights.scales[0])
}

/// The instruction multiplies unsigned with signed bytes: the weights' signs go to the activations.
#[inline]
#[target_feature(enable = "avx2")]
fn signed_bytes_scaled(weights: &UnpackedBlock, activations: &GroupedActivations) -> __m256 {
    let ones = _mm256_set1_epi16(1);
    let mut products = _mm256_setzero_si256();
    for (r, weights) in weights.quants.iter().enumerate() {
        let signed = _mm256_sign_epi8(quants(activations, r), *weights);
        let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(*weights), signed);
        products = _mm256_add_epi32(products, _mm256_madd_epi16(pairs, ones));
    }
    _mm256_mul_ps(_mm256_cvtepi32_ps(products), weights.scales[0])
}

/// The products of registers `FROM` to `TO`.
#[inline]
#[target_feature(enable = "avx2,avxvnni")]
fn fours<const FROM: usize, const TO: usize>(
    weights: &UnpackedBlock,
    activations: &GroupedActivations,
) -> __m256 {
    let mut sum = _mm256_setzero_si256();
    for r in FROM..TO {
        sum = _mm256_dpbusd_avx_epi32(sum, weights.quants[r], quants(activations, r));
    }
    _mm256_cvtepi32_ps(sum)
}

#[inline]
#[target_feature(enable = "avx2,avxvnni")]
fn whole_vnni_scaled(weights: &UnpackedBlock, activations: &GroupedActivations) -> __m256 {
    _mm256_mul_ps(fours::<0, 8>(weights, activations), weights.scales[0])
}

#[inline]
#[target_feature(enable = "avx2,fma,avxvnni")]
fn halves_vnni_scaled(weights: &UnpackedBlock, activations: &GroupedActivations) -> __m256 {
    let [first, second] = weights.scales;
    let scaled = _mm256_mul_ps(fours::<0, 4>(weights, activations), first);
    _mm256_fmadd_ps(fours::<4, 8>(weights, activations), second, scaled)
}
