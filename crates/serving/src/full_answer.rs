//! A whole answer, assembled from its flushes, for clients that do not stream: the source of the
//! response object of any API.

use loquent_proto::Delta;
use serde_json::{Value, json};

use crate::active_request::ActiveRequest;
use crate::answer_times::AnswerTimes;
use crate::api::head::AnswerHead;
use crate::error::ApiError;
use crate::flush::{Flush, TokenLogprobs};
use crate::held_answer::HeldAnswer;
use crate::usage::Usage;

/// A complete answer, or the part generated so far.
#[derive(Debug, Clone)]
pub struct FullAnswer {
    /// Members common to all parts of the answer.
    pub head: AnswerHead,
    /// Completions, in the order of their indices.
    pub completions: Vec<FullCompletion>,
    /// Token counts.
    pub usage: Usage,
    /// Durations of the answer.
    pub times: AnswerTimes,
}

impl FullAnswer {
    /// Waits for the end of `active`, which is charged to `held`; `echo` has the prompts if the
    /// request asks to have them repeated.
    ///
    /// # Errors
    /// The error of a completion that failed; 500 when the engine has stopped; 503 when there is no
    /// memory for the answer.
    pub async fn collect(
        mut active: ActiveRequest,
        echo: &[String],
        held: &mut HeldAnswer,
    ) -> Result<Self, ApiError> {
        let mut answer = Self::begin(&active, echo);
        while let Some(flush) = active.next_flush().await {
            if let Some(error) = flush.error() {
                return Err(error);
            }
            held.add(&flush)?;
            if let Some(end) = &flush.end {
                let one = &mut answer.completions[flush.choice as usize];
                one.usage = active.usage_of(flush.choice as usize, end);
                one.times = active.times_of(&end.timings);
            }
            answer.push(flush);
        }
        if !active.is_complete() {
            return Err(ApiError::internal("The engine has stopped. Restart the server."));
        }
        (answer.usage, answer.times) = (active.usage(), active.times());
        Ok(answer)
    }

    /// Creates the answer to `active` before its first flush.
    pub fn begin(active: &ActiveRequest, echo: &[String]) -> Self {
        let mut completions = vec![FullCompletion::default(); active.completions()];
        for (index, completion) in completions.iter_mut().enumerate().filter(|_| !echo.is_empty()) {
            *completion = FullCompletion::with_echo(active.prompt_of(index, echo));
        }
        let (head, usage, times) = (active.head().clone(), active.usage(), active.times());
        Self { head, completions, usage, times }
    }

    /// Adds a flush.
    pub fn push(&mut self, flush: Flush) {
        self.completions[flush.choice as usize].push(flush);
    }

    /// Returns the approximate size of its JSON in bytes.
    pub fn bytes(&self) -> usize {
        self.completions.iter().map(FullCompletion::bytes).sum()
    }
}

/// One completion, assembled from its flushes.
#[derive(Debug, Clone, Default)]
pub struct FullCompletion {
    /// Text of the answer.
    pub text: String,
    /// Reasoning before the answer.
    pub reasoning: String,
    /// Tool calls, in the order of their indices.
    pub calls: Vec<FullCall>,
    /// Log-probabilities of its tokens, if the request asks for them.
    pub logprobs: Vec<TokenLogprobs>,
    /// Reason of its end, by OpenAI's names.
    pub finish_reason: Option<String>,
    /// Stop string that ended it, if the request asks for it.
    pub stop_reason: Option<String>,
    /// Its own token counts, once it has ended.
    pub usage: Usage,
    /// Its own durations, once it has ended.
    pub times: AnswerTimes,
}

/// A tool call.
#[derive(Debug, Clone)]
pub struct FullCall {
    /// Index among the completion's calls.
    pub index: u32,
    /// Random id of the call.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// A JSON object, unless the model wrote something else.
    pub arguments: String,
}

impl FullCall {
    /// Returns the arguments as a JSON object, for APIs that need one. Any other text of the model
    /// becomes the object's member `arguments`.
    pub fn input(&self) -> Value {
        match serde_json::from_str(&self.arguments) {
            Ok(object @ Value::Object(_)) => object,
            _ if self.arguments.trim().is_empty() => json!({}),
            _ => json!({"arguments": self.arguments}),
        }
    }
}

impl FullCompletion {
    /// Creates a completion whose text begins with `echo`, the repeated prompt.
    fn with_echo(echo: &str) -> Self {
        Self { text: echo.to_owned(), ..Self::default() }
    }

    /// Adds a flush.
    fn push(&mut self, flush: Flush) {
        flush.deltas.into_iter().for_each(|delta| self.push_delta(delta));
        self.logprobs.extend(flush.logprobs);
    }

    /// Returns the approximate size of its JSON in bytes.
    fn bytes(&self) -> usize {
        let logprobs: usize = self.logprobs.iter().map(TokenLogprobs::bytes).sum();
        self.text.len() + self.reasoning.len() + logprobs
    }

    fn push_delta(&mut self, delta: Delta) {
        match delta {
            Delta::Text { text, .. } => self.text.push_str(&text),
            Delta::Reasoning { text, .. } => self.reasoning.push_str(&text),
            Delta::ToolCall { index, id, name, arguments, .. } => match self.calls.last_mut() {
                Some(last) if last.index == index => last.arguments.push_str(&arguments),
                _ => self.calls.push(FullCall { index, id, name, arguments }),
            },
            Delta::Finish { reason, .. } => self.finish_reason = Some(reason),
            Delta::Other { json, .. } => {
                self.stop_reason = stop_reason(&json).or(self.stop_reason.take());
            }
            // Records of the whole answer, and an upstream's, whose full responses pass as
            // they are.
            _ => {}
        }
    }
}

/// Returns the stop string in a record of a choice.
pub fn stop_reason(json: &str) -> Option<String> {
    // Upstream servers send many other records of this kind.
    if !json.contains("stop_reason") {
        return None;
    }
    let json: Value = serde_json::from_str(json).ok()?;
    json.pointer("/choices/0/stop_reason")?.as_str().map(str::to_owned)
}
