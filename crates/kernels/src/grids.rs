//! Grids of the formats that store a run of weights as one index: eight weights in IQ2_XXS, IQ2_XS
//! and IQ2_S, four in IQ3_XXS and IQ3_S. A grid has the magnitudes; signs are stored beside the
//! indices.
//!
//! The grids belong to the formats, and ggml has them. They are taken from there when they are
//! first needed: blocks that have each index once are dequantised.

use std::arch::x86_64::*;
use std::sync::LazyLock;

use super::{BLOCK, sys};

/// Runs of eight weights, a byte each, by index.
pub(super) type EightsGrid<const N: usize> = LazyLock<Box<[u64; N]>>;
/// Runs of four weights, a byte each, by index.
pub(super) type FoursGrid<const N: usize> = LazyLock<Box<[u32; N]>>;

pub(super) static IQ2_XXS: EightsGrid<256> = LazyLock::new(|| {
    // For every 32 weights: four indices, then signs and a scale.
    let grid = learned(sys::GGML_TYPE_IQ2_XXS, EIGHT, |block, run, index| {
        block[2 + run / 4 * 8 + run % 4] = index as u8;
    });
    Box::new(grid.map(u64::from_le_bytes))
});

pub(super) static IQ2_XS: EightsGrid<512> = LazyLock::new(|| {
    let grid = learned(sys::GGML_TYPE_IQ2_XS, EIGHT, |block, run, index| {
        block[2 + 2 * run..][..2].copy_from_slice(&(index as u16).to_le_bytes());
    });
    Box::new(grid.map(u64::from_le_bytes))
});

pub(super) static IQ2_S: EightsGrid<1024> = LazyLock::new(|| {
    let grid = learned(sys::GGML_TYPE_IQ2_S, EIGHT, |block, run, index| {
        block[2 + run] = index as u8;
        block[66 + run / 4] |= ((index >> 8) << (2 * (run % 4))) as u8;
    });
    Box::new(grid.map(u64::from_le_bytes))
});

pub(super) static IQ3_XXS: FoursGrid<256> = LazyLock::new(|| {
    let grid = learned(sys::GGML_TYPE_IQ3_XXS, FOUR, |block, run, index| {
        block[2 + run] = index as u8;
    });
    Box::new(grid.map(u32::from_le_bytes))
});

pub(super) static IQ3_S: FoursGrid<512> = LazyLock::new(|| {
    let grid = learned(sys::GGML_TYPE_IQ3_S, ONE, |block, run, index| {
        block[2 + run] = index as u8;
        block[66 + run / 8] |= ((index >> 8) << (run % 8)) as u8;
    });
    Box::new(grid.map(u32::from_le_bytes))
});

/// 16-bit floats with which the scale number 0 of a block is 1, so that weights are magnitudes.
const ONE: u16 = 0x3c00;
const FOUR: u16 = 0x4400;
const EIGHT: u16 = 0x4800;

/// Room for the longest block, aligned as ggml's are.
#[repr(align(4))]
struct BlockBytes([u8; 110]);

/// Returns the magnitudes of each index of the format `kind`, whose blocks begin with a unit. `put`
/// writes an index at the place of a run in a block of zeros.
fn learned<const RUN: usize, const N: usize>(
    kind: sys::ggml_type,
    unit: u16,
    put: impl Fn(&mut [u8], usize, usize),
) -> [[u8; RUN]; N] {
    let mut grid = [[0; RUN]; N];
    let runs = const { BLOCK / RUN };
    // SAFETY: the type exists.
    let to_float =
        unsafe { (*sys::ggml_get_type_traits(kind)).to_float.expect("a quantised type") };
    for (first, grid) in (0..N).step_by(runs).zip(grid.chunks_mut(runs)) {
        let (mut block, mut weights) = (BlockBytes([0; 110]), [0.0f32; BLOCK]);
        block.0[..2].copy_from_slice(&unit.to_le_bytes());
        (0..runs).for_each(|run| put(&mut block.0, run, first + run));
        // SAFETY: a block of the type has 256 weights and at most 110 bytes (native/kernels.cpp).
        unsafe { to_float(block.0.as_ptr().cast(), weights.as_mut_ptr(), BLOCK as i64) };
        for (run, weights) in grid.iter_mut().zip(weights.as_chunks::<RUN>().0) {
            *run = weights.map(|weight| weight as u8);
        }
    }
    grid
}

