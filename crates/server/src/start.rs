//! Starts a service: over the built-in engine, or over an upstream server.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use loquent_infer::admission::Bounds;
use loquent_infer::remote::RemoteStages;
use loquent_infer::runner::{Interrupt, Runner};
use loquent_infer::scheduler::Limits;

use crate::app::App;
use crate::models::{
    EngineSource, KeeperConfig, KeeperContext, KeptEngine, KeptModel, ModelDownloader,
};
use crate::service::backend::Backend;
use crate::service::{Service, ServiceContext};
use loquent_gateway::{Upstream, UpstreamConfig, UpstreamContext};
use loquent_serving::active_request::Observers;
use loquent_serving::admission::{AdmissionGate, PendingPrompts};
use loquent_serving::clock::Clock;
use loquent_serving::engine_thread::{self, EngineContext, EnginePrefixes};
use loquent_serving::engine_watch::EngineWatch;
use loquent_serving::error::ApiError;
use loquent_serving::metrics::Metrics;
use loquent_serving::model::ServedModel;
use loquent_serving::otel::Telemetry;
use loquent_serving::output::{self, OutputHandle, StreamBounds};
use loquent_serving::prefix_store::PrefixStore;
use loquent_serving::prompt_threads::{self, PromptThreads};
use loquent_serving::request_log::RequestLog;
use loquent_serving::serving_config::ServingConfig;

/// Configuration of a service, with or without HTTP.
#[derive(Debug, Clone)]
pub struct ServiceConfig {
    /// Limits of the scheduler; an upstream server has its own.
    pub limits: Limits,
    /// Limits of admission.
    pub bounds: Bounds,
    /// Bounds on each stream.
    pub streams: StreamBounds,
    /// Settings for serving requests.
    pub serving: ServingConfig,
    /// Time limit of a step before the engine counts as hung. A prompt has more time, in proportion
    /// to its tokens.
    pub engine_timeout: Duration,
    /// Time limit for answers to wait for a lost engine before they fail.
    pub engine_outage: Duration,
    /// Number of prompts tokenized concurrently.
    pub tokenize_workers: usize,
    /// Base URL of the OpenTelemetry collector that gets a trace of each request.
    pub otlp_endpoint: Option<String>,
    /// Log of finished requests.
    pub request_log: RequestLog,
    /// Store of prefixes on disk, if there is one. The secret of the domains in `serving` must be
    /// its own.
    pub prefix_store: Option<Arc<PrefixStore>>,
}

/// A loaded model and the engine that runs it.
pub struct LoadedEngine {
    /// Runner that computes batches.
    pub runner: Box<dyn Runner>,
    /// The model's name, vocabulary and limits.
    pub model: ServedModel,
    /// Description of the model and its engine, for display.
    pub description: Description,
    /// The stages of a split model; `None` if all layers are in this process.
    pub stages: Option<Arc<dyn RemoteStages>>,
}

/// Description of a model and its engine, for display.
#[derive(Debug, Clone, Default)]
pub struct Description {
    /// Both in a few words.
    pub summary: String,
    /// Further lines: heading and text.
    pub details: Vec<(String, String)>,
}

impl<T: Into<String>> From<T> for Description {
    fn from(summary: T) -> Self {
        Self { summary: summary.into(), details: Vec::new() }
    }
}

/// Model for which the server accepts requests from now on.
#[derive(Debug)]
pub struct Announcement<'a> {
    /// The model's name in the API.
    pub name: &'a str,
    /// The model and its engine.
    pub description: &'a Description,
    /// Maximum tokens of a prompt and its answer; `None` if only an upstream server knows.
    pub context_tokens: Option<u32>,
}

/// Backend that computes the answers.
pub enum LoadedBackend {
    /// An engine of this process, and models that may join it.
    Engine(Box<LoadedEngine>, Option<KeptModels>),
    /// None in this process: the upstreams of the server's configuration answer.
    Upstreams,
    /// Models that are loaded on demand.
    Kept(KeptModels),
}

/// Models that are loaded on demand.
pub struct KeptModels {
    /// Limits of the keeper.
    pub config: KeeperConfig,
    /// The models; the first one answers requests that name none.
    pub models: Vec<KeptModel>,
    /// Loader of the models.
    pub loader: Arc<dyn ModelLoader>,
    /// Source of further models, which the loader then knows; `None` on a server without one.
    pub downloader: Option<Arc<dyn ModelDownloader>>,
    /// Models that an earlier server downloaded and the loader knows, each with the name that was
    /// asked for.
    pub downloaded: Vec<(String, KeptModel)>,
}

