//! The threads that tokenize prompts and compile grammars.
//!
//! Libraries that read a client's text may recurse once per character of it, such as `std::regex`,
//! with which llama.cpp splits text for many models. So these threads have far deeper stacks than a
//! runtime's own. Their number bounds the concurrent work, and work whose request is gone when its
//! turn comes is never started.
//!
//! Work waits by tenant ([`Turns`]): whoever sends many prompts, or costly grammars, waits for its
//! own.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};

use loquent_infer::share::ShareRefusal;
use loquent_infer::tenant::Tenant;
use loquent_infer::turns::{JobKind, Turns};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::identity::Identity;
use crate::memory::SMALL_BYTES;
use crate::sync::{Condvar, Mutex, MutexGuard, thread};

/// Stack of each thread. Only the pages that were once touched take memory.
pub const STACK_BYTES: usize = 256 << 20;
/// Maximum jobs of all tenants that wait.
const MAX_WAITING: usize = 1024;

type Job = Box<dyn FnOnce() + Send>;

/// Reason why work has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PromptThreadError {
    /// The work panicked, or its thread could not be reached.
    #[error("the prompt's thread failed")]
    Lost,
    /// Too many jobs wait.
    #[error("too many prompts wait to be tokenized: {0}")]
    Busy(ShareRefusal),
}

/// Tenant and kind of a piece of work.
#[derive(Debug, Clone, Copy)]
pub struct WorkClass {
    tenant: Tenant,
    kind: JobKind,
}

impl WorkClass {
    /// Returns the class of work on `bytes` of text of `identity`.
    pub fn of_bytes(identity: &Identity, bytes: usize) -> Self {
        let kind = if bytes > SMALL_BYTES { JobKind::Long } else { JobKind::Short };
        Self { tenant: identity.scheduled(), kind }
    }

    /// Returns the class of work of `identity` whose cost its bytes do not bound.
    pub fn long(identity: &Identity) -> Self {
        Self { tenant: identity.scheduled(), kind: JobKind::Long }
    }
}

/// A fixed number of threads with deep stacks. They end on drop.
#[derive(Debug)]
pub struct PromptThreads {
    queue: Arc<JobQueue>,
}

struct JobQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

struct QueueState {
    turns: Turns<Job>,
    is_open: bool,
}

impl std::fmt::Debug for JobQueue {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "JobQueue({})", self.lock().turns.waiting())
    }
}

impl JobQueue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PromptThreads {
    /// Starts `count` threads, at least one.
    ///
    /// # Errors
    /// When the operating system refuses a thread.
    pub fn start(count: usize) -> io::Result<Self> {
        let count = count.max(1);
        let turns = Turns::new(count, MAX_WAITING);
        let state = Mutex::new(QueueState { turns, is_open: true });
        let threads = Self { queue: Arc::new(JobQueue { state, changed: Condvar::new() }) };
        for _ in 0..count {
            let queue = threads.queue.clone();
            let thread = thread::Builder::new().name("prompt".into()).stack_size(STACK_BYTES);
            thread.spawn(move || work_off(&queue))?;
        }
        Ok(threads)
    }

    /// Runs `work` on one of the threads. Values that `work` owns (a permit, say) live until it has
    /// ended, even if the future is dropped; if that happens before its turn, it never runs.
    ///
    /// # Errors
    /// [`PromptThreadError::Busy`] when too much of this tenant waits, and
    /// [`PromptThreadError::Lost`] when `work` panics.
    pub async fn run<T: Send + 'static>(
        &self,
        class: WorkClass,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, PromptThreadError> {
        let (reply, outcome) = oneshot::channel();
        let job: Job = Box::new(move || {
            if !reply.is_closed() {
                let _ = reply.send(work());
            }
        });
        let pushed = self.queue.lock().turns.push(class.tenant, class.kind, job);
        pushed.map_err(PromptThreadError::Busy)?;
        self.queue.changed.notify_one();
        outcome.await.map_err(|_| PromptThreadError::Lost)
    }
}

impl Drop for PromptThreads {
    fn drop(&mut self) {
        self.queue.lock().is_open = false;
        self.queue.changed.notify_all();
    }
}

