//! A store of prefixes on disk, for prompts that were computed before a restart, before their model
//! was unloaded, or at another replica with the same folder.
//!
//! [`block`] says what the files are. This module keeps the folder: which blocks it has, and that
//! they take no more than the operator allows. The engine thread asks [`PrefixStore::has`] only,
//! which is answered from memory; threads of its own read and write (`engine_thread/prefixes.rs`).
//!
//! Other processes may use the folder at the same time. A file that is gone or new is therefore
//! nothing special. A damaged one is removed and counts as gone.

pub mod block;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use self::block::{BlockKey, Damage, HEAD_BYTES, Head};
use crate::cache_domain::DomainSecret;

/// Maximum files of a store; beyond it, the least recently used ones go.
const MAX_FILES: usize = 1 << 17;
/// Age at which a file that nobody finished is removed: a write takes seconds at most.
const ABANDONED_AFTER: Duration = Duration::from_secs(3600);
/// Time after which the folder is listed again, for what other processes did.
const LIST_EVERY: Duration = Duration::from_secs(1);
/// Pause after a failed write, in which a full disk can be cleared.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(30);
/// File with the secret from which the domains are made, which replicas share.
const SECRET_FILE: &str = "domain-secret";
/// Number of attempts to read a secret that another process may be writing.
const SECRET_READS: usize = 20;
/// Pause between them.
const SECRET_PAUSE: Duration = Duration::from_millis(10);
/// The operating system's number for a disk that cannot read what it has, on every Unix.
const EIO: i32 = 5;
/// File name extension of a file that is being written.
const TEMPORARY: &str = "tmp";

/// Location and size of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrefixStoreConfig {
    /// The folder, which is created if it does not exist.
    pub folder: PathBuf,
    /// Maximum bytes of all its files.
    pub max_bytes: u64,
}

/// Use of a block for a prompt.
#[derive(Debug, Clone, Copy)]
pub struct BlockUse {
    /// Time of the use, the same for all blocks of the prompt.
    pub at: SystemTime,
    /// Number of the block in the prompt, from 0.
    pub index: u32,
}

impl BlockUse {
    /// Returns the time to record. Later blocks are of no use without earlier ones, so they count
    /// as older and go first.
    fn stamp(self) -> SystemTime {
        self.at.checked_sub(Duration::from_millis(self.index.into())).unwrap_or(self.at)
    }
}

/// A block of which the store knows.
#[derive(Debug, Clone, Copy)]
struct KnownBlock {
    bytes: u64,
    used_at: SystemTime,
}

/// The blocks in the folder, as far as known.
#[derive(Debug, Default)]
struct KnownBlocks {
    blocks: HashMap<BlockKey, KnownBlock>,
    bytes: u64,
    listed_at: Option<SystemTime>,
}

impl KnownBlocks {
    fn insert(&mut self, key: BlockKey, block: KnownBlock) {
        self.remove(&key);
        self.bytes += block.bytes;
        self.blocks.insert(key, block);
    }

    fn remove(&mut self, key: &BlockKey) {
        if let Some(block) = self.blocks.remove(key) {
            self.bytes -= block.bytes;
        }
    }

    /// Removes the least recently used blocks until `bytes` more fit into `max_bytes`; returns
    /// their keys. Makes more room than that, so that not every write has to.
    fn evict(&mut self, bytes: u64, max_bytes: u64) -> Vec<BlockKey> {
        if self.bytes + bytes <= max_bytes && self.blocks.len() < MAX_FILES {
            return Vec::new();
        }
        let most = (max_bytes / 10 * 9).min(max_bytes.saturating_sub(bytes));
        let mut oldest: Vec<_> =
            self.blocks.iter().map(|(key, block)| (block.used_at, *key)).collect();
        oldest.sort_unstable_by_key(|(used_at, _)| *used_at);
        let mut evicted = Vec::new();
        for (_, key) in oldest {
            if self.bytes <= most && self.blocks.len() <= MAX_FILES / 10 * 9 {
                break;
            }
            self.remove(&key);
            evicted.push(key);
        }
        evicted
    }
}

/// A folder with blocks of keys and values. All engines of a process share one.
#[derive(Debug)]
pub struct PrefixStore {
    folder: PathBuf,
    max_bytes: u64,
    secret: DomainSecret,
    known: Mutex<KnownBlocks>,
    /// Number of files begun, for the names of temporary ones.
    begun: AtomicU64,
    /// When the last write failed; `None` if it succeeded.
    failed_at: Mutex<Option<SystemTime>>,
    /// True since a damaged file was found; later ones are not reported again.
    has_told_damage: AtomicBool,
}

impl PrefixStore {
    /// Opens the store of `config`.
    ///
    /// # Errors
    /// If the folder cannot be created, read or written.
    pub fn open(config: PrefixStoreConfig) -> io::Result<Self> {
        let PrefixStoreConfig { folder, max_bytes } = config;
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let secret = secret_of(&folder, |from, to| fs::hard_link(from, to))?;
        let store = Self {
            folder,
            max_bytes,
            secret,
            known: Mutex::default(),
            begun: AtomicU64::default(),
            failed_at: Mutex::default(),
            has_told_damage: AtomicBool::default(),
        };
        store.list(SystemTime::now())?;
        Ok(store)
    }

