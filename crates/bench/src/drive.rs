//! One run: sends every request when it is due and records its answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use loquent_client::openai::{Arrival, Generate};
use loquent_openai::http::ConnectionOptions;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::arrivals::Pacing;
use crate::record::{ChunkMark, RequestOutcome, RequestRecord, RequestRole};
use crate::target::{ArrivalStream, FailureKind, RequestFailure, Target};

/// Kernel receive buffer of slow readers: small, so that the server's socket fills within seconds.
const SLOW_READER_RECV_BUFFER_BYTES: u32 = 4096;
/// Maximum text bytes per token: a server that sends more is broken or hostile, and would fill this
/// process's memory.
const MAX_TEXT_BYTES_PER_TOKEN: usize = 256;
/// Granularity of the runtime's timer; a thread sleeps the remainder.
const TIMER_GRANULARITY: Duration = Duration::from_millis(1);

/// A request and its role, ready to be sent.
#[derive(Debug, Clone)]
pub struct PlannedRequest {
    /// Purpose of the request in the run.
    pub role: RequestRole,
    /// The request body and its parameters.
    pub generate: Generate,
    /// Send time after the start, for requests outside the pacing.
    pub at: Duration,
    /// Chunks with text after which a slow reader stops or a leaver disconnects.
    pub turn_after: usize,
}

/// All requests of one run.
#[derive(Debug, Clone)]
pub struct RunPlan {
    /// The measured requests, sent by the pacing.
    pub measured: Vec<PlannedRequest>,
    /// Slow readers, leavers and injected prompts, each sent at its own time.
    pub beside: Vec<PlannedRequest>,
    /// Rule for the send times of the measured requests.
    pub pacing: Pacing,
    /// Seed of random arrivals.
    pub seed: u64,
    /// Maximum number of measured requests in flight.
    pub concurrency: Option<usize>,
    /// Time limit of one request, from its submission.
    pub timeout: Duration,
}

/// Counters that a progress bar reads during a run.
#[derive(Debug, Default)]
pub struct RunProgress {
    /// Requests that have ended.
    pub ended: AtomicUsize,
    /// Chunks with text that have arrived.
    pub chunks: AtomicU64,
}

/// State shared by the tasks of one run.
struct RunShared {
    target: Arc<dyn Target>,
    start: Instant,
    timeout: Duration,
    progress: Arc<RunProgress>,
    measured_left: AtomicUsize,
    /// Set to true when the last measured request has ended.
    measured_done: watch::Sender<bool>,
}

impl RunShared {
    fn us(&self, at: Instant) -> u64 {
        let elapsed = at.saturating_duration_since(self.start);
        u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX)
    }

    fn handle_end(&self, role: RequestRole) {
        self.progress.ended.fetch_add(1, Ordering::Relaxed);
        if role == RequestRole::Measured && self.measured_left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.measured_done.send_replace(true);
        }
    }
}

/// Sends the plan's requests to `target`. The records are in the order of their indices: measured
/// requests first, then the others.
pub async fn run(
    target: Arc<dyn Target>,
    plan: RunPlan,
    progress: Arc<RunProgress>,
) -> Vec<RequestRecord> {
    let shared = Arc::new(RunShared {
        target,
        start: Instant::now(),
        timeout: plan.timeout,
        progress,
        measured_left: AtomicUsize::new(plan.measured.len()),
        measured_done: watch::Sender::new(plan.measured.is_empty()),
    });
    let mut tasks = JoinSet::new();
    let first_beside = plan.measured.len();
    for (offset, request) in plan.beside.iter().cloned().enumerate() {
        let shared = Arc::clone(&shared);
        tasks.spawn(async move {
            let due = shared.start + request.at;
            sleep_exactly_until(due).await;
            exchange(&shared, first_beside + offset, request, due, None).await
        });
    }
    send_measured(&shared, plan, &mut tasks).await;
    let mut records = Vec::with_capacity(tasks.len());
    while let Some(joined) = tasks.join_next().await {
        records.push(joined.expect("a request's task neither panics nor is cancelled"));
    }
    records.sort_by_key(|record: &RequestRecord| record.index);
    records
}

async fn send_measured(shared: &Arc<RunShared>, plan: RunPlan, tasks: &mut JoinSet<RequestRecord>) {
    let offsets = plan.pacing.offsets(plan.measured.len(), plan.seed);
    let slots = plan.concurrency.map(|limit| Arc::new(Semaphore::new(limit)));
    for (index, request) in plan.measured.into_iter().enumerate() {
        let due = offsets.as_ref().map(|offsets| shared.start + offsets[index]);
        if let Some(due) = due {
            sleep_exactly_until(due).await;
        }
        if let (Pacing::Relative { interval_s }, 1..) = (plan.pacing, index) {
            sleep_exactly_until(Instant::now() + Duration::from_secs_f64(interval_s)).await;
        }
        // After the sleep: a request that waits for a place is late, and its lateness counts.
        let permit = match &slots {
            Some(slots) => Arc::clone(slots).acquire_owned().await.ok(),
            None => None,
        };
        // In a closed loop a request is due when a place is free. Counting from the start would
        // add the wait for the place, which the generator imposes, to the server's TTFT.
        let burst = plan.pacing == Pacing::Burst && slots.is_none();
        let due = due.unwrap_or_else(|| if burst { shared.start } else { Instant::now() });
        let shared = Arc::clone(shared);
        tasks.spawn(async move { exchange(&shared, index, request, due, permit).await });
    }
}

