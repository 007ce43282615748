//! The terminal chat, as a piped program and line by line, against a stand-in server.

use std::collections::VecDeque;
use std::future::pending;
use std::io::{Read, Write};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::chat_stand_in::{Reply, StandIn};
use loquent::chat::{
    AnswerEnd, AnswerPart, Columns, Dialogue, Input, Lines, Screen, Style, converse,
};
use loquent_client::{Client, Config};
use serde_json::{Value, json};

const PLAIN: Style = Style { terminal: false, colour: false, columns: Columns::Unlimited };

fn loquent_chat(server: &StandIn, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_loquent"));
    command.args(["chat", "--url", &server.url()]).args(arguments);
    command.env_remove("LOQUENT_URL").env_remove("LOQUENT_API_KEY");
    command.env("XDG_CACHE_HOME", "/dev/null"); // nothing is remembered
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_question_on_the_command_line_prints_the_answer_alone() {
    let server = StandIn::start([Reply::full(&["Hel", "lo", " wörld"])]);
    let options = ["--system", "be kind", "--temperature", "0.5", "--max-tokens", "7"];
    let arguments = [&options[..], &["--api-key", "k", "Say", "hello"]].concat();
    let output = loquent_chat(&server, &arguments).output().unwrap();
    let (stdout, stderr) = texts(&output);
    assert!(output.status.success(), "{stderr}");
    assert_eq!((stdout.as_str(), stderr.as_str()), ("Hello wörld\n", ""));
    let (request, authorization) = server.questions().remove(0);
    assert_eq!(authorization.as_deref(), Some("Bearer k"));
    assert_eq!(request["model"], "first-model");
    assert_eq!((&request["temperature"], &request["max_tokens"]), (&json!(0.5), &json!(7)));
    let messages = json!([
        { "role": "system", "content": "be kind" },
        { "role": "user", "content": "Say hello" },
    ]);
    assert_eq!(request["messages"], messages);
}

#[test]
fn a_piped_question_is_one_question() {
    let server = StandIn::start([Reply::full(&["ok\n"])]);
    let mut command = loquent_chat(&server, &["--model", "other"]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"line 1\nline 2\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(texts(&output), ("ok\n".to_owned(), String::new()));
    let (request, _) = server.questions().remove(0);
    assert_eq!(request["model"], "other");
    assert_eq!(request["max_tokens"], Value::Null);
    assert_eq!(request["messages"][0]["content"], "line 1\nline 2\n");
}

#[test]
fn reasoning_is_no_part_of_a_piped_answer_unless_asked_for() {
    let deltas =
        [json!({ "reasoning": "Hm." }), json!({ "content": "\n\nYes" }), json!({ "content": "." })];
    let reply = Reply::Deltas { deltas: deltas.to_vec(), finish_reason: "stop" };
    let server = StandIn::start([reply.clone(), reply]);
    let answer = |more: &[&str]| {
        let output = loquent_chat(&server, &[more, &["q"]].concat()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        texts(&output).0
    };
    assert_eq!(answer(&[]), "Yes.\n");
    assert_eq!(answer(&["--reasoning", "full"]), "Hm.\nYes.\n");
}

#[test]
fn files_go_with_the_question() {
    let server = StandIn::start([Reply::full(&["ok"])]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.py");
    std::fs::write(&file, "x = 1\n").unwrap();
    let file = file.to_str().unwrap();
    let output = loquent_chat(&server, &["-f", file, "Why?"]).output().unwrap();
    assert_eq!(texts(&output), ("ok\n".to_owned(), String::new()));
    let (request, _) = server.questions().remove(0);
    assert_eq!(request["messages"][0]["content"], "a.py:\n\n```py\nx = 1\n```\n\nWhy?");
    let output = loquent_chat(&server, &["-f", "/nowhere", "Why?"]).output().unwrap();
    assert!(!output.status.success() && texts(&output).1.contains("/nowhere"));
}

#[test]
fn a_servers_errors_send_the_terminal_no_orders() {
    let message = "no\u{1b}]52;c;aGk=\u{7} such\u{9b}2J mo\rdel".to_owned();
    let in_stream = Reply::ErrorInStream { pieces: Vec::new(), message: message.clone() };
    for reply in [in_stream, Reply::Refuse { status: 400, message }] {
        let server = StandIn::start([reply]);
        let output = loquent_chat(&server, &["q"]).output().unwrap();
        let (_, stderr) = texts(&output);
        assert!(!output.status.success() && stderr.contains("such2J model"), "{stderr:?}");
        assert!(!stderr.trim_end().contains(char::is_control), "{stderr:?}");
    }
}

#[test]
fn a_key_comes_from_a_file_too() {
    let server = StandIn::start([Reply::full(&["ok"])]);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "sk-file\n").unwrap();
    let key = ["--api-key-file", file.path().to_str().unwrap()];
    let output = loquent_chat(&server, &[&key[..], &["q"]].concat()).output().unwrap();
    assert_eq!(texts(&output), ("ok\n".to_owned(), String::new()), "loopback is nobody's network");
    assert_eq!(server.questions()[0].1.as_deref(), Some("Bearer sk-file"));
}

#[test]
fn an_answer_without_a_finish_is_an_error() {
    let endings = [
        Reply::Cut { pieces: vec!["half".into()], clean: true },
        Reply::Cut { pieces: vec!["half".into()], clean: false },
        Reply::DoneWithoutFinish { pieces: vec!["half".into()] },
        Reply::ErrorInStream { pieces: vec!["half".into()], message: "it stopped".into() },
    ];
    for reply in endings {
        let case = format!("{reply:?}");
        let server = StandIn::start([reply]);
        let output = loquent_chat(&server, &["q"]).output().unwrap();
        let (stdout, stderr) = texts(&output);
        assert!(!output.status.success(), "{case} was taken for complete");
        assert_eq!(stdout, "half\n", "{case}");
        assert!(stderr.contains("the answer was cut off"), "{case}: {stderr}");
    }
}

#[test]
fn a_refusal_is_told_in_the_servers_words() {
    let server = StandIn::start([Reply::Refuse { status: 429, message: "try later".into() }]);
    let output = loquent_chat(&server, &["q"]).output().unwrap();
    let (stdout, stderr) = texts(&output);
    assert!(!output.status.success() && stdout.is_empty());
    assert!(stderr.contains("429") && stderr.contains("try later"), "{stderr}");
}

#[test]
fn no_server_is_told_with_its_address() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{closed}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_loquent"));
    let output = command.args(["chat", "q"]).env("LOQUENT_URL", &url).output().unwrap();
    let (_, stderr) = texts(&output);
    assert!(stderr.contains(&closed.to_string()) && stderr.contains("loquent serve"), "{stderr}");
}

#[cfg(unix)]
#[test]
fn ctrl_c_stops_a_single_answer() {
    let server = StandIn::start([Reply::Hang { pieces: vec!["so far".into()] }]);
    let mut child = loquent_chat(&server, &["q"]).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut begun = [0; 6];
    stdout.read_exact(&mut begun).unwrap();
    assert_eq!(&begun, b"so far");
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "as after the signal");
    assert!(texts(&output).1.contains("stopped"), "{}", texts(&output).1);
}

/// Lines typed beforehand.
struct Script(VecDeque<Input>);

impl Script {
    fn new(lines: &[&str]) -> Script {
        Script(lines.iter().map(|line| Input::Line((*line).to_owned())).collect())
    }
}

impl Lines for Script {
    fn line(&mut self, _continued: bool) -> anyhow::Result<Input> {
        Ok(self.0.pop_front().unwrap_or(Input::End))
    }
}

fn dialogue(server: &StandIn) -> Dialogue {
    Dialogue::new(Client::new(Config::new(server.url())).unwrap(), "m".to_owned())
}

async fn conversation(server: &StandIn, script: Script) -> String {
    conversation_on(PLAIN, server, script).await
}

async fn conversation_on(style: Style, server: &StandIn, mut script: Script) -> String {
    let mut out = Vec::new();
    let mut screen = Screen::new(&mut out, style);
    converse(&mut dialogue(server), &mut script, &mut screen, pending).await.unwrap();
    String::from_utf8(out).unwrap()
}

/// The `role: content` lines of each question.
fn asked(server: &StandIn) -> Vec<Vec<String>> {
    let line = |message: &Value| {
        let text = |field: &str| message[field].as_str().unwrap().to_owned();
        format!("{}: {}", text("role"), text("content"))
    };
    let lines = |(request, _): (Value, _)| {
        request["messages"].as_array().unwrap().iter().map(line).collect::<Vec<_>>()
    };
    server.questions().into_iter().map(lines).collect()
}

#[tokio::test]
async fn a_conversation_remembers_what_was_said_until_reset() {
    let server = StandIn::start([Reply::full(&["A1"]), Reply::full(&["A2"]), Reply::full(&["A3"])]);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "text").unwrap();
    let attach = format!("/file {}", file.path().to_str().unwrap());
    let lines = ["Q1", "/system short", "Q2", &attach, "/reset", "", "//Q3", "/quit", "unread"];
    let out = conversation(&server, Script::new(&lines)).await;
    assert_eq!(
        asked(&server),
        [
            vec!["user: Q1"],
            vec!["system: short", "user: Q1", "assistant: A1", "user: Q2"],
            vec!["system: short", "user: /Q3"],
        ]
    );
    assert!(out.contains("A1\n") && out.contains("2 tokens"), "{out}");
    assert!(out.contains("first after"), "{out}");
}

