//! Send times of requests, as schedules fixed before the run begins.

use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand_distr::{Distribution, Gamma};
use serde::Serialize;

/// The spacing of open-loop arrivals.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Spacing {
    /// Equal gaps.
    Constant,
    /// A Poisson process: unscaled exponential gaps, so that the number of requests in an interval
    /// varies as it does with independent users.
    Poisson,
    /// Gamma-distributed gaps with this shape, scaled to the run's length: 1 has the gaps of a
    /// Poisson process, lower is burstier, higher is steadier. (vLLM calls it burstiness.)
    Gamma {
        /// The shape parameter, above 0.
        shape: f64,
    },
}

/// Rule for the send time of the next request.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pacing {
    /// All at once, or as soon as the concurrency limit allows.
    Burst,
    /// A fixed time after the previous request was sent; delays add up.
    Relative {
        /// The gap in seconds.
        interval_s: f64,
    },
    /// At i × interval after the start, even if earlier requests were late.
    Absolute {
        /// The gap in seconds.
        interval_s: f64,
    },
    /// At random times with a given mean rate, drawn before the run.
    Open {
        /// Requests per second.
        rate_per_s: f64,
        /// Distribution of the gaps.
        spacing: Spacing,
    },
}

impl Pacing {
    /// Returns the send times of `count` requests, relative to the start, if the pacing fixes them
    /// in advance. Equal seeds give equal times.
    pub fn offsets(self, count: usize, seed: u64) -> Option<Vec<Duration>> {
        match self {
            Pacing::Burst | Pacing::Relative { .. } => None,
            Pacing::Absolute { interval_s } => Some(constant(count, interval_s)),
            Pacing::Open { rate_per_s, spacing: Spacing::Constant } => {
                Some(constant(count, 1.0 / rate_per_s))
            }
            Pacing::Open { rate_per_s, spacing: Spacing::Poisson } => {
                Some(from_gaps(drawn(count, rate_per_s, 1.0, seed)))
            }
            Pacing::Open { rate_per_s, spacing: Spacing::Gamma { shape } } => {
                Some(gamma(count, rate_per_s, shape, seed))
            }
        }
    }
}

fn constant(count: usize, gap_s: f64) -> Vec<Duration> {
    (0..count).map(|i| Duration::from_secs_f64(i as f64 * gap_s)).collect()
}

/// Returns gaps with the mean 1/rate. The first is 0, the start of the run.
fn drawn(count: usize, rate_per_s: f64, shape: f64, seed: u64) -> Vec<f64> {
    let gaps = Gamma::new(shape, 1.0 / (rate_per_s * shape)).expect("the plan checked both");
    let mut rng = SmallRng::seed_from_u64(seed);
    (0..count).map(|at| if at == 0 { 0.0 } else { gaps.sample(&mut rng) }).collect()
}

fn from_gaps(gaps: Vec<f64>) -> Vec<Duration> {
    let times = gaps.into_iter().scan(0.0, |at_s, gap| {
        *at_s += gap;
        Some(Duration::from_secs_f64(*at_s))
    });
    times.collect()
}

/// Returns send times from gaps that are scaled so that the last request is sent at exactly (count
/// − 1)/rate, which keeps runs of different seeds comparable.
fn gamma(count: usize, rate_per_s: f64, shape: f64, seed: u64) -> Vec<Duration> {
    let gaps = drawn(count, rate_per_s, shape, seed);
    let total: f64 = gaps.iter().sum();
    let scale = if total > 0.0 { (gaps.len() - 1) as f64 / rate_per_s / total } else { 0.0 };
    from_gaps(gaps.into_iter().map(|gap| gap * scale).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(shape: f64) -> Pacing {
        Pacing::Open { rate_per_s: 50.0, spacing: Spacing::Gamma { shape } }
    }

    fn squared_variation(offsets: &[Duration]) -> f64 {
        let gaps: Vec<f64> =
            offsets.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        variance / (mean * mean)
    }

    #[test]
    fn absolute_times_are_multiples() {
        let offsets = Pacing::Absolute { interval_s: 0.02 }.offsets(64, 0).unwrap();
        assert_eq!(offsets.len(), 64);
        assert!(offsets[63].abs_diff(Duration::from_millis(1260)) < Duration::from_micros(1));
    }

    #[test]
    fn gamma_keeps_count_rate_and_seed() {
        for count in [0, 1, 2, 2001] {
            let offsets = open(1.0).offsets(count, 7).unwrap();
            assert_eq!(offsets.len(), count);
            assert!(offsets.is_sorted());
            assert_eq!(offsets, open(1.0).offsets(count, 7).unwrap());
        }
        let offsets = open(1.0).offsets(2001, 7).unwrap();
        assert!((offsets[2000].as_secs_f64() - 40.0).abs() < 1e-6);
        assert_ne!(offsets, open(1.0).offsets(2001, 8).unwrap());
    }

    #[test]
    fn a_poisson_process_varies_in_its_counts() {
        let pacing = Pacing::Open { rate_per_s: 50.0, spacing: Spacing::Poisson };
        let lasts = |seed| pacing.offsets(101, seed).unwrap()[100].as_secs_f64();
        let times: Vec<f64> = (0..400).map(lasts).collect();
        let mean = times.iter().sum::<f64>() / 400.0;
        let variance = times.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / 400.0;
        // 100 gaps of 20 ms: 2 s, with a standard deviation of a tenth of it.
        assert!((mean - 2.0).abs() < 0.05, "{mean}");
        assert!((0.15..0.25).contains(&variance.sqrt()), "{}", variance.sqrt());
    }

    #[test]
    fn shape_sets_the_burstiness() {
        // The squared coefficient of variation of a gamma distribution is 1/shape.
        for (shape, expected) in [(0.25, 4.0), (1.0, 1.0), (4.0, 0.25)] {
            let seen = squared_variation(&open(shape).offsets(20_001, 3).unwrap());
            assert!((seen / expected - 1.0).abs() < 0.15, "shape {shape}: {seen}");
        }
    }

    #[test]
    fn bursts_have_no_times() {
        assert_eq!(Pacing::Burst.offsets(3, 0), None);
    }
}
