//! Runners: llama.cpp, split stages and a simulated engine; GGUF headers, chat templates and
//! grammars.

#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod gguf;
mod gpu_layers;
pub mod grammar;
mod isolate;
mod kv_type;
#[cfg(feature = "llama")]
pub mod llama;
mod pooling;
#[cfg(unix)]
pub mod process;
pub mod sim;
pub mod staged;
pub mod template;

pub use gpu_layers::{GpuLayers, UnknownGpuLayers};
pub use kv_type::{KvType, UnknownKvType};
pub use pooling::{Pooling, UnknownPooling};
