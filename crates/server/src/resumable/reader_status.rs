//! What becomes of an answer's readers.

use loquent_proto::message::Code;

/// What has become of a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReaderStatus {
    /// It reads.
    Reading,
    /// It has acknowledged nothing for long, so that nothing is sent to it (D-7.2).
    Mute,
    /// Its path is over.
    Over(ReaderEnd),
}

/// Why a reader's path is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReaderEnd {
    /// It has the whole log.
    Complete,
    /// It wants no more.
    Stopped,
    /// Its connection is gone.
    Left,
    /// The log no longer has what it needs next.
    FellBehind,
    /// The path is given up, for this reason.
    Broken(Code),
}
