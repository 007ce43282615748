//! The chat as it looks: `loquent chat` and `loquent run` on a pseudo-terminal, whose output an
//! emulated terminal shows.
#![cfg(target_os = "linux")]

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::chat_stand_in::{Reply, StandIn};
use crate::hub_stand_in;
#[cfg(feature = "llama")]
use crate::process::bundled;
use nix::pty::{Winsize, openpty};
use nix::sys::termios::{LocalFlags, tcgetattr};
use serde_json::{Value, json};

const COLUMNS: NonZero<u16> = NonZero::new(50).unwrap();
const ROWS: NonZero<u16> = NonZero::new(30).unwrap();

/// Far more than anything here takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// What the program has written: as bytes, and as a terminal shows it.
struct Received {
    bytes: Vec<u8>,
    shown: vt100::Parser,
}

/// The program on a terminal; killed at the test's end.
struct OnTerminal {
    child: Child,
    keyboard: File,
    received: Arc<(Mutex<Received>, Condvar)>,
    /// The program keeps nothing there that others would see.
    _folder: tempfile::TempDir,
}

impl OnTerminal {
    fn start(arguments: &[&str]) -> OnTerminal {
        Self::start_on("xterm-256color", arguments)
    }

    /// Starts the program with `term` as the terminal's kind.
    fn start_on(term: &str, arguments: &[&str]) -> OnTerminal {
        let size =
            Winsize { ws_row: ROWS.get(), ws_col: COLUMNS.get(), ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let slave = || Stdio::from(pty.slave.try_clone().unwrap());
        let mut command = Command::new(env!("CARGO_BIN_EXE_loquent"));
        command.args(arguments).env("TERM", term).env("XDG_STATE_HOME", folder.path());
        command.current_dir(folder.path()).env("XDG_CACHE_HOME", folder.path());
        command.env("HF_HOME", folder.path()).env("OLLAMA_MODELS", folder.path());
        for name in [
            "NO_COLOR",
            "LOQUENT_URL",
            "LOQUENT_API_KEY",
            "LOQUENT_MODEL",
            "LOQUENT_LOG",
            "HF_HUB_OFFLINE",
            "HF_HUB_CACHE",
        ] {
            command.env_remove(name);
        }
        let child = command.stdin(slave()).stdout(slave()).stderr(slave()).spawn().unwrap();
        let shown = vt100::Parser::new(ROWS, COLUMNS, 0);
        let received = Received { bytes: Vec::new(), shown };
        let received = Arc::new((Mutex::new(received), Condvar::new()));
        let mut screen = File::from(pty.master.try_clone().unwrap());
        let shared = received.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The reading end fails once the program has gone.
            while let Ok(count @ 1..) = screen.read(&mut bytes) {
                let mut received = shared.0.lock().unwrap();
                received.bytes.extend_from_slice(&bytes[..count]);
                received.shown.process(&bytes[..count]);
                shared.1.notify_all();
            }
        });
        OnTerminal { child, keyboard: File::from(pty.master), received, _folder: folder }
    }

    fn type_line(&mut self, line: &str) {
        // Return, as the Enter key sends it.
        self.keyboard.write_all(format!("{line}\r").as_bytes()).unwrap();
    }

    /// Waits until the terminal is as `is_right` says, and returns what it shows.
    fn wait(&self, what: &str, is_right: impl Fn(&Received) -> bool) -> String {
        let (received, changed) = &*self.received;
        let until = Instant::now() + LIMIT;
        let mut received = received.lock().unwrap();
        while !is_right(&received) {
            let left = until.saturating_duration_since(Instant::now());
            let shown = received.shown.screen().contents();
            assert!(!left.is_zero(), "{what} did not come:\n{shown}");
            received = changed.wait_timeout(received, left).unwrap().0;
        }
        received.shown.screen().contents()
    }

    fn wait_for(&self, text: &str) -> String {
        self.wait(text, |received| received.shown.screen().contents().contains(text))
    }

    /// Whether the first `text` on the screen looks as `is_right` says.
    fn looks(&self, text: &str, is_right: impl Fn(&vt100::Cell) -> bool) -> bool {
        let received = self.received.0.lock().unwrap();
        let screen = received.shown.screen();
        for (row, line) in screen.rows(0, COLUMNS.get()).enumerate() {
            if let Some(at) = line.find(text) {
                let column = line[..at].chars().count() as u16;
                return is_right(screen.cell(row as u16, column).unwrap());
            }
        }
        panic!("{text} is not on the screen:\n{}", screen.contents());
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    fn ends(mut self) -> ExitStatus {
        let until = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < until, "the program does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Text in deltas of a few characters each.
fn in_pieces(member: &str, text: &str) -> Vec<Value> {
    let characters: Vec<char> = text.chars().collect();
    characters.chunks(3).map(|piece| json!({ member: String::from_iter(piece) })).collect()
}

fn chat(server: &StandIn, more: &[&str]) -> OnTerminal {
    OnTerminal::start(&[&["chat", "--url", &server.url()], more].concat())
}

const MARKDOWN: &str = "## Streams\n\nAn answer **arrives** in `pieces`, and its words are wrapped \
    where they end.\n\n1. one\n2. two\n\n```sh\nls **/*.rs\n```\n\n| key | value |\n|---|---:|\n| a | 1 |\n";

#[test]
fn reasoning_is_folded_and_markdown_rendered() {
    let thoughts = in_pieces("reasoning_content", "They ask about streams.\nI know those.");
    let deltas = [thoughts, in_pieces("content", MARKDOWN)].concat();
    let server = StandIn::start([Reply::Deltas { deltas, finish_reason: "stop" }]);
    let mut terminal = chat(&server, &[]);
    terminal.wait_for("/help lists");
    terminal.type_line("Streams?");
    let shown = terminal.wait_for("first after");
    let lines: Vec<_> = shown.lines().map(str::trim_end).collect();
    let from = lines.iter().position(|line| line.starts_with("Thought for")).unwrap();
    let expected = [
        "",
        "Streams",
        "",
        "An answer arrives in pieces, and its words are",
        "wrapped where they end.",
        "",
        "1. one",
        "2. two",
        "",
        "sh",
        "ls **/*.rs",
        "",
        "key │ value",
        "────┼──────",
        "a   │     1",
    ];
    assert_eq!(lines[from + 1..from + 1 + expected.len()], expected, "{shown}");
    assert!(!shown.contains("They ask"), "the reasoning is folded away: {shown}");
    assert!(terminal.looks("arrives", vt100::Cell::bold));
    assert!(terminal.looks("pieces", |cell| cell.fgcolor() != vt100::Color::Default));
    assert!(terminal.looks("in pieces", |cell| !cell.bold()));
    terminal.type_line("/thoughts");
    terminal.wait_for("They ask about streams.\nI know those.");
    terminal.type_line("/quit");
    assert!(terminal.ends().success());
}

#[test]
fn reasoning_is_seen_while_it_arrives() {
    let deltas = in_pieces("reasoning_content", "First I have to find out what they mean.");
    let server = StandIn::start([Reply::HangAfter { deltas }]);
    let mut terminal = chat(&server, &[]);
    terminal.wait_for("/help lists");
    terminal.type_line("Well?");
    let shown = terminal.wait_for("what they mean.");
    assert!(shown.contains("Thinking…") && shown.contains("│ First I have"), "{shown}");
    terminal.signal("-INT");
    let shown = terminal.wait_for("stopped");
    assert!(shown.contains("Thought for") && !shown.contains("First I"), "{shown}");
    terminal.type_line("/quit");
    assert!(terminal.ends().success());
}

#[test]
fn ctrl_c_at_the_prompt_of_a_terminal_without_editing_ends_the_chat() {
    let server = StandIn::start([Reply::HangAfter { deltas: in_pieces("content", "First of") }]);
    let mut terminal = OnTerminal::start_on("dumb", &["chat", "--url", &server.url()]);
    let is_prompted = |received: &Received| received.bytes.ends_with(b"> ");
    terminal.wait("the first prompt", is_prompted);
    terminal.type_line("Well?");
    terminal.wait_for("First of");
    terminal.signal("-INT");
    terminal.wait_for("stopped");
    terminal.wait("the second prompt", is_prompted);
    terminal.signal("-INT");
    assert_eq!(terminal.ends().code(), Some(130));
}

#[test]
fn ctrl_c_ends_a_command_to_a_silent_server() {
    let server = StandIn::start([Reply::full(&["A1"])]);
    let mut terminal = chat(&server, &["--model", "m"]);
    terminal.wait_for("the commands");
    terminal.type_line("Q1");
    terminal.wait_for("2 tokens");
    server.fall_silent();
    terminal.type_line("/model");
    let until = Instant::now() + LIMIT;
    while server.questions().len() < 2 {
        assert!(Instant::now() < until, "the server is not asked");
        std::thread::sleep(Duration::from_millis(20));
    }
    terminal.signal("-INT");
    terminal.wait_for("stopped");
    terminal.type_line("/quit");
    assert!(terminal.ends().success());
}

#[test]
fn a_termination_amid_an_answer_leaves_the_terminal_its_echo() {
    let server = StandIn::start([Reply::HangAfter { deltas: in_pieces("content", "so far") }]);
    let mut terminal = chat(&server, &[]);
    terminal.wait_for("/help lists");
    terminal.type_line("Well?");
    terminal.wait_for("so far");
    let keyboard = terminal.keyboard.try_clone().unwrap();
    let echoes = || tcgetattr(&keyboard).unwrap().local_flags.contains(LocalFlags::ECHO);
    assert!(!echoes());
    terminal.signal("-TERM");
    assert_eq!(terminal.ends().code(), Some(143));
    assert!(echoes());
}

#[test]
fn tool_calls_are_shown_with_their_arguments() {
    let call = |name: Option<&str>, arguments: &str| {
        let mut function = json!({ "arguments": arguments });
        if let Some(name) = name {
            function["name"] = json!(name);
        }
        json!({ "tool_calls": [{ "index": 0, "function": function }] })
    };
    let mut deltas = in_pieces("content", "I will look.");
    deltas.extend([call(Some("weather"), ""), call(None, "{\"city\": \"Pa"), call(None, "ris\"}")]);
    let server = StandIn::start([Reply::Deltas { deltas, finish_reason: "tool_calls" }]);
    let mut terminal = chat(&server, &[]);
    terminal.wait_for("/help lists");
    terminal.type_line("Weather in Paris?");
    let shown = terminal.wait_for("calls a tool");
    assert!(shown.contains("I will look.\n\n→ weather(city: \"Paris\")\n"), "{shown}");
}

#[test]
fn a_plain_answer_is_shown_as_it_is_and_can_be_copied() {
    let server = StandIn::start([Reply::full(&["a **b", "**\n```\ncode\n```\n"])]);
    let mut terminal = chat(&server, &["--plain"]);
    terminal.wait_for("/help lists");
    terminal.type_line("Q");
    let shown = terminal.wait_for("first after");
    assert!(shown.contains("a **b**\n```\ncode\n```"), "{shown}");
    terminal.type_line("/copy code");
    // "code\n" in Base64, in the sequence that sets the clipboard.
    let sequence = b"\x1b]52;c;Y29kZQo=\x07";
    terminal.wait("the clipboard", |it| it.bytes.windows(sequence.len()).any(|at| at == sequence));
    terminal.wait_for("Sent to the clipboard: 1 line.");
}

#[test]
fn without_a_model_a_real_one_is_offered_and_downloaded() {
    let Some(model) = bundled() else { return };
    let content = std::fs::read(model).unwrap();
    let hub =
        hub_stand_in::StandIn::start("Qwen/Qwen3-0.6B-GGUF", &[("Qwen3-0.6B-Q8_0.gguf", content)]);
    // A hub that lacks the model costs the offer, not the chat.
    let other = hub_stand_in::StandIn::start("acme/other", &[]);
    for (hub, answer, is_real) in [(&hub, "", false), (&hub, "y", true), (&other, "y", false)] {
        let mut terminal = OnTerminal::start(&["run", "--hf-endpoint", &hub.url()]);
        terminal.wait_for("[y/N]");
        terminal.type_line(answer);
        let shown = terminal.wait_for("/help");
        assert_eq!(shown.contains("Qwen3-0.6B-Q8_0 ("), is_real, "{shown}");
        terminal.type_line("/quit");
        assert!(terminal.ends().success());
    }
}

#[test]
fn a_model_is_run_and_nothing_listens() {
    let mut terminal = OnTerminal::start(&["run", "tiny"]);
    terminal.wait_for("demonstration");
    terminal.type_line("Hello");
    terminal.wait_for("tokens/s");
    assert_eq!(internet_sockets(terminal.child.id()), Vec::<String>::new());
    terminal.type_line("/model");
    terminal.wait_for("This is loquent-tiny.");
    terminal.type_line("/quit");
    assert!(terminal.ends().success());
}

/// The sockets of a process that are in the kernel's tables of TCP and UDP.
fn internet_sockets(pid: u32) -> Vec<String> {
    let tables = ["tcp", "tcp6", "udp", "udp6"].map(|table| {
        std::fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default()
    });
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let links = open.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    let inodes = links.filter_map(|link| {
        Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
    });
    let is_listed = |inode: &String| {
        let columns = |row: &str| row.split_whitespace().nth(9) == Some(inode);
        tables.iter().any(|table| table.lines().any(columns))
    };
    inodes.filter(is_listed).collect()
}

#[test]
fn one_answer_of_a_model_goes_into_a_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_loquent"));
    command.args(["run", "tiny", "Hello"]).env("XDG_CACHE_HOME", folder.path());
    command.env_remove("LOQUENT_MODEL").env_remove("LOQUENT_LOG");
    let output = command.stdin(Stdio::null()).output().unwrap();
    let (answer, said) = (String::from_utf8(output.stdout).unwrap(), output.stderr);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
    assert!(answer.trim().len() > 10 && answer.ends_with('\n'), "{answer:?}");
    assert!(!answer.contains('\x1b') && said.is_empty(), "{}", String::from_utf8_lossy(&said));
}
