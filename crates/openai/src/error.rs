//! Errors between a request and the end of its response.

/// Any failure of the HTTP client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HttpError {
    /// Unusable URL.
    #[error("unusable URL {url:?}: {reason}")]
    Url {
        /// The URL as given, without its password.
        url: String,
        /// Reason.
        reason: &'static str,
    },
    /// The API key has characters that are not allowed in an HTTP header.
    #[error("the API key has characters that an HTTP header cannot have")]
    ApiKey,
    /// TLS cannot be set up on this machine.
    #[error("cannot set up TLS: {0}")]
    Tls(String),
    /// No connection could be made.
    #[error("cannot connect to {authority}: {reason}")]
    Connect {
        /// Host and port.
        authority: String,
        /// Reason given by the operating system or TLS.
        reason: String,
    },
    /// The connection broke before the response was complete.
    #[error("the connection to {authority} broke: {reason}")]
    Broken {
        /// Host and port.
        authority: String,
        /// Reason given by the operating system or the HTTP parser.
        reason: String,
    },
    /// The server refused the request.
    #[error("refused with status {status}: {message}")]
    Refused {
        /// HTTP status code.
        status: u16,
        /// Seconds from `Retry-After`, if the server sent a number.
        retry_after_s: Option<u64>,
        /// The server's message, at most 300 characters.
        message: String,
    },
    /// The response is larger than the caller allows.
    #[error("the response exceeds the limit of {limit_bytes} bytes")]
    TooLarge {
        /// The limit in bytes.
        limit_bytes: usize,
    },
}

impl HttpError {
    /// Returns the error of a request that an earlier connection may have brought to the server:
    /// that no second one could be made does not prove that the server never saw it.
    pub(crate) fn after_sending(self) -> Self {
        match self {
            Self::Connect { authority, reason } => Self::Broken { authority, reason },
            other => other,
        }
    }
}

/// Returns an error and its causes on one line.
pub fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    text
}
