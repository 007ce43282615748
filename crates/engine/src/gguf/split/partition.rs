//! Distributing layers over stages by cost.

use std::ops::Range;

/// Cuts `costs` into `parts` runs such that the greatest sum of a run is least.
///
/// Bisects that sum: whether runs below a limit are enough is found by filling one after the
/// other, which takes one pass.
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

/// Fills runs up to `limit`, leaving at least one item for every run still to come.
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

    proptest! {
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
