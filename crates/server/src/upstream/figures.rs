//! The figures of one upstream server.

use std::time::Duration;

/// What is known of one server, for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ServerFigures {
    /// Whether it gets requests.
    pub is_up: bool,
    /// Completions under way.
    pub running: u64,
    /// Requests that it got.
    pub requests: u64,
    /// Requests that it got because their prompts belong to it.
    pub affine: u64,
    /// Requests in which it failed.
    pub failures: u64,
    /// Requests that it left to other servers.
    pub moved: u64,
    /// How often its breaker has opened.
    pub opened: u64,
    /// Mean time between two tokens of a completion, if it was measured lately.
    pub pace: Option<Duration>,
}