/// Loads models from any source.
pub trait ModelLoader: Send + Sync {
    /// Loads the model called `name`; `progress` receives the fraction loaded, 0 to 1.
    ///
    /// # Errors
    /// If the model is missing, broken or too large; the message says what to do.
    fn load(&self, name: &str, progress: &dyn Fn(f32)) -> anyhow::Result<LoadedEngine>;

    /// Returns the machine's free memory, if known.
    fn free_bytes(&self) -> Option<u64>;
}

/// Loads models, and starts their engines.
pub struct EngineStarter {
    /// Loader of the models.
    pub loader: Arc<dyn ModelLoader>,
    /// Resources shared by the models.
    pub desk: SharedDesk,
    /// Configuration of their services.
    pub config: ServiceConfig,
    /// Clock of this server.
    pub clock: Clock,
    /// Counters exported by `/metrics`.
    pub metrics: Arc<Metrics>,
}

impl EngineSource for EngineStarter {
    fn load(&self, name: &str, progress: &dyn Fn(f32)) -> anyhow::Result<KeptEngine> {
        let loaded = self.loader.load(name, progress)?;
        let metrics = self.metrics.clone();
        let (service, thread) =
            start_engine_at(&self.desk, &self.config, loaded, self.clock, metrics)?;
        Ok(KeptEngine { service, thread })
    }

    fn free_bytes(&self) -> Option<u64> {
        self.loader.free_bytes()
    }
}

impl From<LoadedEngine> for LoadedBackend {
    fn from(loaded: LoadedEngine) -> Self {
        Self::Engine(Box::new(loaded), None)
    }
}

/// Resources shared by all models of a server.
#[derive(Clone)]
pub struct SharedDesk {
    gate: AdmissionGate,
    prompt_threads: Arc<PromptThreads>,
    telemetry: Option<Arc<Telemetry>>,
}

impl SharedDesk {
    /// Creates the context for a keeper of models.
    pub fn keeper_context(
        &self,
        config: &ServiceConfig,
        clock: Clock,
        metrics: Arc<Metrics>,
    ) -> KeeperContext {
        KeeperContext {
            gate: self.gate.clone(),
            observers: Observers {
                metrics,
                clock,
                telemetry: self.telemetry.clone(),
                request_log: config.request_log.clone(),
            },
            serving: config.serving.clone(),
            max_waiting: config.bounds.max_inflight_requests,
        }
    }

    /// Starts the shared resources, with `workers` threads for prompts. Traces include `stages`.
    ///
    /// # Errors
    /// When the operating system refuses a thread, or the collector's URL is invalid.
    pub fn start(
        config: &ServiceConfig,
        clock: Clock,
        workers: usize,
        stages: Option<Arc<dyn RemoteStages>>,
    ) -> anyhow::Result<Self> {
        let endpoint = config.otlp_endpoint.as_deref();
        Ok(Self {
            gate: AdmissionGate::new(config.bounds, clock, PendingPrompts::default()),
            prompt_threads: Arc::new(PromptThreads::start(workers).with_context(|| {
                format!(
                    "cannot start {workers} threads for prompts, each with {} MiB of address \
                     space; raise the limit (ulimit -v), or lower --tokenize-workers",
                    prompt_threads::STACK_BYTES >> 20
                )
            })?),
            telemetry: endpoint
                .map(|url| Telemetry::start("loquent", url, clock, stages))
                .transpose()?,
        })
    }

    /// Creates the context for a service whose engine waits for the prompts in `pending`.
    fn context(
        &self,
        config: &ServiceConfig,
        clock: Clock,
        metrics: Arc<Metrics>,
        pending: PendingPrompts,
    ) -> ServiceContext {
        ServiceContext {
            gate: self.gate.counting_in(pending),
            prompt_threads: self.prompt_threads.clone(),
            telemetry: self.telemetry.clone(),
            config: config.serving.clone(),
            clock,
            metrics,
            request_log: config.request_log.clone(),
        }
    }
}

/// Starts a service over an engine, without a listener: the engine on a separate thread, the output
/// processor on the current runtime. The thread ends after [`Service::stop`].
///
/// # Errors
/// When the operating system refuses the thread, or the collector's URL is invalid.
pub fn start_engine(
    config: &ServiceConfig,
    loaded: LoadedEngine,
    clock: Clock,
    metrics: Arc<Metrics>,
) -> anyhow::Result<(Arc<Service>, JoinHandle<()>)> {
    let desk = SharedDesk::start(config, clock, config.tokenize_workers, loaded.stages.clone())?;
    start_engine_at(&desk, config, loaded, clock, metrics)
}

