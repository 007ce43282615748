//! Real processes on loopback: a split model answers as the whole one does, a stage that is
//! killed or stopped in the middle of an answer ends it with an error, and service returns.
#![cfg(feature = "llama")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Longest wait for another process.
const PATIENCE: Duration = Duration::from_secs(60);
const KEY: &str = "a key for tests";

/// The bundled model, if it is there.
fn bundled() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/loquent-tiny.gguf");
    if !path.exists() {
        eprintln!("skipped: no model at {}", path.display());
    }
    path.exists().then_some(path)
}

/// A process of ours, ended with the test.
struct Process {
    child: Child,
    /// Where it listens.
    address: String,
}

impl Process {
    /// Starts `loquent` and waits until it says where it listens, after `marker`.
    fn start(arguments: &[&str], marker: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_loquent"))
            .args(arguments)
            .env("LOQUENT_STAGE_KEY", KEY)
            .env("LOQUENT_LOG", "warn")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, addresses) = mpsc::channel();
        let marker = marker.to_owned();
        // Reads on after that, so that the process never waits for a full pipe.
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                eprintln!("| {line}");
                if let Some((_, address)) = line.split_once(&marker) {
                    let _ = sender.send(address.trim().to_owned());
                }
            }
        });
        let address = addresses.recv_timeout(PATIENCE).expect("it says where it listens");
        Self { child, address }
    }

    fn stage(model: &Path, listen: &str) -> Self {
        let model = model.to_str().unwrap();
        let arguments = ["stage", "--model", model, "--listen", listen, "--threads", "1"];
        Self::start(&arguments, " on ")
    }

    fn serve(arguments: &[&str]) -> Self {
        let fixed = ["serve", "--port", "0", "--threads", "1"];
        Self::start(&[&fixed[..], arguments].concat(), " on http://")
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a request and returns the status; the body is to be read from the reader.
fn request(address: &str, method: &str, path: &str, body: &str) -> (u16, impl Read + use<>) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut reader = BufReader::new(stream);
    let mut status = String::new();
    reader.read_line(&mut status).unwrap();
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        assert!(reader.read_line(&mut line).unwrap() > 0, "the answer has no body");
    }
    (status.split(' ').nth(1).unwrap().parse().unwrap(), reader)
}

fn get(address: &str, path: &str) -> (u16, String) {
    let (status, mut body) = request(address, "GET", path, "");
    let mut text = String::new();
    body.read_to_string(&mut text).unwrap();
    (status, text)
}

/// What the server answers to a fixed prompt, with log-probabilities.
fn answer(address: &str) -> Value {
    let body = json!({"prompt": "What is token streaming?", "max_tokens": 40, "temperature": 0,
                      "logprobs": 5, "ignore_eos": true});
    let (status, mut reader) = request(address, "POST", "/v1/completions", &body.to_string());
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(status, 200, "{text}");
    // The body may be chunked: the JSON is what stands between the braces.
    let json = &text[text.find('{').unwrap()..=text.rfind('}').unwrap()];
    let answer: Value = serde_json::from_str(json).unwrap();
    answer["choices"][0].clone()
}

