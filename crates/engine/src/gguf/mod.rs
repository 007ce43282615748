//! The GGUF container (versions 2 and 3), read and written in safe Rust.
//!
//! [`Header`] reads metadata and tensor descriptions with every length checked
//! against the file's size before memory is reserved, so that a truncated or hostile
//! file is refused with its reason before llama.cpp sees it. [`Writer`] streams a
//! file out. Format: `docs/gguf.md` of the ggml repository.

mod read;
pub mod split;
mod tensor;
mod value;
mod write;

pub use read::{Header, Limits};
pub use tensor::{TensorInfo, TensorType};
pub use value::{Array, Kind, Value};
pub use write::{TensorSpec, Writer};

/// The first four bytes of every GGUF file.
pub const MAGIC: [u8; 4] = *b"GGUF";

/// Alignment of tensor data where `general.alignment` does not say otherwise, in bytes.
pub const DEFAULT_ALIGNMENT: u32 = 32;

/// Why bytes are not a usable GGUF file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file does not begin with [`MAGIC`].
    #[error("not a GGUF file: it begins with {found:02x?}")]
    Magic {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// A version that neither this reader nor llama.cpp knows.
    #[error("GGUF version {0} is not supported (2 and 3 are)")]
    Version(u32),
    /// The file ends before what its header announces.
    #[error("truncated: {needed_bytes} bytes needed, {actual_bytes} present")]
    Truncated {
        /// Least size the header asks for.
        needed_bytes: u64,
        /// Size of the file.
        actual_bytes: u64,
    },
    /// The header contradicts itself.
    #[error("malformed header: {0}")]
    Malformed(String),
    /// The file cannot be read or written.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

impl Error {
    fn malformed(reason: impl Into<String>) -> Self {
        Self::Malformed(reason.into())
    }
}

#[cfg(test)]
mod tests;
