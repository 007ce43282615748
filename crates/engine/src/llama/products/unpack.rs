//! From ggml's block formats to [`WeightBlock`].
//!
//! The formats are those of ggml-common.h: Q4_K and Q5_K have eight groups of 32 with 6-bit
//! scales and minima, Q6_K sixteen groups of 16 with 8-bit scales around 32.

use std::arch::x86_64::*;

use super::{GROUPS, WeightBlock};

/// A block format these kernels read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Q4K,
    Q5K,
    Q6K,
}

impl Format {
    /// Bytes of one block of 256 weights.
    pub(super) fn block_bytes(self) -> usize {
        match self {
            Format::Q4K => 144,
            Format::Q5K => 176,
            Format::Q6K => 210,
        }
    }

    /// Unpacks a row: `bytes` holds as many blocks as `into`.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
    pub(super) fn unpack_row(self, bytes: &[u8], into: &mut [WeightBlock]) {
        assert_eq!(bytes.len(), into.len() * self.block_bytes(), "a row of whole blocks");
        match self {
            Format::Q4K => {
                for (block, into) in bytes.as_chunks::<144>().0.iter().zip(into) {
                    unpack_q4_k(block, into);
                }
            }
            Format::Q5K => {
                for (block, into) in bytes.as_chunks::<176>().0.iter().zip(into) {
                    unpack_q5_k(block, into);
                }
            }
            Format::Q6K => {
                for (block, into) in bytes.as_chunks::<210>().0.iter().zip(into) {
                    unpack_q6_k(block, into);
                }
            }
        }
    }
}

#[target_feature(enable = "f16c")]
fn half(low: u8, high: u8) -> f32 {
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(u16::from_le_bytes([low, high])))))
}

#[target_feature(enable = "avx512f,avx512vl")]
fn load32(bytes: &[u8], at: usize) -> __m256i {
    // SAFETY: the slice has these 32 bytes, or the index panics.
    unsafe { _mm256_loadu_si256(bytes[at..at + 32].as_ptr().cast()) }
}

/// Stores 64 quants, the first 32 first.
#[target_feature(enable = "avx512f,avx512vl")]
fn store(into: &mut WeightBlock, j: usize, first: __m256i, second: __m256i) {
    let both = _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
    // SAFETY: 64 bytes within the block, aligned as the block is.
    unsafe { _mm512_store_si512(into.quants[64 * j..64 * j + 64].as_mut_ptr().cast(), both) }
}

/// Writes eight scales and minima of 32 weights each, packed in 6 bits.
#[target_feature(enable = "avx512f,avx512dq,avx512vl,f16c")]
fn unpack_scales(head: &[u8], into: &mut WeightBlock) {
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let (low, mid, high) = (word(4), word(8), word(12));
    let join = |first: u32, last: u32| (u64::from(last) << 32 | u64::from(first)) as i64;
    let scales =
        join(low & 0x3f3f_3f3f, (high & 0x0f0f_0f0f) | ((low >> 6) & 0x0303_0303) << 4);
    let mins =
        join(mid & 0x3f3f_3f3f, ((high >> 4) & 0x0f0f_0f0f) | ((mid >> 6) & 0x0303_0303) << 4);
    let floats = |bytes: i64, unit: f32| {
        let floats = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes)));
        _mm512_castps256_ps512(_mm256_mul_ps(floats, _mm256_set1_ps(unit)))
    };
    let scales = floats(scales, half(head[0], head[1]));
    let mins = floats(mins, half(head[2], head[3]));
    let eights = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    for j in 0..4 {
        let index = _mm512_add_epi32(eights, _mm512_set1_epi32(2 * j as i32));
        // SAFETY: sixteen floats, aligned as the block is.
        unsafe {
            let to = into.scales[16 * j..16 * j + 16].as_mut_ptr();
            _mm512_store_ps(to, _mm512_permutexvar_ps(index, scales));
        }
    }
    let twos = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    // SAFETY: sixteen floats, aligned as the block is.
    unsafe { _mm512_store_ps(into.mins.as_mut_ptr(), _mm512_permutexvar_ps(twos, mins)) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
fn unpack_q4_k(block: &[u8; 144], into: &mut WeightBlock) {
    unpack_scales(&block[..16], into);
    let nibble = _mm256_set1_epi8(0x0f);
    for j in 0..4 {
        let both = load32(block, 16 + 32 * j);
        let low = _mm256_and_si256(both, nibble);
        let high = _mm256_and_si256(_mm256_srli_epi16(both, 4), nibble);
        store(into, j, low, high);
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
fn unpack_q5_k(block: &[u8; 176], into: &mut WeightBlock) {
    unpack_scales(&block[..16], into);
    let (nibble, sixteen) = (_mm256_set1_epi8(0x0f), _mm256_set1_epi8(16));
    let fifth = load32(block, 16);
    for j in 0..4 {
        let both = load32(block, 48 + 32 * j);
        let bit = |n: usize| {
            let wanted = _mm256_set1_epi8((1u8 << n) as i8);
            _mm256_maskz_mov_epi8(_mm256_test_epi8_mask(fifth, wanted), sixteen)
        };
        let low = _mm256_or_si256(_mm256_and_si256(both, nibble), bit(2 * j));
        let high = _mm256_and_si256(_mm256_srli_epi16(both, 4), nibble);
        store(into, j, low, _mm256_or_si256(high, bit(2 * j + 1)));
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
fn unpack_q6_k(block: &[u8; 210], into: &mut WeightBlock) {
    // 128 bytes of low nibbles, 64 of upper bit pairs, 16 scales, the unit.
    let (nibble, pair) = (_mm256_set1_epi8(0x0f), _mm256_set1_epi8(0x30));
    for n in 0..2 {
        let (a, b) = (load32(block, 64 * n), load32(block, 64 * n + 32));
        let upper = load32(block, 128 + 32 * n);
        let low = |v: __m256i| _mm256_and_si256(v, nibble);
        let high = |v: __m256i| _mm256_and_si256(_mm256_srli_epi16(v, 4), nibble);
        let with = |v: __m256i, upper: __m256i| _mm256_or_si256(v, _mm256_and_si256(upper, pair));
        let first = with(low(a), _mm256_slli_epi16(upper, 4));
        let second = with(low(b), _mm256_slli_epi16(upper, 2));
        store(into, 2 * n, first, second);
        store(into, 2 * n + 1, with(high(a), upper), with(high(b), _mm256_srli_epi16(upper, 2)));
    }
    let unit = _mm512_set1_ps(half(block[208], block[209]));
    // SAFETY: sixteen bytes of scales.
    let bytes = unsafe { _mm_loadu_si128(block[192..208].as_ptr().cast()) };
    let scales = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)), unit);
    let fours = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    for j in 0..GROUPS / 4 {
        let index = _mm512_add_epi32(fours, _mm512_set1_epi32(4 * j as i32));
        // SAFETY: sixteen floats, aligned as the block is.
        unsafe {
            let to = into.scales[16 * j..16 * j + 16].as_mut_ptr();
            _mm512_store_ps(to, _mm512_permutexvar_ps(index, scales));
        }
    }
    // The quants stand for -32 to 31.
    let mins = _mm512_mul_ps(scales, _mm512_set1_ps(32.0));
    // SAFETY: sixteen floats, aligned as the block is.
    unsafe { _mm512_store_ps(into.mins.as_mut_ptr(), mins) }
}
