//! Errors in this crate's inputs.

use core::fmt;

/// Cause of an error, and the party at fault (in parentheses).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A stream interval is neither a positive number nor `auto` (caller).
    BadInterval,
    /// A delta does not fit a record, [`crate::delta::MAX_RECORD_BYTES`] (caller).
    DeltaTooLong,
    /// The log's bound is reached and nothing acknowledged is left to drop (slow reader).
    LogFull,
    /// The log already has its last record (caller).
    LogEnded,
    /// The offset was dropped from the log, or does not exist yet (peer or caller).
    OffsetUnavailable,
    /// Bytes end inside a field (peer).
    Truncated,
    /// A field has a value that the wire format does not allow (peer).
    Malformed,
    /// A frame or a log of an unsupported version (peer).
    UnknownVersion,
    /// A checked frame whose checksum does not match, or an unchecked one where checks are required
    /// (link).
    BadChecksum,
    /// A frame of another channel (peer or caller).
    WrongChannel,
    /// The range does not fit the receiver's bounds; it may be sent again later (peer).
    NoRoom,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BadInterval => "stream interval must be a positive number of tokens or `auto`",
            Self::DeltaTooLong => "delta does not fit a record",
            Self::LogFull => "log is full: the reader is too slow",
            Self::LogEnded => "log already has its last record",
            Self::OffsetUnavailable => "offset is not in the log",
            Self::Truncated => "bytes end inside a field",
            Self::Malformed => "a field has a value that the format does not allow",
            Self::UnknownVersion => "unknown version of the wire format",
            Self::BadChecksum => "checksum is wrong or missing",
            Self::WrongChannel => "frame belongs to another channel",
            Self::NoRoom => "range does not fit the receiver's bounds",
        })
    }
}

impl core::error::Error for Error {}
