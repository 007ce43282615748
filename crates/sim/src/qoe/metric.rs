//! Metrics of a reader's experience, as defined in the literature on text streaming.
//!
//! Quality of experience (QoE) is that of Andes (Liu et al., arXiv 2404.16283v2): the reader
//! expects the first token after a time (TTFT), and further ones at a digestion speed (TDS). Tokens
//! that arrive early wait in the client and are digested at that speed. QoE is one minus the area
//! between the expected curve of digested tokens and the actual one, as a share of the area below
//! the expected curve, up to the time when the last token is digested.
//!
//! Effective throughput is that of TokenFlow (Chen et al., arXiv 2510.02758v1, section 7.1.3):
//! tokens per second, each weighted by the reader's buffer at that moment. Both papers take the
//! time of generation; here it is the time of arrival at the reader.

use serde::Serialize;

use crate::stats::Samples;

/// Reader's expectation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Expectation {
    /// Expected time to the first token, in seconds.
    pub ttft_s: f64,
    /// Digestion speed.
    pub tokens_per_s: f64,
}

/// Experience of one reader.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ReaderQoe {
    /// Quality of experience, 0 to 1.
    pub qoe: f64,
    /// Time from the request to the first token at the reader, in seconds.
    pub ttft_s: f64,
    /// Tokens, weighted for the effective throughput.
    pub effective_tokens: f64,
    /// Time from the request to the last token at the reader, in seconds.
    pub last_s: f64,
}

/// Experience of all readers of a burst.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct QoeSummary {
    /// Mean QoE of the readers.
    pub mean_qoe: f64,
    /// Share of readers with at least the QoE that counts as served well.
    pub good_share: f64,
    /// Effective throughput: weighted tokens per second of all readers.
    pub effective_tokens_per_s: f64,
    /// 99th percentile of the time to the first token.
    pub ttft_p99_s: f64,
}

impl QoeSummary {
    /// Sums up `readers`; those with at least the QoE `good` are served well.
    pub fn new(readers: &[ReaderQoe], good: f64) -> Self {
        let count = readers.len().max(1) as f64;
        let took_s = readers.iter().map(|reader| reader.last_s).fold(f64::MIN_POSITIVE, f64::max);
        let effective: f64 = readers.iter().map(|reader| reader.effective_tokens).sum();
        let ttft: Samples = readers.iter().map(|reader| reader.ttft_s).collect();
        Self {
            mean_qoe: readers.iter().map(|reader| reader.qoe).sum::<f64>() / count,
            good_share: readers.iter().filter(|reader| reader.qoe >= good).count() as f64 / count,
            effective_tokens_per_s: effective / took_s,
            ttft_p99_s: ttft.percentile(0.99).unwrap_or_default(),
        }
    }
}

/// Buffer up to which a token counts in full, as a share of the answer.
const FULL_UP_TO: f64 = 0.1;
/// Buffer from which a token does not count, as a share of the answer.
const NOTHING_FROM: f64 = 0.2;

impl Expectation {
    /// Returns the time at which the reader expects to begin with token number `index`.
    pub fn due_s(&self, index: usize) -> f64 {
        self.ttft_s + index as f64 / self.tokens_per_s
    }

    /// Returns the experience of a reader to whom the tokens of an answer arrive at `arrivals_s`
    /// after the request. Tokens missing from the answer's `tokens` never arrive.
    pub fn experience(&self, arrivals_s: &[f64], tokens: usize) -> ReaderQoe {
        ReaderQoe {
            qoe: self.qoe(arrivals_s, tokens),
            ttft_s: arrivals_s.first().copied().unwrap_or(f64::INFINITY),
            effective_tokens: self.effective_tokens(arrivals_s, tokens),
            last_s: arrivals_s.last().copied().unwrap_or(f64::INFINITY),
        }
    }

    /// Returns the times at which the reader begins to digest the tokens that arrive at
    /// `arrivals_s`, in ascending order.
    pub fn digestion_s(&self, arrivals_s: &[f64]) -> Vec<f64> {
        let mut free_s = 0.0_f64;
        let begin = |&arrival_s: &f64| {
            let begins_s = free_s.max(arrival_s);
            free_s = begins_s + 1.0 / self.tokens_per_s;
            begins_s
        };
        arrivals_s.iter().map(begin).collect()
    }

    /// Returns the QoE, 0 to 1, of a reader to whom the tokens of an answer arrive at `arrivals_s`
    /// after the request. Tokens missing from the answer's `tokens` never arrive.
    pub fn qoe(&self, arrivals_s: &[f64], tokens: usize) -> f64 {
        if arrivals_s.len() < tokens {
            // The limit for missing tokens that arrive later and later.
            return arrivals_s.len() as f64 / tokens as f64;
        }
        let digestion_s = self.digestion_s(arrivals_s);
        let Some(last_s) = digestion_s.last() else { return 1.0 };
        let end_s = last_s + 1.0 / self.tokens_per_s;
        let each = || digestion_s.iter().enumerate();
        let delay: f64 = each().map(|(at, begins_s)| (begins_s - self.due_s(at)).max(0.0)).sum();
        let whole: f64 = each().map(|(at, _)| (end_s - self.due_s(at)).max(0.0)).sum();
        // Nothing is expected of an answer that is digested before its first token is due.
        if whole > 0.0 { 1.0 - delay / whole } else { 1.0 }
    }

