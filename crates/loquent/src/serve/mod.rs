//! `loquent serve`: arguments as typed, then resolved into the server's options.

pub(crate) mod load;
mod staged;

use std::num::NonZeroU16;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use loquent_infer::admission::Bounds;
use loquent_infer::budget::ItlTarget;
use loquent_infer::scheduler::Limits;
use loquent_infer::speculation::Speculation;
use loquent_proto::coalesce::StreamInterval;
use loquent_server::app::HttpOptions;
use loquent_server::auth::ApiKeys;
use loquent_server::delivery::StreamBounds;
use loquent_server::quic::{CertificateSource, QuicOptions};
use loquent_server::server::{self, Answerer, Options, ServiceOptions};
use loquent_server::service::Policy;
use loquent_server::streams::StreamLimits;
use loquent_server::upstream::UpstreamOptions;
use tokio::net::TcpListener;

#[cfg(feature = "llama")]
pub(crate) use self::staged::LinkArgs;
use self::staged::StagedArgs;
use crate::bundled;
use crate::hub::{self, HubSpec};
use crate::tune::profile::{self, Profile};
use crate::tune::show;

/// Default of `--prefill-max-tokens`.
const PREFILL_MAX_TOKENS: u32 = 512;
/// Default of `--stream-buffer-bytes`.
pub(crate) const STREAM_BUFFER_BYTES: usize = 32 * 1024;
/// Default of `--slow-reader-timeout-s`.
pub(crate) const SLOW_READER_TIMEOUT_S: u64 = 30;

const EXAMPLES: &str = "\
Examples:
  loquent serve                                   the bundled model on http://127.0.0.1:8080
  loquent serve --model qwen.gguf --context 8192  a GGUF file of yours
  loquent serve --hf Qwen/Qwen3-0.6B-GGUF:Q8_0    a model from the Hugging Face hub
  loquent serve --host 0.0.0.0 --api-key secret   for others, behind a key
  loquent serve --model qwen-entry.gguf --stages qwen-stage-1-of-2.gguf,second-machine:7070
                                                  a model that loquent split cut

  curl -N http://127.0.0.1:8080/v1/chat/completions -H 'content-type: application/json' \\
    -d '{\"stream\": true, \"messages\": [{\"role\": \"user\", \"content\": \"What is token streaming?\"}]}'";

/// The flags that `serve -h` lists, with their short forms; `--help` lists all.
const ESSENTIAL: [(&str, Option<char>); 16] = [
    ("model", Some('m')),
    ("hf", None),
    ("host", None),
    ("port", Some('p')),
    ("served_model_name", None),
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
];

/// Gives an essential flag its short form, and leaves any other to `--help`.
fn sort_by_audience(flag: clap::Arg) -> clap::Arg {
    match ESSENTIAL.iter().find(|(name, _)| flag.get_id() == *name) {
        Some((_, Some(short))) => flag.short(*short),
        Some((_, None)) => flag,
        None => flag.hide_short_help(true),
    }
}

/// What `loquent serve` takes. The environment variable of a flag is `LOQUENT_` and its name.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, mut_args = sort_by_audience)]
pub struct ServeArgs {
    #[command(flatten)]
    source: Source,

    /// Address to listen on; 0.0.0.0 or :: for all
    #[arg(long, env = "LOQUENT_HOST", default_value = "127.0.0.1")]
    host: String,
    /// TCP port; 0 picks a free one
    #[arg(long, env = "LOQUENT_PORT", default_value_t = 8080)]
    port: u16,
    /// Name of the model in the API, instead of its own
    #[arg(long, env = "LOQUENT_SERVED_MODEL_NAME", value_name = "NAME")]
    served_model_name: Option<String>,
    /// Answer 404 to requests for another model, instead of serving them with this one
    #[arg(long, env = "LOQUENT_STRICT_MODEL")]
    strict_model: bool,

    /// OpenTelemetry collector that gets a trace of each request (OTLP over HTTP, for example
    /// http://127.0.0.1:4318) [default: none]
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    otlp_endpoint: Option<String>,

    #[command(flatten)]
    upstream: UpstreamArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    streams: StreamArgs,
    #[command(flatten)]
    admission: AdmissionArgs,
    #[command(flatten)]
    http: HttpArgs,
    #[command(flatten)]
    quic: QuicArgs,
}