#[tokio::test]
async fn commands_choose_the_model_attach_files_and_save() {
    let reasoned = [json!({ "reasoning_content": "Hm." }), json!({ "content": "A1" })];
    let reply = Reply::Deltas { deltas: reasoned.to_vec(), finish_reason: "stop" };
    let server = StandIn::start([reply, Reply::full(&["A2"])]);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("a file.txt"), "text").unwrap();
    let attach = format!("/file {}", path("a file.txt").replace(' ', "\\ "));
    let (save, save_json) =
        (format!("/save {}", path("talk.md")), format!("/save {}", path("talk.json")));
    let lines = [
        "/model",
        "/model other",
        "/model first-model",
        "Q1",
        "/thoughts",
        &attach,
        "Q2",
        "/copy",
        &save,
        &save,
        &save_json,
    ];
    let out = conversation(&server, Script::new(&lines)).await;
    let (first, second) = (server.questions().remove(0).0, server.questions().remove(1).0);
    assert_eq!(first["model"], "first-model");
    let messages = second["messages"].as_array().unwrap();
    assert_eq!(messages[1], json!({ "role": "assistant", "content": "A1" }), "without reasoning");
    assert_eq!(messages[2]["content"], "a file.txt:\n\n```txt\ntext\n```\n\nQ2");
    for said in [
        "This is m.\n/model first-model",
        "no model other",
        "Hm.",
        "(1 line)",
        "no clipboard",
        "is there already",
    ] {
        assert!(out.contains(said), "{said} is missing: {out}");
    }
    let markdown = std::fs::read_to_string(path("talk.md")).unwrap();
    assert!(
        markdown.starts_with("# Conversation with first-model\n\n## You\n\nQ1\n\n## first-model")
    );
    let saved: Value = serde_json::from_slice(&std::fs::read(path("talk.json")).unwrap()).unwrap();
    assert_eq!(saved["messages"].as_array().unwrap().len(), 4);
}

