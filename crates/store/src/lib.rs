//! The store: finished answers that clients ask to keep, and background answers while they run.
//!
//! A [`Store`] is bounded by bytes, in total and per owner, and by age; the oldest objects are
//! evicted first. Without a file it lives in memory. With a file it survives restarts, and
//! acknowledged writes survive a crash. A store at a separate server ([`shared`]) is used by
//! several replicas and outlives each of them. A [`StoredObject`] belongs
//! to the API key that made it and is found only with that key ([`Owner`]). A [`recorder`] makes
//! the object of an answer while the answer passes.
//!
//! `index` tracks the objects and decides which to evict; `memory` and `disk` hold their bytes.
//! [`shared`] leaves both to its server, and what must change together is one Lua script.
//!
//! ```
//! use std::time::Duration;
//!
//! use loquent_serving::identity::Owner;
//! use loquent_store::{Kind, Progress, Store, StoreLimits, StoredObject};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let age = Duration::from_secs(3600);
//! let store = Store::in_memory(StoreLimits { bytes: 1 << 20, bytes_per_owner: 1 << 20, age });
//! let json = "{}".into();
//! let object = StoredObject { id: "resp_1".into(), created_s: 0, progress: Progress::Ended, json };
//! let (ann, bob) = (Owner([1; 16]), Owner([2; 16]));
//! # let object = StoredObject { created_s: loquent_serving::clock::unix_time_s(), ..object };
//! store.put(Kind::Response, ann, object).await?;
//! assert!(store.get(Kind::Response, ann, "resp_1").await?.is_some());
//! assert!(store.get(Kind::Response, bob, "resp_1").await?.is_none());
//! # Ok::<(), loquent_store::StoreError>(())
//! # }).unwrap();
//! ```

pub mod address;
mod disk;
mod file;
mod index;
pub mod ledger;
mod memory;
pub mod object;
pub mod recorder;
pub mod shared;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use address::SharedAddress;
use disk::DiskBackend;
use index::{List, ObjectKey};
use ledger::{UsageQuery, UsageRow};
use loquent_serving::blocking_workers::BlockingWorkers;
use loquent_serving::clock::unix_time_s;
use loquent_serving::entropy::Entropy;
use loquent_serving::error::ApiError;
use loquent_serving::identity::Owner;
use memory::MemoryBackend;
use shared::connection::{SharedConnection, StoreHealth};
use shared::objects::SharedBackend;

use object::WriteMode;
pub use object::{
    AnswerFence, Kind, ListPage, ObjectList, Progress, StoreConfig, StoreError, StoreLimits,
    StoreLocation, StoredObject,
};

/// Maximum number of objects and lists read concurrently.
const READERS: usize = 4;
/// Maximum bytes of the objects in one list page, unless a single object has more.
const MAX_LIST_BYTES: usize = 8 << 20;
/// Time limit for a list of a shared store, which takes many parts if its filter accepts few
/// objects.
const LIST_LIMIT: Duration = Duration::from_secs(10);
/// `Retry-After` while the store is unavailable, in seconds.
const RETRY_S: u64 = 10;
/// Interval between sweeps of expired objects. Reads ignore an object from the second it expires.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::UnknownAfter => Self::invalid_param("after", format!("'after': {error}.")),
            StoreError::TooLarge { .. } | StoreError::LongId => Self::invalid(error.to_string()),
            StoreError::Unreadable => Self::internal(error.to_string()),
            StoreError::Unusable(_) | StoreError::Failed(_) => {
                // The log has the reason, with the file's name, which is the operator's alone.
                Self::unavailable("The answer store is temporarily unavailable.", RETRY_S)
            }
        }
    }
}

/// A store of objects. Cheap to clone: all clones share one store.
#[derive(Debug, Clone)]
pub struct Store {
    backend: StoreBackend,
    readers: BlockingWorkers,
    /// Maximum bytes of an object's JSON.
    most_json_bytes: usize,
    /// Retention time of objects.
    age: Duration,
}

/// The backend that holds the objects.
#[derive(Debug, Clone)]
enum StoreBackend {
    Memory(MemoryBackend),
    Disk(DiskBackend),
    Shared(SharedBackend),
}

/// A list page being filled.
struct FilledPage {
    limit: usize,
    objects: Vec<StoredObject>,
    bytes: usize,
}

