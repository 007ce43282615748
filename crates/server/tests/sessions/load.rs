//! Many readers at once against a server in a process of its own: nothing is lost, and what a
//! connection costs is printed. Too long for every run:
//! `cargo test --release --test server load -- --ignored --nocapture`.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use loquent_proto::AnswerHandle;
use serde_json::{Value, json};

use super::harness::*;

const READERS: usize = 500;
const TOKENS: usize = 150;

/// The server's process: the test below runs this one in a child.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the other test's server"]
async fn load_server() {
    let setup = Setup {
        token_every: Duration::from_millis(100),
        kept: |kept| {
            kept.answers_per_key = 10_000;
            kept.kept_bytes = 1 << 30;
        },
        quic: |quic| {
            quic.max_connections = 10_000;
            quic.max_connections_per_address = 10_000;
        },
        batch: 512,
        max_tcp_connections: 10_000,
        ..Setup::default()
    };
    let server = start(setup).await;
    let hash = loquent_proto::hex::encode(&server.certificate);
    let line = json!({"http": server.http, "quic": server.quic, "certificate": hash});
    println!("\n{line}");
    std::io::stdout().flush().unwrap();
    let mut line = String::new();
    let wait = move || drop(std::io::stdin().read_line(&mut line));
    tokio::task::spawn_blocking(wait).await.unwrap();
}

fn address(line: &Value, name: &str) -> std::net::SocketAddr {
    line[name].as_str().unwrap().parse().unwrap()
}

/// Resident bytes and seconds of processor time of a process.
fn usage(pid: u32) -> (f64, f64) {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
    let status = read("status");
    let rss = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    let kib: f64 = rss.split_whitespace().nth(1).unwrap().parse().unwrap();
    let stat = read("stat");
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    (kib * 1024.0, ticks / 100.0)
}

/// The lines that the server's process says.
type Lines = Box<dyn Iterator<Item = String>>;

