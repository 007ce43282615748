//! What leaves for a client at once: text, reasoning, tool calls, log-probabilities, and in a
//! completion's last flush why and when it ended.

use std::time::Duration;

use loquent_infer::request::Admitted;
use loquent_infer::sampling::Logprobs;
use loquent_infer::token::TokenId;
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::usage::UpstreamUsage;

/// What a client whose request expired in the queue is told to wait, in seconds.
const EXPIRED_RETRY_S: u64 = 10;

/// Why a completion ended, as clients are told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended it, or a stop string was found.
    Stop,
    /// The model ended it with calls of tools.
    ToolCalls,
    /// `max_tokens` or the context was used up.
    Length,
    /// It waited too long for its turn.
    Expired,
    /// An upstream server's reason that is none of these.
    Other(String),
    /// It broke; the stream must not end as if complete.
    Error(String),
    /// It broke, with this error.
    Refused(Box<ApiError>),
}

/// A generated token with its log-probabilities.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// The token.
    pub token: TokenId,
    /// Its log-probability and the best alternatives.
    pub logprobs: Logprobs,
}

/// What leaves for the client at once.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Flush {
    /// Which of the request's completions.
    pub choice: u32,
    /// Whole characters.
    pub text: String,
    /// Whole characters of reasoning; they come before the text.
    pub reasoning: String,
    /// Calls of tools; they come after the text.
    pub calls: Vec<CallPiece>,
    /// Tokens that this flush covers, those without text included.
    pub tokens: u32,
    /// One for each token, where they were asked for.
    pub logprobs: Vec<TokenLogprobs>,
    /// The same as an upstream server gave them.
    pub raw_logprobs: Option<Value>,
    /// What else an upstream server said.
    pub extra: Option<Box<Extra>>,
    /// An upstream server's count of tokens so far.
    pub counted: Option<Box<UpstreamUsage>>,
    /// Set on the completion's last flush. Apart, since it is large and flushes move often.
    pub end: Option<Box<End>>,
}

/// Members that an upstream server's chunks carried beside those that are known.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Extra {
    /// Of the chunk.
    pub chunk: Map<String, Value>,
    /// Of the choice.
    pub choice: Map<String, Value>,
    /// Of the choice's delta.
    pub delta: Map<String, Value>,
}

impl Extra {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.chunk.is_empty() && self.choice.is_empty() && self.delta.is_empty()
    }

    /// Adds what came later: texts and lists of a delta grow, all else is replaced.
    fn absorb(&mut self, more: Self) {
        self.chunk.extend(more.chunk);
        self.choice.extend(more.choice);
        for (name, value) in more.delta {
            match (self.delta.get_mut(&name), value) {
                (Some(Value::String(text)), Value::String(more)) => text.push_str(&more),
                (Some(Value::Array(items)), Value::Array(more)) => items.extend(more),
                (_, value) => drop(self.delta.insert(name, value)),
            }
        }
    }
}

/// A fragment of a tool call.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CallPiece {
    /// Which call of this completion.
    pub index: u32,
    /// Its id; empty after its first piece.
    pub id: String,
    /// The function's name; empty after its first piece.
    pub name: String,
    /// The next piece of its arguments.
    pub arguments: String,
}

impl FinishReason {
    /// An upstream server's reason.
    pub fn of_upstream(name: String) -> Self {
        match name.as_str() {
            "stop" => Self::Stop,
            "length" => Self::Length,
            "tool_calls" => Self::ToolCalls,
            _ => Self::Other(name),
        }
    }

    /// OpenAI's name of it; `None` for an unsuccessful end, which has none.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Stop => Some("stop"),
            Self::ToolCalls => Some("tool_calls"),
            Self::Length => Some("length"),
            Self::Other(name) => Some(name),
            Self::Expired | Self::Error(_) | Self::Refused(_) => None,
        }
    }

    /// Its name in metrics and traces.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::ToolCalls => "tool_calls",
            Self::Length => "length",
            Self::Other(_) => "other",
            Self::Expired => "expired",
            Self::Error(_) | Self::Refused(_) => "error",
        }
    }

    /// What an unsuccessful end is to the client; `None` for a complete answer.
    pub fn error(&self) -> Option<ApiError> {
        match self {
            Self::Stop | Self::ToolCalls | Self::Length | Self::Other(_) => None,
            Self::Expired => {
                let message = "The request waited too long in the server's queue. Try again later.";
                Some(ApiError::overloaded(message, EXPIRED_RETRY_S))
            }
            Self::Error(message) => Some(ApiError::internal(message.as_str())),
            Self::Refused(error) => Some(ApiError::clone(error)),
        }
    }
}

impl Flush {
    pub(crate) fn is_empty(&self) -> bool {
        !self.has_payload() && self.end.is_none()
    }