#[derive(Debug, Args)]
#[group(multiple = false)]
pub(crate) struct Source {
    /// GGUF file [default: the bundled model]
    #[arg(long, env = "LOQUENT_MODEL", value_name = "FILE")]
    pub(crate) model: Option<PathBuf>,
    /// Model from the Hugging Face hub, OWNER/REPO[:FILE or quantisation]
    #[arg(long, env = "LOQUENT_HF", value_name = "REPO")]
    pub(crate) hf: Option<HubSpec>,
    /// No model: a simulated engine that gives each answer so many tokens per second
    /// ("inf" for as fast as it can); for tests and measurements
    #[arg(long, env = "LOQUENT_SIMULATE", value_name = "RATE", value_parser = parse_rate)]
    pub(crate) simulate: Option<f64>,
}

impl Source {
    /// The model's file, downloaded or unpacked first where needed.
    fn fetch(&self) -> anyhow::Result<PathBuf> {
        match (&self.model, &self.hf) {
            (Some(path), _) => Ok(path.clone()),
            (None, Some(spec)) => Ok(hub::fetch(spec, &mut hub::progress_bar())?),
            (None, None) => bundled::materialize(),
        }
    }
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Upstream")]
struct UpstreamArgs {
    /// No model: have another OpenAI-compatible server answer (vLLM, SGLang, llama-server, Ollama),
    /// and deliver, keep and count its answers like our own
    #[arg(long, env = "LOQUENT_UPSTREAM", value_name = "URL", conflicts_with_all = ["model", "hf", "simulate"])]
    upstream: Option<String>,
    /// Key that it asks for [default: the client's own, unless this server has keys itself]
    #[arg(long, env = "LOQUENT_UPSTREAM_API_KEY", hide_env_values = true, value_name = "K")]
    upstream_api_key: Option<String>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Engine")]
pub(crate) struct EngineArgs {
    /// Sequences computed in one batch, at most 256 (4096 simulated)
    #[arg(long, env = "LOQUENT_MAX_BATCH_SIZE", default_value_t = 16, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=4096))]
    max_batch_size: u16,
    /// Most tokens of one sequence, prompt and answer together [default: the model's, up to 4096]
    #[arg(long, env = "LOQUENT_CONTEXT", value_name = "N")]
    context: Option<u32>,
    /// KV cache in tokens, shared by all sequences and kept prefixes [default: twice the context,
    /// at least 512 for each sequence of the batch]
    #[arg(long, env = "LOQUENT_KV_CELLS", value_name = "N")]
    kv_cells: Option<u32>,
    /// Element type of the KV cache: f16, f32 or q8_0
    #[arg(long, env = "LOQUENT_KV_TYPE", default_value = "f16", value_name = "TYPE")]
    kv_type: String,
    /// Prompt tokens computed in one step [default: the profile's, else 512]
    #[arg(long, env = "LOQUENT_PREFILL_MAX_TOKENS", value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..))]
    prefill_max_tokens: Option<u32>,
    /// Inter-token latency that running answers keep while prompts are computed: milliseconds,
    /// "auto" (twice a step without prompts) or "off"
    #[arg(long, env = "LOQUENT_ITL_TARGET_MS", default_value = "auto", value_name = "MS",
          value_parser = parse_itl_target)]
    itl_target_ms: ItlTarget,
    /// Compute threads [default: the profile's, else physical cores; 1 for models below 32 MiB]
    #[arg(long, env = "LOQUENT_THREADS", value_name = "N")]
    threads: Option<NonZeroU16>,
    /// Do not use what `loquent tune` found for this model on this machine
    #[arg(long, env = "LOQUENT_NO_PROFILE")]
    no_profile: bool,
    #[command(flatten)]
    tuning: TuningArgs,
    /// Forget finished sequences instead of keeping their KV for prompts that begin alike
    #[arg(long, env = "LOQUENT_NO_PREFIX_CACHE")]
    no_prefix_cache: bool,
    /// Draft tokens verified per step: "auto", "off" or a number from 1 to 64
    ///
    /// Speculative decoding by prompt lookup: when the text repeats itself, the tokens that
    /// followed last time are drafted and verified in one step. The answer stays the same.
    /// "auto" drafts as many tokens as pay off in measured step times.
    #[arg(long, env = "LOQUENT_DRAFT_TOKENS", default_value = "auto", value_name = "N",
          value_parser = parse_speculation)]
    draft_tokens: Speculation,
    /// Layers on the graphics processor, in builds that have one [default: all that fit]
    #[arg(long, env = "LOQUENT_GPU_LAYERS", value_name = "N")]
    gpu_layers: Option<u32>,
    #[command(flatten)]
    staged: StagedArgs,
}

