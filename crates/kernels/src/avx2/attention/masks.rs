//! Masks, 32 numbers at a time.

use std::arch::x86_64::*;

use crate::query_runs::{self, MASKED, MaskLanes, MaskRow, QueryRun, VisibleCells};

/// See [`query_runs::run_of`].
#[target_feature(enable = "avx2")]
pub(super) fn run_of(rows: &[MaskRow<'_>], cells: &mut VisibleCells<'_>) -> QueryRun {
    query_runs::run_of(rows, cells, |lanes| seen(lanes), |one, other| differ(one, other))
}

/// See [`query_runs::write_parts`].
#[target_feature(enable = "avx2")]
pub(super) fn write_parts(lanes: &[u16], parts: &mut [u64]) {
    query_runs::write_parts(lanes, parts, |lanes| seen(lanes));
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(lanes: &MaskLanes) -> [__m256i; 2] {
    let from = lanes.as_ptr().cast::<__m256i>();
    // SAFETY: 32 numbers of 16 bits.
    unsafe { [_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1))] }
}

/// Returns a bit for each 16-bit lane that is not equal.
#[inline]
#[target_feature(enable = "avx2")]
fn unequal([a, b]: [__m256i; 2], [c, d]: [__m256i; 2]) -> u32 {
    // Packing works within halves of registers, and is put in order again.
    let equal = _mm256_packs_epi16(_mm256_cmpeq_epi16(a, c), _mm256_cmpeq_epi16(b, d));
    !(_mm256_movemask_epi8(_mm256_permute4x64_epi64::<0b11_01_10_00>(equal)) as u32)
}

/// Returns a bit for each cell that counts.
#[inline]
#[target_feature(enable = "avx2")]
fn seen(lanes: &MaskLanes) -> u32 {
    unequal(load(lanes), [_mm256_set1_epi16(MASKED as i16); 2])
}

/// Returns a bit for each cell at which the masks differ.
#[inline]
#[target_feature(enable = "avx2")]
fn differ(one: &MaskLanes, other: &MaskLanes) -> u32 {
    unequal(load(one), load(other))
}

#[cfg(test)]
mod tests {
    //! Bits of a mask.
    use super::*;
    use crate::Isa;

    #[test]
    fn bits_are_those_of_the_cells() {
        if !Isa::Avx2.is_here_for_a_test() {
            return;
        }
        let mut lanes = [MASKED; 32];
        (lanes[0], lanes[9], lanes[31]) = (0, 0x3c00, 0x8000);
        let mut other = lanes;
        (other[9], other[17]) = (0x4000, 0);
        // SAFETY: the processor has been asked.
        unsafe {
            assert_eq!(seen(&lanes), 1 | 1 << 9 | 1 << 31);
            assert_eq!(differ(&lanes, &other), 1 << 9 | 1 << 17);
        }
    }
}
