//! Downloads of models that clients ask for: one at a time, each on a thread of its own.
//!
//! A download belongs to the server, not to the connection that asked for it. What it has received
//! is kept if it fails or is stopped, and the next request for the same model continues it. The
//! model joins those that are served once it is complete.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Instant;

use loquent_proto::hex;

use super::keeper::KeptModel;
use loquent_serving::clock::unix_time_s;
use loquent_serving::error::{ApiError, quoted};

/// Maximum number of ended downloads whose outcome is remembered.
const MAX_ENDED: usize = 16;
/// Maximum length of a model's name in bytes.
const MAX_NAME_BYTES: usize = 512;
/// `Retry-After` in seconds while another model is downloaded.
const BUSY_RETRY_S: u64 = 30;

/// Source of models on a hub.
pub trait ModelDownloader: Send + Sync {
    /// Downloads the model called `name`, so that the loader of models finds it under the name that
    /// is returned. Continues what an earlier attempt has begun, and returns early after
    /// [`DownloadProgress::stop`]. Called on a thread that may block.
    ///
    /// # Errors
    /// If there is no such model, or it cannot be downloaded or read; the message says what to do.
    fn download(&self, name: &str, progress: &DownloadProgress) -> anyhow::Result<KeptModel>;
}

/// Progress of a download, and the wish to stop it.
#[derive(Debug, Default)]
pub struct DownloadProgress {
    total_bytes: AtomicU64,
    done_bytes: AtomicU64,
    received_bytes: AtomicU64,
    stopped: Arc<AtomicBool>,
}

impl DownloadProgress {
    /// Notes that `done_bytes` of `total_bytes` are on disk, of which earlier attempts left
    /// `kept_bytes`.
    pub fn set(&self, done_bytes: u64, total_bytes: u64, kept_bytes: u64) {
        self.total_bytes.store(total_bytes, Ordering::Relaxed);
        self.done_bytes.store(done_bytes, Ordering::Relaxed);
        self.received_bytes.store(done_bytes.saturating_sub(kept_bytes), Ordering::Relaxed);
    }

    /// Asks the download to end early.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Returns the flag that [`Self::stop`] sets.
    pub fn stopped(&self) -> &Arc<AtomicBool> {
        &self.stopped
    }

    /// Returns the bytes on disk and those of the whole model, as far as known.
    pub fn bytes(&self) -> (u64, u64) {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (read(&self.done_bytes), read(&self.total_bytes))
    }
}

/// A download and what became of it.
#[derive(Debug)]
pub struct Download {
    /// Identifies the download in the API.
    pub id: String,
    /// Name of the model as the client wrote it.
    pub asked: String,
    /// Start in Unix seconds.
    pub started_s: u64,
    /// Bytes so far.
    pub progress: DownloadProgress,
    began: Instant,
    end: OnceLock<DownloadEnd>,
}

/// Outcome of a download.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DownloadEnd {
    /// The model is served.
    Completed {
        /// Its name in the API.
        model: String,
        /// Time in Unix seconds.
        at_s: u64,
    },
    /// A client asked to stop it. What it has received is kept.
    Stopped,
    /// It failed. What it has received is kept.
    Failed {
        /// Error of the download, with advice.
        why: String,
    },
}

impl Download {
    fn new(asked: String) -> Self {
        Self {
            id: format!("job_{}", hex::encode(&rand::random::<[u8; 8]>())),
            asked,
            started_s: unix_time_s(),
            progress: DownloadProgress::default(),
            began: Instant::now(),
            end: OnceLock::new(),
        }
    }

    /// Returns the outcome; `None` while it runs.
    pub fn end(&self) -> Option<&DownloadEnd> {
        self.end.get()
    }

    /// Returns the mean rate since the start, in bytes per second.
    pub fn bytes_per_second(&self) -> f64 {
        let received = self.progress.received_bytes.load(Ordering::Relaxed);
        received as f64 / self.began.elapsed().as_secs_f64().max(0.001)
    }
}

