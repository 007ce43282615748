//! Converts an answer's flushes to the records of its log: all readers of the answer get these,
//! whether a log keeps them or an event stream writes them at once.

use std::sync::Arc;

use loquent_infer::vocab::Vocab;
use loquent_proto::Delta;
use loquent_proto::chunk::UsageInChunks;
use serde_json::Value;

use crate::active_request::ActiveRequest;
use crate::api::head::AnswerHead;
use crate::api::logprobs::LogprobsFormat;
use crate::api::request::StreamParams;
use crate::error::ApiError;
use crate::flush::{Flush, TokenLogprobs};
use crate::usage::Usage;

/// Maximum length of the JSON in a record, with room for the record's other fields (D-3.2).
pub const MAX_JSON_BYTES: usize = loquent_proto::delta::MAX_RECORD_BYTES - 16;

/// Parts of the request that an answer's records need.
pub struct RecordContext<'a> {
    /// Vocabulary of its tokens.
    pub vocab: &'a Arc<dyn Vocab>,
    /// Prompts, if the request asks to have them repeated.
    pub echo: &'a [String],
    /// Format of log-probabilities; `None` for that of the answer's endpoint.
    pub logprobs: Option<LogprobsFormat>,
}

/// Writes one answer's records.
pub struct RecordWriter {
    logprobs: LogprobsFormat,
    vocab: Arc<dyn Vocab>,
    usage: UsageInChunks,
}

impl RecordWriter {
    /// Creates a writer for the answer to `request`, and passes the records that begin it to `put`.
    pub fn open(
        request: &ActiveRequest,
        context: &RecordContext<'_>,
        put: &mut impl FnMut(Delta),
    ) -> Self {
        let (head, usage) = (request.head(), usage_in_chunks(request.stream()));
        put(Delta::Open { meta: meta(head, request.stream()) });
        let vocab = context.vocab.clone();
        let logprobs = context.logprobs.unwrap_or_else(|| LogprobsFormat::of(head.endpoint));
        let writer = Self { logprobs, vocab, usage };
        for choice in (0..request.completions()).filter(|_| !context.echo.is_empty()) {
            let text = request.prompt_of(choice, context.echo).to_owned();
            put(Delta::Text { choice: choice as u32, tokens: 0, text });
        }
        writer
    }

    /// Writes the records of one flush; `usage` returns the counts up to it. An end with an error
    /// is left to [`Self::fail`].
    pub fn flush(&self, flush: Flush, usage: impl FnOnce() -> Usage, put: &mut impl FnMut(Delta)) {
        if self.usage == UsageInChunks::Counts {
            put(usage().to_delta()); // before the chunks that show it (S-6.3)
        }
        if !flush.logprobs.is_empty() {
            return self.flush_with_logprobs(flush, put);
        }
        flush.deltas.into_iter().for_each(put);
    }

    /// Writes the records that end a complete answer, for a log.
    pub fn finish(&self, request: &ActiveRequest, put: &mut impl FnMut(Delta)) {
        let has_usage = request.stream().include_usage;
        Self::put_timings(request, has_usage, put);
        if has_usage {
            put(request.usage().to_delta());
        }
        put(Delta::Done);
    }

    /// Writes the record with the timings that the request asks for. This server's belong to the
    /// counts, `has_usage`; llama-server's come without them too.
    fn put_timings(request: &ActiveRequest, has_usage: bool, put: &mut impl FnMut(Delta)) {
        let members = request.timing_members();
        if !members.is_empty() && (has_usage || request.stream().timings) {
            put(Delta::Other { choice: 0, json: Value::from(members).to_string() });
        }
    }

    /// Writes the records that end a complete answer, for an event stream without a log: the counts
    /// are one chunk with all other members, as upstream servers send it.
    pub fn finish_stream(&self, request: &ActiveRequest, put: &mut impl FnMut(Delta)) {
        if request.stream().include_usage {
            put(match request.usage_members() {
                Some(members) => Delta::Other { choice: 0, json: Value::from(members).to_string() },
                None => request.usage().to_delta(),
            });
        } else {
            Self::put_timings(request, false, put);
        }
        put(Delta::Done);
    }

    /// Returns the record that ends a broken answer.
    pub fn fail(error: &ApiError) -> Delta {
        let code = error.code().unwrap_or_default().to_owned();
        Delta::Error { code, message: error.to_string() }
    }

