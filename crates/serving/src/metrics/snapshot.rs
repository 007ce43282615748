//! Values of the metrics at one moment, as plain numbers.

use crate::metrics::sketch::SketchCounts;

/// Totals since the start unless stated otherwise. The difference of two readings covers the time
/// between them.
#[derive(Debug, Clone)]
pub struct MetricsSnapshot {
    /// Completions currently in the batch, or in progress at an upstream server.
    pub running: i64,
    /// Completions currently queued for the batch.
    pub waiting: i64,
    /// Fraction of KV cells currently in use.
    pub kv_usage: f64,
    /// Streamed answers being read, in the order of [`crate::metrics::StreamCarrier::ALL`].
    pub streams: [i64; 3],
    /// Tokens sent in flushes.
    pub delivered_tokens: f64,
    /// Prompt tokens computed.
    pub prefill_tokens: u64,
    /// Native decodes.
    pub steps: u64,
    /// Time spent in native decodes, in seconds.
    pub step_seconds: f64,
    /// Sequences in native decodes, summed over all decodes.
    pub step_rows: f64,
    /// Prompt tokens looked up in the prefix cache.
    pub prefix_queries: u64,
    /// Prompt tokens found in the prefix cache.
    pub prefix_hits: u64,
    /// Completions that ended, for any reason.
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
    /// Observations from which percentiles are computed.
    pub latencies: LatencySnapshots,
}

/// Number of observations in each class of each latency.
#[derive(Debug, Clone)]
pub struct LatencySnapshots {
    /// From a request's arrival to its first token.
    pub ttft: SketchCounts,
    /// Between two tokens of a completion.
    pub itl: SketchCounts,
    /// Between two flushes of a completion.
    pub icl: SketchCounts,
    /// Duration of a native decode.
    pub step: SketchCounts,
    /// From a sequence being ready to its native decode.
    pub wait: SketchCounts,
}
