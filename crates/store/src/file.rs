//! The store's file: its tables, and the errors of a file that cannot be used.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use bytes::Bytes;
use redb::backends::FileBackend;
use redb::{Builder, Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition};
use sha2::{Digest, Sha256};

use super::index::{Entry, Index, OBJECT_BYTES, ObjectKey, ObjectOrder};
use crate::object::{Kind, Progress, StoreError, StoreLimits, StoredObject};
use loquent_serving::identity::Owner;

/// An index entry with a check of its JSON: creation time, number, whether the answer is being
/// generated, JSON length, and part of the JSON's hash.
pub type Row = (u64, u64, bool, u64, u64);

/// The index, by encoded key.
pub const ENTRIES: TableDefinition<'static, &[u8], Row> = TableDefinition::new("entries");
/// The objects' JSON, by the same keys.
pub const JSON: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("json");
/// Usage by day and owner: the owner's name, requests, and tokens of prompts, from the prefix cache
/// and of answers.
pub const USAGE: TableDefinition<'static, (u32, &[u8; 16]), UsageValue> =
    TableDefinition::new("usage");
/// A row of [`USAGE`].
pub type UsageValue = (&'static str, u64, u64, u64, u64);

/// Metadata of the file: its version.
const ABOUT: TableDefinition<'static, &str, u64> = TableDefinition::new("loquent");

/// The version of the tables above.
const VERSION: u64 = 1;
/// Position of the database's header behind its magic number, in bytes.
const HEADER: Range<usize> = 9..320;
/// Upper bound of the length that the database gives a new file, in bytes.
const MAX_NEW_BYTES: u64 = 16 << 20;
/// Memory for the page cache, in bytes.
const CACHE_BYTES: usize = 8 << 20;

/// Opens `file`, or creates it, and reads its index.
///
/// # Errors
/// [`StoreError::Unusable`].
pub fn open(file: &Path, limits: StoreLimits) -> Result<(Database, Index), StoreError> {
    let shown = file.display();
    let unusable = |why: String| StoreError::Unusable(format!("cannot use the store {why}").into());
    let opened = open_private(file).map_err(|error| unusable(format!("{shown}: {error}")))?;
    // What a damaged file says of itself is believed by the database in places, which then panics.
    let read = catch_unwind(AssertUnwindSafe(|| {
        // This locks the file: two servers never write to the same one.
        let backend = FileBackend::new(opened)?;
        let database = Builder::new().set_cache_size(CACHE_BYTES).create_with_backend(backend)?;
        let index = read_index(&database, limits)?;
        Ok((database, index))
    }));
    let damaged = |why: &str| {
        let todo = "move it away and the server will create a new one";
        unusable(format!("{shown}: not a Loquent store, or damaged ({why}); {todo}"))
    };
    match read {
        Ok(Ok(opened)) => Ok(opened),
        Ok(Err(OpenError::Database(DatabaseError::DatabaseAlreadyOpen))) => Err(unusable(format!(
            "{shown}: another process has it open; end that one, or use another file"
        ))),
        Ok(Err(OpenError::Version(version))) => Err(unusable(format!(
            "{shown}: it has version {version}, and this server knows version {VERSION}; use the \
             server that wrote it, or another file"
        ))),
        Ok(Err(OpenError::Database(error))) => Err(damaged(&error.to_string())),
        Ok(Err(OpenError::Tables(error))) => Err(damaged(&error.to_string())),
        Ok(Err(OpenError::Entry)) => Err(damaged("an entry cannot be read")),
        Err(_) => Err(damaged("its contents are inconsistent")),
    }
}

enum OpenError {
    Database(DatabaseError),
    Tables(redb::Error),
    Version(u64),
    Entry,
}

impl From<DatabaseError> for OpenError {
    fn from(error: DatabaseError) -> Self {
        Self::Database(error)
    }
}

impl From<redb::Error> for OpenError {
    fn from(error: redb::Error) -> Self {
        Self::Tables(error)
    }
}

/// Opens or creates a file that only its owner may read, because it holds conversations.
fn open_private(file: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    // Asked before it is opened, since that makes it.
    let is_new = !file.exists();
    let opened = options.open(file)?;
    if let Some(folder) = file.parent().filter(|_| is_new && cfg!(unix)) {
        // A new name is safe once its folder is.
        let here = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        File::open(here)?.sync_all()?;
    }
    empty_if_unfinished(&opened)?;
    Ok(opened)
}

/// Empties the file if the process that created it ended before the database was in it. The
/// database takes an empty file for a new one, and refuses this one.
fn empty_if_unfinished(file: &File) -> io::Result<()> {
    if !is_unfinished(file)? {
        return Ok(());
    }
    // Another process may be creating it just now: the database will say that it is open.
    if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
        return Ok(());
    }
    let emptied =
        is_unfinished(file).and_then(|is_still| if is_still { file.set_len(0) } else { Ok(()) });
    // The database locks it in its own way.
    let _ = file.unlock();
    emptied
}

