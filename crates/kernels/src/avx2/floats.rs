//! Products with weights that are floats.

use std::arch::x86_64::*;

use crate::float_matmul::{FloatMatMul, FloatRegister};
use crate::work_queue::WorkQueue;

/// Computes one thread's share.
///
/// # Safety
/// The processor has AVX2, FMA and F16C; all threads of `queue` call this; the tensors have their
/// data.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn compute(op: &FloatMatMul<'_>, queue: &WorkQueue) {
    // SAFETY: passed on from the caller.
    unsafe { op.compute::<__m256>(queue) }
}

impl FloatRegister for __m256 {
    const LANES: usize = 8;
    // 8 sums, 4 registers of weights and one of activations, of 16.
    const ROWS: usize = 2;

    #[inline(always)]
    fn zero() -> Self {
        // SAFETY: all bits 0 are eight times 0.
        unsafe { std::mem::zeroed() }
    }

    #[inline(always)]
    unsafe fn f32(at: *const u8) -> Self {
        // SAFETY: passed on from the caller.
        unsafe { _mm256_loadu_ps(at.cast()) }
    }

    #[inline(always)]
    unsafe fn f16(at: *const u8) -> Self {
        // SAFETY: passed on from the caller.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(at.cast())) }
    }

    #[inline(always)]
    unsafe fn bf16(at: *const u8) -> Self {
        // SAFETY: passed on from the caller.
        unsafe {
            let upper = _mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(upper))
        }
    }

    #[inline(always)]
    unsafe fn multiplied(self, factor: Self, sum: Self) -> Self {
        // SAFETY: passed on from the caller.
        unsafe { _mm256_fmadd_ps(self, factor, sum) }
    }

    #[inline(always)]
    unsafe fn lane_sums([a, b, c, d]: [Self; 4]) -> [f32; 4] {
        // SAFETY: passed on from the caller.
        unsafe {
            // Pairs, then fours, in both halves; the halves at last.
            let fours = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
            let upper = _mm256_extractf128_ps::<1>(fours);
            let mut sums = [0.0; 4];
            _mm_storeu_ps(sums.as_mut_ptr(), _mm_add_ps(_mm256_castps256_ps128(fours), upper));
            sums
        }
    }
}
