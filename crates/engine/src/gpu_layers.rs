//! Number of a model's layers that a GPU computes.

use std::fmt;
use std::str::FromStr;

/// Layers to compute on a GPU. Builds without a GPU back end and machines without a GPU compute
/// everything on the CPU, whatever is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GpuLayers {
    /// As many as fit into the GPU's free memory.
    #[default]
    Auto,
    /// All of them; loading fails if they do not fit.
    All,
    /// Fixed number, counted from the output backwards as llama.cpp does.
    Count(u32),
}

impl fmt::Display for GpuLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::All => f.write_str("all"),
            Self::Count(layers) => write!(f, "{layers}"),
        }
    }
}

/// Error for a text that is not a [`GpuLayers`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("give \"auto\", \"all\" or a number of layers, not {0:?}")]
pub struct UnknownGpuLayers(String);

impl FromStr for GpuLayers {
    type Err = UnknownGpuLayers;

    fn from_str(text: &str) -> Result<Self, UnknownGpuLayers> {
        match text {
            "auto" => Ok(Self::Auto),
            "all" => Ok(Self::All),
            number => {
                number.parse().map(Self::Count).map_err(|_| UnknownGpuLayers(text.to_owned()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_back() {
        for text in ["auto", "all", "0", "33"] {
            assert_eq!(text.parse::<GpuLayers>().unwrap().to_string(), text);
        }
        for bad in ["", "-1", "most", "1.5"] {
            assert!(bad.parse::<GpuLayers>().is_err(), "{bad}");
        }
    }
}
