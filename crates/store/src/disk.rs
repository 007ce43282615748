//! Objects in a file, an embedded database. After a crash, each of its commits is either complete
//! or absent.
//!
//! One thread writes. It puts all waiting changes into one commit, so that answers that end at the
//! same time share the wait for the disk, and replies once the commit is safe. If a write fails,
//! for instance on a full disk, nothing of its commit remains, and the file is reopened before the
//! next one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use redb::{Database, ReadableDatabase, Table, WriteTransaction};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::file::{self, ENTRIES, JSON, Row, USAGE, UsageValue, object_of};
use super::index::{Index, List, ObjectKey, ObjectOrder, PART_OBJECTS};
use super::ledger::{MAX_USAGE_ROWS, UsageQuery, UsageRow, first_kept_day};
use super::object::{ListPage, StoreError, StoreLimits, StoredObject, WriteMode};
use loquent_serving::clock::unix_time_s;
use loquent_serving::identity::Owner;
use loquent_serving::usage::UsageCounts;

/// Maximum changes queued for the writer; further callers wait for room.
const MAX_WAITING: usize = 16;
/// Maximum bytes of a list read at once, unless a single object has more.
const PART_BYTES: usize = 1 << 20;
/// Delay after a failure before the file is reopened.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// The objects of a file; clones share them.
#[derive(Debug, Clone)]
pub struct DiskBackend {
    shared: Arc<Shared>,
    jobs: mpsc::Sender<WriteJob>,
}

#[derive(Debug)]
struct Shared {
    file: PathBuf,
    limits: StoreLimits,
    /// The database; after a failure or the end, the reason why there is none.
    database: RwLock<Result<Arc<Database>, Arc<str>>>,
    /// Index of the database, including changes about to be committed.
    index: Mutex<Index>,
}

/// A job for the writer: a change, and the channel for its outcome.
#[derive(Debug)]
struct WriteJob {
    change: ObjectChange,
    reply: oneshot::Sender<Result<bool, StoreError>>,
}

#[derive(Debug)]
enum ObjectChange {
    Write(ObjectKey, StoredObject, WriteMode),
    Delete(ObjectKey),
    /// Replace rows of the ledger.
    Usage(Vec<UsageRow>),
    /// Remove expired objects.
    Sweep,
    /// Close the file once all earlier changes are written.
    Close,
}

impl DiskBackend {
    /// Opens `file`, or creates it.
    ///
    /// # Errors
    /// [`StoreError::Unusable`], when it is in use, damaged, or not a store.
    pub fn open(file: &Path, limits: StoreLimits) -> Result<Self, StoreError> {
        let (database, index) = file::open(file, limits)?;
        let shared = Arc::new(Shared {
            file: file.to_owned(),
            limits,
            database: RwLock::new(Ok(Arc::new(database))),
            index: Mutex::new(index),
        });
        let (jobs, inbox) = mpsc::channel(MAX_WAITING);
        let writer = Writer { shared: shared.clone(), failed_at: None };
        let thread = std::thread::Builder::new().name("store".into());
        let unusable =
            |error| StoreError::Unusable(format!("no thread for the store: {error}").into());
        thread.spawn(move || writer.run(inbox)).map_err(unusable)?;
        Ok(Self { shared, jobs })
    }

    /// Stores an object and evicts others to make room; returns whether it was stored.
    ///
    /// # Errors
    /// When it is too large, or the file cannot be written.
    pub async fn write(
        &self,
        key: ObjectKey,
        object: StoredObject,
        mode: WriteMode,
    ) -> Result<bool, StoreError> {
        self.ask(ObjectChange::Write(key, object, mode)).await
    }