/// Returns true for a file of zeros, or of a header without its magic number and zeros. The
/// database sets the length of a new file, then writes its header, and its magic number last.
fn is_unfinished(mut file: &File) -> io::Result<bool> {
    if !(1..=MAX_NEW_BYTES).contains(&file.metadata()?.len()) {
        return Ok(false);
    }
    file.seek(SeekFrom::Start(0))?;
    for (at, byte) in BufReader::new(file).bytes().enumerate() {
        if byte? != 0 && !HEADER.contains(&at) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn read_index(database: &Database, limits: StoreLimits) -> Result<Index, OpenError> {
    let version = prepare(database)?;
    if version != VERSION {
        return Err(OpenError::Version(version));
    }
    // All of it, even beyond the bounds: the first sweep evicts in the usual order.
    let mut index = Index::new(limits);
    for (key, row) in rows(database)? {
        let key = key_of(&key).ok_or(OpenError::Entry)?;
        index.restore(key, entry_of(row)).map_err(|_| OpenError::Entry)?;
    }
    Ok(index)
}

/// Creates the tables of a new file; returns the file's version.
fn prepare(database: &Database) -> Result<u64, redb::Error> {
    let transaction = database.begin_write()?;
    let version = {
        let mut about = transaction.open_table(ABOUT)?;
        let known = about.get("version")?.map(|version| version.value());
        if known.is_none() {
            about.insert("version", VERSION)?;
        }
        // Only a new file has none.
        known.unwrap_or(VERSION)
    };
    // The tables of another version may have the same names and other rows.
    if version == VERSION {
        transaction.open_table(ENTRIES)?;
        transaction.open_table(JSON)?;
        transaction.open_table(USAGE)?;
    }
    transaction.commit()?;
    Ok(version)
}

fn rows(database: &Database) -> Result<Vec<(Vec<u8>, Row)>, redb::Error> {
    let transaction = database.begin_read()?;
    let entries = transaction.open_table(ENTRIES)?;
    let mut rows = Vec::new();
    for row in entries.iter()? {
        let (key, row) = row?;
        rows.push((key.value().to_vec(), row.value()));
    }
    Ok(rows)
}

/// Encodes a key for the tables: kind, owner, id.
pub fn bytes_of(key: &ObjectKey) -> Vec<u8> {
    // The id is last: the others have fixed lengths, so that no two keys look alike.
    [&[key.kind as u8][..], &key.owner.0, key.id.as_bytes()].concat()
}

fn key_of(bytes: &[u8]) -> Option<ObjectKey> {
    let (kind, rest) = bytes.split_first()?;
    let (owner, id) = rest.split_first_chunk()?;
    ObjectKey::new(Kind::of_number(*kind)?, Owner(*owner), str::from_utf8(id).ok()?).ok()
}

/// Encodes an entry for its table.
pub fn row_of(entry: Entry, json: &[u8]) -> Row {
    let Entry { position, progress, .. } = entry;
    let runs = progress != Progress::Ended;
    (position.created_s, position.number, runs, json.len() as u64, check_of(json))
}

fn entry_of((created_s, number, runs, json_bytes, _): Row) -> Entry {
    Entry {
        position: ObjectOrder { created_s, number },
        // A damaged file's length must not overflow the sums that it enters.
        bytes: usize::try_from(json_bytes).unwrap_or(usize::MAX / 2).saturating_add(OBJECT_BYTES),
        progress: if runs { Progress::Running } else { Progress::Ended },
    }
}

/// Decodes the object with `key` from its row and JSON.
///
/// # Errors
/// When the JSON is not what was written.
pub fn object_of(key: &ObjectKey, row: Row, json: Bytes) -> Result<StoredObject, StoreError> {
    if check_of(&json) != row.4 {
        let why = format!("the object {} is damaged", key.id);
        return Err(StoreError::Failed(why.into()));
    }
    let Entry { position, progress, .. } = entry_of(row);
    let id = key.id.as_ref().to_owned();
    Ok(StoredObject { id, created_s: position.created_s, progress, json })
}

fn check_of(json: &[u8]) -> u64 {
    // Eight bytes find damage. Forgery is not prevented: the file is its owner's alone.
    let digest: [u8; 32] = Sha256::digest(json).into();
    u64::from_le_bytes(std::array::from_fn(|at| digest[at]))
}