impl Store {
    /// Opens the store that `config` describes.
    ///
    /// # Errors
    /// When its file or its server cannot be used; the message says what to do.
    pub async fn start(config: &StoreConfig) -> Result<Self, StoreError> {
        let limits = config.limits;
        match config.location.clone() {
            StoreLocation::Memory => Ok(Self::in_memory(limits)),
            StoreLocation::Shared(address) => Self::connect(&address, limits).await,
            StoreLocation::File(file) => {
                let opened = tokio::task::spawn_blocking(move || Self::open(&file, limits)).await;
                opened.unwrap_or(Err(StoreError::Unreadable))
            }
        }
    }

    /// Connects to the store at `address`, which other replicas may use too.
    ///
    /// # Errors
    /// When it cannot be used; the message says what to do.
    pub async fn connect(address: &SharedAddress, limits: StoreLimits) -> Result<Self, StoreError> {
        let most_json_bytes = index::most_json_bytes(&limits);
        let connection =
            SharedConnection::open(address, most_json_bytes, Entropy::system()).await?;
        tracing::info!(replica = connection.replica(), "connected to the store {address}");
        Ok(Self::behind(connection, limits))
    }

    /// Returns the store behind `connection`, which other replicas may use too.
    pub fn behind(connection: SharedConnection, limits: StoreLimits) -> Self {
        Self::of(StoreBackend::Shared(SharedBackend::new(connection, limits)), limits)
    }

    /// Returns the connection to a store that replicas share; `None` if the store is local to this
    /// process.
    pub const fn shared(&self) -> Option<&SharedConnection> {
        match &self.backend {
            StoreBackend::Shared(shared) => Some(&shared.connection),
            StoreBackend::Memory(_) | StoreBackend::Disk(_) => None,
        }
    }

    /// Returns the reason why a shared store cannot be used, if it cannot.
    pub fn outage(&self) -> Option<Arc<str>> {
        match self.shared()?.health() {
            StoreHealth::Well => None,
            StoreHealth::Away(why) => Some(why),
        }
    }

    /// Creates a store in memory, empty at each start.
    pub fn in_memory(limits: StoreLimits) -> Self {
        Self::of(StoreBackend::Memory(MemoryBackend::new(limits)), limits)
    }

    /// Opens the store in `file`, or creates it.
    ///
    /// # Errors
    /// When it cannot be used; the message says what to do.
    pub fn open(file: &Path, limits: StoreLimits) -> Result<Self, StoreError> {
        let disk = DiskBackend::open(file, limits)?;
        let (objects, bytes, broken_off) = disk.count();
        tracing::info!(objects, bytes, broken_off, "opened the store {}", file.display());
        Ok(Self::of(StoreBackend::Disk(disk), limits))
    }

    fn of(backend: StoreBackend, limits: StoreLimits) -> Self {
        let most_json_bytes = index::most_json_bytes(&limits);
        Self { backend, readers: BlockingWorkers::new(READERS), most_json_bytes, age: limits.age }
    }

    /// Returns the retention time of objects.
    pub const fn age(&self) -> Duration {
        self.age
    }

    /// Returns the maximum bytes of an object's JSON; larger objects are refused.
    pub const fn most_json_bytes(&self) -> usize {
        self.most_json_bytes
    }

    /// Stores `object`, replacing any older one with its id and keeping that one's place in lists.
    /// On return, a store with a file has written it to disk.
    ///
    /// # Errors
    /// [`StoreError`]; the older object is then kept.
    pub async fn put(
        &self,
        kind: Kind,
        owner: Owner,
        object: StoredObject,
    ) -> Result<(), StoreError> {
        self.write(kind, owner, object, WriteMode::Put).await.map(drop)
    }

    /// Replaces the object that has the id of `object`; returns whether there was one. If not,
    /// nothing changes: an object that a client has deleted does not come back.
    ///
    /// # Errors
    /// [`StoreError`]; the older object is then kept.
    pub async fn replace(
        &self,
        kind: Kind,
        owner: Owner,
        object: StoredObject,
    ) -> Result<bool, StoreError> {
        self.write(kind, owner, object, WriteMode::Replace).await
    }