/// [`start_engine`] for one of several models, which share `desk`.
///
/// # Errors
/// When the operating system refuses the thread.
pub fn start_engine_at(
    desk: &SharedDesk,
    config: &ServiceConfig,
    loaded: LoadedEngine,
    clock: Clock,
    metrics: Arc<Metrics>,
) -> anyhow::Result<(Arc<Service>, JoinHandle<()>)> {
    let LoadedEngine { mut runner, model, stages, .. } = loaded;
    let abilities = runner.abilities();
    if let Some(stages) = &stages {
        metrics.watch_stages(stages.clone());
    }
    let interrupt = runner.interrupt();
    // The form of the answer makes no difference to keys and values.
    let fingerprint = model.fingerprint(true);
    let slots = config.limits.max_batch_size.min(runner.capacity().slots.into());
    let (pending, watch) = (PendingPrompts::default(), EngineWatch::default());
    let engine = engine_thread::start(
        runner,
        config.limits,
        model.end_tokens.clone(),
        EngineContext {
            clock,
            metrics: metrics.clone(),
            pending: pending.clone(),
            watch: watch.clone(),
            outage_limit: config.engine_outage,
            prefixes: config
                .prefix_store
                .clone()
                .map(|store| EnginePrefixes { store, fingerprint }),
        },
    )?;
    let output =
        output::start(engine.steps, engine.commands, config.streams, clock, metrics.clone());
    let guarded = guard(watch.clone(), config.engine_timeout, interrupt, output.clone());
    tokio::spawn(guarded);
    let context = desk.context(config, clock, metrics, pending);
    let backend = Backend::Engine { output, stages, watch, abilities, slots };
    Ok((Arc::new(Service::new(model, backend, context)), engine.thread))
}

/// Ends all answers with an error if the engine fails.
async fn guard(
    watch: EngineWatch,
    timeout: Duration,
    interrupt: Option<Interrupt>,
    output: OutputHandle,
) {
    if let Some(why) = watch.guard(timeout, interrupt).await {
        tracing::error!("the engine has failed: {why}");
        output.stop(ApiError::engine_failed(output::ENGINE_FAILED));
    }
}

/// Starts a service for `app` that is answered by the server of `upstream`. Sends nothing to it
/// yet.
///
/// # Errors
/// When the upstream's or the collector's URL, or the upstream's key, is invalid.
pub fn start_upstream(
    config: &ServiceConfig,
    upstream: &UpstreamConfig,
    app: &App,
) -> anyhow::Result<Arc<Service>> {
    // Prompts are tokenized by the upstream.
    let desk = SharedDesk::start(config, app.clock, 1, None)?;
    let mut services = start_upstreams_at(&desk, config, std::slice::from_ref(upstream), app)?;
    Ok(services.remove(0))
}

/// [`start_upstream`] for several, which share `desk` with the other models of `app`, with the
/// fallbacks of their configurations.
///
/// # Errors
/// When an upstream's URL or its key is invalid, or there is no model to fall back on.
pub fn start_upstreams_at(
    desk: &SharedDesk,
    config: &ServiceConfig,
    upstreams: &[UpstreamConfig],
    app: &App,
) -> anyhow::Result<Vec<Arc<Service>>> {
    let start = |upstream| start_upstream_at(desk, config, upstream, app);
    let services = upstreams.iter().map(start).collect::<anyhow::Result<Vec<_>>>()?;
    let all: Vec<_> = services.iter().filter_map(|service| service.upstream()).collect();
    for (upstream, options) in all.iter().zip(upstreams) {
        let named = |name: &String| all.iter().find(|one| one.name() == Some(name));
        let remote = options.fallbacks.iter().map_while(named).map(|one| Arc::clone(one));
        let remote: Vec<_> = remote.collect();
        let local = &options.fallbacks[remote.len()..];
        ensure!(
            local.len() <= 1,
            "--upstream-fallback: '{}' is no upstream, and only the last may be another model",
            local[0]
        );
        upstream.fall_back_on(&remote, local.first().cloned());
        upstream.watch();
    }
    Ok(services)
}

fn start_upstream_at(
    desk: &SharedDesk,
    config: &ServiceConfig,
    upstream: &UpstreamConfig,
    app: &App,
) -> anyhow::Result<Arc<Service>> {
    let (clock, metrics) = (app.clock, app.metrics.clone());
    let upstream = Upstream::new(
        upstream,
        UpstreamContext {
            bounds: config.streams,
            max_delay: config.serving.max_delay,
            splits_reasoning: config.serving.split_reasoning,
            first_byte_timeout: app.config.heartbeat,
            bodies: app.bodies.clone(),
            clock,
            metrics: metrics.clone(),
            telemetry: desk.telemetry.clone(),
        },
    )?;
    let model = ServedModel::of_upstream(upstream.label().to_owned())?;
    let context = desk.context(config, clock, metrics, PendingPrompts::default());
    Ok(Arc::new(Service::new(model, Backend::Upstream(Arc::new(upstream)), context)))
}
