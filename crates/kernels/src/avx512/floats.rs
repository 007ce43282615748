//! Products with weights that are floats.

use std::arch::x86_64::*;

use crate::float_matmul::{FloatMatMul, FloatOperands, FloatRegister};
use crate::work_queue::WorkQueue;

/// Work memory in bytes.
pub(crate) fn memory_bytes(op: &FloatMatMul<'_>) -> usize {
    if has_pairs(op) { op.activations() * Bf16Pairs::ACTIVATION_BYTES } else { 0 }
}

/// Returns true if the weights are BF16 and the processor multiplies pairs of them, which is twice
/// as fast.
fn has_pairs(op: &FloatMatMul<'_>) -> bool {
    op.is_bf16_in(Bf16Pairs::STEP) && is_x86_feature_detected!("avx512bf16")
}

/// Computes one thread's share.
///
/// # Safety
/// The processor has AVX-512; all threads of `queue` call this with the same `memory` of
/// [`memory_bytes`]; the tensors have their data.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
pub(crate) unsafe fn compute(op: &FloatMatMul<'_>, queue: &WorkQueue, memory: *mut u8) {
    // SAFETY: passed on from the caller; the processor was asked for its pairs.
    unsafe {
        if has_pairs(op) {
            compute_pairs(op, queue, memory);
        } else {
            op.compute::<__m512>(queue);
        }
    }
}

/// Computes one thread's share: rounds activations to BF16, waits for the others, multiplies.
///
/// # Safety
/// As for [`compute`]; the processor has BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,f16c")]
unsafe fn compute_pairs(op: &FloatMatMul<'_>, queue: &WorkQueue, memory: *mut u8) {
    // SAFETY: by the caller the tensors have their data.
    let rows = unsafe { op.activations_of(queue.thread, queue.threads) };
    for (row, values) in rows {
        let mut to = memory.wrapping_add(row * values.len() * Bf16Pairs::ACTIVATION_BYTES);
        for sixteen in values.as_chunks::<16>().0 {
            // SAFETY: sixteen numbers; each thread writes its own rows.
            unsafe {
                let rounded = _mm512_cvtneps_pbh(_mm512_loadu_ps(sixteen.as_ptr()));
                to.cast::<__m256bh>().write_unaligned(rounded);
                to = to.add(size_of::<__m256bh>());
            }
        }
    }
    // SAFETY: passed on from the caller.
    unsafe { op.compute_rounded::<Bf16Pairs>(queue, memory) }
}

/// BF16 of both sides, of which a lane has two.
struct Bf16Pairs;

impl FloatOperands for Bf16Pairs {
    type Register = __m512;
    const WEIGHT_BYTES: usize = 2;
    const ACTIVATION_BYTES: usize = 2;
    const STEP: usize = 32;

    #[inline(always)]
    unsafe fn weights(at: *const u8) -> __m512 {
        // SAFETY: passed on from the caller.
        unsafe { _mm512_loadu_ps(at.cast()) }
    }

    #[inline(always)]
    unsafe fn activations(at: *const u8) -> __m512 {
        // SAFETY: passed on from the caller.
        unsafe { _mm512_loadu_ps(at.cast()) }
    }

    #[inline(always)]
    unsafe fn multiplied(weights: __m512, activations: __m512, sum: __m512) -> __m512 {
        // SAFETY: passed on from the caller; any bits are 32 BF16.
        unsafe {
            let [weights, activations] =
                [weights, activations].map(|v| std::mem::transmute::<__m512, __m512bh>(v));
            _mm512_dpbf16_ps(sum, weights, activations)
        }
    }
}

impl FloatRegister for __m512 {
    const LANES: usize = 16;
    // 24 sums, 4 registers of weights and one of activations, of 32.
    const ROWS: usize = 6;

    #[inline(always)]
    fn zero() -> Self {
        // SAFETY: all bits 0 are sixteen times 0.
        unsafe { std::mem::zeroed() }
    }

    #[inline(always)]
    unsafe fn f32(at: *const u8) -> Self {
        // SAFETY: passed on from the caller.
        unsafe { _mm512_loadu_ps(at.cast()) }
    }

    #[inline(always)]
    unsafe fn f16(at: *const u8) -> Self {
        // SAFETY: passed on from the caller.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())) }
    }

    #[inline(always)]
    unsafe fn bf16(at: *const u8) -> Self {
        // SAFETY: passed on from the caller.
        unsafe {
            let upper = _mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(upper))
        }
    }

    #[inline(always)]
    unsafe fn multiplied(self, factor: Self, sum: Self) -> Self {
        // SAFETY: passed on from the caller.
        unsafe { _mm512_fmadd_ps(self, factor, sum) }
    }

    #[inline(always)]
    unsafe fn lane_sums(registers: [Self; 4]) -> [f32; 4] {
        // SAFETY: passed on from the caller.
        unsafe {
            let mut halves = [_mm256_setzero_ps(); 4];
            for i in 0..4 {
                let upper = _mm512_extractf32x8_ps::<1>(registers[i]);
                halves[i] = _mm256_add_ps(_mm512_castps512_ps256(registers[i]), upper);
            }
            <__m256 as FloatRegister>::lane_sums(halves)
        }
    }
}
