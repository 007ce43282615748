//! `loquent bench engine --roofline` with the bundled model: every step has its limit, in the
//! table, as JSON and as a plot; time and Ctrl-C end it.
#![cfg(feature = "llama")]

use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn roofline() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_loquent"));
    command.args(["bench", "engine", "--roofline", "--no-profile"]);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn run(args: &[&str]) -> Output {
    roofline().args(args).output().expect("the program starts")
}

#[test]
fn every_step_has_its_limit() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let done = run(&["--json", &file("r.json"), "--plot", &file("r.svg")]);
    let (out, err) = (text(&done.stdout), text(&done.stderr));
    assert!(done.status.success(), "{out}{err}");
    for part in ["memory is read at", "decode, 1 row ", "decode, 64 rows", "prompt of 512"] {
        assert!(out.contains(part), "{part:?} is missing:\n{out}");
    }
    let json = std::fs::read_to_string(file("r.json")).unwrap();
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["incomplete"], false);
    assert!(json["limits"]["read_bytes_per_s"].as_f64().unwrap() > 0.0);
    let steps = json["steps"].as_array().unwrap();
    let rows: Vec<u64> = steps.iter().filter_map(|step| step["rows"].as_u64()).collect();
    assert_eq!(rows, [1, 2, 4, 8, 16, 32, 64]);
    for step in steps {
        let number = |name: &str| step[name].as_f64().unwrap_or_else(|| panic!("{name}: {step}"));
        let longer = number("read_ms").max(number("multiply_ms"));
        assert!(number("ms") > 0.0 && longer > 0.0 && number("limit_ms") == longer, "{step}");
        assert!((number("reached") - longer / number("ms")).abs() < 1e-9, "{step}");
    }
    let plot = std::fs::read_to_string(file("r.svg")).unwrap();
    assert!(plot.starts_with("<svg") && plot.matches("<circle").count() > 3 * rows.len());
}

#[test]
fn what_cannot_be_measured_is_refused() {
    for (args, message) in [
        (&["--max-time-s", "0"][..], "raise --max-time-s"),
        (&["--max-time-s=-1"], "--max-time-s"),
        (&["--simulate", "10"], "--simulate"),
        (&["--url", "http://127.0.0.1:1"], "--url"),
        (&["--model", "no-such.gguf"], "no-such.gguf"),
    ] {
        let done = run(args);
        assert!(!done.status.success(), "{args:?}");
        assert!(text(&done.stderr).contains(message), "{args:?}: {}", text(&done.stderr));
        assert!(done.stdout.is_empty(), "{}", text(&done.stdout));
    }
}

#[test]
fn ctrl_c_ends_it_with_130() {
    let mut command = roofline();
    // Without a limit of time that could end it first.
    command.args(["--max-time-s", "3600"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let id = child.id().to_string();
    let sent = Command::new("kill").args(["-INT", &id]).status().unwrap();
    assert!(sent.success());
    let done = child.wait_with_output().unwrap();
    let err = text(&done.stderr);
    // Before it looks for signals the system's own way ends it.
    let ended = done.status.code() == Some(130) || done.status.code().is_none();
    assert!(ended || err.contains("--max-time-s"), "{:?}: {err}", done.status);
}
