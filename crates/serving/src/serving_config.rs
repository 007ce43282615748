//! Settings of a service.

use std::time::Duration;

use loquent_proto::coalesce::StreamInterval;

use crate::cache_domain::DomainSecret;

/// Settings for serving requests.
#[derive(Debug, Clone)]
pub struct ServingConfig {
    /// Stream interval of requests that do not set one.
    pub interval: StreamInterval,
    /// Maximum time tokens wait to be merged with later ones; `None` sets no limit.
    pub max_delay: Option<Duration>,
    /// True if a request for another model is an error. Otherwise this model answers it.
    pub strict_model: bool,
    /// True if all clients may reuse each other's cached prefixes; otherwise only their own.
    pub share_prefix_cache: bool,
    /// Secret from which the cache domains are made.
    pub domain_secret: DomainSecret,
    /// True if `<think>…</think>` is returned as `reasoning_content` instead of text.
    pub split_reasoning: bool,
    /// True if every stream ends with its token counts, even without `include_usage`.
    pub force_usage: bool,
    /// Seed of requests that set none; `None` draws a random one for each.
    pub seed: Option<u64>,
}

/// A chunk for each token, and reasoning apart from the text.
impl Default for ServingConfig {
    fn default() -> Self {
        Self {
            interval: StreamInterval::default(),
            max_delay: None,
            strict_model: false,
            share_prefix_cache: false,
            domain_secret: DomainSecret::default(),
            split_reasoning: true,
            force_usage: false,
            seed: None,
        }
    }
}
