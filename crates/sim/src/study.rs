//! Runs a plan: every case, scheme and session, in parallel, with reproducible results.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;

use crate::campaign;
use crate::check::{self, Violation};
use crate::metrics::{Smoothness, smoothness};
use crate::observer::{Sightings, bits_told};
use crate::plan::{Case, Metric, Plan, SchemeEntry};
use crate::rng::Draws;
use crate::scheme::DeliveryProgress;
use crate::world::{self, SessionTrace, Setting};

/// The metrics of one session.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SessionMetrics {
    /// Smoothness of the tokens as they become ready in order.
    pub ready: Smoothness,
    /// Smoothness as displayed by the client.
    pub shown: Smoothness,
    /// Half the round trip, which no scheme can save, in ms.
    half_rtt_ms: f64,
    redundancy: f64,
    wire_kb: f64,
    ack_kb: f64,
    suspended: bool,
    /// Packets as observed; empty unless the plan enables `observe`.
    #[serde(skip)]
    sightings: Sightings,
}

impl SessionMetrics {
    /// Returns one metric of the session.
    pub fn value(&self, metric: Metric) -> f64 {
        match metric {
            Metric::Full => self.ready.full,
            Metric::Excess => self.ready.excess,
            Metric::Late => self.ready.late,
            Metric::DelayMs => self.ready.delay_ms,
            Metric::ShownFull => self.shown.full,
            Metric::HoldMs => self.shown.delay_ms - self.ready.delay_ms,
            Metric::AddedMs => self.shown.delay_ms - self.half_rtt_ms,
            Metric::Redundancy => self.redundancy,
            Metric::WireKb => self.wire_kb,
            Metric::AckKb => self.ack_kb,
            Metric::Suspended => f64::from(u8::from(self.suspended)),
            Metric::TextBits | Metric::ChangeBits | Metric::RepeatBits | Metric::AckBits => {
                bits_told(&[&self.sightings], metric).0
            }
        }
    }
}

/// A session that broke a guarantee.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Name of the case.
    pub case: String,
    /// Name of the scheme.
    pub scheme: String,
    /// Number of the session in the plan.
    pub session: u32,
    /// The guarantee and how it was broken.
    pub violation: Violation,
}

/// All outcomes of a plan.
#[derive(Debug, Clone)]
pub struct Study {
    /// Outcomes by case, then scheme, then session.
    outcomes: Vec<SessionMetrics>,
    schemes: usize,
    sessions: usize,
    /// Broken guarantees, in the order of the plan.
    pub findings: Vec<Finding>,
    /// Virtual time simulated, in seconds.
    pub simulated_s: f64,
}

/// Receives the progress of a study.
pub trait ProgressReport: Sync {
    /// Reports `sessions` more finished sessions, with a total of `simulated_s` seconds of virtual
    /// time.
    fn advance(&self, sessions: u64, simulated_s: f64);
}

impl ProgressReport for () {
    fn advance(&self, _sessions: u64, _simulated_s: f64) {}
}

/// Returns the seed of a session. It depends on neither scheme nor case: cases that share a channel
/// share its losses, so that their difference has less variance.
pub fn session_seed(plan: &Plan, session: u32) -> u64 {
    Draws::new(plan.seed, "session").bits(u64::from(session))
}

/// Runs all of `plan` on `threads` threads. The number of threads does not change the result.
pub fn run(plan: &Plan, threads: usize, watch: &dyn ProgressReport) -> Study {
    let (schemes, sessions) = (plan.scheme.len(), plan.sessions as usize);
    let jobs = plan.case.len() * schemes * sessions;
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            // Relaxed: the number alone is shared; results are ordered by the join below.
            let job = next.fetch_add(1, Ordering::Relaxed);
            if job >= jobs {
                return done;
            }
            let result = run_job(plan, job);
            watch.advance(1, result.2);
            done.push((job, result));
        }
    };
    let mut done: Vec<_> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
        let join = |worker: std::thread::ScopedJoinHandle<'_, _>| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        workers.into_iter().flat_map(join).collect()
    });
    // In the plan's order, whichever thread was faster: sums of floats depend on it.
    done.sort_by_key(|(job, _)| *job);
    let mut study = Study {
        outcomes: Vec::with_capacity(jobs),
        schemes,
        sessions,
        findings: Vec::new(),
        simulated_s: 0.0,
    };
    for (_, (outcome, findings, simulated_s)) in done {
        study.outcomes.push(outcome);
        study.findings.extend(findings);
        study.simulated_s += simulated_s;
    }
    study
}

