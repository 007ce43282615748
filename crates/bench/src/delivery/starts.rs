//! The synchronized start of all sessions of a case, and the runtime of one side.

use std::io;
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::plan::DeliveryPlan;

/// Time limit for all streams to connect.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);
/// Maximum wait for an incomplete stream after its last token was generated.
const OVERTIME: Duration = Duration::from_secs(20);

/// Creates an async runtime on the current thread, for one side of the link.
///
/// # Errors
/// If the system has no descriptors left.
pub fn blocking_runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// Synchronizes the start of all sessions once all are connected. Each starts at a slightly
/// different moment: tokens of all streams at the same instant would wait for each other in this
/// machine.
#[derive(Debug)]
pub struct Starts {
    arrived: Mutex<usize>,
    another: Condvar,
    times: watch::Sender<StartState>,
    /// Time from the last connection to the first session's start.
    lead: Duration,
    stagger: Duration,
    sessions: usize,
    length: Duration,
}

#[derive(Debug, Clone)]
enum StartState {
    Connecting,
    Begun(Instant),
    Failed,
}

impl Starts {
    /// Creates the starts of the sessions of `plan`, before any stream is connected.
    pub fn new(plan: &DeliveryPlan) -> Self {
        Self {
            arrived: Mutex::new(0),
            another: Condvar::new(),
            times: watch::Sender::new(StartState::Connecting),
            lead: plan.lead(),
            stagger: Duration::from_secs_f64(1.0 / plan.tokens_per_s / plan.sessions as f64),
            sessions: plan.sessions,
            length: Duration::from_micros(plan.length_us()),
        }
    }

    /// Reports that a stream is connected.
    pub fn arrive(&self) {
        *self.arrived.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) += 1;
        self.another.notify_all();
    }

    /// Waits for all streams, calls `begin` with each session's start, and releases them.
    pub fn open(&self, begin: impl Fn(usize, Instant)) {
        let arrived = self.arrived.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let missing = |arrived: &mut usize| *arrived < self.sessions;
        let waited = self.another.wait_timeout_while(arrived, CONNECT_LIMIT, missing);
        let complete = waited.is_ok_and(|(arrived, _)| *arrived >= self.sessions);
        // Ahead of time, so that the relay and both ends know the start before it comes.
        let base = Instant::now() + self.lead;
        if complete {
            (0..self.sessions).for_each(|session| begin(session, self.start(base, session)));
        }
        self.times.send_replace(if complete {
            StartState::Begun(base)
        } else {
            StartState::Failed
        });
    }

    fn start(&self, base: Instant, session: usize) -> Instant {
        base + self.stagger * session as u32
    }

    /// Waits until the start of `session` is known, and returns it.
    ///
    /// # Errors
    /// If some stream could not connect.
    pub async fn wait(&self, session: usize) -> io::Result<Instant> {
        let mut times = self.times.subscribe();
        let known = times.wait_for(|state| !matches!(state, StartState::Connecting)).await;
        match known.as_deref() {
            Ok(StartState::Begun(base)) => Ok(self.start(*base, session)),
            _ => Err(io::Error::other("not all streams could connect within 30 s")),
        }
    }

    /// Resolves once it is known that the sessions will not start.
    pub async fn failed(&self) {
        let mut times = self.times.subscribe();
        if times.wait_for(|state| matches!(state, StartState::Failed)).await.is_err() {
            std::future::pending().await
        }
    }

    /// Returns the time at which the measurement of a stream that started at `start` ends, complete
    /// or not.
    pub fn deadline(&self, start: Instant) -> Instant {
        start + self.length + OVERTIME
    }
}
