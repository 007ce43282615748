//! Threads that compute masks. Each grammar, and so each request, has its own lane, and the lanes
//! take turns: a request with many slow completions delays only its own masks.

use std::collections::VecDeque;
use std::io;
use std::num::NonZero;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, PoisonError};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::mpsc::{Receiver, channel};
use crate::sync::{Condvar, Mutex, MutexGuard, thread};

/// Maximum threads that compute masks. At most half of the processors, since the engine needs the
/// others.
const MAX_WORKERS: usize = 4;

/// Stack size of each thread: grammars in requests may be nested.
const STACK_BYTES: usize = 16 << 20;

type Job = Box<dyn FnOnce() + Send>;

/// One grammar's place in the queue, and the time that its masks take.
#[derive(Debug, Default)]
pub(super) struct Lane {
    /// Number of masks queued or being computed.
    pending: AtomicU64,
    /// Longest time of one of the last masks, in microseconds; 0 before the first.
    peak_us: AtomicU64,
}

impl Lane {
    /// Expected time for a mask that is queued now; `None` until one was computed.
    fn expected(&self, workers: usize) -> Option<Duration> {
        let peak = self.peak_us.load(Ordering::Relaxed);
        let all_us = peak.saturating_mul(self.pending.load(Ordering::Relaxed).max(1));
        (peak > 0).then(|| Duration::from_micros(all_us / workers.max(1) as u64))
    }

