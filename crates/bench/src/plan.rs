//! A benchmark as data: the contents of every request, and the cases to compare.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use loquent_proto::coalesce::StreamInterval;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use crate::arrivals::Pacing;
use crate::prompts::PromptSource;
use crate::target::Target;

/// Endpoint of the requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum EndpointKind {
    /// `/v1/chat/completions`: the prompt becomes one user message.
    Chat,
    /// `/v1/completions`: the prompt is sent as it is.
    Completions,
}

/// Settings common to all cases.
#[derive(Debug, Clone)]
pub struct LoadSettings {
    /// Model name; the target's first when absent.
    pub model: Option<String>,
    /// The endpoint of all requests.
    pub endpoint: EndpointKind,
    /// Measured requests per run.
    pub requests: usize,
    /// Maximum number of tokens per answer.
    pub max_tokens: u32,
    /// Source of the prompts.
    pub prompts: PromptSource,
    /// Sampling temperature; the server's default if absent.
    pub temperature: Option<f64>,
    /// Sampling seed; also seeds the arrivals.
    pub seed: Option<u64>,
    /// Generates all `max_tokens`, even after an end-of-sequence token.
    pub ignore_eos: bool,
    /// Tokenizes prompts before the run and sends ids.
    pub pretok: bool,
    /// Rule for the send times of requests.
    pub pacing: Pacing,
    /// Time limit of one request.
    pub timeout: Duration,
    /// Objectives that an answer must meet to count towards goodput.
    pub slo: Slo,
    /// Requests the server's timings.
    pub include_timings: bool,
    /// Answers per run whose tokens are recounted.
    pub recount: usize,
    /// Additional fields of the request body.
    pub extra: Map<String, Value>,
}

/// Service-level objectives: an answer that meets all that are set counts towards goodput.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Slo {
    /// Maximum time to first token, in milliseconds.
    pub ttft_ms: Option<f64>,
    /// Maximum 99th percentile of an answer's own gaps between chunks, in milliseconds.
    pub icl_ms: Option<f64>,
}

/// Requests that disturb the measured ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Extras {
    /// Number of readers that stop reading.
    pub slow_readers: usize,
    /// Chunks with text that they read before they stop.
    pub slow_reader_after: usize,
    /// Maximum number of tokens of a slow reader's answer.
    pub slow_reader_max_tokens: u32,
    /// Number of readers that disconnect before the end.
    pub leavers: usize,
    /// Chunks with text that they read before they disconnect.
    pub leave_after: usize,
    /// Long prompts among the measured requests.
    pub inject: Option<Inject>,
}

/// Long prompts that arrive while others decode.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Inject {
    /// Length in tokens (exact if the target tokenizes).
    pub prompt_tokens: usize,
    /// Arrival of the first, in seconds after the start.
    pub at_s: f64,
    /// Number of prompts.
    pub count: usize,
    /// Seconds between prompts.
    pub every_s: f64,
    /// Maximum number of tokens of their answers.
    pub max_tokens: u32,
}

/// One configuration to measure.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LoadCase {
    /// Settings that distinguish it from the other cases; empty if it is the only one.
    pub label: String,
    /// Maximum number of measured requests in flight; unlimited if absent.
    pub concurrency: Option<usize>,
    /// Tokens per chunk to request; the server's default if absent.
    #[serde(serialize_with = "serialize_interval")]
    pub stream_interval: Option<StreamInterval>,
    /// Requests that disturb the measured ones.
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

/// A server under test and, if it is local, its process.
#[derive(Clone)]
pub struct TargetPlan {
    /// The server, or the engine in this process.
    pub target: Arc<dyn Target>,
    /// Process ID, for CPU time and memory.
    pub pid: Option<u32>,
}

/// Output files, and whether results are printed on the terminal.
#[derive(Debug, Clone, Default)]
pub struct ReportPaths {
    /// File for everything as JSON.
    pub json: Option<PathBuf>,
    /// File for one JSON line per request.
    pub jsonl: Option<PathBuf>,
    /// File for a self-contained HTML page.
    pub html: Option<PathBuf>,
    /// Prints neither progress bar nor table.
    pub quiet: bool,
}

/// A whole benchmark.
#[derive(Clone)]
pub struct LoadPlan {
    /// Title of the reports.
    pub title: String,
    /// Settings common to all cases.
    pub settings: LoadSettings,
    /// The configurations to compare, run in turn.
    pub cases: Vec<LoadCase>,
    /// The servers to compare, run in turn.
    pub targets: Vec<TargetPlan>,
    /// Runs of each case before the measured ones.
    pub warmup_runs: usize,
    /// Measured runs of each case.
    pub repeat_runs: usize,
    /// Pause between two runs if there are several servers.
    pub pause: Duration,
    /// Outputs of the results.
    pub outputs: ReportPaths,
}
