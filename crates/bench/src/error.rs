//! Errors that prevent a benchmark or reject its result.

use std::path::PathBuf;

/// Errors that end a benchmark. Failures of single requests are data, not errors: see
/// [`crate::record::RequestOutcome`].
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// Options contradict each other or are out of range.
    #[error("{0}")]
    Options(String),
    /// A prompt file cannot be used.
    #[error("prompt file {path}: {reason}")]
    Prompts {
        /// Path of the prompt file.
        path: PathBuf,
        /// Reason, with the line number if there is one.
        reason: String,
    },
    /// A target lacks something that the plan needs.
    #[error("{target}: {reason}")]
    Target {
        /// The target's name.
        target: String,
        /// Description of the failure.
        reason: String,
    },
    /// A process to be measured cannot be read.
    #[error("process {pid}: {reason}")]
    Process {
        /// Process ID.
        pid: u32,
        /// Description of the failure.
        reason: String,
    },
    /// An output file cannot be written.
    #[error("cannot write {path}: {reason}")]
    Output {
        /// Path of the output file.
        path: PathBuf,
        /// Description of the failure.
        reason: String,
    },
}
