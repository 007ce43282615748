//! A whole answer, put together from its flushes, for those who do not stream: the object of any
//! API is written from it.

use loquent_proto::Delta;
use serde_json::{Value, json};

use crate::active_request::{ActiveRequest, AnswerTimes};
use crate::api::head::AnswerHead;
use crate::error::ApiError;
use crate::flush::{Flush, TokenLogprobs};
use crate::usage::Usage;

/// A complete answer, or one as far as it was generated.
#[derive(Debug, Clone)]
pub struct FullAnswer {
    /// What all its parts share.
    pub head: AnswerHead,
    /// Its completions, in the order of their indices.
    pub completions: Vec<FullCompletion>,
    /// What it took, tokens.
    pub usage: Usage,
    /// How long it took.
    pub times: AnswerTimes,
}

impl FullAnswer {
    /// Waits for the end of `active`; `echo` has the prompts where the request asks to have them
    /// repeated.
    ///
    /// # Errors
    /// That of a completion that failed; 500 when the engine has stopped.
    pub async fn collect(mut active: ActiveRequest, echo: &[String]) -> Result<Self, ApiError> {
        let mut answer = Self::begin(&active, echo);
        while let Some(flush) = active.next_flush().await {
            if let Some(error) = flush.error() {
                return Err(error);
            }
            answer.push(flush);
        }
        if !active.is_complete() {
            return Err(ApiError::internal("The engine has stopped. Restart the server."));
        }
        (answer.usage, answer.times) = (active.usage(), active.times());
        Ok(answer)
    }

    /// The answer to `active` before its first flush.
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

    /// About how many bytes its JSON has.
    pub fn bytes(&self) -> usize {
        self.completions.iter().map(FullCompletion::bytes).sum()
    }
}

/// One completion, put together from its flushes.
#[derive(Debug, Clone, Default)]
pub struct FullCompletion {
    /// What it says.
    pub text: String,
    /// What was thought before.
    pub reasoning: String,
    /// The tools that it calls, in the order of their indices.
    pub calls: Vec<FullCall>,
    /// Log-probabilities of its tokens, where the request asks for them.
    pub logprobs: Vec<TokenLogprobs>,
    /// Why it ended, by OpenAI's names.
    pub finish_reason: Option<String>,
    /// The stop string that ended it, where the request asks to know it.
    pub stop_reason: Option<String>,
}

/// A tool call.
#[derive(Debug, Clone)]
pub struct FullCall {
    /// Its number among the completion's.
    pub index: u32,
    /// Its random name.
    pub id: String,
    /// The tool.
    pub name: String,
    /// A JSON object, unless the model wrote something else.
    pub arguments: String,
}

impl FullCall {
    /// The arguments as a JSON object, for APIs that have them so. What the model wrote instead, if
    /// it wrote anything else, is in its member `arguments`.
    pub fn input(&self) -> Value {
        match serde_json::from_str(&self.arguments) {
            Ok(object @ Value::Object(_)) => object,
            _ if self.arguments.trim().is_empty() => json!({}),
            _ => json!({"arguments": self.arguments}),
        }
    }
}

impl FullCompletion {
    /// A completion whose text begins with `echo`, the repeated prompt.
    fn with_echo(echo: &str) -> Self {
        Self { text: echo.to_owned(), ..Self::default() }
    }

    /// Adds a flush.
    fn push(&mut self, flush: Flush) {
        flush.deltas.into_iter().for_each(|delta| self.push_delta(delta));
        self.logprobs.extend(flush.logprobs);
    }

    /// About how many bytes its JSON has.
    fn bytes(&self) -> usize {
        /// About what a token takes in JSON: its text, its bytes and its log-probability.
        const TOKEN_BYTES: usize = 128;
        let tokens = self
            .logprobs
            .iter()
            .map(|one| 1 + one.logprobs.as_ref().map_or(0, |some| some.top.len()))
            .sum::<usize>();
        self.text.len() + self.reasoning.len() + tokens * TOKEN_BYTES
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

/// The stop string that a record of a choice names.
pub fn stop_reason(json: &str) -> Option<String> {
    // Upstream servers send many other records of this kind.
    if !json.contains("stop_reason") {
        return None;
    }
    let json: Value = serde_json::from_str(json).ok()?;
    json.pointer("/choices/0/stop_reason")?.as_str().map(str::to_owned)
}
