//! An answer on its way to the screen, from a server that speaks the delivery protocol or
//! from any other.

use std::io;
use std::time::Duration;

use loquent_client::openai::{AnswerStream, Usage};
use loquent_client::{Answer as Delivered, ClientError, Transport};
use loquent_proto::Delta;
use tokio::time::Instant;

use super::dialogue::{Answer, AskError, Ending};

/// An answer that is arriving.
pub(super) enum Arriving {
    /// It resumes by itself.
    Delivered(Delivered),
    /// Plain server-sent events.
    Plain(Box<AnswerStream>),
}

/// What one step adds.
#[derive(Default)]
struct Piece {
    text: String,
    finish_reason: Option<String>,
    usage: Option<Usage>,
}

impl Piece {
    fn add(&mut self, delta: Delta) {
        match delta {
            Delta::Text { text, .. } | Delta::Reasoning { text, .. } => self.text.push_str(&text),
            Delta::ToolCall { arguments, .. } => self.text.push_str(&arguments),
            Delta::Finish { reason, .. } => self.finish_reason = Some(reason),
            Delta::Usage { prompt, completion, .. } => {
                self.usage = Some(Usage { prompt_tokens: prompt, completion_tokens: completion });
            }
            _ => {}
        }
    }
}

impl Arriving {
    async fn next(&mut self) -> Result<Option<(Instant, Piece)>, ClientError> {
        let mut piece = Piece::default();
        match self {
            Arriving::Delivered(answer) => {
                let Some(step) = answer.next().await? else { return Ok(None) };
                let at = Instant::now();
                step.into_deltas()?.into_iter().for_each(|delta| piece.add(delta));
                Ok(Some((at, piece)))
            }
            Arriving::Plain(stream) => {
                let Some(arrival) = stream.next().await? else { return Ok(None) };
                let delta = arrival.delta;
                (piece.text, piece.finish_reason) = (delta.text, delta.finish_reason);
                piece.usage = delta.usage;
                Ok(Some((arrival.at, piece)))
            }
        }
    }

    /// How it comes, if it resumes by itself.
    pub(super) fn transport(&self) -> Option<Transport> {
        match self {
            Arriving::Delivered(answer) => Some(answer.transport()),
            Arriving::Plain(_) => None,
        }
    }

    /// How often it went on over a new path.
    pub(super) fn resumes(&self) -> u32 {
        match self {
            Arriving::Delivered(answer) => answer.resumes(),
            Arriving::Plain(_) => 0,
        }
    }

    /// Nobody wants the rest.
    pub(super) async fn cancel(self) {
        if let Arriving::Delivered(answer) = self {
            answer.cancel().await;
        }
    }
}

/// The answer so far.
#[derive(Default)]
pub(super) struct Arrived {
    text: String,
    first_at: Option<Instant>,
    last_at: Option<Instant>,
    usage: Option<Usage>,
}

impl Arrived {
    /// Reads to the end and gives the finish reason.
    pub(super) async fn read(
        &mut self,
        stream: &mut Arriving,
        show: &mut impl FnMut(&str) -> io::Result<()>,
    ) -> Result<String, AskError> {
        let mut finish_reason = None;
        while let Some((at, piece)) = stream.next().await.map_err(AskError::CutOff)? {
            self.usage = piece.usage.or(self.usage);
            finish_reason = piece.finish_reason.or(finish_reason);
            if piece.text.is_empty() {
                continue;
            }
            self.first_at.get_or_insert(at);
            self.last_at = Some(at);
            self.text.push_str(&piece.text);
            show(&piece.text)?;
        }
        // `[DONE]` alone is no finish: some servers send it after an abort.
        finish_reason.ok_or(AskError::CutOff(ClientError::Truncated))
    }

    /// The answer as far as it came.
    pub(super) fn into_answer(self, ending: Ending, asked_at: Instant) -> Answer {
        let streamed = match (self.first_at, self.last_at) {
            (Some(first), Some(last)) => last - first,
            _ => Duration::ZERO,
        };
        let ttft = self.first_at.map(|first| first - asked_at);
        let (text, usage) = (self.text, self.usage);
        Answer { text, ending, ttft, streamed, usage, transport: None, resumes: 0 }
    }
}
