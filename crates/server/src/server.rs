//! The life of a server: listen, load, serve, drain, stop.
//!
//! The port is open before the model is loaded, so that `/health` and `/ready` tell what
//! goes on. Shutting down refuses new work, lets running streams end within a limit, and
//! breaks off the rest with an error.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use loquent_infer::admission::Bounds;
use loquent_infer::remote::RemoteStages;
use loquent_infer::runner::Runner;
use loquent_infer::scheduler::Limits;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::app::{App, HttpOptions};
use crate::clock::Clock;
use crate::delivery::{self, StreamBounds};
use crate::engine_thread::{self, Outlook};
use crate::http::router;
use crate::https::Https;
use crate::metrics::Metrics;
use crate::model::Model;
use crate::otel::Telemetry;
use crate::quic::{CHECK_EVERY, CertificateSource, Port, QuicOptions};
use crate::service::{Backend, Policy, Service};
use crate::streams::StreamLimits;
use crate::ticket::{Coming, Gate};
use crate::upstream::{Surroundings, Upstream, UpstreamOptions};

/// A client must have sent its request's head by then.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long broken streams may take to tell their clients why.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Bytes that the HTTP side buffers per connection: a slow reader's tokens should wait
/// where they can still be merged.
const CONNECTION_BUFFER_BYTES: usize = 16 * 1024;

/// Everything that a server can be told.
#[derive(Debug, Clone)]
pub struct Options {
    /// The HTTP side.
    pub http: HttpOptions,
    /// The service behind it.
    pub service: ServiceOptions,
    /// Answers that outlive their reader's connection.
    pub kept: StreamLimits,
    /// The QUIC port, if there shall be one.
    pub quic: Option<QuicOptions>,
    /// The certificate of HTTPS; without one, HTTP is plain.
    pub https: Option<CertificateSource>,
    /// Connections at once; further ones wait in the listener's queue.
    pub max_connections: usize,
    /// How long running streams may take to end after a shutdown was asked for.
    pub drain_limit: Duration,
}

/// What a service can be told, whether or not HTTP stands before it.
#[derive(Debug, Clone)]
pub struct ServiceOptions {
    /// The scheduler.
    pub limits: Limits,
    /// Admission.
    pub bounds: Bounds,
    /// Each stream.
    pub streams: StreamBounds,
    /// How requests are served.
    pub policy: Policy,
    /// Prompts tokenized at once.
    pub tokenize_workers: usize,
    /// Base URL of the OpenTelemetry collector that gets a trace of each request.
    pub otlp_endpoint: Option<String>,
}

/// What a loader brings.
pub struct Loaded {
    /// The engine.
    pub runner: Box<dyn Runner>,
    /// The model it runs.
    pub model: Model,
    /// The model and its engine in words, for people.
    pub description: String,
    /// What stands behind the engine, where that can fail by itself.
    pub stages: Option<Arc<dyn RemoteStages>>,
}

/// What answers requests once it is there.
pub enum Answerer {
    /// An engine of this process.
    Engine(Loaded),
    /// Another server.
    Upstream(UpstreamOptions),
}

impl From<Loaded> for Answerer {
    fn from(loaded: Loaded) -> Self {
        Self::Engine(loaded)
    }
}

/// Serves on `listener` until `shutdown` resolves and all streams have ended.
///
/// `load` runs on its own thread, while the server already answers; `announce` is told the
/// model's name and description once requests are taken.
///
/// # Errors
/// What `load` failed with, or the operating system.
pub async fn run<A: Into<Answerer> + Send + 'static>(
    listener: TcpListener,
    options: Options,
    load: impl FnOnce() -> anyhow::Result<A> + Send + 'static,
    announce: impl FnOnce(&str, &str),
    shutdown: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let clock = Clock::start();
    let metrics = Arc::new(Metrics::new());
    let app = Arc::new(App::new(options.http.clone(), options.kept, clock, metrics));
    let connections = Connections::new(&app, &options)?;
    let port = bind_quic(&listener, &options)?;
    let quic = port.as_ref().map(|port| port.run(app.clone(), router(app.clone())));
    let mut quic = std::pin::pin!(async {
        match quic {
            Some(quic) => quic.await,
            None => std::future::pending().await,
        }
    });
    let mut shutdown = std::pin::pin!(shutdown);
    let engine = {
        let serving = connections.accept(&listener);
        let loading = tokio::task::spawn_blocking(load);
        tokio::select! {
            error = serving => return Err(error.into()),
            () = &mut quic => anyhow::bail!("the QUIC port was closed"),
            () = &mut shutdown => return Ok(()),
            loaded = loading => open(&app, &options, loaded??.into(), announce)?,
        }
    };
    tokio::select! {
        error = connections.accept(&listener) => return Err(error.into()),
        () = &mut quic => anyhow::bail!("the QUIC port was closed"),
        () = &mut shutdown => {}
    }
    drop(listener);
    tokio::select! {
        () = drain(&app, connections, options.drain_limit) => {}
        () = quic => {} // which it is not while the port is open
    }
    if let Some(port) = &port {
        port.close().await;
    }
    if let Some(engine) = engine {
        tokio::task::spawn_blocking(|| engine.join()).await?.ok();
    }
    if let Some(telemetry) = app.service().ok().and_then(|service| service.telemetry.clone()) {
        tokio::task::spawn_blocking(move || telemetry.stop()).await?;
    }
    Ok(())
}

