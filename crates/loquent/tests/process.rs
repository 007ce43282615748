//! Loquent processes for tests, and requests to them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Longest wait for another process; far longer than it takes on a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(60);
pub const KEY: &str = "a key for tests";

/// The bundled model; `None` if it is missing.
pub fn bundled() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/loquent-tiny.gguf");
    loquent_needs::Need::Model.is_met(path.exists(), path.display()).then_some(path)
}

/// A Loquent process that ends with the test.
pub struct Process {
    pub child: Child,
    /// The address on which it listens.
    pub address: String,
}

impl Process {
    /// Starts `loquent` and waits until it prints its address, after `marker`.
    pub fn start(arguments: &[&str], marker: &str) -> Self {
        Self::spawn(Command::new(env!("CARGO_BIN_EXE_loquent")).args(arguments), marker)
    }

    /// The same with a command that starts `loquent`.
    pub fn spawn(command: &mut Command, marker: &str) -> Self {
        let mut child = command
            .env("LOQUENT_STAGE_KEY", KEY)
            .env("LOQUENT_LOG", "warn")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, addresses) = mpsc::channel();
        let marker = marker.to_owned();
        // Reads to the end, so that the process never waits for a full pipe.
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                eprintln!("| {line}");
                if let Some((_, address)) = line.split_once(&marker) {
                    let _ = sender.send(address.trim().to_owned());
                }
            }
        });
        let address = addresses.recv_timeout(PATIENCE).expect("it prints its address");
        Self { child, address }
    }

    pub fn stage(model: &Path, listen: &str) -> Self {
        let model = model.to_str().unwrap();
        let arguments = ["stage", "--model", model, "--listen", listen, "--threads", "1"];
        Self::start(&arguments, " on ")
    }

    pub fn serve(arguments: &[&str]) -> Self {
        let fixed = ["serve", "--port", "0", "--threads", "1"];
        Self::start(&[&fixed[..], arguments].concat(), " on http://")
    }

    pub fn signal(&self, name: &str) {
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

/// Sends a request; returns the status, and a reader of the body.
pub fn request(address: &str, method: &str, path: &str, body: &str) -> (u16, impl Read + use<>) {
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

pub fn get(address: &str, path: &str) -> (u16, String) {
    let (status, mut body) = request(address, "GET", path, "");
    let mut text = String::new();
    body.read_to_string(&mut text).unwrap();
    (status, text)
}

/// The server's answer as JSON.
pub fn ask(address: &str, path: &str, body: &Value) -> Value {
    let (status, mut reader) = request(address, "POST", path, &body.to_string());
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(status, 200, "{text}");
    // The body may be chunked: the JSON is from the first brace to the last.
    serde_json::from_str(&text[text.find('{').unwrap()..=text.rfind('}').unwrap()]).unwrap()
}

/// The server's answer to a fixed prompt, with log-probabilities.
pub fn answer(address: &str) -> Value {
    let body = json!({"prompt": "What is token streaming?", "max_tokens": 40, "temperature": 0,
                      "logprobs": 5, "ignore_eos": true});
    ask(address, "/v1/completions", &body)["choices"][0].clone()
}

pub fn wait_for_ready(address: &str, wanted: u16) {
    let begun = Instant::now();
    while get(address, "/ready").0 != wanted {
        assert!(begun.elapsed() < PATIENCE, "/ready never became {wanted}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Splits `model` and returns the files, the entry file first.
pub fn split(model: &Path, stages: u32, folder: &Path) -> Vec<PathBuf> {
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