/// Adds a model that was downloaded, under the name that a client asked for, to those that are
/// served. Returns its name in the API.
pub type AddModel = Box<dyn FnOnce(KeptModel, &str) -> anyhow::Result<String> + Send>;

/// All downloads of a server. See the module's documentation.
pub struct ModelDownloads {
    source: Arc<dyn ModelDownloader>,
    /// The latest is the last; only that one may be running.
    downloads: Mutex<VecDeque<Arc<Download>>>,
}

impl ModelDownloads {
    /// Creates the list of downloads from `source`.
    pub fn new(source: Arc<dyn ModelDownloader>) -> Arc<Self> {
        Arc::new(Self { source, downloads: Mutex::default() })
    }

    /// Begins to download the model called `name`, or returns the download of that name which is
    /// running. Calls `add` in the end.
    ///
    /// # Errors
    /// 429 while another model is downloaded, 400 for a name that is too long.
    pub fn start(self: &Arc<Self>, name: &str, add: AddModel) -> Result<Arc<Download>, ApiError> {
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            let why = format!("The name of a model has 1 to {MAX_NAME_BYTES} bytes.");
            return Err(ApiError::invalid_param("model", why));
        }
        let mut downloads = self.downloads();
        // A second one would only take half of the first one's line.
        if let Some(running) = downloads.back().filter(|last| last.end().is_none()) {
            if running.asked == name {
                return Ok(running.clone());
            }
            let other = quoted(&running.asked).into_owned();
            let why = format!("The model '{other}' is being downloaded. Ask again afterwards.");
            return Err(ApiError::overloaded(why, BUSY_RETRY_S));
        }
        let download = Arc::new(Download::new(name.to_owned()));
        let (this, job) = (self.clone(), download.clone());
        // Not one of the runtime's: it may wait for the network when the server ends.
        std::thread::Builder::new()
            .name("download".into())
            .spawn(move || this.run(&job, add))
            .map_err(|error| ApiError::internal(format!("There is no thread for it: {error}.")))?;
        downloads.push_back(download.clone());
        // Those before the last have ended.
        if downloads.len() > MAX_ENDED + 1 {
            downloads.pop_front();
        }
        Ok(download)
    }

    /// Returns the download with the id `id`.
    pub fn find(&self, id: &str) -> Option<Arc<Download>> {
        self.downloads().iter().find(|download| download.id == id).cloned()
    }

    /// Returns the downloads that are remembered, the last one first.
    pub fn latest(&self) -> Vec<Arc<Download>> {
        self.downloads().iter().rev().cloned().collect()
    }

    /// Stops the download that is running.
    pub fn stop(&self) {
        self.downloads().iter().for_each(|download| download.progress.stop());
    }

    fn run(&self, download: &Download, add: AddModel) {
        let (asked, progress) = (&download.asked, &download.progress);
        tracing::info!(model = asked, "downloading a model");
        let fetched = catch_unwind(AssertUnwindSafe(|| {
            let model = self.source.download(asked, progress)?;
            add(model, asked)
        }));
        let fetched = fetched.unwrap_or_else(|_| Err(anyhow::anyhow!("the download panicked")));
        let end = match fetched {
            Ok(model) => DownloadEnd::Completed { model, at_s: unix_time_s() },
            Err(_) if progress.stopped.load(Ordering::Relaxed) => DownloadEnd::Stopped,
            Err(error) => DownloadEnd::Failed { why: format!("{error:#}") },
        };
        match &end {
            DownloadEnd::Completed { model, .. } => tracing::info!(model, "downloaded a model"),
            DownloadEnd::Stopped => tracing::info!(model = asked, "stopped a download"),
            DownloadEnd::Failed { why } => {
                tracing::warn!(model = asked, "a model could not be downloaded: {why}");
            }
        }
        let is_first = download.end.set(end).is_ok();
        debug_assert!(is_first, "a download ends once");
    }

    fn downloads(&self) -> MutexGuard<'_, VecDeque<Arc<Download>>> {
        self.downloads.lock().expect("nothing panics under this lock")
    }
}
