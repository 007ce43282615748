//! The interface to the servers that the load generator sends requests to.

use futures_util::stream::BoxStream;
use loquent_client::ClientError;
use loquent_client::openai::{Arrival, Generate};
use loquent_openai::BoxFuture;
use loquent_openai::http::ConnectionOptions;
use serde::Serialize;

/// The chunks of one answer in order of arrival. The last item of a complete answer is stamped with
/// the arrival of its last byte. The stream ends after the answer's finish or after its first
/// error; dropping it abandons the request.
pub type ArrivalStream = BoxStream<'static, Result<Arrival, RequestFailure>>;

/// A server under test: over HTTP, or within this process.
pub trait Target: Send + Sync + 'static {
    /// Returns the target's name in reports.
    fn name(&self) -> &str;

    /// Returns the names of its models; the first is used if no model was given.
    fn models(&self) -> BoxFuture<'_, Result<Vec<String>, RequestFailure>>;

    /// Submits a request; resolves when it was accepted or refused.
    fn submit(
        &self,
        request: Generate,
        options: ConnectionOptions,
    ) -> BoxFuture<'_, Result<ArrivalStream, RequestFailure>>;

    /// Returns the token ids of `text`, with the model's special tokens if `add_special`.
    fn tokenize<'a>(
        &'a self,
        model: &'a str,
        text: &'a str,
        add_special: bool,
    ) -> BoxFuture<'a, Result<Vec<u32>, RequestFailure>>;

    /// Returns the target's metrics in Prometheus text format, if it has any.
    fn metrics(&self) -> BoxFuture<'_, Option<String>>;
}

/// Kind of failure that ended a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// Refused because of load: status 429 or 503.
    Overloaded,
    /// Refused with another status.
    Refused,
    /// No connection could be made.
    Connect,
    /// The connection broke.
    Broken,
    /// A clean end without a finish.
    Truncated,
    /// The server reported an error within the stream.
    Server,
    /// The answer violates the protocol.
    Malformed,
    /// The answer exceeds a limit of the client.
    TooLarge,
    /// Not complete within the request's time limit.
    Timeout,
}

/// Failure of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RequestFailure {
    /// Kind of failure, by which reports count it.
    pub kind: FailureKind,
    /// Human-readable description of the failure.
    pub message: String,
    /// HTTP status, if there was one other than 200.
    pub status: Option<u16>,
    /// Seconds in `Retry-After`, if the server sent it.
    pub retry_after_s: Option<u64>,
}

impl RequestFailure {
    /// Creates a failure without a status.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        RequestFailure { kind, message: message.into(), status: None, retry_after_s: None }
    }
}

impl From<ClientError> for RequestFailure {
    fn from(error: ClientError) -> Self {
        let kind = match &error {
            ClientError::Refused { status: 429 | 503, .. } => FailureKind::Overloaded,
            ClientError::Refused { .. } => FailureKind::Refused,
            ClientError::Url { .. }
            | ClientError::ApiKey
            | ClientError::Connect { .. }
            | ClientError::Networks { .. }
            | ClientError::Tls(_) => FailureKind::Connect,
            ClientError::Broken(_)
            | ClientError::Gone
            | ClientError::Superseded
            | ClientError::ShuttingDown
            | ClientError::Reset(_) => FailureKind::Broken,
            ClientError::Truncated => FailureKind::Truncated,
            ClientError::Stream(_) | ClientError::Differs => FailureKind::Server,
            ClientError::Malformed(_) => FailureKind::Malformed,
            ClientError::TooLarge { .. } => FailureKind::TooLarge,
        };
        let mut failure = RequestFailure::new(kind, error.to_string());
        if let ClientError::Refused { status, retry_after_s, .. } = error {
            failure.status = Some(status);
            failure.retry_after_s = retry_after_s;
        }
        failure
    }
}
