//! The flags for streamed answers: merging, slow readers, reasoning, heartbeats.

use std::time::Duration;

use clap::Args;
use loquent_proto::coalesce::StreamInterval;
use loquent_server::{ObfuscationDefault, ServingConfig, StreamBounds};

/// Default of `--stream-buffer-bytes`. Chosen by hand: a larger buffer tolerates longer stalls, but
/// costs memory for every slow reader.
pub(crate) const STREAM_BUFFER_BYTES: usize = 32 * 1024;
/// Minimum `--stream-buffer-bytes`; a smaller buffer would pause an answer after every chunk.
const STREAM_BUFFER_BYTES_MIN: usize = 1024;
/// Default of `--slow-reader-timeout-s`.
pub(crate) const SLOW_READER_TIMEOUT_S: u64 = 30;

/// Maximum `--heartbeat-s`: clients that resume give an event stream up after three (S-6.5).
const HEARTBEAT_S_MAX: u64 = 15;

/// Settings for streaming answers.
#[derive(Debug, Args)]
#[command(next_help_heading = "Streams")]
pub(super) struct StreamArgs {
    /// Tokens per chunk: a number, or "auto" to merge tokens only while the reader is behind
    #[arg(long, env = "LOQUENT_STREAM_INTERVAL", default_value = "1", value_name = "N",
          value_parser = parse_interval)]
    stream_interval: StreamInterval,
    /// Maximum time in milliseconds that merging may delay a token [default: no limit]
    #[arg(long, env = "LOQUENT_STREAM_MAX_DELAY_MS", value_name = "MS")]
    stream_max_delay_ms: Option<u64>,
    /// Unread bytes at which generation for a slow reader pauses
    #[arg(long, env = "LOQUENT_STREAM_BUFFER_BYTES", default_value_t = STREAM_BUFFER_BYTES,
          value_name = "N")]
    stream_buffer_bytes: usize,
    /// Seconds that an answer may stay paused before it ends with an error
    #[arg(long, env = "LOQUENT_SLOW_READER_TIMEOUT_S", default_value_t = SLOW_READER_TIMEOUT_S,
          value_name = "S")]
    slow_reader_timeout_s: u64,
    /// How to return `<think>…</think>` reasoning
    #[arg(long, env = "LOQUENT_REASONING_FORMAT", default_value = "auto", value_name = "FORMAT")]
    reasoning_format: ReasoningFormat,
    /// End every stream with its token counts, whether the request asks for them or not
    #[arg(long, env = "LOQUENT_FORCE_USAGE")]
    force_usage: bool,
    /// Which answers are padded so that the lengths of their events and datagrams do not show those
    /// of the tokens; a request's include_obfuscation overrides it
    #[arg(long, env = "LOQUENT_OBFUSCATION", default_value = "encrypted", value_name = "WHICH")]
    obfuscation: ObfuscateStreams,
    /// Seconds of silence after which a stream gets an empty event, so that proxies keep it open;
    /// at most 15, because clients take 45 s of silence for a lost connection
    #[arg(long, env = "LOQUENT_HEARTBEAT_S", default_value_t = 10, value_name = "S",
          value_parser = clap::value_parser!(u64).range(1..=HEARTBEAT_S_MAX))]
    heartbeat_s: u64,
}

/// Format in which a model's reasoning is returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ReasoningFormat {
    /// As reasoning_content, if the model's chat template shows that it reasons; with --upstream,
    /// if the answer begins with it
    Auto,
    /// As part of the text, unchanged
    None,
}

/// Selection of the answers that are padded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ObfuscateStreams {
    /// Event streams over TLS, and QUIC
    Encrypted,
    /// All, for a server behind a proxy that encrypts
    Always,
    /// None
    Never,
}

impl StreamArgs {
    pub(super) const fn obfuscation(&self) -> ObfuscationDefault {
        match self.obfuscation {
            ObfuscateStreams::Encrypted => ObfuscationDefault::Encrypted,
            ObfuscateStreams::Always => ObfuscationDefault::Always,
            ObfuscateStreams::Never => ObfuscationDefault::Never,
        }
    }

    pub(super) fn bounds(&self) -> StreamBounds {
        StreamBounds {
            buffer_bytes: self.stream_buffer_bytes.max(STREAM_BUFFER_BYTES_MIN),
            stall_limit: Duration::from_secs(self.slow_reader_timeout_s),
        }
    }

    pub(super) fn serving(&self, strict_model: bool, share_prefix_cache: bool) -> ServingConfig {
        ServingConfig {
            interval: self.stream_interval,
            max_delay: self.stream_max_delay_ms.map(Duration::from_millis),
            strict_model,
            share_prefix_cache,
            split_reasoning: self.reasoning_format == ReasoningFormat::Auto,
            force_usage: self.force_usage,
            ..ServingConfig::default()
        }
    }

    pub(super) fn heartbeat(&self) -> Duration {
        Duration::from_secs(self.heartbeat_s)
    }
}

fn parse_interval(text: &str) -> Result<StreamInterval, String> {
    text.parse().map_err(|_| "give a number above 0, or \"auto\"".to_owned())
}