#[cfg(feature = "llama")]
impl EngineArgs {
    /// What a stage in this process computes with.
    fn own_stage(&self) -> crate::stage::Compute {
        crate::stage::Compute {
            threads: self.threads,
            gpu_layers: self.gpu_layers,
            processors: self.staged.processors.clone(),
        }
    }
}

/// What `loquent tune` chooses; each flag wins over the profile.
#[derive(Debug, Clone, Default, PartialEq, Args)]
#[command(next_help_heading = "Engine, tuned")]
pub(crate) struct TuningArgs {
    /// How long idle compute threads spin before they sleep, 0 (not at all) to 100 [default: 0]
    #[arg(long, env = "LOQUENT_POLL", value_name = "N",
          value_parser = clap::value_parser!(u32).range(..=100))]
    poll: Option<u32>,
    /// Tokens in one pass through the layers [default: 512]
    #[arg(long, env = "LOQUENT_MICRO_BATCH", value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=65536))]
    micro_batch: Option<u32>,
    /// One KV buffer for all sequences, which lets prompts share beginnings, or one each
    /// [default: unified]
    #[arg(long, env = "LOQUENT_KV_LAYOUT", value_name = "LAYOUT")]
    kv_layout: Option<KvLayout>,
    /// Whether attention is computed by the fused kernel [default: where llama.cpp has it, but
    /// not with f32]
    #[arg(long, env = "LOQUENT_FLASH_ATTENTION", value_name = "ON")]
    flash_attention: Option<Switch>,
    /// Whose matrix products K-quants use on the processor; those of llama.cpp keep a second
    /// copy of some weights [default: own, where the processor has AVX-512 VNNI]
    #[arg(long, env = "LOQUENT_KERNELS", value_name = "WHOSE")]
    kernels: Option<Kernels>,
}

/// How the KV cache is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum KvLayout {
    /// One buffer for all sequences
    Unified,
    /// One for each sequence
    Split,
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Switch {
    /// On
    On,
    /// Off
    Off,
}

/// Whose matrix products.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Kernels {
    /// Loquent's
    Own,
    /// llama.cpp's
    Llama,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Streams")]
struct StreamArgs {
    /// Tokens merged into one chunk: 1, 2, … or "auto" (merge only while a reader is behind)
    #[arg(long, env = "LOQUENT_STREAM_INTERVAL", default_value = "1", value_name = "N",
          value_parser = parse_interval)]
    stream_interval: StreamInterval,
    /// Longest time that merging may hold a token back, in ms [default: no limit]
    #[arg(long, env = "LOQUENT_STREAM_MAX_DELAY_MS", value_name = "MS")]
    stream_max_delay_ms: Option<u64>,
    /// Unread bytes after which a slow reader's answer is paused
    #[arg(long, env = "LOQUENT_STREAM_BUFFER_BYTES", default_value_t = STREAM_BUFFER_BYTES, value_name = "N")]
    stream_buffer_bytes: usize,
    /// Seconds after which a paused answer is ended with an error
    #[arg(long, env = "LOQUENT_SLOW_READER_TIMEOUT_S", default_value_t = SLOW_READER_TIMEOUT_S, value_name = "S")]
    slow_reader_timeout_s: u64,
    /// What becomes of `<think>…</think>` before an answer: "auto" sends it as reasoning_content,
    /// "none" leaves it in the text
    #[arg(long, env = "LOQUENT_REASONING_FORMAT", default_value = "auto", value_name = "FORMAT")]
    reasoning_format: ReasoningFormat,
    /// Seconds of silence after which a stream gets a comment, so that proxies keep it
    #[arg(long, env = "LOQUENT_HEARTBEAT_S", default_value_t = 10, value_name = "S",
          value_parser = clap::value_parser!(u64).range(1..))]
    heartbeat_s: u64,
}