    /// Takes over the object `id`, whose answer is incomplete and whose replica has ended. Returns
    /// `None` if it cannot be taken over or this store is not shared.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn claim(
        &self,
        kind: Kind,
        owner: Owner,
        id: &str,
    ) -> Result<Option<AnswerFence>, StoreError> {
        let key = ObjectKey::new(kind, owner, id)?;
        match &self.backend {
            StoreBackend::Memory(_) | StoreBackend::Disk(_) => Ok(None),
            StoreBackend::Shared(shared) => shared.claim(&key).await,
        }
    }

    /// Releases the object `id`, whose answer is incomplete, to other replicas.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn disown(&self, kind: Kind, owner: Owner, id: &str) -> Result<(), StoreError> {
        let key = ObjectKey::new(kind, owner, id)?;
        match &self.backend {
            StoreBackend::Memory(_) | StoreBackend::Disk(_) => Ok(()),
            StoreBackend::Shared(shared) => shared.disown(&key).await,
        }
    }

    /// Makes [`Self::write`] refuse the object `id` with any lower fence from now on.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn raise_fence(
        &self,
        kind: Kind,
        owner: Owner,
        id: &str,
        fence: AnswerFence,
    ) -> Result<(), StoreError> {
        let key = ObjectKey::new(kind, owner, id)?;
        match &self.backend {
            // Nobody else has it.
            StoreBackend::Memory(_) | StoreBackend::Disk(_) => Ok(()),
            StoreBackend::Shared(shared) => shared.raise_fence(&key, fence).await,
        }
    }

    /// Stores `object` under the conditions of `mode`; returns whether it was stored. If not, its
    /// answer is another replica's to store, or there is nothing to replace.
    ///
    /// # Errors
    /// [`StoreError`]; the older object is then kept.
    pub async fn write(
        &self,
        kind: Kind,
        owner: Owner,
        object: StoredObject,
        mode: WriteMode,
    ) -> Result<bool, StoreError> {
        let key = ObjectKey::new(kind, owner, &object.id)?;
        match &self.backend {
            StoreBackend::Memory(memory) => memory.write(key, object, mode, unix_time_s()),
            StoreBackend::Disk(disk) => disk.write(key, object, mode).await,
            StoreBackend::Shared(shared) => shared.write(key, object, mode).await,
        }
    }

    /// Returns the object `id`, unless it has expired.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn get(
        &self,
        kind: Kind,
        owner: Owner,
        id: &str,
    ) -> Result<Option<StoredObject>, StoreError> {
        let Ok(key) = ObjectKey::new(kind, owner, id) else { return Ok(None) };
        match &self.backend {
            StoreBackend::Memory(memory) => Ok(memory.get(&key, unix_time_s())),
            StoreBackend::Disk(disk) => {
                let disk = disk.clone();
                self.read(move || disk.get(&key, unix_time_s())).await
            }
            StoreBackend::Shared(shared) => shared.get(&key).await,
        }
    }

    /// Deletes the object `id`; returns true if it existed and had not expired.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn delete(&self, kind: Kind, owner: Owner, id: &str) -> Result<bool, StoreError> {
        // An id that could not be stored is one that is not there.
        let Ok(key) = ObjectKey::new(kind, owner, id) else { return Ok(false) };
        match &self.backend {
            StoreBackend::Memory(memory) => Ok(memory.delete(&key, unix_time_s())),
            StoreBackend::Disk(disk) => disk.delete(key).await,
            StoreBackend::Shared(shared) => shared.delete(&key).await,
        }
    }

    /// Returns the objects of a kind that `wanted` accepts, oldest or newest first.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn list(
        &self,
        kind: Kind,
        owner: Owner,
        page: ListPage,
        wanted: impl Fn(&StoredObject) -> bool + Send + Sync + 'static,
    ) -> Result<ObjectList, StoreError> {
        let list = List { kind, owner, newest_first: page.newest_first, now_s: unix_time_s() };
        let backend = self.backend.clone();
        match backend {
            StoreBackend::Shared(shared) => {
                tokio::time::timeout(LIST_LIMIT, list_shared(&shared, list, &page, &wanted))
                    .await
                    .unwrap_or_else(|_| Err(StoreError::Failed("the list takes too long".into())))
            }
            local => self.read(move || local.list(list, &page, &wanted)).await,
        }
    }

    /// Replaces this process's rows of the same days and owners in the ledger of usage.
    ///
    /// # Errors
    /// [`StoreError`]; some of the rows may have been written, and all may be written again.
    pub async fn record_usage(&self, rows: Vec<UsageRow>) -> Result<(), StoreError> {
        match &self.backend {
            StoreBackend::Memory(memory) => memory.ledger.record(rows),
            StoreBackend::Disk(disk) => disk.record_usage(rows).await?,
            StoreBackend::Shared(shared) => shared.record_usage(&rows).await?,
        }
        Ok(())
    }

    /// Returns the rows of `query` in the ledger of usage, by day, summed over replicas; one more
    /// than [`ledger::MAX_USAGE_ROWS`] if there are more.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn usage(&self, query: UsageQuery) -> Result<Vec<UsageRow>, StoreError> {
        match &self.backend {
            StoreBackend::Memory(memory) => Ok(memory.ledger.read(&query)),
            StoreBackend::Disk(disk) => {
                let disk = disk.clone();
                self.read(move || disk.usage(&query)).await
            }
            StoreBackend::Shared(shared) => {
                let limited = tokio::time::timeout(LIST_LIMIT, shared.usage(&query)).await;
                let late = |_| Err(StoreError::Failed("reading usage takes too long".into()));
                limited.unwrap_or_else(late)
            }
        }
    }

    /// Removes expired objects periodically and renews this replica's lease in a shared store.
    /// Never returns.
    pub async fn keep_current(self) {
        match self.shared() {
            Some(shared) => tokio::join!(self.keep_swept(), shared.keep_announced()).0,
            None => self.keep_swept().await,
        }
    }

    async fn keep_swept(&self) {
        // The first tick is at once: what grew too old while no server ran goes then.
        let mut tick = tokio::time::interval(SWEEP_EVERY);
        loop {
            tick.tick().await;
            self.sweep().await;
        }
    }

    async fn sweep(&self) {
        match &self.backend {
            StoreBackend::Memory(memory) => memory.sweep(unix_time_s()),
            // A failure was logged, and the next sweep tries again.
            StoreBackend::Disk(disk) => drop(disk.sweep().await),
            StoreBackend::Shared(shared) => drop(shared.sweep().await),
        }
    }

    /// Writes all pending changes and closes the file; later changes are refused. Tells a shared
    /// store that this replica ends.
    pub async fn close(&self) {
        match &self.backend {
            StoreBackend::Memory(_) => {}
            StoreBackend::Disk(disk) => disk.close().await,
            StoreBackend::Shared(shared) => shared.connection.retire().await,
        }
    }

    /// Reads on a blocking thread, of which there are few: a filter may have to see every object.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let read = self.readers.run(move || Ok(read())).await;
        // The outer error is a panic, which a damaged page can bring about.
        read.unwrap_or(Err(StoreError::Unreadable))
    }
}

