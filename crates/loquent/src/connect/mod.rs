//! `loquent connect`: an OpenAI endpoint on the user's own machine. Any SDK gets its answers over
//! the delivery protocol by changing only its base URL.

mod access;
mod limited_listener;
mod local_server;
mod proxy;
mod reachability;
mod refusal;
mod relay;
pub(crate) mod resume_store;
mod trace;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use axum::Router;
use loquent_client::{Client, Config};
use loquent_openai::api_key::{api_key, warn_of_cleartext};
use loquent_server::{Clock, Telemetry};
use tokio::net::TcpListener;

use access::{Access, LocalKey};
use limited_listener::LimitedListener;
use proxy::Proxy;
use resume_store::ResumeStore;

use crate::logging;
use crate::trust::TrustArgs;
use crate::user_folder::user_folder;
use crate::via_args::TwoNetworksArgs;

const EXAMPLES: &str = "Examples:
  loquent connect --url https://loquent.example
  loquent connect --url https://loquent.example --api-key-file key.txt --local-key-file local.txt
  loquent connect --url https://loquent.example --via wlan0,wwan0   over Wi-Fi and mobile at once

Then give any OpenAI client the base URL http://127.0.0.1:11435/v1, for example
  OPENAI_BASE_URL=http://127.0.0.1:11435/v1 OPENAI_API_KEY=none python your_program.py
  curl -N http://127.0.0.1:11435/v1/chat/completions -H 'content-type: application/json' \\
    -d '{\"stream\": true, \"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}]}'

An answer that was asked for with \"resumable\": true outlives its client, and this proxy too:
  curl -N http://127.0.0.1:11435/v1/streams/ID -H 'last-event-id: N'
where ID is the response header x-loquent-stream-id and N the last id: that was read.";

/// Time limit at exit for telling the server which answers are not wanted.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// Time for which a local client may leave bytes unread before it loses its connection. Chosen by
/// hand: far longer than a program is usually stopped at a debugger's breakpoint.
const STALL_LIMIT: Duration = Duration::from_secs(300);

/// Arguments of `loquent connect`. The environment variable of a flag is `LOQUENT_` and its name.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct ConnectArgs {
    /// URL of the server, with or without a final /v1
    #[arg(long, value_name = "URL", env = "LOQUENT_URL", required = true)]
    url: String,
    /// Address to listen on; port 0 picks a free one
    #[arg(long, value_name = "ADDRESS", env = "LOQUENT_LISTEN", default_value = "127.0.0.1:11435")]
    listen: SocketAddr,
    /// API key for the server; it replaces the keys that local clients send
    #[arg(long, value_name = "KEY", env = "LOQUENT_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// File with the API key for the server, which other users cannot see as they can arguments
    #[arg(long, value_name = "FILE", env = "LOQUENT_API_KEY_FILE")]
    api_key_file: Option<PathBuf>,
    /// Key that local clients must send as a bearer token, so that other users of this machine
    /// cannot use the proxy
    #[arg(long, value_name = "KEY", env = "LOQUENT_LOCAL_KEY", hide_env_values = true)]
    local_key: Option<String>,
    /// File with the local key; a random one is written to it if it does not exist
    #[arg(long, value_name = "FILE", env = "LOQUENT_LOCAL_KEY_FILE")]
    local_key_file: Option<PathBuf>,
    /// Let --listen name an address that other machines reach, without a local key
    #[arg(long, env = "LOQUENT_OPEN")]
    open: bool,
    /// Name by which clients may call this machine beside localhost and its addresses; repeat the
    /// flag for several
    #[arg(long, value_name = "NAME", env = "LOQUENT_ALLOWED_HOST", value_delimiter = ',')]
    allowed_host: Vec<String>,
    #[command(flatten)]
    trust: TrustArgs,
    #[command(flatten)]
    networks: TwoNetworksArgs,
    /// Use HTTP only; answers can still be resumed
    #[arg(long, env = "LOQUENT_NO_QUIC")]
    no_quic: bool,
    /// Folder for state: the transport that works for each server, the answers under way
    /// [default: loquent in the user's cache folder]
    #[arg(long, value_name = "DIR", env = "LOQUENT_STATE_DIR")]
    state_dir: Option<PathBuf>,
    /// How long a request waits for QUIC before it uses HTTP
    #[arg(long, value_name = "MS", env = "LOQUENT_HEAD_START_MS", default_value_t = 500)]
    head_start_ms: u64,
    /// How long to try to resume a broken answer; servers keep one for 60 s by default
    #[arg(long, value_name = "S", env = "LOQUENT_RESUME_LIMIT_S", default_value_t = 90)]
    resume_limit_s: u64,
    /// Largest request body
    #[arg(long, value_name = "N", env = "LOQUENT_MAX_REQUEST_BYTES", default_value_t = 8 * 1024 * 1024)]
    max_request_bytes: usize,
    /// Most local connections at once; further ones wait
    #[arg(long, value_name = "N", env = "LOQUENT_MAX_CONNECTIONS", default_value_t = 512)]
    max_connections: usize,
    /// OpenTelemetry collector that receives a span for each question [default: none]
    ///
    /// The server's spans become its children. The protocol is OTLP over HTTP; an example is
    /// http://127.0.0.1:4318.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    otlp_endpoint: Option<String>,
    /// How long running answers may take to end after SIGTERM; the rest can be resumed later
    #[arg(long, value_name = "S", env = "LOQUENT_DRAIN_TIMEOUT_S", default_value_t = 10)]
    drain_timeout_s: u64,
}

