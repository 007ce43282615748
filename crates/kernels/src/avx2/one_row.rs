//! Some weight rows times one activation row.
//!
//! A block goes from memory through registers into its product. Most formats are unpacked as for
//! many rows. Of Q4_K, Q5_K and Q6_K, whose rows are read most, the packed quants are reordered,
//! which needs half as many registers. A register then has two words of four groups instead of one
//! of eight ([`Arrangement::Crossed`]), and sums of halves are added last.

use std::arch::x86_64::*;

use super::products::{
    five_bits_scaled, four_bits_scaled, fours, halves_scaled, halves_vnni_scaled, pairs,
    signed_bytes_scaled, signed_halves_scaled, whole_vnni_scaled, with_block,
};
use super::registers::sum_each;
use super::unpack::{self, UnpackedBlock, filled};
use super::{Arrangement, GROUPS, GroupedActivations, ROWS_AT_ONCE, unpack_grids};
use crate::weight_format::WeightFormat;

/// Maximum parts of a row.
pub(super) const MOST_PARTS: usize = 16;

/// Prefetch distance: beyond the page that is being read, where the hardware prefetcher does not
/// follow. Prefetching into the second-level cache, as with AVX-512, was slower.
const AHEAD_BYTES: usize = 6144;

/// Prefetches the memory [`AHEAD_BYTES`] after a block; no effect if that is beyond the weights.
#[inline]
fn prefetch<const N: usize>(block: &[u8; N]) {
    for line in (0..N).step_by(64) {
        // SAFETY: a prefetch may name any address.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(block.as_ptr().wrapping_add(AHEAD_BYTES + line).cast());
        }
    }
}

/// Sums of each part of each row.
pub(super) type PartSums = [[__m256; ROWS_AT_ONCE]; MOST_PARTS];

/// Stores in the first numbers of `into` the dot products of up to [`ROWS_AT_ONCE`] weight rows,
/// given as bytes, with one activation row, whose parts have `part_blocks` blocks. The results
/// equal those of [`super::products::DotProducts`] for the parts, added in order, bit for bit. No
/// unpacked blocks are stored for reuse, and each row is read from beginning to end.
///
/// # Safety
/// As for [`super::products::DotProducts`].
pub(super) type RowProducts = unsafe fn(
    rows: &[&[u8]],
    activations: &[GroupedActivations],
    part_blocks: usize,
    sums: &mut PartSums,
    into: &mut [f32; ROWS_AT_ONCE],
);

/// Returns the function for a format.
pub(super) fn row_products(format: WeightFormat, vnni: bool) -> RowProducts {
    if vnni { vnni::of(format) } else { plain::of(format) }
}

/// Returns the arrangement of activations for a format's function.
pub(super) fn arrangement(format: WeightFormat) -> Arrangement {
    match format {
        WeightFormat::Q4K | WeightFormat::Q5K => Arrangement::Crossed(unpack::CROSSED_PAIRS),
        WeightFormat::Q6K => Arrangement::Crossed(unpack::CROSSED_FOURS),
        _ => Arrangement::Turned,
    }
}

/// Reorders lanes to the order of groups.
#[inline]
#[target_feature(enable = "avx2")]
fn in_order(arrangement: Arrangement, sum: __m256) -> __m256 {
    let Arrangement::Crossed(order) = arrangement else { return sum };
    let mut lanes = [0i32; GROUPS];
    for (lane, group) in order.into_iter().enumerate() {
        lanes[group] = lane as i32;
    }
    // SAFETY: `lanes` is an array of eight 32-bit integers.
    _mm256_permutevar8x32_ps(sum, unsafe { _mm256_loadu_si256(lanes.as_ptr().cast()) })
}