/// What becomes of a model's reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ReasoningFormat {
    /// It is told apart where the model's template shows that it reasons.
    Auto,
    /// It stays in the text.
    None,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Admission")]
pub(crate) struct AdmissionArgs {
    /// Completions running and waiting; further requests get 429 with Retry-After
    #[arg(long, env = "LOQUENT_MAX_INFLIGHT_REQUESTS", default_value_t = 256, value_name = "N")]
    max_inflight_requests: usize,
    /// Prompt tokens waiting; further requests get 429 with Retry-After
    #[arg(long, env = "LOQUENT_MAX_QUEUED_TOKENS", default_value_t = 262_144, value_name = "N")]
    max_queued_tokens: usize,
    /// Seconds a request may wait for its turn [default: no limit]
    #[arg(long, env = "LOQUENT_QUEUE_TIMEOUT_S", value_name = "S")]
    queue_timeout_s: Option<f64>,
    /// Prompts tokenized at once
    #[arg(long, env = "LOQUENT_TOKENIZE_WORKERS", default_value_t = 2, value_name = "N")]
    tokenize_workers: usize,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "HTTP")]
struct HttpArgs {
    /// Key that clients must send as a bearer token; several by repeating
    #[arg(long, env = "LOQUENT_API_KEY", hide_env_values = true, value_name = "K")]
    api_key: Vec<String>,
    /// File with one key per line
    #[arg(long, env = "LOQUENT_API_KEY_FILE", value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Origin whose web pages may use the API, "*" for all; several by repeating
    #[arg(long, env = "LOQUENT_CORS_ORIGIN", value_name = "ORIGIN")]
    cors_origin: Vec<String>,
    /// Largest request body
    #[arg(long, env = "LOQUENT_MAX_REQUEST_BYTES", default_value_t = 8 * 1024 * 1024, value_name = "N")]
    max_request_bytes: usize,
    /// Threads that serve connections, beside those that compute [default: one for four cores]
    #[arg(long, env = "LOQUENT_HTTP_THREADS", value_name = "N")]
    http_threads: Option<NonZeroU16>,
    /// Open connections
    #[arg(long, env = "LOQUENT_MAX_CONNECTIONS", default_value_t = 4096, value_name = "N")]
    max_connections: usize,
    /// Seconds that running answers may take to end after SIGTERM
    #[arg(long, env = "LOQUENT_DRAIN_TIMEOUT_S", default_value_t = 30, value_name = "S")]
    drain_timeout_s: u64,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "QUIC and resume")]
struct QuicArgs {
    /// Offer QUIC, and fail if its port cannot be had [default: offer it, and warn if not]
    #[arg(long, env = "LOQUENT_QUIC", overrides_with = "no_quic")]
    quic: bool,
    /// Offer no QUIC: answers travel over TCP only
    #[arg(long, env = "LOQUENT_NO_QUIC", overrides_with = "quic")]
    no_quic: bool,
    /// UDP port of QUIC; 0 picks a free one [default: the number of the TCP port]
    #[arg(long, env = "LOQUENT_QUIC_PORT", value_name = "PORT")]
    quic_port: Option<u16>,
    /// Certificates for HTTPS and QUIC in PEM, the server's first [default: plain HTTP, and
    /// self-signed ones for QUIC, renewed while running]
    #[arg(long, env = "LOQUENT_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of --tls-cert in PEM
    #[arg(long, env = "LOQUENT_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// QUIC connections of one address (IPv6: of one /64); --max-connections bounds them in all
    #[arg(
        long,
        env = "LOQUENT_MAX_CONNECTIONS_PER_ADDRESS",
        default_value_t = 1024,
        value_name = "N"
    )]
    max_connections_per_address: usize,
    /// Requests and answers under way on one QUIC connection
    #[arg(long, env = "LOQUENT_QUIC_MAX_STREAMS", default_value_t = 128, value_name = "N")]
    quic_max_streams: u32,
    /// Seconds that an answer is kept for a reader that lost its connection
    #[arg(long, env = "LOQUENT_RESUME_GRACE_S", default_value_t = 60.0, value_name = "S",
          value_parser = parse_seconds)]
    resume_grace_s: f64,
    /// Bytes of one answer kept for a resume; what was acknowledged is dropped beyond them
    #[arg(long, env = "LOQUENT_STREAM_LOG_BYTES", default_value_t = 256 * 1024, value_name = "N")]
    stream_log_bytes: usize,
    /// Bytes kept for all answers, each that is generated counted with --stream-log-bytes;
    /// further resumable requests get 429
    #[arg(long, env = "LOQUENT_MAX_KEPT_BYTES", default_value_t = 512 * 1024 * 1024, value_name = "N")]
    max_kept_bytes: usize,
    /// Resumable answers under way for one API key; further requests get 429
    #[arg(long, env = "LOQUENT_MAX_ANSWERS_PER_KEY", default_value_t = 1024, value_name = "N")]
    max_answers_per_key: usize,
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|it| it.is_finite() && (0.0..1e9).contains(it));
    seconds.ok_or_else(|| "give seconds, 0 or more".to_owned())
}

