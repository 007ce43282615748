//! The flags of `loquent serve` as typed, and the server options that they resolve to.

mod acme;
mod admission;
mod chat_format;
mod engine;
mod http;
mod keys;
mod models;
mod prefix_cache;
mod quic;
mod sampling;
mod source;
mod store;
mod streams;
mod upstream;

use clap::Args;
use loquent_server::{RequestLog, ServerConfig, ServiceConfig, ServingConfig, StreamBounds};

pub(crate) use self::admission::AdmissionArgs;
use self::chat_format::ChatFormatArgs;
#[cfg(feature = "llama")]
pub(crate) use self::engine::PREFILL_MAX_TOKENS;
pub(crate) use self::engine::{EngineArgs, KvLayout, Switch};
use self::http::HttpArgs;
use self::keys::KeyArgs;
pub(crate) use self::models::KeepArgs;
use self::prefix_cache::PrefixCacheArgs;
use self::quic::QuicArgs;
pub(crate) use self::sampling::SamplingArgs;
pub(crate) use self::source::SourceArgs;
use self::store::StoreArgs;
use self::streams::StreamArgs;
pub(crate) use self::streams::{SLOW_READER_TIMEOUT_S, STREAM_BUFFER_BYTES};
use self::upstream::UpstreamArgs;
use super::acme::AcmeKeeper;
use crate::trust::Fingerprint;

const EXAMPLES: &str = "\
Examples:
  loquent serve                                   the bundled model on http://127.0.0.1:8080
  loquent serve qwen.gguf -c 8192                 a GGUF file, with a context of 8,192 tokens
  loquent serve qwen3:0.6b                        a model by its name: `loquent list` shows yours
  loquent serve --hf Qwen/Qwen3-0.6B-GGUF:Q8_0    a model from the Hugging Face hub
  loquent serve -m small=a.gguf -m large=b.gguf   two models, loaded when requests name them
  loquent serve --host 0.0.0.0 --api-key secret   for other machines, protected by a key
  loquent serve --upstream big=http://a:8000,http://b:8000 --upstream small=http://c:8080
                                                  two models on servers that run elsewhere
  loquent serve -m qwen-entry.gguf --stages qwen-stage-1-of-2.gguf,second-machine:7070
                                                  a model cut by `loquent split`

  curl -N http://127.0.0.1:8080/v1/chat/completions -H 'content-type: application/json' \\
    -d '{\"stream\": true, \"messages\": [{\"role\": \"user\", \"content\": \"What is token streaming?\"}]}'

Exit status:
  0    after SIGTERM or Ctrl-C, once running answers have ended or --drain-timeout-s is over
  1    after an error, and after the engine has failed
  130  at once at a second Ctrl-C, 143 at a second SIGTERM";

/// Flags that `serve -h` lists, with their short forms; `--help` lists all.
const ESSENTIAL: [(&str, Option<char>); 18] = [
    ("wanted", None),
    ("model", None),
    ("hf", None),
    ("host", None),
    ("port", Some('p')),
    ("served_model_name", Some('a')),
    ("upstream", None),
    ("upstream_api_key", None),
    ("max_batch_size", None),
    ("context", Some('c')),
    ("threads", None),
    ("gpu_layers", None),
    ("stages", None),
    ("api_key", None),
    ("cors_origin", None),
    ("tls_cert", None),
    ("tls_key", None),
    ("tls_self_signed", None),
];

/// Gives an essential flag its short form, and hides any other from `-h`.
///
/// `-c` and `-p` are not declared with their flags, because `bench` shares `--context` and has its
/// own `-c`.
fn sort_by_audience(flag: clap::Arg) -> clap::Arg {
    match ESSENTIAL.iter().find(|(name, _)| flag.get_id() == *name) {
        Some((_, Some(short))) => flag.short(*short),
        Some((_, None)) => flag,
        None => flag.hide_short_help(true),
    }
}

/// Arguments of `loquent serve`. The environment variable of a flag is `LOQUENT_` and its name.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, mut_args(sort_by_audience))]
pub struct ServeArgs {
    #[command(flatten)]
    pub(crate) source: SourceArgs,

    /// Address to listen on; 0.0.0.0 or :: for all interfaces
    #[arg(long, env = "LOQUENT_HOST", default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// TCP port to listen on; 0 picks a free one
    #[arg(long, env = "LOQUENT_PORT", default_value_t = 8080)]
    pub(crate) port: u16,
    /// Name of the model in the API [default: the name of its file]
    #[arg(long, alias = "alias", env = "LOQUENT_SERVED_MODEL_NAME", value_name = "NAME")]
    pub(crate) served_model_name: Option<String>,
    /// Reject requests that name another model with 404; without this flag the served model
    /// answers them
    #[arg(long, env = "LOQUENT_STRICT_MODEL")]
    strict_model: bool,

    /// OpenTelemetry collector that receives a trace of each request [default: none]
    ///
    /// The protocol is OTLP over HTTP; an example is http://127.0.0.1:4318.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    otlp_endpoint: Option<String>,

