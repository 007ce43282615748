//! A client of one Loquent server.

use std::time::Duration;

use bytes::Bytes;
use loquent_openai::http::HttpClient;
use loquent_proto::AnswerHandle;

use crate::ClientError;
use crate::answer::{Answer, Asked, SsePath, ask_over_quic, handle_of, resume, start_sse};
use crate::config::Config;
use crate::connections::Connections;
use crate::discovery::DeliveryOffer;
use crate::known_servers::Transport;
use crate::quic_connection::{OwnNetwork, QuicPath};
use crate::reply::Reply;
use crate::request::Request;
use crate::via::Via;

/// Status of a server that cannot take a request now.
const UNAVAILABLE: u16 = 503;

/// A client of one server. It detects whether QUIC gets through, keeps one QUIC connection for
/// everything (over each network of [`Config::via`]), and uses HTTP where QUIC fails. Cheap to
/// clone; clones share connections.
#[derive(Clone)]
pub struct Client(Connections);

impl Client {
    /// Creates a client of the server in `config`. Nothing is sent yet.
    ///
    /// # Errors
    /// A URL or key that cannot be used, too many networks, or a failure to set up TLS.
    pub fn new(config: Config) -> Result<Client, ClientError> {
        Connections::new(config).map(Client)
    }

    /// Returns the HTTP client for requests that need no delivery protocol.
    pub fn http(&self) -> &HttpClient {
        self.0.http()
    }

    /// Returns the server's URL, without a final `/v1`.
    pub fn url(&self) -> &str {
        self.0.url()
    }

    /// Returns the configuration that the client was created with.
    pub fn config(&self) -> &Config {
        self.0.config()
    }

    /// Returns the transport that a request would use now.
    pub fn transport(&self) -> Transport {
        self.0.transport()
    }

    /// Connects over QUIC ahead of the first request, waiting at most for the head start.
    pub async fn warm_up(&self) -> Transport {
        self.0.quic().await;
        self.0.transport()
    }

    /// Returns the server's current offer of QUIC, or `None` if it makes none.
    ///
    /// # Errors
    /// A failure to reach the server.
    pub async fn quic_offer(&self) -> Result<Option<DeliveryOffer>, ClientError> {
        self.0.offer(true).await
    }

    /// Opens a separate QUIC connection as `offer` describes, over the network `via` or the one
    /// that the system chooses, closes it again, and returns the properties of the path.
    ///
    /// # Errors
    /// [`ClientError::Connect`] or [`ClientError::Tls`].
    pub async fn try_quic(
        &self,
        offer: &DeliveryOffer,
        via: Option<Via>,
    ) -> Result<QuicPath, ClientError> {
        let connection = self.0.dial_offer(offer, &OwnNetwork { index: 0, via }).await?;
        Ok(connection.path())
    }

    /// Requests an answer: a `POST` of a completion with `"stream": true`. It goes over QUIC if a
    /// connection is up within the head start. Otherwise, or if that connection dies before the
    /// server has responded, it goes over the other network's connection, if there is one, and
    /// then over HTTP. A random key identifies all attempts as the same request, so that the
    /// server does the work once (S-4.9). What a server refuses with 503 over QUIC is asked once
    /// over HTTP, where a load balancer may know another one: the connection leads to the first
    /// for as long as it shuts down.
    ///
    /// # Errors
    /// A failure to reach the server. A refusal by the server is a [`Reply`].
    pub async fn ask(&self, request: &Request) -> Result<Asked, ClientError> {
        let repeatable = request.repeatable();
        let mut next = self.0.quic().await;
        for _ in 0..self.0.networks() {
            let Some(quic) = next else { break };
            match ask_over_quic(&self.0, &quic, &repeatable).await {
                Ok(Asked::Reply(refusal)) if refusal.status == UNAVAILABLE => {
                    let elsewhere = self.ask_over_http(repeatable, true).await;
                    return Ok(elsewhere.unwrap_or(Asked::Reply(refusal)));
                }
                Ok(asked) => return Ok(asked),
                Err(error) => tracing::debug!("asking over QUIC: {error}"),
            }
            next = self.0.other_than(&quic);
        }
        match self.0.offer(false).await? {
            Some(_) => self.ask_over_http(repeatable, true).await,
            None => self.ask_over_http(request.clone(), false).await,
        }
    }

    async fn ask_over_http(
        &self,
        mut request: Request,
        resumable: bool,
    ) -> Result<Asked, ClientError> {
        let body = if resumable { with_resumable(&request.body) } else { request.body.clone() };
        // This client parses the events and does not decompress them.
        request.headers.remove("accept-encoding");
        let response = self.0.send_by_http(&request, body).await?;
        match handle_of(response.headers()) {
            Some(handle) if response.status().as_u16() == 200 && resumable => {
                let headers = response.headers().clone();
                let answer = start_sse(&self.0, handle, SsePath::new(response));
                Ok(Asked::Answer(answer.with_headers(headers)))
            }
            _ => Ok(Asked::Reply(Reply::by_http(response))),
        }
    }

    /// Resumes an answer from log offset `from` (S-4.7, S-5.2).
    ///
    /// # Errors
    /// [`ClientError::Gone`], or a failure to reach the server.
    pub async fn resume(&self, handle: AnswerHandle, from: u64) -> Result<Answer, ClientError> {
        resume(&self.0, handle, from).await
    }

    /// Sends any other request: over the QUIC connection if there is one, else over HTTP.
    ///
    /// # Errors
    /// A failure to reach the server. If the QUIC connection dies during a request, the request is
    /// sent again over HTTP only if its method is idempotent (RFC 9110 §9.2.2).
    pub async fn request(&self, request: &Request) -> Result<Reply, ClientError> {
        self.0.request(request).await
    }

    /// Moves the QUIC connections to new local ports; their answers continue. Returns true if one
    /// moved.
    pub fn rebind(&self) -> bool {
        self.0.rebind()
    }

    /// Waits, at most for `limit`, until the server knows of all answers that have ended or were
    /// cancelled, then closes the connection. Meant for the end of a program.
    pub async fn close(&self, limit: Duration) {
        self.0.close(limit).await;
    }
}

/// Adds `"resumable": true` to the JSON object `body` (S-5.1); returns anything else unchanged.
fn with_resumable(body: &Bytes) -> Bytes {
    let Ok(mut object) = serde_json::from_slice::<serde_json::Map<String, _>>(body) else {
        return body.clone();
    };
    object.entry("resumable").or_insert(serde_json::Value::Bool(true));
    serde_json::Value::Object(object).to_string().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_become_resumable_unless_they_say_otherwise() {
        let with = |body: &'static str| with_resumable(&Bytes::from_static(body.as_bytes()));
        assert_eq!(with(r#"{"stream":true}"#), r#"{"stream":true,"resumable":true}"#);
        assert_eq!(with(r#"{"resumable":false}"#), r#"{"resumable":false}"#);
        assert_eq!(with("[1]"), "[1]");
    }
}
