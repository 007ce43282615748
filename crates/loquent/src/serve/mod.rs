//! `loquent serve`: loads a model, or connects to an upstream server, and serves it.

mod absent_upstream;
pub(crate) mod acme;
pub(crate) mod args;
mod banner;
pub(crate) mod cache_sizes;
mod kept_certificate;
mod key_set;
#[cfg(feature = "llama")]
mod launcher;
pub(crate) mod load;
#[cfg(feature = "llama")]
mod model_hash;
#[cfg(feature = "llama")]
mod model_name;
#[cfg(feature = "llama")]
mod past_downloads;
#[cfg(feature = "llama")]
mod sampling_defaults;
#[cfg(feature = "llama")]
mod several;
mod staged;

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::routing::get;
use http::StatusCode;
use loquent_server::{Announcement, LoadedBackend, RequestLog, ServerConfig, StatedSampling};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use self::acme::AcmeKeeper;
use self::args::EngineArgs;
pub use self::args::ServeArgs;
use self::banner::Banner;
use crate::logging::{self, LogFormat};
use crate::{descriptors, private_memory, shutdown};

/// Maximum threads for blocking work, besides those that tokenize prompts.
const MAX_BLOCKING_THREADS: usize = 16;

/// Time limit for the runtime's threads to end after the server. Their remaining work is not
/// needed: a download continues next time, and a model still loading serves nobody.
const RUNTIME_END_LIMIT: Duration = Duration::from_millis(500);
/// Ports that the system may choose before one is taken that UDP has not.
const PORTS_TRIED: usize = 16;

/// Serves until SIGTERM or Ctrl-C, with a `log` for people or programs. Threads that download or
/// load a model may outlive this call.
///
/// # Errors
/// If an option is invalid, the model cannot be loaded, or the address cannot be used. The message
/// contains advice.
pub fn run(mut args: ServeArgs, log: LogFormat) -> anyhow::Result<()> {
    let signalled = prepare_process()?;
    args.engine.sampling = args.sampling.stated();
    args.engine.saves_spans = args.prefix_cache.is_wanted();
    // Of models that join the one whose profile is adopted.
    let others = args.engine.clone();
    args.engine.chat_format = args.chat_format.stated()?;
    args.engine.adopt_profile(&args.source)?;
    let acme = args.acme()?;
    let mut options = args.resolve(acme.as_ref())?;
    options.extension = options.extension.merge(without_live_laboratory());
    if !args.no_request_log {
        options.service.request_log = RequestLog::start().context("the log of requests")?;
    }
    options.upstreams = args.upstream.resolve(!options.http.api_keys.is_empty())?;
    let has_upstreams = !options.upstreams.is_empty();
    let is_local = args.serves_model()?;
    if !is_local {
        warn_of_sampling(args.engine.sampling);
    }
    fit_descriptors(&mut options, has_upstreams);
    let runtime = start_runtime(args.http.threads(), options.service.tokenize_workers)?;
    let outcome = runtime.block_on(async {
        let listener = listen(&format!("{}:{}", args.host, args.port)).await?;
        // Bound before the model is loaded: a port in use is reported at once, and clients get 503
        // while the model loads.
        let bound = listener.local_addr()?;
        let is_demonstration = !has_upstreams && args.is_demonstration();
        let ordered = acme.as_ref().map(AcmeKeeper::banner);
        let banner = Banner::new(bound, &options, is_demonstration).with_ordered(ordered);
        refuse_if_open(bound, &banner, args.upstream.is_open())?;
        if let Some(acme) = acme {
            tokio::spawn(acme.run(bound.port()));
        }
        let urls = options.upstreams.iter().flat_map(|upstream| &upstream.pool.urls);
        urls.for_each(|url| _ = tokio::spawn(absent_upstream::warn_if_absent(url.clone())));
        let wait_limit = options.service.limits.queue_timeout;
        let load = move || match is_local {
            false => Ok(LoadedBackend::Upstreams),
            true => load_models(args, others, wait_limit),
        };
        let announce = move |served: &Announcement<'_>| match log {
            LogFormat::Text => logging::write(&banner.text(served)),
            LogFormat::Json => banner.log(served),
        };
        loquent_server::run(listener, options, load, announce, asked_to_stop(&signalled)).await
    });
    runtime.shutdown_timeout(RUNTIME_END_LIMIT);
    outcome
}

