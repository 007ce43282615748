//! A workload measures an engine in its own process through the `Target` trait.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use futures_util::{FutureExt, StreamExt, stream};
use loquent_bench::Target;
use loquent_bench::cli::WorkloadArgs;
use loquent_bench::plan::TargetPlan;
use loquent_bench::target::{ArrivalStream, FailureKind, RequestFailure};
use loquent_client::openai::{Arrival, ChunkSummary, Generate, Prompt, Usage};
use loquent_openai::BoxFuture;
use loquent_openai::http::ConnectionOptions;
use tokio::time::{Instant, sleep};

/// An engine that needs a millisecond for each token and has its own words.
struct Engine;

impl Target for Engine {
    fn name(&self) -> &str {
        "engine"
    }

    fn models(&self) -> BoxFuture<'_, Result<Vec<String>, RequestFailure>> {
        async { Ok(vec!["words".to_owned()]) }.boxed()
    }

    fn submit(
        &self,
        request: Generate,
        _: ConnectionOptions,
    ) -> BoxFuture<'_, Result<ArrivalStream, RequestFailure>> {
        async move {
            if !matches!(&request.prompt, Prompt::Tokens(ids) if ids.len() == 2) {
                return Err(RequestFailure::new(
                    FailureKind::Refused,
                    "two token ids were expected",
                ));
            }
            let last = request.max_tokens;
            let tokens = stream::iter(0..=last).then(move |token| token_or_end(token, last));
            Ok(tokens.boxed())
        }
        .boxed()
    }

    fn tokenize<'a>(
        &'a self,
        _model: &'a str,
        text: &'a str,
        _add_special: bool,
    ) -> BoxFuture<'a, Result<Vec<u32>, RequestFailure>> {
        async move { Ok(text.split_whitespace().map(|word| word.len() as u32).collect()) }.boxed()
    }

    fn metrics(&self) -> BoxFuture<'_, Option<String>> {
        async { None }.boxed()
    }
}

async fn token_or_end(token: u32, last: u32) -> Result<Arrival, RequestFailure> {
    let mut delta = ChunkSummary::default();
    if token < last {
        sleep(Duration::from_millis(1)).await;
        delta.text = " word".to_owned();
    } else {
        delta.finish_reason = Some("length".to_owned());
        delta.usage = Some(Usage { prompt_tokens: 2, completion_tokens: last.into() });
    }
    Ok(Arrival { at: Instant::now(), delta, wire: Default::default() })
}

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    workload: WorkloadArgs,
}

async fn bench(args: &[&str]) -> anyhow::Result<ExitCode> {
    let args = ["bench", "--quiet"].iter().chain(args);
    let target = TargetPlan { target: Arc::new(Engine), pid: None };
    Cli::parse_from(args).workload.run(None, vec![target]).await
}

#[tokio::test]
async fn an_engine_is_measured_without_http() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("report.json");
    let json = file.to_str().unwrap();
    let args = ["--preset", "rose-052", "-n", "4", "--max-tokens", "6", "--json", json];
    let prompt = ["--prompt", "two words"];
    let code = bench(&[&args[..], &prompt].concat()).await.unwrap();
    assert_eq!(code, ExitCode::SUCCESS);
    let report: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let metrics = &report["groups"][0]["median"];
    assert_eq!(metrics["output_tokens"], 24.0);
    assert_eq!(metrics["input_tokens"], 8.0);
    assert_eq!(metrics["chunks"], 24.0);
    // No wire, so no figures of one.
    assert!(metrics.get("wire_bytes_per_token").is_none());
    // Send times are 20 ms apart.
    assert!(metrics["submit_wall_ms"].as_f64().unwrap() >= 59.0);
}

#[tokio::test]
async fn failures_reach_the_exit_status() {
    let code = bench(&["--pretok", "-n", "2", "--prompt", "one more word"]).await.unwrap();
    assert_eq!(code, ExitCode::from(1));
}