    /// Whether it holds anything for the client to see before the end.
    pub fn has_payload(&self) -> bool {
        self.payload() > 0
    }

    /// Grows with everything that a client sees.
    pub(crate) fn payload(&self) -> usize {
        let raw = usize::from(self.raw_logprobs.is_some()) + usize::from(self.extra.is_some());
        self.text_bytes() + self.logprobs.len() + raw
    }

    /// Bytes of text of all kinds.
    pub fn text_bytes(&self) -> usize {
        let calls = self.calls.iter().map(|call| call.name.len() + call.arguments.len());
        self.text.len() + self.reasoning.len() + calls.sum::<usize>()
    }

    /// Adds what came later, before any end.
    pub(crate) fn absorb(&mut self, more: Self) {
        self.text.push_str(&more.text);
        self.reasoning.push_str(&more.reasoning);
        for call in more.calls {
            match self.calls.last_mut() {
                Some(last) if last.index == call.index && call.name.is_empty() => {
                    last.arguments.push_str(&call.arguments);
                }
                _ => self.calls.push(call),
            }
        }
        self.tokens += more.tokens;
        self.logprobs.extend(more.logprobs);
        join_logprobs(&mut self.raw_logprobs, more.raw_logprobs);
        match (&mut self.extra, more.extra) {
            (Some(all), Some(more)) => all.absorb(*more),
            (all @ None, more) => *all = more,
            (Some(_), None) => {}
        }
    }

    pub(crate) fn extra_mut(&mut self) -> &mut Extra {
        self.extra.get_or_insert_default()
    }

    pub(crate) fn open_call(&mut self, index: u32, id: String, name: String) {
        self.calls.push(CallPiece { index, id, name, arguments: String::new() });
    }

    pub(crate) fn push_arguments(&mut self, index: u32, text: &str) {
        match self.calls.last_mut() {
            Some(last) if last.index == index => last.arguments.push_str(text),
            _ if text.is_empty() => {}
            _ => {
                let arguments = text.to_owned();
                self.calls.push(CallPiece { index, arguments, ..CallPiece::default() });
            }
        }
    }
}

/// The end of a completion.
#[derive(Debug, Clone, PartialEq)]
pub struct End {
    /// Why.
    pub reason: FinishReason,
    /// Tokens generated, the ending one included.
    pub completion_tokens: u32,
    /// Of those, reasoning.
    pub reasoning_tokens: u32,
    /// When things happened.
    pub record: CompletionTimings,
}

/// One completion's times, on the server's clock, for metrics and reports.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CompletionTimings {
    /// When and from what prefix it entered the batch.
    pub admitted: Option<Admitted>,
    /// When its first token was committed.
    pub first_token: Option<Duration>,
    /// When its last token was committed.
    pub last_token: Option<Duration>,
    /// Its tokens.
    pub tokens: u32,
    /// Sum over its tokens of the sequences in their batch.
    pub batch_rows: u64,
    /// Sum over its decode tokens of the time from ready to native call.
    pub decode_wait: Duration,
    /// The longest of those.
    pub decode_wait_max: Duration,
    /// Each token's commit, kept only where the request asked for timings.
    pub emits: Vec<Duration>,
    /// Each flush: tokens covered so far and when; kept only where asked for.
    pub flushes: Vec<(u32, Duration)>,
}

/// The company a completion's tokens were computed in.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchShare {
    /// Sequences in the batch, mean over its tokens.
    pub rows_mean: f64,
    /// From ready to native call, mean over its decode tokens.
    pub wait_mean: Duration,
    /// The longest of those.
    pub wait_max: Duration,
}

impl CompletionTimings {
    /// Notes a token at `now`.
    pub(crate) fn note_token(&mut self, now: Duration) {
        self.tokens += 1;
        self.first_token.get_or_insert(now);
        self.last_token = Some(now);
    }

    /// The company its tokens were computed in; `None` without tokens.
    pub fn batch(&self) -> Option<BatchShare> {
        let decoded = self.tokens.saturating_sub(1).max(1);
        (self.tokens > 0).then(|| BatchShare {
            rows_mean: self.batch_rows as f64 / f64::from(self.tokens),
            wait_mean: self.decode_wait / decoded,
            wait_max: self.decode_wait_max,
        })
    }
}

/// Lays the log-probabilities `more` behind `all`: their arrays are joined.
fn join_logprobs(all: &mut Option<Value>, more: Option<Value>) {
    match (all.as_mut().and_then(Value::as_object_mut), more) {
        (_, None) => {}
        (Some(all), Some(Value::Object(more))) => {
            for (name, value) in more {
                match (all.get_mut(&name), value) {
                    (Some(Value::Array(items)), Value::Array(more)) => items.extend(more),
                    (_, value) => drop(all.insert(name, value)),
                }
            }
        }
        (None, more) => *all = more,
        (Some(_), Some(_)) => {}
    }
}
