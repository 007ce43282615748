//! The flags for serving the answers of other servers.

use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{bail, ensure};
use clap::{ArgGroup, Args, ValueEnum};
use loquent_server::{PoolConfig, Routing, UpstreamConfig, UpstreamRoute};

use crate::config::REPLACEMENTS;

/// Maximum length of a model's name, which is part of every request and of metrics.
const MAX_NAME_CHARS: usize = 256;

/// The upstream servers, if there are any.
#[derive(Debug, Args)]
#[command(
    next_help_heading = "Upstream",
    group(ArgGroup::new(REPLACEMENTS).args(["upstream"]).multiple(true))
)]
pub(crate) struct UpstreamArgs {
    /// Forward requests to another OpenAI-compatible server instead of loading a model; with
    /// NAME=, those for the model NAME, to any of several servers; repeat the flag for several
    /// names
    ///
    /// Works with vLLM, SGLang, llama-server, Ollama and others. Loquent delivers the upstream
    /// servers' answers over QUIC, keeps them for resume and counts them in its metrics, as it
    /// does with those of its own engine. Several URLs, separated by commas, are servers with the
    /// same model: their health is checked, and a request whose answer has not begun goes on to
    /// another one. In the environment, ';' separates several names.
    #[arg(long, env = "LOQUENT_UPSTREAM", value_name = "[NAME=]URL[,URL…]", value_delimiter = ';')]
    upstream: Vec<UpstreamAddress>,
    /// API key for the upstream servers, or those of NAME; clients then need a key of this server
    /// (--api-key), or none with --open [default: the client's key, unless this server checks
    /// keys itself]
    #[arg(
        long,
        env = "LOQUENT_UPSTREAM_API_KEY",
        hide_env_values = true,
        value_name = "[NAME=]KEY"
    )]
    upstream_api_key: Vec<String>,
    /// Models that answer for NAME while none of its servers can, in this order; the last one may
    /// be a model of this server
    #[arg(
        long,
        env = "LOQUENT_UPSTREAM_FALLBACK",
        value_name = "NAME=OTHER[,OTHER…]",
        value_delimiter = ';'
    )]
    upstream_fallback: Vec<FallbackChain>,
    /// Which of several servers gets a request
    #[arg(long, env = "LOQUENT_UPSTREAM_ROUTING", default_value = "prefix", value_name = "HOW")]
    upstream_routing: RoutingChoice,
    /// Completions that one upstream server gets at a time; further ones wait here, and get their
    /// turn by fair shares as they do for a model of this process [default: no limit, they wait
    /// at the servers]
    #[arg(long, env = "LOQUENT_UPSTREAM_MAX_RUNNING", value_name = "N")]
    upstream_max_running: Option<NonZeroU32>,
    /// Serve everybody who can reach --host, and let them use --upstream-api-key, where there is
    /// no --api-key
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
    /// Seconds that an upstream server may be silent before it responds and within its response
    #[arg(long, env = "LOQUENT_UPSTREAM_TIMEOUT_S", default_value = "600", value_name = "S")]
    upstream_timeout_s: NonZeroU32,
}

/// Method of choosing one of several servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RoutingChoice {
    /// The one that has the prompt's beginning in its cache, unless it has more than its part to do
    Prefix,
    /// The one with least to do
    LeastLoaded,
    /// Each in its turn
    RoundRobin,
}

/// Servers with one model, and optionally its name.
#[derive(Debug, Clone, PartialEq, Eq)]
struct UpstreamAddress {
    name: Option<String>,
    urls: Vec<String>,
}

impl FromStr for UpstreamAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, urls) = match text.split_once('=') {
            Some((name, urls)) if !name.contains("://") => (Some(read_name(name)?), urls),
            _ => (None, text),
        };
        let urls: Vec<String> = urls.split(',').map(|url| url.trim().to_owned()).collect();
        if urls.iter().any(String::is_empty) {
            return Err(
                "give URLs separated by commas, such as big=http://a:8000,http://b:8000".into()
            );
        }
        Ok(Self { name, urls })
    }
}

/// A model, and the models that answer in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FallbackChain {
    name: String,
    others: Vec<String>,
}

