//! Percentiles and the summary of a distribution.

use serde::Serialize;

/// The percentile `p` (0 to 1) of `sorted` by linear interpolation at (n − 1)p.
/// `None` when there are no samples.
pub fn percentile(sorted: &[f64], p: f64) -> Option<f64> {
    debug_assert!(sorted.is_sorted(), "percentiles need sorted samples");
    let place = sorted.len().checked_sub(1)? as f64 * p.clamp(0.0, 1.0);
    let (below, above) = (place.floor() as usize, place.ceil() as usize);
    let share = place - place.floor();
    Some(sorted[below] + (sorted[above] - sorted[below]) * share)
}

/// The median of `values`, which need not be sorted.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    percentile(&values, 0.5)
}

/// Sorted samples of one quantity.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// The sorted samples.
    pub fn sorted(&self) -> &[f64] {
        &self.0
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The arithmetic mean.
    pub fn mean(&self) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.0.iter().sum::<f64>() / self.0.len() as f64)
    }

    /// The percentile `p`, 0 to 1.
    pub fn percentile(&self, p: f64) -> Option<f64> {
        percentile(&self.0, p)
    }

    /// The largest sample.
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
        assert_eq!(percentile(&[7.0], 0.99), Some(7.0));
        assert_eq!(percentile(&[], 0.5), None);
    }

    #[test]
    fn median_sorts_first() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0]), Some(2.5));
    }

    proptest! {
        #[test]
        fn percentiles_are_ordered_and_within(values in proptest::collection::vec(-1e6f64..1e6, 1..50), p in 0f64..1.0, q in 0f64..1.0) {
            let samples: Samples = values.into_iter().collect();
            let at = |p| samples.percentile(p).unwrap();
            prop_assert!(at(p.min(q)) <= at(p.max(q)));
            prop_assert!(samples.sorted()[0] <= at(p) && at(p) <= samples.max().unwrap());
        }
    }
}
