//! llama.cpp behind a small safe interface, over its C API (`llama-cpp-sys-2`).
//!
//! The only unsafe code of Loquent. Three objects: a [`Model`] (weights and
//! vocabulary, shared), its [`LlamaVocab`] (tokenizing, on any thread) and a
//! [`LlamaRunner`] (one context with its KV cache, on the engine thread).
//!
//! llama.cpp aborts the process when its preconditions are broken, so they are
//! checked here first: file by [`crate::gguf`], batch by the runner.
#![allow(unsafe_code)]

mod awake;
mod context;
mod embeddings;
mod log;
mod memory;
mod model;
#[cfg(own_products)]
mod products;
mod quantize;
pub mod rpc;
mod runner;
mod stage;
mod threads;
mod turns;
mod vocab;
#[cfg(target_os = "linux")]
mod zeroing;

pub use embeddings::Embeddings;
pub use memory::KvType;
pub use model::{LoadError, LoadOptions, Model, ModelInfo};
pub use quantize::{Quant, QuantizeError, quantize};
pub use runner::{FlashAttention, LlamaRunner, RunnerOptions, SMALL_MODEL_BYTES};
pub use stage::{LlamaLayers, Processors};
pub use threads::physical_cores;
pub use turns::Turns;
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
        // SAFETY: called once, before every other function of the library.
        unsafe { sys::llama_backend_init() }
        // SAFETY: as above.
        #[cfg(target_os = "linux")]
        unsafe {
            zeroing::install()
        }
    });
}

/// What the library was built with and for, on one line: instruction sets, back ends.
pub fn system_info() -> String {
    start();
    // SAFETY: returns a pointer to a static NUL-terminated string.
    let text = unsafe { CStr::from_ptr(sys::llama_print_system_info()) };
    text.to_string_lossy().trim_end_matches([' ', '|']).to_owned()
}

/// The build of llama.cpp.
pub fn version() -> String {
    // SAFETY: returns a pointer to a static NUL-terminated string.
    unsafe { CStr::from_ptr(sys::llama_version()) }.to_string_lossy().into_owned()
}
