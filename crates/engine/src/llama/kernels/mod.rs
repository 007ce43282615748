//! Kernels of Loquent's own: matrix products of quantised weights, and attention, for batches of
//! any size.
//!
//! llama.cpp keeps two layouts of Q4_K weights, each good at some batch sizes, and reads Q6_K
//! weights once per row below 8 rows and unpacks them tile by tile above. The products here read
//! the weights as the file holds them, once per step for any batch, unpack a block into
//! registers and multiply it with all activations (AVX-512 VNNI). So one copy of the weights
//! serves all batch sizes, a mapped file needs no other, and a row's result does not depend on
//! how many others are computed with it.
//!
//! Arithmetic: activations are rounded to 8 bits per 256 with one scale, as llama.cpp's Q8_K;
//! products and sums of 4 are exact integers; scales and the sum over a row are f32.
//!
//! Attention (`attention`) is for steps of few queries over a cache that many sequences share:
//! it looks only at the cells that a query sees.

mod attention;
mod ggml_hook;
mod matmul;
mod micro_kernel;
mod pack;
mod unpack;
mod work_queue;

pub(super) use ggml_hook::{covers, register};

use super::sys;

/// Elements of a block: a unit of scales in weights and activations.
const BLOCK: usize = 256;
/// Groups of a block whose sums are kept separately: ggml's formats scale 16 or 32 weights.
const GROUPS: usize = 16;
/// Activation rows that are multiplied with a weight row at once, and stored side by side.
/// Sixteen sums of 16 floats take half of the 32 vector registers; the other half holds the
/// unpacked block of weights, its scales and minima.
const LANES: usize = 16;

/// One block of an activation row, rounded: element = `scale * quant`. The quants are in the
/// order of [`unpack::turned`]. 384 bytes with its padding to whole cache lines.
#[derive(Debug, Clone, PartialEq)]
#[repr(C, align(64))]
struct ActivationBlock {
    quants: [i8; BLOCK],
    /// `scale` times the sum of each sixteen quants, in their natural order. A weight is
    /// `scale * quant - min`, so minima need only these sums, once per block.
    sums: [f32; GROUPS],
    scale: f32,
}

impl ActivationBlock {
    const ZERO: Self = Self { quants: [0; BLOCK], sums: [0.0; GROUPS], scale: 0.0 };
}

/// Whether this processor has the instructions that the kernels use.
fn supported() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni")
        && is_x86_feature_detected!("f16c")
}

#[cfg(test)]
mod tests;