fn run_job(plan: &Plan, job: usize) -> (SessionMetrics, Vec<Finding>, f64) {
    let sessions = plan.sessions as usize;
    let session = (job % sessions) as u32;
    let entry = &plan.scheme[job / sessions % plan.scheme.len()];
    let case = &plan.case[job / sessions / plan.scheme.len()];
    with_setting(plan, case, entry, session, |setting| {
        let trace = world::run(&entry.send, setting);
        let findings = check::violations(&trace, entry.send.budget())
            .into_iter()
            .map(|violation| Finding {
                case: case.name.clone(),
                scheme: entry.label(),
                session,
                violation,
            })
            .collect();
        let simulated_s = trace.ended_us as f64 / 1e6;
        (judge(setting, trace), findings, simulated_s)
    })
}

/// Prepares session number `session` of a case and scheme and passes it to `then`.
pub fn with_setting<T>(
    plan: &Plan,
    case: &Case,
    entry: &SchemeEntry,
    session: u32,
    then: impl FnOnce(&Setting<'_>) -> T,
) -> T {
    let seed = session_seed(plan, session);
    let drawn = case.random.then(|| campaign::draw(seed));
    let (link, generator, reader) = match &drawn {
        Some((link, generator, reader)) => (link, generator, *reader),
        None => (&case.link, plan.generator(case), entry.reader),
    };
    then(&Setting {
        link,
        generator,
        text: plan.text(case),
        reader,
        length_us: (plan.seconds * 1e6) as u64,
        seed,
        observe: plan.observe,
    })
}

fn judge(setting: &Setting<'_>, trace: SessionTrace) -> SessionMetrics {
    let rtt_us = (setting.link.rtt_ms * 1e3) as u64;
    let seconds = setting.length_us as f64 / 1e6;
    let hidden_us = setting.reader.hidden_us();
    SessionMetrics {
        ready: smoothness(&trace.generated_us, &trace.ready_us, rtt_us, None),
        shown: smoothness(&trace.generated_us, &trace.shown_us, rtt_us, hidden_us),
        half_rtt_ms: setting.link.rtt_ms / 2.0,
        redundancy: trace.redundancy,
        wire_kb: trace.wire_bytes as f64 / 1e3 / seconds,
        ack_kb: trace.ack_bytes as f64 / 1e3 / seconds,
        suspended: trace.progress == DeliveryProgress::Suspended,
        sightings: trace.sightings,
    }
}

impl Study {
    /// Returns the sessions of one case and scheme.
    pub fn cell(&self, case: usize, scheme: usize) -> &[SessionMetrics] {
        let start = (case * self.schemes + scheme) * self.sessions;
        &self.outcomes[start..start + self.sessions]
    }

    /// Returns the mean of a metric and the half-width of its 95 % interval.
    pub fn mean(&self, case: usize, scheme: usize, metric: Metric) -> (f64, f64) {
        let cell = self.cell(case, scheme);
        if Metric::OBSERVED.contains(&metric) {
            let sightings: Vec<&Sightings> = cell.iter().map(|o| &o.sightings).collect();
            return bits_told(&sightings, metric);
        }
        let count = cell.len() as f64;
        let mean = cell.iter().map(|o| o.value(metric)).sum::<f64>() / count;
        let square = |outcome: &SessionMetrics| (outcome.value(metric) - mean).powi(2);
        let variance = cell.iter().map(square).sum::<f64>() / (count - 1.0).max(1.0);
        (mean, 1.96 * (variance / count).sqrt())
    }

    /// Returns the ratio of two schemes' means minus 1, with a 95 % interval by resampling sessions
    /// in pairs: both schemes met the same losses in each.
    pub fn change(&self, case: usize, of: usize, over: usize, metric: Metric) -> Change {
        let values = |scheme| -> Vec<f64> {
            let cell = self.cell(case, scheme).iter();
            cell.map(|outcome| outcome.value(metric)).collect()
        };
        let (of, over) = (values(of), values(over));
        let ratio = |pairs: &mut dyn Iterator<Item = usize>| {
            let (a, b) = pairs.fold((0.0, 0.0), |(a, b), i| (a + of[i], b + over[i]));
            a / b - 1.0
        };
        // A fixed seed: the interval must not change between two runs of the same plan.
        let mut stream = Draws::new(17, "bootstrap").stream();
        let mut resampled: Vec<f64> = (0..RESAMPLES)
            .map(|_| {
                let mut picks = (0..of.len()).map(|_| (stream.bits() % of.len() as u64) as usize);
                ratio(&mut picks)
            })
            .collect();
        resampled.sort_by(f64::total_cmp);
        Change {
            mean: ratio(&mut (0..of.len())),
            low: resampled[RESAMPLES / 40],
            high: resampled[RESAMPLES - 1 - RESAMPLES / 40],
        }
    }
}

/// Number of resamples of one interval. Chosen by hand: the 2.5 % tails then rest on 50 values
/// each.
const RESAMPLES: usize = 2_000;

/// A relative change and its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Change {
    /// Mean relative change: −0.7 is 70 % less.
    pub mean: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}
