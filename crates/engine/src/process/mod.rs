//! The engine in a process of its own, so that its crash ends no connection.
//!
//! The server keeps the scheduler, the vocabulary and the grammars. A child process has a
//! [`Runner`](loquent_infer::runner::Runner) with the weights and the KV cache, and samples.
//! [`ProcessRunner`] represents it in the server: it sends each batch over a socket pair and waits
//! for the tokens. When the child dies, its whole state is lost, as with lost stages; the scheduler
//! puts its sequences back, the child is restarted, and answers continue.
//!
//! The child samples, because a row of logits is some hundred kilobytes and a token a few bytes. A
//! grammar stays in the server, which has the vocabulary: it sends the allowed next tokens, an
//! eighth of a byte for each entry of the vocabulary.
//!
//! The child ends with the server, however that ends: its half of the sockets is then closed.

mod child;
mod restarts;
mod runner;
#[cfg(test)]
mod tests;
mod wire;

use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use child::serve;
pub use runner::ProcessRunner;
pub use wire::EngineFacts;

/// Starts an engine and gives the connection to it; called again after each loss.
pub type Launch = Box<dyn FnMut() -> std::io::Result<LaunchedEngine> + Send>;

/// An engine that was started and is not ready yet.
#[derive(Debug)]
pub struct LaunchedEngine {
    /// Server's half of the sockets.
    pub stream: UnixStream,
    /// The process; `None` for an engine on a thread, in tests.
    pub process: Option<Child>,
}

/// Reason why an engine process cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The process could not be started, or its connection broke.
    #[error("the engine's process: {0}")]
    Io(#[from] std::io::Error),
    /// The process ended.
    #[error("the engine's process ended ({0})")]
    Ended(String),
    /// The process stopped responding and was killed; the text has the duration of the wait.
    #[error("the engine's process hung and was killed: {0}")]
    Hung(String),
    /// The process sent an invalid message, or one out of place.
    #[error("the engine's process sent {0}")]
    Protocol(&'static str),
    /// The process cannot load the model, for this reason.
    #[error("{0}")]
    Refused(String),
    /// The new process has other sizes than the previous one: the model's file has changed.
    #[error("the engine is not the same as before; start the server again")]
    Changed,
}

/// Locks data that no thread leaves half changed, even one that panics.
fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
