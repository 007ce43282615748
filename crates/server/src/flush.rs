//! What leaves a completion at once: pieces of its answer, and in its last flush why and when
//! it ended.

use std::task::{Context, Poll};
use std::time::Duration;

use loquent_infer::request::Admitted;
use loquent_infer::sampling::Logprobs;
use loquent_infer::token::TokenId;
use loquent_proto::Delta;

use crate::error::ApiError;
use crate::usage::Usage;

/// `Retry-After` for a request that expired in the queue, in seconds.
const EXPIRED_RETRY_S: u64 = 10;

/// Why a completion ended, as clients see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended it, or a stop string was found.
    Stop,
    /// The model ended it with calls of tools.
    ToolCalls,
    /// `max_tokens` or the context was used up.
    Length,
    /// It waited in the queue for too long.
    Expired,
    /// An upstream server's reason with a name that is unknown here.
    Other(String),
    /// It failed; the stream must not end as if it were complete.
    Error(String),
    /// It failed with an error that has more than a message.
    Refused(Box<ApiError>),
}

/// A token with its log-probabilities.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// The token.
    pub token: TokenId,
    /// Its log-probability and the best alternatives; the first token of a prompt has none.
    pub logprobs: Option<Logprobs>,
    /// Where its text begins in the completion's, a repeated prompt included, in characters.
    pub offset: usize,
}

/// What leaves a completion at once.
///
/// Small, since flushes move from task to task for every token: what only some answers have
/// is behind a pointer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Flush {
    /// Which of the request's completions.
    pub choice: u32,
    /// Tokens that this flush covers, those without text included.
    pub tokens: u32,
    /// What they add to the answer, in the order of the log; a completion that ends well ends
    /// with its Finish.
    pub deltas: Vec<Delta>,
    /// One for each token, where the request asks for them. They become JSON, which costs far
    /// more than text, only on the request's own task.
    pub logprobs: Vec<TokenLogprobs>,
    /// Set on the completion's last flush.
    pub end: Option<Box<End>>,
}

/// Sees an answer's flushes before whoever reads it does.
pub trait FlushObserver: Send {
    /// A flush is about to be handed on.
    fn on_flush(&mut self, flush: &Flush);

    /// Every completion has ended well. The reader learns of the end when this is ready.
    fn poll_end(&mut self, context: &mut Context<'_>, usage: Usage) -> Poll<()>;
}

impl Flush {
    /// The end of an answer that could not begin.
    pub fn refused(error: ApiError) -> Self {
        let end = End {
            reason: FinishReason::Refused(Box::new(error)),
            completion_tokens: 0,
            reasoning_tokens: 0,
            timings: CompletionTimings::default(),
        };
        Self { end: Some(Box::new(end)), ..Self::default() }
    }

    /// The error that the completion ends with, if it does.
    pub fn error(&self) -> Option<ApiError> {
        self.end.as_ref().and_then(|end| end.reason.error())
    }
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

    /// The label of this reason in metrics and traces; unknown names share one.
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

    /// The error that an unsuccessful end gives the client; `None` for a complete answer.
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
    /// Why it ended.
    pub reason: FinishReason,
    /// Tokens generated, the ending one included.
    pub completion_tokens: u32,
    /// Those of them that were reasoning.
    pub reasoning_tokens: u32,
    /// When its tokens were computed and left.
    pub timings: CompletionTimings,
}

/// One completion's times, on the server's clock, for metrics and reports.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CompletionTimings {
    /// When it entered the batch, and how much of its prompt was cached.
    pub admitted: Option<Admitted>,
    /// When its first token was committed.
    pub first_token: Option<Duration>,
    /// When its last token was committed.
    pub last_token: Option<Duration>,
    /// Tokens generated.
    pub tokens: u32,
    /// Sum over its tokens of the sequences in their batch.
    pub batch_rows: u64,
    /// Sum over its decode tokens of the time from ready to native call.
    pub decode_wait: Duration,
    /// The longest of these waits.
    pub decode_wait_max: Duration,
    /// Each token's commit, kept only where the request asked for timings.
    pub emits: Vec<Duration>,
    /// Each flush: tokens covered so far and when; kept only where asked for.
    pub flushes: Vec<(u32, Duration)>,
}

/// How full the batches were in which a completion's tokens were computed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchShare {
    /// Sequences in the batch, mean over its tokens.
    pub rows_mean: f64,
    /// Time from ready to native call, mean over its decode tokens.
    pub wait_mean: Duration,
    /// The longest of these waits.
    pub wait_max: Duration,
}

impl CompletionTimings {
    /// Notes a token at `now`.
    pub(crate) fn note_token(&mut self, now: Duration) {
        self.tokens += 1;
        self.first_token.get_or_insert(now);
        self.last_token = Some(now);
    }

    /// How full its batches were; `None` without tokens.
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