fn work_off(queue: &JobQueue) {
    let mut state = queue.lock();
    loop {
        let Some((turn, job)) = state.turns.take() else {
            if !state.is_open {
                return;
            }
            state = queue.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        drop(state);
        let begun = Instant::now();
        // The panic hook has reported it; the caller learns of it from its closed channel.
        let _ = catch_unwind(AssertUnwindSafe(job));
        state = queue.lock();
        state.turns.finish(turn, begun.elapsed());
        // Another thread may have waited for this long job to end.
        queue.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Returns the class of a short prompt of the client at 10.0.0.`host`.
    fn short(host: u8) -> WorkClass {
        WorkClass::of_bytes(&Identity::of_address([10, 0, 0, host].into()), 1)
    }

    /// Recurses through more stack than any thread of a runtime has.
    fn recurse(depth: u32) -> u32 {
        let frame = std::hint::black_box([depth as u8; 1024]);
        if depth == 0 { 0 } else { u32::from(frame[7] == depth as u8) + recurse(depth - 1) }
    }

    #[tokio::test]
    async fn a_prompt_may_recurse_through_64_mebibytes_of_stack() {
        let threads = PromptThreads::start(1).unwrap();
        assert_eq!(threads.run(short(1), || recurse(64 * 1024)).await, Ok(64 * 1024));
    }

    #[tokio::test]
    async fn a_panic_fails_its_own_request_only() {
        let threads = PromptThreads::start(1).unwrap();
        assert_eq!(
            threads.run(short(1), || panic!("on purpose")).await,
            Err::<(), _>(PromptThreadError::Lost)
        );
        assert_eq!(threads.run(short(1), || 7).await, Ok(7));
    }

    #[tokio::test]
    async fn work_whose_request_is_gone_is_not_begun() {
        let threads = PromptThreads::start(1).unwrap();
        let (go, gate) = channel::<()>();
        let (begun, has_begun) = oneshot::channel();
        let first = threads.run(short(1), move || {
            begun.send(()).unwrap();
            gate.recv().unwrap();
        });
        let ran = Arc::new(AtomicBool::new(false));
        let flag = ran.clone();
        let abandoned = async {
            has_begun.await.unwrap();
            let second = threads.run(short(1), move || flag.store(true, Ordering::Relaxed));
            // Polled once, so that it is queued behind the first, and then dropped.
            assert!(tokio::time::timeout(Duration::ZERO, second).await.is_err());
            go.send(()).unwrap();
        };
        let (first, ()) = tokio::join!(first, abandoned);
        first.unwrap();
        assert_eq!(threads.run(short(1), || 1).await, Ok(1), "the queue has been worked off");
        assert!(!ran.load(Ordering::Relaxed));
    }

    #[tokio::test]
    async fn a_tenants_long_queue_is_its_own_wait() {
        let threads = Arc::new(PromptThreads::start(1).unwrap());
        let order = Arc::new(Mutex::new(Vec::new()));
        let (go, gate) = channel::<()>();
        let (begun, has_begun) = oneshot::channel();
        let blocker = threads.clone();
        let first = tokio::spawn(async move {
            let wait = move || {
                begun.send(()).unwrap();
                gate.recv().unwrap();
                thread::sleep(Duration::from_millis(5)); // work that is charged
            };
            blocker.run(short(1), wait).await.unwrap();
        });
        has_begun.await.unwrap();
        let mut others = Vec::new();
        for host in [1, 1, 1, 1, 1, 2] {
            let (threads, order) = (threads.clone(), order.clone());
            let note = move || order.lock().unwrap().push(host);
            let mut running =
                Box::pin(async move { threads.run(short(host), note).await.unwrap() });
            // Polled once, so that they are queued in this order.
            assert!(tokio::time::timeout(Duration::ZERO, &mut running).await.is_err());
            others.push(running);
        }
        go.send(()).unwrap();
        first.await.unwrap();
        for other in others {
            other.await;
        }
        assert_eq!(*order.lock().unwrap(), [2, 1, 1, 1, 1, 1]);
    }

    #[tokio::test]
    async fn a_queue_beyond_its_bound_is_refused() {
        let threads = PromptThreads::start(1).unwrap();
        let (_go, gate) = channel::<()>();
        let mut first = Box::pin(threads.run(short(1), move || {
            let _ = gate.recv();
        }));
        assert!(tokio::time::timeout(Duration::ZERO, &mut first).await.is_err(), "it runs");
        let mut others = Vec::new();
        let refused = loop {
            let mut one = Box::pin(threads.run(short(1), || ()));
            match tokio::time::timeout(Duration::ZERO, &mut one).await {
                Ok(outcome) => break outcome,
                Err(_) => others.push(one),
            }
        };
        assert!(matches!(refused, Err(PromptThreadError::Busy(ShareRefusal::Share { .. }))));
        assert!(others.len() < MAX_WAITING, "others find room");
        let mut honest = Box::pin(threads.run(short(2), || ()));
        assert!(tokio::time::timeout(Duration::ZERO, &mut honest).await.is_err(), "it waits");
    }
}

#[cfg(all(test, loquent_loom))]
mod interleavings {
    //! Callers, threads and the end of the queue, in every order. Loom fails a test in which
    //! anyone sleeps for ever: a caller without its result, or a thread after the queue's end.
    use super::*;
    use crate::sync::atomic::{AtomicUsize, Ordering};
    use loquent_needs::interleavings::{block_on, explore};

    fn class(kind: JobKind) -> WorkClass {
        WorkClass { tenant: Identity::in_process().scheduled(), kind }
    }

    /// Two callers at two threads, of whose jobs at most `limit` may run at once.
    fn two_callers(kind: JobKind, limit: usize) {
        explore("two callers at two prompt threads", move || {
            let threads = Arc::new(PromptThreads::start(2).unwrap());
            let running = Arc::new(AtomicUsize::new(0));
            let call = move |threads: &PromptThreads, number: usize| {
                let running = running.clone();
                let job = move || {
                    let others = running.fetch_add(1, Ordering::SeqCst);
                    running.fetch_sub(1, Ordering::SeqCst);
                    (number, others < limit)
                };
                assert_eq!(block_on(threads.run(class(kind), job)), Ok((number, true)));
            };
            let (other, own) = (threads.clone(), call.clone());
            let caller = thread::spawn(move || own(&other, 1));
            call(&threads, 2);
            caller.join().unwrap();
        });
    }

    #[test]
    fn each_caller_gets_its_own_result_and_the_threads_end() {
        two_callers(JobKind::Short, 2);
    }

    #[test]
    fn long_jobs_leave_a_thread_free_and_none_is_forgotten() {
        two_callers(JobKind::Long, 1);
    }

    #[test]
    fn what_abandoned_work_owns_is_dropped_whenever_its_caller_leaves() {
        explore("abandoned work", || {
            let threads = PromptThreads::start(1).unwrap();
            // Loom fails if one of its own pointers outlives the test.
            let owned = loom::sync::Arc::new(());
            let mut call = Box::pin(threads.run(class(JobKind::Short), move || drop(owned)));
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            let _ = call.as_mut().poll(&mut context);
            drop(call);
            drop(threads);
        });
    }
}