#[tokio::test]
async fn parameters_are_set_for_the_questions_that_follow() {
    let server = StandIn::start([Reply::full(&["A1"]), Reply::full(&["A2"])]);
    let lines = [
        "/set temperature 0.2",
        "/set seed 7",
        "/set heat 1",
        "/set top_p 2",
        "/set",
        "Q1",
        "/set temperature default",
        "Q2",
    ];
    let out = conversation(&server, Script::new(&lines)).await;
    let [first, second] = server.questions().try_into().expect("two questions");
    assert_eq!((&first.0["temperature"], &first.0["seed"]), (&json!(0.2), &json!(7)));
    assert_eq!((second.0.get("temperature"), &second.0["seed"]), (None, &json!(7)));
    for said in [
        "temperature is 0.2",
        "no parameter heat",
        "from 0 to 1",
        "repetition_penalty 1.1 (default)\n",
        "\nseed 7\n",
    ] {
        assert!(out.contains(said), "{said} is missing: {out}");
    }
}

#[tokio::test]
async fn retry_asks_again_without_the_former_answer() {
    let cut = Reply::Cut { pieces: vec!["ha".into()], clean: true };
    let server = StandIn::start([cut, Reply::full(&["A1"]), Reply::full(&["A1b"])]);
    let out = conversation(&server, Script::new(&["/retry", "Q1", "/retry", "/retry"])).await;
    assert_eq!(asked(&server), [["user: Q1"], ["user: Q1"], ["user: Q1"]]);
    assert!(out.contains("no question to ask again") && out.contains("cut off"), "{out}");
}

