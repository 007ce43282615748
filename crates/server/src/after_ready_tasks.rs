//! Runs work that many tasks cause in one turn of the runtime once for all of them.
//!
//! A step of the engine wakes a task for each stream. A resource that they share, a connection or a
//! socket, is woken by the first of them, and the runtime runs the task woken last before those
//! that wait longer: by itself it would write after each stream.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A future that, once woken, first lets all tasks run that are ready at that moment.
///
/// The delay costs nothing on an idle processor: when no other task is ready, the future continues
/// at once.
#[derive(Debug)]
pub struct AfterReadyTasks<F> {
    future: F,
    /// True once the other tasks have had their turn.
    yielded: bool,
}

impl<F: Future + Unpin> AfterReadyTasks<F> {
    /// Runs `future` once for all its wakeups in a turn.
    pub const fn new(future: F) -> Self {
        Self { future, yielded: false }
    }
}

impl<F: Future + Unpin> Future for AfterReadyTasks<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.yielded = !self.yielded;
        if self.yielded {
            // A task that wakes itself goes behind all that are ready.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Pin::new(&mut self.future).poll(context)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::{Notify, mpsc};

    use super::*;

    /// Returns how often a task that collects the results of `tasks` others runs in a turn of them.
    async fn runs(tasks: usize, once_per_turn: bool) -> usize {
        let (begin, runs) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
        let (work, mut done) = mpsc::unbounded_channel();
        let counted = runs.clone();
        let collector = Box::pin(async move {
            let mut left = tasks;
            while left > 0 {
                left -= done.recv_many(&mut Vec::new(), tasks).await;
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        let collector = match once_per_turn {
            true => tokio::spawn(AfterReadyTasks::new(collector)),
            false => tokio::spawn(collector),
        };
        let (ready, mut all_ready) = mpsc::unbounded_channel();
        for _ in 0..tasks {
            let (begin, work, ready) = (begin.clone(), work.clone(), ready.clone());
            tokio::spawn(async move {
                let mut begun = std::pin::pin!(begin.notified());
                begun.as_mut().enable();
                ready.send(()).unwrap();
                begun.await;
                work.send(()).unwrap();
            });
        }
        for _ in 0..tasks {
            all_ready.recv().await.unwrap();
        }
        // On the runtime's own thread, as the step of an engine is handed on.
        tokio::spawn(async move { begin.notify_waiters() });
        collector.await.unwrap();
        runs.load(Ordering::Relaxed)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn what_a_turn_wakes_many_times_runs_once() {
        assert!(runs(64, false).await > 32, "the runtime runs what was woken last first");
        assert_eq!(runs(64, true).await, 1);
    }
}
