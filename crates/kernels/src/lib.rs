//! Kernels of Loquent's own: matrix products, and attention, for batches of any size.
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
//!
//! All of it is for x86-64 Linux; elsewhere this crate says that it has no kernels
//! ([`ARE_BUILT_IN`]).
#![allow(unsafe_code)]

#[cfg(not(own_kernels))]
mod absent;
#[cfg(own_kernels)]
pub mod amx;
#[cfg(own_kernels)]
mod attention;
#[cfg(own_kernels)]
mod avx2;
#[cfg(own_kernels)]
mod avx512;
#[cfg(own_kernels)]
mod float_matmul;
#[cfg(own_kernels)]
mod ggml_hook;
#[cfg(own_kernels)]
mod graph_masks;
#[cfg(own_kernels)]
mod grids;
mod isa;
#[cfg(own_kernels)]
mod matmul;
#[cfg(all(test, own_kernels))]
mod numeric;
mod operation_times;
#[cfg(own_kernels)]
mod query_runs;
#[cfg(own_kernels)]
mod weight_format;
#[cfg(own_kernels)]
mod work_queue;
#[cfg(own_kernels)]
mod write_order;

use llama_cpp_sys_2 as sys;

#[cfg(not(own_kernels))]
pub use absent::{amx, forget, note_copied_rows, reads, register};
#[cfg(own_kernels)]
pub use ggml_hook::{forget, reads, register};
pub use isa::{Isa, UnavailableIsa};
pub use operation_times::{OperationTimes, with_operation_times};
#[cfg(own_kernels)]
pub use write_order::note_copied_rows;

/// True if this build has kernels.
pub const ARE_BUILT_IN: bool = cfg!(own_kernels);

/// Elements of a block, the unit of scales in weights and activations.
#[cfg(own_kernels)]
const BLOCK: usize = 256;
