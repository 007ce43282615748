//! The feed that dashboard readers receive, and their places.

use bytes::Bytes;
use tokio::sync::watch;

/// The latest state sent to all readers.
#[derive(Debug, Clone)]
pub enum DashboardFeed {
    /// Nothing has been sent yet.
    Quiet,
    /// The latest event.
    Latest(Bytes),
    /// The server is shutting down.
    Closed,
}

/// A place among the readers, released when dropped.
#[derive(Debug)]
pub struct Seat {
    /// The history so far, as an event.
    pub opening: Bytes,
    /// The events after `opening`.
    pub feed: watch::Receiver<DashboardFeed>,
}