    /// Returns the weighted number of tokens that count for the effective throughput.
    pub fn effective_tokens(&self, arrivals_s: &[f64], tokens: usize) -> f64 {
        let digestion_s = self.digestion_s(arrivals_s);
        let mut digested = 0;
        let mut weights = 0.0;
        for (before, &arrival_s) in arrivals_s.iter().enumerate() {
            while digested < before && digestion_s[digested] <= arrival_s {
                digested += 1;
            }
            let buffer = (before - digested) as f64 / tokens as f64;
            weights += ((NOTHING_FROM - buffer) / (NOTHING_FROM - FULL_UP_TO)).clamp(0.0, 1.0);
        }
        weights
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPECTED: Expectation = Expectation { ttft_s: 1.0, tokens_per_s: 10.0 };

    fn steady(first_s: f64, gap_s: f64) -> Vec<f64> {
        (0..100).map(|at| first_s + f64::from(at) * gap_s).collect()
    }

    fn assert_near(value: f64, expected: f64) {
        assert!((value - expected).abs() < 1e-9, "{value} instead of {expected}");
    }

    #[test]
    fn tokens_in_time_are_a_qoe_of_one() {
        assert_near(EXPECTED.qoe(&steady(1.0, 0.1), 100), 1.0);
        assert_near(EXPECTED.qoe(&steady(0.5, 0.1), 100), 1.0);
    }

    #[test]
    fn tokens_faster_than_they_are_read_are_no_better() {
        assert_near(EXPECTED.qoe(&steady(1.0, 0.01), 100), 1.0);
        assert_near(EXPECTED.qoe(&[0.2; 100], 100), 1.0);
        assert_near(EXPECTED.qoe(&[0.2], 1), 1.0);
    }

    #[test]
    fn nothing_is_a_qoe_of_zero_and_a_part_is_a_part() {
        assert_eq!(EXPECTED.qoe(&[], 100), 0.0);
        assert_eq!(EXPECTED.qoe(&steady(1.0, 0.1)[..25], 100), 0.25);
        assert_eq!(EXPECTED.qoe(&[], 0), 1.0);
    }

    #[test]
    fn all_at_the_end_tends_to_zero() {
        // Delay of 9 s for each; the area below the expected curve is that and a triangle.
        let triangle = (0..100).map(|at| f64::from(100 - at) * 0.1).sum::<f64>();
        let expected = 1.0 - 900.0 / (900.0 + triangle);
        assert_near(EXPECTED.qoe(&[10.0; 100], 100), expected);
        assert!(EXPECTED.qoe(&[10_000.0; 100], 100) < 0.001);
    }

    #[test]
    fn a_late_start_delays_everything_and_an_early_one_covers_a_stall() {
        let triangle = (0..100).map(|at| f64::from(100 - at) * 0.1).sum::<f64>();
        let late = EXPECTED.qoe(&steady(2.0, 0.1), 100);
        assert_near(late, 1.0 - 100.0 / (100.0 + triangle));
        let mut covered = steady(0.0, 0.1);
        covered[50..].iter_mut().for_each(|at| *at += 1.0);
        assert_near(EXPECTED.qoe(&covered, 100), 1.0);
        // A stall in the middle delays only what comes after it.
        let mut stalled = steady(1.0, 0.1);
        stalled[50..].iter_mut().for_each(|at| *at += 1.0);
        let half = EXPECTED.qoe(&stalled, 100);
        assert_near(half, 1.0 - 50.0 / (100.0 + triangle));
        assert!(late < half && half < 1.0);
    }

    #[test]
    fn a_burst_is_summed_up_by_its_readers() {
        let reader =
            |qoe, last_s| ReaderQoe { qoe, ttft_s: last_s, effective_tokens: 30.0, last_s };
        let summary = QoeSummary::new(&[reader(1.0, 2.0), reader(0.5, 3.0)], 0.95);
        assert_eq!((summary.mean_qoe, summary.good_share), (0.75, 0.5));
        assert_eq!(summary.effective_tokens_per_s, 20.0);
        assert_near(summary.ttft_p99_s, 2.99);
        assert_eq!(QoeSummary::new(&[], 0.95), QoeSummary::default());
    }

    #[test]
    fn only_tokens_that_are_soon_read_are_effective() {
        assert_near(EXPECTED.effective_tokens(&steady(5.0, 0.1), 100), 100.0);
        // Buffers of 0 to 10 count in full, those of 11 to 19 in falling part.
        assert_near(EXPECTED.effective_tokens(&[3.0; 100], 100), 11.0 + 4.5 + 1.0);
        assert_eq!(EXPECTED.effective_tokens(&[], 100), 0.0);
    }
}
