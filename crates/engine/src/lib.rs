
pub mod gguf;
#[cfg(feature = "llama")]
pub mod llama;
pub mod sim;
