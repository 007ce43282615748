//! Health of the engine thread, as seen by the rest of the server.
//!
//! The thread publishes a heartbeat: each start of a step, with its number of tokens. A watchdog
//! checks it periodically. A step counts as hanging when it takes longer than the timeout plus a
//! generous share for each of its tokens, so that a long prefill does not. An engine that can be
//! interrupted, such as one in a separate process, is then ended: to the thread it is lost like one
//! that crashed. Any other engine has failed, and so has one that still hangs after the interrupt.
//! A failed engine stays failed: the server has to be restarted.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use loquent_infer::runner::Interrupt;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Interval between two checks of the watchdog. A failure is known within two of them.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Assumed time per token of a step before any step has been measured: large models on slow
/// processors prefill two tokens a second.
const ASSUMED_PER_TOKEN: Duration = Duration::from_millis(500);
/// Factor by which a token may be slower than in the slowest recent step. Chosen by hand: attention
/// over a full context, and a machine with other users, stay far below it.
const MARGIN: u64 = 8;

/// State of the engine thread.
#[derive(Debug, Clone, PartialEq, Eq)]
enum EngineState {
    Running,
    /// The thread ended because the server stopped.
    Ended,
    /// The thread ended by itself, or hangs.
    Failed(Arc<str>),
}

/// The engine thread's heartbeat and end, shared by the thread, its watchdog and the service.
#[derive(Debug, Clone)]
pub struct EngineWatch(Arc<SharedWatch>);

#[derive(Debug)]
struct SharedWatch {
    /// A [`Beat`].
    beat: AtomicU64,
    /// Engine time per token of the slowest recent step, in nanoseconds; 0 before the first.
    per_token_ns: AtomicU64,
    /// True if the server stops, so that the thread's end is no failure.
    is_stopping: AtomicBool,
    state: watch::Sender<EngineState>,
    /// Why the engine cannot compute at present, though it may return.
    outage: Mutex<Option<EngineOutage>>,
}

/// A lost engine that may return.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineOutage {
    /// Reason of the outage.
    pub why: Arc<str>,
    /// True once requests no longer wait: they fail until the engine returns.
    pub is_given_up: bool,
}

/// One heartbeat: a number that changes with each, and the tokens of the step that began with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Beat(u64);

impl Beat {
    /// Returns the beat after this one. `tokens` is the size of the step that begins; `None` means
    /// that the thread waits for work, which may take any time.
    fn next(self, tokens: Option<u32>) -> Self {
        let number = (self.0 >> 32).wrapping_add(1);
        Self(number << 32 | u64::from(tokens.map_or(0, |tokens| tokens.saturating_add(1))))
    }

    fn tokens(self) -> Option<u64> {
        (self.0 & u64::from(u32::MAX)).checked_sub(1)
    }
}

impl Default for EngineWatch {
    fn default() -> Self {
        Self(Arc::new(SharedWatch {
            beat: AtomicU64::new(0),
            per_token_ns: AtomicU64::new(0),
            is_stopping: AtomicBool::new(false),
            state: watch::Sender::new(EngineState::Running),
            outage: Mutex::default(),
        }))
    }
}

impl EngineWatch {
    /// Records, on the engine thread, that a step of `tokens` begins.
    pub fn begin(&self, tokens: usize) {
        self.beat(Some(u32::try_from(tokens).unwrap_or(u32::MAX)));
    }

    /// Records, on the engine thread, that the step of `tokens` that began last took `took`.
    pub fn end(&self, tokens: usize, took: Duration) {
        self.beat(Some(0));
        let cost = nanoseconds(took) / (tokens as u64).max(1);
        let before = self.0.per_token_ns.load(Ordering::Relaxed);
        // A maximum that fades: decode steps between two prefills do not make it forget these.
        self.0.per_token_ns.store(cost.max(before - before / 64).max(1), Ordering::Relaxed);
    }

    /// Records, on the engine thread, that it waits for work.
    pub fn idle(&self) {
        self.beat(None);
    }