    /// The secret from which the cache domains are made: those of all processes with this folder
    /// are the same.
    pub fn secret(&self) -> DomainSecret {
        self.secret.clone()
    }

    /// Returns true if the folder is known to have the block.
    pub fn has(&self, key: &BlockKey) -> bool {
        self.known().blocks.contains_key(key)
    }

    /// Returns true if the folder was not listed for a while before `now`.
    pub fn is_stale(&self, now: SystemTime) -> bool {
        let listed_at = self.known().listed_at;
        // A clock that was set back makes it stale, too.
        let age = listed_at.map(|at| now.duration_since(at).unwrap_or(LIST_EVERY));
        age.is_none_or(|age| age >= LIST_EVERY)
    }

    /// Lists the folder at `now`.
    ///
    /// # Errors
    /// If it cannot be read; what was known stays.
    pub fn list(&self, now: SystemTime) -> io::Result<()> {
        // Noted first: meanwhile nobody else needs to.
        self.known().listed_at = Some(now);
        let mut found = KnownBlocks { listed_at: Some(now), ..KnownBlocks::default() };
        for entry in fs::read_dir(&self.folder)?.take(2 * MAX_FILES).flatten() {
            let Ok(facts) = entry.metadata() else { continue };
            let used_at = facts.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            let name = entry.file_name();
            match name.to_str().and_then(BlockKey::of_file_name) {
                Some(key) if facts.is_file() => {
                    found.insert(key, KnownBlock { bytes: facts.len(), used_at });
                }
                _ => remove_abandoned(&entry.path(), used_at, now),
            }
        }
        *self.known() = found;
        Ok(())
    }

    /// Reads the block `key`. `None` if it is gone or damaged.
    pub fn read(&self, key: &BlockKey, used: BlockUse) -> Option<Vec<u8>> {
        let path = self.path(key);
        match read_block(&path, key, used.stamp()) {
            Ok(state) => {
                if let Some(block) = self.known().blocks.get_mut(key) {
                    block.used_at = used.stamp();
                }
                Some(state)
            }
            Err(Unreadable::Io(error)) if has_bad_medium(&error) => {
                // Left there, each prompt would wait for the disk's attempts.
                self.discard(key, error);
                None
            }
            Err(Unreadable::Io(error)) => {
                // Another process may have needed its room.
                if error.kind() != ErrorKind::NotFound {
                    tracing::debug!(file = %path.display(), "a cached prefix is not read: {error}");
                }
                self.known().remove(key);
                None
            }
            Err(Unreadable::Damaged(damage)) => {
                self.discard(key, damage);
                None
            }
        }
    }

    /// Removes the block `key`, whose contents are no use because of `why`.
    pub fn discard(&self, key: &BlockKey, why: impl std::fmt::Display) {
        let path = self.path(key);
        if !self.has_told_damage.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                file = %path.display(),
                "a cached prefix is ignored and removed, and its prompt computed: {why}"
            );
        }
        let _ = fs::remove_file(&path);
        self.known().remove(key);
    }

    /// Writes the block `key`. Returns true if it was not there before and is now. A store that
    /// cannot be written is reported once, and left alone for a while; on a full disk it also gives
    /// back a tenth of its room, as others need it more.
    pub fn write(&self, key: &BlockKey, state: &[u8], used: BlockUse, now: SystemTime) -> bool {
        if self.is_stale(now)
            && let Err(error) = self.list(now)
        {
            tracing::debug!("the folder of cached prefixes is not listed: {error}");
        }
        let bytes = (HEAD_BYTES + state.len()) as u64;
        if self.has(key) || bytes > self.max_bytes.min(block::MAX_FILE_BYTES) {
            return false;
        }
        if self.failed_at().is_some_and(|at| now.duration_since(at).is_ok_and(is_pause)) {
            return false;
        }
        self.make_room(bytes, self.max_bytes);
        let used_at = used.stamp();
        match self.write_file(key, state, used_at) {
            Ok(()) => {
                *self.failed_at() = None;
                self.known().insert(*key, KnownBlock { bytes, used_at });
                true
            }
            Err(error) => {
                self.note_failure(&error, now);
                false
            }
        }
    }

    fn note_failure(&self, error: &io::Error, now: SystemTime) {
        if self.failed_at().replace(now).is_none() {
            let folder = self.folder.display();
            tracing::warn!("prefixes cannot be written to {folder}: {error}");
        }
        if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) {
            let bytes = self.known().bytes;
            self.make_room(1, bytes);
        }
    }

    /// Removes the least recently used blocks until `bytes` more fit into `max_bytes`.
    fn make_room(&self, bytes: u64, max_bytes: u64) {
        let evicted = self.known().evict(bytes, max_bytes);
        // One that another process has removed is gone as well.
        evicted.iter().for_each(|key| _ = fs::remove_file(self.path(key)));
    }

    fn write_file(&self, key: &BlockKey, state: &[u8], used_at: SystemTime) -> io::Result<()> {
        let (process, number) = (std::process::id(), self.begun.fetch_add(1, Ordering::Relaxed));
        let name = format!("{process}-{number}-{:08x}.{TEMPORARY}", rand::random::<u32>());
        let temporary = self.folder.join(name);
        let head = Head::of(key, state).encode(key);
        let written = create_private(&temporary).and_then(|mut file| {
            file.write_all(&head)?;
            file.write_all(state)?;
            file.set_modified(used_at)?;
            file.sync_data()?;
            fs::rename(&temporary, self.path(key))
        });
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written
    }

    fn path(&self, key: &BlockKey) -> PathBuf {
        self.folder.join(key.file_name())
    }

    fn failed_at(&self) -> MutexGuard<'_, Option<SystemTime>> {
        self.failed_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self) -> MutexGuard<'_, KnownBlocks> {
        // A table that is sound after each call.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns true if writing rests this long after a failure.
