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
use crate::quic_connection::{QuicConnection, QuicPath};
use crate::reply::Reply;
use crate::request::Request;

/// A client of one server: it finds out whether QUIC gets through, keeps one QUIC connection
/// for everything, and uses HTTP where QUIC fails. Cheap to clone; clones share connections.
#[derive(Clone)]
pub struct Client(Connections);

impl Client {
    /// A client of the server that `config` names. Nothing is sent yet.
    ///
    /// # Errors
    /// A URL or key that cannot be used, or TLS that cannot be set up.
    pub fn new(config: Config) -> Result<Client, ClientError> {
        Connections::new(config).map(Client)
    }

    /// The HTTP client for requests that need no delivery protocol.
    pub fn http(&self) -> &HttpClient {
        self.0.http()
    }

    /// The server's URL, without a final `/v1`.
    pub fn url(&self) -> &str {
        self.0.url()
    }

    /// The configuration that the client was made with.
    pub fn config(&self) -> &Config {
        self.0.config()
    }

    /// The transport that a request would use now.
    pub fn transport(&self) -> Transport {
        self.0.transport()
    }

    /// Connects over QUIC ahead of the first request, waiting at most the head start.
    pub async fn warm_up(&self) -> Transport {
        self.0.quic().await;
        self.0.transport()
    }

    /// Where the server accepts QUIC now; `None` if it does not offer that.
    ///
    /// # Errors
    /// Why the server cannot be reached.
    pub async fn quic_offer(&self) -> Result<Option<DeliveryOffer>, ClientError> {
        self.0.offer(true).await
    }

    /// Connects over QUIC as `offer` says, apart from the connection that answers use, and closes
    /// that connection again: what the way is like, or why there is none.
    ///
    /// # Errors
    /// [`ClientError::Connect`] or [`ClientError::Tls`].
    pub async fn try_quic(&self, offer: &DeliveryOffer) -> Result<QuicPath, ClientError> {
        let connection = QuicConnection::dial(self.0.http().base().host(), offer).await?;
        Ok(connection.path())
    }

    /// Asks for an answer: a `POST` of a completion with `"stream": true`. It goes over QUIC if
    /// a connection is up within the head start; otherwise, and if that connection dies before
    /// the server has answered, over HTTP. A random key tells the server that this is the same
    /// question, so that it does the work once (S-4.9).
    ///
    /// # Errors
    /// Why the server cannot be reached. Its refusal is a [`Reply`].
    pub async fn ask(&self, request: &Request) -> Result<Asked, ClientError> {
        let repeatable = request.repeatable();
        if let Some(quic) = self.0.quic().await {
            match ask_over_quic(&self.0, &quic, &repeatable).await {
                Ok(asked) => return Ok(asked),
                Err(error) => tracing::debug!("asking over QUIC: {error}"),
            }
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

    /// Goes on with an answer from log offset `from` (S-4.7, S-5.2).
    ///
    /// # Errors
    /// [`ClientError::Gone`], or why the server cannot be reached.
    pub async fn resume(&self, handle: AnswerHandle, from: u64) -> Result<Answer, ClientError> {
        resume(&self.0, handle, from).await
    }

    /// Sends any other request: through the QUIC connection if there is one, else over HTTP.
    ///
    /// # Errors
    /// Why the server cannot be reached. If the QUIC connection dies under a request, it is sent
    /// again over HTTP only if its method is idempotent (RFC 9110 §9.2.2).
    pub async fn request(&self, request: &Request) -> Result<Reply, ClientError> {
        self.0.request(request).await
    }

    /// Moves the QUIC connection to a new local port; its answers go on. Whether that was done.
    pub fn rebind(&self) -> bool {
        self.0.rebind()
    }

    /// Waits, at most for `limit`, until the server knows of all answers that have ended or
    /// were cancelled, then closes the connection. For the end of a program.
    pub async fn close(&self, limit: Duration) {
        self.0.close(limit).await;
    }
}

/// The JSON object `body` with `"resumable": true` (S-5.1); anything else unchanged.
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
