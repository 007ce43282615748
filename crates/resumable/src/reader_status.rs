//! Status of an answer's readers.

use loquent_proto::message::Code;

/// Status of a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReaderStatus {
    /// The reader is active.
    Reading,
    /// The reader has acknowledged nothing for so long that nothing more is sent to it (D-7.2).
    Mute,
    /// The reader's path is over.
    Over(ReaderEnd),
}

/// Reason why a reader's path is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReaderEnd {
    /// The reader has the whole log.
    Complete,
    /// The reader stopped the answer.
    Stopped,
    /// The reader's connection is gone.
    Left,
    /// The log no longer has the reader's next bytes.
    FellBehind,
    /// The path was given up, for this reason.
    Broken(Code),
}
