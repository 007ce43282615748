//! The threads that tokenize prompts and compile grammars.
//!
//! Libraries that read a client's text may recurse once per character of it, such as `std::regex`,
//! with which llama.cpp splits text for many models. So these threads have far deeper stacks than a
//! runtime's own. Their number bounds the concurrent work, and work whose request is gone when its
//! turn comes is never started.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use tokio::sync::oneshot;

/// Stack of each thread. Only the pages that were once touched take memory.
const STACK_BYTES: usize = 256 << 20;

type Job = Box<dyn FnOnce() + Send>;

/// Error: the work panicked, or its thread could not be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the prompt's thread failed")]
pub struct PromptThreadLost;

/// A fixed number of threads with deep stacks. They end on drop.
#[derive(Debug)]
pub struct PromptThreads {
    jobs: Sender<Job>,
}

impl PromptThreads {
    /// Starts `count` threads, at least one.
    ///
    /// # Errors
    /// When the operating system refuses a thread.
    pub fn start(count: usize) -> io::Result<Self> {
        let (jobs, queue) = channel::<Job>();
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..count.max(1) {
            let queue = queue.clone();
            let thread = thread::Builder::new().name("prompt".into()).stack_size(STACK_BYTES);
            thread.spawn(move || work_off(&queue))?;
        }
        Ok(Self { jobs })
    }

    /// Runs `work` on one of the threads. Values that `work` owns (a permit, say) live until it has
    /// ended, even if the future is dropped; if that happens before its turn, it never runs.
    ///
    /// # Errors
    /// When `work` panics.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, PromptThreadLost> {
        let (reply, outcome) = oneshot::channel();
        let job: Job = Box::new(move || {
            if !reply.is_closed() {
                let _ = reply.send(work());
            }
        });
        self.jobs.send(job).map_err(|_| PromptThreadLost)?;
        outcome.await.map_err(|_| PromptThreadLost)
    }
}

fn work_off(queue: &Mutex<Receiver<Job>>) {
    loop {
        // Waiting under the lock is meant: one idle thread waits for a job, the others for it.
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = next else { return };
        // The panic hook has reported it; the caller learns of it from its closed channel.
        let _ = catch_unwind(AssertUnwindSafe(job));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;

    /// Recurses through more stack than any thread of a runtime has.
    fn recurse(depth: u32) -> u32 {
        let frame = std::hint::black_box([depth as u8; 1024]);
        if depth == 0 { 0 } else { u32::from(frame[7] == depth as u8) + recurse(depth - 1) }
    }

    #[tokio::test]
    async fn a_prompt_may_recurse_through_64_mebibytes_of_stack() {
        let threads = PromptThreads::start(1).unwrap();
        assert_eq!(threads.run(|| recurse(64 * 1024)).await, Ok(64 * 1024));
    }

    #[tokio::test]
    async fn a_panic_fails_its_own_request_only() {
        let threads = PromptThreads::start(1).unwrap();
        assert_eq!(threads.run(|| panic!("on purpose")).await, Err::<(), _>(PromptThreadLost));
        assert_eq!(threads.run(|| 7).await, Ok(7));
    }

    #[tokio::test]
    async fn work_whose_request_is_gone_is_not_begun() {
        let threads = PromptThreads::start(1).unwrap();
        let (go, gate) = channel::<()>();
        let (begun, has_begun) = oneshot::channel();
        let first = threads.run(move || {
            begun.send(()).unwrap();
            gate.recv().unwrap();
        });
        let ran = Arc::new(AtomicBool::new(false));
        let flag = ran.clone();
        let abandoned = async {
            has_begun.await.unwrap();
            let second = threads.run(move || flag.store(true, Ordering::Relaxed));
            // Polled once, so that it is queued behind the first, and then dropped.
            assert!(tokio::time::timeout(Duration::ZERO, second).await.is_err());
            go.send(()).unwrap();
        };
        let (first, ()) = tokio::join!(first, abandoned);
        first.unwrap();
        assert_eq!(threads.run(|| 1).await, Ok(1), "the queue has been worked off");
        assert!(!ran.load(Ordering::Relaxed));
    }
}
