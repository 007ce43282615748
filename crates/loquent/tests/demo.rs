//! `loquent demo` as a program: both columns end with the same text, the link loses packets, the page
//! finds its routes, and nothing is left running.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

const LOQUENT: &str = env!("CARGO_BIN_EXE_loquent");
/// How long a reply may take; far more than it takes, for debug builds on busy machines.
const WAIT_LIMIT: Duration = Duration::from_secs(60);
/// A short answer in weather that is sure to lose some of it.
const SHORT: [&str; 10] = [
    "--max-tokens",
    "60",
    "--tokens-per-s",
    "60",
    "--rtt-ms",
    "40",
    "--loss",
    "30%",
    "--burst",
    "60",
];

fn demo(arguments: &[&str]) -> Command {
    let mut command = Command::new(LOQUENT);
    command.arg("demo").args(arguments).stdin(Stdio::null());
    // Of the user's own server; the demonstration has to do without.
    command.env("LOQUENT_API_KEY", "secret").env("LOQUENT_HOST", "0.0.0.0");
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The rows of both columns between the first rule and the second, joined by words.
fn columns(output: &str) -> [String; 2] {
    let mut parts = output.split('\n').skip_while(|line| !line.contains('┼')).skip(1);
    let rows: Vec<&str> = parts.by_ref().take_while(|line| !line.contains('┼')).collect();
    let column = |side: usize| {
        let cells = rows.iter().map(|row| row.split('│').nth(side).unwrap_or(""));
        cells.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
    };
    [column(0), column(1)]
}

/// Packets sent and lost, by column.
fn packets(output: &str) -> Vec<(u64, u64)> {
    let line = output.lines().find(|line| line.contains(" packets, ")).expect("a line of packets");
    let number = |text: &str| text.trim().split(' ').next().unwrap().parse::<u64>().unwrap();
    let cell = |cell: &str| {
        let mut facts = cell.split(',');
        (number(facts.next().unwrap()), number(facts.next().unwrap()))
    };
    line.split('│').map(cell).collect()
}

fn check_run(output: &Output, network: &str) {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    assert!(out.contains(network), "{out}");
    let [tcp, loquent] = columns(&out);
    assert!(tcp.len() > 100, "{out}");
    assert_eq!(tcp, loquent, "{out}");
    assert_eq!(out.matches("complete after").count(), 2, "{out}");
    for (sent, lost) in packets(&out) {
        assert!(sent > 20 && (1..sent).contains(&lost), "{out}");
    }
    assert!(!out.contains('\x1b'), "no terminal, no control sequences: {out:?}");
    assert_eq!(err, "", "nothing to complain of");
}

#[test]
fn both_columns_end_with_the_same_text_without_root() {
    let arguments = [&["--terminal", "--network", "modelled"], &SHORT[..]].concat();
    check_run(&demo(&arguments).output().unwrap(), "modelled");
}

#[test]
fn kernel_tcp_and_quic_cross_the_link_where_there_is_root() {
    let arguments = [&["--terminal", "--network", "kernel"], &SHORT[..]].concat();
    let output = demo(&arguments).output().unwrap();
    if text(&output.stderr).contains("need root") {
        return loquent_needs::Need::Namespaces.lack(text(&output.stderr));
    }
    check_run(&output, "kernel TCP");
}

#[test]
fn weather_that_makes_no_sense_is_refused() {
    for (flag, value, named) in
        [("--loss", "90%", "loss"), ("--rtt-ms", "-1", "rtt"), ("--burst", "1e9", "burst")]
    {
        let output = demo(&["--terminal", &format!("{flag}={value}")]).output().unwrap();
        assert!(!output.status.success());
        assert!(text(&output.stderr).contains(named), "{}", text(&output.stderr));
    }
}

/// A demonstration that serves its page.
struct Served {
    process: Child,
    out: BufReader<ChildStdout>,
    port: u16,
}

impl Served {
    fn start() -> Self {
        let arguments = [&["--no-open", "--network", "modelled"], &SHORT[..]].concat();
        let mut process = demo(&arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let (_, rest) = line.split_once("http://localhost:").expect(&line);
        let port = rest.split('/').next().unwrap().parse().unwrap();
        Self { process, out, port }
    }

    fn send(&self, request: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(WAIT_LIMIT)).unwrap();
        let length = body.len();
        write!(stream, "{request} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
        stream
    }

    /// The status and the body of a reply.
    fn ask(&self, request: &str, body: &str) -> (u16, Value) {
        let mut reply = String::new();
        self.send(request, body).read_to_string(&mut reply).unwrap();
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(body).expect(&reply))
    }

    /// The child has to be waited for, so that none is left as a zombie.
    fn end(mut self, signal: &str) -> (Option<i32>, String) {
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).unwrap();
        (self.process.wait().unwrap().code(), rest)
    }
}

