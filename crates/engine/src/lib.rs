//! Runners: llama.cpp, split stages and a simulated engine; GGUF headers and chat templates.

pub mod gguf;
mod isolate;
#[cfg(feature = "llama")]
pub mod llama;
pub mod sim;
pub mod staged;
pub mod template;
