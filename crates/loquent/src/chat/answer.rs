//! The outcome of a question: the answer with its speed, or the reason for its failure.

use std::io;
use std::time::Duration;

use loquent_client::openai::Usage;
use loquent_client::{ClientError, Transport};

/// Reason why a question has no complete answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The server cannot be reached, or refused the question.
    #[error(transparent)]
    Refused(ClientError),
    /// The engine of this process refused the question.
    #[error("{0}")]
    Declined(String),
    /// The answer ended without a finish reason, so the text on the screen is incomplete.
    #[error("the answer was cut off: {0}")]
    CutOff(ClientError),
    /// The answer cannot be written to the screen.
    #[error("cannot write the answer")]
    Screen(#[from] io::Error),
}

/// The user has stopped the answer to a single question.
#[derive(Debug, thiserror::Error)]
#[error("the answer was stopped")]
pub struct StoppedError;

/// End of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnswerEnd {
    /// The server sent its finish reason, such as `stop` or `length`.
    Finished(String),
    /// The user stopped it with Ctrl-C.
    Stopped,
}

/// An answer with its measurements.
#[derive(Debug, Clone, PartialEq)]
pub struct TimedAnswer {
    /// The text, tool calls included.
    pub text: String,
    /// The model's reasoning before the answer.
    pub reasoning: String,
    /// True if the model called a tool.
    pub has_calls: bool,
    /// Reason for the answer's end.
    pub ending: AnswerEnd,
    /// Time to first token, measured from sending the question to the first text.
    pub ttft: Option<Duration>,
    /// Duration of the model's reasoning, if any.
    pub thought: Option<Duration>,
    /// Time from the first text to the last.
    pub streamed: Duration,
    /// The server's token count, if it sent one.
    pub usage: Option<Usage>,
    /// Transport in use at the end, if the server has the delivery protocol.
    pub transport: Option<Transport>,
    /// Number of resumes over a new connection.
    pub resumes: u32,
}

impl TimedAnswer {
    /// Returns one line on the answer's speed. It contains only measured figures, no estimates.
    pub fn summary(&self) -> String {
        let mut parts = Vec::new();
        if let Some(usage) = self.usage {
            parts.push(format!("{} tokens", usage.completion_tokens));
            if let Some(rate) = self.tokens_per_second() {
                parts.push(format!("{rate:.1} tokens/s"));
            }
        }
        if let Some(ttft) = self.ttft {
            parts.push(format!("first after {:.0} ms", ttft.as_secs_f64() * 1e3));
        }
        parts.extend(self.transport.map(|way| format!("over {}", way.name().to_uppercase())));
        match self.resumes {
            0 => {}
            1 => parts.push("resumed once".to_owned()),
            times => parts.push(format!("resumed {times} times")),
        }
        match &self.ending {
            AnswerEnd::Stopped => parts.push("stopped".to_owned()),
            AnswerEnd::Finished(reason) if reason == "length" => {
                parts.push("cut at the token limit".to_owned());
            }
            AnswerEnd::Finished(_) => {}
        }
        parts.join(", ")
    }

    /// Returns the tokens per second from the first to the last text, if the server counted the
    /// tokens.
    pub fn tokens_per_second(&self) -> Option<f64> {
        // The first token belongs to the time to first token, so it is not counted here.
        let later = self.usage?.completion_tokens.checked_sub(1).filter(|later| *later > 0)?;
        let seconds = self.streamed.as_secs_f64();
        (seconds > 0.0).then(|| later as f64 / seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_has_only_what_was_counted() {
        let mut answer = TimedAnswer {
            text: "x".into(),
            reasoning: String::new(),
            has_calls: false,
            thought: None,
            ending: AnswerEnd::Finished("stop".into()),
            ttft: Some(Duration::from_millis(85)),
            streamed: Duration::from_secs(2),
            usage: Some(Usage { prompt_tokens: 3, completion_tokens: 41 }),
            transport: None,
            resumes: 0,
        };
        assert_eq!(answer.summary(), "41 tokens, 20.0 tokens/s, first after 85 ms");
        answer.usage = None;
        answer.ending = AnswerEnd::Stopped;
        assert_eq!(answer.summary(), "first after 85 ms, stopped");
        (answer.transport, answer.resumes) = (Some(Transport::Quic), 2);
        assert_eq!(answer.summary(), "first after 85 ms, over QUIC, resumed 2 times, stopped");
    }
}
