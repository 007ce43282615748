//! Runs a fairness plan: every case with every company, several times, with a few trials in
//! parallel.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::bottleneck::{Bottleneck, TrialTimes};
use super::download::Downloads;
use super::figures::{StreamView, TrialStats};
use super::plan::{Company, FairnessCase, FairnessPlan};
use crate::delivery::metrics::StreamTrace;
use crate::delivery::plan::DeliveryScheme;
use crate::delivery::starts::Starts;
use crate::delivery::{serve, sse};

/// Port of the Loquent server.
const SERVE_PORT: u16 = 8080;
/// Time until the first token of a trial without token streams.
const LEAD: Duration = Duration::from_millis(500);
/// Tokens per allowed multi-token character of an answer. Long answers without any are rare with
/// the simulated engine.
const TOKENS_PER_MULTI_TOKEN: usize = 250;

/// A trial: the case's number, the company, and the run's number.
pub type TrialKey = (usize, Company, usize);

/// Runs the whole plan. Calls `tell` with a line of progress before each trial.
///
/// # Errors
/// If namespaces cannot be created, a server does not start, or a transfer breaks off.
pub fn run(
    plan: &FairnessPlan,
    tell: impl Fn(&str) + Sync,
) -> anyhow::Result<Vec<(TrialKey, TrialStats)>> {
    // Trials of a case with different companies stand beside each other: what the machine does
    // meanwhile meets all of them.
    let keys: Vec<TrialKey> = (0..plan.runs)
        .flat_map(|run| (0..plan.cases.len()).map(move |case| (case, run)))
        .flat_map(|(case, run)| Company::ALL.map(|company| (case, company, run)))
        .collect();
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let done = Mutex::new(Vec::new());
    let work = || -> anyhow::Result<()> {
        while !failed.load(Ordering::Relaxed) {
            let Some(&key) = keys.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
            tell(&describe(plan, key));
            // An answer that falls back to HTTP on a busy machine must not cost hours of trials.
            let again = |error| {
                tell(&format!("{}: {error:#}; tried once more", describe(plan, key)));
                trial(plan, key)
            };
            let figures = trial(plan, key)
                .or_else(again)
                .inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
            done.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push((key, figures));
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..plan.parallel).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })?;
    Ok(done.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()))
}

fn describe(plan: &FairnessPlan, (case, company, run): TrialKey) -> String {
    let FairnessCase { rate_kbps, queue_bytes, control } = plan.cases[case];
    let beside = match company {
        Company::Nothing => "nothing",
        Company::Events => "event streams",
        Company::Loquent => "Loquent",
    };
    let control = control.name();
    format!("{rate_kbps} kbit/s, queue {queue_bytes} B, {control} beside {beside}, run {run}")
}

/// Runs one trial.
///
/// # Errors
/// Same as [`run`].
pub fn trial(plan: &FairnessPlan, key: TrialKey) -> anyhow::Result<TrialStats> {
    let (case, company, run) = key;
    let case = &plan.cases[case];
    let bottleneck = Bottleneck::new(plan, case, run)?;
    // Connected before the trial, so that no handshake competes with what is measured.
    let downloads = Downloads::start(plan, case, run, &bottleneck)?;
    let traces = match company {
        Company::Nothing => {
            bottleneck.open(Instant::now() + LEAD);
            Vec::new()
        }
        Company::Events => streams(plan, plan.events, run, &bottleneck)?,
        Company::Loquent => streams(plan, DeliveryScheme::Loquent, run, &bottleneck)?,
    };
    let read = downloads.finish()?;
    let times = bottleneck.times().expect("the streams have opened the trial");
    let views = traces.iter().enumerate();
    let views = views.map(|(stream, trace)| view(plan, run, stream, trace, &times)).collect();
    let summary = bottleneck.finish()?;
    Ok(TrialStats::new(plan, &read, views, &summary))
}

fn streams(
    plan: &FairnessPlan,
    scheme: DeliveryScheme,
    run: usize,
    bottleneck: &Bottleneck,
) -> anyhow::Result<Vec<StreamTrace>> {
    let streams = plan.stream_plan(run, scheme);
    match scheme {
        DeliveryScheme::Cubic | DeliveryScheme::Bbr => {
            let starts = Starts::new(&streams).into();
            sse::run(&streams, scheme, bottleneck, &starts)
        }
        _ => {
            let tokens = streams.answer(0).tokens.len();
            let multi_token = tokens / TOKENS_PER_MULTI_TOKEN;
            let ran =
                serve::run_over(bottleneck, &streams, scheme, plan.rtt_ms, SERVE_PORT, multi_token);
            Ok(ran?.0)
        }
    }
}

/// Computes the figures of a stream within the measurement. Streams start one after the other
/// within the duration of one token, as [`Starts`] and the requests of [`serve`] do.
fn view(
    plan: &FairnessPlan,
    run: usize,
    stream: usize,
    trace: &StreamTrace,
    times: &TrialTimes,
) -> StreamView {
    let stagger = Duration::from_secs_f64(1.0 / plan.tokens_per_s / plan.streams as f64);
    let late_us = (stagger * stream as u32).as_micros() as u64;
    let since = |at: Instant| (at - times.start).as_micros() as u64 - late_us;
    // As planned: a full socket makes a server late, but not its reader less impatient.
    let planned_us = plan.stream_plan(run, plan.events).answer(stream).times_us;
    StreamView::new(&planned_us, &trace.ready_us, since(times.from)..since(times.to))
}
