//! The real product: `loquent serve` with its simulated engine in the server's namespace, and the
//! native client in the client's, over QUIC or with server-sent events.
//!
//! The server reports the generation time of each token (`loquent_timings.emit_us`), relative to
//! the request's arrival. Server and client run on one machine, and the request crosses the link
//! before its losses begin. So its arrival time is known: half a round trip after it was sent. It
//! can only be later, by the reaction time of the emulator's thread and the server, so delays are
//! overestimated rather than underestimated.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use futures_util::future::try_join_all;
use http::Method;
use loquent_client::openai::{self, Generate, Prompt, ServerTimings};
use loquent_client::{Asked, Client, Config, Request, Transport};
use loquent_openai::BaseUrl;
use loquent_openai::http::{ConnectionOptions, HttpClient};
use loquent_proto::Delta;
use tokio::sync::oneshot;

use super::metrics::{SchemeTrial, StreamTrace};
use super::plan::{DeliveryPlan, DeliveryScheme};
use super::sse;
use super::starts::blocking_runtime;
use super::testbed::{StreamNetwork, Testbed};
use crate::link::command::ProcessGroup;
use crate::link::forward;
use crate::link::netns::{Namespace, within};
use crate::link::realtime::be_realtime;
use crate::process::{Process, ResourceUsage};

/// Port of the server, for QUIC and HTTP.
const PORT: u16 = 8080;
/// Port whose sockets use the chosen congestion control.
const CONGESTED_PORT: u16 = 8081;
/// Port of the server on which prompts are tested.
const REHEARSAL_PORT: u16 = 8082;
/// Time limit for a server to accept requests.
const READY_LIMIT: Duration = Duration::from_secs(20);
/// Maximum wait for an incomplete stream after its last token was generated.
const OVERTIME: Duration = Duration::from_secs(20);
/// Maximum number of prompts tried for each stream.
const MAX_TRIES: usize = 200;

/// Runs all sessions of a case.
///
/// # Errors
/// If the server does not start, QUIC does not connect, or an answer is refused or broken.
pub fn run(
    plan: &DeliveryPlan,
    scheme: DeliveryScheme,
    rtt_ms: f64,
) -> anyhow::Result<SchemeTrial> {
    let (testbed, port) = match plan.without_root {
        true => {
            let port = free_port()?;
            (Testbed::loopback(plan, rtt_ms, port)?, port)
        }
        false => (Testbed::namespaces(plan, rtt_ms)?, PORT),
    };
    let (streams, usage) = run_over(&testbed, plan, scheme, rtt_ms, port, 0)?;
    let tokens: usize = streams.iter().map(|stream| stream.generated_us.len()).sum();
    let first_token_ms = streams.iter().filter_map(first_token_ms).collect();
    let trial = testbed.finish(streams)?;
    Ok(SchemeTrial {
        server_cpu_us_per_token: Some(usage.cpu_s * 1e6 / tokens.max(1) as f64),
        first_token_ms,
        ..trial
    })
}

/// Runs all sessions over `network`, with the server on `port` of its side. Returns the streams'
/// traces and the server's resource use. An answer may have up to `multi_token` characters that
/// take several tokens.
///
/// # Errors
/// Same as [`run`].
pub fn run_over(
    network: &dyn StreamNetwork,
    plan: &DeliveryPlan,
    scheme: DeliveryScheme,
    rtt_ms: f64,
    port: u16,
    multi_token: usize,
) -> anyhow::Result<(Vec<StreamTrace>, ResourceUsage)> {
    let inside = network.server_side();
    let prompts = rehearse(plan, inside, multi_token)?;
    let rate = plan.tokens_per_s.to_string();
    let server = ServeProcess::start(plan, inside, (&rate, scheme.server_options()), port)?;
    let front = TcpFrontend::start(network, plan, scheme, port)?;
    let server_id = server.group.id();
    let asking = Asking { plan, scheme, rtt_ms, network, port: front.port, server_id };
    within(network.client_side(), || {
        be_realtime();
        blocking_runtime()?.block_on(asking.ask_all(prompts))
    })?
}

/// Returns a port that was free a moment ago.
fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok(listener.local_addr()?.port())
}

fn first_token_ms(trace: &StreamTrace) -> Option<f64> {
    let (ready, generated) = trace.ready_us.first().zip(trace.generated_us.first())?;
    Some((*ready as f64 - *generated as f64) / 1e3)
}

