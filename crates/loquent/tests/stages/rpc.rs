//! llama.cpp's RPC back end, in builds that have it.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use crate::process::{PATIENCE, Process, answer, bundled};

/// An RPC server that ends with the test.
struct Server(Child, String);

impl Server {
    fn start() -> Self {
        // The back end takes no port 0; between asking and using, another may take this one.
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let address = free.to_string();
        let child = Command::new(env!("CARGO_BIN_EXE_loquent"))
            .args(["rpc-server", "--threads", "1", "--listen", &address])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        while TcpStream::connect(&address).is_err() {
            assert!(begun.elapsed() < PATIENCE, "the RPC server never listened");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        Self(child, address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn layers_behind_rpc_answer_as_the_whole_model_does() {
    let Some(model) = bundled() else { return };
    let model = model.to_str().unwrap();
    let whole = Process::serve(&["--model", model, "--kernels", "llama"]);
    let expected = answer(&whole.address);
    drop(whole);
    let (first, second) = (Server::start(), Server::start());
    let list = format!("{},{}", first.1, second.1);
    let mut command = Command::new(env!("CARGO_BIN_EXE_loquent"));
    command.args(["serve", "--port", "0", "--threads", "1", "--model", model, "--rpc", &list]);
    let mut server = Process::spawn(command.env("GGML_NO_BACKTRACE", "1"), " on http://");
    assert_eq!(answer(&server.address)["text"], expected["text"]);
    // This shows that the servers compute: llama.cpp aborts when one is gone.
    drop(second);
    let mut stream = TcpStream::connect(&server.address).unwrap();
    let body = r#"{"prompt": "And now?", "max_tokens": 4}"#;
    let len = body.len();
    write!(
        stream,
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len}\r\n\r\n{body}"
    )
    .unwrap();
    let begun = Instant::now();
    while server.child.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < PATIENCE, "the process goes on without one of its RPC servers");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn servers_that_are_not_there_are_named() {
    let Some(model) = bundled() else { return };
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_loquent"))
        .args(["serve", "--port", "0", "--model", model.to_str().unwrap(), "--rpc", &gone])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "an error, no abort: {text}");
    assert!(text.contains(&gone), "{text}");
}
