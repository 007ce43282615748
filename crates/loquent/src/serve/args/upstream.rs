//! The flags for serving another server's answers.

use clap::Args;
use loquent_server::UpstreamConfig;

/// The upstream server, if there is one.
#[derive(Debug, Args)]
#[command(next_help_heading = "Upstream")]
pub(crate) struct UpstreamArgs {
    /// Forward requests to another OpenAI-compatible server instead of loading a model
    ///
    /// Works with vLLM, SGLang, llama-server, Ollama and others. Loquent delivers the upstream
    /// server's answers over QUIC, keeps them for resume and counts them in its metrics, as it
    /// does with those of its own engine.
    #[arg(long, env = "LOQUENT_UPSTREAM", value_name = "URL",
          conflicts_with_all = ["model", "hf", "simulate"])]
    upstream: Option<String>,
    /// API key for the upstream server [default: the client's key, unless this server checks
    /// keys itself]
    #[arg(long, env = "LOQUENT_UPSTREAM_API_KEY", hide_env_values = true, value_name = "KEY")]
    upstream_api_key: Option<String>,
}

impl UpstreamArgs {
    /// The upstream's options, if one is set. `keeps_keys`: this server checks its clients' keys
    /// itself, so they are not passed on.
    pub(crate) fn resolve(&self, keeps_keys: bool) -> Option<UpstreamConfig> {
        let url = self.upstream.clone()?;
        Some(UpstreamConfig { url, api_key: self.upstream_api_key.clone(), keeps_keys })
    }
}
