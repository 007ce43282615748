//! Kernels of Loquent's own: matrix products of quantised weights, and attention, for batches of
//! any size.
//!
//! llama.cpp keeps two layouts of Q4_K weights, each good at some batch sizes, and reads Q6_K
//! weights once per row below 8 rows and unpacks them tile by tile above. The products here read
//! the weights as stored in the file, once per step for any batch, unpack a block into registers
//! and multiply it with all activations. One copy of the weights therefore serves all batch sizes,
//! a mapped file needs no other, and a row's result does not depend on the number of rows computed
//! with it.
//!
//! Attention is for steps of few queries over a cache that many sequences share: it reads only the
//! cells that a query sees.
//!
//! [`Isa`] is the instruction set, chosen once when the process starts. `matmul` and `attention`
//! define which operations of a graph are supported and where their operands are; a folder for each
//! instruction set computes them, with functions of the same names: `matmul::{memory_bytes,
//! compute}` and `attention::{memory_bytes, compute}`.

mod attention;
mod avx2;
mod avx512;
mod ggml_hook;
mod matmul;
#[cfg(test)]
mod numeric;
mod query_runs;
mod weight_format;
mod work_queue;
mod write_order;

use super::isa::Isa;
use super::sys;
pub(super) use ggml_hook::{covers, foreign_format, register};
pub(super) use write_order::forget;

/// Elements of a block, the unit of scales in weights and activations.
const BLOCK: usize = 256;