/// Returns the folder for state that outlives a run: `loquent` in the user's cache folder. `None`
/// if the environment names no such folder.
pub fn default_state_dir() -> Option<PathBuf> {
    user_folder("XDG_CACHE_HOME", ".cache").map(|cache| cache.join("loquent"))
}

/// Runs `loquent connect` until SIGTERM or Ctrl-C.
///
/// # Errors
/// A URL that cannot be used, or an address that cannot be listened on. An unreachable server is
/// not an error: it may start later.
pub async fn run(args: ConnectArgs) -> anyhow::Result<()> {
    let state_dir = args.state_dir.clone().or_else(default_state_dir);
    let key = api_key(args.api_key.as_deref(), args.api_key_file.as_deref())?;
    let own_key = key.is_some();
    let access = args.access()?;
    let client = Client::new(args.networks.apply(Config {
        api_key: key,
        trust: args.trust.trust()?,
        quic: !args.no_quic,
        head_start: Duration::from_millis(args.head_start_ms),
        resume_limit: Duration::from_secs(args.resume_limit_s),
        memory: state_dir.clone(),
        ..Config::new(args.url)
    }))?;
    let file = state_dir.map(|folder| folder.join(store_name(client.url())));
    let store = ResumeStore::open(file, SystemTime::now());
    let listener = TcpListener::bind(args.listen).await.with_context(|| {
        format!("cannot listen on {}; choose another --listen address", args.listen)
    })?;
    let telemetry = args.otlp_endpoint.as_deref().filter(|url| !url.is_empty());
    let telemetry = telemetry
        .map(|url| Telemetry::start("loquent-connect", url, Clock::start(), None))
        .transpose()?;
    let proxy = Arc::new(Proxy {
        client,
        store,
        telemetry: telemetry.clone(),
        own_key,
        max_request_bytes: args.max_request_bytes,
        access,
    });
    announce(&proxy, listener.local_addr()?);
    let listener = LimitedListener::new(listener, args.max_connections, STALL_LIMIT);
    serve(listener, proxy, Duration::from_secs(args.drain_timeout_s)).await?;
    if let Some(telemetry) = telemetry {
        // The exporter sends the last spans before it returns.
        tokio::task::spawn_blocking(move || telemetry.stop()).await?;
    }
    Ok(())
}

impl ConnectArgs {
    /// # Errors
    /// If the local key cannot be read or written, or is missing although required.
    fn access(&self) -> anyhow::Result<Access> {
        let file = self.local_key_file.as_deref();
        let local_key = LocalKey::read(self.local_key.as_deref(), file)?;
        if let (Some((_, true)), Some(file)) = (&local_key, file) {
            let file = file.display();
            logging::say(&format!("Wrote a new local key to {file}; clients send it as API key."));
        }
        let local_key = local_key.map(|(key, _)| key);
        Access::new(self.listen.ip(), self.allowed_host.clone(), local_key, self.open)
    }
}

/// Returns the file name of the store, one for each server.
fn store_name(url: &str) -> String {
    let name = url.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    format!("answers-{}.json", name.chars().take(100).collect::<String>())
}

fn announce(proxy: &Arc<Proxy>, bound: SocketAddr) {
    let server = proxy.client.url().to_owned();
    logging::say(&format!("Loquent connects to {server} and serves its API on http://{bound}"));
    logging::say(&format!("Base URL for any OpenAI client: http://{bound}/v1"));
    let base = proxy.client.http().base();
    // Without a key of its own it passes on those of its clients.
    let has_key = proxy.own_key || proxy.access.local_key.is_none();
    if let Some(warning) = warn_of_cleartext(base, has_key) {
        logging::warn(&warning);
    }
    if proxy.own_key && proxy.access.local_key.is_none() {
        logging::warn(
            "All users of this machine can use its key; --local-key-file FILE prevents that.",
        );
    }
    for (id, offset) in proxy.store.answers() {
        let url = format!("http://{bound}/v1/streams/{id}");
        logging::say(&format!("Under way when it stopped: {url} (up to {offset})"));
    }
    tokio::spawn(reachability::report(proxy.client.clone()));
}

async fn serve(listener: LimitedListener, proxy: Arc<Proxy>, drain: Duration) -> io::Result<()> {
    let writer = tokio::spawn(Arc::clone(&proxy.store).write_changes());
    let app = Router::new().fallback(proxy::handle).with_state(Arc::clone(&proxy));
    let signalled = crate::shutdown::defer()?;
    let mut heard = Ok(());
    let stop = async { heard = crate::shutdown::requested(&signalled).await };
    local_server::serve(listener, app, local_server::HEAD_LIMIT, stop, drain).await;
    // What is left is neither finished nor unwanted: the next run can go on with it.
    writer.abort();
    proxy.store.write();
    proxy.client.close(CLOSE_LIMIT).await;
    heard
}
