//! The server's activity, second by second, for the page at `/dashboard`.
//!
//! A [`Moment`](moment::Moment) is sampled each second ([`gather`]), whether or not there are
//! readers: some hundred numbers, from which a row of figures is kept for ten minutes
//! ([`sampler`]). It becomes an event only while there are readers, once for all of them. A reader
//! that falls behind gets the latest event next, so that none waits for another and none takes
//! memory.

mod columns;
pub mod details;
mod events;
mod feed;
pub mod moment;
pub mod reader;
pub mod sampler;

use std::sync::{Mutex, MutexGuard};

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::watch;

use feed::{DashboardFeed, Seat};
use moment::{Moment, Stretch};
use sampler::SecondSampler;

/// Maximum number of concurrent readers: pages open at the server's operators.
const MAX_READERS: usize = 32;

/// The server's activity in the last minutes, and the readers of it.
#[derive(Debug)]
pub struct Dashboard {
    state: Mutex<DashboardState>,
    feed: watch::Sender<DashboardFeed>,
}

#[derive(Debug, Default)]
struct DashboardState {
    sampler: SecondSampler,
    /// The first event for readers that connect before the next moment.
    opening: Option<Bytes>,
    is_closed: bool,
}

impl Default for Dashboard {
    fn default() -> Self {
        Self { state: Mutex::default(), feed: watch::Sender::new(DashboardFeed::Quiet) }
    }
}

impl Dashboard {
    /// Adds a moment. `describe` returns the event's further details, and is called only if there
    /// are readers.
    pub fn take(&self, moment: Moment, describe: impl FnOnce(&Stretch<'_>) -> Value) {
        let mut state = self.state();
        state.opening = None;
        let Some(stretch) = state.sampler.take(moment) else { return };
        if self.feed.receiver_count() > 0 {
            let event = events::snapshot(&stretch, describe(&stretch));
            self.feed.send_replace(DashboardFeed::Latest(event));
        }
    }

    /// Returns a place for one more reader; `None` if all are taken or the server is shutting down.
    pub fn sit_down(&self) -> Option<Seat> {
        let mut state = self.state();
        // All come through this lock.
        if state.is_closed || self.feed.receiver_count() >= MAX_READERS {
            return None;
        }
        let DashboardState { sampler, opening, .. } = &mut *state;
        let opening = opening.get_or_insert_with(|| events::opening(sampler)).clone();
        Some(Seat { opening, feed: self.feed.subscribe() })
    }

    /// Ends all readers' streams, for which a shutdown would otherwise wait.
    pub fn close(&self) {
        self.state().is_closed = true;
        self.feed.send_replace(DashboardFeed::Closed);
    }

    fn state(&self) -> MutexGuard<'_, DashboardState> {
        self.state.lock().expect("nothing panics under this lock")
    }
}

#[cfg(test)]
mod tests;
