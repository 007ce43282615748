//! A conversation with a model: what was said, and one question at a time.

use std::future::Future;
use std::io;
use std::time::Duration;

use http::Method;
use loquent_client::openai::{AnswerStream, Generate, Prompt, Usage};
use loquent_client::{Asked, Client, ClientError, Request, Transport};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::arriving::{Arrived, Arriving};

/// Why a question has no complete answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The server cannot be reached or refuses.
    #[error(transparent)]
    Refused(ClientError),
    /// The answer began and ended without its finish; what was shown is not all of it.
    #[error("the answer was cut off: {0}")]
    CutOff(ClientError),
    /// The answer cannot be shown.
    #[error("cannot write the answer: {0}")]
    Screen(#[from] io::Error),
}

/// How an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// The server's finish reason came.
    Finished(String),
    /// The user stopped it.
    Stopped,
}

/// An answer and how fast it came.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// All of its text.
    pub text: String,
    /// How it ended.
    pub ending: Ending,
    /// Time to first token: from sending the question to the first text.
    pub ttft: Option<Duration>,
    /// From the first text to the last.
    pub streamed: Duration,
    /// The server's own token count; none if it sent none.
    pub usage: Option<Usage>,
    /// How it came at its end, from a server that speaks the delivery protocol.
    pub transport: Option<Transport>,
    /// How often it went on over a new path.
    pub resumes: u32,
}

impl Answer {
    /// One line on its speed, in figures that were counted and not inferred.
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
        parts.extend(self.transport.map(|way| format!("by {}", way.name().to_uppercase())));
        match self.resumes {
            0 => {}
            1 => parts.push("resumed once".to_owned()),
            times => parts.push(format!("resumed {times} times")),
        }
        match &self.ending {
            Ending::Stopped => parts.push("stopped".to_owned()),
            Ending::Finished(reason) if reason == "length" => {
                parts.push("ended by the token limit".to_owned());
            }
            Ending::Finished(_) => {}
        }
        parts.join(", ")
    }

    /// Tokens after the first per second of streaming, where the server counted them.
    pub fn tokens_per_second(&self) -> Option<f64> {
        let later = self.usage?.completion_tokens.checked_sub(1).filter(|later| *later > 0)?;
        let seconds = self.streamed.as_secs_f64();
        (seconds > 0.0).then(|| later as f64 / seconds)
    }
}

/// A conversation. The settings may be changed between questions.
pub struct Dialogue {
    client: Client,
    /// Model name sent with each question.
    pub model: String,
    /// System message before all others.
    pub system: Option<String>,
    /// Sampling temperature; the server's default if none.
    pub temperature: Option<f64>,
    /// Most tokens of an answer; the server's default if none.
    pub max_tokens: Option<u32>,
    /// Questions with their answers.
    turns: Vec<(String, String)>,
}

impl Dialogue {
    /// An empty conversation.
    pub fn new(client: Client, model: String) -> Dialogue {
        let turns = Vec::new();
        Dialogue { client, model, system: None, temperature: None, max_tokens: None, turns }
    }

    /// Forgets what was said; the settings stay.
    pub fn reset(&mut self) {
        self.turns.clear();
    }

    /// Forgets the last turn if it is this question's, which may have got no answer.
    pub fn forget(&mut self, prompt: &str) {
        self.turns.pop_if(|(asked, _)| asked == prompt);
    }

    /// Asks, passes each piece of the answer to `show`, and ends early when `stop` is ready.
    /// A stopped answer stays in the conversation as far as it came; a failed one does not.
    ///
    /// # Errors
    /// See [`AskError`]. An answer without a finish reason is cut off, however cleanly the
    /// connection ended.
    pub async fn ask(
        &mut self,
        prompt: &str,
        stop: impl Future<Output = ()>,
        show: &mut impl FnMut(&str) -> io::Result<()>,
    ) -> Result<Answer, AskError> {
        let asked_at = Instant::now();
        let mut stop = std::pin::pin!(stop);
        let mut arrived = Arrived::default();
        let begun = tokio::select! {
            biased;
            () = &mut stop => None,
            begun = self.begin(prompt) => Some(begun?),
        };
        let (mut ending, mut transport, mut resumes) = (Ending::Stopped, None, 0);
        if let Some(mut arriving) = begun {
            let finished = tokio::select! {
                biased;
                () = &mut stop => None,
                finished = arrived.read(&mut arriving, show) => Some(finished?),
            };
            (transport, resumes) = (arriving.transport(), arriving.resumes());
            match finished {
                Some(reason) => ending = Ending::Finished(reason),
                None => arriving.cancel().await,
            }
        }
        let answer = Answer { transport, resumes, ..arrived.into_answer(ending, asked_at) };
        if !answer.text.is_empty() {
            self.turns.push((prompt.to_owned(), answer.text.clone()));
        }
        Ok(answer)
    }

    /// Sends the question.
    async fn begin(&self, prompt: &str) -> Result<Arriving, AskError> {
        let generate = self.request(prompt);
        let body = generate.body().to_string();
        let request = Request::new(Method::POST, generate.path(), body);
        match self.client.ask(&request).await.map_err(AskError::Refused)? {
            Asked::Answer(answer) => Ok(Arriving::Delivered(answer)),
            Asked::Reply(reply) if reply.status != 200 => {
                Err(AskError::Refused(reply.into_refusal().await))
            }
            Asked::Reply(reply) => {
                let wrong = || ClientError::Malformed("no event stream".into());
                let response = reply.into_http().ok_or_else(|| AskError::Refused(wrong()))?;
                Ok(Arriving::Plain(Box::new(AnswerStream::new(response))))
            }
        }
    }

    fn request(&self, prompt: &str) -> Generate {
        let message = |role: &str, text: &str| json!({ "role": role, "content": text });
        let mut messages: Vec<Value> = Vec::new();
        messages.extend(self.system.as_deref().map(|text| message("system", text)));
        for (asked, answered) in &self.turns {
            messages.extend([message("user", asked), message("assistant", answered)]);
        }
        messages.push(message("user", prompt));
        let mut extra = Map::new();
        extra.insert("messages".to_owned(), messages.into());
        if self.max_tokens.is_none() {
            // Explicitly the server's default.
            extra.insert("max_tokens".to_owned(), Value::Null);
        }
        Generate {
            model: self.model.clone(),
            prompt: Prompt::Chat(String::new()),
            max_tokens: self.max_tokens.unwrap_or(0),
            temperature: self.temperature,
            seed: None,
            ignore_eos: false,
            stream_interval: None,
            include_timings: false,
            extra,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_has_only_what_was_counted() {
        let mut answer = Answer {
            text: "x".into(),
            ending: Ending::Finished("stop".into()),
            ttft: Some(Duration::from_millis(85)),
            streamed: Duration::from_secs(2),
            usage: Some(Usage { prompt_tokens: 3, completion_tokens: 41 }),
            transport: None,
            resumes: 0,
        };
        assert_eq!(answer.summary(), "41 tokens, 20.0 tokens/s, first after 85 ms");
        answer.usage = None;
        answer.ending = Ending::Stopped;
        assert_eq!(answer.summary(), "first after 85 ms, stopped");
        (answer.transport, answer.resumes) = (Some(Transport::Quic), 2);
        assert_eq!(answer.summary(), "first after 85 ms, by QUIC, resumed 2 times, stopped");
    }
}
