//! The flags that limit the number of waiting requests.

use std::time::Duration;

use anyhow::Context;
use clap::Args;
use loquent_infer::admission::Bounds;

/// Limits on the number and the wait of admitted requests.
#[derive(Debug, Args)]
#[command(next_help_heading = "Admission")]
pub(crate) struct AdmissionArgs {
    /// Maximum number of completions running and waiting; beyond it, requests get 429 with
    /// Retry-After
    #[arg(long, env = "LOQUENT_MAX_INFLIGHT_REQUESTS", default_value_t = 256, value_name = "N")]
    max_inflight_requests: usize,
    /// Maximum number of them per API key, or per address without keys [default: three times the
    /// places that stay free, so that others find one]
    #[arg(long, env = "LOQUENT_MAX_INFLIGHT_PER_KEY", value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..))]
    max_inflight_per_key: Option<u32>,
    /// Maximum number of prompt tokens waiting, of which an API key, or an address without keys,
    /// may have three times what stays free; beyond it, requests get 429 with Retry-After
    #[arg(long, env = "LOQUENT_MAX_QUEUED_TOKENS", default_value_t = 262_144, value_name = "N")]
    max_queued_tokens: usize,
    /// Maximum time in seconds that a request may wait to start [default: no limit]
    #[arg(long, env = "LOQUENT_QUEUE_TIMEOUT_S", value_name = "S")]
    queue_timeout_s: Option<f64>,
    /// Maximum number of prompts tokenized at the same time
    #[arg(long, env = "LOQUENT_TOKENIZE_WORKERS", default_value_t = 2, value_name = "N")]
    pub(super) tokenize_workers: usize,
}

impl AdmissionArgs {
    pub(super) fn bounds(&self) -> Bounds {
        Bounds {
            max_inflight_requests: self.max_inflight_requests,
            max_inflight_per_tenant: self.max_inflight_per_key.map(|most| most as usize),
            max_queued_tokens: self.max_queued_tokens,
        }
    }

    /// # Errors
    /// If the time is negative or too large for a duration.
    pub(super) fn queue_timeout(&self) -> anyhow::Result<Option<Duration>> {
        let timeout = self.queue_timeout_s.map(Duration::try_from_secs_f64);
        timeout.transpose().context("--queue-timeout-s")
    }
}
