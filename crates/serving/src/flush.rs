//! Flushes: pieces of a completion's answer that are sent together, the last with the reason and
//! times of its end.

use std::task::{Context, Poll};
use std::time::Duration;

use loquent_infer::request::Admitted;
use loquent_infer::sampling::Logprobs;
use loquent_infer::token::TokenId;
use loquent_proto::Delta;

use crate::error::ApiError;
use crate::usage::Usage;

/// `Retry-After` in seconds for a request that expired in the queue.
const EXPIRED_RETRY_S: u64 = 10;

/// Reason why a completion ended, as clients see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended the answer, or a stop string was found.
    Stop,
    /// The model ended the answer with tool calls.
    ToolCalls,
    /// `max_tokens` or the context was used up.
    Length,
    /// The completion waited in the queue for too long.
    Expired,
    /// An upstream server's reason with an unknown name.
    Other(String),
    /// The completion failed; the stream must not end as if it were complete.
    Error(String),
    /// The completion failed with an error that has more than a message.
    Refused(Box<ApiError>),
}

/// A token with its log-probabilities.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// The token.
    pub token: TokenId,
    /// Log-probabilities of the token and of the best alternatives; `None` for the first token of a
    /// prompt, and for tokens that are kept for their ids.
    pub logprobs: Option<Logprobs>,
    /// Start of its text within the completion's, including a repeated prompt, in characters.
    pub offset: usize,
}

impl TokenLogprobs {
    /// Returns the approximate bytes of its JSON.
    pub fn bytes(&self) -> usize {
        /// A token's text, its bytes and its log-probability.
        const TOKEN_BYTES: usize = 128;
        (1 + self.alternatives()) * TOKEN_BYTES
    }

    /// Returns the bytes that count towards a stream's bound.
    pub fn size_bytes(&self) -> usize {
        16 + 8 * self.alternatives()
    }

    fn alternatives(&self) -> usize {
        self.logprobs.as_ref().map_or(0, |some| some.top.len())
    }
}

/// Pieces of a completion that are sent together.
///
/// Small, since flushes move from task to task for every token: members that only some answers have
/// are behind a pointer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Flush {
    /// Index of the completion in its request.
    pub choice: u32,
    /// Tokens covered by this flush, including those without text.
    pub tokens: u32,
    /// Additions to the answer, in the order of the log; a successful completion ends with its
    /// Finish.
    pub deltas: Vec<Delta>,
    /// One entry per token, if the request asks for them. They are converted to JSON, which costs
    /// far more than text, only on the request's own task.
    pub logprobs: Vec<TokenLogprobs>,
    /// Set on the completion's last flush.
    pub end: Option<Box<End>>,
}

/// Observes an answer's flushes before its reader gets them.
pub trait FlushObserver: Send {
    /// Called with each flush before it is passed on.
    fn on_flush(&mut self, flush: &Flush);

    /// Called after every completion has ended successfully. The reader gets the end when this is
    /// ready.
    fn poll_end(&mut self, context: &mut Context<'_>, usage: Usage) -> Poll<()>;
}

impl Flush {
    /// Returns the end of an answer that could not begin.
    pub fn refused(error: ApiError) -> Self {
        let end = End {
            reason: FinishReason::Refused(Box::new(error)),
            completion_tokens: 0,
            reasoning_tokens: 0,
            timings: CompletionTimings::default(),
        };
        Self { end: Some(Box::new(end)), ..Self::default() }
    }

    /// Returns the approximate bytes of its JSON.
    pub fn bytes(&self) -> usize {
        let text: usize = self.deltas.iter().map(Delta::payload_bytes).sum();
        text + self.logprobs.iter().map(TokenLogprobs::bytes).sum::<usize>()
    }

    /// Returns the error with which the completion ends, if any.
    pub fn error(&self) -> Option<ApiError> {
        self.end.as_ref().and_then(|end| end.reason.error())
    }
}

impl FinishReason {
    /// Converts an upstream server's reason.
    pub fn of_upstream(name: String) -> Self {
        match name.as_str() {
            "stop" => Self::Stop,
            "length" => Self::Length,
            "tool_calls" => Self::ToolCalls,
            _ => Self::Other(name),
        }
    }

    /// Returns OpenAI's name of the reason; `None` for an unsuccessful end, which has none.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Stop => Some("stop"),
            Self::ToolCalls => Some("tool_calls"),
            Self::Length => Some("length"),
            Self::Other(name) => Some(name),
            Self::Expired | Self::Error(_) | Self::Refused(_) => None,
        }
    }

    /// Returns the label of this reason in metrics and traces; unknown names share one.
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

    /// Returns the error for the client after an unsuccessful end; `None` for a complete answer.
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

/// The end of a completion.
#[derive(Debug, Clone, PartialEq)]
pub struct End {
    /// Reason of the end.
    pub reason: FinishReason,
    /// Tokens generated, including the ending one.
    pub completion_tokens: u32,
    /// Tokens of reasoning among them.
    pub reasoning_tokens: u32,
    /// Times at which its tokens were computed and sent.
    pub timings: CompletionTimings,
}

/// Times of one completion, on the server's clock, for metrics and reports.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CompletionTimings {
    /// Time of entering the batch, and the cached part of its prompt.
    pub admitted: Option<Admitted>,
    /// Commit of the first token.
    pub first_token: Option<Duration>,
    /// Commit of the last token.
    pub last_token: Option<Duration>,
    /// Tokens generated.
    pub tokens: u32,
    /// Sum over its tokens of the number of sequences in their batch.
    pub batch_rows: u64,
    /// Sum over its decode tokens of the time from being ready to the native call.
    pub decode_wait: Duration,
    /// Longest of these waits.
    pub decode_wait_max: Duration,
    /// Commit of each token, kept only if the request asks for timings.
    pub emits: Vec<Duration>,
    /// Tokens covered so far and time of each flush, kept only if the request asks for timings.
    pub flushes: Vec<(u32, Duration)>,
}

/// Batch sizes and waits of a completion's tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchShare {
    /// Mean number of sequences in the batch, over its tokens.
    pub rows_mean: f64,
    /// Mean time from being ready to the native call, over its decode tokens.
    pub wait_mean: Duration,
    /// Longest of these waits.
    pub wait_max: Duration,
}

impl CompletionTimings {
    /// Records a token at `now`.
    pub fn note_token(&mut self, now: Duration) {
        self.tokens += 1;
        self.first_token.get_or_insert(now);
        self.last_token = Some(now);
    }

    /// Returns the batch sizes and waits of its tokens; `None` without tokens.
    pub fn batch(&self) -> Option<BatchShare> {
        // The first token comes with the prompt's last chunk and waits for no decode step.
        let decoded = self.tokens.saturating_sub(1).max(1);
        (self.tokens > 0).then(|| BatchShare {
            rows_mean: self.batch_rows as f64 / f64::from(self.tokens),
            wait_mean: self.decode_wait / decoded,
            wait_max: self.decode_wait_max,
        })
    }
}