    fn beat(&self, tokens: Option<u32>) {
        // Only the engine thread writes.
        let next = Beat(self.0.beat.load(Ordering::Relaxed)).next(tokens);
        self.0.beat.store(next.0, Ordering::Release);
    }

    /// Runs `engine`, the body of the thread, and records how it ended.
    pub fn run(&self, engine: impl FnOnce()) {
        match catch_unwind(AssertUnwindSafe(engine)) {
            Ok(()) if self.0.is_stopping.load(Ordering::Acquire) => {
                self.0.state.send_if_modified(|state| {
                    let runs = *state == EngineState::Running;
                    if runs {
                        *state = EngineState::Ended;
                    }
                    runs
                });
            }
            Ok(()) => self.fail("its thread ended"),
            Err(panic) => self.fail(&format!("it panicked: {}", panic_message(&*panic))),
        }
    }

    /// Records that the server stops: the end of the thread is no failure from now on.
    pub fn expect_end(&self) {
        self.0.is_stopping.store(true, Ordering::Release);
    }

    /// Records, on the engine thread, that the engine was lost, or with `None` that it is back.
    pub fn note_outage(&self, outage: Option<EngineOutage>) {
        *self.0.outage.lock().unwrap_or_else(PoisonError::into_inner) = outage;
    }

    /// Returns why nothing can be computed at present; `None` while the engine works.
    pub fn outage(&self) -> Option<EngineOutage> {
        self.0.outage.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records that the engine failed. Keeps the first reason.
    pub fn fail(&self, why: &str) {
        self.0.state.send_if_modified(|state| {
            let runs = *state == EngineState::Running;
            if runs {
                *state = EngineState::Failed(why.into());
            }
            runs
        });
    }

    /// Returns why the engine failed; `None` if it has not.
    pub fn failure(&self) -> Option<Arc<str>> {
        match &*self.0.state.borrow() {
            EngineState::Failed(why) => Some(why.clone()),
            EngineState::Running | EngineState::Ended => None,
        }
    }

    /// Waits until the engine fails; `None` if it ends because the server stops.
    pub async fn failed(&self) -> Option<Arc<str>> {
        let mut states = self.0.state.subscribe();
        // The sender lives in `self`, so the wait ends with a state.
        let _ = states.wait_for(|state| *state != EngineState::Running).await;
        self.failure()
    }

    /// Runs the watchdog: checks for hanging steps until the engine ends, and returns why it
    /// failed. `timeout` is the limit of a step without tokens; `interrupt` ends one that hangs.
    pub async fn guard(&self, timeout: Duration, interrupt: Option<Interrupt>) -> Option<Arc<str>> {
        let mut hang = HangDetector::new(self.now());
        let mut ticks = interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut looked = Instant::now();
        loop {
            tokio::select! {
                why = self.failed() => return why,
                now = ticks.tick() => {
                    let passed = now.saturating_duration_since(looked);
                    looked = now;
                    if let Some(unchanged) = hang.look(self.now(), passed, self.limit(timeout)) {
                        let s = unchanged.as_secs_f64();
                        let why = format!("a step has not ended for {s:.1} s");
                        match interrupt.as_ref().filter(|_| hang.is_first_try()) {
                            Some(interrupt) => interrupt(&why),
                            None => self.fail(&why),
                        }
                    }
                }
            }
        }
    }

    fn now(&self) -> Beat {
        Beat(self.0.beat.load(Ordering::Acquire))
    }

    /// Returns the time limit of the current step.
    fn limit(&self, timeout: Duration) -> Duration {
        let tokens = self.now().tokens().unwrap_or(0);
        let per_token = match self.0.per_token_ns.load(Ordering::Relaxed) {
            0 => nanoseconds(ASSUMED_PER_TOKEN),
            measured => measured.saturating_mul(MARGIN),
        };
        timeout.saturating_add(Duration::from_nanos(tokens.saturating_mul(per_token)))
    }
}

/// Measures the time since a beat last changed.
struct HangDetector {
    beat: Beat,
    unchanged: Duration,
    /// Beat of the step that was interrupted last.
    interrupted: Option<Beat>,
}

impl HangDetector {
    fn new(beat: Beat) -> Self {
        Self { beat, unchanged: Duration::ZERO, interrupted: None }
    }

