//! Why a benchmark cannot run or its result is refused.

use std::path::PathBuf;

/// Every error of this crate that ends a benchmark. Failures of single requests are
/// data, not errors: see [`crate::record::RequestOutcome`].
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
        /// What is wrong, with the line number where there is one.
        reason: String,
    },
    /// A target lacks something that the plan needs.
    #[error("{target}: {reason}")]
    Target {
        /// The target's name.
        target: String,
        /// What failed.
        reason: String,
    },
    /// A process to be measured cannot be read.
    #[error("process {pid}: {reason}")]
    Process {
        /// Process ID.
        pid: u32,
        /// What failed.
        reason: String,
    },
    /// An output file cannot be written.
    #[error("cannot write {path}: {reason}")]
    Output {
        /// Path of the output file.
        path: PathBuf,
        /// What failed.
        reason: String,
    },
}
