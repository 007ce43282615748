//! What the metrics hold at one moment, as plain numbers.

use super::sketch::SketchCounts;

/// Totals since the start unless said otherwise. Two readings tell what happened in between.
#[derive(Debug, Clone)]
pub struct MetricsReading {
    /// Completions in the batch, or under way at an upstream server, at present.
    pub running: i64,
    /// Completions queued for the batch at present.
    pub waiting: i64,
    /// Share of KV cells in use at present.
    pub kv_usage: f64,
    /// Streamed answers being read at present, in the order of [`super::StreamCarrier::ALL`].
    pub streams: [i64; 3],
    /// Tokens that left in flushes.
    pub delivered_tokens: f64,
    /// Tokens of prompts that were computed.
    pub prefill_tokens: u64,
    /// Native decodes.
    pub steps: u64,
    /// Time in them, seconds.
    pub step_seconds: f64,
    /// Sequences in them, one for each and decode.
    pub step_rows: f64,
    /// Prompt tokens looked up in the prefix cache.
    pub prefix_queries: u64,
    /// Prompt tokens found there.
    pub prefix_hits: u64,
    /// Completions that ended, however.
    pub ended: u64,
    /// Requests answered with an error.
    pub refused: u64,
    /// Completions paused for a slow reader.
    pub pauses: u64,
    /// Completions preempted because the KV cache was full.
    pub preemptions: u64,
    /// Readers that resumed an answer, and those whose answer was gone.
    pub resumes: [u64; 2],
    /// Answers that fell back from datagrams to a reliable stream.
    pub fallbacks: u64,
    /// Bytes of frames in datagrams.
    pub datagram_bytes: u64,
    /// Log bytes in datagrams that had been sent before.
    pub redundant_bytes: u64,
    /// Percentiles come out of these.
    pub latencies: LatencyReadings,
}

/// How often each class of each latency occurred.
#[derive(Debug, Clone)]
pub struct LatencyReadings {
    /// Request's arrival to its first token.
    pub ttft: SketchCounts,
    /// Between two tokens of a completion.
    pub itl: SketchCounts,
    /// Between two flushes of a completion.
    pub icl: SketchCounts,
    /// Duration of a native decode.
    pub step: SketchCounts,
    /// Sequence ready to its native decode.
    pub wait: SketchCounts,
}
