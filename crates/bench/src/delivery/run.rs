//! Runs a delivery plan: every scheme at every round-trip time, one after the other.

use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::judge::{Course, Trial};
use super::plan::{Plan, Scheme};
use super::stage::Stage;
use super::{serve, sse, udp};

/// All streams must be connected within this.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);
/// From "all are connected" to the first session's start.
const LEAD: Duration = Duration::from_millis(500);
/// A stream that is not whole so long after its last token is taken as it is.
const OVERTIME: Duration = Duration::from_secs(20);

/// Trials by round-trip time, then scheme.
pub type Trials = Vec<Vec<Trial>>;

/// Runs everything. `tell` hears what is next.
///
/// # Errors
/// If a scheme cannot be run at all, or text arrives that was never sent.
pub fn run(plan: &Plan, tell: impl Fn(&str)) -> anyhow::Result<Trials> {
    let mut trials = Vec::new();
    for &rtt_ms in &plan.rtts_ms {
        let mut row = Vec::new();
        for &scheme in &plan.schemes {
            tell(&format!("{} at {rtt_ms} ms, {} streams", scheme.label(), plan.sessions));
            row.push(trial(plan, scheme, rtt_ms)?);
        }
        trials.push(row);
    }
    Ok(trials)
}

fn trial(plan: &Plan, scheme: Scheme, rtt_ms: f64) -> anyhow::Result<Trial> {
    let starts = Arc::new(Starts::new(plan));
    let mut trial = match scheme {
        Scheme::Cubic | Scheme::Bbr => {
            let stage = Stage::namespaces(plan, rtt_ms)?;
            let courses = sse::run(plan, scheme, &stage, &starts)?;
            closed(stage, courses)?
        }
        Scheme::Eloquent | Scheme::LoquentUdp => udp::run(plan, scheme, rtt_ms, &starts)?,
        Scheme::Loquent | Scheme::ServeCubic | Scheme::ServeBbr => {
            serve::run(plan, scheme, rtt_ms)?
        }
    };
    for course in &mut trial.courses {
        // What was generated after the client had given up is missing all the same.
        course.ready_us.truncate(course.generated_us.len());
    }
    Ok(trial)
}

/// Stops the network under `courses` and adds what it counted.
///
/// # Errors
/// If the relay could not go on.
pub fn closed(stage: Stage, courses: Vec<Course>) -> anyhow::Result<Trial> {
    let summary = stage.close()?;
    let counted = courses.into_iter().zip(summary.tallies);
    let courses = counted.map(|(course, [down, up])| Course { down, up, ..course }).collect();
    Ok(Trial { courses, lateness: summary.lateness, ..Trial::default() })
}

/// A runtime of one thread, for one side.
///
/// # Errors
/// If the system has no descriptors left.
pub fn blocking_runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// Lets all sessions begin together, once all are connected, but each at a moment of its own:
/// tokens of all streams at the same instant would wait for each other in this machine.
#[derive(Debug)]
pub struct Starts {
    arrived: Mutex<usize>,
    another: Condvar,
    times: watch::Sender<State>,
    stagger: Duration,
    sessions: usize,
    length: Duration,
}

#[derive(Debug, Clone)]
enum State {
    Connecting,
    Begun(Instant),
    Failed,
}

impl Starts {
    /// Nobody is connected yet.
    pub fn new(plan: &Plan) -> Self {
        Self {
            arrived: Mutex::new(0),
            another: Condvar::new(),
            times: watch::Sender::new(State::Connecting),
            stagger: Duration::from_secs_f64(1.0 / plan.tokens_per_s / plan.sessions as f64),
            sessions: plan.sessions,
            length: Duration::from_micros(plan.length_us()),
        }
    }

    /// A stream is connected.
    pub fn arrive(&self) {
        *self.arrived.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) += 1;
        self.another.notify_all();
    }

    /// Waits for all streams, tells `begin` when each starts, and lets them go.
    pub fn open(&self, begin: impl Fn(usize, Instant)) {
        let arrived = self.arrived.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let missing = |arrived: &mut usize| *arrived < self.sessions;
        let waited = self.another.wait_timeout_while(arrived, CONNECT_LIMIT, missing);
        let complete = waited.is_ok_and(|(arrived, _)| *arrived >= self.sessions);
        let base = Instant::now() + LEAD;
        if complete {
            (0..self.sessions).for_each(|session| begin(session, self.start(base, session)));
        }
        self.times.send_replace(if complete { State::Begun(base) } else { State::Failed });
    }

    fn start(&self, base: Instant, session: usize) -> Instant {
        base + self.stagger * session as u32
    }

    /// When `session` starts, once that is known.
    ///
    /// # Errors
    /// If some stream could not connect.
    pub async fn wait(&self, session: usize) -> io::Result<Instant> {
        let mut times = self.times.subscribe();
        let known = times.wait_for(|state| !matches!(state, State::Connecting)).await;
        match known.as_deref() {
            Ok(State::Begun(base)) => Ok(self.start(*base, session)),
            _ => Err(io::Error::other("not all streams could connect")),
        }
    }

    /// Returns once it is known that the sessions will not start.
    pub async fn failed(&self) {
        let mut times = self.times.subscribe();
        if times.wait_for(|state| matches!(state, State::Failed)).await.is_err() {
            std::future::pending().await
        }
    }

    /// When a stream that started at `start` is taken as it is.
    pub fn deadline(&self, start: Instant) -> Instant {
        start + self.length + OVERTIME
    }
}
