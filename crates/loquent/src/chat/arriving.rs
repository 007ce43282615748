//! An answer in transit: from a server with the delivery protocol, from any other server, or from
//! the engine of this process.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::time::Duration;

use loquent_client::openai::{AnswerStream, Usage, shown_call};
use loquent_client::{Answer as Delivered, ClientError, Transport};
use loquent_proto::Delta;
use loquent_proto::progress::Progress;
use loquent_server::ActiveRequest;
use tokio::time::{Instant, interval_at};

use super::answer::{AnswerEnd, AskError, TimedAnswer};

/// Interval of the ticks that let the screen show elapsed time.
const TICK: Duration = Duration::from_millis(100);

/// An answer in transit.
pub(super) enum Arriving {
    /// Over the delivery protocol; the client resumes it when the connection breaks.
    Delivered(Delivered),
    /// As plain server-sent events, which cannot be resumed.
    Plain(Box<AnswerStream>),
    /// From the engine of this process.
    InProcess(Box<ActiveRequest>),
}

/// Parts of an answer, in order of arrival.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum AnswerPart<'a> {
    /// A tick: only time has passed.
    Tick,
    /// Progress of the question before the first token.
    Progress(Progress),
    /// Text of the model's reasoning.
    Reasoning(&'a str),
    /// Text of the answer itself.
    Text(&'a str),
    /// A piece of a tool call; its name comes with the first.
    Call {
        /// Index of the call in the answer.
        index: u32,
        /// Name of the function, or empty.
        name: &'a str,
        /// The next piece of the arguments, which are JSON.
        arguments: &'a str,
    },
}

/// Runs a step of an answer, and calls `show` with ticks meanwhile.
pub(super) async fn with_ticks<T>(
    step: impl Future<Output = T>,
    show: &mut impl FnMut(AnswerPart<'_>) -> io::Result<()>,
) -> io::Result<T> {
    let mut step = pin!(step);
    let mut ticks = interval_at(Instant::now() + TICK, TICK);
    loop {
        tokio::select! {
            biased;
            done = &mut step => return Ok(done),
            _ = ticks.tick() => show(AnswerPart::Tick)?,
        }
    }
}

impl Arriving {
    /// Returns the next deltas, and the time at which they can be shown; `None` after the end.
    async fn next(&mut self) -> Result<Option<(Instant, Vec<Delta>)>, ClientError> {
        match self {
            Arriving::Delivered(answer) => {
                let Some(step) = answer.next().await? else { return Ok(None) };
                // The client has merged what arrived together, so this is when it can be shown.
                Ok(Some((Instant::now(), step.into_deltas()?)))
            }
            Arriving::Plain(stream) => {
                let Some(arrival) = stream.next().await? else { return Ok(None) };
                Ok(Some((arrival.at, arrival.delta.deltas)))
            }
            Arriving::InProcess(active) => match active.next_flush().await {
                Some(flush) => match flush.error() {
                    Some(error) => Err(ClientError::Stream(error.to_string())),
                    None => Ok(Some((Instant::now(), flush.deltas))),
                },
                None if active.is_complete() => Ok(None),
                None => Err(ClientError::Broken("the engine has stopped".into())),
            },
        }
    }

    /// Returns the transport in use, with the delivery protocol.
    pub(super) fn transport(&self) -> Option<Transport> {
        match self {
            Arriving::Delivered(answer) => Some(answer.transport()),
            Arriving::Plain(_) | Arriving::InProcess(_) => None,
        }
    }

    /// Returns the number of resumes over a new connection.
    pub(super) fn resumes(&self) -> u32 {
        match self {
            Arriving::Delivered(answer) => answer.resumes(),
            Arriving::Plain(_) | Arriving::InProcess(_) => 0,
        }
    }

    /// Returns the engine's own count; servers report theirs in the answer.
    pub(super) fn usage(&self) -> Option<Usage> {
        let Arriving::InProcess(active) = self else { return None };
        let counted = active.usage();
        Some(Usage {
            prompt_tokens: counted.prompt_tokens,
            completion_tokens: counted.completion_tokens,
        })
    }

    /// Tells the server to stop generating.
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
    reasoning: String,
    has_calls: bool,
    first_at: Option<Instant>,
    last_at: Option<Instant>,
    /// Time at which the text after the reasoning began.
    said_at: Option<Instant>,
    usage: Option<Usage>,
    finish_reason: Option<String>,
}

impl PartialAnswer {
    /// Reads the answer to its end, passes its parts to `show`, and returns the finish reason.
    ///
    /// # Errors
    /// [`AskError::CutOff`] if the stream breaks or ends without a finish reason,
    /// [`AskError::Screen`] if `show` fails.
    pub(super) async fn read(
        &mut self,
        stream: &mut Arriving,
        show: &mut impl FnMut(AnswerPart<'_>) -> io::Result<()>,
    ) -> Result<String, AskError> {
        while let Some((at, deltas)) =
            with_ticks(stream.next(), show).await?.map_err(AskError::CutOff)?
        {
            for delta in deltas {
                self.take(at, delta, show)?;
            }
        }
        // `[DONE]` alone is no finish: some servers send it after an abort.
        self.finish_reason.clone().ok_or(AskError::CutOff(ClientError::Truncated))
    }

    fn take(
        &mut self,
        at: Instant,
        delta: Delta,
        show: &mut impl FnMut(AnswerPart<'_>) -> io::Result<()>,
    ) -> Result<(), AskError> {
        match delta {
            Delta::Reasoning { text, .. } if !text.is_empty() => {
                self.note_time(at, false);
                self.reasoning += &text;
                show(AnswerPart::Reasoning(&text))?;
            }
            Delta::Text { text, .. } => self.take_text(at, &text, show)?,
            Delta::ToolCall { index, name, arguments, .. } => {
                self.note_time(at, true);
                self.has_calls = true;
                show(AnswerPart::Call { index, name: &name, arguments: &arguments })?;
                let shown = shown_call(&name, arguments);
                // An answer that begins with a tool call needs no line end before it.
                let is_first = self.text.is_empty();
                self.text += if is_first { shown.trim_start_matches('\n') } else { &shown };
            }
            Delta::Finish { reason, .. } => self.finish_reason = Some(reason),
            Delta::Usage { prompt, completion, .. } => {
                self.usage = Some(Usage { prompt_tokens: prompt, completion_tokens: completion });
            }
            Delta::Progress(progress) => show(AnswerPart::Progress(progress))?,
            Delta::Error { message, .. } => {
                return Err(AskError::CutOff(ClientError::Stream(message)));
            }
            _ => {}
        }
        Ok(())
    }

    fn take_text(
        &mut self,
        at: Instant,
        text: &str,
        show: &mut impl FnMut(AnswerPart<'_>) -> io::Result<()>,
    ) -> Result<(), AskError> {
        // Behind their reasoning models leave blank lines.
        let text = if self.text.is_empty() { text.trim_start_matches('\n') } else { text };
        if !text.is_empty() {
            self.note_time(at, true);
            self.text += text;
            show(AnswerPart::Text(text))?;
        }
        Ok(())
    }

    /// Records the arrival of text. Only text counts: a first chunk often carries nothing but the
    /// role.
    fn note_time(&mut self, at: Instant, is_said: bool) {
        self.first_at.get_or_insert(at);
        self.last_at = Some(at);
        if is_said {
            self.said_at.get_or_insert(at);
        }
    }

    /// Returns the answer, complete or not, with its measurements.
    pub(super) fn into_answer(self, ending: AnswerEnd, asked_at: Instant) -> TimedAnswer {
        let streamed = match (self.first_at, self.last_at) {
            (Some(first), Some(last)) => last - first,
            _ => Duration::ZERO,
        };
        let thought = (!self.reasoning.is_empty()).then_some(self.first_at).flatten();
        let thought_until = self.said_at.or(self.last_at);
        TimedAnswer {
            text: self.text,
            reasoning: self.reasoning,
            has_calls: self.has_calls,
            ending,
            ttft: self.first_at.map(|first| first - asked_at),
            thought: thought.zip(thought_until).map(|(from, until)| until - from),
            streamed,
            usage: self.usage,
            transport: None,
            resumes: 0,
        }
    }
}
