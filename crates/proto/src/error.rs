//! Everything that can be wrong with what this crate is given.

use core::fmt;

/// What was wrong, and whose fault it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A stream interval is neither a positive number nor `auto` (caller).
    BadInterval,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BadInterval => "stream interval must be a positive number of tokens or `auto`",
        })
    }
}

impl core::error::Error for Error {}
