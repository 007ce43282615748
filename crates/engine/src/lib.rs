//! Runners: llama.cpp and a simulated engine; GGUF headers and chat templates.

pub mod gguf;
#[cfg(feature = "llama")]
pub mod llama;
pub mod sim;
pub mod template;