impl FromStr for FallbackChain {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, others) = text.split_once('=').ok_or("give NAME=OTHER[,OTHER…]")?;
        let others = others.split(',').map(read_name).collect::<Result<_, _>>()?;
        Ok(Self { name: read_name(name)?, others })
    }
}

/// Parses a model's name; rejects characters that separate names.
fn read_name(text: &str) -> Result<String, String> {
    let name = text.trim();
    let is_odd = |c: char| c.is_control() || matches!(c, ',' | ';' | '=');
    if name.is_empty() || name.chars().count() > MAX_NAME_CHARS || name.contains(is_odd) {
        return Err(format!(
            "a model's name has 1 to {MAX_NAME_CHARS} characters, and no ',', ';' or '='"
        ));
    }
    Ok(name.to_owned())
}

impl UpstreamArgs {
    /// Returns true if there are no upstreams.
    pub(crate) fn is_empty(&self) -> bool {
        self.upstream.is_empty()
    }

    /// Returns true if the operator wants to serve everybody.
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// Returns true if an upstream answers in place of a model of this process.
    pub(crate) fn replaces_model(&self) -> bool {
        self.upstream.iter().any(|upstream| upstream.name.is_none())
    }

    /// Returns the options of the upstreams, in the order of the flags. With `keeps_keys`, this
    /// server checks its clients' keys itself, so they are not passed on.
    ///
    /// # Errors
    /// If everybody could spend the upstream's key without --open, or names contradict each other.
    pub(crate) fn resolve(&self, keeps_keys: bool) -> anyhow::Result<Vec<UpstreamConfig>> {
        if self.upstream.is_empty() {
            return Ok(Vec::new());
        }
        self.check_names()?;
        ensure!(
            self.keys().next().is_none() || keeps_keys || self.open,
            "with --upstream-api-key, everybody who reaches this server would use that key; set \
             --api-key for its clients, or --open if that is what you want"
        );
        Ok(self.upstream.iter().map(|upstream| self.options(upstream, keeps_keys)).collect())
    }

    fn options(&self, upstream: &UpstreamAddress, keeps_keys: bool) -> UpstreamConfig {
        let UpstreamAddress { name, urls } = upstream.clone();
        let chain = |chain: &&FallbackChain| Some(&chain.name) == name.as_ref();
        let fallbacks = self.upstream_fallback.iter().find(chain);
        UpstreamConfig {
            fallbacks: fallbacks.map(|chain| chain.others.clone()).unwrap_or_default(),
            pool: PoolConfig {
                api_key: self.key_for(name.as_deref()),
                name,
                urls,
                routing: self.upstream_routing.into(),
                keeps_keys,
                silence_limit: Duration::from_secs(self.upstream_timeout_s.get().into()),
                max_running: self.upstream_max_running.map(|limit| limit.get().into()),
            },
            routes: self.upstream_route.clone(),
        }
    }

    fn check_names(&self) -> anyhow::Result<()> {
        let names: Vec<_> = self.upstream.iter().map(|upstream| upstream.name.as_deref()).collect();
        if names.contains(&None) && names.len() > 1 {
            bail!(
                "with several --upstream, each needs a name: --upstream NAME=URL. Servers with \
                 the same model stand behind one name, separated by commas."
            );
        }
        for (at, name) in names.iter().enumerate() {
            let name = name.unwrap_or_default();
            ensure!(!names[..at].contains(&Some(name)), "--upstream {name}=… is given twice");
        }
        for FallbackChain { name, others } in &self.upstream_fallback {
            ensure!(
                names.contains(&Some(name)),
                "--upstream-fallback {name}=…: there is no --upstream {name}=…"
            );
            ensure!(!others.contains(name), "--upstream-fallback {name}: it names itself");
        }
        Ok(())
    }

    /// Returns the keys as typed. Compose files set variables without a value to an empty string.
    fn keys(&self) -> impl Iterator<Item = &str> {
        self.upstream_api_key.iter().map(|key| key.trim()).filter(|key| !key.is_empty())
    }

