//! The record of each request.

use loquent_client::openai::{ServerTimings, Usage};
use loquent_openai::WireCounts;
use serde::Serialize;

use crate::target::RequestFailure;

/// Purpose of a request in the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestRole {
    /// One of the measured requests.
    Measured,
    /// A long prompt injected among them.
    Injected,
    /// A reader that stops reading until the measured requests have ended.
    SlowReader,
    /// A reader that disconnects in the middle.
    Leaver,
}

/// Outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestOutcome {
    /// The whole answer arrived.
    Finished,
    /// The reader disconnected on purpose.
    Left,
    /// The request failed.
    Failed(RequestFailure),
}

/// The arrival of a chunk that carried text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkMark {
    /// Arrival, in microseconds since the run's start.
    pub at_us: u64,
    /// Bytes of text in the chunk.
    pub text_bytes: u32,
}

/// One request from its schedule to its end. Times are microseconds since the run's start.
#[derive(Debug, Clone)]
pub struct RequestRecord {
    /// Number within the run.
    pub index: usize,
    /// Purpose in the run.
    pub role: RequestRole,
    /// Scheduled send time.
    pub scheduled_us: u64,
    /// Actual send time.
    pub submitted_us: u64,
    /// Time at which the server accepted it (response head, or hand-over in process).
    pub accepted_us: Option<u64>,
    /// Arrivals of the chunks that carried text.
    pub chunks: Vec<ChunkMark>,
    /// Arrival of the last byte, or of the failure.
    pub ended_us: u64,
    /// Outcome of the request.
    pub outcome: RequestOutcome,
    /// Maximum number of tokens requested.
    pub max_tokens: u32,
    /// True if it requested all tokens, even after an end-of-sequence token.
    pub ignore_eos: bool,
    /// The answer's whole text.
    pub text: String,
    /// Finish reason reported by the server.
    pub finish_reason: Option<String>,
    /// Token counts by the server.
    pub usage: Option<Usage>,
    /// The server's own timings, if it sent them.
    pub timings: Option<Box<ServerTimings>>,
    /// Tokens of `text` by the server's tokenizer, if it was recounted.
    pub recounted_tokens: Option<u64>,
    /// Bytes and reads of the answer.
    pub wire: WireCounts,
}

impl RequestRecord {
    /// Returns true if the answer is complete.
    pub fn finished(&self) -> bool {
        self.outcome == RequestOutcome::Finished
    }

    /// Returns the failure, if the request failed.
    pub fn failure(&self) -> Option<&RequestFailure> {
        match &self.outcome {
            RequestOutcome::Failed(failure) => Some(failure),
            RequestOutcome::Finished | RequestOutcome::Left => None,
        }
    }

    /// Returns the completion tokens: the server's count, or else the recount; never a guess from
    /// the number of chunks.
    pub fn completion_tokens(&self) -> Option<u64> {
        self.usage.map(|usage| usage.completion_tokens).or(self.recounted_tokens)
    }

    /// Returns the time to first token in milliseconds, from the scheduled send.
    pub fn ttft_ms(&self) -> Option<f64> {
        self.chunks.first().map(|chunk| ms(chunk.at_us.saturating_sub(self.scheduled_us)))
    }

    /// Returns (last − first arrival) / (n − 1) in milliseconds, where n is the number of
    /// completion tokens.
    pub fn tpot_ms(&self) -> Option<f64> {
        let (first, last) = (self.chunks.first()?, self.chunks.last()?);
        let tokens = self.completion_tokens()?;
        (tokens > 1).then(|| ms(last.at_us - first.at_us) / (tokens - 1) as f64)
    }

    /// Returns the gaps between consecutive chunks with text, in milliseconds.
    pub fn icl_ms(&self) -> impl Iterator<Item = f64> + '_ {
        self.chunks.windows(2).map(|pair| ms(pair[1].at_us - pair[0].at_us))
    }

    /// Returns the time from the scheduled send to the last byte, in milliseconds.
    pub fn latency_ms(&self) -> f64 {
        ms(self.ended_us.saturating_sub(self.scheduled_us))
    }
}

/// Converts microseconds to milliseconds.
pub fn ms(us: u64) -> f64 {
    us as f64 / 1e3
}