/// Makes the process's memory private, and returns the flag that SIGTERM and Ctrl-C set.
fn prepare_process() -> std::io::Result<Arc<AtomicBool>> {
    // Before any key is read.
    private_memory::keep();
    shutdown::defer()
}

/// Starts the runtime with `threads` for connections.
fn start_runtime(threads: usize, tokenize_workers: usize) -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        // Parsing, tokenizing and rendering bound themselves; what else blocks (a look-up of a
        // host's name, the model's loading) comes singly.
        .max_blocking_threads(MAX_BLOCKING_THREADS + tokenize_workers)
        .enable_all()
        .build()
}

/// Opens the TCP port. One that the system chooses is free for UDP too, as QUIC has the same.
async fn listen(address: &str) -> anyhow::Result<TcpListener> {
    let advice = || format!("cannot listen on {address}; choose another --port or --host");
    let mut listener = TcpListener::bind(address).await.with_context(advice)?;
    for _ in 0..if address.ends_with(":0") { PORTS_TRIED } else { 0 } {
        if UdpSocket::bind(listener.local_addr()?).is_ok() {
            break;
        }
        // While the one before is still open, so that it is another.
        listener = TcpListener::bind(address).await.with_context(advice)?;
    }
    Ok(listener)
}

/// Raises the limit of descriptors, and lowers that of connections to what it allows.
fn fit_descriptors(options: &mut ServerConfig, has_upstreams: bool) {
    if let Some(descriptors) = descriptors::raise_limit() {
        let per_connection = if has_upstreams { 2 } else { 1 };
        descriptors::fit(&mut options.tcp, descriptors, per_connection);
    }
}

/// Warns that values for sampling do not reach an upstream server.
fn warn_of_sampling(stated: StatedSampling) {
    if stated != StatedSampling::default() {
        tracing::warn!(
            "--temperature, --top-k, --top-p, --min-p and --repeat-penalty have no effect: an \
             upstream server has defaults of its own"
        );
    }
}

/// Loads the model, or prepares models that are loaded on demand. A request waits for such a model
/// at most for `wait_limit`. `others` are the settings of models that join the one in `args`.
#[cfg_attr(not(feature = "llama"), allow(unused_variables, reason = "it loads no other models"))]
fn load_models(
    args: ServeArgs,
    others: EngineArgs,
    wait_limit: Option<Duration>,
) -> anyhow::Result<LoadedBackend> {
    #[cfg(feature = "llama")]
    if several::are_kept(&args) {
        return several::prepare(args, others, wait_limit).map(LoadedBackend::Kept);
    }
    let own_name = args.source.file.api_name().map(str::to_owned);
    let name = args.served_model_name.clone().or(own_name);
    let loaded = load::load(&args.source, &args.engine, name)?;
    #[cfg(feature = "llama")]
    let joining = several::prepare_downloads(&args, others, wait_limit);
    #[cfg(not(feature = "llama"))]
    let joining = None;
    Ok(LoadedBackend::Engine(Box::new(loaded), joining))
}

/// Resolves once the process is asked to stop.
async fn asked_to_stop(signalled: &AtomicBool) {
    if let Err(error) = shutdown::requested(signalled).await {
        tracing::warn!("signals cannot be handled: {error}");
        std::future::pending::<()>().await;
    }
}

/// Returns a router that answers the page's probe for the live laboratory, which only `loquent
/// demo` has. A 404 would be an error in the page's console.
fn without_live_laboratory() -> Router {
    Router::new().route("/v1/lab/live", get(async || StatusCode::NO_CONTENT))
}

/// Refuses to serve everybody on the network, unless the operator `wants` that.
fn refuse_if_open(bound: SocketAddr, banner: &Banner, wants: bool) -> anyhow::Result<()> {
    anyhow::ensure!(
        wants || !banner.is_open(),
        "{bound} can be reached from the network and there is no API key: everybody could use this \
         server. Set --api-key-file or --api-key, listen on 127.0.0.1, or give --open if that is \
         what you want."
    );
    Ok(())
}
