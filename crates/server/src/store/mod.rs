//! The store: finished answers that clients ask to be kept, and background answers while they run.
//!
//! It is bounded by bytes, in all and for each owner, and by age; the oldest objects go first.
//! Without a file it lives in memory. A file survives restarts: what was acknowledged is there
//! after a crash.
//!
//! [`index`] knows what is there and decides what goes, [`memory`] and [`disk`] hold the objects'
//! bytes. Objects belong to the API key that made them, and are found under no other.

mod disk;
mod file;
mod index;
mod memory;
pub mod object;
pub mod recorder;

use std::path::Path;
use std::time::Duration;

use crate::blocking_workers::BlockingWorkers;
use crate::clock::unix_time_s;
use crate::error::ApiError;
use disk::DiskShelf;
use index::{List, ObjectKey};
use memory::MemoryShelf;

use object::WriteMode;
pub use object::{
    Kind, ListPage, ObjectList, Owner, Progress, StoreConfig, StoreError, StoreLimits, StoredObject,
};

/// Objects and lists that are read at once.
const READERS: usize = 4;
/// Most bytes of a list's objects, unless one alone has more.
const MAX_LIST_BYTES: usize = 8 << 20;
/// `Retry-After` while the store does not work, in seconds.
const RETRY_S: u64 = 10;
/// How often the store forgets what is too old. It is not found from the second on in which it is.
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

/// Holds objects. Cheap to clone: all clones are one store.
#[derive(Debug, Clone)]
pub struct Store {
    shelf: Shelf,
    readers: BlockingWorkers,
    /// Most bytes of an object's JSON.
    most_json_bytes: usize,
}

/// Where the objects are.
#[derive(Debug, Clone)]
enum Shelf {
    Memory(MemoryShelf),
    Disk(DiskShelf),
}

impl Store {
    /// The store that `config` asks for.
    ///
    /// # Errors
    /// When its file cannot be used; the message says what to do.
    pub fn start(config: &StoreConfig) -> Result<Self, StoreError> {
        match &config.file {
            None => Ok(Self::in_memory(config.limits)),
            Some(file) => Self::open(file, config.limits),
        }
    }

    /// A store that is empty at each start.
    pub fn in_memory(limits: StoreLimits) -> Self {
        Self::of(Shelf::Memory(MemoryShelf::new(limits)), limits)
    }

    /// A store in `file`, which is begun if there is none.
    ///
    /// # Errors
    /// When it cannot be used; the message says what to do.
    pub fn open(file: &Path, limits: StoreLimits) -> Result<Self, StoreError> {
        let disk = DiskShelf::open(file, limits)?;
        let (objects, bytes, broken_off) = disk.count();
        tracing::info!(objects, bytes, broken_off, "opened the store {}", file.display());
        Ok(Self::of(Shelf::Disk(disk), limits))
    }

    fn of(shelf: Shelf, limits: StoreLimits) -> Self {
        let most_json_bytes = index::most_json_bytes(&limits);
        Self { shelf, readers: BlockingWorkers::new(READERS), most_json_bytes }
    }

    /// Most bytes of an object's JSON; larger ones are refused.
    pub const fn most_json_bytes(&self) -> usize {
        self.most_json_bytes
    }

    /// Stores `object`, in place of an older one with its id, whose place in lists it keeps. When
    /// this returns, a store with a file has it on disk.
    ///
    /// # Errors
    /// [`StoreError`]; the older one stays then.
    pub async fn put(
        &self,
        kind: Kind,
        owner: Owner,
        object: StoredObject,
    ) -> Result<(), StoreError> {
        self.write(kind, owner, object, WriteMode::Put).await.map(drop)
    }

    /// Stores `object` in place of an older one with its id; whether there was one. Without one,
    /// nothing changes: what a client has deleted does not come back.
    ///
    /// # Errors
    /// [`StoreError`]; the older one stays then.
    pub async fn replace(
        &self,
        kind: Kind,
        owner: Owner,
        object: StoredObject,
    ) -> Result<bool, StoreError> {
        self.write(kind, owner, object, WriteMode::Replace).await
    }

