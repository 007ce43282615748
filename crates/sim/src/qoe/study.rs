//! Plays the bursts of a plan: a curve of each case and contender, and its largest burst.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;

use super::plan::QoePlan;
use super::world::{BurstSetting, ReaderQoe, play};
use crate::stats::Samples;
use crate::study::ProgressReport;

/// Mean QoE at which a curve ends: larger bursts are worse still, and take longest to play.
const ENDS_BELOW: f64 = 0.8;

/// Outcome of one burst, with the best batch size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct QoePoint {
    /// Number of readers.
    pub readers: usize,
    /// Batch size with the highest mean QoE, the smallest if several are equal.
    pub batch_size: usize,
    /// Mean QoE of the readers.
    pub mean_qoe: f64,
    /// Share of readers whose QoE is at least that of the plan.
    pub good_share: f64,
    /// Effective throughput: weighted tokens per second of all readers.
    pub effective_tokens_per_s: f64,
    /// 99th percentile of the time to the first token.
    pub ttft_p99_s: f64,
}

/// Outcomes of one contender in one case, by number of readers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Curve {
    /// Index of the case in the plan.
    pub case: usize,
    /// Index of the contender in the plan.
    pub contender: usize,
    /// Bursts of the plan's sizes, until one is far below its QoE.
    pub points: Vec<QoePoint>,
    /// Largest burst whose mean QoE is at least that of the plan, if there is one.
    pub largest: Option<QoePoint>,
}

/// Returns the number of curves of `plan`.
pub fn plays(plan: &QoePlan) -> u64 {
    (plan.case.len() * plan.contender.len()) as u64
}

/// Plays `plan` on this number of threads, which does not change the result.
pub fn run(plan: &QoePlan, threads: usize, progress: &dyn ProgressReport) -> Vec<Curve> {
    let all = plays(plan) as usize;
    let next = AtomicUsize::new(0);
    let work = || {
        let mut curves = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= all {
                return curves;
            }
            curves.push(curve(plan, at / plan.contender.len(), at % plan.contender.len()));
            progress.advance(1, 0.0);
        }
    };
    let mut curves: Vec<Curve> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("no burst panics")).collect()
    });
    curves.sort_by_key(|curve| (curve.case, curve.contender));
    curves
}

fn curve(plan: &QoePlan, case: usize, contender: usize) -> Curve {
    let at = |readers| best(plan, case, contender, readers);
    let mut points = Vec::new();
    for &readers in &plan.readers {
        points.push(at(readers));
        if points.last().is_some_and(|last| last.mean_qoe < ENDS_BELOW) {
            break;
        }
    }
    let largest = largest(&points, plan.qoe, at);
    Curve { case, contender, points, largest }
}

/// Returns the burst with the batch size that suits this number of readers best.
fn best(plan: &QoePlan, case: usize, contender: usize, readers: usize) -> QoePoint {
    let (case, contender) = (&plan.case[case], &plan.contender[contender]);
    let point = |&batch_size: &usize| {
        let outcome = play(BurstSetting { plan, case, contender, batch_size, readers });
        summarize(plan, batch_size, &outcome)
    };
    let mut points = plan.batch_sizes.iter().map(point);
    let first = points.next().expect("plans have batch sizes");
    points.fold(first, |best, next| if next.mean_qoe > best.mean_qoe { next } else { best })
}

fn summarize(plan: &QoePlan, batch_size: usize, outcome: &[ReaderQoe]) -> QoePoint {
    let count = outcome.len() as f64;
    let took_s = outcome.iter().map(|reader| reader.last_s).fold(0.0, f64::max);
    let good = outcome.iter().filter(|reader| reader.qoe >= plan.qoe).count();
    let effective: f64 = outcome.iter().map(|reader| reader.effective_tokens).sum();
    let ttft: Samples = outcome.iter().map(|reader| reader.ttft_s).collect();
    QoePoint {
        readers: outcome.len(),
        batch_size,
        mean_qoe: outcome.iter().map(|reader| reader.qoe).sum::<f64>() / count,
        good_share: good as f64 / count,
        effective_tokens_per_s: effective / took_s,
        ttft_p99_s: ttft.percentile(0.99).unwrap_or_default(),
    }
}

/// Searches the largest burst of mean QoE `qoe` between the last of `points` that has it and the
/// next, by bisection.
fn largest(points: &[QoePoint], qoe: f64, at: impl Fn(usize) -> QoePoint) -> Option<QoePoint> {
    let last = points.iter().rposition(|point| point.mean_qoe >= qoe);
    let mut low = last.map(|last| points[last]);
    let next = last.map_or(0, |last| last + 1);
    let Some(mut high) = points.get(next).map(|next| next.readers) else { return low };
    while high - low.map_or(0, |low| low.readers) > 1 {
        let middle = at(low.map_or(0, |low| low.readers).midpoint(high));
        match middle.mean_qoe >= qoe {
            true => low = Some(middle),
            false => high = middle.readers,
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(readers: usize, mean_qoe: f64) -> QoePoint {
        QoePoint {
            readers,
            batch_size: 1,
            mean_qoe,
            good_share: 0.0,
            effective_tokens_per_s: 0.0,
            ttft_p99_s: 0.0,
        }
    }

    #[test]
    fn the_largest_burst_of_a_qoe_is_found_between_the_points() {
        let at = |readers: usize| point(readers, 1.0 - readers as f64 / 1_000.0);
        let points = [at(8), at(32), at(64)];
        assert_eq!(largest(&points, 0.95, at).map(|found| found.readers), Some(50));
        assert_eq!(largest(&points, 0.997, at).map(|found| found.readers), Some(3));
        assert_eq!(largest(&points, 0.9999, at), None);
        assert_eq!(largest(&points, 0.5, at).map(|found| found.readers), Some(64));
    }

    #[test]
    fn a_burst_is_summed_up_by_its_readers() {
        let plan = QoePlan::parse("qoe", super::super::BUILT_IN).expect("the plan parses");
        let reader = |qoe, last_s| ReaderQoe { qoe, ttft_s: last_s, effective_tokens: 30.0, last_s };
        let summary = summarize(&plan, 4, &[reader(1.0, 2.0), reader(0.5, 3.0)]);
        assert_eq!((summary.readers, summary.batch_size), (2, 4));
        assert_eq!((summary.mean_qoe, summary.good_share), (0.75, 0.5));
        assert_eq!(summary.effective_tokens_per_s, 20.0);
        assert!((summary.ttft_p99_s - 2.99).abs() < 1e-9);
    }
}