pub(crate) fn parse_rate(text: &str) -> Result<f64, String> {
    let rate = text.parse::<f64>().ok().filter(|rate| *rate > 0.0);
    rate.ok_or_else(|| "give tokens per second, above 0, or \"inf\"".to_owned())
}

fn parse_interval(text: &str) -> Result<StreamInterval, String> {
    text.parse().map_err(|_| "give a number above 0, or \"auto\"".to_owned())
}

fn parse_itl_target(text: &str) -> Result<ItlTarget, String> {
    match text {
        "auto" => Ok(ItlTarget::Relative(2.0)),
        "off" => Ok(ItlTarget::Unbounded),
        number => match number.parse::<f64>() {
            Ok(ms) if ms.is_finite() && ms > 0.0 => {
                Ok(ItlTarget::Fixed(Duration::from_secs_f64(ms / 1e3)))
            }
            _ => Err("give milliseconds, \"auto\" or \"off\"".to_owned()),
        },
    }
}

fn parse_speculation(text: &str) -> Result<Speculation, String> {
    match text {
        "auto" => Ok(Speculation::Auto),
        "off" => Ok(Speculation::Off),
        number => match number.parse() {
            Ok(most @ 1..=64) => Ok(Speculation::Fixed(most)),
            _ => Err("give \"auto\", \"off\" or a number from 1 to 64".to_owned()),
        },
    }
}

/// Serves until SIGTERM or Ctrl-C.
///
/// # Errors
/// When the model cannot be loaded or the address not be used; the message says what to do.
pub fn run(mut args: ServeArgs) -> anyhow::Result<()> {
    args.engine.adopt_profile(&args.source)?;
    let options = args.options()?;
    let threads = args.http.threads();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    runtime.block_on(async {
        let address = format!("{}:{}", args.host, args.port);
        let listener = TcpListener::bind(&address).await.with_context(|| {
            format!("cannot listen on {address}; choose another --port or --host")
        })?;
        let bound = listener.local_addr()?;
        let upstream = args.upstream(&options);
        let load = move || match upstream {
            Some(upstream) => Ok(Answerer::Upstream(upstream)),
            None => {
                load::load(&args.source, &args.engine, args.served_model_name).map(Answerer::Engine)
            }
        };
        let scheme = if args.quic.tls_cert.is_some() { "https" } else { "http" };
        let announce = move |name: &str, description: &str| {
            eprintln!("Loquent serves {name} ({description}) on {scheme}://{bound}");
        };
        server::run(listener, options, load, announce, shutdown_signal()).await
    })
}

/// Resolves at the first SIGTERM or Ctrl-C; a second one kills the process as usual.
pub(crate) async fn shutdown_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).expect("signals can be handled");
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
        std::process::exit(130);
    });
}

impl ServeArgs {
    /// The server that answers instead of a model of ours.
    fn upstream(&self, options: &Options) -> Option<UpstreamOptions> {
        let url = self.upstream.upstream.clone()?;
        let api_key = self.upstream.upstream_api_key.clone();
        Some(UpstreamOptions { url, api_key, keeps_keys: !options.http.api_keys.is_empty() })
    }

