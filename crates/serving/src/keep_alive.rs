//! Time for which a model that nobody uses stays in memory.

use std::time::Duration;

/// Time that a model stays in memory after its last use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepAlive {
    /// For this time; zero unloads it at once.
    For(Duration),
    /// Until its memory is needed for another model.
    Forever,
}
