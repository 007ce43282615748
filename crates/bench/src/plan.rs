//! A benchmark as data: what every request looks like, and the cases to compare.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use loquent_proto::coalesce::StreamInterval;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use crate::arrivals::Pacing;
use crate::prompts::PromptSource;
use crate::target::Target;

/// Which endpoint requests go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum EndpointKind {
    /// `/v1/chat/completions`: the prompt becomes one user message.
    Chat,
    /// `/v1/completions`: the prompt is sent as it is.
    Completions,
}

/// What all cases share.
#[derive(Debug, Clone)]
pub struct LoadSettings {
    /// Model name; the target's first when absent.
    pub model: Option<String>,
    /// Where requests go.
    pub endpoint: EndpointKind,
    /// Measured requests per run.
    pub requests: usize,
    /// Most tokens per answer.
    pub max_tokens: u32,
    /// Prompts.
    pub prompts: PromptSource,
    /// Sampling temperature.
    pub temperature: Option<f64>,
    /// Sampling seed; also seeds the arrivals.
    pub seed: Option<u64>,
    /// Generate all `max_tokens`.
    pub ignore_eos: bool,
    /// Tokenize prompts before the run and send ids.
    pub pretok: bool,
    /// When requests are sent.
    pub pacing: Pacing,
    /// Time limit of one request.
    pub timeout: Duration,
    /// Ask the server for its timings.
    pub include_timings: bool,
    /// Answers per run whose tokens are recounted.
    pub recount: usize,
    /// Further fields of the request body.
    pub extra: Map<String, Value>,
}

/// Requests beside the measured ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Extras {
    /// Readers that stop reading.
    pub slow_readers: usize,
    /// After this many chunks with text.
    pub slow_reader_after: usize,
    /// Most tokens of a slow reader's answer.
    pub slow_reader_max_tokens: u32,
    /// Readers that leave.
    pub leavers: usize,
    /// After this many chunks with text.
    pub leave_after: usize,
    /// Long prompts among the measured requests.
    pub inject: Option<Inject>,
}

/// Long prompts that arrive while others decode.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Inject {
    /// Length in tokens (exact where the target tokenizes).
    pub prompt_tokens: usize,
    /// Arrival of the first, in seconds after the start.
    pub at_s: f64,
    /// How many.
    pub count: usize,
    /// Seconds between them.
    pub every_s: f64,
    /// Most tokens of their answers.
    pub max_tokens: u32,
}

/// One configuration to measure.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LoadCase {
    /// What tells it from the others; empty when there is one case.
    pub label: String,
    /// Most measured requests in flight; unlimited when absent.
    pub concurrency: Option<usize>,
    /// Tokens per chunk asked of the server.
    #[serde(serialize_with = "serialize_interval")]
    pub stream_interval: Option<StreamInterval>,
    /// Requests beside the measured ones.
    pub extras: Extras,
}

fn serialize_interval<S: Serializer>(
    interval: &Option<StreamInterval>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match interval {
        None => serializer.serialize_none(),
        Some(StreamInterval::Auto) => serializer.serialize_str("auto"),
        Some(StreamInterval::Every(tokens)) => serializer.serialize_u32(tokens.get()),
    }
}

/// A server under test and, where it is local, its process.
#[derive(Clone)]
pub struct TargetPlan {
    /// The server.
    pub target: Arc<dyn Target>,
    /// Its process, for CPU time and memory.
    pub pid: Option<u32>,
}

/// Where results go besides the terminal.
#[derive(Debug, Clone, Default)]
pub struct ReportPaths {
    /// Everything as JSON.
    pub json: Option<PathBuf>,
    /// One line per request.
    pub jsonl: Option<PathBuf>,
    /// A self-contained page.
    pub html: Option<PathBuf>,
    /// Neither progress bar nor table.
    pub quiet: bool,
}

/// A whole benchmark.
#[derive(Clone)]
pub struct LoadPlan {
    /// Title of the reports.
    pub title: String,
    /// What all cases share.
    pub settings: LoadSettings,
    /// Cases, run in turn.
    pub cases: Vec<LoadCase>,
    /// Servers, run in turn.
    pub targets: Vec<TargetPlan>,
    /// Runs of each case that are thrown away.
    pub warmup_runs: usize,
    /// Runs of each case that count.
    pub repeat_runs: usize,
    /// Between two runs where there are several servers.
    pub pause: Duration,
    /// Reports.
    pub outputs: ReportPaths,
}