    fn options(&self) -> anyhow::Result<Options> {
        let seconds = Duration::from_secs;
        let streams = StreamBounds {
            buffer_bytes: self.streams.stream_buffer_bytes.max(1024),
            stall_limit: seconds(self.streams.slow_reader_timeout_s),
        };
        let policy = Policy {
            interval: self.streams.stream_interval,
            max_delay: self.streams.stream_max_delay_ms.map(Duration::from_millis),
            strict_model: self.strict_model,
            split_reasoning: self.streams.reasoning_format == ReasoningFormat::Auto,
        };
        Ok(Options {
            http: HttpOptions {
                api_keys: self.http.keys()?,
                cors_origins: self.http.cors_origin.clone(),
                max_request_bytes: self.http.max_request_bytes,
                heartbeat: seconds(self.streams.heartbeat_s),
            },
            service: ServiceOptions {
                otlp_endpoint: self.otlp_endpoint.clone().filter(|url| !url.is_empty()),
                ..self.admission.service(&self.engine, streams, policy)?
            },
            kept: self.quic.kept(streams),
            quic: self.quic.options(&self.host, self.http.max_connections),
            https: self.quic.files(),
            max_connections: self.http.max_connections,
            drain_limit: seconds(self.http.drain_timeout_s),
        })
    }
}

impl EngineArgs {
    /// Takes from the profile of `source` what no flag says, and says so. A model from the hub
    /// has no file yet, and so no profile; name the downloaded file to use one.
    ///
    /// # Errors
    /// When there is a profile that cannot be used.
    pub(crate) fn adopt_profile(&mut self, source: &Source) -> anyhow::Result<()> {
        let folder = profile::folder(|name| std::env::var(name).ok());
        let (Some(model), Some(folder), false) = (&source.model, folder, self.no_profile) else {
            return Ok(());
        };
        // A missing model is reported where it is loaded.
        if !model.is_file() {
            return Ok(());
        }
        if let Some((profile, path)) = Profile::find(model, &folder)? {
            self.adopt(&profile);
            let settings = show::settings(&profile.settings);
            eprintln!("Tuned: {settings} ({}; --no-profile ignores it)", path.display());
        }
        Ok(())
    }

    fn adopt(&mut self, profile: &Profile) {
        let tuned = profile.settings;
        let layout = if tuned.kv_unified { KvLayout::Unified } else { KvLayout::Split };
        let flash = if tuned.flash_attention { Switch::On } else { Switch::Off };
        let kernels = if tuned.own_products { Kernels::Own } else { Kernels::Llama };
        self.threads = self.threads.or(NonZeroU16::new(tuned.threads));
        self.prefill_max_tokens = self.prefill_max_tokens.or(profile.prefill_max_tokens);
        self.tuning.poll = self.tuning.poll.or(Some(tuned.poll));
        self.tuning.micro_batch = self.tuning.micro_batch.or(Some(tuned.pass_tokens));
        self.tuning.kv_layout = self.tuning.kv_layout.or(Some(layout));
        self.tuning.kernels = self.tuning.kernels.or(Some(kernels));
        // It was tuned for f16; f32 is chosen for exactness, which it would spoil.
        if self.kv_type != "f32" {
            self.tuning.flash_attention = self.tuning.flash_attention.or(Some(flash));
        }
    }

    /// Prompt tokens computed in one step.
    pub(crate) fn prefill_max_tokens(&self) -> u32 {
        self.prefill_max_tokens.unwrap_or(PREFILL_MAX_TOKENS)
    }
}

impl AdmissionArgs {
    /// The options of a service with these bounds before `engine`.
    pub(crate) fn service(
        &self,
        engine: &EngineArgs,
        streams: StreamBounds,
        policy: Policy,
    ) -> anyhow::Result<ServiceOptions> {
        let queue_timeout = self.queue_timeout_s.map(Duration::try_from_secs_f64);
        Ok(ServiceOptions {
            limits: Limits {
                max_batch_size: usize::from(engine.max_batch_size),
                prefill_max_tokens: engine.prefill_max_tokens(),
                itl_target: engine.itl_target_ms,
                prefix_cache: !engine.no_prefix_cache,
                speculation: engine.draft_tokens,
                queue_timeout: queue_timeout.transpose().context("--queue-timeout-s")?,
            },
            bounds: Bounds {
                max_inflight_requests: self.max_inflight_requests,
                max_queued_tokens: self.max_queued_tokens,
            },
            streams,
            policy,
            tokenize_workers: self.tokenize_workers,
            otlp_endpoint: None,
        })
    }
}

