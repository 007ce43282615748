//! Percentiles: the single definition for the whole workspace.

use serde::Serialize;

/// Returns the percentile `p` (0 to 1) of `sorted`, interpolated linearly between the samples
/// around index (n − 1)p, as NumPy does by default. `None` without samples.
pub fn percentile(sorted: &[f64], p: f64) -> Option<f64> {
    debug_assert!(sorted.is_sorted(), "percentiles need sorted samples");
    let place = sorted.len().checked_sub(1)? as f64 * p.clamp(0.0, 1.0);
    let (below, above) = (place.floor() as usize, place.ceil() as usize);
    let share = place - place.floor();
    Some(sorted[below] + (sorted[above] - sorted[below]) * share)
}

/// Returns the median of `values`, which need not be sorted.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    percentile(&values, 0.5)
}

/// Sorted samples of one quantity.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// Returns all samples in ascending order.
    pub fn sorted(&self) -> &[f64] {
        &self.0
    }

    /// Returns true if there are no samples, and so no mean and no percentile.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the arithmetic mean, `None` without samples.
    pub fn mean(&self) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.0.iter().sum::<f64>() / self.0.len() as f64)
    }

    /// Returns the [`percentile`] `p`, 0 to 1.
    pub fn percentile(&self, p: f64) -> Option<f64> {
        percentile(&self.0, p)
    }

    /// Returns the largest sample, `None` without samples.
    pub fn max(&self) -> Option<f64> {
        self.0.last().copied()
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(samples: I) -> Self {
        let mut sorted: Vec<f64> = samples.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        Samples(sorted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn interpolates_at_n_minus_1_times_p() {
        let sorted = [10.0, 20.0, 30.0, 40.0];
        assert_eq!(percentile(&sorted, 0.5), Some(25.0));
        assert_eq!(percentile(&sorted, 0.9), Some(37.0));
        assert_eq!(percentile(&sorted, 1.0), Some(40.0));
    }

    #[test]
    fn ends_are_the_smallest_and_the_largest_sample() {
        let sorted = [1.0, 2.0, 8.0];
        assert_eq!((percentile(&sorted, 0.0), percentile(&sorted, 1.0)), (Some(1.0), Some(8.0)));
        // A share outside 0 to 1 is a slip of the caller's arithmetic, not of the samples.
        assert_eq!((percentile(&sorted, -0.1), percentile(&sorted, 1.1)), (Some(1.0), Some(8.0)));
    }

    #[test]
    fn one_sample_is_every_percentile_and_none_has_none() {
        for p in [0.0, 0.5, 0.99, 1.0] {
            assert_eq!(percentile(&[7.0], p), Some(7.0));
            assert_eq!(percentile(&[], p), None);
        }
    }

    #[test]
    fn ties_are_not_interpolated_apart() {
        let sorted = [1.0, 3.0, 3.0, 3.0, 9.0];
        for p in [0.25, 0.4, 0.5, 0.75] {
            assert_eq!(percentile(&sorted, p), Some(3.0), "p = {p}");
        }
        assert_eq!(percentile(&sorted, 0.875), Some(6.0));
    }

    #[test]
    fn median_sorts_first() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0]), Some(2.5));
        assert_eq!(median(Vec::new()), None);
    }

    proptest! {
        #[test]
        fn percentiles_are_ordered_and_within(
            values in proptest::collection::vec(-1e6f64..1e6, 1..50),
            p in 0f64..1.0,
            q in 0f64..1.0,
        ) {
            let samples: Samples = values.into_iter().collect();
            let at = |p| samples.percentile(p).unwrap();
            prop_assert!(at(p.min(q)) <= at(p.max(q)));
            prop_assert!(samples.sorted()[0] <= at(p) && at(p) <= samples.max().unwrap());
        }
    }
}
