//! A conversation with a model: its messages, and one question at a time.

use std::future::Future;
use std::io;

use loquent_client::openai::{Generate, Prompt};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::answer::{AnswerEnd, AskError, TimedAnswer};
use super::arriving::{AnswerPart, PartialAnswer, with_ticks};
use super::files::{self, AttachedFile};
use super::parameters::QuestionParameters;
use super::partner::Partner;

/// A conversation. The settings may be changed between questions.
pub struct Dialogue {
    partner: Partner,
    /// Name of the model, sent with each question.
    pub model: String,
    /// System message before all others.
    pub system: Option<String>,
    /// Parameters of the questions.
    pub(super) parameters: QuestionParameters,
    /// Questions so far, each with its answer.
    turns: Vec<(String, String)>,
    /// Files to send with the next question.
    attached: Vec<AttachedFile>,
}

impl Dialogue {
    /// Creates a conversation without messages.
    pub fn new(partner: impl Into<Partner>, model: String) -> Dialogue {
        Dialogue {
            partner: partner.into(),
            model,
            system: None,
            parameters: QuestionParameters::default(),
            turns: Vec::new(),
            attached: Vec::new(),
        }
    }

    /// Returns the partner who answers.
    pub fn partner(&self) -> &Partner {
        &self.partner
    }

    /// Returns the questions so far, each with its answer.
    pub fn turns(&self) -> &[(String, String)] {
        &self.turns
    }

    /// Attaches a file to the next question.
    pub(super) fn attach(&mut self, file: AttachedFile) {
        self.attached.push(file);
    }

    /// Returns the files attached to the next question, on one line; empty without any.
    pub(super) fn attached_summary(&self) -> String {
        let files: Vec<_> = self.attached.iter().map(AttachedFile::summary).collect();
        files.join(", ")
    }

    /// Returns the question with its attached files.
    pub(super) fn with_attached(&mut self, question: &str) -> String {
        files::with_files(&std::mem::take(&mut self.attached), question)
    }

    /// Removes all messages. The settings stay.
    pub fn reset(&mut self) {
        self.turns.clear();
    }

    /// Removes the last turn if its question is `prompt`. A failed question has left no turn.
    pub fn forget(&mut self, prompt: &str) {
        self.turns.pop_if(|(asked, _)| asked == prompt);
    }

    /// Sends a question, passes the answer's parts to `show` as they arrive, and ends early when
    /// `stop` resolves. The text of a stopped answer stays in the conversation; a failed question
    /// and its answer do not.
    ///
    /// # Errors
    /// See [`AskError`]. An answer without a finish reason counts as cut off even if the connection
    /// ended cleanly.
    pub async fn ask(
        &mut self,
        prompt: &str,
        stop: impl Future<Output = ()>,
        show: &mut impl FnMut(AnswerPart<'_>) -> io::Result<()>,
    ) -> Result<TimedAnswer, AskError> {
        let question = self.request(prompt);
        let asked_at = Instant::now();
        let mut stop = std::pin::pin!(stop);
        let mut arrived = PartialAnswer::default();
        let begun = tokio::select! {
            // Ctrl-C first: an answer that is always ready must not starve it.
            biased;
            () = &mut stop => None,
            begun = with_ticks(self.partner.ask(&question), show) => Some(begun??),
        };
        let mut ending = AnswerEnd::Stopped;
        let (mut transport, mut resumes, mut counted) = (None, 0, None);
        if let Some(mut arriving) = begun {
            let finished = tokio::select! {
                biased;
                () = &mut stop => None,
                finished = arrived.read(&mut arriving, show) => Some(finished?),
            };
            (transport, resumes) = (arriving.transport(), arriving.resumes());
            counted = arriving.usage();
            match finished {
                Some(reason) => ending = AnswerEnd::Finished(reason),
                None => arriving.cancel().await,
            }
        }
        let arrived = arrived.into_answer(ending, asked_at);
        let usage = arrived.usage.or(counted);
        let answer = TimedAnswer { transport, resumes, usage, ..arrived };
        // A turn without an answer would make two user messages in a row, which strict chat
        // templates refuse.
        if !answer.text.is_empty() {
            self.turns.push((prompt.to_owned(), answer.text.clone()));
        }
        Ok(answer)
    }

    /// Returns the messages so far in the API's format.
    pub fn messages(&self) -> Vec<Value> {
        let mut messages: Vec<Value> = Vec::new();
        messages.extend(self.system.as_deref().map(|text| message("system", text)));
        for (asked, answered) in &self.turns {
            messages.extend([message("user", asked), message("assistant", answered)]);
        }
        messages
    }

    fn request(&self, prompt: &str) -> Generate {
        let mut messages = self.messages();
        messages.push(message("user", prompt));
        let mut extra = self.parameters.as_map().clone();
        extra.insert("messages".to_owned(), messages.into());
        // Null asks for the server's default; `Generate` alone would send the 0 below.
        extra.entry("max_tokens").or_insert(Value::Null);
        Generate {
            model: self.model.clone(),
            prompt: Prompt::Chat(String::new()),
            max_tokens: 0,
            temperature: None,
            seed: None,
            ignore_eos: false,
            stream_interval: None,
            include_timings: false,
            extra,
        }
    }
}

fn message(role: &str, text: &str) -> Value {
    json!({ "role": role, "content": text })
}
