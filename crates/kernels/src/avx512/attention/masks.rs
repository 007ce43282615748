//! Masks, 32 numbers at a time.

use std::arch::x86_64::*;

use crate::query_runs::{self, MASKED, MaskLanes, MaskRow, QueryRun, VisibleCells};

/// See [`query_runs::run_of`].
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn run_of(rows: &[MaskRow<'_>], cells: &mut VisibleCells<'_>) -> QueryRun {
    query_runs::run_of(rows, cells, |lanes| seen(lanes), |one, other| differ(one, other))
}

/// See [`query_runs::write_parts`].
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn write_parts(lanes: &[u16], parts: &mut [u64]) {
    query_runs::write_parts(lanes, parts, |lanes| seen(lanes));
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(lanes: &MaskLanes) -> __m512i {
    // SAFETY: 32 numbers of 16 bits.
    unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) }
}

/// Returns a bit for each cell that counts.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn seen(lanes: &MaskLanes) -> u32 {
    _mm512_cmpneq_epi16_mask(load(lanes), _mm512_set1_epi16(MASKED as i16))
}

/// Returns a bit for each cell at which the masks differ.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn differ(one: &MaskLanes, other: &MaskLanes) -> u32 {
    _mm512_cmpneq_epi16_mask(load(one), load(other))
}

#[cfg(test)]
mod tests {
    //! Bits of a mask.
    use super::*;
    use crate::Isa;

    #[test]
    fn bits_are_those_of_the_cells() {
        if !Isa::Avx512Vnni.is_here_for_a_test() {
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