#[test]
fn the_page_finds_both_doors_and_hears_of_packets() {
    let served = Served::start();
    let (status, offer) = served.ask("GET /v1/lab/live", "");
    assert_eq!((status, offer["network"].as_str()), (200, Some("modelled")));
    assert_eq!(offer["tcp_url"], format!("http://127.77.0.1:{}/", served.port));
    assert_eq!(offer["loquent_url"], format!("http://127.77.0.2:{}/", served.port));
    let weather = offer["weather"].to_string();
    let (status, run) = served.ask("POST /v1/lab/live/runs", &weather);
    assert_eq!(status, 200, "{run}");
    assert!(run["storms_ms"].as_array().unwrap().len() > 10);
    let mut events = BufReader::new(served.send("GET /v1/lab/live/events", ""));
    let mut line = String::new();
    while !line.starts_with(": ") {
        line.clear();
        events.read_line(&mut line).unwrap();
    }
    let begin = format!("POST /v1/lab/live/runs/{}/begin", run["run"]);
    assert_eq!(served.ask(&begin, "").0, 200);
    assert_eq!(served.ask(&begin, "").0, 409, "it has begun");
    // The door leads to the same server, over the link.
    let mut through = TcpStream::connect(("127.77.0.1", served.port)).unwrap();
    through.set_read_timeout(Some(WAIT_LIMIT)).unwrap();
    write!(through, "GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut reply = String::new();
    through.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 200") && reply.contains("loquent-tiny"), "{reply}");
    while !line.starts_with("data: ") {
        line.clear();
        assert!(events.read_line(&mut line).unwrap() > 0, "the stream goes on");
    }
    let event: Value = serde_json::from_str(&line["data: ".len()..]).unwrap();
    assert_eq!(event["run"], run["run"]);
    let row = event["packets"][0].as_array().unwrap();
    assert_eq!((row.len(), row[0].as_f64()), (5, Some(0.0)), "TCP's column");
    let (code, _) = served.end("-TERM");
    assert_eq!(code, Some(0));
}

#[test]
fn what_a_page_may_not_ask_is_refused() {
    let served = Served::start();
    let good = r#"{"rtt_ms":10,"loss":0,"burst_ms":0,"seed":1}"#;
    for bad in ["", "{}", "[1]", &good.replace("10", "1e9"), &good.replace('}', r#","more":1}"#)] {
        assert_eq!(served.ask("POST /v1/lab/live/runs", bad).0, 400, "{bad}");
    }
    let long = format!("{good}{}", " ".repeat(4096));
    let mut reply = String::new();
    served.send("POST /v1/lab/live/runs", &long).read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 413"), "{reply}");
    assert_eq!(served.ask("POST /v1/lab/live/runs/7/begin", "").0, 409);
    assert_eq!(served.ask("POST /v1/lab/live/runs/x/begin", "").0, 409);
    let watching: Vec<_> = (0..8)
        .map(|_| {
            let mut stream = BufReader::new(served.send("GET /v1/lab/live/events", ""));
            let mut line = String::new();
            stream.read_line(&mut line).unwrap();
            assert!(line.starts_with("HTTP/1.1 200"), "{line}");
            stream
        })
        .collect();
    assert_eq!(served.ask("GET /v1/lab/live/events", "").0, 503, "a ninth page");
    drop(watching);
    let (code, rest) = served.end("-INT");
    assert_eq!(code, Some(0));
    assert!(rest.contains("Ctrl-C ends it"), "{rest}");
}
