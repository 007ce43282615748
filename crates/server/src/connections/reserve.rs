//! Connections that arrived when all places were taken. They get an error, and health checks among
//! them are answered: a full server is not a dead one.

use std::collections::VecDeque;
use std::sync::Mutex;

use tokio::task::JoinHandle;

/// Maximum number of connections in the reserve. Each lasts a few seconds at most.
pub const RESERVED: usize = 32;

/// Connections without a place, oldest first.
#[derive(Default)]
pub struct Reserve(Mutex<VecDeque<JoinHandle<()>>>);

impl Reserve {
    /// Adds a connection; if there are too many, drops the oldest. Clients that connect and stay
    /// silent thus cannot keep others out: a genuine request is answered faster than it can be
    /// pushed out.
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