    /// Deletes an object; returns true if it existed and had not expired.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub async fn delete(&self, key: ObjectKey) -> Result<bool, StoreError> {
        self.ask(ObjectChange::Delete(key)).await
    }

    /// Removes expired objects.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub async fn sweep(&self) -> Result<(), StoreError> {
        self.ask(ObjectChange::Sweep).await.map(drop)
    }

    /// Replaces the ledger's rows of the same days and owners.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub async fn record_usage(&self, rows: Vec<UsageRow>) -> Result<(), StoreError> {
        self.ask(ObjectChange::Usage(rows)).await.map(drop)
    }

    /// Returns the first rows of `query`, one more than [`MAX_USAGE_ROWS`] if there are more.
    /// Blocks.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn usage(&self, query: &UsageQuery) -> Result<Vec<UsageRow>, StoreError> {
        let database = self.shared.database()?;
        let read = || -> Result<Vec<UsageRow>, redb::Error> {
            let usage = database.begin_read()?.open_table(USAGE)?;
            let (first, last) = ((*query.days.start(), &[0; 16]), (*query.days.end(), &[255; 16]));
            let mut rows = Vec::new();
            for row in usage.range(first..=last)? {
                let (key, value) = row?;
                let (day, owner) = key.value();
                // One more than the limit says that there are more.
                if rows.len() <= MAX_USAGE_ROWS && query.wants(day, Owner(*owner)) {
                    rows.push(usage_row(day, Owner(*owner), value.value()));
                }
            }
            Ok(rows)
        };
        read().map_err(|error| self.shared.failed(&error.to_string()))
    }

    /// Closes the file. Every later change is refused.
    pub async fn close(&self) {
        let _ = self.ask(ObjectChange::Close).await;
    }

    async fn ask(&self, change: ObjectChange) -> Result<bool, StoreError> {
        let (reply, replied) = oneshot::channel();
        let closed = || StoreError::Failed("it is closed".into());
        self.jobs.send(WriteJob { change, reply }).await.map_err(|_| closed())?;
        // What comes behind `Close` is dropped with its reply unsent.
        replied.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Returns the object with `key`. Blocks.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn get(&self, key: &ObjectKey, now_s: u64) -> Result<Option<StoredObject>, StoreError> {
        let found = self.shared.read(std::slice::from_ref(key))?.pop().flatten();
        // What has grown too old since the last sweep is still in the file.
        let age_s = self.shared.limits.age.as_secs();
        Ok(found.filter(|object| now_s.saturating_sub(object.created_s) <= age_s))
    }

    /// Returns the position after which a page begins; `None` for the first page.
    ///
    /// # Errors
    /// When the page is to follow an object that does not exist.
    pub fn start(&self, list: List, page: &ListPage) -> Result<Option<ObjectOrder>, StoreError> {
        self.shared.index().start(list, page)
    }

    /// Returns the next objects of a list after `from`, and the position where the part ends;
    /// `None` at the end of the list. Blocks.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn part(
        &self,
        list: List,
        from: Option<ObjectOrder>,
    ) -> Result<Option<(ObjectOrder, Vec<StoredObject>)>, StoreError> {
        // The lock ends with this block: a read from the disk under it would stop the writer.
        let (ends, keys): (Vec<_>, Vec<_>) = {
            let (index, mut bytes) = (self.shared.index(), 0);
            let few = index.behind(list, from).take(PART_OBJECTS).take_while(|(_, _, entry)| {
                // Always one, and the next ones while they are small.
                let fits = bytes == 0 || bytes + entry.bytes <= PART_BYTES;
                bytes += entry.bytes;
                fits
            });
            few.map(|(at, key, _)| (at, key.clone())).unzip()
        };
        let Some(end) = ends.last() else { return Ok(None) };
        // What is about to be written is not there yet.
        let objects = self.shared.read(&keys)?.into_iter().flatten().collect();
        Ok(Some((*end, objects)))
    }

    /// Returns the number of objects, their bytes, and the number whose answers were being
    /// generated.
    pub fn count(&self) -> (usize, usize, usize) {
        let index = self.shared.index();
        (index.len(), index.bytes(), index.running())
    }
}

impl Shared {
    fn index(&self) -> MutexGuard<'_, Index> {
        // The database may panic on a damaged file. The index is read anew then.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn database(&self) -> Result<Arc<Database>, StoreError> {
        let database = self.database.read().expect("nothing panics under this lock");
        database.clone().map_err(StoreError::Failed)
    }

    fn set_database(&self, database: Result<Arc<Database>, Arc<str>>) {
        *self.database.write().expect("nothing panics under this lock") = database;
    }

    /// Reads the objects with `keys`; `None` for each that is missing.
    fn read(&self, keys: &[ObjectKey]) -> Result<Vec<Option<StoredObject>>, StoreError> {
        let database = self.database()?;
        let read = || -> Result<Vec<Option<(Row, Bytes)>>, redb::Error> {
            let transaction = database.begin_read()?;
            let (entries, json) = (transaction.open_table(ENTRIES)?, transaction.open_table(JSON)?);
            let one = |key: &ObjectKey| {
                let key = file::bytes_of(key);
                let (entry, json) = (entries.get(&*key)?, json.get(&*key)?);
                let both = entry.zip(json);
                // Copied, since the pages are the transaction's, which ends here.
                Ok(both.map(|(row, json)| (row.value(), Bytes::copy_from_slice(json.value()))))
            };
            keys.iter().map(one).collect()
        };
        let rows = read().map_err(|error| self.failed(&error.to_string()))?;
        let objects = keys.iter().zip(rows);
        objects
            .map(|(key, row)| row.map(|(row, json)| object_of(key, row, json)).transpose())
            .collect()
    }

    fn failed(&self, why: &str) -> StoreError {
        StoreError::Failed(format!("{}: {why}", self.file.display()).into())
    }
}

