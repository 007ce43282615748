//! Plans of bursts that are judged by quality of experience, as TOML.

use serde::{Deserialize, Serialize};

use super::metric::Expectation;
use crate::burst::{MAX_READERS, Machine, within};
use crate::channel::Channel;
use crate::plan::PlanError;
use crate::scheme::Scheme;

/// Bursts of answers on one machine, in several cases and by several contenders.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QoePlan {
    /// One-line title for tables and figures.
    pub title: String,
    /// Question that the plan answers, for its reader.
    #[serde(default)]
    pub about: String,
    /// Seed of the losses.
    pub seed: u64,
    /// Tokens of each answer.
    pub answer_tokens: u32,
    /// Round trip between server and readers.
    pub rtt_ms: f64,
    /// Time to the first token that readers expect.
    pub expected_ttft_s: f64,
    /// Digestion speed of the readers.
    pub expected_tokens_per_s: f64,
    /// Mean QoE of a burst that counts as served well, and QoE of a reader who is.
    pub qoe: f64,
    /// Time for which Andes predicts QoE.
    pub andes_horizon_s: f64,
    /// Batch sizes from which the best is chosen.
    pub batch_sizes: Vec<usize>,
    /// Sizes of bursts to play, ascending.
    pub readers: Vec<usize>,
    /// The machine.
    pub machine: Machine,
    /// The cases.
    pub case: Vec<QoeCase>,
    /// The contenders.
    pub contender: Vec<Contender>,
    /// Claims of the plan; every run checks them.
    #[serde(default)]
    pub claim: Vec<QoeClaim>,
}

/// Prompts and links of a burst.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QoeCase {
    /// Name in tables and figures.
    pub name: String,
    /// Tokens of each prompt.
    pub prompt_tokens: u32,
    /// Share of readers with a lossy link; the others lose nothing.
    pub lossy_share: f64,
    /// Losses on a lossy link, in both directions.
    #[serde(default = "clean")]
    pub channel: Channel,
}

fn clean() -> Channel {
    Channel::Clean
}

/// A policy of the server with a scheme of delivery.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contender {
    /// Name in tables and figures.
    pub name: String,
    /// Order in which requests are served.
    pub policy: QoePolicy,
    /// Delivery to the readers.
    pub send: Scheme,
}

/// Order in which requests are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QoePolicy {
    /// First come, first served, with chunked prefill as in vLLM: the server has no information
    /// about readers.
    FirstCome,
    /// The scheduler of Andes: the server models its readers.
    Andes,
    /// The reader who runs dry first is served first: acknowledgements tell the server what its
    /// readers have.
    ByNeed,
}

/// A statement about the largest bursts of a case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QoeClaim {
    /// Name of the case.
    pub case: String,
    /// Name of the contender with the larger burst.
    pub of: String,
    /// Name of the other contender.
    pub over: String,
    /// Minimum ratio of their largest bursts.
    pub ratio_at_least: f64,
}

impl QoePlan {
    /// Parses and checks the text of a plan; `name` is for messages.
    ///
    /// # Errors
    /// If it is not such a plan, or a part of it is out of range.
    pub fn parse(name: &str, text: &str) -> Result<Self, PlanError> {
        let plan: Self = toml::from_str(text).map_err(|source| PlanError::Parse {
            path: name.to_owned(),
            source: Box::new(source),
        })?;
        match plan.fault() {
            Some(fault) => Err(PlanError::Senseless(format!("{name}: {fault}"))),
            None => Ok(plan),
        }
    }

    /// Returns the expectation of all readers.
    pub fn expectation(&self) -> Expectation {
        Expectation { ttft_s: self.expected_ttft_s, tokens_per_s: self.expected_tokens_per_s }
    }

