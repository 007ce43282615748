//! The engine in a process of its own, so that what ends it ends no connection.
//!
//! The server keeps the scheduler, the vocabulary and the grammars. A child process has a
//! [`Runner`](loquent_infer::runner::Runner) with the weights and the KV cache, and samples.
//! [`ProcessRunner`] stands for it in the server: it sends each batch over a pair of sockets and
//! waits for the tokens. When the child is gone, everything that it held is lost, as if stages had
//! been; the scheduler puts its sequences back, the child is started again, and answers go on.
//!
//! Sampling is the child's part because a row of logits is some hundred kilobytes and a token a
//! few bytes. A grammar stays in the server, which has the vocabulary: it sends the tokens that are
//! allowed next, an eighth of a byte for each entry of the vocabulary.
//!
//! The child ends with the server, however that ends: its half of the sockets is closed then.

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

/// An engine that was started and has not said yet that it is ready.
#[derive(Debug)]
pub struct LaunchedEngine {
    /// The server's half of the sockets.
    pub stream: UnixStream,
    /// The process; `None` for an engine on a thread, in tests.
    pub process: Option<Child>,
}

/// Why an engine process cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// It could not be started, or its connection broke.
    #[error("the engine's process: {0}")]
    Io(#[from] std::io::Error),
    /// It ended.
    #[error("the engine's process ended ({0})")]
    Ended(String),
    /// It answered no more, and was killed; the text is how long that was waited for.
    #[error("the engine's process hung and was killed: {0}")]
    Hung(String),
    /// It sent something that is no message, or out of place.
    #[error("the engine's process sent {0}")]
    Protocol(&'static str),
    /// It cannot load the model; the text is its reason.
    #[error("{0}")]
    Refused(String),
    /// It has other sizes than the one before: the model's file has changed.
    #[error("the engine is not the same as before; start the server again")]
    Changed,
}

/// Locks what no thread leaves half changed, even one that panics.
fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