impl QuicArgs {
    /// Least log: a merged flush with its log-probabilities fits.
    const LOG_BYTES_MIN: usize = 64 * 1024;

    fn kept(&self, streams: StreamBounds) -> StreamLimits {
        StreamLimits {
            log_bytes: self.stream_log_bytes.max(Self::LOG_BYTES_MIN),
            unacked_bytes: streams.buffer_bytes,
            kept_bytes: self.max_kept_bytes,
            answers_per_key: self.max_answers_per_key,
            grace: Duration::from_secs_f64(self.resume_grace_s),
            stall_limit: streams.stall_limit,
        }
    }

    fn files(&self) -> Option<CertificateSource> {
        let (chain, key) = (self.tls_cert.clone()?, self.tls_key.clone()?);
        Some(CertificateSource::Files { chain, key })
    }

    fn options(&self, host: &str, max_connections: usize) -> Option<QuicOptions> {
        let names = [host, "localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
        let certificate = self.files().unwrap_or(CertificateSource::SelfSigned(names));
        (!self.no_quic).then(|| QuicOptions {
            port: self.quic_port,
            required: self.quic || self.quic_port.is_some() || self.tls_cert.is_some(),
            certificate,
            max_connections,
            max_connections_per_address: self.max_connections_per_address,
            max_streams: self.quic_max_streams,
        })
    }
}

impl HttpArgs {
    /// Few: one serves tens of thousands of tokens a second, and several wake each other for
    /// every step, on cores that compute.
    fn threads(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        self.http_threads.map_or_else(|| cores().div_ceil(4), |n| n.get().into())
    }

    fn keys(&self) -> anyhow::Result<ApiKeys> {
        let mut keys = self.api_key.clone();
        if let Some(path) = &self.api_key_file {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("cannot read --api-key-file {}", path.display()))?;
            keys.extend(text.lines().map(str::to_owned));
        }
        Ok(ApiKeys::new(keys))
    }
}

#[cfg(test)]
mod tests {
    //! Flags win over the profile, and the profile over the defaults.
    use clap::Parser;

    use super::*;
    use crate::tune::profile::Settings;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        engine: EngineArgs,
    }

    fn engine(flags: &[&str]) -> EngineArgs {
        Line::try_parse_from([&["loquent"], flags].concat()).unwrap().engine
    }

    fn profile() -> Profile {
        let settings = Settings {
            threads: 3,
            poll: 50,
            kv_unified: false,
            flash_attention: true,
            own_products: false,
            pass_tokens: 128,
        };
        Profile { prefill_max_tokens: Some(256), ..Profile::new("m".into(), settings) }
    }

    #[test]
    fn the_profile_fills_what_no_flag_says() {
        let mut bare = engine(&[]);
        bare.adopt(&profile());
        assert_eq!((bare.threads, bare.prefill_max_tokens()), (NonZeroU16::new(3), 256));
        let tuned = TuningArgs {
            poll: Some(50),
            micro_batch: Some(128),
            kv_layout: Some(KvLayout::Split),
            flash_attention: Some(Switch::On),
            kernels: Some(Kernels::Llama),
        };
        assert_eq!(bare.tuning, tuned);
    }

    #[test]
    fn flags_win() {
        let mut flags = engine(&[
            "--threads=1",
            "--poll=0",
            "--micro-batch=512",
            "--kv-layout=unified",
            "--kernels=own",
            "--flash-attention=off",
            "--prefill-max-tokens=64",
        ]);
        let before = flags.tuning.clone();
        flags.adopt(&profile());
        assert_eq!((flags.threads, flags.prefill_max_tokens()), (NonZeroU16::new(1), 64));
        assert_eq!(flags.tuning, before);
        let mut exact = engine(&["--kv-type=f32"]);
        exact.adopt(&profile());
        assert_eq!(exact.tuning.flash_attention, None);
    }
}
