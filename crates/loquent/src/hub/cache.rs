//! The hub's cache layout on disk: blobs named by hash, snapshots of links, refs, locks.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use loquent_client::{FileReaders, replace_file_safely};

use super::choose;
use super::error::HubError;
use super::listing::BlobInfo;
use super::spec::HubSpec;

/// Maximum depth at which a snapshot is searched for files; protects against loops of links.
pub(super) const MAX_DEPTH: usize = 8;

/// Extension of a blob whose download is not finished.
pub(super) const INCOMPLETE: &str = "incomplete";

/// Returns true if `path` is a file (or a link to one) of exactly `size_bytes`.
pub(super) fn has_size(path: &Path, size_bytes: u64) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() == size_bytes)
}

/// The part of the cache that belongs to one repository.
pub(super) struct RepoCache {
    dir: PathBuf,
    locks: PathBuf,
}

impl RepoCache {
    pub(super) fn new(cache_dir: &Path, repo: &str) -> RepoCache {
        let folder = format!("models--{}", repo.replace('/', "--"));
        RepoCache { dir: cache_dir.join(&folder), locks: cache_dir.join(".locks").join(folder) }
    }

    pub(super) fn blob(&self, id: &str) -> PathBuf {
        self.dir.join("blobs").join(id)
    }