/// Defines functions with the names of the unpacking ones, and `of`, which returns that of a
/// format. Parameters: the function that multiplies a block, and the number of minima per lane.
macro_rules! formats {
    (
        $module:ident,
        $features:literal,
        $vnni:literal,
        $((
            $unpack:ident,
            $format:ident,
            $from:ident::$function:ident,
            $scaled:ident,
            $mins:literal
        )),*
    ) => {
        mod $module {
            use super::*;

            pub(super) fn of(format: WeightFormat) -> RowProducts {
                match format {
                    $(WeightFormat::$format => $unpack,)*
                }
            }

            $(
            #[target_feature(enable = $features)]
            fn $unpack(
                rows: &[&[u8]],
                activations: &[GroupedActivations],
                part_blocks: usize,
                sums: &mut PartSums,
                into: &mut [f32; ROWS_AT_ONCE],
            ) {
                let order = arrangement(WeightFormat::$format);
                for (row, bytes) in rows.iter().enumerate() {
                    let (whole, rest) = bytes.as_chunks();
                    let mut whole = whole.iter();
                    for (part, sums) in activations.chunks(part_blocks).zip(&mut *sums) {
                        let mut sum = _mm256_setzero_ps();
                        for activations in part {
                            let last;
                            let block = match whole.next() {
                                Some(block) => block,
                                None => {
                                    last = filled(rest);
                                    &last
                                }
                            };
                            prefetch(block);
                            let weights = $from::$function::<$vnni>(block);
                            let scaled = $scaled(&weights, activations);
                            sum = with_block::<$mins>(sum, scaled, &weights, activations);
                        }
                        sums[row] = in_order(order, sum);
                    }
                }
                let parts = activations.len().div_ceil(part_blocks);
                let mut total = _mm256_setzero_ps();
                for sums in &sums[..parts] {
                    total = _mm256_add_ps(total, sum_each(sums));
                }
                // SAFETY: `into` is an array of eight floats.
                unsafe { _mm256_storeu_ps(into.as_mut_ptr(), total) };
            }
            )*
        }
    };
}

formats!(
    plain,
    "avx2,fma,f16c",
    false,
    (q2_k, Q2K, unpack::q2_k, halves_scaled, 2),
    (q3_k, Q3K, unpack::q3_k, halves_scaled, 2),
    (q4_k, Q4K, unpack::q4_k_crossed, four_bits_crossed, 1),
    (q5_k, Q5K, unpack::q5_k_crossed, five_bits_crossed, 1),
    (q6_k, Q6K, unpack::q6_k_crossed, q6_k_halves, 2),
    (iq4_xs, Iq4Xs, unpack::iq4_xs, signed_bytes_scaled, 0),
    (iq2_xxs, Iq2Xxs, unpack_grids::iq2_xxs, signed_bytes_scaled, 0),
    (iq2_xs, Iq2Xs, unpack_grids::iq2_xs, signed_halves_scaled, 0),
    (iq2_s, Iq2S, unpack_grids::iq2_s, signed_halves_scaled, 0),
    (iq3_xxs, Iq3Xxs, unpack_grids::iq3_xxs, signed_bytes_scaled, 0),
    (iq3_s, Iq3S, unpack_grids::iq3_s, signed_bytes_scaled, 0),
    (q8_0, Q8_0, unpack::q8_0, signed_bytes_scaled, 0),
    (q5_0, Q5_0, unpack::q5_0, five_bits_scaled, 1),
    (q4_0, Q4_0, unpack::q4_0, four_bits_scaled, 1),
    (q5_1, Q5_1, unpack::q5_1, five_bits_scaled, 1),
    (q4_1, Q4_1, unpack::q4_1, four_bits_scaled, 1),
    (iq4_nl, Iq4Nl, unpack::iq4_nl, signed_bytes_scaled, 0),
    (mxfp4, Mxfp4, unpack::mxfp4, five_bits_scaled, 1)
);
formats!(
    vnni,
    "avx2,fma,f16c,avxvnni",
    true,
    (q2_k, Q2K, unpack::q2_k, halves_vnni_scaled, 2),
    (q3_k, Q3K, unpack::q3_k, halves_vnni_scaled, 2),
    (q4_k, Q4K, unpack::q4_k_crossed, whole_crossed, 1),
    (q5_k, Q5K, unpack::q5_k_crossed, whole_crossed, 1),
    (q6_k, Q6K, unpack::q6_k_crossed, halves_crossed, 2),
    (iq4_xs, Iq4Xs, unpack::iq4_xs, whole_vnni_scaled, 1),
    (iq2_xxs, Iq2Xxs, unpack_grids::iq2_xxs, whole_vnni_scaled, 1),
    (iq2_xs, Iq2Xs, unpack_grids::iq2_xs, halves_vnni_scaled, 2),
    (iq2_s, Iq2S, unpack_grids::iq2_s, halves_vnni_scaled, 2),
    (iq3_xxs, Iq3Xxs, unpack_grids::iq3_xxs, whole_vnni_scaled, 1),
    (iq3_s, Iq3S, unpack_grids::iq3_s, whole_vnni_scaled, 1),
    (q8_0, Q8_0, unpack::q8_0, whole_vnni_scaled, 1),
    (q5_0, Q5_0, unpack::q5_0, whole_vnni_scaled, 1),
    (q4_0, Q4_0, unpack::q4_0, whole_vnni_scaled, 1),
    (q5_1, Q5_1, unpack::q5_1, whole_vnni_scaled, 1),
    (q4_1, Q4_1, unpack::q4_1, whole_vnni_scaled, 1),
    (iq4_nl, Iq4Nl, unpack::iq4_nl, whole_vnni_scaled, 1),
    (mxfp4, Mxfp4, unpack::mxfp4, whole_vnni_scaled, 1)
);

