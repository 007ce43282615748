//! Server and stages in separate network namespaces, connected by links of the kernel.
//!
//! The test runs itself again in a new namespace, the server's. It makes one for each stage, which
//! lives as long as a process in it, so that nothing can be left behind.

use std::io::BufRead;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use loquent_needs::Need;

use crate::process::{Process, answer, bundled, get, split};

const INSIDE: &str = "LOQUENT_TEST_NAMESPACE";
const DELAY: &str = "4ms";

/// Whether namespaces and links between them can be made here; prints the reason if not.
fn privileged() -> bool {
    let script = "ip link add name br0 type bridge && ip link add name v1 type veth peer name v2";
    let tried = Command::new("unshare").args(["--net", "sh", "-c", script]).output();
    match tried {
        Ok(output) if output.status.success() => true,
        Ok(output) => Need::Namespaces.is_met(false, String::from_utf8_lossy(&output.stderr)),
        Err(error) => Need::Namespaces.is_met(false, format!("no unshare: {error}")),
    }
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

/// A namespace connected to this one's bridge; it ends with its process.
struct Namespace {
    holder: Child,
    address: String,
}

impl Namespace {
    fn new(number: u8) -> Self {
        // It prints a line when it is ready, and ends when this process closes the pipe.
        let mut holder = Command::new("unshare")
            .args(["--net", "sh", "-c", "echo there; read _"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        std::io::BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (near, pid) = (format!("v{number}"), holder.id());
        ip(&format!("link add name {near} type veth peer name eth0 netns {pid}"));
        ip(&format!("link set {near} master br0 up"));
        let address = format!("10.99.0.{number}");
        let this = Self { holder, address };
        this.run(&format!("ip address add {}/24 dev eth0", this.address));
        this.run("ip link set lo up");
        this.run("ip link set eth0 up");
        this
    }

    /// A command that runs `program` inside.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.holder.id())).arg(program);
        command
    }

    fn run(&self, line: &str) {
        let (program, arguments) = line.split_once(' ').unwrap();
        let status = self.command(program).args(arguments.split(' ')).status().unwrap();
        assert!(status.success(), "{line}");
    }

    /// Delays packets that leave it; returns false if this kernel cannot.
    fn delay(&self) -> bool {
        let line = ["qdisc", "add", "dev", "eth0", "root", "netem", "delay", DELAY];
        self.command("tc").args(line).output().is_ok_and(|output| output.status.success())
    }

    fn stage(&self, file: &Path) -> Process {
        let listen = format!("{}:0", self.address);
        let mut command = self.command(env!("CARGO_BIN_EXE_loquent"));
        command.args(["stage", "--threads", "1", "--stage-plaintext", "--listen", &listen]);
        command.arg("--model").arg(file);
        Process::spawn(&mut command, " on ")
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

#[test]
fn stages_in_namespaces_of_their_own_answer_as_the_whole_model_does() {
    if std::env::var_os(INSIDE).is_some() {
        return compare();
    }
    if bundled().is_none() || !privileged() {
        return;
    }
    let name =
        "stages::namespaces::stages_in_namespaces_of_their_own_answer_as_the_whole_model_does";
    let output = Command::new("unshare")
        .arg("--net")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "the test ran inside: {text}");
}

fn compare() {
    ip("link set lo up");
    ip("link add name br0 type bridge");
    ip("address add 10.99.0.1/24 dev br0");
    ip("link set br0 up");
    let model = bundled().expect("the outer test has seen it");
    let whole = Process::serve(&["--model", model.to_str().unwrap()]);
    let expected = answer(&whole.address);
    drop(whole);
    let folder = tempfile::tempdir().unwrap();
    let files = split(&model, 2, folder.path());
    let namespaces = [Namespace::new(2), Namespace::new(3)];
    let delayed = namespaces.iter().all(Namespace::delay);
    let stages = [namespaces[0].stage(&files[1]), namespaces[1].stage(&files[2])];
    let list = stages.each_ref().map(|stage| stage.address.as_str()).join(",");
    let entry = files[0].to_str().unwrap();
    let own = ["--model", entry, "--stages", &list, "--stage-plaintext"];
    let server = Process::serve(&own);
    assert_eq!(answer(&server.address), expected);
    let (_, metrics) = get(&server.address, "/metrics");
    let prefix = "loquent_stages_link_delay_seconds ";
    let delay = metrics.lines().find_map(|line| line.strip_prefix(prefix));
    let delay_s: f64 = delay.expect("there is such a metric").parse().unwrap();
    // Two of the three links are delayed by 4 ms each; the server's is not.
    println!("link {:.2} ms, delayed by netem: {delayed}", delay_s * 1e3);
    assert!(!delayed || delay_s > 8e-3 / 3.0, "the links are those of the namespaces: {delay_s} s");
}
