//! `kill -9` of what computes, under 32 streams: each ends complete and says what it would have
//! said undisturbed, as far as any two runs say the same: kernels add in another order where other
//! rows are in the batch, activations are rounded to 8 bits after that, and so a few answers of
//! another undisturbed run differ as well.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::process::{PATIENCE, Process, answer, bundled, get, request, split, wait_for_ready};

const STREAMS: usize = 32;
/// Tokens of each answer. All streams have some before anything is killed.
const TOKENS: usize = 36;
const BEFORE: usize = 5;
/// Answers that no rounding changes, at least; 30 of two undisturbed runs were equal.
const FEWEST_EQUAL: usize = 24;

/// Asks for stream `number`, which is accepted at once.
fn ask_stream(address: &str, number: usize) -> impl Read + use<> {
    let prompt = format!("Question {number}: what is token streaming, and whom does it help?");
    let body = json!({"prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "stream": true,
                      "ignore_eos": true, "logprobs": 0});
    let (status, reader) = request(address, "POST", "/v1/completions", &body.to_string());
    assert_eq!(status, 200);
    reader
}

/// The tokens of stream `number`; `begun` counts streams with [`BEFORE`] tokens,
/// and `ended` those that are complete.
fn read(reader: impl Read, number: usize, begun: &AtomicUsize, ended: &AtomicUsize) -> Vec<String> {
    let (mut said, mut is_done) = (Vec::new(), false);
    for line in BufReader::new(reader).lines() {
        let line = line.expect("the connection lasts");
        assert!(!line.contains("\"error\""), "stream {number}: {line}");
        is_done |= line == "data: [DONE]";
        let Some(data) = line.strip_prefix("data: {") else { continue };
        let chunk: Value = serde_json::from_str(&format!("{{{data}")).unwrap();
        let before = said.len();
        said.extend(tokens_of(&chunk["choices"][0]["logprobs"]));
        if before < BEFORE && said.len() >= BEFORE {
            begun.fetch_add(1, Ordering::Relaxed);
        }
    }
    assert!(is_done && said.len() == TOKENS, "stream {number} is not complete: {said:?}");
    ended.fetch_add(1, Ordering::Relaxed);
    said
}

fn tokens_of(logprobs: &Value) -> impl Iterator<Item = String> {
    let tokens = logprobs["tokens"].as_array().into_iter().flatten();
    tokens.map(|token| token.as_str().unwrap_or_default().to_owned())
}

/// Holds answers to those that were `expected`.
fn compare(answers: &[Vec<String>], expected: &[Vec<String>], what: &str) {
    let equal = answers.iter().zip(expected).filter(|(one, other)| one == other).count();
    eprintln!("{what}: {equal} of {STREAMS} answers equal");
    assert!(equal >= FEWEST_EQUAL, "{what}: only {equal} answers are equal");
}

/// What all streams say at once, and how many had not ended when `act` was called, in their
/// midst.
fn streams(address: &str, act: impl FnOnce()) -> (Vec<Vec<String>>, usize) {
    let (begun, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        let (begun, ended) = (&begun, &ended);
        let open =
            |number| scope.spawn(move || read(ask_stream(address, number), number, begun, ended));
        let readers: Vec<_> = (0..STREAMS).map(open).collect();
        let started = Instant::now();
        while begun.load(Ordering::Relaxed) < STREAMS {
            assert!(started.elapsed() < PATIENCE, "not all streams have begun");
            thread::sleep(Duration::from_millis(1));
        }
        let open = STREAMS - ended.load(Ordering::Relaxed);
        act();
        (readers.into_iter().map(|reader| reader.join().unwrap()).collect(), open)
    })
}

fn signal(process: u32, name: &str) {
    let sent = std::process::Command::new("kill").args([name, &process.to_string()]).status();
    assert!(sent.unwrap().success());
}

