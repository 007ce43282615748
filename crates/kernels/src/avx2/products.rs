//! Multiplies one weight row with up to [`LANES`] activation rows.
//!
//! Without VNNI two products are summed in 16 bits, and then as many of these sums as cannot
//! overflow before they are widened: eight for Q4_K, Q4_0 and Q4_1 (8 * 2 * 15 * 127), four for
//! Q5_K, Q5_0, Q5_1 and MXFP4 (4 * 2 * 31 * 127), two for Q6_K (2 * 2 * 63 * 127), which Q3_K and
//! Q2_K share, and for IQ2 (2 * 2 * 43 * 127), one for Q8_0, IQ4 and IQ3 (2 * 128 * 127).

use std::arch::x86_64::*;

use super::registers::sum_each;
use super::unpack::UnpackedBlock;
use super::{GroupedActivations, LANES};
use crate::weight_format::WeightFormat;

/// Adds to the first numbers of `into` the dot products of a weight row's blocks with the same
/// blocks of some activation rows, which are side by side in `lanes`.
///
/// # Safety
/// The processor has AVX2 and FMA, and AVX-VNNI if the function was chosen with `vnni`.
pub(super) type DotProducts =
    unsafe fn(row: &[UnpackedBlock], lanes: &[GroupedActivations], into: &mut [f32; LANES]);

/// Returns the function for a format.
pub(super) fn dot_products(format: WeightFormat, vnni: bool) -> DotProducts {
    match (format, vnni) {
        (format, true) if format.has_halves() => halves_vnni,
        (_, true) => whole_vnni,
        (WeightFormat::Q4K | WeightFormat::Q4_0 | WeightFormat::Q4_1, false) => four_bits,
        (
            WeightFormat::Q5K | WeightFormat::Q5_0 | WeightFormat::Q5_1 | WeightFormat::Mxfp4,
            false,
        ) => five_bits,
        (WeightFormat::Q2K | WeightFormat::Q3K | WeightFormat::Q6K, false) => halves,
        (WeightFormat::Iq2Xs | WeightFormat::Iq2S, false) => signed_halves,
        (
            WeightFormat::Q8_0
            | WeightFormat::Iq4Nl
            | WeightFormat::Iq4Xs
            | WeightFormat::Iq2Xxs
            | WeightFormat::Iq3Xxs
            | WeightFormat::Iq3S,
            false,
        ) => signed_bytes,
    }
}

/// Defines a loop over blocks and rows for a way to multiply one block: `$scaled` computes the
/// products of each lane times the weights' scales, `$mins` is the number of minima per lane.
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
                // SAFETY: `into` is an array of eight floats.
                unsafe {
                    let before = _mm256_loadu_ps(into.as_ptr());
                    _mm256_storeu_ps(into.as_mut_ptr(), _mm256_add_ps(before, sum_each(sums)));
                }
            }
        }
    };
}

rows!(four_bits, "avx2,fma", four_bits_scaled, 1);
rows!(five_bits, "avx2,fma", five_bits_scaled, 1);
rows!(halves, "avx2,fma", halves_scaled, 2);
rows!(signed_bytes, "avx2,fma", signed_bytes_scaled, 0);
rows!(signed_halves, "avx2,fma", signed_halves_scaled, 0);
rows!(whole_vnni, "avx2,fma,avxvnni", whole_vnni_scaled, 1);
rows!(halves_vnni, "avx2,fma,avxvnni", halves_vnni_scaled, 2);

