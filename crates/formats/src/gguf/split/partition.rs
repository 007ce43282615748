//! Distributes layers over stages by cost.

use std::ops::Range;

/// Cuts `costs` into `parts` runs such that the greatest sum of a run is minimal.
///
/// Bisects that sum: a limit is feasible if filling the runs one after the other, in a single pass,
/// needs at most `parts` of them.
pub(super) fn partition(costs: &[u64], parts: usize) -> Vec<Range<u32>> {
    let most = costs.iter().copied().max().unwrap_or(0);
    let (mut low, mut high) = (most, costs.iter().sum());
    while low < high {
        let middle = low + (high - low) / 2;
        match cut(costs, parts, middle).len() <= parts {
            true => high = middle,
            false => low = middle + 1,
        }
    }
    cut(costs, parts, low)
}

/// A machine as a part of a pipeline.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct PipelinePart {
    /// Memory in bytes.
    pub room: u64,
    /// Read speed, in any unit that is the same for all.
    pub speed: f64,
}

/// Load of an item on a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PartLoad {
    /// Bytes read in a step.
    pub cost: u64,
    /// Bytes held.
    pub bytes: u64,
}

/// Cuts `loads` into a run for each of `parts`, in order, such that each part has room for its run
/// and the time of the slowest is minimal. `None` if there is no room.
pub(super) fn partition_for(loads: &[PartLoad], parts: &[PipelinePart]) -> Option<Vec<Range<u32>>> {
    let mut best = fill(loads, parts, f64::INFINITY)?;
    let slowest = parts.iter().map(|part| part.speed).fold(f64::INFINITY, f64::min);
    let all: u64 = loads.iter().map(|load| load.cost).sum();
    let (mut low, mut high) = (0.0, all as f64 / slowest);
    // So often halved, the limit is exact as far as anything here is.
    for _ in 0..64 {
        let middle = low + (high - low) / 2.0;
        match fill(loads, parts, middle) {
            Some(runs) => (best, high) = (runs, middle),
            None => low = middle,
        }
    }
    Some(best)
}

/// Gives each part a run for which it has room and that takes at most `limit`; `None` if no such
/// cut covers all items.
fn fill(loads: &[PartLoad], parts: &[PipelinePart], limit: f64) -> Option<Vec<Range<u32>>> {
    let mut reached = vec![false; loads.len() + 1];
    reached[0] = true;
    let mut starts = Vec::new();
    for part in parts {
        let begun = run_starts(part, loads, &reached, limit);
        reached = begun.iter().map(Option::is_some).collect();
        starts.push(begun);
    }
    let (mut runs, mut end) = (Vec::new(), loads.len());
    for begun in starts.iter().rev() {
        let start = begun[end]?;
        runs.push(start as u32..end as u32);
        end = start;
    }
    runs.reverse();
    Some(runs)
}

/// For each possible end of a run of `part` that starts at one of `reached`, returns the start.
fn run_starts(
    part: &PipelinePart,
    loads: &[PartLoad],
    reached: &[bool],
    limit: f64,
) -> Vec<Option<usize>> {
    let mut starts = vec![None; loads.len() + 1];
    // The longest run from `start` on ends at `end`, which only grows: one pass is enough.
    let (mut end, mut filled, mut cost, mut bytes) = (0, 0, 0u128, 0u128);
    for start in 0..loads.len() {
        while let Some(load) = loads.get(end) {
            let (more, held) = (cost + u128::from(load.cost), bytes + u128::from(load.bytes));
            if held > part.room.into() || more as f64 / part.speed > limit {
                break;
            }
            (cost, bytes, end) = (more, held, end + 1);
        }
        if end == start {
            // Not even this item fits: no run goes over it.
            end += 1;
            continue;
        }
        if reached[start] && filled < end {
            starts[filled.max(start) + 1..=end].fill(Some(start));
            filled = end;
        }
        cost -= u128::from(loads[start].cost);
        bytes -= u128::from(loads[start].bytes);
    }
    starts
}