/// The thread that writes.
struct Writer {
    shared: Arc<Shared>,
    failed_at: Option<Instant>,
}

impl Writer {
    fn run(mut self, mut inbox: mpsc::Receiver<WriteJob>) {
        while let Some(first) = inbox.blocking_recv() {
            let mut jobs = vec![first];
            // No wait for more: what came during the last commit is the next one's.
            while let Ok(next) = inbox.try_recv() {
                jobs.push(next);
            }
            let (last, jobs): (Vec<_>, Vec<_>) =
                jobs.into_iter().partition(|job| matches!(job.change, ObjectChange::Close));
            // Whoever came before the end still gets its object written.
            self.serve(jobs);
            if !last.is_empty() {
                // The file is closed when its last reader is done.
                self.shared.set_database(Err("it is closed".into()));
                last.into_iter().for_each(|job| drop(job.reply.send(Ok(true))));
                return;
            }
        }
    }

    /// Applies the changes of `jobs` in one commit and replies to each job.
    fn serve(&mut self, jobs: Vec<WriteJob>) {
        let (changes, replies): (Vec<_>, Vec<_>) =
            jobs.into_iter().map(|job| (job.change, job.reply)).unzip();
        // Only `Close` was asked for: nothing to open the file for.
        if replies.is_empty() {
            return;
        }
        let outcomes = match self.reopened().and_then(|database| self.write(&database, &changes)) {
            Ok(outcomes) => outcomes,
            Err(error) => vec![Err(error); replies.len()],
        };
        for (reply, outcome) in replies.into_iter().zip(outcomes) {
            // Who asked may have gone; the change is made all the same.
            let _ = reply.send(outcome);
        }
    }

    /// Returns the database, reopened if its last failure is at least [`RETRY_AFTER`] ago.
    fn reopened(&mut self) -> Result<Arc<Database>, StoreError> {
        let failure = match self.shared.database() {
            Ok(database) => return Ok(database),
            Err(failure) => failure,
        };
        if self.failed_at.is_some_and(|at| at.elapsed() < RETRY_AFTER) {
            // To open it reads the whole index, which every answer would have to wait for.
            return Err(failure);
        }
        // Noted before the attempt, so that a pause follows one which fails too.
        self.failed_at = Some(Instant::now());
        let (database, index) = file::open(&self.shared.file, self.shared.limits)?;
        tracing::info!("the store {} works again", self.shared.file.display());
        // Before the database: what is read then must be in the index.
        *self.shared.index() = index;
        let database = Arc::new(database);
        self.shared.set_database(Ok(database.clone()));
        Ok(database)
    }

    fn write(
        &mut self,
        database: &Database,
        changes: &[ObjectChange],
    ) -> Result<Vec<Result<bool, StoreError>>, StoreError> {
        let only_sweeps = changes.iter().all(|change| matches!(change, ObjectChange::Sweep));
        if only_sweeps && !self.shared.index().has_to_sweep(unix_time_s()) {
            // An idle server writes nothing.
            return Ok(changes.iter().map(|_| Ok(true)).collect());
        }
        let commit = || self.commit(database, changes).map_err(|error| error.to_string());
        let damaged = |_| Err("its contents are inconsistent".to_owned());
        catch_unwind(AssertUnwindSafe(commit)).unwrap_or_else(damaged).map_err(|why| {
            let failure = self.shared.failed(&why);
            tracing::error!("{failure}");
            // The database refuses everything after a failure, and the index is ahead of it.
            self.shared.set_database(Err(why.into()));
            self.failed_at = Some(Instant::now());
            failure
        })
    }