    /// Returns the key for the upstream `name`: its own, or the one without a name.
    fn key_for(&self, name: Option<&str>) -> Option<String> {
        let names = || self.upstream.iter().filter_map(|upstream| upstream.name.as_deref());
        // A key may have '=' in it too.
        let split = |key| {
            let (of, key): (&str, &str) = str::split_once(key, '=')?;
            names().any(|name| name == of).then_some((of, key))
        };
        let own = self.keys().filter_map(split).find(|(of, _)| Some(*of) == name);
        let all = || self.keys().find(|key| split(key).is_none());
        own.map(|(_, key)| key).or_else(all).map(str::to_owned)
    }
}

impl From<RoutingChoice> for Routing {
    fn from(choice: RoutingChoice) -> Self {
        match choice {
            RoutingChoice::Prefix => Self::Prefix,
            RoutingChoice::LeastLoaded => Self::LeastLoaded,
            RoutingChoice::RoundRobin => Self::RoundRobin,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        upstream: UpstreamArgs,
    }

    fn read(flags: &[&str], keeps_keys: bool) -> anyhow::Result<Vec<UpstreamConfig>> {
        Line::try_parse_from(["x"].iter().chain(flags))?.upstream.resolve(keeps_keys)
    }

    #[test]
    fn the_operators_key_is_not_everybodys() {
        let read = |flags: &[&str], keeps_keys| {
            let flags = [&["--upstream", "http://h:1"], flags].concat();
            read(&flags, keeps_keys).map(|mut all| all.remove(0))
        };
        let error = read(&["--upstream-api-key", "k"], false).unwrap_err().to_string();
        assert!(error.contains("--api-key") && error.contains("--open"), "{error}");
        let with_keys = read(&["--upstream-api-key", "k"], true).unwrap();
        assert_eq!(with_keys.pool.api_key.as_deref(), Some("k"));
        assert!(read(&["--upstream-api-key", "k", "--open"], false).is_ok());
        assert_eq!(read(&["--upstream-api-key", " "], false).unwrap().pool.api_key, None);
        let routes = read(&["--upstream-route", "GET /v1/files/*,POST /x"], true).unwrap();
        assert_eq!(routes.routes.len(), 2);
    }

    #[test]
    fn names_have_servers_keys_and_fallbacks_of_their_own() {
        let flags = "--upstream big=http://a:1,http://b:1/v1 --upstream small=http://c:1 \
                     --upstream-api-key all --upstream-api-key small=x=y --upstream-fallback \
                     big=small,local --open";
        let flags: Vec<&str> = flags.split_whitespace().collect();
        let all = read(&flags, false).unwrap();
        let [big, small] = &all[..] else { panic!("{all:?}") };
        assert_eq!(big.pool.urls, ["http://a:1", "http://b:1/v1"]);
        assert_eq!(big.pool.name.as_deref(), Some("big"));
        assert_eq!(big.fallbacks, ["small", "local"]);
        assert_eq!(small.fallbacks, [""; 0]);
        let keys = [big, small].map(|it| it.pool.api_key.as_deref());
        assert_eq!(keys, [Some("all"), Some("x=y")]);
        // A query is no name; the URL is refused later.
        assert_eq!(read(&["--upstream", "http://a/?x=y"], false).unwrap()[0].pool.name, None);
    }

    #[test]
    fn names_that_contradict_each_other_are_refused() {
        for (flags, words) in [
            ("--upstream http://a:1 --upstream http://b:1", "each needs a name"),
            ("--upstream a=http://a:1 --upstream http://b:1", "each needs a name"),
            ("--upstream a=http://a:1 --upstream a=http://b:1", "given twice"),
            ("--upstream a=http://a:1 --upstream-fallback b=a", "there is no --upstream b"),
            ("--upstream a=http://a:1 --upstream-fallback a=a", "names itself"),
            ("--upstream a=http://a:1,", "separated by commas"),
            ("--upstream =http://a:1", "a model's name"),
            ("--upstream a=http://a:1 --upstream-fallback a", "NAME=OTHER"),
        ] {
            let flags: Vec<&str> = flags.split(' ').collect();
            let error = read(&flags, false).unwrap_err().to_string();
            assert!(error.contains(words), "{flags:?}: {error}");
        }
    }
}
