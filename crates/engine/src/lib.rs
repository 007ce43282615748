//! Runners: llama.cpp, split stages and a simulated engine.

#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod gpu_layers;
mod isolate;
mod kv_type;
#[cfg(feature = "llama")]
pub mod llama;
mod pooling;
#[cfg(unix)]
pub mod process;
pub mod sim;
pub mod staged;

pub use gpu_layers::{GpuLayers, UnknownGpuLayers};
pub use kv_type::{KvType, UnknownKvType};
pub use pooling::{Pooling, UnknownPooling};