    fn fault(&self) -> Option<String> {
        within("answer_tokens", self.answer_tokens.into(), 1.0, 10_000.0)
            .or_else(|| within("rtt_ms", self.rtt_ms, 0.0, 10_000.0))
            .or_else(|| within("expected_ttft_s", self.expected_ttft_s, 0.0, 3_600.0))
            .or_else(|| within("expected_tokens_per_s", self.expected_tokens_per_s, 0.5, 50.0))
            .or_else(|| within("qoe", self.qoe, 0.01, 1.0))
            .or_else(|| within("andes_horizon_s", self.andes_horizon_s, 0.01, 3_600.0))
            .or_else(|| fault_of_sizes("batch_sizes", &self.batch_sizes))
            .or_else(|| fault_of_sizes("readers", &self.readers))
            .or_else(|| self.machine.fault())
            .or_else(|| self.case.is_empty().then(|| "there is no case".into()))
            .or_else(|| self.case.iter().find_map(QoeCase::fault))
            .or_else(|| self.contender.is_empty().then(|| "there is no contender".into()))
            .or_else(|| self.contender.iter().find_map(Contender::fault))
            .or_else(|| self.claim.iter().find_map(|claim| self.fault_of_claim(claim)))
    }

    fn fault_of_claim(&self, claim: &QoeClaim) -> Option<String> {
        let case = self.case.iter().any(|case| case.name == claim.case);
        let knows = |name: &String| self.contender.iter().any(|one| one.name == *name);
        let all = case && knows(&claim.of) && knows(&claim.over);
        (!all).then(|| format!("a claim is about {}, {} or {}", claim.case, claim.of, claim.over))
    }
}

impl QoeCase {
    fn fault(&self) -> Option<String> {
        within("prompt_tokens", self.prompt_tokens.into(), 1.0, 100_000.0)
            .or_else(|| within("lossy_share", self.lossy_share, 0.0, 1.0))
            .or_else(|| self.channel.fault())
    }

    /// Returns true if reader number `reader` has a lossy link; such readers are spread evenly.
    pub fn is_lossy(&self, reader: usize) -> bool {
        let up_to = |readers: usize| (readers as f64 * self.lossy_share).floor();
        up_to(reader + 1) > up_to(reader)
    }
}

impl Contender {
    fn fault(&self) -> Option<String> {
        let computed = matches!(self.send, Scheme::Oracle { .. });
        let blind = matches!(self.send, Scheme::Loquent { .. });
        if computed {
            return Some(format!("{}: the oracle is computed, not simulated", self.name));
        }
        if self.policy == QoePolicy::ByNeed && !blind {
            return Some(format!("{}: only Loquent's delivery tells what arrived", self.name));
        }
        self.send.fault()
    }
}

fn fault_of_sizes(name: &str, sizes: &[usize]) -> Option<String> {
    if sizes.is_empty() || !sizes.is_sorted_by(|one, next| one < next) {
        return Some(format!("{name} lacks ascending sizes"));
    }
    sizes.iter().find_map(|&size| within(name, size as f64, 1.0, MAX_READERS as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_out_of_range_are_refused() {
        let built_in = super::super::BUILT_IN;
        assert!(QoePlan::parse("qoe", built_in).is_ok());
        for (part, wrong, word) in [
            ("answer_tokens = 300", "answer_tokens = 0", "answer_tokens"),
            ("batch_sizes = [16, 32", "batch_sizes = [32, 16", "batch_sizes"),
            ("readers = [8, ", "readers = [0, ", "readers"),
            ("lossy_share = 0.334", "lossy_share = 1.5", "lossy_share"),
            ("decode_ms = [[1, ", "decode_ms = [[0, ", "decode_ms"),
            ("stay_good = 0.9", "stay_good = 9.0", "stay_good"),
            ("policy = \"first-come\"", "policy = \"by-need\"", "what arrived"),
            ("of = \"by need\"", "of = \"by greed\"", "a claim"),
        ] {
            assert!(built_in.contains(part), "{part}");
            let refused = QoePlan::parse("qoe", &built_in.replacen(part, wrong, 1));
            let message = refused.map(drop).unwrap_err().to_string();
            assert!(message.contains(word), "{wrong}: {message}");
        }
    }

    #[test]
    fn lossy_links_are_spread_evenly() {
        let plan = QoePlan::parse("qoe", super::super::BUILT_IN).expect("the plan parses");
        let third = plan.case.iter().find(|case| case.lossy_share > 0.3).expect("a third is lossy");
        let lossy: Vec<usize> = (0..10).filter(|&reader| third.is_lossy(reader)).collect();
        assert_eq!(lossy, [2, 5, 8]);
    }
}
