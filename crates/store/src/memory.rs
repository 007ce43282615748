//! Objects in memory, lost at the end of the process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;

use super::index::{Entry, Index, List, ObjectKey, ObjectOrder, PART_OBJECTS};
use super::ledger::MemoryLedger;
use super::object::{ListPage, StoreError, StoreLimits, StoredObject, WriteMode};

/// The objects, their index, and the ledger; clones share them.
#[derive(Debug, Clone)]
pub struct MemoryBackend {
    objects: Arc<Mutex<Objects>>,
    /// Usage of the owners.
    pub ledger: MemoryLedger,
}

#[derive(Debug)]
struct Objects {
    index: Index,
    json: HashMap<ObjectKey, Bytes>,
}

impl MemoryBackend {
    /// Creates an empty backend.
    pub fn new(limits: StoreLimits) -> Self {
        let objects = Objects { index: Index::new(limits), json: HashMap::new() };
        Self { objects: Arc::new(Mutex::new(objects)), ledger: MemoryLedger::default() }
    }

    /// Stores an object and evicts others to make room; returns whether it was stored.
    ///
    /// # Errors
    /// When it is too large.
    pub fn write(
        &self,
        key: ObjectKey,
        object: StoredObject,
        mode: WriteMode,
        now_s: u64,
    ) -> Result<bool, StoreError> {
        let mut objects = self.objects();
        // Before anything changes: a refused object leaves the older one where it is.
        objects.index.check(object.json.len())?;
        if mode == WriteMode::Replace && objects.index.find(&key, now_s).is_none() {
            // Deleted, or too old, since the caller read it.
            return Ok(false);
        }
        objects.index.put(&key, object.created_s, object.json.len(), object.progress, now_s);
        objects.json.insert(key.clone(), object.json);
        let gone = objects.index.make_room(Some(&key), now_s);
        objects.forget(&gone);
        Ok(true)
    }

    /// Returns the object with `key`.
    pub fn get(&self, key: &ObjectKey, now_s: u64) -> Option<StoredObject> {
        let objects = self.objects();
        let entry = objects.index.find(key, now_s)?;
        Some(objects.object(key, entry))
    }

    /// Deletes an object; returns true if it existed and had not expired.
    pub fn delete(&self, key: &ObjectKey, now_s: u64) -> bool {
        let mut objects = self.objects();
        let was_there = objects.index.find(key, now_s).is_some();
        objects.json.remove(key);
        objects.index.remove(key);
        was_there
    }

    /// Removes expired objects, or a part of them.
    pub fn sweep(&self, now_s: u64) {
        let mut objects = self.objects();
        let gone = objects.index.sweep(now_s);
        objects.forget(&gone);
    }

    /// Returns the position after which a page begins; `None` for the first page.
    ///
    /// # Errors
    /// When the page is to follow an object that does not exist.
    pub fn start(&self, list: List, page: &ListPage) -> Result<Option<ObjectOrder>, StoreError> {
        self.objects().index.start(list, page)
    }

    /// Returns the next objects of a list after `from`, and the position where the part ends;
    /// `None` at the end of the list.
    pub fn part(
        &self,
        list: List,
        from: Option<ObjectOrder>,
    ) -> Option<(ObjectOrder, Vec<StoredObject>)> {
        let objects = self.objects();
        let all = objects.index.behind(list, from).take(PART_OBJECTS);
        let (ends, part): (Vec<_>, Vec<_>) =
            all.map(|(at, key, entry)| (at, objects.object(key, entry))).unzip();
        ends.last().map(|end| (*end, part))
    }

    fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().expect("nothing panics under this lock")
    }
}

impl Objects {
    fn object(&self, key: &ObjectKey, entry: Entry) -> StoredObject {
        StoredObject {
            id: key.id.as_ref().to_owned(),
            created_s: entry.position.created_s,
            progress: entry.progress,
            // Shared bytes, so that nothing is copied under the lock.
            json: self.json[key].clone(),
        }
    }

    fn forget(&mut self, gone: &[ObjectKey]) {
        for key in gone {
            self.json.remove(key);
        }
    }
}