/// Adds a block to `sum`: `scaled`, less `MINS` minima for each lane.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(super) fn with_block<const MINS: usize>(
    sum: __m256,
    scaled: __m256,
    weights: &UnpackedBlock,
    activations: &GroupedActivations,
) -> __m256 {
    // SAFETY: eight scales, aligned as the block is.
    let scales = unsafe { _mm256_load_ps(activations.scales.as_ptr()) };
    let mut total = _mm256_fmadd_ps(scaled, scales, sum);
    for (mins, sums) in weights.mins.iter().zip(&activations.sums).take(MINS) {
        // SAFETY: eight sums, 32 bytes apart in a block that is aligned to 32.
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

/// Products of registers `FROM` to `TO`, two by two, summed in 16 bits.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn pairs<const FROM: usize, const TO: usize>(
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
pub(super) fn four_bits_scaled(
    weights: &UnpackedBlock,
    activations: &GroupedActivations,
) -> __m256 {
    let products = _mm256_madd_epi16(pairs::<0, 8>(weights, activations), weights.factors[0]);
    _mm256_mul_ps(_mm256_cvtepi32_ps(products), weights.scales[0])
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn five_bits_scaled(
    weights: &UnpackedBlock,
    activations: &GroupedActivations,
) -> __m256 {
    let one = _mm256_madd_epi16(pairs::<0, 4>(weights, activations), weights.factors[0]);
    let other = _mm256_madd_epi16(pairs::<4, 8>(weights, activations), weights.factors[0]);
    _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_add_epi32(one, other)), weights.scales[0])
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn halves_scaled(weights: &UnpackedBlock, activations: &GroupedActivations) -> __m256 {
    let [first, second] = weights.factors;
    let a = _mm256_madd_epi16(pairs::<0, 2>(weights, activations), first);
    let b = _mm256_madd_epi16(pairs::<2, 4>(weights, activations), first);
    let c = _mm256_madd_epi16(pairs::<4, 6>(weights, activations), second);
    let d = _mm256_madd_epi16(pairs::<6, 8>(weights, activations), second);
    let products = _mm256_add_epi32(_mm256_add_epi32(a, b), _mm256_add_epi32(c, d));
    _mm256_mul_ps(_mm256_cvtepi32_ps(products), weights.scales[0])
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn signed_bytes_scaled(
    weights: &UnpackedBlock,
    activations: &GroupedActivations,
) -> __m256 {
    let ones = _mm256_set1_epi16(1);
    let mut products = _mm256_setzero_si256();
    for r in 0..weights.quants.len() {
        let pairs = signed_pairs(weights, activations, r);
        products = _mm256_add_epi32(products, _mm256_madd_epi16(pairs, ones));
    }
    _mm256_mul_ps(_mm256_cvtepi32_ps(products), weights.scales[0])
}

/// [`halves_scaled`] with signed weights.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn signed_halves_scaled(
    weights: &UnpackedBlock,
    activations: &GroupedActivations,
) -> __m256 {
    let mut products = _mm256_setzero_si256();
    for r in (0..weights.quants.len()).step_by(2) {
        let pairs = [r, r + 1].map(|r| signed_pairs(weights, activations, r));
        let sum = _mm256_add_epi16(pairs[0], pairs[1]);
        let scaled = _mm256_madd_epi16(sum, weights.factors[r / 4]);
        products = _mm256_add_epi32(products, scaled);
    }
    _mm256_mul_ps(_mm256_cvtepi32_ps(products), weights.scales[0])
}

/// Products of register `r` of signed weights, summed two by two in 16 bits. The instruction
/// multiplies unsigned with signed bytes, so the weights' signs are moved to the activations.
#[inline]
#[target_feature(enable = "avx2")]
fn signed_pairs(weights: &UnpackedBlock, activations: &GroupedActivations, r: usize) -> __m256i {
    let weights = weights.quants[r];
    let signed = _mm256_sign_epi8(quants(activations, r), weights);
    _mm256_maddubs_epi16(_mm256_abs_epi8(weights), signed)
}

/// The products of registers `FROM` to `TO`.
#[inline]
#[target_feature(enable = "avx2,avxvnni")]
pub(super) fn fours<const FROM: usize, const TO: usize>(
    weights: &UnpackedBlock,
    activations: &GroupedActivations,
) -> __m256i {
    let mut sum = _mm256_setzero_si256();
    for r in FROM..TO {
        sum = _mm256_dpbusd_avx_epi32(sum, weights.quants[r], quants(activations, r));
    }
    sum
}

#[inline]
#[target_feature(enable = "avx2,avxvnni")]
pub(super) fn whole_vnni_scaled(
    weights: &UnpackedBlock,
    activations: &GroupedActivations,
) -> __m256 {
    _mm256_mul_ps(_mm256_cvtepi32_ps(fours::<0, 8>(weights, activations)), weights.scales[0])
}

#[inline]
#[target_feature(enable = "avx2,fma,avxvnni")]
pub(super) fn halves_vnni_scaled(
    weights: &UnpackedBlock,
    activations: &GroupedActivations,
) -> __m256 {
    let [first, second] = weights.scales;
    let (a, b) = (fours::<0, 4>(weights, activations), fours::<4, 8>(weights, activations));
    let scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(a), first);
    _mm256_fmadd_ps(_mm256_cvtepi32_ps(b), second, scaled)
}
