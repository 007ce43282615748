//! Waiting for the Rust client from Python: blocking without the GIL, or with a callback.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::AbortHandle;

use crate::failure::Failure;
use crate::stream::{Event, NativeStream};

/// How often a blocked thread lets Python handle signals: Ctrl-C has to end the wait.
const SIGNAL_TICK: Duration = Duration::from_millis(50);
/// Threads of the runtime: they move packets and parse records, and never run Python.
const WORKERS: usize = 2;

/// The runtime of this process, and the process that it belongs to.
static RUNTIME: Mutex<Option<(u32, Runtime)>> = Mutex::new(None);

/// What a wait yields to Python.
pub enum Outcome {
    /// Nothing.
    Nothing,
    /// A response whose head has arrived.
    Stream(Box<NativeStream>),
    /// A piece of a body; `None` at its end.
    Piece(Option<Bytes>),
    /// Records of an answer; `None` at its end.
    Events(Option<Vec<Event>>),
    /// A word.
    Word(&'static str),
}

impl Outcome {
    fn into_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(match self {
            Outcome::Nothing | Outcome::Piece(None) | Outcome::Events(None) => py.None(),
            Outcome::Stream(stream) => Py::new(py, *stream)?.into_any(),
            Outcome::Piece(Some(bytes)) => PyBytes::new(py, &bytes).into_any().unbind(),
            Outcome::Events(Some(events)) => events.into_pyobject(py)?.into_any().unbind(),
            Outcome::Word(word) => word.into_pyobject(py)?.into_any().unbind(),
        })
    }
}

/// A wait with a callback.
#[pyclass(frozen)]
pub struct Task(AbortHandle);

#[pymethods]
impl Task {
    /// Ends the wait. The callback may still be called if its result was there already.
    fn abort(&self) {
        self.0.abort();
    }
}

/// Returns the runtime of this process. In the child of a fork it is a new one: threads do not
/// survive a fork. The lock is only taken with the GIL, which a forking thread holds, so that no
/// child finds it locked.
pub fn runtime(_py: Python<'_>) -> PyResult<Handle> {
    let mut current = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    let pid = std::process::id();
    if let Some((owner, runtime)) = &*current
        && *owner == pid
    {
        return Ok(runtime.handle().clone());
    }
    // To end the parent's runtime would wait for threads that are not here.
    std::mem::forget(current.take());
    let built = Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .thread_name("loquent")
        .enable_all()
        .build()
        .map_err(|error| PyRuntimeError::new_err(format!("cannot start threads: {error}")))?;
    let handle = built.handle().clone();
    *current = Some((pid, built));
    Ok(handle)
}

/// Returns a limit from Python; `None` if there is none.
pub fn limit(limit_s: Option<f64>) -> Option<Duration> {
    limit_s.and_then(|limit| Duration::try_from_secs_f64(limit).ok())
}

/// Waits for `work`, at most `limit_s` seconds. Without `done` it blocks, without the GIL, and
/// returns the result. With it, it returns a [`Task`] at once and calls `done(result, error)` on
/// another thread.
///
/// # Errors
/// The failure of `work`, of kind `timeout` after `limit_s`; what a signal handler raises.
pub fn wait(
    py: Python<'_>,
    done: Option<Py<PyAny>>,
    limit_s: Option<f64>,
    work: impl Future<Output = Result<Outcome, Failure>> + Send + 'static,
) -> PyResult<Py<PyAny>> {
    let limit = limit(limit_s);
    let work = async move {
        let Some(limit) = limit else { return work.await };
        tokio::time::timeout(limit, work).await.unwrap_or_else(|_| {
            Err(Failure::new(
                "timeout",
                format!("nothing arrived within {} s", limit.as_secs_f64()),
            ))
        })
    };
    let runtime = runtime(py)?;
    let Some(done) = done else { return block(py, &runtime, work) };
    let task = runtime.spawn(async move {
        let result = work.await;
        // A worker that waited for the GIL would move no packets.
        tokio::task::spawn_blocking(move || report(&done, result));
    });
    Ok(Py::new(py, Task(task.abort_handle()))?.into_any())
}

fn block(
    py: Python<'_>,
    runtime: &Handle,
    work: impl Future<Output = Result<Outcome, Failure>> + Send + 'static,
) -> PyResult<Py<PyAny>> {
    let mut work = Box::pin(work);
    loop {
        let ended = py.detach(|| {
            runtime.block_on(async { tokio::time::timeout(SIGNAL_TICK, &mut work).await })
        });
        match ended {
            Ok(result) => return result?.into_python(py),
            Err(_) => py.check_signals()?,
        }
    }
}

fn report(done: &Py<PyAny>, result: Result<Outcome, Failure>) {
    // None once the interpreter ends: nobody waits any more.
    Python::try_attach(|py| {
        let result = result.map_err(PyErr::from).and_then(|outcome| outcome.into_python(py));
        let called = match result {
            Ok(value) => done.call1(py, (value, py.None())),
            Err(error) => done.call1(py, (py.None(), error.into_value(py))),
        };
        if let Err(error) = called {
            error.write_unraisable(py, None);
        }
    });
}