    async fn write(
        &self,
        kind: Kind,
        owner: Owner,
        object: StoredObject,
        mode: WriteMode,
    ) -> Result<bool, StoreError> {
        let key = ObjectKey::new(kind, owner, &object.id)?;
        match &self.shelf {
            Shelf::Memory(memory) => memory.write(key, object, mode, unix_time_s()),
            Shelf::Disk(disk) => disk.write(key, object, mode).await,
        }
    }

    /// The object `id`, unless it is too old.
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
        match &self.shelf {
            Shelf::Memory(memory) => Ok(memory.get(&key, unix_time_s())),
            Shelf::Disk(disk) => {
                let disk = disk.clone();
                self.read(move || disk.get(&key, unix_time_s())).await
            }
        }
    }

    /// Forgets the object `id`; whether there was one that is not too old.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn delete(&self, kind: Kind, owner: Owner, id: &str) -> Result<bool, StoreError> {
        // An id that could not be stored is one that is not there.
        let Ok(key) = ObjectKey::new(kind, owner, id) else { return Ok(false) };
        match &self.shelf {
            Shelf::Memory(memory) => Ok(memory.delete(&key, unix_time_s())),
            Shelf::Disk(disk) => disk.delete(key).await,
        }
    }

    /// The objects of a kind that `wanted` accepts, from oldest to newest or the other way round.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn list(
        &self,
        kind: Kind,
        owner: Owner,
        page: ListPage,
        wanted: impl Fn(&StoredObject) -> bool + Send + 'static,
    ) -> Result<ObjectList, StoreError> {
        let list = List { kind, owner, newest_first: page.newest_first, now_s: unix_time_s() };
        let shelf = self.shelf.clone();
        self.read(move || shelf.list(list, &page, &wanted)).await
    }

    /// Forgets what is too old, for ever.
    pub async fn keep_swept(self) {
        // The first tick is at once: what grew too old while no server ran goes then.
        let mut tick = tokio::time::interval(SWEEP_EVERY);
        loop {
            tick.tick().await;
            self.sweep().await;
        }
    }

    async fn sweep(&self) {
        match &self.shelf {
            Shelf::Memory(memory) => memory.sweep(unix_time_s()),
            // A failure was logged, and the next sweep tries again.
            Shelf::Disk(disk) => drop(disk.sweep().await),
        }
    }

    /// Writes what waits and closes the file; the store refuses everything from then on.
    pub async fn close(&self) {
        match &self.shelf {
            Shelf::Memory(_) => {}
            Shelf::Disk(disk) => disk.close().await,
        }
    }

    /// Reads on a thread that may block, few at once: a filter may have to see every object.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let read = self.readers.run(move || Ok(read())).await;
        // The outer error is a panic, which a damaged page can bring about.
        read.unwrap_or(Err(StoreError::Unreadable))
    }
}

impl Shelf {
    fn list(
        &self,
        list: List,
        page: &ListPage,
        wanted: &dyn Fn(&StoredObject) -> bool,
    ) -> Result<ObjectList, StoreError> {
        let (mut found, mut bytes) = (Vec::new(), 0);
        let mut from = match self {
            Self::Memory(memory) => memory.start(list, page)?,
            Self::Disk(disk) => disk.start(list, page)?,
        };
        loop {
            // A part at a time: the lock is free between them, however long the list is.
            let part = match self {
                Self::Memory(memory) => memory.part(list, from),
                Self::Disk(disk) => disk.part(list, from)?,
            };
            let Some((end, objects)) = part else {
                return Ok(ObjectList { objects: found, has_more: false });
            };
            from = Some(end);
            for object in objects.into_iter().filter(|object| wanted(object)) {
                bytes += object.json.len();
                // One object further than the page, to know whether there is more.
                if found.len() == page.limit || bytes > MAX_LIST_BYTES && !found.is_empty() {
                    return Ok(ObjectList { objects: found, has_more: true });
                }
                found.push(object);
            }
        }
    }
}

#[cfg(test)]
mod tests;