/// Sleeps until `due`, to within about ten microseconds: the runtime's timer has a
/// granularity of a millisecond, which would show in every TTFT.
async fn sleep_exactly_until(due: Instant) {
    if let Some(early) = due.checked_sub(TIMER_GRANULARITY) {
        sleep_until(early).await;
    }
    let rest = due.saturating_duration_since(Instant::now());
    if !rest.is_zero() {
        let slept = tokio::task::spawn_blocking(move || std::thread::sleep(rest)).await;
        debug_assert!(slept.is_ok(), "sleeping does not panic");
    }
    // With a paused clock (in tests) the thread's sleep does not advance the time.
    if Instant::now() < due {
        sleep_until(due).await;
    }
}

/// Performs one request, from its submission to its end.
async fn exchange(
    shared: &RunShared,
    index: usize,
    request: PlannedRequest,
    due: Instant,
    permit: Option<OwnedSemaphorePermit>,
) -> RequestRecord {
    let submitted = Instant::now();
    let mut record = blank_record(shared, index, &request, due, submitted);
    let deadline = submitted + shared.timeout;
    let recv_buffer_bytes =
        (request.role == RequestRole::SlowReader).then_some(SLOW_READER_RECV_BUFFER_BYTES);
    let submitting =
        shared.target.submit(request.generate, ConnectionOptions { recv_buffer_bytes });
    let outcome = match timeout_at(deadline, submitting).await {
        Err(_) => Err(timed_out(shared)),
        Ok(Err(failure)) => Err(failure),
        Ok(Ok(answer)) => {
            record.accepted_us = Some(shared.us(Instant::now()));
            receive(shared, answer, &mut record, request.turn_after, deadline).await
        }
    };
    record.outcome = outcome.unwrap_or_else(RequestOutcome::Failed);
    if record.outcome != RequestOutcome::Finished {
        record.ended_us = shared.us(Instant::now());
    }
    drop(permit);
    shared.handle_end(request.role);
    record
}

fn blank_record(
    shared: &RunShared,
    index: usize,
    request: &PlannedRequest,
    due: Instant,
    submitted: Instant,
) -> RequestRecord {
    RequestRecord {
        index,
        role: request.role,
        scheduled_us: shared.us(due),
        submitted_us: shared.us(submitted),
        accepted_us: None,
        chunks: Vec::new(),
        ended_us: 0,
        outcome: RequestOutcome::Left,
        max_tokens: request.generate.max_tokens,
        ignore_eos: request.generate.ignore_eos,
        text: String::new(),
        finish_reason: None,
        usage: None,
        timings: None,
        recounted_tokens: None,
        wire: Default::default(),
    }
}

fn timed_out(shared: &RunShared) -> RequestFailure {
    RequestFailure::new(FailureKind::Timeout, format!("not complete within {:?}", shared.timeout))
}

async fn receive(
    shared: &RunShared,
    mut answer: ArrivalStream,
    record: &mut RequestRecord,
    turn_after: usize,
    deadline: Instant,
) -> Result<RequestOutcome, RequestFailure> {
    loop {
        let Ok(next) = timeout_at(deadline, answer.next()).await else {
            return Err(timed_out(shared));
        };
        let Some(arrival) = next else {
            return Ok(RequestOutcome::Finished);
        };
        let had = record.chunks.len();
        take(shared, record, arrival?)?;
        // Crossing the threshold, not reaching it: a chunk may carry the count past it.
        let turned = had < turn_after && record.chunks.len() >= turn_after;
        match record.role {
            RequestRole::Leaver if turned => return Ok(RequestOutcome::Left),
            RequestRole::SlowReader if turned => stop_reading(shared, deadline).await?,
            _ => {}
        }
    }
}

/// Stops reading until the measured requests have ended.
async fn stop_reading(shared: &RunShared, deadline: Instant) -> Result<(), RequestFailure> {
    let mut done = shared.measured_done.subscribe();
    let waiting = done.wait_for(|&done| done);
    timeout_at(deadline, waiting).await.map_err(|_| timed_out(shared))?.ok();
    Ok(())
}

fn take(
    shared: &RunShared,
    record: &mut RequestRecord,
    arrival: Arrival,
) -> Result<(), RequestFailure> {
    record.wire = arrival.wire;
    record.ended_us = shared.us(arrival.at);
    let delta = arrival.delta;
    if !delta.text.is_empty() {
        let limit = MAX_TEXT_BYTES_PER_TOKEN * record.max_tokens as usize + 65_536;
        if record.text.len() + delta.text.len() > limit {
            let message =
                format!("more than {limit} bytes of text for {} tokens", record.max_tokens);
            return Err(RequestFailure::new(FailureKind::TooLarge, message));
        }
        let text_bytes = delta.text.len() as u32;
        record.chunks.push(ChunkMark { at_us: record.ended_us, text_bytes });
        record.text.push_str(&delta.text);
        shared.progress.chunks.fetch_add(1, Ordering::Relaxed);
    }
    record.finish_reason = delta.finish_reason.or(record.finish_reason.take());
    record.usage = delta.usage.or(record.usage);
    record.timings = delta.timings.or(record.timings.take());
    Ok(())
}
