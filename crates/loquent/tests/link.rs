//! `loquent link` as a program: its exit status, its clean-up however it ends, its refusals.
#![cfg(target_os = "linux")]

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const LOQUENT: &str = env!("CARGO_BIN_EXE_loquent");
/// How long an event may take; far more than it takes, for debug builds on busy machines.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

fn link(arguments: &[&str]) -> Command {
    let mut command = Command::new(LOQUENT);
    command.arg("link").args(arguments).stdin(Stdio::null());
    command
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Whether namespaces can be made here; says so if not.
fn privileged() -> bool {
    let output = link(&["--to", "127.0.0.1:1", "--", "true"]).output().unwrap();
    let refused = stderr(&output).contains("need root");
    loquent_needs::Need::Namespaces.is_met(!refused, stderr(&output))
}

fn runs(pid: &str) -> bool {
    // A zombie has ended.
    let status = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
    status.is_ok_and(|stat| !stat.contains(") Z"))
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < WAIT_LIMIT, "did not happen in time: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs a link whose server has a child, ends the link by `signal`, and expects both gone.
fn server_ends_with_the_link(signal: &str, folder: &Path) {
    let (leader, child) = (folder.join("leader"), folder.join("child"));
    let server = format!(
        "echo $$ > {0}.new; sleep 1000 & echo $! > {1}.new; mv {0}.new {0}; mv {1}.new {1}; wait",
        leader.display(),
        child.display()
    );
    let mut link = link(&["--quiet", "--server", &server]).spawn().unwrap();
    wait_until("server started", || leader.exists() && child.exists());
    let pids = [&leader, &child].map(|file| std::fs::read_to_string(file).unwrap());
    assert!(pids.iter().all(|pid| runs(pid)));
    let sent = Command::new("kill").args([signal, &link.id().to_string()]).status().unwrap();
    assert!(sent.success());
    link.wait().unwrap();
    wait_until("server ended", || !pids.iter().any(|pid| runs(pid)));
}

#[test]
fn the_server_ends_with_the_link_however_that_ends() {
    if !privileged() {
        return;
    }
    for signal in ["-TERM", "-INT", "-KILL"] {
        let folder = tempfile::tempdir().unwrap();
        server_ends_with_the_link(signal, folder.path());
    }
}

#[test]
fn the_exit_status_is_the_commands() {
    if !privileged() {
        return;
    }
    let run = |script: &str| link(&["--to", "127.0.0.1:1", "--", "sh", "-c", script]).output();
    let output = run("echo $LOQUENT_LINK_SERVER; exit 7").unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(output.stdout, b"10.77.0.2\n");
    assert!(stderr(&output).contains("later than the model"), "{}", stderr(&output));
    assert_eq!(run("kill -TERM $$").unwrap().status.code(), Some(143));
}

#[test]
fn a_server_on_loopback_is_found_at_its_own_address() {
    if !privileged() {
        return;
    }
    // It answers by the name it is called by, as a server does that refuses foreign names.
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let to = server.local_addr().unwrap().to_string();
    let answers = std::thread::spawn(move || {
        let (mut client, _) = server.accept().unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(&client), &mut line).unwrap();
        std::io::Write::write_all(&mut client, format!("heard {line}").as_bytes()).unwrap();
    });
    let script = format!(
        "import socket; it = socket.create_connection(('127.0.0.1', {})); it.sendall(b'hello\\n'); \
         print(it.makefile().readline(), end='')",
        to.rsplit_once(':').unwrap().1
    );
    let output = link(&["--quiet", "--to", &to, "--", "python3", "-c", &script]).output().unwrap();
    assert_eq!(output.stdout, b"heard hello\n", "{}", stderr(&output));
    answers.join().unwrap();
}

#[test]
fn a_server_that_dies_is_not_waited_for() {
    if !privileged() {
        return;
    }
    let output = link(&["--server", "exit 3", "--wait", "8080", "--", "true"]).output().unwrap();
    assert!(!output.status.success());
    assert!(stderr(&output).contains("ended before it listened"), "{}", stderr(&output));
}

#[test]
fn without_root_the_message_says_what_to_do() {
    let mut command = link(&["--to", "127.0.0.1:1", "--", "true"]);
    if Path::new("/proc/self")
        .metadata()
        .is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
    {
        command.uid(65_534);
    }
    match command.output() {
        Ok(output) => {
            assert!(!output.status.success());
            let text = stderr(&output);
            assert!(text.contains("need root") && text.contains("--udp-listen"), "{text}");
        }
        Err(error) => loquent_needs::Need::Users.lack(error),
    }
}

#[test]
fn senseless_options_are_named() {
    for (arguments, complaint) in [
        (["--loss", "150%"], "is not a share"),
        (["--rtt", "1e9"], "rtt_ms"),
        (["--outage", "5-3"], "is not a span of time"),
        (["--udp-listen", "127.0.0.1:0"], "--udp-to"),
    ] {
        let output = link(&arguments).args(["--", "true"]).output().unwrap();
        assert!(!output.status.success());
        assert!(stderr(&output).contains(complaint), "{arguments:?}: {}", stderr(&output));
    }
}

#[test]
fn udp_is_relayed_without_root() {
    let server = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    server.set_read_timeout(Some(WAIT_LIMIT)).unwrap();
    let to = server.local_addr().unwrap().to_string();
    let mut relay = link(&["--rtt", "10", "--udp-listen", "127.0.0.1:0", "--udp-to", &to])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut printed = std::io::BufReader::new(relay.stderr.take().unwrap());
    std::io::BufRead::read_line(&mut printed, &mut line).unwrap();
    let address = line.split_whitespace().nth(3).expect("link: UDP from ADDRESS to ADDRESS");
    let client = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    client.send_to(b"token", address).unwrap();
    let mut buffer = [0; 16];
    let (len, _) = server.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..len], b"token");
    let sent = Command::new("kill").args(["-INT", &relay.id().to_string()]).status().unwrap();
    assert!(sent.success());
    assert!(relay.wait().unwrap().success());
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut printed, &mut rest).unwrap();
    assert!(rest.contains("client to server: 1 packets"), "{rest}");
}

#[test]
fn the_real_server_and_client_deliver_over_an_emulated_link_without_root() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("delivery.json");
    let output = Command::new(LOQUENT)
        .args(["bench", "delivery", "--without-root", "--schemes", "loquent", "--sessions", "3"])
        .args(["--rtt", "60", "--duration-s", "4", "--json", json.to_str().unwrap()])
        .args(["--loss", "markov:0.6,0.6,0.9,100"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    println!("{}", String::from_utf8_lossy(&output.stdout));
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    for session in report["cases"][0]["schemes"][0]["sessions"].as_array().unwrap() {
        let (figures, trace) = (&session["figures"], &session["trace"]);
        assert_eq!(figures["missing"], 0);
        let (generated, ready) = (&trace["generated_us"], &trace["ready_us"]);
        let times = |times: &serde_json::Value| -> Vec<u64> {
            times.as_array().unwrap().iter().map(|us| us.as_u64().unwrap()).collect()
        };
        let (generated, ready) = (times(generated), times(ready));
        assert_eq!((generated.len(), ready.len()), (40, 40));
        // Nothing crosses the link faster than its delay.
        let early = generated.iter().zip(&ready).find(|(from, to)| **to < **from + 30_000);
        assert_eq!(early, None, "of {generated:?} and {ready:?}");
        assert!(trace["down"]["lost"].as_u64().unwrap() > 0, "{trace}");
    }
}
