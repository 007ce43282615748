//! Real processes on loopback: a split model answers as the whole one does, and a stage or an
//! engine's process that is killed takes no answer with it.
#![cfg(feature = "llama")]

mod certificates;
#[cfg(target_os = "linux")]
mod losses;
#[cfg(target_os = "linux")]
mod namespaces;
#[cfg(feature = "rpc")]
mod rpc;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use crate::process::{Process, answer, ask, bundled, get, split};
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