impl StoreBackend {
    fn list(
        &self,
        list: List,
        page: &ListPage,
        wanted: &dyn Fn(&StoredObject) -> bool,
    ) -> Result<ObjectList, StoreError> {
        let mut filled = FilledPage::new(page);
        let mut from = match self {
            Self::Memory(memory) => memory.start(list, page)?,
            Self::Disk(disk) => disk.start(list, page)?,
            Self::Shared(_) => unreachable!("its lists are read without a thread"),
        };
        loop {
            // A part at a time: the lock is free between them, however long the list is.
            let part = match self {
                Self::Memory(memory) => memory.part(list, from),
                Self::Disk(disk) => disk.part(list, from)?,
                Self::Shared(_) => unreachable!("its lists are read without a thread"),
            };
            let Some((end, objects)) = part else { return Ok(filled.end(false)) };
            from = Some(end);
            if filled.is_full_with(objects, wanted) {
                return Ok(filled.end(true));
            }
        }
    }
}

async fn list_shared(
    shared: &SharedBackend,
    list: List,
    page: &ListPage,
    wanted: &(dyn Fn(&StoredObject) -> bool + Send + Sync),
) -> Result<ObjectList, StoreError> {
    let mut filled = FilledPage::new(page);
    let mut from = shared.start(list, page).await?;
    while let Some((end, objects)) = shared.part(list, from).await? {
        from = Some(end);
        if filled.is_full_with(objects, wanted) {
            return Ok(filled.end(true));
        }
    }
    Ok(filled.end(false))
}

impl FilledPage {
    fn new(page: &ListPage) -> Self {
        Self { limit: page.limit, objects: Vec::new(), bytes: 0 }
    }

    /// Adds the wanted ones of `objects`; returns true as soon as the next one does not fit.
    fn is_full_with(
        &mut self,
        objects: Vec<StoredObject>,
        wanted: &dyn Fn(&StoredObject) -> bool,
    ) -> bool {
        for object in objects.into_iter().filter(|object| wanted(object)) {
            self.bytes += object.json.len();
            // One object further than the page, to know whether there is more.
            let is_too_much = self.bytes > MAX_LIST_BYTES && !self.objects.is_empty();
            if self.objects.len() == self.limit || is_too_much {
                return true;
            }
            self.objects.push(object);
        }
        false
    }

    fn end(self, has_more: bool) -> ObjectList {
        ObjectList { objects: self.objects, has_more }
    }
}

#[cfg(test)]
mod tests;
