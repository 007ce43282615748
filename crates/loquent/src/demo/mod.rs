//! `loquent demo`: one answer over TCP and over Loquent, side by side on the same bad network.
//!
//! `server` is the server of `loquent serve` at reading speed. Between it and its two clients is
//! `network`: a door for each on this machine, behind which packets cross the emulated link.
//! `weather` determines the losses of that link, and `news` reports them. Two front ends show it:
//! `terminal`, and the live half of the laboratory's page through `routes`.

mod args;
mod browser;
mod modelled_tcp;
mod network;
mod network_conditions;
mod news;
mod paced;
mod routes;
mod server;
mod terminal;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::oneshot;

pub use self::args::DemoArgs;
use self::network::LiveNetwork;
use self::routes::{LiveOffer, network_text};
use self::server::DemoServer;
use self::terminal::TerminalRun;
use crate::shutdown;

/// Time limit for the runtime's threads to end after the demonstration.
const RUNTIME_END_LIMIT: Duration = Duration::from_millis(500);

impl LiveOffer {
    /// Returns the time to generate an answer of full length.
    fn answer_length(&self) -> Duration {
        Duration::from_secs_f64(f64::from(self.max_tokens) / self.tokens_per_s)
    }
}

/// Runs the demonstration until it ends, or until SIGTERM or Ctrl-C.
///
/// # Errors
/// If a flag is out of range, the model cannot be loaded, a port is taken, or an answer is
/// incomplete.
pub fn run(args: DemoArgs) -> anyhow::Result<()> {
    let signalled = shutdown::defer()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(demonstrate(args, &signalled));
    // A model that is loading need not be waited for.
    runtime.shutdown_timeout(RUNTIME_END_LIMIT);
    outcome
}

async fn demonstrate(args: DemoArgs, signalled: &AtomicBool) -> anyhow::Result<()> {
    let weather = args.weather();
    let listener = network::bind_server(args.port)?;
    let address = listener.local_addr()?;
    let network = Arc::new(LiveNetwork::open(address, &weather, args.network)?);
    let offer = LiveOffer {
        port: address.port(),
        weather,
        question: args.prompt.clone(),
        max_tokens: args.max_tokens,
        tokens_per_s: args.tokens_per_s,
    };
    let extension = routes::routes(offer.clone(), network.clone());
    let server = DemoServer {
        model: args.model.clone(),
        tokens_per_s: args.tokens_per_s,
        extension,
        page_sources: network::page_sources(address.port()),
    };
    let (ready, is_ready) = oneshot::channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let mut serving = tokio::spawn(server.run(listener, ready, async {
        // Dropped is as good as sent.
        let _ = stopped.await;
    }));
    let show = async {
        let model = is_ready.await.context("the server has not started")?;
        show(&args, &model, &offer, &network).await
    };
    let outcome = tokio::select! {
        served = &mut serving => return served?,
        outcome = show => outcome,
        asked = shutdown::requested(signalled) => asked.map_err(Into::into),
    };
    drop(stop);
    // What failed in the server explains more than what failed before it.
    serving.await??;
    outcome
}

/// Shows a run in the terminal, or opens the page and waits.
async fn show(
    args: &DemoArgs,
    model: &str,
    offer: &LiveOffer,
    network: &LiveNetwork,
) -> anyhow::Result<()> {
    let has_display = browser::has_display(|name| std::env::var_os(name));
    if args.terminal || !(args.no_open || has_display) {
        return TerminalRun::show(model, offer, network).await;
    }
    let url = format!("http://localhost:{}/lab?live", offer.port);
    println!("The laboratory is at {url} ({}).", network_text(network.kind()));
    if !args.no_open
        && let Err(error) = browser::open(&url)
    {
        println!("Open it in a browser; none could be started here: {error}");
    }
    println!("Ctrl-C ends it. For the terminal: loquent demo --terminal");
    std::future::pending().await
}
