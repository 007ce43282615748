//! Plays bursts against a server: connects, sends all requests at once, then reads the answers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use futures_util::future::join_all;
use http::Method;
use loquent_client::{Asked, Client, Config, Request, Transport};
use loquent_openai::BaseUrl;
use loquent_openai::http::HttpClient;
use loquent_proto::Delta;
use loquent_sim::burst::{BurstReader, ReaderOutcome};
use loquent_sim::qoe::{Expectation, ReaderQoe};
use serde::Serialize;
use serde_json::json;
use tokio::sync::Barrier;

use crate::http_target::HttpTarget;
use crate::target::Target;

/// Text whose tokens make up the prompts.
const TEXT: &str = "A crowd of readers came at once, each with a question of their own: ";
/// Time limit of a burst, in addition to its readers' reading time.
const PATIENCE: Duration = Duration::from_secs(120);

/// Bursts to play.
#[derive(Debug, Clone)]
pub struct BurstRun {
    /// URL of the server.
    pub url: String,
    /// API key of all requests.
    pub api_key: Option<String>,
    /// Model name; the server's first if absent.
    pub model: Option<String>,
    /// Tokens of a prompt.
    pub prompt_tokens: usize,
    /// Tokens of an answer.
    pub answer_tokens: u32,
    /// Time in which a reader reads one token.
    pub token_time: Duration,
    /// Maximum time to first token of a content reader.
    pub ttft_limit: Duration,
}

impl BurstRun {
    /// Returns the expectation of a reader, for its quality of experience.
    fn expectation(&self) -> Expectation {
        let tokens_per_s = 1.0 / self.token_time.as_secs_f64();
        Expectation { ttft_s: self.ttft_limit.as_secs_f64(), tokens_per_s }
    }
}

/// Outcome of a burst.
#[derive(Debug, Default, Serialize)]
pub struct PlayedBurst {
    /// Number of requests.
    pub asked: usize,
    /// Outcomes of the readers who got their whole answers.
    pub readers: Vec<ReaderOutcome>,
    /// Experience of the same readers, in the terms of the literature.
    pub experience: Vec<ReaderQoe>,
    /// Failure messages of the others.
    pub failures: Vec<String>,
}

/// A run whose server has been queried.
pub struct PreparedRun {
    run: BurstRun,
    model: String,
    /// Tokens that make up the prompts.
    tokens: Vec<u32>,
}

/// Queries the server for the model name and tokens that the requests need.
///
/// # Errors
/// If the server cannot be reached, has no model, or does not tokenize.
pub async fn prepare(run: BurstRun) -> anyhow::Result<PreparedRun> {
    let base = BaseUrl::parse(&run.url)?;
    let client = HttpClient::new(base, run.api_key.as_deref())?;
    let target = HttpTarget::new(run.url.clone(), client);
    let model = match &run.model {
        Some(model) => model.clone(),
        None => {
            let models = target.models().await.map_err(|failure| anyhow::anyhow!(failure.message));
            models?.into_iter().next().context("the server has no model")?
        }
    };
    let tokens = target.tokenize(&model, TEXT, false).await;
    let tokens = tokens.map_err(|failure| anyhow::anyhow!("tokenizing: {}", failure.message))?;
    if tokens.is_empty() {
        bail!("the server tokenizes a sentence to nothing");
    }
    Ok(PreparedRun { run, model, tokens })
}

