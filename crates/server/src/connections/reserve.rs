//! Connections that came when all places were taken. They are told so, and health checks among
//! them are answered: a server that is full is not a server that is dead.

use std::collections::VecDeque;
use std::sync::Mutex;

use tokio::task::JoinHandle;

/// Most connections in the reserve. Each lasts for a few seconds at most.
pub const RESERVED: usize = 32;

/// The connections without a place, the oldest first.
#[derive(Default)]
pub struct Reserve(Mutex<VecDeque<JoinHandle<()>>>);

impl Reserve {
    /// Takes a connection in; when there are too many, the oldest is dropped for it. Those who
    /// connect and say nothing thus cannot keep others out: an honest request is answered in less
    /// time than it takes to push it out.
    pub async fn hold(&self, connection: JoinHandle<()>) {
        if let Some(oldest) = self.exchange(connection) {
            oldest.abort();
            // Its descriptor is closed before the next connection takes one.
            let _ = oldest.await;
        }
    }

    fn exchange(&self, connection: JoinHandle<()>) -> Option<JoinHandle<()>> {
        let mut held = self.0.lock().expect("nothing panics under this lock");
        held.retain(|connection| !connection.is_finished());
        let is_full = held.len() >= RESERVED;
        let oldest = if is_full { held.pop_front() } else { None };
        held.push_back(connection);
        oldest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_oldest_makes_room() {
        let reserve = Reserve::default();
        let (sender, waits) = tokio::sync::watch::channel(());
        for _ in 0..RESERVED + 3 {
            let mut waits = waits.clone();
            let waiting = tokio::spawn(async move { drop(waits.changed().await) });
            reserve.hold(waiting).await;
            assert!(sender.receiver_count() <= RESERVED + 1, "they are gone before more come");
        }
        drop(waits);
        assert_eq!(reserve.0.lock().unwrap().len(), RESERVED);
        assert_eq!(sender.receiver_count(), RESERVED);
        sender.send(()).unwrap();
        sender.closed().await;
    }
}
