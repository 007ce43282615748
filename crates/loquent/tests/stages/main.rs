//! Real processes on loopback: a split model answers as the whole one does, and a stage that is
//! killed or stopped during an answer ends it with an error until the stage is back.
#![cfg(feature = "llama")]

mod certificates;
#[cfg(target_os = "linux")]
mod namespaces;
mod process;
#[cfg(feature = "rpc")]
mod rpc;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Instant;

use process::{PATIENCE, Process, answer, ask, bundled, get, request, split, wait_for_ready};
use serde_json::json;

#[test]
fn a_split_model_answers_as_the_whole_one_does() {
    let Some(model) = bundled() else { return };
    let whole = Process::serve(&["--model", model.to_str().unwrap()]);
    let (expected, schema) = (answer(&whole.address), answer_in_schema(&whole.address));
    drop(whole);
    for stages in [2, 3] {
        let folder = tempfile::tempdir().unwrap();
        let files = split(&model, stages, folder.path());
        let running: Vec<Process> =
            files[2..].iter().map(|file| Process::stage(file, "127.0.0.1:0")).collect();
        // The first stage is computed by the server's own process.
        let (list, entry) = (list(&files[1], &running), files[0].to_str().unwrap());
        let server = Process::serve(&["--model", entry, "--stages", &list]);
        assert_eq!(answer(&server.address), expected, "{stages} stages");
        assert_eq!(answer_in_schema(&server.address), schema, "{stages} stages");
        let (_, metrics) = get(&server.address, "/metrics");
        assert!(metrics.contains("loquent_stage_up{stage=\"2\"} 1"), "{metrics}");
    }
}

#[test]
fn stages_with_a_compute_lock_answer_as_others_do() {
    let Some(model) = bundled() else { return };
    let folder = tempfile::tempdir().unwrap();
    let files = split(&model, 3, folder.path());
    let lock = folder.path().join("lock");
    let shared = ["--compute-lock", lock.to_str().unwrap()];
    let start = |file: &PathBuf| {
        let own = ["stage", "--model", file.to_str().unwrap(), "--listen", "127.0.0.1:0"];
        Process::start(&[&own[..], &shared].concat(), " on ")
    };
    let running: Vec<Process> = files[2..].iter().map(start).collect();
    let (list, entry) = (list(&files[1], &running), files[0].to_str().unwrap());
    let own = ["--model", entry, "--stages", &list, "--pipeline-depth", "3"];
    let server = Process::serve(&[&own[..], &shared].concat());
    let text = || answer(&server.address)["text"].clone();
    let alone = text();
    thread::scope(|scope| {
        let ask = || assert_eq!(text(), alone, "beside other answers");
        (0..6).for_each(|_| drop(scope.spawn(ask)));
    });
}

/// The value of `--stages`: the file of the first stage, the addresses of the others.
fn list(first: &Path, others: &[Process]) -> String {
    let others = others.iter().map(|stage| stage.address.as_str());
    std::iter::once(first.to_str().unwrap()).chain(others).collect::<Vec<_>>().join(",")
}

/// The server's answer with a JSON schema that it would not follow by itself.
fn answer_in_schema(address: &str) -> serde_json::Value {
    let colours = json!({"type": "string", "enum": ["red", "green", "blue"]});
    let schema = json!({"type": "object", "additionalProperties": false,
        "properties": {"colours": {"type": "array", "items": colours, "minItems": 2, "maxItems": 3}},
        "required": ["colours"]});
    let format = json!({"type": "json_schema", "json_schema": {"name": "c", "schema": schema}});
    let body = json!({"messages": [{"role": "user", "content": "Which colours?"}],
                      "temperature": 0, "max_tokens": 100, "response_format": format});
    let answer = ask(address, "/v1/chat/completions", &body);
    let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
    let value: serde_json::Value = serde_json::from_str(content).unwrap();
    let colours = value["colours"].as_array().expect("the schema asks for it");
    assert!((2..=3).contains(&colours.len()), "{content}");
    value
}

/// Two stage processes and a server that uses them.
fn cluster(folder: &Path) -> Option<(Vec<PathBuf>, Process, Process, Process)> {
    let files = split(&bundled()?, 2, folder);
    let first = Process::stage(&files[1], "127.0.0.1:0");
    let second = Process::stage(&files[2], "127.0.0.1:0");
    let list = format!("{},{}", first.address, second.address);
    let entry = files[0].to_str().unwrap();
    // The delay makes an answer last some seconds, so that stages can fail during it.
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
        // An error here is the abort of the connection, which ends the text.
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
    assert!(text.contains("\"error\""), "the stream ends with an error: {text}");
    assert!(!text.contains("[DONE]"), "a broken stream never ends cleanly: {text}");
}

#[test]
fn a_stage_killed_during_an_answer_ends_it_with_an_error_and_service_returns() {
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
    // Its limit is 1.5 s; without it the answer would never end.
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    wait_for_ready(&server.address, 503);
    first.signal("-CONT");
    wait_for_ready(&server.address, 200);
    assert_eq!(answer(&server.address), before);
}

#[test]
fn misuse_is_explained() {
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
    assert!(text.contains("--stage-tls-cert") && text.contains("--stage-plaintext"), "{text}");
    let elsewhere = ["stage", "--model", part, "--listen", "0.0.0.0:0"];
    for more in [["--stage-key", "secret"].as_slice(), &["--stage-plaintext"]] {
        let text = run(&[&elsewhere, more].concat());
        assert!(text.contains("--stage-plaintext"), "a key alone is not enough: {text}");
    }
    let nowhere = ["--listen", "127.0.0.1:0", "--compute-lock", "/nowhere/turns"];
    let text = run(&[&["stage", "--model", part][..], &nowhere].concat());
    assert!(text.contains("--compute-lock /nowhere/turns"), "{text}");
    let text = run(&["serve", "--port", "0", "--model", whole, "--stages", "127.0.0.1:9"]);
    assert!(text.contains("no entry file"), "{text}");
    let text = run(&["split", whole, "--layers", "0..1"]);
    assert!(text.contains("do not fit"), "{text}");
    let text = run(&["split", "no-such-model.gguf", "--stages", "2"]);
    assert!(text.contains("no-such-model.gguf"), "{text}");
}
