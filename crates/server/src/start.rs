//! Starts a service: over the built-in engine, or over an upstream server.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use loquent_infer::admission::Bounds;
use loquent_infer::remote::RemoteStages;
use loquent_infer::runner::Runner;
use loquent_infer::scheduler::Limits;

use crate::admission::{AdmissionGate, PendingPrompts};
use crate::app::App;
use crate::clock::Clock;
use crate::engine_thread::{self, EngineContext};
use crate::engine_watch::EngineWatch;
use crate::metrics::Metrics;
use crate::model::ServedModel;
use crate::otel::Telemetry;
use crate::output::{self, OutputHandle, StreamBounds};
use crate::prompt_threads::PromptThreads;
use crate::service::{Backend, Service, ServiceContext, ServingConfig};
use crate::upstream::{Upstream, UpstreamConfig, UpstreamContext};

/// A service's configuration, whether or not HTTP stands before it.
#[derive(Debug, Clone)]
pub struct ServiceConfig {
    /// Bounds of the scheduler; an upstream server has its own.
    pub limits: Limits,
    /// Bounds of admission.
    pub bounds: Bounds,
    /// Bounds on each stream.
    pub streams: StreamBounds,
    /// How requests are served.
    pub serving: ServingConfig,
    /// How long a step of the engine may take before the engine counts as hung. A prompt has
    /// more time, in proportion to its tokens.
    pub engine_timeout: Duration,
    /// Prompts tokenized at once.
    pub tokenize_workers: usize,
    /// Base URL of the OpenTelemetry collector that gets a trace of each request.
    pub otlp_endpoint: Option<String>,
}

/// A loaded model and the engine that runs it.
pub struct LoadedEngine {
    /// Computes batches.
    pub runner: Box<dyn Runner>,
    /// The model's name, vocabulary and limits.
    pub model: ServedModel,
    /// The model and its engine in words, for people.
    pub description: String,
    /// The stages of a split model; `None` if all layers are in this process.
    pub stages: Option<Arc<dyn RemoteStages>>,
}

/// What will compute the answers.
pub enum LoadedBackend {
    /// An engine of this process.
    Engine(LoadedEngine),
    /// Another server, to which nothing has been sent yet.
    Upstream(UpstreamConfig),
}

impl From<LoadedEngine> for LoadedBackend {
    fn from(loaded: LoadedEngine) -> Self {
        Self::Engine(loaded)
    }
}

/// Starts a service over an engine, without a listener: the engine on a thread of its own,
/// the output processor on the current runtime. The thread ends after [`Service::stop`].
///
/// # Errors
/// When the operating system refuses the thread, or the collector's URL is invalid.
pub fn start_engine(
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
        },
    )?;
    let output =
        output::start(engine.steps, engine.commands, config.streams, clock, metrics.clone());
    tokio::spawn(guard(watch.clone(), config.engine_timeout, output.clone()));
    let context = ServiceContext {
        gate: AdmissionGate::new(config.bounds, clock, pending),
        telemetry: telemetry(config, clock, stages.clone())?,
        prompt_threads: PromptThreads::start(config.tokenize_workers)?,
        config: config.serving.clone(),
        clock,
        metrics,
    };
    let backend = Backend::Engine { output, stages, watch, abilities };
    Ok((Arc::new(Service::new(model, backend, context)), engine.thread))
}

/// Ends all answers with an error if the engine fails.
async fn guard(watch: EngineWatch, timeout: Duration, output: OutputHandle) {
    if let Some(why) = watch.guard(timeout).await {
        tracing::error!("the engine has failed: {why}");
        output.stop(output::ENGINE_FAILED);
    }
}

/// Starts a service for `app` that the server of `upstream` answers. Nothing is sent to it yet.
///
/// # Errors
/// When the upstream's or the collector's URL, or the upstream's key, is invalid.
pub fn start_upstream(
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
            clock,
            metrics: metrics.clone(),
        },
    )?;
    let model = ServedModel::of_upstream(upstream.authority().to_owned())?;
    let context = ServiceContext {
        gate: AdmissionGate::new(config.bounds, clock, PendingPrompts::default()),
        telemetry: telemetry(config, clock, None)?,
        // Prompts are tokenized by the upstream.
        prompt_threads: PromptThreads::start(1)?,
        config: config.serving.clone(),
        clock,
        metrics,
    };
    Ok(Arc::new(Service::new(model, Backend::Upstream(Arc::new(upstream)), context)))
}

fn telemetry(
    config: &ServiceConfig,
    clock: Clock,
    stages: Option<Arc<dyn RemoteStages>>,
) -> anyhow::Result<Option<Arc<Telemetry>>> {
    let endpoint = config.otlp_endpoint.as_deref();
    endpoint.map(|url| Telemetry::start(url, clock, stages)).transpose()
}
