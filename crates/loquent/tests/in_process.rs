//! The engine measured without HTTP: its answers are the server's, token for token.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use clap::{CommandFactory, Parser};
use futures_util::StreamExt;
use futures_util::future::join_all;
use loquent::bench::BenchArgs;
use loquent::in_process::{InProcess, InProcessArgs};
use loquent_bench::Target;
use loquent_bench::http_target::HttpTarget;
use loquent_bench::record::{ChunkMark, RequestOutcome, RequestRecord, RequestRole};
use loquent_bench::target::{FailureKind, RequestFailure};
use loquent_client::openai::{ChunkSummary, Generate, Prompt, Usage};
use loquent_openai::BaseUrl;
use loquent_openai::http::{ConnectionOptions, HttpClient};
use loquent_proto::coalesce::StreamInterval;
use serde_json::{Map, Value, json};

#[derive(Parser)]
struct EngineCli {
    #[command(flatten)]
    engine: InProcessArgs,
}

#[derive(Parser)]
struct BenchCli {
    #[command(flatten)]
    bench: BenchArgs,
}

async fn open(args: &[&str]) -> InProcess {
    let cli = EngineCli::parse_from(["engine"].iter().chain(args));
    InProcess::open(cli.engine).await.unwrap()
}

/// A request for `tokens` tokens whatever the model says.
fn request(index: usize, tokens: u32) -> Generate {
    Generate {
        model: "any".into(),
        prompt: Prompt::Text(format!("Question {index}: what is a token?")),
        max_tokens: tokens,
        temperature: None,
        seed: None,
        ignore_eos: true,
        stream_interval: None,
        include_timings: true,
        extra: Map::new(),
    }
}

/// All deltas of one answer.
async fn deltas(
    target: &dyn Target,
    request: Generate,
) -> Result<Vec<ChunkSummary>, RequestFailure> {
    let answer = target.submit(request, ConnectionOptions::default()).await?;
    let arrivals: Vec<_> = answer.collect().await;
    arrivals.into_iter().map(|arrival| Ok(arrival?.delta)).collect()
}

fn text(deltas: &[ChunkSummary]) -> String {
    deltas.iter().map(|delta| delta.text.as_str()).collect()
}

fn usage(deltas: &[ChunkSummary]) -> Usage {
    deltas.iter().find_map(|delta| delta.usage).expect("the server counts tokens")
}

