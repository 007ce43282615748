//! The two clients of the terminal's columns: one reads server-sent events, the other Loquent's
//! delivery.

use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use http::Method;
use loquent_client::openai::{self, Generate, Prompt};
use loquent_client::{Asked, Client, Config, Request, Transport};
use loquent_openai::BaseUrl;
use loquent_openai::http::{ConnectionOptions, HttpClient};
use loquent_proto::Delta;
use tokio::sync::mpsc;

use super::super::network::door;
use super::super::news::DemoLane;

/// Time limit for QUIC to connect: over a calm link, so that only a firewall can prevent it.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Time limit for telling the server that its client is gone.
const CLOSE_LIMIT: Duration = Duration::from_millis(300);

/// An event in a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LaneEvent {
    /// More text of the answer.
    Text(String),
    /// The answer is complete.
    Complete,
    /// The answer failed, for this reason.
    Failed(String),
}

/// A column, the time of its event, and the event.
pub type TimedEvent = (DemoLane, Instant, LaneEvent);

/// A connected client, so that its question does not include the connection setup.
pub enum LaneClient {
    /// Server-sent events over TCP.
    Tcp(Box<HttpClient>),
    /// Datagrams over QUIC.
    Loquent(Box<Client>),
}

impl LaneClient {
    /// Connects through the door of `lane` to the server on `port`.
    ///
    /// # Errors
    /// If the server cannot be reached.
    pub async fn connect(lane: DemoLane, port: u16) -> anyhow::Result<Self> {
        let url = format!("http://{}", door(lane, port));
        if lane == DemoLane::Tcp {
            let client = HttpClient::new(BaseUrl::parse(&url)?, None)?;
            // The connection is kept for the question.
            openai::models(&client).await?;
            return Ok(Self::Tcp(Box::new(client)));
        }
        let client = Client::new(Config { head_start: CONNECT_LIMIT, ..Config::new(url) })?;
        ensure!(client.warm_up().await == Transport::Quic, "QUIC does not get through");
        Ok(Self::Loquent(Box::new(client)))
    }

    /// Asks the question, and sends all events up to the answer's end to `events`.
    pub async fn ask(self, question: Generate, events: mpsc::Sender<TimedEvent>) {
        let lane = match &self {
            Self::Tcp(_) => DemoLane::Tcp,
            Self::Loquent(_) => DemoLane::Loquent,
        };
        let end = match self.read(lane, &question, &events).await {
            Ok(()) => LaneEvent::Complete,
            Err(error) => LaneEvent::Failed(format!("{error:#}")),
        };
        // Whoever watched may be gone.
        let _ = events.send((lane, Instant::now(), end)).await;
        if let Self::Loquent(client) = self {
            client.close(CLOSE_LIMIT).await;
        }
    }

    async fn read(
        &self,
        lane: DemoLane,
        question: &Generate,
        events: &mpsc::Sender<TimedEvent>,
    ) -> anyhow::Result<()> {
        let tell = async |text: String| {
            if !text.is_empty() {
                let _ = events.send((lane, Instant::now(), LaneEvent::Text(text))).await;
            }
        };
        match self {
            Self::Tcp(client) => {
                let options = ConnectionOptions::default();
                let mut answer = openai::generate(client, question, options).await?;
                while let Some(arrival) = answer.next().await? {
                    tell(arrival.delta.text).await;
                }
            }
            Self::Loquent(client) => {
                let body = question.body().to_string();
                let request = Request::new(Method::POST, question.path(), body);
                let mut answer = match client.ask(&request).await? {
                    Asked::Answer(answer) => answer,
                    Asked::Reply(reply) => bail!("{}", reply.into_refusal().await),
                };
                while let Some(step) = answer.next().await? {
                    for delta in step.into_deltas()? {
                        if let Delta::Text { text, .. } | Delta::Reasoning { text, .. } = delta {
                            tell(text).await;
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

/// Returns the question for both columns, with temperature 0 so that the answers are the same.
pub fn question(model: &str, text: &str, max_tokens: u32) -> Generate {
    Generate {
        model: model.to_owned(),
        prompt: Prompt::Chat(text.to_owned()),
        max_tokens,
        temperature: Some(0.0),
        seed: Some(0),
        ignore_eos: false,
        stream_interval: None,
        include_timings: false,
        extra: serde_json::Map::new(),
    }
}