    fn commit(
        &self,
        database: &Database,
        changes: &[ObjectChange],
    ) -> Result<Vec<Result<bool, StoreError>>, redb::Error> {
        let transaction = database.begin_write()?;
        let mut tables = Tables::open(&transaction)?;
        let outcomes: Result<Vec<_>, redb::Error> = {
            let mut index = self.shared.index();
            changes.iter().map(|change| tables.apply(&mut index, change)).collect()
        };
        // A commit has no open tables.
        drop(tables);
        let outcomes = outcomes?;
        transaction.commit()?;
        Ok(outcomes)
    }
}

fn usage_row(
    day: u32,
    owner: Owner,
    (name, requests, prompt, cached, completion): (&str, u64, u64, u64, u64),
) -> UsageRow {
    let counts = UsageCounts {
        requests,
        prompt_tokens: prompt,
        cached_tokens: cached,
        completion_tokens: completion,
    };
    UsageRow { day, owner, name: (!name.is_empty()).then(|| name.to_owned()), counts }
}

/// The tables of a transaction.
struct Tables<'a> {
    entries: Table<'a, &'static [u8], Row>,
    json: Table<'a, &'static [u8], &'static [u8]>,
    usage: Table<'a, (u32, &'static [u8; 16]), UsageValue>,
}

impl<'a> Tables<'a> {
    fn open(transaction: &'a WriteTransaction) -> Result<Self, redb::Error> {
        Ok(Self {
            entries: transaction.open_table(ENTRIES)?,
            json: transaction.open_table(JSON)?,
            usage: transaction.open_table(USAGE)?,
        })
    }

    /// Applies one change to the index and the tables. The inner error refuses only this change.
    fn apply(
        &mut self,
        index: &mut Index,
        change: &ObjectChange,
    ) -> Result<Result<bool, StoreError>, redb::Error> {
        // The time of the write: a change may have waited long for the disk.
        let now_s = unix_time_s();
        let (fresh, done) = match change {
            ObjectChange::Write(key, object, mode) => {
                if let Err(refused) = index.check(object.json.len()) {
                    // The other changes of the commit are made nevertheless.
                    return Ok(Err(refused));
                }
                if *mode == WriteMode::Replace && index.find(key, now_s).is_none() {
                    // Deleted, or too old, since the caller read it.
                    return Ok(Ok(false));
                }
                self.put(index, key, object, now_s)?;
                (Some(key), true)
            }
            ObjectChange::Delete(key) => {
                let was_there = index.find(key, now_s).is_some();
                self.remove(key)?;
                index.remove(key);
                (None, was_there)
            }
            ObjectChange::Usage(rows) => {
                self.record_usage(rows)?;
                (None, true)
            }
            ObjectChange::Sweep | ObjectChange::Close => {
                for gone in index.sweep(now_s) {
                    self.remove(&gone)?;
                }
                (None, true)
            }
        };
        for gone in index.make_room(fresh, now_s) {
            self.remove(&gone)?;
        }
        Ok(Ok(done))
    }

    fn put(
        &mut self,
        index: &mut Index,
        key: &ObjectKey,
        object: &StoredObject,
        now_s: u64,
    ) -> Result<(), redb::Error> {
        let bytes = object.json.len();
        let entry = index.put(key, object.created_s, bytes, object.progress, now_s);
        let key = file::bytes_of(key);
        self.entries.insert(&*key, file::row_of(entry, &object.json))?;
        self.json.insert(&*key, &*object.json)?;
        Ok(())
    }

    fn record_usage(&mut self, rows: &[UsageRow]) -> Result<(), redb::Error> {
        for UsageRow { day, owner, name, counts } in rows {
            let UsageCounts { requests, prompt_tokens, cached_tokens, completion_tokens } = *counts;
            let name = name.as_deref().unwrap_or_default();
            let value = (name, requests, prompt_tokens, cached_tokens, completion_tokens);
            self.usage.insert((*day, &owner.0), value)?;
        }
        let last = rows.iter().map(|row| row.day).max().unwrap_or(0);
        // When nothing is old, this reads the first key alone.
        self.usage.retain_in(..(first_kept_day(last), &[0; 16]), |_, _| false)?;
        Ok(())
    }

    fn remove(&mut self, key: &ObjectKey) -> Result<(), redb::Error> {
        let key = file::bytes_of(key);
        self.entries.remove(&*key)?;
        self.json.remove(&*key)?;
        Ok(())
    }
}
