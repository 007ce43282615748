//! Request bodies: received within limits, and parsed off the network threads if they are large.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum_core::body::Body;
use bytes::Bytes;
use http::header;
use http::request::Parts;
use http_body_util::BodyExt;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::api::fields::Fields;
use crate::api::json::{VALUE_BYTES, count_values};
use crate::blocking_workers::BlockingWorkers;
use crate::error::ApiError;
use crate::identity::Identity;
use crate::memory::{MemoryCharge, RequestMemory, SMALL_BYTES};

/// Maximum number of large bodies parsed at once. Low, since each takes a core from the engine for
/// some milliseconds.
const PARSERS: usize = 2;
/// Maximum number of large heads of QUIC requests read at once, over all clients: 64 KiB each.
const LARGE_HEADS: usize = 64;

/// Maximum bytes of a refused body that are read and thrown away before its response.
const MAX_DISCARDED_BYTES: u64 = 64 << 20;
/// Time limit for these bytes, and for each wait for more of them.
const DISCARD_LIMIT: Duration = Duration::from_secs(10);
const DISCARD_PAUSE: Duration = Duration::from_secs(1);

/// Limits of request bodies.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimits {
    /// Largest body in bytes; larger ones get 413.
    pub max_bytes: usize,
    /// Maximum bytes of all bodies together, including their parsed form.
    pub total_bytes: usize,
}

/// Receives and parses the bodies of all requests.
#[derive(Debug)]
pub struct RequestBodies {
    limits: BodyLimits,
    memory: RequestMemory,
    workers: BlockingWorkers,
    large_heads: Semaphore,
}

/// A body, or the part of it that has arrived.
#[derive(Debug)]
pub struct ReceivedBody {
    reader: Arc<RequestBodies>,
    bytes: Vec<u8>,
    charge: MemoryCharge,
}

/// A body that came through a tunnel, on its way to the request's route.
#[derive(Debug, Clone)]
pub struct TunnelledBody(Arc<Mutex<Option<ReceivedBody>>>);

impl TunnelledBody {
    /// Wraps `body`.
    pub fn new(body: ReceivedBody) -> Self {
        Self(Arc::new(Mutex::new(Some(body))))
    }

    /// Takes the body, once.
    pub fn take(self) -> Option<ReceivedBody> {
        self.0.lock().ok()?.take()
    }
}

impl RequestBodies {
    /// Creates a reader within `limits`.
    pub fn new(limits: BodyLimits) -> Arc<Self> {
        let memory = RequestMemory::new(limits.total_bytes);
        let large_heads = Semaphore::new(LARGE_HEADS);
        Arc::new(Self { limits, memory, workers: BlockingWorkers::new(PARSERS), large_heads })
    }

    /// Returns the memory that bodies are charged to.
    pub fn memory(&self) -> &RequestMemory {
        &self.memory
    }

    /// Returns the threads for other long tasks of a request.
    pub fn workers(&self) -> &BlockingWorkers {
        &self.workers
    }

    /// Counts the values in `json` as for a body, on a worker thread if it is large.
    ///
    /// # Errors
    /// The errors of [`BlockingWorkers::run`].
    pub async fn count_values(&self, json: &Bytes) -> Result<usize, ApiError> {
        let json = json.clone();
        let is_large = json.len() > SMALL_BYTES;
        self.workers.run_if(is_large, move || Ok(count_values(&json))).await
    }

    /// Returns the permits for large request heads of clients that are not authenticated yet.
    pub fn large_heads(&self) -> &Semaphore {
        &self.large_heads
    }

    /// Returns an empty body of a request from `identity`.
    pub fn begin(self: &Arc<Self>, identity: &Identity) -> ReceivedBody {
        let charge = MemoryCharge::of(identity);
        ReceivedBody { reader: self.clone(), bytes: Vec::new(), charge }
    }

