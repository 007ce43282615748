//! llama.cpp behind a small safe interface, over its C API (`llama-cpp-sys-2`).
//!
//! The only unsafe code of Loquent. Three main types: a [`LlamaModel`] (weights and
//! vocabulary, shared), its [`LlamaVocab`] (tokenizing, on any thread) and a
//! [`LlamaRunner`] (one context with its KV cache, on the engine thread).
//!
//! llama.cpp aborts the process when its preconditions are broken, so they are checked here
//! first: files by [`crate::gguf`], batches by the runner.
#![allow(unsafe_code)]

mod compute_lock;
mod context;
mod cpu_keepalive;
mod embedder;
mod embeddings;
mod guard;
#[cfg(own_kernels)]
mod kernels;
mod layers;
#[cfg(target_os = "linux")]
mod lazy_zero;
mod log;
mod memory;
mod model;
mod pieces;
mod quantize;
pub mod rpc;
mod runner;
mod threads;
mod vocab;

pub use compute_lock::ComputeLock;
pub use embedder::{EmbeddingTraits, LlamaEmbedder};
pub use embeddings::Embeddings;
pub use layers::{CpuSharing, LlamaLayers};
pub use model::{LlamaModel, LoadError, LoadOptions, ModelInfo};
pub use quantize::{Quant, QuantizeError, quantize};
pub use runner::{FlashAttention, LlamaRunner, RunnerOptions, SMALL_MODEL_BYTES};
pub use threads::physical_cores;
pub use vocab::LlamaVocab;

use std::ffi::CStr;
use std::sync::Once;

use llama_cpp_sys_2 as sys;

/// Most sequences of one context (`LLAMA_MAX_SEQ`).
pub const MAX_SLOTS: u16 = 256;

/// Starts llama.cpp once per process and routes its log.
fn start() {
    static START: Once = Once::new();
    START.call_once(|| {
        log::install();
        guard::install();
        // SAFETY: called once, before every other function of the library.
        unsafe { sys::llama_backend_init() }
        // Only on Linux does giving pages back make them read as zeros.
        // SAFETY: as above.
        #[cfg(target_os = "linux")]
        unsafe {
            lazy_zero::install()
        }
    });
}

/// The instruction sets and back ends that the library was built with, on one line.
pub fn system_info() -> String {
    start();
    // SAFETY: returns a pointer to a static NUL-terminated string.
    let text = unsafe { CStr::from_ptr(sys::llama_print_system_info()) };
    text.to_string_lossy().trim_end_matches([' ', '|']).to_owned()
}

/// The version of llama.cpp, with its commit.
pub fn version() -> String {
    // SAFETY: returns a pointer to a static NUL-terminated string.
    unsafe { CStr::from_ptr(sys::llama_version()) }.to_string_lossy().into_owned()
}
