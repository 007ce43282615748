//! Progress events of a fetch.

/// A progress event while a model is fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FetchEvent {
    /// The hub cannot be reached, and a copy in the cache is used.
    Unreachable,
    /// Another process is downloading this file; this one waits for its lock.
    Waiting {
        /// Path in the repository.
        file: String,
    },
    /// The transfer of one file begins.
    Started {
        /// Path in the repository.
        file: String,
        /// Bytes on disk from earlier attempts.
        have_bytes: u64,
        /// Size of the whole file.
        total_bytes: u64,
        /// 1-based number of this file and the number of files (split models have several).
        part: (usize, usize),
    },
    /// More bytes have been written.
    Advanced {
        /// Bytes of the file on disk.
        have_bytes: u64,
    },
    /// The connection broke; the missing bytes are requested again.
    Retrying {
        /// Error of the attempt.
        why: String,
    },
    /// The file is complete, and its hash is correct.
    Verified {
        /// Path in the repository.
        file: String,
    },
    /// The model is complete, but the cache cannot note the commit of its revision, which a start
    /// without the network looks up.
    NotRecorded {
        /// Error of the file system.
        why: String,
    },
}

/// Receives each [`FetchEvent`] as it happens.
pub type EventHandler<'a> = &'a mut dyn FnMut(FetchEvent);