    /// Returns true if this step is interrupted for the first time. The step then has the same time
    /// again to end.
    fn is_first_try(&mut self) -> bool {
        self.unchanged = Duration::ZERO;
        self.interrupted.replace(self.beat) != Some(self.beat)
    }

    /// Checks the beat after `passed`. Returns the time without a change once it exceeds `limit`.
    fn look(&mut self, beat: Beat, passed: Duration, limit: Duration) -> Option<Duration> {
        if beat != self.beat || beat.tokens().is_none() {
            (self.beat, self.unchanged) = (beat, Duration::ZERO);
            return None;
        }
        // Time in which the watchdog itself did not run, as in a stopped process, does not count:
        // the engine did not run then either.
        self.unchanged += passed.min(2 * LOOK_EVERY);
        (self.unchanged > limit).then_some(self.unchanged)
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    //! Tests the detection of hanging steps, without a clock.
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    /// Repeats checks until the step counts as hanging, at most for `most`.
    fn time_to_death(watch: &EngineWatch, passed: Duration, most: Duration) -> Option<Duration> {
        let mut hang = HangDetector::new(watch.now());
        let looks = most.as_nanos() / passed.as_nanos();
        (0..looks).find_map(|_| hang.look(watch.now(), passed, watch.limit(TIMEOUT)))
    }

    #[test]
    fn a_step_may_take_the_timeout_and_time_for_its_tokens() {
        let (watch, hour) = (EngineWatch::default(), Duration::from_secs(3600));
        watch.begin(0);
        let bare = time_to_death(&watch, LOOK_EVERY, hour).unwrap();
        assert!(bare > TIMEOUT && bare <= TIMEOUT + LOOK_EVERY, "{bare:?}");
        watch.begin(512);
        let prefill = time_to_death(&watch, LOOK_EVERY, hour).unwrap();
        assert!(prefill > TIMEOUT + 512 * ASSUMED_PER_TOKEN, "{prefill:?}");
        // Measured: a token takes 10 ms.
        watch.end(100, Duration::from_secs(1));
        watch.begin(512);
        let measured = time_to_death(&watch, LOOK_EVERY, hour).unwrap();
        let allowed = TIMEOUT + 512 * 8 * Duration::from_millis(10);
        assert!(measured > allowed && measured <= allowed + LOOK_EVERY, "{measured:?}");
    }

    #[tokio::test]
    async fn a_step_that_hangs_is_interrupted_and_fails_only_if_it_hangs_on() {
        let (watch, times) = (EngineWatch::default(), Arc::new(AtomicU64::new(0)));
        let (ends, count) = (watch.clone(), times.clone());
        let interrupt = move |why: &str| {
            assert!(why.contains("has not ended"), "{why}");
            // The first step ends by it, the second one does not.
            if count.fetch_add(1, Ordering::Relaxed) == 0 {
                ends.begin(0);
            }
        };
        watch.begin(0);
        let why = watch.guard(Duration::from_millis(20), Some(Arc::new(interrupt))).await;
        assert!(why.unwrap().contains("has not ended"));
        assert_eq!(times.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn waiting_for_work_and_a_stopped_process_are_no_hang() {
        let watch = EngineWatch::default();
        watch.idle();
        assert_eq!(time_to_death(&watch, LOOK_EVERY, 100 * TIMEOUT), None);
        watch.begin(0);
        // The process was stopped for an hour, between two looks.
        assert_eq!(time_to_death(&watch, 360 * TIMEOUT, 360 * TIMEOUT), None);
    }

    #[test]
    fn an_end_that_nobody_asked_for_is_a_failure() {
        let watch = EngineWatch::default();
        watch.run(|| ());
        assert_eq!(watch.failure().as_deref(), Some("its thread ended"));
        let asked = EngineWatch::default();
        asked.expect_end();
        asked.run(|| ());
        assert_eq!(asked.failure(), None);
    }
}
