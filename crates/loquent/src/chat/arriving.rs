//! An answer while it arrives, from a server with the delivery protocol or from any other.

use std::io;
use std::time::Duration;

use loquent_client::openai::{AnswerStream, Usage, shown_call};
use loquent_client::{Answer as Delivered, ClientError, Transport};
use loquent_proto::Delta;
use tokio::time::Instant;

use super::answer::{AnswerEnd, AskError, TimedAnswer};

/// An answer while it arrives.
pub(super) enum Arriving {
    /// Over the delivery protocol; the client resumes it when the connection breaks.
    Delivered(Delivered),
    /// As plain server-sent events, which cannot be resumed.
    Plain(Box<AnswerStream>),
}

/// What one step of the stream adds to the answer.
#[derive(Default)]
struct StepContent {
    text: String,
    finish_reason: Option<String>,
    usage: Option<Usage>,
}

impl StepContent {
    fn add(&mut self, delta: Delta) {
        match delta {
            Delta::Text { text, .. } | Delta::Reasoning { text, .. } => self.text.push_str(&text),
            Delta::ToolCall { name, arguments, .. } => {
                self.text.push_str(&shown_call(&name, arguments));
            }
            Delta::Finish { reason, .. } => self.finish_reason = Some(reason),
            Delta::Usage { prompt, completion, .. } => {
                self.usage = Some(Usage { prompt_tokens: prompt, completion_tokens: completion });
            }
            _ => {}
        }
    }
}

impl Arriving {
    async fn next(&mut self) -> Result<Option<(Instant, StepContent)>, ClientError> {
        let mut content = StepContent::default();
        match self {
            Arriving::Delivered(answer) => {
                let Some(step) = answer.next().await? else { return Ok(None) };
                // The client has merged what arrived together, so this is when it can be shown.
                let at = Instant::now();
                step.into_deltas()?.into_iter().for_each(|delta| content.add(delta));
                Ok(Some((at, content)))
            }
            Arriving::Plain(stream) => {
                let Some(arrival) = stream.next().await? else { return Ok(None) };
                let delta = arrival.delta;
                (content.text, content.finish_reason) = (delta.text, delta.finish_reason);
                content.usage = delta.usage;
                Ok(Some((arrival.at, content)))
            }
        }
    }

    /// The transport in use, with the delivery protocol.
    pub(super) fn transport(&self) -> Option<Transport> {
        match self {
            Arriving::Delivered(answer) => Some(answer.transport()),
            Arriving::Plain(_) => None,
        }
    }

    /// How often it was resumed over a new connection.
    pub(super) fn resumes(&self) -> u32 {
        match self {
            Arriving::Delivered(answer) => answer.resumes(),
            Arriving::Plain(_) => 0,
        }
    }

    /// Tells the server to stop generating the rest.
    pub(super) async fn cancel(self) {
        if let Arriving::Delivered(answer) = self {
            answer.cancel().await;
        }
    }
}

/// The answer as received so far.
#[derive(Default)]
pub(super) struct PartialAnswer {
    text: String,
    first_at: Option<Instant>,
    last_at: Option<Instant>,
    usage: Option<Usage>,
}

impl PartialAnswer {
    /// Reads the answer to its end, passes its text to `show`, and returns the finish reason.
    ///
    /// # Errors
    /// [`AskError::CutOff`] if the stream breaks or ends without a finish reason,
    /// [`AskError::Screen`] if `show` fails.
    pub(super) async fn read(
        &mut self,
        stream: &mut Arriving,
        show: &mut impl FnMut(&str) -> io::Result<()>,
    ) -> Result<String, AskError> {
        let mut finish_reason = None;
        while let Some((at, content)) = stream.next().await.map_err(AskError::CutOff)? {
            self.usage = content.usage.or(self.usage);
            finish_reason = content.finish_reason.or(finish_reason);
            // An answer that begins with a tool call needs no line end before it.
            let text = match self.text.is_empty() {
                true => content.text.trim_start_matches('\n'),
                false => content.text.as_str(),
            };
            if text.is_empty() {
                continue;
            }
            // Only text counts: a first chunk often has nothing but the role.
            self.first_at.get_or_insert(at);
            self.last_at = Some(at);
            self.text.push_str(text);
            show(text)?;
        }
        // `[DONE]` alone is no finish: some servers send it after an abort.
        finish_reason.ok_or(AskError::CutOff(ClientError::Truncated))
    }

    /// The answer, complete or not, with its measurements.
    pub(super) fn into_answer(self, ending: AnswerEnd, asked_at: Instant) -> TimedAnswer {
        let streamed = match (self.first_at, self.last_at) {
            (Some(first), Some(last)) => last - first,
            _ => Duration::ZERO,
        };
        let ttft = self.first_at.map(|first| first - asked_at);
        let (text, usage) = (self.text, self.usage);
        TimedAnswer { text, ending, ttft, streamed, usage, transport: None, resumes: 0 }
    }
}
