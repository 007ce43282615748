//! Outcomes of bursts, as a table and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use loquent_proto::printable::printable;
use loquent_sim::burst::{ContentRule, ReaderOutcome};
use loquent_sim::qoe::QoeSummary;
use loquent_sim::stats::percentile;
use serde_json::json;

use super::run::PlayedBurst;
use crate::BenchError;

/// QoE of a reader who is served well.
const GOOD_QOE: f64 = 0.95;

/// Results of the bursts that were played.
#[derive(Debug)]
pub struct BurstTable {
    content: ContentRule,
    bursts: Vec<PlayedBurst>,
}

impl BurstTable {
    /// Creates a table without bursts; `content` defines when readers are content.
    pub fn new(content: ContentRule) -> Self {
        Self { content, bursts: Vec::new() }
    }

    /// Adds a burst.
    pub fn add(&mut self, burst: PlayedBurst) {
        self.bursts.push(burst);
    }

    /// Returns the largest number of readers for which enough were content in each of its bursts.
    pub fn largest(&self) -> Option<usize> {
        let held = |readers: usize| {
            let mut same = self.bursts.iter().filter(|burst| burst.asked == readers);
            same.all(|burst| self.share(burst) >= self.content.readers_share)
        };
        self.bursts.iter().map(|burst| burst.asked).filter(|&readers| held(readers)).max()
    }

    /// Returns the share of a burst's readers that are content. A failed answer counts as not
    /// content.
    fn share(&self, burst: &PlayedBurst) -> f64 {
        // Outcomes are of those who were served, the share is of those who asked.
        let served = burst.readers.len() as f64;
        self.content.share(&burst.readers) * served / burst.asked as f64
    }

    /// Returns the experience of a burst's readers. A failed answer counts as a QoE of 0.
    fn experience(burst: &PlayedBurst) -> QoeSummary {
        let summary = QoeSummary::new(&burst.experience, GOOD_QOE);
        let served = burst.experience.len() as f64 / burst.asked as f64;
        let (mean_qoe, good_share) = (summary.mean_qoe * served, summary.good_share * served);
        QoeSummary { mean_qoe, good_share, ..summary }
    }

    /// Returns the causes of failed answers, each with its count.
    fn causes(&self) -> BTreeMap<String, usize> {
        let mut causes = BTreeMap::new();
        for cause in self.bursts.iter().flat_map(|burst| &burst.failures) {
            *causes.entry(cause.clone()).or_default() += 1;
        }
        causes
    }

    /// Renders the table for a terminal.
    pub fn text(&self) -> String {
        let mut out = format!(
            "{:>8} {:>8} {:>10} {:>10} {:>11} {:>11} {:>7} {:>8} {:>12}\n",
            "readers",
            "content",
            "TTFT p50",
            "TTFT p99",
            "stall mean",
            "stall p99",
            "failed",
            "QoE mean",
            "effective/s"
        );
        for burst in &self.bursts {
            let of = |value: fn(&ReaderOutcome) -> f64| {
                let mut all: Vec<f64> = burst.readers.iter().map(value).collect();
                all.sort_by(f64::total_cmp);
                all
            };
            let at = |sorted: &[f64], p| percentile(sorted, p).unwrap_or_default();
            let (ttft, stalls) = (of(|one| one.ttft_s), of(|one| one.stall_share * 100.0));
            let experience = Self::experience(burst);
            let mean = stalls.iter().sum::<f64>() / stalls.len().max(1) as f64;
            let _ = writeln!(
                out,
                "{:>8} {:>6.1} % {:>8.2} s {:>8.2} s {:>9.2} % {:>9.2} % {:>7} {:>8.3} {:>12.1}",
                burst.asked,
                self.share(burst) * 100.0,
                at(&ttft, 0.5),
                at(&ttft, 0.99),
                mean,
                at(&stalls, 0.99),
                burst.failures.len(),
                experience.mean_qoe,
                experience.effective_tokens_per_s,
            );
        }
        for (cause, count) in self.causes() {
            let _ = writeln!(out, "failed {count} times: {}", printable(&cause));
        }
        let _ = match self.largest() {
            Some(readers) => writeln!(out, "the largest burst with enough content: {readers}"),
            None => writeln!(out, "no burst with enough content"),
        };
        out
    }

    /// Writes everything as JSON to `path`.
    ///
    /// # Errors
    /// [`BenchError::Output`].
    pub fn write(&self, path: &Path) -> Result<(), BenchError> {
        let experience: Vec<QoeSummary> = self.bursts.iter().map(Self::experience).collect();
        let all = json!({
            "content": self.content,
            "bursts": self.bursts,
            "experience": experience,
            "largest": self.largest(),
        });
        std::fs::write(path, format!("{all:#}\n")).map_err(|error| BenchError::Output {
            path: path.to_owned(),
            reason: error.to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use loquent_sim::qoe::ReaderQoe;

    use super::*;

    fn experience(ttft_s: f64) -> ReaderQoe {
        ReaderQoe { qoe: 1.0, ttft_s, effective_tokens: 20.0, last_s: 10.0 }
    }

    fn burst(asked: usize, served: usize, content: usize) -> PlayedBurst {
        let ttft_s = |at: usize| if at < content { 1.0 } else { 3.0 };
        let reader = |at: usize| ReaderOutcome { ttft_s: ttft_s(at), stall_share: 0.0 };
        let failures = vec!["it broke".to_owned(); asked - served];
        let experience = (0..served).map(|at| experience(ttft_s(at))).collect();
        PlayedBurst { asked, readers: (0..served).map(reader).collect(), experience, failures }
    }

    #[test]
    fn the_worst_of_equal_bursts_counts_and_failures_are_not_content() {
        let content = ContentRule { ttft_s: 2.0, stall_share: 0.01, readers_share: 0.9 };
        let mut table = BurstTable::new(content);
        assert_eq!(table.largest(), None);
        for (asked, served, good) in [(10, 10, 9), (20, 20, 20), (20, 20, 17), (30, 25, 25)] {
            table.add(burst(asked, served, good));
        }
        assert_eq!(table.largest(), Some(10));
        let text = table.text();
        assert!(text.contains("      30   83.3 %"), "{text}");
        assert!(text.contains("       5    0.833         50.0"), "{text}");
        assert!(text.contains("failed 5 times: it broke\n"), "{text}");
        assert!(text.ends_with("content: 10\n"), "{text}");
    }
}
