//! Objects of llama-server's own completions: a whole answer, and the end of a streamed one.

use serde_json::{Map, Value, json};

use super::parameters::NativeRequest;
use loquent_infer::vocab::Vocab;
use loquent_serving::answer_times::AnswerTimes;
use loquent_serving::api::logprobs::LogprobsFormat;
use loquent_serving::full_answer::{FullAnswer, FullCompletion};
use loquent_serving::usage::Usage;

/// Name of the member with log-probabilities.
pub const PROBABILITIES: &str = "completion_probabilities";

/// Members of an answer that come from its request.
#[derive(Debug, Clone, Default)]
pub struct ShownRequest {
    /// Parameters of the answer's form.
    pub native: NativeRequest,
    /// The `generation_settings`; null where an upstream server answers.
    pub settings: Value,
    /// Maximum number of tokens to generate.
    pub max_tokens: u32,
}

/// End of a completion.
#[derive(Debug, Default)]
pub struct CompletionEnd<'a> {
    /// Index of the completion.
    pub index: usize,
    /// The model that answers.
    pub model: &'a str,
    /// OpenAI's reason.
    pub reason: &'a str,
    /// The stop string, if one ended the completion.
    pub word: Option<&'a str>,
    /// True if its text has a line break.
    pub has_new_line: bool,
    /// Token counts.
    pub usage: Usage,
    /// Durations.
    pub times: AnswerTimes,
}

/// Returns the answer as one object, or as a list of those of several completions.
pub fn whole(answer: &FullAnswer, vocab: &dyn Vocab, shown: &ShownRequest) -> Value {
    let mut objects: Vec<Value> = answer
        .completions
        .iter()
        .enumerate()
        .map(|(index, one)| shown.picked(completion(answer, index, one, vocab, shown)))
        .collect();
    match objects.len() {
        1 => objects.remove(0),
        _ => objects.into(),
    }
}

fn completion(
    answer: &FullAnswer,
    index: usize,
    one: &FullCompletion,
    vocab: &dyn Vocab,
    shown: &ShownRequest,
) -> Map<String, Value> {
    // An upstream server counts the whole answer only.
    let (usage, times) = match answer.completions.len() {
        1 => (answer.usage, answer.times),
        _ => (one.usage, one.times),
    };
    let end = CompletionEnd {
        index,
        model: &answer.head.model,
        reason: one.finish_reason.as_deref().unwrap_or_default(),
        word: one.stop_reason.as_deref(),
        has_new_line: one.text.contains('\n'),
        usage,
        times,
    };
    let mut object = end.object(&one.text, shown);
    // Without either, a whole answer has kept no tokens, and this costs nothing.
    let tokens = LogprobsFormat::LlamaServer.json(vocab, &one.logprobs);
    if shown.native.return_tokens {
        object.insert("tokens".into(), tokens["tokens"].clone());
    }
    if shown.native.probabilities > 0 {
        object.insert(PROBABILITIES.into(), tokens[PROBABILITIES].clone());
    }
    object
}

impl CompletionEnd<'_> {
    /// Returns the object of a completion that has ended with the text `content`.
    pub fn object(&self, content: &str, shown: &ShownRequest) -> Map<String, Value> {
        let stop_type = match (self.reason, self.word) {
            ("length", _) => "limit",
            (_, Some(_)) => "word",
            _ => "eos",
        };
        let usage = &self.usage;
        // Nothing but the context's end stops an answer earlier than its bound.
        let is_truncated =
            self.reason == "length" && usage.completion_tokens < u64::from(shown.max_tokens);
        let object = json!({
            "index": self.index,
            "content": content,
            "tokens": [],
            "stop": true,
            "model": self.model,
            "stop_type": stop_type,
            "stopping_word": self.word.unwrap_or_default(),
            "has_new_line": self.has_new_line,
            "truncated": is_truncated,
            "tokens_cached": usage.cached_tokens,
            "tokens_evaluated": usage.prompt_tokens,
            "tokens_predicted": usage.completion_tokens,
            "timings": self.times.llama_timings(usage),
        });
        let Value::Object(mut object) = object else { return Map::new() };
        if !shown.settings.is_null() {
            object.insert("generation_settings".into(), shown.settings.clone());
        }
        object
    }
}

impl ShownRequest {
    /// Returns `object`, or those of its members that the request asks for, by their paths.
    pub fn picked(&self, object: Map<String, Value>) -> Value {
        // A path of JSON's pointers but for its beginning: members and places in lists.
        let (paths, object) = (&self.native.response_fields, Value::from(object));
        if paths.is_empty() {
            return object;
        }
        let member = |path: &String| {
            let value = object.pointer(&format!("/{path}"))?;
            Some((path.clone(), value.clone()))
        };
        Value::Object(paths.iter().filter_map(member).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(reason: &str, word: Option<&str>, tokens: u64) -> Map<String, Value> {
        let usage = Usage { completion_tokens: tokens, ..Usage::default() };
        let shown = ShownRequest { max_tokens: 8, ..ShownRequest::default() };
        CompletionEnd { reason, word, usage, ..CompletionEnd::default() }.object("a", &shown)
    }

    #[test]
    fn the_end_has_llama_servers_names() {
        for (reason, word, tokens, stop_type, is_truncated) in [
            ("stop", None, 3, "eos", false),
            ("stop", Some("x"), 3, "word", false),
            ("length", None, 8, "limit", false),
            ("length", None, 3, "limit", true),
        ] {
            let end = end(reason, word, tokens);
            assert_eq!(end["stop_type"], stop_type);
            assert_eq!(end["stopping_word"], word.unwrap_or_default());
            assert_eq!(end["truncated"], is_truncated, "{reason} {tokens}");
        }
    }

    #[test]
    fn members_are_picked_by_their_paths() {
        let paths = ["content", "timings/predicted_n", "nothing", "timings/nothing", ""];
        let response_fields = paths.map(str::to_owned).to_vec();
        let native = NativeRequest { response_fields, ..NativeRequest::default() };
        let shown = ShownRequest { native, ..ShownRequest::default() };
        let wanted = json!({"content": "a", "timings/predicted_n": 3});
        assert_eq!(shown.picked(end("stop", None, 3)), wanted);
        assert_eq!(ShownRequest::default().picked(end("stop", None, 3))["content"], "a");
    }
}