    pub(super) fn incomplete(&self, id: &str) -> PathBuf {
        self.dir.join("blobs").join(format!("{id}.{INCOMPLETE}"))
    }

    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.dir.join("snapshots").join(commit)
    }

    /// Locks one blob, so that only one process writes it. The lock is released when the file is
    /// dropped, or by the operating system when the process dies. Calls `waiting` if another
    /// process holds the lock.
    pub(super) fn lock(&self, id: &str, waiting: impl FnOnce()) -> Result<File, HubError> {
        let (path, file) = self.lock_file(id)?;
        if file.try_lock().is_err() {
            waiting();
            file.lock().map_err(HubError::io(&path))?;
        }
        Ok(file)
    }

    /// Locks one blob as [`lock`](Self::lock) does; `None` if another process holds the lock.
    pub(super) fn try_lock(&self, id: &str) -> Result<Option<File>, HubError> {
        let (path, file) = self.lock_file(id)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(HubError::io(&path)(error)),
        }
    }

    fn lock_file(&self, id: &str) -> Result<(PathBuf, File), HubError> {
        let path = self.locks.join(format!("{id}.lock"));
        let file = create_parents(&path).and_then(|()| File::create(&path));
        let file = file.map_err(HubError::io(&path))?;
        Ok((path, file))
    }

    /// Returns true if `snapshots/COMMIT/FILE` leads to a complete blob.
    pub(super) fn has(&self, commit: &str, file: &str, content: &BlobInfo) -> bool {
        let blob = self.blob(&content.id);
        let target = self.snapshot(commit).join(file).canonicalize();
        has_size(&blob, content.size_bytes)
            // The link may lead to the blob of an older upload of the same name.
            && target.is_ok_and(|target| blob.canonicalize().is_ok_and(|blob| blob == target))
    }

    /// Returns the number of bytes of the blob that are not in the cache.
    pub(super) fn missing_bytes(&self, content: &BlobInfo) -> u64 {
        if has_size(&self.blob(&content.id), content.size_bytes) {
            return 0;
        }
        let present = fs::metadata(self.incomplete(&content.id)).map_or(0, |meta| meta.len());
        content.size_bytes.saturating_sub(present)
    }

    /// Returns the free bytes of the cache's disk, if the operating system tells.
    #[cfg(unix)]
    #[allow(clippy::useless_conversion, reason = "the types differ between systems")]
    pub(super) fn free_bytes(&self) -> Option<u64> {
        // The folder may be made by the first download.
        let folder = self.dir.ancestors().find(|folder| folder.exists())?;
        let disk = nix::sys::statvfs::statvfs(folder).ok()?;
        // Some network file systems tell nothing, as zeros.
        (disk.blocks() > 0).then(|| {
            u64::from(disk.blocks_available()).saturating_mul(u64::from(disk.fragment_size()))
        })
    }

    /// Returns the free bytes of the cache's disk: not known here.
    #[cfg(not(unix))]
    pub(super) fn free_bytes(&self) -> Option<u64> {
        None
    }

    /// Makes `snapshots/COMMIT/FILE` a link to the blob. The caller holds the blob's lock.
    pub(super) fn link(&self, commit: &str, file: &str, id: &str) -> Result<(), HubError> {
        let path = self.snapshot(commit).join(file);
        let ups = "../".repeat(file.split('/').count() + 1);
        let target = PathBuf::from(format!("{ups}blobs/{id}"));
        create_parents(&path).map_err(HubError::io(&path))?;
        // Made under another name and renamed, so that a reader never finds the link missing.
        let draft = path.with_extension("draft");
        // One may be left from a process that was killed here; `symlink` does not overwrite.
        let _ = fs::remove_file(&draft);
        make_link(&target, &self.blob(id), &draft)
            .and_then(|()| fs::rename(&draft, &path))
            .map_err(HubError::io(&path))
    }

    /// Records the commit that a branch or tag points to, for use without the network.
    pub(super) fn write_ref(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        // A commit needs no name: `find` takes a revision without a ref as the commit itself.
        if revision == commit {
            return Ok(());
        }
        let path = self.dir.join("refs").join(revision);
        // Nothing is written where nothing changes: the cache may be read-only.
        if fs::read_to_string(&path).is_ok_and(|known| known.trim() == commit) {
            return Ok(());
        }
        replace_file_safely(&path, commit.as_bytes(), FileReaders::Usual)
            .map_err(HubError::io(&path))
    }

    /// Returns the path of the model of `spec` in the cache.
    ///
    /// # Errors
    /// [`HubError::NotCached`], or [`HubError::Ambiguous`] if several files match.
    pub(super) fn find(&self, spec: &HubSpec) -> Result<PathBuf, HubError> {
        let missing = || HubError::NotCached { wanted: spec.to_string(), cache: self.dir.clone() };
        let reference = fs::read_to_string(self.dir.join("refs").join(&spec.revision));
        let commit =
            reference.map_or_else(|_| spec.revision.clone(), |text| text.trim().to_owned());
        let snapshot = self.snapshot(&commit);
        let mut files = Vec::new();
        collect_files(&snapshot, "", MAX_DEPTH, &mut files);
        let names: Vec<&str> = files.iter().map(String::as_str).collect();
        match choose::parts(spec, &names) {
            Ok(parts) => Ok(snapshot.join(parts[0])),
            Err(error @ HubError::Ambiguous { .. }) => Err(error),
            Err(_) => Err(missing()),
        }
    }
}

/// Adds the files below `dir` whose blobs exist, as paths with `prefix` before them.
pub(super) fn collect_files(dir: &Path, prefix: &str, depth: usize, files: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let relative = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
        // Follows links: one whose blob was removed counts as absent.
        let Ok(meta) = fs::metadata(entry.path()) else {
            continue;
        };
        if meta.is_file() {
            files.push(relative);
        } else if depth > 0 {
            collect_files(&entry.path(), &relative, depth - 1, files);
        }
    }
}

/// Creates the parent folders of `path`.
pub(super) fn create_parents(path: &Path) -> std::io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

#[cfg(unix)]
fn make_link(target: &Path, _blob: &Path, at: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, at)
}

/// Creates a hard link or a copy: symbolic links need a privilege on Windows.
#[cfg(not(unix))]
fn make_link(_target: &Path, blob: &Path, at: &Path) -> std::io::Result<()> {
    fs::hard_link(blob, at).or_else(|_| fs::copy(blob, at).map(drop))
}
