//! The client of one server.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use loquent_client::{
    AnswerHandle, Asked, Client, Config, NotANetwork, PathMode, Request, Transport,
};
use loquent_openai::headers::end_to_end;
use loquent_openai::tls::{Authorities, Trust};
use pyo3::prelude::*;

use crate::failure::Failure;
use crate::stream::NativeStream;
use crate::wait::{Outcome, runtime, wait};

/// Headers that the transport below writes itself. Bodies are read here, hence none is compressed.
const NOT_PASSED: [&str; 5] =
    ["accept-encoding", "authorization", "content-length", "expect", "host"];

/// A client of one server: `loquent_client::Client` with one connection for everything.
#[pyclass(frozen)]
pub struct NativeClient {
    config: Config,
    /// The client, and the process whose runtime drives its connections.
    client: Mutex<(u32, Client)>,
}

impl NativeClient {
    /// Returns the client of this process: a new one in the child of a fork, whose parent goes on
    /// with the old one's sockets.
    fn client(&self, py: Python<'_>) -> PyResult<Client> {
        let _context = runtime(py)?;
        let mut current = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        let pid = std::process::id();
        if current.0 != pid {
            let client = Client::new(self.config.clone()).map_err(Failure::from)?;
            // Dropped, it would close the parent's connection.
            std::mem::forget(std::mem::replace(&mut *current, (pid, client)));
        }
        Ok(current.1.clone())
    }
}

#[pymethods]
impl NativeClient {
    /// Prepares a client of the server at `url`; nothing is sent yet.
    #[new]
    #[pyo3(signature = (
        url, api_key, quic, via, redundant, head_start_s, resume_limit_s, state_dir, ca, fingerprint
    ))]
    #[expect(clippy::too_many_arguments, reason = "the Python half calls it, and names them")]
    fn new(
        url: &str,
        api_key: Option<String>,
        quic: bool,
        via: Vec<String>,
        redundant: bool,
        head_start_s: f64,
        resume_limit_s: f64,
        state_dir: Option<PathBuf>,
        ca: Option<PathBuf>,
        fingerprint: Option<&[u8]>,
    ) -> PyResult<NativeClient> {
        let seconds = |value: f64| {
            Duration::try_from_secs_f64(value)
                .map_err(|_| Failure::new("value", format!("{value} is no number of seconds")))
        };
        let network = |name: &String| {
            name.parse().map_err(|error: NotANetwork| Failure::new("value", error.to_string()))
        };
        let config = Config {
            api_key,
            trust: trust(ca.as_deref(), fingerprint)?,
            quic,
            via: via.iter().map(network).collect::<Result<_, _>>()?,
            via_mode: if redundant { PathMode::Redundant } else { PathMode::Backup },
            head_start: seconds(head_start_s)?,
            resume_limit: seconds(resume_limit_s)?,
            memory: state_dir,
            ..Config::new(url)
        };
        let client = Client::new(config.clone()).map_err(Failure::from)?;
        Ok(NativeClient { config, client: Mutex::new((std::process::id(), client)) })
    }

    /// Requests an answer, over QUIC or over HTTP, and returns its stream.
    #[pyo3(signature = (path, headers, body, limit_s, done=None))]
    fn ask(
        &self,
        py: Python<'_>,
        path: String,
        headers: Vec<(Vec<u8>, Vec<u8>)>,
        body: &[u8],
        limit_s: Option<f64>,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let (client, request) = (self.client(py)?, request(path, headers, body));
        wait(py, done, limit_s, async move {
            let stream = match client.ask(&request).await? {
                Asked::Answer(answer) => NativeStream::of_answer(answer),
                Asked::Reply(reply) => NativeStream::of_reply(reply),
            };
            Ok(Outcome::Stream(Box::new(stream)))
        })
    }

    /// Sends a `POST` on a QUIC stream. Returns `None`, with nothing sent, if QUIC is not up within
    /// the head start.
    #[pyo3(signature = (path, headers, body, limit_s, done=None))]
    fn tunnel(
        &self,
        py: Python<'_>,
        path: String,
        headers: Vec<(Vec<u8>, Vec<u8>)>,
        body: &[u8],
        limit_s: Option<f64>,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let (client, request) = (self.client(py)?, request(path, headers, body));
        wait(py, done, limit_s, async move {
            if client.warm_up().await != Transport::Quic {
                return Ok(Outcome::Nothing);
            }
            let reply = client.request(&request).await?;
            Ok(Outcome::Stream(Box::new(NativeStream::of_reply(reply))))
        })
    }

    /// Resumes the answer of `id` and `token` behind `offset`.
    #[pyo3(signature = (id, token, offset, limit_s, done=None))]
    fn resume(
        &self,
        py: Python<'_>,
        id: &str,
        token: &str,
        offset: u64,
        limit_s: Option<f64>,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let handle = AnswerHandle::parse(id, token)
            .ok_or_else(|| Failure::new("value", "id and token have 32 hex digits each"))?;
        let client = self.client(py)?;
        wait(py, done, limit_s, async move {
            let answer = client.resume(handle, offset).await?;
            Ok(Outcome::Stream(Box::new(NativeStream::of_answer(answer))))
        })
    }

    /// Connects ahead of the first request. Returns `quic` or `http`: what answers come over.
    #[pyo3(signature = (done=None))]
    fn warm_up(&self, py: Python<'_>, done: Option<Py<PyAny>>) -> PyResult<Py<PyAny>> {
        let client = self.client(py)?;
        wait(py, done, None, async move {
            Ok(Outcome::Word(match client.warm_up().await {
                Transport::Quic => "quic",
                Transport::Http => "http",
            }))
        })
    }

    /// Waits, at most `limit_s`, until the server knows of all answers that ended or were
    /// cancelled, and closes the connection.
    #[pyo3(signature = (limit_s, done=None))]
    fn close(&self, py: Python<'_>, limit_s: f64, done: Option<Py<PyAny>>) -> PyResult<Py<PyAny>> {
        let client = self.client(py)?;
        let limit = Duration::try_from_secs_f64(limit_s).unwrap_or(Duration::ZERO);
        wait(py, done, None, async move {
            client.close(limit).await;
            Ok(Outcome::Nothing)
        })
    }
}

fn trust(ca: Option<&Path>, fingerprint: Option<&[u8]>) -> Result<Trust, Failure> {
    if let Some(sha256) = fingerprint {
        let sha256 = <[u8; 32]>::try_from(sha256);
        let sha256 = sha256.map_err(|_| Failure::new("value", "a SHA-256 has 32 bytes"))?;
        return Ok(Trust::Pinned(sha256));
    }
    let Some(file) = ca else { return Ok(Trust::System) };
    let read = Authorities::read(file);
    let read = read.map_err(|error| Failure::new("value", error.to_string()))?;
    Ok(Trust::Authorities(Arc::new(read)))
}

fn request(path: String, headers: Vec<(Vec<u8>, Vec<u8>)>, body: &[u8]) -> Request {
    let parse = |(name, value): (Vec<u8>, Vec<u8>)| {
        Some((HeaderName::from_bytes(&name).ok()?, HeaderValue::from_bytes(&value).ok()?))
    };
    let all: HeaderMap = headers.into_iter().filter_map(parse).collect();
    let bearer = all.get("authorization").and_then(|value| value.to_str().ok());
    let key = bearer.and_then(|value| value.strip_prefix("Bearer ")).map(str::to_owned);
    let mut headers = end_to_end(&all);
    for name in NOT_PASSED {
        headers.remove(name);
    }
    Request { method: Method::POST, path, headers, key, body: Bytes::copy_from_slice(body) }
}