/// Returns the run with this index.
#[inline]
pub(super) fn looked_up<T: Copy, const N: usize>(grid: &[T; N], index: usize) -> T {
    // SAFETY: a reference. The read is volatile, or the compiler joins the reads of several runs to
    // one instruction, which takes longer than they do.
    unsafe { std::ptr::read_volatile(&raw const grid[index]) }
}

/// Returns sixteen numbers of four bits as bytes, those of lower bits first.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn nibbles(packed: u64) -> __m128i {
    let (both, mask) = (_mm_cvtsi64_si128(packed as i64), _mm_set1_epi8(0x0f));
    let low = _mm_and_si128(both, mask);
    let high = _mm_and_si128(_mm_srli_epi16::<4>(both), mask);
    _mm_unpacklo_epi8(low, high)
}

/// Returns the lowest 28 bits of each lane as four bytes of seven bits.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn four_sevens(packed: __m256i) -> __m256i {
    let masked = |bits: __m256i, mask: i32| _mm256_and_si256(bits, _mm256_set1_epi32(mask));
    let low = [masked(packed, 0x7f), masked(_mm256_slli_epi32::<1>(packed), 0x7f00)];
    let high = [
        masked(_mm256_slli_epi32::<2>(packed), 0x7f_0000),
        masked(_mm256_slli_epi32::<3>(packed), 0x7f00_0000),
    ];
    let [low, high] = [low, high].map(|[one, other]| _mm256_or_si256(one, other));
    _mm256_or_si256(low, high)
}

/// Returns the signs of 256 weights, a bit each, of which every eighth is left out of `sevens`, a
/// byte for seven: it makes the number of negative weights even.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn with_eighth_signs(sevens: __m256i) -> __m256i {
    let pairs = _mm256_xor_si256(sevens, _mm256_srli_epi32::<4>(sevens));
    let pairs = _mm256_xor_si256(pairs, _mm256_srli_epi32::<2>(pairs));
    let parity = _mm256_xor_si256(pairs, _mm256_srli_epi32::<1>(pairs));
    let parity = _mm256_and_si256(parity, _mm256_set1_epi32(0x0101_0101));
    _mm256_or_si256(sevens, _mm256_slli_epi32::<7>(parity))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_has_its_own_run_of_small_magnitudes() {
        fn check<const N: usize>(runs: impl Iterator<Item = u64>, most: u8, name: &str) {
            let mut known = std::collections::BTreeSet::new();
            for run in runs {
                assert!(known.insert(run), "{name}: {run:x} twice");
                let bytes = run.to_le_bytes();
                assert!(bytes.iter().all(|byte| *byte <= most), "{name}: {bytes:?}");
            }
            assert_eq!(known.len(), N, "{name}");
        }
        check::<256>(IQ2_XXS.iter().copied(), 43, "IQ2_XXS");
        check::<512>(IQ2_XS.iter().copied(), 43, "IQ2_XS");
        check::<1024>(IQ2_S.iter().copied(), 43, "IQ2_S");
        check::<256>(IQ3_XXS.iter().map(|run| u64::from(*run)), 62, "IQ3_XXS");
        check::<512>(IQ3_S.iter().map(|run| u64::from(*run)), 15, "IQ3_S");
    }

    #[test]
    fn the_eighth_sign_makes_their_number_even() {
        if !crate::Isa::Avx2.is_here_for_a_test() {
            return;
        }
        for seven in 0..128u8 {
            let packed = (15 << 28) | (i32::from(seven) * 0x0020_4081);
            let mut signs = [0u8; 32];
            // SAFETY: the processor has been asked; `signs` has 32 bytes.
            unsafe {
                let found = with_eighth_signs(four_sevens(_mm256_set1_epi32(packed)));
                _mm256_storeu_si256(signs.as_mut_ptr().cast(), found);
            }
            for byte in signs {
                assert_eq!((byte & 0x7f, byte.count_ones() % 2), (seven, 0));
            }
        }
    }
}