/// Fills runs up to `limit`, leaving at least one item for every remaining run.
fn cut(costs: &[u64], parts: usize, limit: u64) -> Vec<Range<u32>> {
    let (mut runs, mut start, mut sum) = (Vec::new(), 0, 0u64);
    for (index, &cost) in costs.iter().enumerate() {
        let items_left = costs.len() - index;
        let runs_left = parts.saturating_sub(runs.len() + 1);
        if index > start && (sum + cost > limit || items_left <= runs_left) {
            runs.push(start as u32..index as u32);
            (start, sum) = (index, 0);
        }
        sum += cost;
    }
    runs.push(start as u32..costs.len() as u32);
    runs
}

#[cfg(test)]
mod tests {
    //! Partitions are complete and balanced; whole files are tested in `tests/llama/staged.rs`.
    use super::*;
    use proptest::prelude::*;

    /// Minimal time of the slowest part over all ways to cut.
    fn least_time(loads: &[PartLoad], parts: &[PipelinePart]) -> Option<f64> {
        let (part, others) = parts.split_first()?;
        let runs = (1..=loads.len() - others.len()).filter_map(|len| {
            let (run, rest) = loads.split_at(len);
            let fits = run.iter().map(|load| load.bytes).sum::<u64>() <= part.room;
            let own = run.iter().map(|load| load.cost).sum::<u64>() as f64 / part.speed;
            let rest = if others.is_empty() {
                rest.is_empty().then_some(0.0)
            } else {
                least_time(rest, others)
            };
            rest.filter(|_| fits).map(|rest| own.max(rest))
        });
        runs.min_by(f64::total_cmp)
    }

    proptest! {
        #[test]
        fn machines_of_any_size_and_speed_get_the_best_cut(
            loads in prop::collection::vec((1..50u64, 1..20u64), 4..12),
            parts in prop::collection::vec((1..90u64, 1..6u32), 1..5),
        ) {
            let loads: Vec<PartLoad> =
                loads.into_iter().map(|(cost, bytes)| PartLoad { cost, bytes }).collect();
            let parts: Vec<PipelinePart> = parts
                .into_iter()
                .map(|(room, speed)| PipelinePart { room, speed: speed.into() })
                .collect();
            let runs = partition_for(&loads, &parts);
            let least = least_time(&loads, &parts);
            prop_assert_eq!(runs.is_some(), least.is_some());
            let (Some(runs), Some(least)) = (runs, least) else { return Ok(()) };
            let times = runs.iter().zip(&parts).map(|(run, part)| {
                let run = &loads[run.start as usize..run.end as usize];
                run.iter().map(|load| load.cost).sum::<u64>() as f64 / part.speed
            });
            let time = times.fold(0.0, f64::max);
            prop_assert!((time - least).abs() < 1e-6 * least, "{time} for {least}");
        }

        #[test]
        fn a_partition_is_one_and_is_balanced(
            costs in prop::collection::vec(1..50u64, 1..40),
            parts in 1..9usize,
        ) {
            prop_assume!(parts <= costs.len());
            let runs = partition(&costs, parts);
            prop_assert_eq!(runs.len(), parts);
            let mut next = 0;
            for run in &runs {
                prop_assert_eq!(run.start, next);
                prop_assert!(run.end > run.start);
                next = run.end;
            }
            prop_assert_eq!(next as usize, costs.len());
            let items = |run: &Range<u32>| run.start as usize..run.end as usize;
            let sum = |run: &Range<u32>| costs[items(run)].iter().sum::<u64>();
            let worst = runs.iter().map(sum).max().unwrap();
            let most = costs.iter().copied().max().unwrap();
            let even = costs.iter().sum::<u64>().div_ceil(parts as u64);
            prop_assert!(worst <= even + most, "{worst} of {even} + {most}");
        }
    }
}