/// A server of the same engine over HTTP, killed at the test's end.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start(args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_loquent"));
        command.args(["serve", "--port", "0"]).args(args).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut urls = lines.map_while(Result::ok);
        let url = urls.find_map(|line| Some(line.split_once(" on http://")?.1.to_owned()));
        // Whatever else it logs must not fill the pipe.
        std::thread::spawn(move || urls.for_each(drop));
        Self { child, url: format!("http://{}", url.expect("the server announces its address")) }
    }

    fn target(&self) -> HttpTarget {
        let client = HttpClient::new(BaseUrl::parse(&self.url).unwrap(), None).unwrap();
        HttpTarget::new("http".into(), client)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_at_once_get_what_the_server_gives_each() {
    let args = ["--simulate", "inf", "--max-batch-size", "64"];
    let engine = open(&args).await;
    let target = engine.target();
    let answers = join_all((0..64).map(|index| deltas(&*target, request(index, 50)))).await;
    let server = Server::start(&args);
    let http = server.target();
    for (index, answer) in answers.into_iter().enumerate() {
        let answer = answer.unwrap();
        assert_eq!(usage(&answer).completion_tokens, 50);
        let served = deltas(&http, request(index, 50)).await.unwrap();
        assert_eq!(text(&answer), text(&served), "request {index}");
        assert_eq!(usage(&answer), usage(&served));
        let reasons: Vec<_> = answer.iter().filter_map(|one| one.finish_reason.clone()).collect();
        assert_eq!(reasons, ["length"]);
    }
    engine.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn both_sides_of_a_request_are_joined() {
    let engine = open(&["--simulate", "1000"]).await;
    let mut asked = request(0, 40);
    asked.stream_interval = Some(StreamInterval::Every(8.try_into().unwrap()));
    let answer = deltas(&*engine.target(), asked).await.unwrap();
    let record = RequestRecord {
        index: 0,
        role: RequestRole::Measured,
        scheduled_us: 0,
        submitted_us: 0,
        accepted_us: None,
        chunks: (answer.iter().filter(|delta| !delta.text.is_empty()))
            .map(|delta| ChunkMark { at_us: 0, text_bytes: delta.text.len() as u32 })
            .collect(),
        ended_us: 0,
        outcome: RequestOutcome::Finished,
        max_tokens: 40,
        ignore_eos: true,
        text: text(&answer),
        finish_reason: None,
        usage: None,
        timings: answer.into_iter().find_map(|delta| delta.timings),
        recounted_tokens: None,
        wire: Default::default(),
    };
    let joined = loquent_bench::reconcile::reconcile(&record).expect("timings match the chunks");
    assert_eq!(joined.emit_to_flush_ms.len(), 40);
    assert_eq!(joined.tokens_per_chunk[..2], [1.0, 8.0]);
    engine.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_the_servers() {
    let engine = open(&["--simulate", "10", "--max-inflight-requests", "1"]).await;
    let target = engine.target();
    let mut wrong = request(0, 1);
    wrong.extra.insert("temperature".into(), json!(9));
    let refused = deltas(&*target, wrong).await.unwrap_err();
    assert_eq!((refused.kind, refused.status), (FailureKind::Refused, Some(400)));
    assert!(refused.message.contains("temperature"), "{}", refused.message);
    let running = target.submit(request(1, 1000), ConnectionOptions::default()).await.unwrap();
    let refused = deltas(&*target, request(2, 1)).await.unwrap_err();
    assert_eq!((refused.kind, refused.status), (FailureKind::Overloaded, Some(429)));
    assert!(refused.retry_after_s.is_some());
    let metrics = target.metrics().await.unwrap();
    assert!(metrics.contains("429"), "the refusal is counted");
    drop(running);
    engine.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_stops_fails_its_answers() {
    let engine = open(&["--simulate", "10"]).await;
    let target = engine.target();
    let mut running = target.submit(request(0, 1000), ConnectionOptions::default()).await.unwrap();
    assert!(running.next().await.unwrap().is_ok());
    tokio::time::timeout(Duration::from_secs(30), engine.close()).await.unwrap();
    let rest: Vec<_> = running.collect().await;
    let failure = rest.into_iter().find_map(Result::err).expect("it is no complete answer");
    assert_eq!(failure.kind, FailureKind::Server);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_reports_exact_counts() {
    let dir = tempfile::tempdir().unwrap();
    let file: PathBuf = dir.path().join("report.json");
    let load = ["-n", "64", "--max-tokens", "30", "--ignore-eos", "--pretok"];
    let engine = ["--simulate", "inf", "--max-batch-size", "64"];
    let reports = ["--json", file.to_str().unwrap()];
    let args = [&["bench", "engine", "--quiet"], &load[..], &engine, &reports].concat();
    let code = BenchCli::parse_from(args).bench.run().await.unwrap();
    assert_eq!(code, ExitCode::SUCCESS);
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let median = &report["groups"][0]["median"];
    assert_eq!(median["output_tokens"], 64.0 * 30.0);
    assert!(median["itl_p50_ms"].is_number(), "{median}");
}

#[test]
fn a_reader_that_leaves_costs_no_report() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("report.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_loquent"));
    command.args(["bench", "engine", "--simulate", "inf", "-n", "2", "--max-tokens", "4"]);
    command.arg("--json").arg(&file).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !stderr.contains("panicked"), "{stderr}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert!(report["groups"][0]["median"].is_object(), "{report}");
}

#[test]
fn short_help_of_each_benchmark_fits_two_screens() {
    let mut command = BenchCli::command();
    command.build();
    for benchmark in command.get_subcommands_mut() {
        let help = benchmark.clone().term_width(100).render_help().to_string();
        let lines = help.lines().count();
        assert!(lines <= 100, "{}: {lines} lines\n{help}", benchmark.get_name());
    }
}