/// The QUIC port, where one is wanted and can be had.
fn bind_quic(listener: &TcpListener, options: &Options) -> anyhow::Result<Option<Port>> {
    let Some(quic) = &options.quic else { return Ok(None) };
    match Port::bind(listener.local_addr()?, quic.clone()) {
        Ok(port) => Ok(Some(port)),
        Err(error) if quic.required => Err(error),
        Err(error) => {
            tracing::warn!("serving without QUIC: {error:#}");
            Ok(None)
        }
    }
}

/// Starts what answers and opens the API; gives the engine's thread where there is one.
fn open(
    app: &App,
    options: &Options,
    answerer: Answerer,
    announce: impl FnOnce(&str, &str),
) -> anyhow::Result<Option<JoinHandle<()>>> {
    let (name, description, engine) = match answerer {
        Answerer::Engine(loaded) => {
            let (name, description) = (loaded.model.name.clone(), loaded.description.clone());
            let started = start(&options.service, loaded, app.clock, app.metrics.clone())?;
            app.open(started.0);
            (name, description, Some(started.1))
        }
        Answerer::Upstream(upstream) => {
            let ServiceOptions { bounds, streams, policy, otlp_endpoint, .. } =
                options.service.clone();
            let telemetry = telemetry(otlp_endpoint.as_deref(), app.clock, None)?;
            let service = start_upstream(&upstream, bounds, streams, policy, telemetry, app)?;
            let name = service.model.name.clone();
            app.open(service);
            (name, format!("upstream {}", upstream.url), None)
        }
    };
    announce(&name, &description);
    Ok(engine)
}

/// A service that another server answers, for `app`. Nothing is sent to it yet.
///
/// # Errors
/// When the upstream's URL or key is of no use.
pub fn start_upstream(
    upstream: &UpstreamOptions,
    bounds: Bounds,
    streams: StreamBounds,
    policy: Policy,
    telemetry: Option<Arc<Telemetry>>,
    app: &App,
) -> anyhow::Result<Arc<Service>> {
    let surroundings = Surroundings {
        bounds: streams,
        max_delay: policy.max_delay,
        patience: app.options.heartbeat,
        clock: app.clock,
        metrics: app.metrics.clone(),
    };
    let upstream = Upstream::new(upstream, surroundings)?;
    Ok(Arc::new(Service {
        model: Model::of_upstream(upstream.authority().to_owned())?,
        stages: None,
        backend: Backend::Upstream(Arc::new(upstream)),
        gate: Gate::new(bounds, app.clock, Coming::default()),
        workers: Arc::new(Semaphore::new(1)),
        policy,
        clock: app.clock,
        metrics: app.metrics.clone(),
        telemetry,
        draining: AtomicBool::new(false),
    }))
}

/// Starts a service without a listener: the engine on a thread of its own, delivery on the
/// current runtime. The thread ends after [`crate::delivery::Handle::stop`].
///
/// # Errors
/// When the operating system refuses the thread, or the collector's URL is of no use.
pub fn start(
    options: &ServiceOptions,
    loaded: Loaded,
    clock: Clock,
    metrics: Arc<Metrics>,
) -> anyhow::Result<(Arc<Service>, JoinHandle<()>)> {
    let Loaded { runner, model, stages, .. } = loaded;
    if let Some(stages) = &stages {
        metrics.watch_stages(stages.clone());
    }
    let end_tokens = model.end_tokens.clone();
    let coming = Coming::default();
    let outlook = Outlook { clock, metrics: metrics.clone(), coming: coming.clone() };
    let engine = engine_thread::start(runner, options.limits, end_tokens, outlook)?;
    let delivery =
        delivery::start(engine.steps, engine.commands, options.streams, clock, metrics.clone());
    let telemetry = telemetry(options.otlp_endpoint.as_deref(), clock, stages.clone())?;
    let service = Service {
        model,
        stages,
        backend: Backend::Engine(delivery),
        telemetry,
        gate: Gate::new(options.bounds, clock, coming),
        workers: Arc::new(Semaphore::new(options.tokenize_workers.max(1))),
        policy: options.policy.clone(),
        clock,
        metrics,
        draining: AtomicBool::new(false),
    };
    Ok((Arc::new(service), engine.thread))
}

