//! How the vectors of a text's tokens become one vector.

use std::fmt;
use std::str::FromStr;

/// Which of a text's token vectors make its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// The mean of all.
    Mean,
    /// The first token's, which a model trained for it makes stand for all.
    Cls,
    /// The last token's, which alone has seen all others in a causal model.
    Last,
}

impl Pooling {
    /// Every way.
    pub const ALL: [Self; 3] = [Self::Mean, Self::Cls, Self::Last];

    /// Its name on the command line.
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

/// The text names no [`Pooling`].
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
