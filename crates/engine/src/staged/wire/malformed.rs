//! The error of every decoder of the stage protocol.

/// Bytes that are not a valid message, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);
