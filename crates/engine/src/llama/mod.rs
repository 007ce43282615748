//! llama.cpp behind a small safe interface, over its C API (`llama-cpp-sys-2`).
//!
//! All unsafe code of Loquent is in this module and in its kernels (`loquent-kernels`). Three main
//! types: a [`LlamaModel`] (weights and vocabulary, shared), its [`LlamaVocab`] (tokenizing, on any
//! thread) and a [`LlamaRunner`] (one context with its KV cache, on the engine thread).
//!
//! llama.cpp aborts the process if its preconditions are violated, so they are checked here first:
//! files by [`loquent_formats::gguf`], batches by the runner.
#![allow(unsafe_code)]

mod compute_lock;
mod context;
mod cpu_keepalive;
mod devices;
mod embedder;
mod embeddings;
mod guard;
mod kernel_choice;
mod layers;
#[cfg(target_os = "linux")]
mod lazy_zero;
mod log;
mod machine_limits;
mod mapped_files;
mod memory;
mod model;
mod neighbours;
mod offload;
mod pieces;
mod processor;
mod quantize;
pub mod rpc;
mod runner;
mod spans;
mod threads;
mod vocab;

pub use compute_lock::ComputeLock;
pub use devices::{Device, DeviceKind, GPU_BACK_ENDS, devices, has_gpu};
pub use embedder::{EmbeddingTraits, LlamaEmbedder};
pub use embeddings::Embeddings;
pub use kernel_choice::own_kernels_lack;
pub use layers::{CpuSharing, LlamaLayers};
pub use loquent_kernels::{Isa, OperationTimes, UnavailableIsa, with_operation_times};
pub use machine_limits::{MachineLimits, MultiplyPeak, machine_limits};
pub use memory::available_bytes;
pub use model::{History, Inspection, LlamaModel, LoadError, LoadOptions, ModelInfo, inspect};
pub use offload::Placement;
pub use processor::{InstructionSet, UnsupportedProcessor, check_processor, instruction_sets};
pub use quantize::{Quant, QuantizeError, quantize};
pub use runner::{FlashAttention, LlamaRunner, RunnerOptions, SMALL_MODEL_BYTES};
pub use threads::{at_most_processors, physical_cores};
pub use vocab::LlamaVocab;

use std::ffi::CStr;
use std::sync::Once;

use llama_cpp_sys_2 as sys;

/// Maximum sequences of one context (`LLAMA_MAX_SEQ`).
pub const MAX_SLOTS: u16 = 256;

/// Starts llama.cpp once per process and routes its log.
///
/// # Errors
/// On a processor that cannot run this build: starting the library there would kill the process.
fn start() -> Result<(), UnsupportedProcessor> {
    static START: Once = Once::new();
    check_processor()?;
    START.call_once(|| {
        log::install();
        guard::install();
        mapped_files::explain_bus_errors();
        // SAFETY: called once, before every other function of the library.
        unsafe { sys::llama_backend_init() }
        // Only on Linux does giving pages back make them read as zeros.
        // SAFETY: called once, before any other thread can use ggml.
        #[cfg(target_os = "linux")]
        unsafe {
            lazy_zero::install()
        }
    });
    Ok(())
}

/// The instruction sets and back ends that the library was built with, on one line; on a processor
/// that cannot run them, the missing ones.
pub fn system_info() -> String {
    if let Err(error) = start() {
        return error.to_string();
    }
    // SAFETY: returns a pointer to a static NUL-terminated string.
    let text = unsafe { CStr::from_ptr(sys::llama_print_system_info()) };
    text.to_string_lossy().trim_end_matches([' ', '|']).to_owned()
}

/// The version of llama.cpp, with its commit.
pub fn version() -> String {
    // SAFETY: returns a pointer to a static NUL-terminated string.
    unsafe { CStr::from_ptr(sys::llama_version()) }.to_string_lossy().into_owned()
}
