//! Statistics of one upstream server.

use std::time::Duration;

/// Statistics of one server, for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ServerStats {
    /// True if the server gets requests.
    pub is_up: bool,
    /// Completions in progress.
    pub running: u64,
    /// Requests sent to the server.
    pub requests: u64,
    /// Requests sent to the server because their prompts belong to it.
    pub affine: u64,
    /// Requests that the server failed.
    pub failures: u64,
    /// Requests that moved on to other servers.
    pub moved: u64,
    /// Number of times the breaker has opened.
    pub opened: u64,
    /// Mean time between two tokens of a completion, if measured recently.
    pub pace: Option<Duration>,
}
