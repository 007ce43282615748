//! Workers for tasks too long for a network thread: parsing and rendering.
//!
//! The place that a task takes belongs to the task and not to its requester: a client that hangs up
//! does not free the place before the task ends.

use std::sync::Arc;

use tokio::sync::{Semaphore, oneshot};

use crate::error::ApiError;

/// A bounded number of threads for one kind of task. Cheap to clone.
#[derive(Debug, Clone)]
pub struct BlockingWorkers(Arc<Semaphore>);

impl BlockingWorkers {
    /// Creates workers for `places` concurrent tasks, at least one.
    pub fn new(places: usize) -> Self {
        Self(Arc::new(Semaphore::new(places.max(1))))
    }

    /// Does `work` inline, or as [`Self::run`] does if it is large.
    ///
    /// # Errors
    /// The errors of [`Self::run`].
    pub async fn run_if<T: Send + 'static>(
        &self,
        is_large: bool,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        match is_large {
            true => self.run(work).await,
            false => work(),
        }
    }

    /// Does `work` on a thread that may block, once there is a place. Everything that `work` owns
    /// is dropped there too. Work whose requester leaves before it has a place is never started.
    ///
    /// # Errors
    /// The error of `work`; 500 if it panics.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let place = self.0.clone().acquire_owned().await.expect("the semaphore is never closed");
        let (reply, replied) = oneshot::channel();
        tokio::task::spawn_blocking(move || {
            let result = work();
            // First the place: who gets the result may ask for the next one at once.
            drop(place);
            let _ = reply.send(result);
        });
        let lost = || ApiError::internal("The request could not be read: its worker has failed.");
        replied.await.unwrap_or_else(|_| Err(lost()))
    }
}

#[cfg(test)]
mod tests {
    //! Places belong to the work, and work that nobody waits for is not begun.
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn hanging_up_frees_no_place_and_begins_no_work() {
        let workers = BlockingWorkers::new(1);
        let (begun, has_begun) = oneshot::channel();
        let (end, may_end) = mpsc::channel::<()>();
        let first = tokio::spawn({
            let workers = workers.clone();
            async move {
                let work = move || {
                    begun.send(()).unwrap();
                    may_end.recv().unwrap();
                    Ok(())
                };
                workers.run(work).await
            }
        });
        has_begun.await.unwrap();
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        let ran = Arc::new(AtomicUsize::new(0));
        for _ in 0..8 {
            let ran = ran.clone();
            let waiting = workers.run(move || {
                ran.fetch_add(1, Ordering::Relaxed);
                Ok(())
            });
            // Polled once, so that it stands in the queue, and dropped there.
            assert!(tokio::time::timeout(Duration::ZERO, waiting).await.is_err());
        }
        assert_eq!(workers.0.available_permits(), 0, "the work goes on, and so does its place");
        end.send(()).unwrap();
        workers.run(|| Ok(())).await.unwrap();
        assert_eq!(ran.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn work_that_panics_is_an_error_and_frees_its_place() {
        let workers = BlockingWorkers::new(1);
        let error = workers.run::<()>(|| panic!("on purpose")).await.unwrap_err();
        assert_eq!(error.status(), 500);
        workers.run(|| Ok(())).await.unwrap();
    }
}
