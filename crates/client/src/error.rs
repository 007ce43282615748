//! Errors between a request and the end of its answer.

use loquent_openai::HttpError;
use loquent_openai::chunk::ChunkError;
use loquent_proto::sse::SseError;

/// Errors of this crate. Each variant shows which side is at fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The base URL cannot be used.
    #[error("unusable URL {url:?}: {reason}")]
    Url {
        /// The URL as given.
        url: String,
        /// Reason why it cannot be used.
        reason: &'static str,
    },
    /// The API key contains characters that are invalid in an HTTP header.
    #[error("the API key has characters that an HTTP header cannot have")]
    ApiKey,
    /// No connection could be made.
    #[error("cannot connect to {authority}: {reason}")]
    Connect {
        /// Host and port.
        authority: String,
        /// The operating system's message.
        reason: String,
    },
    /// More networks were named than a client uses.
    #[error("a client uses at most {most} networks, and {given} are named")]
    Networks {
        /// Networks in the configuration.
        given: usize,
        /// Maximum number.
        most: usize,
    },
    /// TLS cannot be set up.
    #[error("TLS: {0}")]
    Tls(String),
    /// The server no longer has the answer, or not for this reader.
    #[error("the server does not have this answer any more")]
    Gone,
    /// The server that generated the answer has ended, and another server has a different answer to
    /// the same request.
    #[error("the server has ended, and another one has another answer to the same request")]
    Differs,
    /// The answer has too many readers: another one took this reader's place, which must not be
    /// taken back (S-2.6).
    #[error("another reader has taken this one's place")]
    Superseded,
    /// The server is shutting down, and its answers with it; another one may take the request.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// The server reset a QUIC stream (S-2.1, S-3.2).
    #[error("the server broke the stream off (code {0})")]
    Reset(u64),
    /// The connection broke before the answer was complete.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// The server refused the request with an HTTP status.
    #[error("refused with status {status}: {message}")]
    Refused {
        /// HTTP status code.
        status: u16,
        /// Seconds from `Retry-After`, if the server sent a number.
        retry_after_s: Option<u64>,
        /// The server's message, shortened.
        message: String,
    },
    /// The server sent `data: {"error": …}` in the middle of an answer.
    #[error("the server reported an error within the stream: {0}")]
    Stream(String),
    /// The stream ended cleanly but without a finish reason or `[DONE]`.
    #[error("the stream ended without a finish")]
    Truncated,
    /// The answer violates the protocol.
    #[error("malformed answer: {0}")]
    Malformed(String),
    /// The answer exceeds a limit of this client.
    #[error("the answer exceeds the limit of {limit_bytes} bytes for {what}")]
    TooLarge {
        /// Name of the part that was too large.
        what: &'static str,
        /// The limit in bytes.
        limit_bytes: usize,
    },
}

impl From<HttpError> for ClientError {
    fn from(error: HttpError) -> Self {
        match error {
            HttpError::Url { url, reason } => Self::Url { url, reason },
            HttpError::ApiKey => Self::ApiKey,
            HttpError::Tls(reason) => Self::Tls(reason),
            HttpError::Connect { authority, reason } => Self::Connect { authority, reason },
            HttpError::Broken { reason, .. } => Self::Broken(reason),
            HttpError::Refused { status, retry_after_s, message } => {
                Self::Refused { status, retry_after_s, message }
            }
            HttpError::TooLarge { limit_bytes } => {
                Self::TooLarge { what: "an answer", limit_bytes }
            }
        }
    }
}

impl From<ChunkError> for ClientError {
    fn from(error: ChunkError) -> Self {
        Self::Malformed(error.to_string())
    }
}

impl From<SseError> for ClientError {
    fn from(error: SseError) -> Self {
        match error {
            SseError::EventTooLarge { limit_bytes } => {
                ClientError::TooLarge { what: "one event", limit_bytes }
            }
        }
    }
}