#[tokio::test]
async fn a_retry_takes_back_the_last_questions_answer_alone() {
    let cut = Reply::Cut { pieces: vec!["ha".into()], clean: true };
    let server = StandIn::start([Reply::full(&["A1"]), cut, Reply::full(&["A2"])]);
    conversation(&server, Script::new(&["Q", "Q", "/retry"])).await;
    assert_eq!(asked(&server)[2], ["user: Q", "assistant: A1", "user: Q"]);
}

#[tokio::test]
async fn a_retry_that_fails_costs_no_answer() {
    let cut = || Reply::Cut { pieces: vec!["ha".into()], clean: true };
    let replies = [Reply::full(&["A1"]), cut(), cut(), Reply::full(&["A2"])];
    let server = StandIn::start(replies);
    conversation(&server, Script::new(&["Q1", "/retry", "/retry", "Q2"])).await;
    assert_eq!(asked(&server)[2], ["user: Q1"]);
    assert_eq!(asked(&server)[3], ["user: Q1", "assistant: A1", "user: Q2"]);
}

#[tokio::test]
async fn a_cut_off_answer_can_be_copied_and_saved() {
    let cut = Reply::Cut { pieces: vec!["part".into()], clean: true };
    let server = StandIn::start([Reply::full(&["A1"]), cut]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("talk.md");
    let save = format!("/save {}", file.to_str().unwrap());
    let terminal = Style { terminal: true, ..PLAIN };
    let script = Script::new(&["Q1", "Q2", "/copy", &save]);
    let out = conversation_on(terminal, &server, script).await;
    assert!(out.contains("\x1b]52;c;cGFydA==\x07"), "{out:?}");
    let markdown = std::fs::read_to_string(file).unwrap();
    assert!(markdown.ends_with("## You\n\nQ2\n\n## m (cut off)\n\npart\n"), "{markdown}");
}

#[tokio::test]
async fn lines_continue_after_a_backslash_and_ctrl_c_drops_them() {
    let server = StandIn::start([Reply::full(&["A1"])]);
    let mut script = Script::new(&["lost\\"]);
    script.0.push_back(Input::Interrupted);
    script.0.extend(Script::new(&["one\\", "two"]).0);
    conversation(&server, script).await;
    assert_eq!(asked(&server), [["user: one\ntwo"]]);
}

// Several threads, because waiting for the hang-up blocks one, and another must close the
// connection.
#[tokio::test(flavor = "multi_thread")]
async fn stopping_an_answer_keeps_what_came_and_the_conversation() {
    let server = StandIn::start([Reply::Hang { pieces: vec!["beg".into()] }, Reply::full(&["A2"])]);
    let mut dialogue = dialogue(&server);
    let shown = tokio::sync::Notify::new();
    let mut show = |part: AnswerPart<'_>| {
        // Not at a tick, which may come before the text.
        if let AnswerPart::Text(_) = part {
            shown.notify_one();
        }
        Ok(())
    };
    let answer = dialogue.ask("Q1", shown.notified(), &mut show).await.unwrap();
    assert_eq!((answer.text.as_str(), &answer.ending), ("beg", &AnswerEnd::Stopped));
    let within = Duration::from_secs(10);
    assert!(server.hung_up(within), "the server still streams to nobody");
    let answer = dialogue.ask("Q2", pending(), &mut |_| Ok(())).await.unwrap();
    assert_eq!(answer.ending, AnswerEnd::Finished("stop".into()));
    assert_eq!(asked(&server)[1], ["user: Q1", "assistant: beg", "user: Q2"]);
}