impl PreparedRun {
    /// Plays a burst of `readers`.
    ///
    /// # Errors
    /// If QUIC does not get through: over TCP the server has no information about readers.
    pub async fn play(&self, readers: usize) -> anyhow::Result<PlayedBurst> {
        let clients = join_all((0..readers).map(|_| self.connect())).await;
        let clients: Vec<Client> = clients.into_iter().collect::<anyhow::Result<_>>()?;
        // All set out together, once each is on its way.
        let start = Arc::new(Barrier::new(readers));
        let read = clients.iter().enumerate().map(|(number, client)| {
            let (client, request) = (client.clone(), self.request(number));
            let (start, run) = (start.clone(), self.run.clone());
            let answer = async move {
                start.wait().await;
                read_answer(&client, &request, &run).await
            };
            tokio::spawn(tokio::time::timeout(self.limit(), answer))
        });
        let mut played = PlayedBurst { asked: readers, ..PlayedBurst::default() };
        for outcome in join_all(read).await {
            match outcome? {
                Ok(Ok((outcome, experience))) => {
                    played.readers.push(outcome);
                    played.experience.push(experience);
                }
                Ok(Err(error)) => played.failures.push(format!("{error:#}")),
                Err(_) => played.failures.push("not over in time".into()),
            }
        }
        join_all(clients.iter().map(|client| client.close(Duration::from_secs(1)))).await;
        Ok(played)
    }

    async fn connect(&self) -> anyhow::Result<Client> {
        let mut config = Config::new(&self.run.url);
        config.api_key = self.run.api_key.clone();
        // Many connect at once.
        config.head_start = Duration::from_secs(20);
        let client = Client::new(config)?;
        match client.warm_up().await {
            Transport::Quic => Ok(client),
            Transport::Http => {
                bail!(
                    "{}: QUIC does not get through, and over TCP readers are not known to the \
                       server; see loquent doctor",
                    self.run.url
                )
            }
        }
    }

    /// Creates a request whose prompt differs from all others from its first token on, so that no
    /// prefix is shared.
    fn request(&self, number: usize) -> Request {
        let of = |at: usize| self.tokens[at % self.tokens.len()];
        // The number in digits of the base of as many tokens as there are.
        let base = self.tokens.len();
        let own = [number % base, number / base % base, number / base / base % base].map(of);
        let prompt: Vec<u32> =
            own.into_iter().chain((0..).map(of)).take(self.run.prompt_tokens).collect();
        let body = json!({
            "model": self.model,
            "prompt": prompt,
            "max_tokens": self.run.answer_tokens,
            "ignore_eos": true,
            "temperature": 0.0,
            "stream": true,
        });
        Request::new(Method::POST, "/v1/completions", body.to_string())
    }

    fn limit(&self) -> Duration {
        self.run.ttft_limit + self.run.token_time * self.run.answer_tokens + PATIENCE
    }
}

/// Sends the request and reads the answer to its end; returns the outcome and the experience of the
/// reader.
async fn read_answer(
    client: &Client,
    request: &Request,
    run: &BurstRun,
) -> anyhow::Result<(ReaderOutcome, ReaderQoe)> {
    let asked = Instant::now();
    let mut answer = match client.ask(request).await? {
        Asked::Answer(answer) => answer,
        Asked::Reply(reply) => bail!("the server answered with status {}", reply.status),
    };
    let mut reader = BurstReader::new(run.token_time);
    let mut arrivals_s = Vec::new();
    // Nothing is held back here: a token counts from when it could be read.
    while let Some(step) = answer.next().await? {
        for delta in step.into_deltas()? {
            if delta.tokens() > 0 {
                let at = asked.elapsed();
                reader.take(at, delta.tokens());
                arrivals_s.extend((0..delta.tokens()).map(|_| at.as_secs_f64()));
            }
            if let Delta::Error { message, .. } = delta {
                bail!(message);
            }
        }
    }
    let (came, transport) = (reader.tokens(), answer.transport());
    // A chunk that came over HTTP counts as one token, whatever it holds.
    ensure!(
        came >= run.answer_tokens,
        "only {came} of {} tokens, over {transport:?} at the end, after {} resumes",
        run.answer_tokens,
        answer.resumes()
    );
    let experience = run.expectation().experience(&arrivals_s, run.answer_tokens as usize);
    Ok((reader.outcome(Duration::ZERO), experience))
}
