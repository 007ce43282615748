//! Runners: llama.cpp and a simulated engine; GGUF headers, chat templates and grammars.

pub mod gguf;
pub mod grammar;
#[cfg(feature = "llama")]
pub mod llama;
pub mod sim;
pub mod template;
