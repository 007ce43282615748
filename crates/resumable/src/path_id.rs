//! Identifiers of an answer's paths within the server.

use std::sync::atomic::{AtomicU64, Ordering};

/// Identifies a path of an answer. Each path has one reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PathId(u64);

impl PathId {
    /// Returns an id that no other path has.
    pub fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}
