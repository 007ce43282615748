//! The GGUF container (versions 2 and 3), read and written in safe Rust.
//!
//! [`Header`] reads metadata and tensor descriptions. It checks every length against the file's
//! size before it reserves memory, so that a truncated or hostile file is rejected with the reason
//! before llama.cpp sees it. [`GgufWriter`] writes a file as a stream. Format: `docs/gguf.md` of
//! the ggml repository.

mod read;
pub mod split;
mod tensor;
mod value;
mod write;

pub use read::{Header, ReadLimits};
pub use tensor::{TensorInfo, TensorType};
pub use value::{Array, Value, ValueKind};
pub use write::{GgufWriter, TensorSpec};

/// The first four bytes of every GGUF file.
pub const MAGIC: [u8; 4] = *b"GGUF";

/// Alignment of tensor data in files without `general.alignment`, in bytes.
pub const DEFAULT_ALIGNMENT: u32 = 32;

/// Reason why bytes are not a usable GGUF file.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The file does not begin with [`MAGIC`].
    #[error("not a GGUF file: it begins with \"{}\"", .found.escape_ascii())]
    Magic {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// A version that neither this reader nor llama.cpp supports.
    #[error("GGUF version {0} is not supported; use a file of version 2 or 3")]
    Version(u32),
    /// The file ends before the size that its header requires.
    #[error("the file is truncated: it has {actual_bytes} of {needed_bytes} bytes")]
    Truncated {
        /// Minimum size according to the header.
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

impl GgufError {
    fn malformed(reason: impl Into<String>) -> Self {
        Self::Malformed(reason.into())
    }
}

#[cfg(test)]
mod tests;
