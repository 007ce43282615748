//! The element type of a KV cache.

use std::fmt;
use std::str::FromStr;

/// Storage type of the keys and values of past tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvType {
    /// 32-bit floats: twice the memory of `F16`. Turns flash attention off, so that an answer does
    /// not depend on the rest of the batch.
    F32,
    /// 16-bit floats; the default, and the only type that the attention kernel here reads.
    #[default]
    F16,
    /// 8-bit blocks: about half the memory of `F16`; needs flash attention.
    Q8_0,
}

impl KvType {
    /// Every type, in the order of their numbers in `spec/stages.md`.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::Q8_0];

    /// Name on the command line, same as ggml's.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Q8_0 => "q8_0",
        }
    }

    /// Bytes of `elements` elements.
    pub fn bytes(self, elements: u64) -> u64 {
        match self {
            Self::F32 => elements.saturating_mul(4),
            Self::F16 => elements.saturating_mul(2),
            // Blocks of 32 elements: a 16-bit scale and 32 bytes.
            Self::Q8_0 => (elements / 32 + 1).saturating_mul(34),
        }
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Error for a text that is not a [`KvType`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown KV cache type {0:?}; use f32, f16 or q8_0")]
pub struct UnknownKvType(String);

impl FromStr for KvType {
    type Err = UnknownKvType;

    fn from_str(name: &str) -> Result<Self, UnknownKvType> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| UnknownKvType(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for kind in KvType::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        let error = "q4_0".parse::<KvType>().unwrap_err().to_string();
        for kind in KvType::ALL {
            assert!(error.contains(kind.name()), "{error}");
        }
    }
}
