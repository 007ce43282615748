//! The partner of a conversation: a server, or the engine of this process.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use loquent_client::openai::{self, AnswerStream, Generate};
use loquent_client::{Asked, Client, ClientError, Request};
use loquent_server::{Endpoint, Service};
use serde_json::Value;

use super::answer::AskError;
use super::arriving::Arriving;

/// Time limit for a server to tell its sampling parameters, which are only shown.
const DEFAULTS_LIMIT: Duration = Duration::from_secs(3);
/// Maximum size of a `/props` response, which contains the chat template, in bytes.
const MAX_PROPS_BYTES: usize = 1 << 20;

/// The partner who answers in a conversation.
#[derive(Clone)]
pub enum Partner {
    /// A server with the OpenAI API.
    Server(Client),
    /// The engine of this process, without a network in between.
    Engine(Arc<Service>),
}

impl From<Client> for Partner {
    fn from(client: Client) -> Self {
        Partner::Server(client)
    }
}

impl Partner {
    /// Sends a question and waits for its answer to start.
    pub(super) async fn ask(&self, question: &Generate) -> Result<Arriving, AskError> {
        match self {
            Partner::Server(client) => ask_server(client, question).await,
            Partner::Engine(service) => ask_engine(service, question).await,
        }
    }

    /// Returns the names of the available models.
    ///
    /// # Errors
    /// A failure to get the list from a server.
    pub async fn models(&self) -> Result<Vec<String>, ClientError> {
        match self {
            Partner::Server(client) => openai::models(client.http()).await,
            Partner::Engine(service) => Ok(vec![service.model().name.clone()]),
        }
    }

    /// Returns the sampling parameters of questions that leave them open, by name, as far as the
    /// partner tells them.
    pub(super) async fn sampling_defaults(&self, model: &str) -> Value {
        match self {
            Partner::Server(client) => {
                let told = tokio::time::timeout(DEFAULTS_LIMIT, defaults_of_server(client, model));
                told.await.ok().flatten().unwrap_or_default()
            }
            Partner::Engine(service) => service.model().defaults.to_json(),
        }
    }
}

/// Returns the sampling parameters in the `/props` of a server: Loquent or llama-server.
async fn defaults_of_server(client: &Client, model: &str) -> Option<Value> {
    let query =
        form_urlencoded::Serializer::new(String::new()).append_pair("model", model).finish();
    let props = client.http().get(&format!("/props?{query}"), MAX_PROPS_BYTES).await.ok()?;
    defaults_in(&props)
}

fn defaults_in(props: &[u8]) -> Option<Value> {
    let mut props: Value = serde_json::from_slice(props).ok()?;
    let mut defaults = props.pointer_mut("/default_generation_settings/params")?.take();
    // llama.cpp has a name of its own for it.
    if let Some(penalty) = defaults.get("repeat_penalty").cloned() {
        defaults["repetition_penalty"] = penalty;
    }
    Some(defaults)
}

async fn ask_server(client: &Client, question: &Generate) -> Result<Arriving, AskError> {
    let body = question.body().to_string();
    let request = Request::new(Method::POST, question.path(), body);
    match client.ask(&request).await.map_err(AskError::Refused)? {
        Asked::Answer(answer) => Ok(Arriving::Delivered(answer)),
        Asked::Reply(reply) if reply.status != 200 => {
            Err(AskError::Refused(reply.into_refusal().await))
        }
        Asked::Reply(reply) => {
            let wrong = || ClientError::Malformed("no event stream".into());
            let response = reply.into_http().ok_or_else(|| AskError::Refused(wrong()))?;
            Ok(Arriving::Plain(Box::new(AnswerStream::with_deltas(response))))
        }
    }
}

/// Asks the engine, using the same JSON as for a server, so that defaults and checks are the same.
async fn ask_engine(service: &Arc<Service>, question: &Generate) -> Result<Arriving, AskError> {
    let refused = |error: loquent_server::ApiError| AskError::Declined(error.to_string());
    let arrived = service.clock().now();
    let body = question.body().to_string();
    let request = loquent_server::Request::parse(Endpoint::Chat, body.as_bytes());
    let started = service.start(request.map_err(refused)?, arrived).await.map_err(refused)?;
    Ok(Arriving::InProcess(Box::new(started.active)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn any_props_have_defaults_or_none() {
        let read = |props: &Value| defaults_in(props.to_string().as_bytes());
        let params = json!({"top_k": 40, "repeat_penalty": 1.1});
        let known = read(&json!({"default_generation_settings": {"params": params}})).unwrap();
        assert_eq!((&known["top_k"], &known["repetition_penalty"]), (&json!(40), &json!(1.1)));
        for other in [json!(7), json!([]), json!({"default_generation_settings": 7})] {
            assert_eq!(read(&other), None, "{other}");
        }
    }
}