/// A server process that ends when this value is dropped or this program ends.
struct ServeProcess {
    group: ProcessGroup,
}

impl ServeProcess {
    /// Starts a server that generates `rate` tokens per second for each answer, with additional
    /// `options`, and waits until it is ready.
    fn start(
        plan: &DeliveryPlan,
        inside: Option<&Namespace>,
        (rate, options): (&str, &[&str]),
        port: u16,
    ) -> anyhow::Result<Self> {
        let batch = plan.sessions.max(16).to_string();
        let host = if inside.is_some() { "0.0.0.0" } else { "127.0.0.1" };
        let mut server = Command::new(&plan.server_program);
        server
            .args(["serve", "--simulate", rate, "--host", host, "--port", &port.to_string()])
            .arg("--open")
            .args(["--max-batch-size", &batch, "--max-connections-per-address", "4096"])
            // Prompts are not measured, so every stream shall begin with the first step after its
            // request, whatever else that step computes.
            .args(["--itl-target-ms", "off", "--prefill-max-tokens", "1000000"])
            .args(options)
            .args(&plan.server_options)
            // Nobody but the bench reaches the namespace.
            .env("LOQUENT_LOG", "error")
            .stdout(Stdio::null());
        // The server inherits the real-time priority of the thread that starts it.
        let group = within(inside, || {
            be_realtime();
            ProcessGroup::start(server, None)
        })??;
        let mut server = Self { group };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let began = Instant::now();
        while !within(inside, || is_ready(address))? {
            if let Some(status) = server.group.ended()? {
                bail!("the server ended before it was ready: {status}; check --serve-options");
            }
            ensure!(
                began.elapsed() < READY_LIMIT,
                "the server was not ready after 20 s; check --serve-options"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }
}

/// Returns true if the server at `address` accepts requests; it listens before its model is loaded.
fn is_ready(address: SocketAddr) -> bool {
    let ask = || {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(READY_LIMIT))?;
        stream.write_all(b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut status = String::new();
        BufReader::new(stream).read_line(&mut status)?;
        Ok::<_, io::Error>(status)
    };
    ask().is_ok_and(|status| status.starts_with("HTTP/1.1 200 "))
}

/// A TCP forwarder in front of the server, for two features that the server's own listener lacks: a
/// chosen congestion control, and the addresses of UDP relays. Copies bytes unchanged.
struct TcpFrontend {
    port: u16,
    _stop: Option<oneshot::Sender<()>>,
}

impl TcpFrontend {
    fn start(
        network: &dyn StreamNetwork,
        plan: &DeliveryPlan,
        scheme: DeliveryScheme,
        server_port: u16,
    ) -> anyhow::Result<Self> {
        let listeners = match (network.server_side(), scheme.congestion()) {
            (Some(_), None) => return Ok(Self { port: server_port, _stop: None }),
            (Some(inside), Some(name)) => {
                vec![inside.within(|| sse::listen(name, CONGESTED_PORT))??]
            }
            // Clients discover the QUIC address over HTTP, so each relay's address needs TCP too.
            (None, _) => (0..plan.sessions)
                .map(|session| relay_door(network, session))
                .collect::<Result<_, _>>()?,
        };
        let port = listeners[0].local_addr()?.port();
        let (stop, stopped) = oneshot::channel::<()>();
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, server_port));
        let inside = network.server_side().cloned();
        let body = move || -> std::io::Result<()> {
            be_realtime();
            blocking_runtime()?.block_on(async move {
                for listener in listeners {
                    tokio::spawn(accept_all(tokio::net::TcpListener::from_std(listener)?, to));
                }
                // The sender is dropped when the measurement is over.
                let _ = stopped.await;
                Ok(())
            })
        };
        std::thread::spawn(move || within(inside.as_ref(), body));
        Ok(Self { port, _stop: Some(stop) })
    }
}

fn relay_door(network: &dyn StreamNetwork, session: usize) -> std::io::Result<TcpListener> {
    let listener = TcpListener::bind(network.server_address(session, 0))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

async fn accept_all(listener: tokio::net::TcpListener, to: SocketAddr) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(forward::join_tcp(stream, to));
    }
}

