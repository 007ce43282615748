//! Plays the bursts of a plan: a curve of each case and contender, and its largest burst.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;

use super::metric::QoeSummary;
use super::plan::QoePlan;
use super::world::{BurstSetting, play};
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
    /// Experience of the readers.
    #[serde(flatten)]
    pub summary: QoeSummary,
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
        if points.last().is_some_and(|last| last.summary.mean_qoe < ENDS_BELOW) {
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
        QoePoint { readers, batch_size, summary: QoeSummary::new(&outcome, plan.qoe) }
    };
    let mut points = plan.batch_sizes.iter().map(point);
    let first = points.next().expect("plans have batch sizes");
    points.fold(
        first,
        |best, next| if next.summary.mean_qoe > best.summary.mean_qoe { next } else { best },
    )
}

/// Searches the largest burst of mean QoE `qoe` between the last of `points` that has it and the
/// next, by bisection.
fn largest(points: &[QoePoint], qoe: f64, at: impl Fn(usize) -> QoePoint) -> Option<QoePoint> {
    let last = points.iter().rposition(|point| point.summary.mean_qoe >= qoe);
    let mut low = last.map(|last| points[last]);
    let next = last.map_or(0, |last| last + 1);
    let Some(mut high) = points.get(next).map(|next| next.readers) else { return low };
    while high - low.map_or(0, |low| low.readers) > 1 {
        let middle = at(low.map_or(0, |low| low.readers).midpoint(high));
        match middle.summary.mean_qoe >= qoe {
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
        let summary = QoeSummary { mean_qoe, ..QoeSummary::default() };
        QoePoint { readers, batch_size: 1, summary }
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
}