fn is_pause(since: Duration) -> bool {
    since < PAUSE_AFTER_FAILURE
}

/// Returns true if a disk cannot read what it has.
fn has_bad_medium(error: &io::Error) -> bool {
    error.raw_os_error() == Some(EIO)
}

/// Reason why a block could not be read.
#[derive(Debug)]
enum Unreadable {
    Io(io::Error),
    Damaged(Damage),
}

impl From<io::Error> for Unreadable {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::UnexpectedEof => Self::Damaged(Damage::Length),
            _ => Self::Io(error),
        }
    }
}

impl From<Damage> for Unreadable {
    fn from(damage: Damage) -> Self {
        Self::Damaged(damage)
    }
}

/// Reads the block `key` from the file at `path` and marks it as used at `used_at`.
fn read_block(path: &Path, key: &BlockKey, used_at: SystemTime) -> Result<Vec<u8>, Unreadable> {
    let mut file = File::open(path)?;
    let file_bytes = file.metadata()?.len();
    let mut head = [0; HEAD_BYTES];
    file.read_exact(&mut head)?;
    let head = Head::parse(&head, key, file_bytes)?;
    let mut state = Vec::with_capacity(head.state_bytes() as usize);
    (&mut file).take(head.state_bytes()).read_to_end(&mut state)?;
    head.check(key, &state)?;
    // Only for the choice of what goes first.
    let _ = file.set_modified(used_at);
    Ok(state)
}

/// Creates a new file that only its owner can read.
fn create_private(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Removes a temporary file that nobody has finished.
fn remove_abandoned(path: &Path, modified: SystemTime, now: SystemTime) {
    let is_old = now.duration_since(modified).is_ok_and(|age| age >= ABANDONED_AFTER);
    if is_old && path.extension() == Some(OsStr::new(TEMPORARY)) {
        let _ = fs::remove_file(path);
    }
}

/// Returns the secret in `folder`, which is made if there is none. `link` makes hard links.
fn secret_of(
    folder: &Path,
    link: impl Fn(&Path, &Path) -> io::Result<()>,
) -> io::Result<DomainSecret> {
    let path = folder.join(SECRET_FILE);
    // Two attempts: another process may make it at the same time.
    for _ in 0..2 {
        if let Some(secret) = kept_secret(&path)? {
            return Ok(secret);
        }
        match make_secret(folder, &path, &link) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            made => return made,
        }
    }
    Err(io::Error::other(format!("{} is changed by others", path.display())))
}

/// Returns the secret in the file at `path`; `None` if there is none, or only a damaged one, which
/// is removed.
fn kept_secret(path: &Path) -> io::Result<Option<DomainSecret>> {
    for _ in 0..SECRET_READS {
        match fs::read(path) {
            Ok(bytes) => {
                if let Ok(secret) = bytes.try_into() {
                    return Ok(Some(DomainSecret(secret)));
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        }
        thread::sleep(SECRET_PAUSE);
    }
    // Blocks that were made with it are never found again, and go in time.
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(None),
    }
}

/// Makes the secret at `path`; never replaces one that is there.
fn make_secret(
    folder: &Path,
    path: &Path,
    link: impl Fn(&Path, &Path) -> io::Result<()>,
) -> io::Result<DomainSecret> {
    let secret = DomainSecret::default();
    let write = |path: &Path| {
        let mut file = create_private(path)?;
        file.write_all(&secret.0)?;
        file.sync_all()
    };
    let temporary = folder.join(format!("{:016x}.{TEMPORARY}", rand::random::<u64>()));
    let written = write(&temporary);
    let linked = written.as_ref().is_ok_and(|()| link(&temporary, path).is_ok());
    let _ = fs::remove_file(&temporary);
    written?;
    if !linked {
        // The file is there already, or the file system has no hard links.
        write(path)?;
    }
    Ok(secret)
}

#[cfg(test)]
mod tests;
