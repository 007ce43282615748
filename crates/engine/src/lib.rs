//! Runners: llama.cpp, split stages and a simulated engine; GGUF headers, chat templates and
//! grammars.

pub mod gguf;
pub mod grammar;
mod isolate;
#[cfg(feature = "llama")]
pub mod llama;
pub mod sim;
pub mod staged;
pub mod template;