    /// Receives the body of the request with `head`, unless it came through a tunnel and is already
    /// complete.
    ///
    /// # Errors
    /// 413 for one that is too large, 503 when there is no memory for it, 400 if it breaks off.
    pub async fn receive(
        self: &Arc<Self>,
        head: &mut Parts,
        mut body: Body,
    ) -> Result<ReceivedBody, ApiError> {
        let tunnelled = head.extensions.remove::<TunnelledBody>();
        if let Some(body) = tunnelled.and_then(TunnelledBody::take) {
            return Ok(body);
        }
        let identity = head.extensions.get::<Identity>().cloned().unwrap_or_default();
        let mut received = self.begin(&identity);
        let filled = received.fill(&mut body).await;
        if filled.as_ref().is_err_and(ApiError::is_too_large) {
            // Its memory is free while the rest arrives.
            drop(received);
            // A client that waits for "100 Continue" has sent nothing yet.
            if !head.headers.contains_key(header::EXPECT) {
                discard(body).await;
            }
            return Err(ApiError::too_large(self.limits.max_bytes));
        }
        filled.map(|()| received)
    }
}

/// Reads the rest of a refused body, within limits. Many clients read a response only after they
/// have sent all of the request; an earlier end of the connection is a network error to them.
async fn discard(mut body: Body) {
    let mut left = MAX_DISCARDED_BYTES;
    if http_body::Body::size_hint(&body).lower() > left {
        return;
    }
    let read = async {
        while let Ok(Some(Ok(frame))) = timeout(DISCARD_PAUSE, body.frame()).await {
            let bytes = frame.data_ref().map_or(0, Bytes::len) as u64;
            left = left.saturating_sub(bytes);
            if left == 0 {
                return;
            }
        }
    };
    let _ = timeout(DISCARD_LIMIT, read).await;
}

impl ReceivedBody {
    /// Appends all of `body`.
    async fn fill(&mut self, body: &mut Body) -> Result<(), ApiError> {
        // By its declared length a body is refused before any of it was sent.
        let declared = http_body::Body::size_hint(body).lower();
        self.check(usize::try_from(declared).unwrap_or(usize::MAX))?;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| ApiError::body(&error))?;
            if let Ok(data) = frame.into_data() {
                self.push(&data).await?;
            }
        }
        Ok(())
    }

    fn check(&self, more: usize) -> Result<(), ApiError> {
        let limit = self.reader.limits.max_bytes;
        match self.bytes.len().saturating_add(more) <= limit {
            true => Ok(()),
            false => Err(ApiError::too_large(limit)),
        }
    }

    /// Appends the next piece.
    ///
    /// # Errors
    /// 413 when the body becomes too large, 503 when there is no memory for it.
    pub async fn push(&mut self, piece: &[u8]) -> Result<(), ApiError> {
        self.check(piece.len())?;
        self.reader.memory.take(&mut self.charge, piece.len()).await?;
        if self.bytes.capacity() - self.bytes.len() < piece.len() {
            // By a quarter instead of twofold: what is spare is not charged.
            self.bytes.reserve_exact(piece.len().max(self.bytes.len() / 4));
        }
        self.bytes.extend_from_slice(piece);
        Ok(())
    }

    /// Returns the number of bytes that have arrived.
    pub fn arrived_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the bytes, and the charge that must be held as long as they are.
    pub fn into_parts(self) -> (Bytes, MemoryCharge) {
        (self.bytes.into(), self.charge)
    }

    /// Parses the body and passes its fields to `read`: both on a thread that may block, if the
    /// body is large. The fields hold the charge.
    ///
    /// # Errors
    /// 400 for a body that is not a JSON object or has too many values, 503 when there is no memory
    /// for them; those of `read`.
    pub async fn parse<T: Send + 'static>(
        mut self,
        read: impl FnOnce(Fields) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let reader = self.reader.clone();
        let bytes = std::mem::take(&mut self.bytes);
        let is_large = bytes.len() > SMALL_BYTES;
        let count = move || {
            let values = count_values(&bytes);
            Ok((bytes, values))
        };
        let (bytes, values) = reader.workers.run_if(is_large, count).await?;
        Fields::check_values(values)?;
        // The strings of what is parsed are as long as the body at most.
        let parsed_bytes = values * VALUE_BYTES + bytes.len();
        reader.memory.take(&mut self.charge, parsed_bytes).await?;
        let charge = self.charge;
        let parse = move || read(Fields::parse(&bytes)?.charged(charge));
        reader.workers.run_if(is_large, parse).await
    }
}
