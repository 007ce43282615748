//! `loquent tune` with the bundled model: it measures, keeps a profile, and refuses bad input.
#![cfg(feature = "llama")]

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use loquent::profile::{Profile, TunedSettings};
use serde_json::Value;

fn tune(profiles: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_loquent"));
    command.env("LOQUENT_PROFILES", profiles).arg("tune").args(args);
    command.output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_quick_look_keeps_a_profile_and_a_plot() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["--quick", "--max-batch-size", "2", "--max-time-s", "20"];
    let done = tune(folder.path(), &args);
    let (out, err) = (text(&done.stdout), text(&done.stderr));
    assert!(done.status.success(), "{out}{err}");
    for part in
        ["<- taken", "Beside one busy program", "ms/step", "Against the defaults", "Saved as"]
    {
        assert!(out.contains(part), "{part:?} is missing:\n{out}");
    }
    let files = std::fs::read_dir(folder.path()).unwrap();
    let mut names: Vec<String> =
        files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert!(names.len() == 2 && names[0].ends_with(".svg") && names[1].ends_with(".toml"));
    let profile = std::fs::read_to_string(folder.path().join(&names[1])).unwrap();
    assert!(profile.contains("[settings]") && profile.contains("threads = "), "{profile}");
    let plot = std::fs::read_to_string(folder.path().join(&names[0])).unwrap();
    assert!(plot.starts_with("<svg") && plot.contains("<circle"));
}

#[test]
fn a_search_that_time_has_cut_short_says_so() {
    let folder = tempfile::tempdir().unwrap();
    // Too little for all settings on a fast machine (two seconds were enough for most of them), and
    // on a busy one for the first.
    let done = tune(folder.path(), &["--max-batch-size", "2", "--max-time-s", "0.5"]);
    let (out, err) = (text(&done.stdout), text(&done.stderr));
    match done.status.success() {
        true => {
            assert!(out.contains("--max-time-s to try more"), "{out}{err}");
            assert!(out.contains("s were too few to complete: "), "{out}");
        }
        false => assert!(err.contains("raise --max-time-s"), "{out}{err}"),
    }
}

#[test]
fn no_time_or_no_model_keeps_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for (args, message) in [
        (&["--max-time-s", "0"][..], "in the time given"),
        (&["--max-time-s=-1"], "--max-time-s"),
        (&["--model", "no-such.gguf"], "no-such.gguf"),
        (&["--model", "Cargo.toml"], "not a GGUF file"),
    ] {
        let done = tune(folder.path(), args);
        assert!(!done.status.success());
        assert!(text(&done.stderr).contains(message), "{}", text(&done.stderr));
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_search_that_is_stopped_replaces_no_profile() {
    let folder = tempfile::tempdir().unwrap();
    let first = tune(folder.path(), &["--quick", "--max-batch-size", "2", "--max-time-s", "20"]);
    assert!(first.status.success(), "{}", text(&first.stderr));
    let profile = || {
        let files = std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path());
        let mut profiles = files.filter(|path| path.extension().is_some_and(|it| it == "toml"));
        std::fs::read(profiles.next().unwrap()).unwrap()
    };
    let before = profile();
    let mut command = Command::new(env!("CARGO_BIN_EXE_loquent"));
    command.env("LOQUENT_PROFILES", folder.path()).args(["tune", "--max-batch-size", "2"]);
    let stopped = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Enough for a few settings, not for all.
    std::thread::sleep(Duration::from_secs(5));
    let pid = stopped.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let stopped = stopped.wait_with_output().unwrap();
    let (out, err) = (text(&stopped.stdout), text(&stopped.stderr));
    match stopped.status.success() {
        true => assert!(out.contains("Not saved: "), "{out}{err}"),
        false => assert!(err.contains("no setting could be measured"), "{out}{err}"),
    }
    assert_eq!(profile(), before);
}

#[test]
fn a_log_for_programs_has_the_profile_as_json() {
    let folder = tempfile::tempdir().unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/loquent-tiny.gguf");
    let settings = TunedSettings {
        threads: 1,
        poll: 50,
        kv_unified: true,
        flash_attention: true,
        loquent_kernels: true,
        pass_tokens: 256,
    };
    Profile::new("tiny".into(), settings).save(&model, folder.path()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_loquent"));
    // A file that is missing ends the start after the profile is adopted.
    command.args(["serve", "--port=0", "--log-format=json", "--api-key-file=/nowhere", "--model"]);
    command.arg(&model).env("LOQUENT_PROFILES", folder.path());
    let done = command.env_remove("LOQUENT_LOG").output().unwrap();
    let said: Vec<String> = text(&done.stderr)
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect(line)["message"].to_string())
        .collect();
    assert!(said.iter().any(|line| line.contains("Tuned: threads 1, poll 50")), "{said:?}");
    assert!(said.last().unwrap().contains("--api-key-file"), "{said:?}");
}
