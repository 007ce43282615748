//! Published benchmark configurations by name.
//!
//! `rose-*`: the roseinfer posts 050 (stream interval) and 052 (batched look-ups); `cllm-*`: the
//! cLLM HTTP benchmark at 16 concurrent; `skippy-chat-corpus`: the chat corpus run of Skippy's
//! cross-request batching. Each follows its source; options on the command line override it.

use serde_json::{Map, Value, json};

use crate::plan::EndpointKind;

/// A published configuration, by the name of its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Preset {
    /// 64 requests at once, 128 tokens each, "Hello"; stream interval 1 against 8
    #[value(name = "rose-050")]
    Rose050,
    /// 64 requests every 20 ms (absolute), pre-tokenized, stream interval 8
    #[value(name = "rose-052")]
    Rose052,
    /// 40 requests, 16 concurrent, 50 tokens, one fixed Chinese prompt
    #[value(name = "cllm-stage15")]
    CllmStage15,
    /// As cllm-stage15 with varied prompts
    #[value(name = "cllm-concurrent")]
    CllmConcurrent,
    /// First 8 prompts of a chat corpus, 24 tokens, greedy; concurrency 2 against 4
    #[value(name = "skippy-chat-corpus")]
    SkippyChatCorpus,
}

/// The settings of a preset; `None` keeps an option's default.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PresetValues {
    /// Endpoint of the requests.
    pub endpoint: Option<EndpointKind>,
    /// Measured requests per run.
    pub requests: Option<usize>,
    /// Concurrency limits to compare.
    pub concurrency: Vec<usize>,
    /// Maximum number of tokens per answer.
    pub max_tokens: Option<u32>,
    /// Prompt texts, used in turn.
    pub prompts: Vec<String>,
    /// Stream intervals to compare.
    pub stream_intervals: Vec<u32>,
    /// Gap between absolute send times, in milliseconds.
    pub submit_interval_ms: Option<f64>,
    /// Tokenizes prompts before the run and sends token ids.
    pub pretok: bool,
    /// Generates all tokens, even after an end-of-sequence token.
    pub ignore_eos: bool,
    /// Sampling temperature of every request.
    pub temperature: Option<f64>,
    /// Sampling seed of every request.
    pub seed: Option<u64>,
    /// Runs before the measured ones.
    pub warmup_runs: Option<usize>,
    /// Additional fields of the request body.
    pub extra: Map<String, Value>,
    /// Instructions for starting the server so that the figures are comparable with the published
    /// ones.
    pub server_note: Option<&'static str>,
}

const CLLM_PROMPT: &str = "人工智能是计算机科学的一个分支";
const VARIED: &str = include_str!("../../../bench/corpora/varied.txt");
const CHAT: &str = include_str!("../../../bench/corpora/chat.jsonl");
const BATCH_64: &str = "the source ran with a decode batch of 64 and without a prefix cache";

impl Preset {
    /// Returns the settings stated by the source of the preset.
    pub fn values(self) -> PresetValues {
        match self {
            Preset::Rose050 => PresetValues { stream_intervals: vec![1, 8], ..rose() },
            Preset::Rose052 => PresetValues {
                stream_intervals: vec![8],
                submit_interval_ms: Some(20.0),
                pretok: true,
                ..rose()
            },
            Preset::CllmStage15 => PresetValues { prompts: vec![CLLM_PROMPT.into()], ..cllm() },
            Preset::CllmConcurrent => {
                PresetValues { prompts: VARIED.lines().map(str::to_owned).collect(), ..cllm() }
            }
            Preset::SkippyChatCorpus => skippy(),
        }
    }
}

fn rose() -> PresetValues {
    PresetValues {
        endpoint: Some(EndpointKind::Completions),
        requests: Some(64),
        max_tokens: Some(128),
        prompts: vec!["Hello".into()],
        ignore_eos: true,
        warmup_runs: Some(1),
        server_note: Some(BATCH_64),
        ..PresetValues::default()
    }
}

fn cllm() -> PresetValues {
    PresetValues {
        endpoint: Some(EndpointKind::Completions),
        requests: Some(40),
        concurrency: vec![16],
        max_tokens: Some(50),
        ..PresetValues::default()
    }
}

fn skippy() -> PresetValues {
    let corpus = crate::prompts::parse_corpus(CHAT).expect("the embedded corpus is tested");
    let mut extra = Map::new();
    extra.insert("chat_template_kwargs".into(), json!({ "enable_thinking": false }));
    PresetValues {
        endpoint: Some(EndpointKind::Chat),
        requests: Some(8),
        concurrency: vec![2, 4],
        max_tokens: Some(24),
        prompts: corpus.into_iter().take(8).map(|line| line.prompt).collect(),
        temperature: Some(0.0),
        seed: Some(123),
        extra,
        ..PresetValues::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_what_their_sources_state() {
        let rose = Preset::Rose050.values();
        assert_eq!((rose.requests, rose.max_tokens), (Some(64), Some(128)));
        assert_eq!((rose.prompts, rose.stream_intervals), (vec!["Hello".into()], vec![1, 8]));
        assert!(rose.ignore_eos && !rose.pretok && rose.concurrency.is_empty());
        let rose = Preset::Rose052.values();
        assert_eq!((rose.submit_interval_ms, rose.stream_intervals), (Some(20.0), vec![8]));
        assert!(rose.pretok && rose.ignore_eos);
        let cllm = Preset::CllmStage15.values();
        assert_eq!(
            (cllm.requests, cllm.concurrency, cllm.max_tokens),
            (Some(40), vec![16], Some(50))
        );
        assert_eq!(cllm.prompts[0].chars().count(), 15);
        assert!(Preset::CllmConcurrent.values().prompts.len() >= 40);
        let skippy = Preset::SkippyChatCorpus.values();
        assert_eq!(
            (skippy.requests, skippy.concurrency, skippy.max_tokens),
            (Some(8), vec![2, 4], Some(24))
        );
        assert_eq!(
            (skippy.temperature, skippy.seed, skippy.prompts.len()),
            (Some(0.0), Some(123), 8)
        );
    }
}