/// A metric's value.
fn metric(address: &str, name: &str) -> f64 {
    let (_, text) = get(address, "/metrics");
    let line = text.lines().find(|line| line.starts_with(&format!("loquent_{name} ")));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_default()
}

/// Three stages, each a process, and a server. The delay makes answers last for seconds, so that
/// all can be amid them when a stage dies.
fn three_stages(folder: &Path, more: &[&str]) -> Option<(Vec<PathBuf>, Vec<Process>, Process)> {
    let files = split(&bundled()?, 3, folder);
    let stages: Vec<_> =
        files[1..].iter().map(|file| Process::stage(file, "127.0.0.1:0")).collect();
    let list: Vec<&str> = stages.iter().map(|stage| stage.address.as_str()).collect();
    let (entry, list) = (files[0].to_str().unwrap(), list.join(","));
    let fixed = ["--model", entry, "--stages", &list, "--stage-timeout-s", "1.5"];
    let exact = ["--kv-type", "f32", "--no-prefix-cache", "--max-batch-size", "32"];
    let slow = ["--link-delay-ms", "5"];
    let server = Process::serve(&[&fixed[..], &exact, &slow, more].concat());
    Some((files, stages, server))
}

#[test]
fn a_stage_killed_under_32_streams_takes_no_answer_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let Some((files, mut stages, server)) = three_stages(folder.path(), &[]) else { return };
    let (expected, _) = streams(&server.address, || ());
    for at in 0..3 {
        let (answers, open) = streams(&server.address, || {
            let address = stages[at].address.clone();
            stages[at].signal("-KILL");
            let _ = stages[at].child.wait();
            stages[at] = Process::stage(&files[1 + at], &address);
        });
        assert!(open > 0, "stage {} died amid answers", at + 1);
        compare(&answers, &expected, &format!("stage {}", at + 1));
    }
    assert!(metric(&server.address, "engine_recoveries_total") >= 3.0);
}

#[test]
fn a_stage_that_hangs_is_left_and_its_answers_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let Some((_, stages, server)) = three_stages(folder.path(), &[]) else { return };
    let (expected, _) = streams(&server.address, || ());
    let (answers, _) = streams(&server.address, || {
        stages[1].signal("-STOP");
        // Its limit is 1.5 s: without it the answers would never go on.
        wait_for_ready(&server.address, 503);
        stages[1].signal("-CONT");
    });
    compare(&answers, &expected, "a stage that hangs");
}

#[test]
fn a_request_that_comes_while_a_stage_is_gone_waits_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let Some((files, mut stages, server)) = three_stages(folder.path(), &[]) else { return };
    let (begun, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let expected = read(ask_stream(&server.address, 0), 0, &begun, &ended);
    let address = stages[1].address.clone();
    stages[1].signal("-KILL");
    let _ = stages[1].child.wait();
    wait_for_ready(&server.address, 503);
    let waiting = ask_stream(&server.address, 0);
    stages[1] = Process::stage(&files[2], &address);
    assert_eq!(read(waiting, 0, &begun, &ended), expected);
}

#[test]
fn a_stage_that_does_not_come_back_ends_its_answers_with_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let limit = ["--engine-outage-s", "0.5"];
    let Some((files, stages, server)) = three_stages(folder.path(), &limit) else { return };
    let before = answer(&server.address);
    let body = json!({"prompt": "Tell me a story.", "max_tokens": 200, "stream": true,
                      "temperature": 0, "ignore_eos": true, "return_progress": true});
    let (_, reader) = request(&server.address, "POST", "/v1/completions", &body.to_string());
    let mut text = String::new();
    // An error is the abort of the connection.
    for line in BufReader::new(reader).lines().map_while(Result::ok) {
        if text.matches("\"text\"").count() == BEFORE && !text.contains("[killed]") {
            stages[2].signal("-KILL");
            text += "[killed]";
        }
        text += &line;
    }
    assert!(text.contains(": paused, the engine was lost"), "the reader is told: {text}");
    assert!(text.contains("\"error\"") && !text.contains("[DONE]"), "{text}");
    wait_for_ready(&server.address, 503);
    let (status, _) = request(&server.address, "POST", "/v1/completions", "{\"prompt\": \"x\"}");
    assert_eq!(status, 503, "new requests are refused meanwhile");
    let _again = Process::stage(&files[3], &stages[2].address);
    wait_for_ready(&server.address, 200);
    assert_eq!(answer(&server.address), before);
}

