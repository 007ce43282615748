//! Errors of the Rust client as a Python exception.

use loquent_client::ClientError;
use pyo3::PyErr;
use pyo3::create_exception;
use pyo3::exceptions::PyException;

create_exception!(
    _native,
    NativeError,
    PyException,
    "A failure of the client: `args` are its kind and a sentence."
);

/// A failure that Python is told: its kind, by which the Python half chooses the exception, and a
/// sentence for people.
#[derive(Debug, Clone)]
pub struct Failure {
    kind: &'static str,
    message: String,
}

impl Failure {
    /// Creates a failure of a kind that the client itself does not have.
    pub fn new(kind: &'static str, message: impl Into<String>) -> Failure {
        Failure { kind, message: message.into() }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Failure {
        let kind = match &error {
            ClientError::Url { .. } | ClientError::ApiKey | ClientError::Networks { .. } => "value",
            ClientError::Connect { .. } | ClientError::Tls(_) => "connect",
            ClientError::Gone | ClientError::Differs => "gone",
            ClientError::Superseded => "superseded",
            ClientError::Malformed(_) | ClientError::TooLarge { .. } => "protocol",
            _ => "broken",
        };
        Failure { kind, message: error.to_string() }
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> PyErr {
        NativeError::new_err((failure.kind, failure.message))
    }
}
