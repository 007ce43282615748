//! The flags for serving another server's answers.

use std::num::NonZeroU32;
use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use loquent_server::{UpstreamConfig, UpstreamRoute};

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
    /// API key for the upstream server; clients then need a key of this server (--api-key), or
    /// none with --open [default: the client's key, unless this server checks keys itself]
    #[arg(long, env = "LOQUENT_UPSTREAM_API_KEY", hide_env_values = true, value_name = "KEY")]
    upstream_api_key: Option<String>,
    /// Let clients without a key of this server use --upstream-api-key
    #[arg(long, env = "LOQUENT_OPEN")]
    open: bool,
    /// Route of the upstream that clients may use beside completions, models, embeddings,
    /// responses, messages, rerank, score, tokenize and detokenize; repeat the flag for several
    ///
    /// A method and a path, such as 'POST /v1/audio/speech'. 'GET /v1/files/*' stands for all
    /// paths below /v1/files.
    #[arg(
        long,
        env = "LOQUENT_UPSTREAM_ROUTE",
        value_name = "METHOD /PATH",
        value_delimiter = ','
    )]
    upstream_route: Vec<UpstreamRoute>,
    /// Seconds that the upstream may be silent before it responds and within its response
    #[arg(long, env = "LOQUENT_UPSTREAM_TIMEOUT_S", default_value = "600", value_name = "S")]
    upstream_timeout_s: NonZeroU32,
}

impl UpstreamArgs {
    /// The upstream's options, if one is set. `keeps_keys`: this server checks its clients' keys
    /// itself, so they are not passed on.
    ///
    /// # Errors
    /// When everybody could spend the upstream's key without --open.
    pub(crate) fn resolve(&self, keeps_keys: bool) -> anyhow::Result<Option<UpstreamConfig>> {
        let Some(url) = self.upstream.clone() else { return Ok(None) };
        // Compose files set a variable to nothing where it has no value.
        let api_key = self.upstream_api_key.clone().filter(|key| !key.trim().is_empty());
        ensure!(
            api_key.is_none() || keeps_keys || self.open,
            "with --upstream-api-key, everybody who reaches this server would use that key; set \
             --api-key for its clients, or --open if that is what you want"
        );
        Ok(Some(UpstreamConfig {
            url,
            api_key,
            keeps_keys,
            routes: self.upstream_route.clone(),
            silence_limit: Duration::from_secs(self.upstream_timeout_s.get().into()),
        }))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::serve::args::SourceArgs;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        upstream: UpstreamArgs,
        // Holds the flags that those above conflict with.
        #[command(flatten)]
        _source: SourceArgs,
    }

    #[test]
    fn the_operators_key_is_not_everybodys() {
        let read = |flags: &[&str], keeps_keys| {
            let line = ["x", "--upstream", "http://h:1"].iter().chain(flags);
            Line::parse_from(line).upstream.resolve(keeps_keys)
        };
        let error = read(&["--upstream-api-key", "k"], false).unwrap_err().to_string();
        assert!(error.contains("--api-key") && error.contains("--open"), "{error}");
        let with_keys = read(&["--upstream-api-key", "k"], true).unwrap().unwrap();
        assert_eq!(with_keys.api_key.as_deref(), Some("k"));
        assert!(read(&["--upstream-api-key", "k", "--open"], false).is_ok());
        assert_eq!(read(&["--upstream-api-key", " "], false).unwrap().unwrap().api_key, None);
        let routes = read(&["--upstream-route", "GET /v1/files/*,POST /x"], true).unwrap().unwrap();
        assert_eq!(routes.routes.len(), 2);
    }
}
