//! From an answer's flushes to the records of its log.

use std::collections::VecDeque;
use std::sync::Arc;

use loquent_infer::vocab::Vocab;
use loquent_proto::Delta;
use serde_json::{Value, json};

use crate::answering::Answering;
use crate::api::answer::{Head, UsageInChunks, logprobs_json};
use crate::api::request::Endpoint;
use crate::error::ApiError;
use crate::flush::{CallPiece, Extra, Flush, TokenLogprobs};
use crate::usage::Usage;

/// Longest JSON in a record, with room for what stands beside it (D-3.2).
const MAX_JSON_BYTES: usize = loquent_proto::delta::MAX_RECORD_BYTES - 16;

/// Writes one answer's records.
pub struct Records {
    endpoint: Endpoint,
    vocab: Arc<dyn Vocab>,
    usage: UsageInChunks,
    /// Characters so far of each choice, for log-probabilities of plain completions.
    chars: Vec<usize>,
}

impl Records {
    /// Records of `answering`, whose first is already in `out`, with `echo`ed prompts.
    pub fn open(
        answering: &Answering,
        vocab: Arc<dyn Vocab>,
        echo: &[String],
        out: &mut VecDeque<Delta>,
    ) -> Self {
        let usage = UsageInChunks::asked_by(answering.stream);
        let choices = answering.prompts.len();
        out.push_back(Delta::Open { meta: meta(&answering.head, usage) });
        let endpoint = answering.head.endpoint;
        let mut records = Self { endpoint, vocab, usage, chars: vec![0; choices] };
        for choice in (0..choices).filter(|_| !echo.is_empty()) {
            let text = echo[choice / answering.n].clone();
            records.text(choice as u32, 0, text, out);
        }
        records
    }

    /// The records of one flush; `usage` is what was counted up to it. An end that is an
    /// error is left to [`Self::fail`].
    pub fn flush(&mut self, flush: Flush, usage: &Usage, out: &mut VecDeque<Delta>) {
        if self.usage == UsageInChunks::Counts {
            out.push_back(usage_record(usage)); // before the chunks that show it (S-6.3)
        }
        let Flush { choice, text, reasoning, calls, mut tokens, logprobs, .. } = flush;
        let Flush { raw_logprobs, extra, end, .. } = flush;
        let groups = self.groups(&logprobs);
        for (at, group) in groups.iter().enumerate() {
            self.logprobs(choice, group, out);
            if at + 1 < groups.len() {
                let covered = tokens.min(group.len() as u32);
                tokens -= covered;
                out.push_back(Delta::Text { choice, tokens: covered, text: String::new() });
            }
        }
        if let Some(json) = raw_logprobs.map(|raw| raw.to_string())
            && json.len() <= MAX_JSON_BYTES
        {
            out.push_back(Delta::Logprobs { choice, json });
        }
        if !reasoning.is_empty() {
            let spoken = std::mem::take(&mut tokens);
            out.push_back(Delta::Reasoning { choice, tokens: spoken, text: reasoning });
        }
        if !text.is_empty() || matches!(out.back(), Some(Delta::Logprobs { .. })) {
            self.text(choice, std::mem::take(&mut tokens), text, out);
        }
        for call in calls {
            let CallPiece { index, id, name, arguments } = call;
            let tokens = std::mem::take(&mut tokens);
            out.push_back(Delta::ToolCall { choice, index, tokens, id, name, arguments });
        }
        if let Some(json) = extra.map(|extra| other(choice, *extra).to_string())
            && json.len() <= MAX_JSON_BYTES
        {
            out.push_back(Delta::Other { choice, json });
        }
        if let Some(reason) = end.as_ref().and_then(|end| end.reason.name()) {
            out.push_back(Delta::Finish { choice, reason: reason.to_owned() });
        }
    }

    /// The records that end a whole answer.
    pub fn finish(&self, answering: &Answering, out: &mut VecDeque<Delta>) {
        if answering.stream.include_usage {
            let timings = json!({"loquent_timings": answering.timings()}).to_string();
            // A long answer's times do not fit a record; they are for measurements only.
            if answering.stream.include_timings && timings.len() <= MAX_JSON_BYTES {
                out.push_back(Delta::Other { choice: 0, json: timings });
            }
            out.push_back(usage_record(&answering.usage()));
        }
        out.push_back(Delta::Done);
    }

    /// The record that ends a broken answer.
    pub fn fail(error: &ApiError) -> Delta {
        let code = error.code().unwrap_or_default().to_owned();
        Delta::Error { code, message: error.to_string() }
    }

    fn text(&mut self, choice: u32, tokens: u32, text: String, out: &mut VecDeque<Delta>) {
        self.chars[choice as usize] += text.chars().count();
        out.push_back(Delta::Text { choice, tokens, text });
    }

    /// Log-probabilities in groups that each fit a record.
    fn groups<'a>(&self, logprobs: &'a [TokenLogprobs]) -> Vec<&'a [TokenLogprobs]> {
        match logprobs {
            [] => Vec::new(),
            all if self.json(all, 0).len() <= MAX_JSON_BYTES => vec![all],
            all => all.chunks(1).collect(),
        }
    }

    fn logprobs(&self, choice: u32, group: &[TokenLogprobs], out: &mut VecDeque<Delta>) {
        let json = self.json(group, self.chars[choice as usize]);
        if json.len() <= MAX_JSON_BYTES {
            out.push_back(Delta::Logprobs { choice, json });
        }
    }

    fn json(&self, logprobs: &[TokenLogprobs], chars: usize) -> String {
        logprobs_json(self.endpoint, &*self.vocab, logprobs, chars).to_string()
    }
}

/// What an upstream server said beside what is known, where it stood in a chunk (S-6.4).
fn other(choice: u32, extra: Extra) -> Value {
    let mut chunk = extra.chunk;
    if !(extra.choice.is_empty() && extra.delta.is_empty()) {
        let mut one = extra.choice;
        one.insert("index".into(), choice.into());
        one.insert("delta".into(), extra.delta.into());
        chunk.insert("choices".into(), json!([one]));
    }
    chunk.into()
}

/// The Open record's meta (S-6.1).
fn meta(head: &Head, usage: UsageInChunks) -> String {
    let usage = match usage {
        UsageInChunks::Absent => "none",
        UsageInChunks::Null => "null",
        UsageInChunks::Counts => "counts",
    };
    let mut meta = head.json();
    meta["usage"] = usage.into();
    meta.to_string()
}

fn usage_record(usage: &Usage) -> Delta {
    Delta::Usage {
        prompt: usage.prompt_tokens,
        completion: usage.completion_tokens,
        cached: usage.cached_tokens,
        reasoning: usage.reasoning_tokens,
    }
}