    fn note(&self, took: Duration) {
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
        let before = self.peak_us.load(Ordering::Relaxed);
        // It fades slowly: masks that are slow now and then count as slow.
        self.peak_us.store(took_us.max(before - before / 64), Ordering::Relaxed);
        self.pending.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct Queue {
    /// Lanes with jobs, in order of their turn.
    lanes: VecDeque<(Arc<Lane>, VecDeque<Job>)>,
    is_closed: bool,
}

impl Queue {
    fn push(&mut self, lane: &Arc<Lane>, job: Job) {
        match self.lanes.iter_mut().find(|(other, _)| Arc::ptr_eq(other, lane)) {
            Some((_, jobs)) => jobs.push_back(job),
            None => self.lanes.push_back((lane.clone(), VecDeque::from([job]))),
        }
    }

    fn pop(&mut self) -> Option<Job> {
        let (lane, mut jobs) = self.lanes.pop_front()?;
        let job = jobs.pop_front();
        if !jobs.is_empty() {
            self.lanes.push_back((lane, jobs));
        }
        job
    }
}

#[derive(Default)]
struct SharedQueue {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl SharedQueue {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut queue = self.lock();
        loop {
            if let Some(job) = queue.pop() {
                drop(queue);
                job();
                queue = self.lock();
            } else if queue.is_closed {
                return;
            } else {
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

/// Handle to the threads, which end when the last handle is dropped.
#[derive(Clone)]
pub(super) struct Workers(Arc<WorkersHandle>);

struct WorkersHandle {
    shared: Arc<SharedQueue>,
    count: usize,
}

impl Drop for WorkersHandle {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.changed.notify_all();
    }
}

impl Workers {
    pub(super) fn start() -> io::Result<Self> {
        let cores = available_parallelism().map_or(1, NonZero::get);
        Self::start_some(cores.div_ceil(2).min(MAX_WORKERS))
    }

    pub(super) fn start_some(count: usize) -> io::Result<Self> {
        let shared = Arc::new(SharedQueue::default());
        let workers = Self(Arc::new(WorkersHandle { shared: shared.clone(), count }));
        for _ in 0..count {
            let shared = shared.clone();
            let thread = thread::Builder::new().name("grammar".into()).stack_size(STACK_BYTES);
            thread.spawn(move || shared.work())?;
        }
        Ok(workers)
    }

    /// Runs `job` when it is the turn of `lane`; its outcome goes to the receiver.
    pub(super) fn run<T: Send + 'static>(
        &self,
        lane: &Arc<Lane>,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Receiver<T> {
        let (done, outcome) = channel();
        let own = lane.clone();
        own.pending.fetch_add(1, Ordering::Relaxed);
        let job = Box::new(move || {
            let started = Instant::now();
            // A panic fails its own job, and neither the thread nor the jobs behind it.
            let result = panic::catch_unwind(AssertUnwindSafe(job));
            own.note(started.elapsed());
            match result {
                // The completion may have been cancelled meanwhile.
                Ok(result) => drop(done.send(result)),
                Err(_) => tracing::error!("work on a grammar panicked"),
            }
        });
        self.0.shared.lock().push(lane, job);
        self.0.shared.changed.notify_one();
        outcome
    }

    /// Expected time for a mask of `lane` that is queued now; `None` until one was computed.
    pub(super) fn expected(&self, lane: &Lane) -> Option<Duration> {
        lane.expected(self.0.count)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_grammar_with_many_slow_masks_delays_its_own_only() {
        let workers = Workers::start_some(1).unwrap();
        let [many, one] = [Arc::<Lane>::default(), Arc::<Lane>::default()];
        let (order, done) = channel();
        let (open, gate) = channel::<()>();
        let mut outcomes = vec![workers.run(&many, move || gate.recv().unwrap())];
        for _ in 0..64 {
            let order = order.clone();
            outcomes.push(workers.run(&many, move || order.send("many").unwrap()));
        }
        outcomes.push(workers.run(&one, move || order.send("one").unwrap()));
        open.send(()).unwrap();
        let order: Vec<&str> = done.iter().collect();
        let turn = order.iter().position(|&lane| lane == "one").unwrap();
        assert!(turn <= 1, "it had to wait for {turn} masks of the other request");
    }

    #[test]
    fn a_job_that_panics_costs_those_behind_it_nothing() {
        let workers = Workers::start_some(1).unwrap();
        let lane = Arc::<Lane>::default();
        let broken = workers.run(&lane, || panic!("planted"));
        let sound = workers.run(&lane, || 7);
        assert_eq!(sound.recv(), Ok(7));
        assert!(broken.recv().is_err());
        assert_eq!(lane.pending.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn slow_masks_are_remembered() {
        let lane = Lane::default();
        assert_eq!(lane.expected(1), None);
        lane.pending.store(3, Ordering::Relaxed);
        lane.note(Duration::from_millis(10));
        lane.note(Duration::from_micros(10));
        assert!(lane.expected(1) > Some(Duration::from_millis(9)));
    }
}

#[cfg(all(test, loquent_loom))]
mod interleavings {
    //! Requests, workers and the end of both, in every order. Loom fails a test in which anyone
    //! sleeps for ever.
    use super::*;
    use loquent_needs::interleavings::explore;

    #[test]
    fn each_request_gets_its_mask_and_the_workers_end() {
        explore("two requests at two workers of grammars", || {
            let workers = Workers::start_some(2).unwrap();
            let lanes = [Arc::<Lane>::default(), Arc::<Lane>::default()];
            let (other, lane) = (workers.clone(), lanes[1].clone());
            let request = thread::spawn(move || {
                assert_eq!(other.run(&lane, || 1).recv(), Ok(1));
            });
            assert_eq!(workers.run(&lanes[0], || 0).recv(), Ok(0));
            request.join().unwrap();
            let pending = |lane: &Arc<Lane>| lane.pending.load(Ordering::Relaxed);
            assert_eq!(lanes.each_ref().map(pending), [0, 0]);
        });
    }

    #[test]
    fn a_lane_counts_each_of_its_masks_until_it_is_there() {
        explore("two masks of one grammar at two workers", || {
            let workers = Workers::start_some(2).unwrap();
            let lane = Arc::<Lane>::default();
            let outcomes = [0, 1].map(|number| workers.run(&lane, move || number));
            assert_eq!(outcomes.map(|outcome| outcome.recv().unwrap()), [0, 1]);
            assert_eq!(lane.pending.load(Ordering::Relaxed), 0, "a count was lost");
        });
    }

    #[test]
    fn masks_that_are_queued_when_the_last_handle_goes_are_computed() {
        explore("the last handle goes", || {
            let workers = Workers::start_some(1).unwrap();
            let outcome = workers.run(&Arc::default(), || 7);
            drop(workers);
            assert_eq!(outcome.recv(), Ok(7));
        });
    }
}
