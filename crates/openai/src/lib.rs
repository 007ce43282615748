//! Client of any OpenAI-compatible server: pooled HTTP/1.1 with TLS, and the reader of its
//! chunks.

pub mod chunk;