    /// Do not log a line for each request
    ///
    /// A line has the key's name, the model, counts, times, the transport and the end, and never
    /// what was asked or answered.
    #[arg(long, env = "LOQUENT_NO_REQUEST_LOG")]
    pub(crate) no_request_log: bool,

    #[command(flatten)]
    pub(crate) keep: KeepArgs,
    #[command(flatten)]
    pub(crate) upstream: UpstreamArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) prefix_cache: PrefixCacheArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) chat_format: ChatFormatArgs,
    #[command(flatten)]
    streams: StreamArgs,
    #[command(flatten)]
    keys: KeyArgs,
    #[command(flatten)]
    admission: AdmissionArgs,
    #[command(flatten)]
    pub(crate) http: HttpArgs,
    #[command(flatten)]
    quic: QuicArgs,
    #[command(flatten)]
    store: StoreArgs,
}

impl ServeArgs {
    /// Returns true if no model is chosen, so that the bundled one is served.
    pub(crate) fn is_demonstration(&self) -> bool {
        self.source.is_demonstration() && self.source.file.folder().is_none()
    }

    /// Returns true if a model of this process is served: a named one, or the bundled one if there
    /// is no upstream.
    ///
    /// # Errors
    /// If an upstream without a name is combined with a model.
    pub(crate) fn serves_model(&self) -> anyhow::Result<bool> {
        // The variable may be there for `list` and `run`: it forbids no servers.
        let gives_way = self.source.is_demonstration() && self.source.file.has_standing_folder();
        if gives_way && self.upstream.replaces_model() {
            return Ok(false);
        }
        let is_named = !self.is_demonstration();
        anyhow::ensure!(
            !(is_named && self.upstream.replaces_model()),
            "an --upstream without a name cannot be used with a model of this process, because \
             requests could not say which they mean: name it, as in --upstream big=http://HOST:8000"
        );
        Ok(is_named || self.upstream.is_empty())
    }

    /// Returns the keeper of a certificate by ACME, if one is wanted.
    ///
    /// # Errors
    /// If a flag has a value that cannot be used, or no certificate can be kept.
    pub(crate) fn acme(&self) -> anyhow::Result<Option<AcmeKeeper>> {
        self.quic.acme()
    }

    /// Returns the server's options, with the certificate of `acme` if there is one.
    ///
    /// # Errors
    /// If the key file or the folder of cached prefixes cannot be read, or a duration is out of
    /// range.
    pub(crate) fn resolve(&self, acme: Option<&AcmeKeeper>) -> anyhow::Result<ServerConfig> {
        let streams = self.streams.bounds();
        // Compose files set a variable to nothing where it has no value.
        let otlp_endpoint = self.otlp_endpoint.clone().filter(|url| !url.is_empty());
        let mut serving = self.streams.serving(self.strict_model, self.keys.share_prefix_cache);
        serving.seed = self.sampling.seed;
        let prefix_store = self.prefix_cache.open(&self.engine)?;
        if let Some(store) = &prefix_store {
            serving.domain_secret = store.secret();
        }
        let mut http = self.http.resolve(&self.keys, &self.streams)?;
        let https = self.quic.https(&self.host, acme)?;
        let fingerprint = self.quic.fingerprint(https.as_ref())?;
        http.https_certificate_sha256 = fingerprint.map(|Fingerprint(sha256)| sha256);
        let (engine, admission) = (&self.engine, &self.admission);
        let service = service_options(engine, admission, streams, serving, otlp_endpoint)?;
        Ok(ServerConfig {
            service: ServiceConfig { prefix_store, ..service },
            kept: self.quic.kept_answers(streams, self.admission.bounds().max_inflight_requests),
            store: self.store.resolve(!http.api_keys.is_empty()),
            quic: self.quic.resolve(&self.host, &self.http, acme),
            upstreams: Vec::new(),
            https,
            tcp: self.http.tcp(streams.stall_limit),
            drain_limit: self.http.drain_limit(),
            extension: crate::lab::routes(),
            pages: crate::book::pages(),
            http,
        })
    }
}

/// Returns the options of a service and its engine, with or without HTTP.
///
/// # Errors
/// If a duration is out of range; the message names the flag.
pub(crate) fn service_options(
    engine: &EngineArgs,
    admission: &AdmissionArgs,
    streams: StreamBounds,
    serving: ServingConfig,
    otlp_endpoint: Option<String>,
) -> anyhow::Result<ServiceConfig> {
    Ok(ServiceConfig {
        limits: engine.limits(admission.queue_timeout()?),
        bounds: admission.bounds(),
        streams,
        serving,
        engine_timeout: engine.engine_timeout(),
        engine_outage: engine.engine_outage(),
        tokenize_workers: admission.tokenize_workers,
        otlp_endpoint,
        request_log: RequestLog::default(),
        prefix_store: None,
    })
}
