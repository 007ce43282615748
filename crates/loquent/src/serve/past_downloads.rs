//! Remembers the models that clients have had a server download, so that the next server serves
//! them too.
//!
//! The names are lines of a file in the hub's cache, beside the models: where the models outlive
//! the server, as on a container's volume, their names do too. Lines are only appended, so that
//! servers that share the cache lose nothing of each other's. A name whose model is gone, as after
//! `loquent rm`, is passed over.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Name of the file in the cache.
const FILE: &str = "loquent-downloads.txt";
/// Maximum size of the file in bytes: what is beyond is not read, and then nothing is appended.
const MAX_BYTES: u64 = 64 << 10;

/// The file with the names.
pub(super) struct PastDownloads {
    path: PathBuf,
}

impl PastDownloads {
    /// Refers to the file in the cache at `cache_dir`.
    pub(super) fn in_cache(cache_dir: &Path) -> Self {
        Self { path: cache_dir.join(FILE) }
    }

    /// Returns the names, each once, in the order in which they were first asked for. None if the
    /// file cannot be read.
    pub(super) fn names(&self) -> Vec<String> {
        let mut bytes = Vec::new();
        if let Ok(file) = fs::File::open(&self.path)
            && let Err(error) = file.take(MAX_BYTES).read_to_end(&mut bytes)
        {
            tracing::warn!("{} cannot be read: {error}", self.path.display());
        }
        let text = String::from_utf8_lossy(&bytes);
        let mut seen = BTreeSet::new();
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        lines.filter(|line| seen.insert(*line)).map(str::to_owned).collect()
    }

    /// Adds `name`, unless it is there.
    ///
    /// # Errors
    /// If the file cannot be written, is full, or the name is not one line.
    pub(super) fn add(&self, name: &str) -> io::Result<()> {
        if self.names().iter().any(|known| known == name) {
            return Ok(());
        }
        if name.trim() != name || name.contains(char::is_control) {
            return Err(io::Error::other("the name has spaces around it or control characters"));
        }
        let mut file = OpenOptions::new().create(true).append(true).open(&self.path)?;
        if file.metadata()?.len() + name.len() as u64 >= MAX_BYTES {
            return Err(io::Error::other("it is full; remove lines from it"));
        }
        // In one call: another server may append at the same time.
        file.write_all(format!("{name}\n").as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_kept_once_and_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let past = PastDownloads::in_cache(folder.path());
        assert_eq!(past.names(), Vec::<String>::new());
        for name in ["b/b", "a/a:Q4", "b/b"] {
            past.add(name).unwrap();
        }
        assert_eq!(PastDownloads::in_cache(folder.path()).names(), ["b/b", "a/a:Q4"]);
    }

    #[test]
    fn one_name_is_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let past = PastDownloads::in_cache(folder.path());
        for name in ["a\nb/b", " a", "a\r"] {
            assert!(past.add(name).is_err(), "{name:?}");
        }
        assert_eq!(past.names(), Vec::<String>::new());
    }

    #[test]
    fn a_damaged_file_costs_no_more_than_a_good_one() {
        let folder = tempfile::tempdir().unwrap();
        let past = PastDownloads::in_cache(folder.path());
        past.add("a/a").unwrap();
        let mut file = OpenOptions::new().append(true).open(&past.path).unwrap();
        file.write_all(&[b"\xff\n".repeat(10).as_slice(), &vec![b'x'; 1 << 20]].concat()).unwrap();
        let names = past.names();
        assert_eq!((names.len(), names[0].as_str()), (3, "a/a"));
        assert!(names.iter().map(String::len).sum::<usize>() <= MAX_BYTES as usize);
        assert!(past.add("b/b").is_err(), "it is full");
    }
}
