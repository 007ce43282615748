//! A conversation with a model: its messages, and one question at a time.

use std::future::Future;
use std::io;

use http::Method;
use loquent_client::openai::{AnswerStream, Generate, Prompt};
use loquent_client::{Asked, Client, ClientError, Request};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::answer::{AnswerEnd, AskError, TimedAnswer};
use super::arriving::{Arriving, PartialAnswer};

/// A conversation. The settings may be changed between questions.
pub struct Dialogue {
    client: Client,
    /// Name of the model, sent with each question.
    pub model: String,
    /// System message before all others.
    pub system: Option<String>,
    /// Sampling temperature; `None` leaves it to the server.
    pub temperature: Option<f64>,
    /// Maximum number of tokens of an answer; `None` leaves it to the server.
    pub max_tokens: Option<u32>,
    /// The questions so far, each with its answer.
    turns: Vec<(String, String)>,
}

impl Dialogue {
    /// A conversation without messages.
    pub fn new(client: Client, model: String) -> Dialogue {
        let turns = Vec::new();
        Dialogue { client, model, system: None, temperature: None, max_tokens: None, turns }
    }

    /// Removes all messages. The settings stay.
    pub fn reset(&mut self) {
        self.turns.clear();
    }

    /// Removes the last turn if its question is `prompt`; a failed question has left no turn.
    pub fn forget(&mut self, prompt: &str) {
        self.turns.pop_if(|(asked, _)| asked == prompt);
    }

    /// Sends a question, passes the answer's text to `show` as it arrives, and ends early when
    /// `stop` is ready. The text of a stopped answer stays in the conversation; a failed question
    /// and its answer do not.
    ///
    /// # Errors
    /// See [`AskError`]. An answer without a finish reason counts as cut off even if the connection
    /// ended cleanly.
    pub async fn ask(
        &mut self,
        prompt: &str,
        stop: impl Future<Output = ()>,
        show: &mut impl FnMut(&str) -> io::Result<()>,
    ) -> Result<TimedAnswer, AskError> {
        let asked_at = Instant::now();
        let mut stop = std::pin::pin!(stop);
        let mut arrived = PartialAnswer::default();
        let begun = tokio::select! {
            // Ctrl-C first: an answer that is always ready must not starve it.
            biased;
            () = &mut stop => None,
            begun = self.begin(prompt) => Some(begun?),
        };
        let (mut ending, mut transport, mut resumes) = (AnswerEnd::Stopped, None, 0);
        if let Some(mut arriving) = begun {
            let finished = tokio::select! {
                biased;
                () = &mut stop => None,
                finished = arrived.read(&mut arriving, show) => Some(finished?),
            };
            (transport, resumes) = (arriving.transport(), arriving.resumes());
            match finished {
                Some(reason) => ending = AnswerEnd::Finished(reason),
                None => arriving.cancel().await,
            }
        }
        let answer = TimedAnswer { transport, resumes, ..arrived.into_answer(ending, asked_at) };
        // A turn without an answer would make two user messages in a row, which strict chat
        // templates refuse.
        if !answer.text.is_empty() {
            self.turns.push((prompt.to_owned(), answer.text.clone()));
        }
        Ok(answer)
    }

    /// Sends the question and waits for the beginning of the answer.
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
            // Null asks for the server's default; `Generate` alone would send the 0 below.
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
