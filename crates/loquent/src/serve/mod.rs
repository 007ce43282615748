//! `loquent serve`: loads a model, or connects to an upstream server, and serves it.

pub(crate) mod args;
mod descriptors;
pub(crate) mod load;
mod staged;

use anyhow::Context;
use loquent_server::LoadedBackend;
use tokio::net::TcpListener;

pub use self::args::ServeArgs;
use crate::shutdown;

/// Serves until SIGTERM or Ctrl-C.
///
/// # Errors
/// When an option is invalid, the model cannot be loaded, or the address cannot be used. The
/// message says what to do.
pub fn run(mut args: ServeArgs) -> anyhow::Result<()> {
    args.engine.adopt_profile(&args.source)?;
    let mut options = args.resolve()?;
    let upstream = args.upstream.resolve(!options.http.api_keys.is_empty())?;
    if let Some(descriptors) = descriptors::raise_limit() {
        let per_connection = if upstream.is_some() { 2 } else { 1 };
        descriptors::fit(&mut options.tcp, descriptors, per_connection);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(args.http.threads())
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let address = format!("{}:{}", args.host, args.port);
        let listener = TcpListener::bind(&address).await.with_context(|| {
            format!("cannot listen on {address}; choose another --port or --host")
        })?;
        // Bound before the model is loaded: a port in use is reported at once, and clients get 503
        // while the model loads.
        let bound = listener.local_addr()?;
        let scheme = if options.https.is_some() { "https" } else { "http" };
        let load = move || match upstream {
            Some(upstream) => Ok(LoadedBackend::Upstream(upstream)),
            None => load::load(&args.source, &args.engine, args.served_model_name)
                .map(LoadedBackend::Engine),
        };
        let announce = move |name: &str, description: &str| {
            eprintln!("Loquent serves {name} ({description}) on {scheme}://{bound}");
        };
        loquent_server::run(listener, options, load, announce, shutdown::requested()).await
    })
}
