//! Combines the vectors of a text's tokens into one vector.

use std::fmt;
use std::str::FromStr;

/// Token vectors that determine a text's vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// Mean of all.
    Mean,
    /// The first token's vector, which suitable models are trained to make represent the whole
    /// text.
    Cls,
    /// The last token's vector, the only one that has seen all others in a causal model.
    Last,
}

impl Pooling {
    /// All methods.
    pub const ALL: [Self; 3] = [Self::Mean, Self::Cls, Self::Last];

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::Cls => "cls",
            Self::Last => "last",
        }
    }
}

impl fmt::Display for Pooling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Error for a text that is not a [`Pooling`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown pooling {0:?}; use mean, cls or last")]
pub struct UnknownPooling(String);

impl FromStr for Pooling {
    type Err = UnknownPooling;

    fn from_str(name: &str) -> Result<Self, UnknownPooling> {
        let found = Self::ALL.into_iter().find(|pooling| pooling.name() == name);
        found.ok_or_else(|| UnknownPooling(name.to_owned()))
    }
}
