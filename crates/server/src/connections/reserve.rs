//! Connections that came when all places were taken. They are told so, and health checks among
//! them are answered: a server that is full is not a server that is dead.

use std::collections::VecDeque;
use std::sync::Mutex;

use tokio::task::{AbortHandle, JoinHandle};

/// Most connections in the reserve. Each lasts for a few seconds at most.
pub const RESERVED: usize = 32;

/// The connections without a place, the oldest first.
#[derive(Default)]
pub struct Reserve(Mutex<VecDeque<AbortHandle>>);

impl Reserve {
    /// Takes a connection in; when there are too many, the oldest is dropped for it. Those who
    /// connect and say nothing thus cannot keep others out: an honest request is answered in less
    /// time than it takes to push it out.
    pub fn hold(&self, connection: JoinHandle<()>) {
        let mut held = self.0.lock().expect("nothing panics under this lock");
        held.retain(|connection| !connection.is_finished());
        if held.len() >= RESERVED {
            held.pop_front().expect("it is not empty").abort();
        }
        held.push_back(connection.abort_handle());
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
            reserve.hold(tokio::spawn(async move { drop(waits.changed().await) }));
        }
        drop(waits);
        assert_eq!(reserve.0.lock().unwrap().len(), RESERVED);
        while sender.receiver_count() > RESERVED {
            tokio::task::yield_now().await;
        }
        sender.send(()).unwrap();
        sender.closed().await;
    }
}
