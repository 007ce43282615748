//! A reader of the dashboard: server-sent events, the first with the history, then one each second.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::sync::watch;

use super::feed::{DashboardFeed, Seat};
use loquent_serving::event_writer::{EventSource, StreamStatus};

/// Number of events after which a stream ends, so that its reader must authenticate again: a
/// quarter of an hour.
const MAX_EVENTS: u32 = 900;
/// Sent after a silence, for example while the server loads its model.
const HEARTBEAT: &[u8] = b": no news\n\n";

type NextFeed =
    Pin<Box<dyn Future<Output = (DashboardFeed, watch::Receiver<DashboardFeed>)> + Send>>;

/// The events of one reader.
pub struct DashboardEvents {
    next: NextFeed,
    left: u32,
}

impl DashboardEvents {
    /// Returns the events for the reader in `seat`, and the first event.
    pub fn new(seat: Seat) -> (Self, Vec<u8>) {
        let Seat { opening, feed } = seat;
        (Self { next: next_feed(feed), left: MAX_EVENTS }, opening.to_vec())
    }
}

fn next_feed(mut feed: watch::Receiver<DashboardFeed>) -> NextFeed {
    Box::pin(async move {
        let latest = match feed.changed().await {
            Ok(()) => feed.borrow_and_update().clone(),
            Err(_) => DashboardFeed::Closed,
        };
        (latest, feed)
    })
}

impl EventSource for DashboardEvents {
    fn poll_events(&mut self, context: &mut Context<'_>, out: &mut Vec<u8>) -> StreamStatus {
        let Poll::Ready((latest, feed)) = self.next.as_mut().poll(context) else {
            return StreamStatus::Open;
        };
        let DashboardFeed::Latest(event) = latest else { return StreamStatus::Complete };
        out.extend_from_slice(&event);
        self.left -= 1;
        if self.left == 0 {
            return StreamStatus::Complete;
        }
        self.next = next_feed(feed);
        StreamStatus::Open
    }

    fn heartbeat(&self) -> Bytes {
        Bytes::from_static(HEARTBEAT)
    }
}