/// The process that `parent` has started.
fn child_of(parent: u32) -> u32 {
    let numbers = std::fs::read_dir("/proc").unwrap();
    let numbers = numbers.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_child = |process: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        // Behind the name, which may hold anything: state, parent.
        let rest = stat.rsplit(") ").next().unwrap_or_default();
        rest.split(' ').nth(1) == Some(&parent.to_string())
    };
    numbers.into_iter().find(is_child).expect("the engine has a process")
}

/// Resident memory of a process that is its own and not the file's.
fn anonymous_kib(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn an_engine_process_killed_under_32_streams_takes_no_answer_with_it() {
    let Some(model) = bundled() else { return };
    let exact = ["--kv-type", "f32", "--no-prefix-cache", "--max-batch-size", "32"];
    let fixed = [&["--model", model.to_str().unwrap()][..], &exact].concat();
    let whole = Process::serve(&fixed);
    let (expected, _) = streams(&whole.address, || ());
    drop(whole);
    let server = Process::serve(&[&fixed[..], &["--engine-process"]].concat());
    let (undisturbed, _) = streams(&server.address, || ());
    compare(&undisturbed, &expected, "as in one process");
    for round in 1..=3 {
        let (answers, open) =
            streams(&server.address, || signal(child_of(server.child.id()), "-KILL"));
        assert!(open > 0, "it died amid answers");
        compare(&answers, &expected, &format!("round {round}"));
    }
    let lost = metric(&server.address, "engine_losses_total");
    assert_eq!((lost, metric(&server.address, "engine_recoveries_total")), (3.0, 3.0));
    assert_eq!(get(&server.address, "/health").0, 200);
}

#[test]
fn an_engine_process_that_hangs_is_killed_and_its_answers_go_on() {
    let Some(model) = bundled() else { return };
    let fixed = ["--model", model.to_str().unwrap(), "--kv-type", "f32", "--no-prefix-cache"];
    let bounds = ["--max-batch-size", "32", "--engine-process", "--engine-timeout-s", "2"];
    let server = Process::serve(&[&fixed[..], &bounds].concat());
    let (expected, _) = streams(&server.address, || ());
    let engine = child_of(server.child.id());
    let (answers, open) = streams(&server.address, || signal(engine, "-STOP"));
    assert!(open > 0, "it hung amid answers");
    compare(&answers, &expected, "an engine's process that hangs");
    assert!(metric(&server.address, "engine_recoveries_total") >= 1.0);
    assert_ne!(child_of(server.child.id()), engine, "another process computes");
    assert!(!Path::new(&format!("/proc/{engine}")).exists(), "it is killed, though it was stopped");
}

#[test]
fn the_engines_process_ends_with_a_server_that_is_killed() {
    let Some(model) = bundled() else { return };
    let model = model.to_str().unwrap();
    let server = Process::serve(&["--model", model, "--engine-process", "--kv-cells", "65536"]);
    let engine = child_of(server.child.id());
    answer(&server.address);
    // The cache's pages are taken as they are used, and the weights are the file's.
    assert!(anonymous_kib(server.child.id()) < 200 << 10, "the server has no weights");
    server.signal("-KILL");
    let started = Instant::now();
    while Path::new(&format!("/proc/{engine}/exe")).exists() {
        assert!(started.elapsed() < PATIENCE, "it outlives its server");
        thread::sleep(Duration::from_millis(5));
    }
}