/// Returns two registers whose sum has the groups of `first` in its lower lanes and those of
/// `second` in its upper ones; either input has each of its four groups in both halves.
#[inline]
#[target_feature(enable = "avx2")]
fn both(first: __m256i, second: __m256i) -> (__m256i, __m256i) {
    let kept = _mm256_blend_epi32::<0b1111_0000>(first, second);
    (kept, _mm256_permute2x128_si256::<0x21>(first, second))
}

#[inline]
#[target_feature(enable = "avx2")]
fn four_bits_crossed(weights: &UnpackedBlock, activations: &GroupedActivations) -> __m256 {
    let (a, b) = both(pairs::<0, 4>(weights, activations), pairs::<4, 8>(weights, activations));
    let products = _mm256_madd_epi16(_mm256_add_epi16(a, b), weights.factors[0]);
    _mm256_mul_ps(_mm256_cvtepi32_ps(products), weights.scales[0])
}

#[inline]
#[target_feature(enable = "avx2")]
fn five_bits_crossed(weights: &UnpackedBlock, activations: &GroupedActivations) -> __m256 {
    let (a, b) = both(pairs::<0, 4>(weights, activations), pairs::<4, 8>(weights, activations));
    let factor = weights.factors[0];
    let (a, b) = (_mm256_madd_epi16(a, factor), _mm256_madd_epi16(b, factor));
    _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_add_epi32(a, b)), weights.scales[0])
}

#[inline]
#[target_feature(enable = "avx2")]
fn q6_k_halves(weights: &UnpackedBlock, activations: &GroupedActivations) -> __m256 {
    let [first, second] = weights.factors;
    let a = _mm256_madd_epi16(pairs::<0, 2>(weights, activations), first);
    let b = _mm256_madd_epi16(pairs::<2, 4>(weights, activations), first);
    let c = _mm256_madd_epi16(pairs::<4, 6>(weights, activations), second);
    let d = _mm256_madd_epi16(pairs::<6, 8>(weights, activations), second);
    let (a, b) = both(_mm256_add_epi32(a, b), _mm256_add_epi32(c, d));
    _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_add_epi32(a, b)), weights.scales[0])
}

#[inline]
#[target_feature(enable = "avx2,avxvnni")]
fn whole_crossed(weights: &UnpackedBlock, activations: &GroupedActivations) -> __m256 {
    let (a, b) = both(fours::<0, 4>(weights, activations), fours::<4, 8>(weights, activations));
    _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_add_epi32(a, b)), weights.scales[0])
}

#[inline]
#[target_feature(enable = "avx2,fma,avxvnni")]
fn halves_crossed(weights: &UnpackedBlock, activations: &GroupedActivations) -> __m256 {
    let (a, b) = (fours::<0, 4>(weights, activations), fours::<4, 8>(weights, activations));
    let first = _mm256_cvtepi32_ps(_mm256_permute2x128_si256::<0x20>(a, b));
    let second = _mm256_cvtepi32_ps(_mm256_permute2x128_si256::<0x31>(a, b));
    let [first_scales, second_scales] = weights.scales;
    _mm256_fmadd_ps(second, second_scales, _mm256_mul_ps(first, first_scales))
}
