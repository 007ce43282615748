//! What readers of the dashboard get, and their places.

use bytes::Bytes;
use tokio::sync::watch;

/// What all readers get.
#[derive(Debug, Clone)]
pub enum DashboardFeed {
    /// Nothing was sent yet.
    Quiet,
    /// The latest event.
    Latest(Bytes),
    /// The server stops.
    Closed,
}

/// A place among the readers, given back when it is dropped.
#[derive(Debug)]
pub struct Seat {
    /// The history up to now, as an event.
    pub opening: Bytes,
    /// The events after that.
    pub feed: watch::Receiver<DashboardFeed>,
}
