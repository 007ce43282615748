//! SIGTERM and Ctrl-C work at any time: while a model is downloaded, while stages are awaited,
//! while a server drains.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Longest wait for another process; far longer than it takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Within this time a process ends that has nothing to finish. It takes some milliseconds; what it
/// might wait for, such as a hub that does not answer, would take a minute.
const AT_ONCE: Duration = Duration::from_secs(5);

/// A `loquent` that ends with the test.
struct Loquent {
    child: Child,
    lines: Receiver<String>,
}

impl Loquent {
    fn start(arguments: &[&str], set: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_loquent"));
        Self::spawn(command.args(arguments).envs(set.iter().copied())).unwrap()
    }

    fn spawn(command: &mut Command) -> std::io::Result<Self> {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = channel();
        // Reads to the end, so that the process never waits for a full pipe.
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                eprintln!("| {line}");
                let _ = sender.send(line);
            }
        });
        Ok(Self { child, lines })
    }

    /// Waits for a line with `marker` and returns what follows it.
    fn after(&self, marker: &str) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).expect("the line comes");
            if let Some((_, rest)) = line.split_once(marker) {
                return rest.to_owned();
            }
        }
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }

    /// Sends a signal at which the process ends at once; gives its status.
    fn end_at_once(&mut self, signal: &str) -> Option<i32> {
        let begun = Instant::now();
        self.signal(signal);
        let status = self.status();
        assert!(begun.elapsed() < AT_ONCE, "it took {:?}", begun.elapsed());
        status.code()
    }

    fn status(&mut self) -> ExitStatus {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("it does not end");
    }
}

impl Drop for Loquent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A hub that takes requests and never answers; returns its URL and the requests.
fn silent_hub() -> (String, Receiver<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, requests) = channel();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut first = [0; 1];
            let _ = stream.read_exact(&mut first);
            let _ = sender.send(stream);
        }
    });
    (url, requests)
}

/// Starts a server that downloads its model, and waits until the download hangs.
fn downloading() -> (Loquent, TcpStream, tempfile::TempDir) {
    let (hub, requests) = silent_hub();
    let cache = tempfile::tempdir().unwrap();
    let folder = cache.path().to_str().unwrap();
    let arguments = ["serve", "--port", "0", "--hf", "owner/model"];
    let server = Loquent::start(&arguments, &[("HF_ENDPOINT", &hub), ("HF_HOME", folder)]);
    let request = requests.recv_timeout(PATIENCE).expect("it asks the hub");
    (server, request, cache)
}

#[test]
fn signals_end_a_server_that_downloads_its_model() {
    for signal in ["-TERM", "-INT"] {
        let (mut server, _request, _cache) = downloading();
        assert_eq!(server.end_at_once(signal), Some(0), "nothing had to drain");
    }
}

/// What shows the memory of such a process belongs to root, as proc(5) says.
#[test]
fn only_root_can_read_the_memory_of_a_server() {
    use std::os::unix::fs::MetadataExt as _;
    use std::os::unix::process::CommandExt as _;
    let mut command = Command::new(env!("CARGO_BIN_EXE_loquent"));
    command.args(["serve", "--port", "0", "--simulate", "1000"]);
    let owner = |folder: &str| std::fs::metadata(folder).unwrap().uid();
    if owner("/proc/self") == 0 {
        command.uid(65_534);
    }
    let mut server = match Loquent::spawn(&mut command) {
        Ok(server) => server,
        Err(error) => return loquent_needs::Need::Users.lack(error),
    };
    server.after("http://");
    assert_eq!(owner(&format!("/proc/{}/mem", server.child.id())), 0);
    assert_eq!(server.end_at_once("-TERM"), Some(0));
}

/// The path prefix of the bundled model's two halves; `None` if the model is missing.
fn split_model(folder: &tempfile::TempDir) -> Option<String> {
    let model = bundled()?;
    let out = folder.path().join("half").to_str().unwrap().to_owned();
    let split = ["split", &model, "--stages", "2", "--out", &out];
    assert!(Loquent::start(&split, &[]).status().success());
    Some(out)
}

#[test]
fn sigterm_ends_a_server_that_waits_for_a_stage() {
    let folder = tempfile::tempdir().unwrap();
    let Some(prefix) = split_model(&folder) else { return };
    let entry = format!("{prefix}-entry.gguf");
    // Nobody listens there, and nobody will.
    let stages = "127.0.0.1:1,127.0.0.1:1";
    let arguments = ["serve", "--port", "0", "--model", &entry, "--stages", stages];
    let mut server = Loquent::start(&arguments, &[]);
    server.after("waiting for the stages");
    assert_eq!(server.end_at_once("-TERM"), Some(0));
}

/// Path of the bundled model; `None` if it is missing.
fn bundled() -> Option<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/loquent-tiny.gguf");
    let is_there = std::path::Path::new(path).exists();
    loquent_needs::Need::Model.is_met(is_there, path).then(|| path.to_owned())
}

/// A server in the middle of a long answer.
fn answering() -> (Loquent, String, BufReader<TcpStream>) {
    let arguments = ["serve", "--port", "0", "--simulate", "50", "--no-quic"];
    let server = Loquent::start(&arguments, &[]);
    let address = server.after(" on http://");
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let body = r#"{"stream":true,"messages":[{"role":"user","content":"tokens=9000"}]}"#;
    let length = body.len();
    let head = "POST /v1/chat/completions HTTP/1.1\r\ncontent-type: application/json\r\n";
    write!(stream, "{head}host: {address}\r\ncontent-length: {length}\r\n\r\n{body}").unwrap();
    let mut answer = BufReader::new(stream);
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        assert!(answer.read_line(&mut line).unwrap() > 0, "the answer begins");
    }
    (server, address, answer)
}

/// Waits until the port is closed: the drain has begun.
fn wait_for_drain(address: &str) {
    let end = Instant::now() + PATIENCE;
    while TcpStream::connect(address).is_ok() {
        assert!(Instant::now() < end, "the port stays open");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_second_signal_ends_a_draining_server_at_once() {
    for (signal, status) in [("-INT", 130), ("-TERM", 143)] {
        let (mut server, address, _answer) = answering();
        server.signal("-TERM");
        wait_for_drain(&address);
        assert_eq!(server.end_at_once(signal), Some(status));
    }
}

#[test]
fn a_server_that_has_drained_ends_with_status_0() {
    let arguments = ["serve", "--port", "0", "--simulate", "50", "--no-quic"];
    let mut server = Loquent::start(&arguments, &[]);
    server.after(" on http://");
    server.signal("-INT");
    assert_eq!(server.status().code(), Some(0));
}

#[test]
fn a_stage_has_no_state_and_ends_at_the_first_signal() {
    let folder = tempfile::tempdir().unwrap();
    let Some(prefix) = split_model(&folder) else { return };
    let file = format!("{prefix}-stage-2-of-2.gguf");
    for (signal, status) in [("-INT", 130), ("-TERM", 143)] {
        let arguments = ["stage", "--model", &file, "--listen", "127.0.0.1:0"];
        let mut stage = Loquent::start(&arguments, &[]);
        stage.after("Loquent computes layers");
        assert_eq!(stage.end_at_once(signal), Some(status));
    }
}