/// Chooses the prompts of all streams. The simulated engine sometimes spreads one character over
/// four tokens, of which three show nothing, which would count as a stall of the delivery. So this
/// tests prompts on an unpaced engine, whose answer depends only on the prompt, until one has an
/// answer with at most `multi_token` such characters.
fn rehearse(
    plan: &DeliveryPlan,
    inside: Option<&Namespace>,
    multi_token: usize,
) -> anyhow::Result<Vec<String>> {
    let port = if inside.is_some() { REHEARSAL_PORT } else { free_port()? };
    let server = ServeProcess::start(plan, inside, ("inf", &[]), port)?;
    let ask = || -> anyhow::Result<Vec<String>> {
        let base = BaseUrl::parse(&format!("http://127.0.0.1:{port}"))?;
        let client = HttpClient::new(base, None)?;
        blocking_runtime()?.block_on(async {
            let mut prompts = Vec::new();
            for session in 0..plan.sessions {
                prompts.push(choose(plan, &client, session, multi_token).await?);
            }
            Ok(prompts)
        })
    };
    let prompts = within(inside, ask)?;
    drop(server);
    prompts
}

async fn choose(
    plan: &DeliveryPlan,
    client: &HttpClient,
    session: usize,
    multi_token: usize,
) -> anyhow::Result<String> {
    let tokens = plan.answer(session).tokens.len();
    for attempt in 0..MAX_TRIES {
        let prompt = format!("stream {session}, question {attempt}, tokens={tokens}");
        let request = question(&prompt, tokens);
        let mut answer = openai::generate(client, &request, ConnectionOptions::default()).await?;
        let mut found = 0;
        while let Some(arrival) = answer.next().await? {
            found += usize::from(!arrival.delta.text.is_ascii());
        }
        if found <= multi_token {
            return Ok(prompt);
        }
    }
    bail!(
        "no prompt has an answer of {tokens} tokens with at most {multi_token} multi-token \
         characters; choose another --duration-s"
    )
}

fn question(prompt: &str, tokens: usize) -> Generate {
    Generate {
        model: "loquent-simulated".into(),
        prompt: Prompt::Chat(prompt.into()),
        max_tokens: tokens as u32,
        temperature: None,
        seed: None,
        ignore_eos: true,
        stream_interval: None,
        include_timings: true,
        extra: serde_json::Map::new(),
    }
}

/// The client side of a measurement.
struct Asking<'a> {
    plan: &'a DeliveryPlan,
    scheme: DeliveryScheme,
    rtt_ms: f64,
    network: &'a dyn StreamNetwork,
    port: u16,
    server_id: u32,
}

/// A connected client.
enum Connected {
    Quic(Box<Client>),
    Http(Box<HttpClient>),
}

/// Progress of a client's answer.
struct Seen<'a> {
    network: &'a dyn StreamNetwork,
    session: usize,
    tokens: usize,
    ready: Vec<Instant>,
    timings: Option<Box<ServerTimings>>,
}

impl Seen<'_> {
    /// Records that `tokens` more tokens are ready. Bytes after the last one do not count: the
    /// timings that follow exist only for this measurement.
    fn note(&mut self, tokens: usize, at: Instant) {
        self.ready.extend(std::iter::repeat_n(at, tokens));
        if self.ready.len() >= self.tokens {
            self.network.end(self.session, at);
        }
    }
}