fn wait_for_ready(address: &str, wanted: u16) {
    let begun = Instant::now();
    while get(address, "/ready").0 != wanted {
        assert!(begun.elapsed() < PATIENCE, "/ready never became {wanted}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The files of a split, entry first.
fn split(model: &Path, stages: u32, folder: &Path) -> Vec<PathBuf> {
    let prefix = folder.join("m");
    let output = Command::new(env!("CARGO_BIN_EXE_loquent"))
        .args(["split", model.to_str().unwrap(), "--stages", &stages.to_string(), "--verify"])
        .args(["--out", prefix.to_str().unwrap()])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("verified: 24 tokens"), "{text}");
    let stage = |i| folder.join(format!("m-stage-{i}-of-{stages}.gguf"));
    std::iter::once(folder.join("m-entry.gguf")).chain((1..=stages).map(stage)).collect()
}

#[test]
fn a_split_model_answers_as_the_whole_one_does() {
    let Some(model) = bundled() else { return };
    let whole = Process::serve(&["--model", model.to_str().unwrap()]);
    let expected = answer(&whole.address);
    drop(whole);
    for stages in [2, 3] {
        let folder = tempfile::tempdir().unwrap();
        let files = split(&model, stages, folder.path());
        let running: Vec<Process> =
            files[2..].iter().map(|file| Process::stage(file, "127.0.0.1:0")).collect();
        // The first stage is computed by the server's own process.
        let mut list = vec![files[1].to_str().unwrap().to_owned()];
        list.extend(running.iter().map(|stage| stage.address.clone()));
        let entry = files[0].to_str().unwrap();
        let server = Process::serve(&["--model", entry, "--stages", &list.join(",")]);
        assert_eq!(answer(&server.address), expected, "{stages} stages");
        let (_, metrics) = get(&server.address, "/metrics");
        assert!(metrics.contains("loquent_stage_up{stage=\"2\"} 1"), "{metrics}");
    }
}

/// Two stages of their own and a server before them.
fn cluster(folder: &Path) -> Option<(Vec<PathBuf>, Process, Process, Process)> {
    let files = split(&bundled()?, 2, folder);
    let first = Process::stage(&files[1], "127.0.0.1:0");
    let second = Process::stage(&files[2], "127.0.0.1:0");
    let list = format!("{},{}", first.address, second.address);
    let entry = files[0].to_str().unwrap();
    // Links that make an answer last some seconds.
    let arguments = ["--model", entry, "--stages", &list, "--stage-timeout-s", "1.5"];
    let server = Process::serve(&[&arguments[..], &["--link-delay-ms", "10"]].concat());
    Some((files, first, second, server))
}

/// Streams a long answer and calls `act` after the first tokens; returns the stream's text.
fn stream_while(address: &str, act: impl FnOnce()) -> String {
    let body = json!({"prompt": "Tell me a story.", "max_tokens": 200, "stream": true,
                      "temperature": 0, "ignore_eos": true});
    let (status, reader) = request(address, "POST", "/v1/completions", &body.to_string());
    assert_eq!(status, 200);
    let (mut text, mut act) = (String::new(), Some(act));
    for line in BufReader::new(reader).lines() {
        // A connection that is cut off ends the text.
        let Ok(line) = line else { break };
        text.push_str(&line);
        text.push('\n');
        if text.matches("\"text\"").count() >= 5
            && let Some(act) = act.take()
        {
            act();
        }
    }
    assert!(act.is_none(), "the answer ended too early: {text}");
    text
}

fn check_broken(text: &str) {
    assert!(text.contains("\"error\""), "the stream tells why it ended: {text}");
    assert!(!text.contains("[DONE]"), "a broken stream never ends cleanly: {text}");
}

#[test]
fn a_stage_killed_in_mid_answer_ends_it_with_an_error_and_service_returns() {
    let folder = tempfile::tempdir().unwrap();
    let Some((files, _first, second, server)) = cluster(folder.path()) else { return };
    let before = answer(&server.address);
    let address = second.address.clone();
    let text = stream_while(&server.address, || second.signal("-KILL"));
    check_broken(&text);
    drop(second);
    wait_for_ready(&server.address, 503);
    let (status, _) = request(&server.address, "POST", "/v1/completions", "{\"prompt\": \"x\"}");
    assert_eq!(status, 503, "new requests are refused meanwhile");
    let _again = Process::stage(&files[2], &address);
    wait_for_ready(&server.address, 200);
    assert_eq!(answer(&server.address), before);
}

#[test]
fn a_stage_that_hangs_is_noticed_by_its_deadline() {
    let folder = tempfile::tempdir().unwrap();
    let Some((_, first, _second, server)) = cluster(folder.path()) else { return };
    let before = answer(&server.address);
    let begun = Instant::now();
    let text = stream_while(&server.address, || first.signal("-STOP"));
    check_broken(&text);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    wait_for_ready(&server.address, 503);
    first.signal("-CONT");
    wait_for_ready(&server.address, 200);
    assert_eq!(answer(&server.address), before);
}

#[test]
fn misuse_is_told_in_words() {
    let folder = tempfile::tempdir().unwrap();
    let Some(model) = bundled() else { return };
    let files = split(&model, 2, folder.path());
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_loquent"));
        let output = command.args(arguments).env_remove("LOQUENT_STAGE_KEY").output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let (whole, part) = (model.to_str().unwrap(), files[1].to_str().unwrap());
    let text = run(&["stage", "--model", whole, "--listen", "127.0.0.1:0"]);
    assert!(text.contains("no stage file"), "{text}");
    let text = run(&["stage", "--model", part, "--listen", "0.0.0.0:0"]);
    assert!(text.contains("--stage-key"), "{text}");
    let text = run(&["serve", "--port", "0", "--model", whole, "--stages", "127.0.0.1:9"]);
    assert!(text.contains("no entry file"), "{text}");
    let text = run(&["split", whole, "--layers", "0..1"]);
    assert!(text.contains("do not fit"), "{text}");
    let text = run(&["split", "no-such-model.gguf", "--stages", "2"]);
    assert!(text.contains("no-such-model.gguf"), "{text}");
}
