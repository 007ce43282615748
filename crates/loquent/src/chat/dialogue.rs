//! A conversation with a model: its messages, and one question at a time.

use std::future::Future;
use std::io;

use loquent_client::Transport;
use loquent_client::openai::{Generate, Prompt, Usage};
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
    last: LastQuestion,
    /// Turn that returns if the next question leaves none.
    forgotten: Option<(String, String)>,
    /// Files to send with the next question.
    attached: Vec<AttachedFile>,
}

/// The last question, and what has come of its answer.
#[derive(Default)]
struct LastQuestion {
    /// Number of turns before it.
    turns_before: usize,
    text: String,
    reasoning: String,
    /// The question, if its answer was cut off.
    cut_off: Option<String>,
}

/// The end of an answer, and how it came.
struct ReceivedAnswer {
    ending: AnswerEnd,
    transport: Option<Transport>,
    resumes: u32,
    /// The engine's own count.
    usage: Option<Usage>,
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
            last: LastQuestion::default(),
            forgotten: None,
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

    /// Removes all messages and attached files. The settings stay.
    pub fn reset(&mut self) {
        self.turns.clear();
        self.attached.clear();
        self.last = LastQuestion::default();
    }

    /// Removes the turn of the last question, if it has left one, until the next question is asked.
    /// If that one leaves no turn, this turn returns.
    pub fn forget(&mut self) {
        if self.turns.len() > self.last.turns_before {
            self.forgotten = self.turns.pop();
        }
    }

    /// Returns the text of the last answer, complete or not.
    pub(super) fn last_text(&self) -> Option<&str> {
        let of_turn = || self.turns.last().map(|(_, answered)| answered.as_str());
        Some(self.last.text.as_str()).filter(|text| !text.is_empty()).or_else(of_turn)
    }

    /// Returns the reasoning of the last answer, complete or not.
    pub(super) fn last_reasoning(&self) -> &str {
        &self.last.reasoning
    }

    /// Returns the last question and the text of its answer, if that was cut off.
    pub(super) fn cut_off(&self) -> Option<(&str, &str)> {
        let asked = self.last.cut_off.as_deref().filter(|_| !self.last.text.is_empty())?;
        Some((asked, self.last.text.as_str()))
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
        let mut arrived = PartialAnswer::default();
        let received = self.receive(&question, stop, show, &mut arrived).await;
        let arrived = arrived.into_answer(AnswerEnd::Stopped, asked_at);
        self.last = LastQuestion {
            turns_before: self.turns.len(),
            text: arrived.text.clone(),
            reasoning: arrived.reasoning.clone(),
            cut_off: received.is_err().then(|| prompt.to_owned()),
        };
        let forgotten = self.forgotten.take();
        // A turn without an answer would make two user messages in a row, which strict chat
        // templates refuse.
        match received.is_ok() && !arrived.text.is_empty() {
            true => self.turns.push((prompt.to_owned(), arrived.text.clone())),
            false => self.turns.extend(forgotten),
        }
        let ReceivedAnswer { ending, transport, resumes, usage } = received?;
        let usage = arrived.usage.or(usage);
        Ok(TimedAnswer { ending, transport, resumes, usage, ..arrived })
    }

    /// Receives the answer to `question` into `arrived`.
    async fn receive(
        &self,
        question: &Generate,
        stop: impl Future<Output = ()>,
        show: &mut impl FnMut(AnswerPart<'_>) -> io::Result<()>,
        arrived: &mut PartialAnswer,
    ) -> Result<ReceivedAnswer, AskError> {
        let mut stop = std::pin::pin!(stop);
        let begun = tokio::select! {
            // Ctrl-C first: an answer that is always ready must not starve it.
            biased;
            () = &mut stop => None,
            begun = with_ticks(self.partner.ask(question), show) => Some(begun??),
        };
        let ending = AnswerEnd::Stopped;
        let mut received = ReceivedAnswer { ending, transport: None, resumes: 0, usage: None };
        let Some(mut arriving) = begun else { return Ok(received) };
        let finished = tokio::select! {
            biased;
            () = &mut stop => None,
            finished = arrived.read(&mut arriving, show) => Some(finished?),
        };
        (received.transport, received.resumes) = (arriving.transport(), arriving.resumes());
        received.usage = arriving.usage();
        match finished {
            Some(reason) => received.ending = AnswerEnd::Finished(reason),
            None => arriving.cancel().await,
        }
        Ok(received)
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