fn telemetry(
    endpoint: Option<&str>,
    clock: Clock,
    stages: Option<Arc<dyn RemoteStages>>,
) -> anyhow::Result<Option<Arc<Telemetry>>> {
    endpoint.map(|url| Telemetry::start(url, clock, stages)).transpose()
}

/// Refuses new work, waits for the running streams, at most `limit`, and breaks off the rest.
async fn drain(app: &App, connections: Connections, limit: Duration) {
    let Ok(service) = app.service() else { return };
    service.draining.store(true, Ordering::Relaxed);
    tracing::info!(inflight = service.gate.inflight(), "draining");
    let mut ended = std::pin::pin!(async {
        tokio::join!(connections.graceful.shutdown(), app.streams.settled());
    });
    if tokio::time::timeout(limit, &mut ended).await.is_err() {
        tracing::warn!(inflight = service.gate.inflight(), "the drain limit is over");
        service.stop();
        let _ = tokio::time::timeout(LAST_WORDS, ended).await;
    }
    service.stop();
}

struct Connections {
    router: Router,
    graceful: GracefulShutdown,
    places: Arc<Semaphore>,
    tls: Option<Https>,
}

impl Connections {
    fn new(app: &Arc<App>, options: &Options) -> anyhow::Result<Self> {
        let tls = options.https.clone().map(Https::new).transpose()?;
        Ok(Self {
            router: router(app.clone()),
            graceful: GracefulShutdown::new(),
            places: Arc::new(Semaphore::new(options.max_connections.max(1))),
            tls,
        })
    }

    /// Accepts connections for ever; returns only when the listener is broken.
    async fn accept(&self, listener: &TcpListener) -> io::Error {
        let keep_current = async {
            match &self.tls {
                Some(tls) => tls.keep_current(CHECK_EVERY).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            error = self.accept_all(listener) => error,
            () = keep_current => unreachable!("a certificate is looked after for ever"),
        }
    }

    async fn accept_all(&self, listener: &TcpListener) -> io::Error {
        loop {
            let place = self.places.clone().acquire_owned().await;
            let place = place.expect("the semaphore is never closed");
            match listener.accept().await {
                Ok((stream, _)) => self.serve(stream, place),
                // Out of file descriptors, or a client that left already: the next may do.
                Err(error) if is_transient(&error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(error) => return error,
            }
        }
    }

    fn serve(&self, stream: TcpStream, place: OwnedSemaphorePermit) {
        // Every flush is one write and should leave at once.
        let _ = stream.set_nodelay(true);
        let service = TowerToHyperService::new(self.router.clone());
        let (watcher, tls) = (self.graceful.watcher(), self.tls.as_ref().map(Https::acceptor));
        tokio::spawn(async move {
            let _place = place;
            let Some(tls) = tls else {
                return serve_connection(stream, service, watcher).await;
            };
            match tokio::time::timeout(HEADER_TIMEOUT, tls.accept(stream)).await {
                Ok(Ok(stream)) => serve_connection(stream, service, watcher).await,
                _ => tracing::debug!("a TLS handshake failed"),
            }
        });
    }
}

async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    service: TowerToHyperService<Router>,
    watcher: Watcher,
) {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        // A chunk is three small pieces: one copy and `send` is cheaper than `writev`.
        .writev(false)
        .max_buf_size(CONNECTION_BUFFER_BYTES);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    if let Err(error) = watcher.watch(connection.into_owned()).await {
        tracing::debug!(%error, "a connection ended early");
    }
}

fn is_transient(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    /// `EMFILE` and `ENFILE`: too many open files, in the process or the system.
    const TOO_MANY_FILES: [i32; 2] = [24, 23];
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
        || error.raw_os_error().is_some_and(|code| TOO_MANY_FILES.contains(&code))
}