    /// Writes log-probabilities before the text that they belong to (S-6.2). A record has room for
    /// a few hundred alternatives. If a flush has more, each token but the last gets a separate
    /// text record, which is empty, since it is unknown which of its tokens gave which text.
    fn flush_with_logprobs(&self, flush: Flush, put: &mut impl FnMut(Delta)) {
        let Flush { choice, tokens: mut left, mut deltas, logprobs, .. } = flush;
        let groups = self.groups(&logprobs);
        for (at, group) in groups.iter().enumerate() {
            self.put_logprobs(choice, group, put);
            if at + 1 < groups.len() {
                let tokens = left.min(group.len() as u32);
                left -= tokens;
                put(Delta::Text { choice, tokens, text: String::new() });
            }
        }
        if let Some(count) = deltas.iter_mut().find_map(Delta::tokens_mut) {
            *count = left;
            left = 0;
        }
        let has_text = deltas.iter().any(|delta| matches!(delta, Delta::Text { .. }));
        let end = deltas.pop_if(|delta| matches!(delta, Delta::Finish { .. }));
        deltas.into_iter().for_each(&mut *put);
        if !has_text {
            put(Delta::Text { choice, tokens: left, text: String::new() });
        }
        end.into_iter().for_each(put);
    }

    /// Splits log-probabilities into groups that each fit a record.
    fn groups<'a>(&self, logprobs: &'a [TokenLogprobs]) -> Vec<&'a [TokenLogprobs]> {
        match self.json(logprobs).len() {
            ..=MAX_JSON_BYTES => vec![logprobs],
            _ => logprobs.chunks(1).collect(),
        }
    }

    fn put_logprobs(&self, choice: u32, group: &[TokenLogprobs], put: &mut impl FnMut(Delta)) {
        let mut json = self.json(group);
        if let [one] = group
            && let Some(logprobs) = &one.logprobs
        {
            // Long tokens: the least likely alternatives are what a reader misses least.
            let mut fewer = logprobs.clone();
            while json.len() > MAX_JSON_BYTES && !fewer.top.is_empty() {
                fewer.top.truncate(fewer.top.len() / 2);
                json = self.json(&[TokenLogprobs { logprobs: Some(fewer.clone()), ..one.clone() }]);
            }
        }
        put(Delta::Logprobs { choice, json });
    }

    fn json(&self, logprobs: &[TokenLogprobs]) -> String {
        self.logprobs.json(&*self.vocab, logprobs).to_string()
    }
}

fn usage_in_chunks(stream: StreamParams) -> UsageInChunks {
    match stream {
        StreamParams { continuous_usage: true, .. } => UsageInChunks::Counts,
        StreamParams { include_usage: true, .. } => UsageInChunks::Null,
        _ => UsageInChunks::Absent,
    }
}

/// Returns the Open record's meta (S-6.1).
fn meta(head: &AnswerHead, stream: StreamParams) -> String {
    let mut meta = head.json();
    meta["usage"] = usage_in_chunks(stream).name().into();
    if let Some(asked) = stream.include_obfuscation {
        meta["obfuscation"] = asked.into();
    }
    if stream.return_progress {
        meta["progress"] = true.into();
    }
    meta.to_string()
}

#[cfg(test)]
mod tests {
    use loquent_infer::sampling::Logprobs;
    use loquent_infer::token::TokenId;
    use loquent_infer::vocab::{Encode, EncodeError};

    use super::*;

    /// A vocabulary whose tokens are a kilobyte long.
    struct LongTokens(Vec<u8>);

    impl Vocab for LongTokens {
        fn size(&self) -> usize {
            100
        }

        fn encode(&self, _: &str, _: Encode) -> Result<Vec<TokenId>, EncodeError> {
            Ok(Vec::new())
        }

        fn piece(&self, _: TokenId) -> &[u8] {
            &self.0
        }

        fn name(&self, _: TokenId) -> &[u8] {
            &self.0
        }

        fn is_end(&self, _: TokenId) -> bool {
            false
        }
    }

    #[test]
    fn long_tokens_keep_their_likeliest_alternatives() {
        let writer = RecordWriter {
            logprobs: LogprobsFormat::Chat,
            vocab: Arc::new(LongTokens(vec![b'a'; 1024])),
            usage: UsageInChunks::Absent,
        };
        let top: Vec<(TokenId, f32)> = (0..20).map(|token| (token, -(token as f32))).collect();
        let logprobs = Some(Logprobs { chosen: 0.0, top });
        let one = TokenLogprobs { token: 0, logprobs, offset: 0 };
        let flush = Flush { tokens: 1, logprobs: vec![one], ..Flush::default() };
        let mut found = None;
        writer.flush_with_logprobs(flush, &mut |delta| {
            if let Delta::Logprobs { json, .. } = delta {
                found = Some(json);
            }
        });
        let json = found.unwrap();
        assert!(json.len() <= MAX_JSON_BYTES, "{}", json.len());
        let json: Value = serde_json::from_str(&json).unwrap();
        let left = json["content"][0]["top_logprobs"].as_array().unwrap();
        assert!((1..20).contains(&left.len()), "{}", left.len());
        assert_eq!(left[0]["logprob"], 0.0);
    }
}