impl Asking<'_> {
    /// Connects all clients and reads their answers. Returns the streams' traces and the server's
    /// resource use, without the cost of connecting.
    async fn ask_all(
        &self,
        prompts: Vec<String>,
    ) -> anyhow::Result<(Vec<StreamTrace>, ResourceUsage)> {
        let clients = (0..self.plan.sessions).map(|session| self.connect(session));
        let clients = try_join_all(clients).await?;
        let usage = Process::open(self.server_id)?.watch()?;
        let base = Instant::now() + self.plan.lead();
        let asking = clients.iter().zip(&prompts).enumerate();
        let asking = asking.map(|(session, (client, prompt))| {
            let sent = base + self.stagger() * session as u32;
            self.network.begin(session, self.began(sent));
            self.ask(session, client, prompt, sent)
        });
        let traces = try_join_all(asking).await?;
        Ok((traces, usage.stop()?))
    }

    async fn connect(&self, session: usize) -> anyhow::Result<Connected> {
        let quic = self.scheme.congestion().is_none();
        let url = format!("http://{}", self.network.server_address(session, self.port));
        if !quic {
            let client = HttpClient::new(BaseUrl::parse(&url)?, None)?;
            // The connection is kept alive for the question.
            openai::models(&client).await?;
            return Ok(Connected::Http(Box::new(client)));
        }
        let config = Config { head_start: Duration::from_secs(10), ..Config::new(url.clone()) };
        let client = Client::new(config)?;
        ensure!(client.warm_up().await == Transport::Quic, "no QUIC connection to {url}");
        Ok(Connected::Quic(Box::new(client)))
    }

    async fn ask(
        &self,
        session: usize,
        client: &Connected,
        prompt: &str,
        sent: Instant,
    ) -> anyhow::Result<StreamTrace> {
        let tokens = self.plan.answer(session).tokens.len();
        let deadline = self.began(sent) + Duration::from_secs_f64(self.plan.seconds) + OVERTIME;
        let mut seen =
            Seen { network: self.network, session, tokens, ready: Vec::new(), timings: None };
        tokio::time::sleep_until(sent.into()).await;
        let question = question(prompt, tokens);
        let reading = async {
            match client {
                Connected::Http(client) => read_events(client, &question, &mut seen).await,
                Connected::Quic(client) => read_records(client, &question, &mut seen).await,
            }
        };
        // An answer that is incomplete by then is measured as far as it arrived.
        let read = tokio::time::timeout_at(deadline.into(), reading).await;
        read.unwrap_or(Ok(()))?;
        Ok(self.trace(session, sent, &seen))
    }

    /// Returns the time between requests, which are spread over the duration of one token.
    fn stagger(&self) -> Duration {
        self.token_gap() / self.plan.sessions as u32
    }

    fn token_gap(&self) -> Duration {
        Duration::from_secs_f64(1.0 / self.plan.tokens_per_s)
    }

    fn arrived(&self, sent: Instant) -> Instant {
        sent + Duration::from_secs_f64(self.rtt_ms / 2e3)
    }

    /// Returns the start of the losses: the earliest time of the first token, one engine step after
    /// the request arrived.
    fn began(&self, sent: Instant) -> Instant {
        self.arrived(sent) + self.token_gap()
    }

    /// Builds a trace from the generation times by the server's clock and the ready times by the
    /// client's.
    fn trace(&self, session: usize, sent: Instant, seen: &Seen<'_>) -> StreamTrace {
        let began = self.began(sent);
        let since = |at: Instant| at.saturating_duration_since(began).as_micros() as u64;
        let gap_us = self.token_gap().as_micros() as u64;
        let generated_us = match &seen.timings {
            Some(timings) => {
                let to_us = |us: &f64| (*us as u64).saturating_sub(gap_us);
                timings.emit_us.iter().map(to_us).collect()
            }
            // Without the server's timings, which come last, the engine's fixed pace tells.
            None => self.plan.answer(session).times_us,
        };
        StreamTrace {
            generated_us,
            ready_us: seen.ready.iter().copied().map(since).collect(),
            ..StreamTrace::default()
        }
    }
}

async fn read_events(
    client: &HttpClient,
    question: &Generate,
    seen: &mut Seen<'_>,
) -> anyhow::Result<()> {
    let mut answer = openai::generate(client, question, ConnectionOptions::default()).await?;
    while let Some(arrival) = answer.next().await? {
        if !arrival.delta.text.is_empty() {
            seen.note(1, arrival.at.into());
        }
        seen.timings = arrival.delta.timings.or(seen.timings.take());
    }
    Ok(())
}

async fn read_records(
    client: &Client,
    question: &Generate,
    seen: &mut Seen<'_>,
) -> anyhow::Result<()> {
    let body = question.body().to_string();
    let request = Request::new(Method::POST, question.path(), body);
    let mut answer = match client.ask(&request).await? {
        Asked::Answer(answer) => answer,
        Asked::Reply(_) => bail!("the server refused the request; check --serve-options"),
    };
    while let Some(step) = answer.next().await? {
        let now = Instant::now();
        for delta in step.into_deltas()? {
            seen.note(delta.tokens() as usize, now);
            if let Delta::Other { json, .. } = delta {
                seen.timings = timings_of(&json).or(seen.timings.take());
            }
        }
    }
    ensure!(
        answer.transport() == Transport::Quic,
        "the answer fell back from QUIC to HTTP; the link may be too lossy to measure"
    );
    Ok(())
}

fn timings_of(json: &str) -> Option<Box<ServerTimings>> {
    let value: serde_json::Value = serde_json::from_str(json).ok()?;
    serde_json::from_value(value["loquent_timings"].clone()).ok()
}