fn server_elsewhere() -> (Child, Lines, Server) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["load_server", "--ignored", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    let mut lines = out.lines().map(Result::unwrap); // read to the end: the child says more
    let line = lines.find(|line| line.starts_with('{')).unwrap();
    let line: Value = serde_json::from_str(&line).unwrap();
    let hash = line["certificate"].as_str().unwrap().to_owned();
    let byte = |i: usize| u8::from_str_radix(&hash[2 * i..2 * i + 2], 16).unwrap();
    let addresses = [address(&line, "http"), address(&line, "quic")];
    let server = Server::elsewhere(addresses, std::array::from_fn(byte));
    (child, Box::new(lines), server)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes half a minute"]
async fn load_of_500_readers() {
    let (mut child, mut lines, server) = server_elsewhere();
    let text = expected(&server, TOKENS).await;
    let (before, cpu_before) = usage(child.id());
    let mut connections = Vec::new();
    for _ in 0..READERS {
        connections.push(connect(&server).await);
    }
    let (idle, cpu_idle) = usage(child.id());
    let began = Instant::now();
    let readers: Vec<_> = (connections.into_iter())
        .map(|(endpoint, connection)| {
            tokio::spawn(async move {
                let mut reader = Reader::ask(&connection, 0, &chat(TOKENS, json!({}))).await;
                reader.run(usize::MAX).await;
                drop(endpoint);
                (reader.complete, reader.text(), quinn::Connection::stats(&connection))
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(8)).await;
    let (busy, _) = usage(child.id());
    let mut wire = [0, 0, 0, 0];
    for reader in readers {
        let (complete, got, stats) = reader.await.unwrap();
        assert!(complete && got == text, "an answer was lost");
        let (down, up) = (stats.udp_rx, stats.udp_tx);
        let one = [down.datagrams, down.bytes, up.datagrams, up.bytes];
        wire = std::array::from_fn(|i| wire[i] + one[i]);
    }
    let took = began.elapsed();
    let (_, cpu) = usage(child.id());
    let each = |bytes: f64| bytes / READERS as f64 / 1024.0;
    let tokens = (READERS * TOKENS) as f64;
    println!("{READERS} readers of {TOKENS} tokens, one per 100 ms: {took:.1?}, none lost");
    println!(
        "memory per connection: {:.1} KiB idle, {:.1} KiB with an answer",
        each(idle - before),
        each(busy - before)
    );
    println!(
        "processor: {:.2} ms per handshake, {:.1} µs per token, {:.0} % of one core",
        (cpu_idle - cpu_before) * 1e3 / READERS as f64,
        (cpu - cpu_idle) * 1e6 / tokens,
        (cpu - cpu_idle) / took.as_secs_f64() * 100.0
    );
    let [down, down_bytes, up, up_bytes] = wire.map(|count| count as f64 / tokens);
    println!(
        "UDP per token, handshakes included: {down:.2} packets and {down_bytes:.0} bytes down, {up:.2} and {up_bytes:.0} up"
    );
    drop(child.stdin.take());
    assert!(lines.any(|line| line.contains("1 passed")), "the server failed");
    child.wait().unwrap();
}

/// How the readers of one answer are connected.
#[derive(Debug, Clone, Copy)]
enum Way {
    Quic,
    Events,
}

impl std::fmt::Display for Way {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str(match self {
            Self::Quic => "QUIC",
            Self::Events => "event stream",
        })
    }
}

/// A connection over QUIC, if that is the way.
type Connected = Option<(quinn::Endpoint, web_transport_quinn::Session)>;

/// Reads the answer `name` from its beginning; its text.
async fn read_whole(server: Server, connected: Connected, name: AnswerHandle) -> String {
    match connected {
        Some((_endpoint, connection)) => {
            let mut reader = Reader::resume(&connection, 0, &name, 0).await;
            reader.run(usize::MAX).await;
            assert!(reader.complete, "{:?}", reader.said);
            reader.text()
        }
        None => {
            let path = format!("/v1/streams/{}?token={}", name.id_hex(), name.token_hex());
            let (status, _, mut body) = open(server.http, "GET", &path, &[], "").await;
            assert_eq!(status, 200);
            let events = Events::read(&mut body, usize::MAX).await;
            assert!(events.done && !events.broken);
            events.text
        }
    }
}

/// One answer with so many readers; prints what each of them costs the server.
async fn one_answer(pid: u32, server: &Server, text: &str, way: Way, readers: usize) {
    let tokens_before = metric(server, "generation_tokens_total").await;
    let (before, cpu_before) = usage(pid);
    let mut connections = Vec::new();
    for _ in 0..readers {
        // One after the other: so many handshakes at once are refused as an attack.
        connections.push(match way {
            Way::Quic => Some(connect(server).await),
            Way::Events => None,
        });
    }
    let began = Instant::now();
    let (_endpoint, connection) = connect(server).await;
    let mut first = Reader::ask(&connection, 0, &chat(TOKENS, json!({}))).await;
    first.run(1).await;
    let name = first.name.unwrap();
    let elsewhere = || Server::elsewhere([server.http, server.quic], server.certificate);
    let others: Vec<_> = (connections.into_iter())
        .map(|connected| tokio::spawn(read_whole(elsewhere(), connected, name)))
        .collect();
    tokio::spawn(async move {
        first.run(usize::MAX).await;
        assert!(first.complete);
    });
    tokio::time::sleep(Duration::from_secs(10)).await;
    let (busy, cpu_begun) = usage(pid);
    let begun = began.elapsed();
    for reader in others {
        assert_eq!(reader.await.unwrap(), text);
    }
    let (_, cpu) = usage(pid);
    let generated = metric(server, "generation_tokens_total").await - tokens_before;
    let rest = (began.elapsed() - begun).as_secs_f64();
    println!(
        "| {readers} by {way} | {:.0} ms | {:.1} % | {:.1} KiB | {generated} |",
        (cpu_begun - cpu_before) * 1e3,
        (cpu - cpu_begun) / rest * 100.0,
        (busy - before) / (readers + 1) as f64 / 1024.0,
    );
    settle(server, "delivery_active_paths", 0.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes two minutes"]
async fn load_of_500_readers_of_one_answer() {
    let (mut child, mut lines, server) = server_elsewhere();
    let text = expected(&server, TOKENS).await;
    println!(
        "\n| readers beside the first | processor time of the first 10 s | afterwards, of a core \
         | memory per reader | tokens generated |\n| --- | --- | --- | --- | --- |"
    );
    for (way, readers) in [
        (Way::Events, 0),
        (Way::Events, 1),
        (Way::Events, READERS),
        (Way::Quic, 1),
        (Way::Quic, READERS),
    ] {
        one_answer(child.id(), &server, &text, way, readers).await;
    }
    drop(child.stdin.take());
    assert!(lines.any(|line| line.contains("1 passed")), "the server failed");
    child.wait().unwrap();
}
