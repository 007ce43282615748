//! Names of an answer's paths within the server.

use std::sync::atomic::{AtomicU64, Ordering};

/// Tells the paths of an answer apart. Each has one reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PathId(u64);

impl PathId {
    /// An id that no other path has.
    pub fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}
