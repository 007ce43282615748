//! A lock that makes stages on one machine compute one after the other, each with all of its
//! threads.
//!
//! Threads of one computation spin while they wait for each other. Two computations on the same
//! processors therefore take much longer at the same time than one after the other: the spinning
//! threads of one occupy the processors that the other needs.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

/// File lock shared by all stages that name the file. The system releases it when the process ends,
/// in any way.
#[derive(Debug)]
pub struct ComputeLock {
    file: File,
}

impl ComputeLock {
    /// Opens the lock at `path`; the file is created if it does not exist. Every stage needs its
    /// own `ComputeLock`: through one handle, a second lock would succeed at once.
    ///
    /// # Errors
    /// If the file can neither be opened nor created.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self { file })
    }

    /// Waits until no other stage computes.
    pub(super) fn lock(&self) {
        if let Err(error) = self.file.lock() {
            // Computing at the same time is slow, but not wrong: no reason to fail the batch.
            tracing::warn!(
                %error,
                "cannot lock the compute lock: stages may slow each other down; use a local file"
            );
        }
    }

    /// Lets the next stage compute.
    pub(super) fn unlock(&self) {
        // If this fails, locking failed before and was reported.
        let _ = self.file.unlock();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn one_computes_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("compute.lock");
        let computing = AtomicUsize::new(0);
        let work = || {
            let lock = ComputeLock::open(&path).unwrap();
            for _ in 0..200 {
                lock.lock();
                assert_eq!(computing.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                thread::yield_now();
                computing.fetch_sub(1, Ordering::SeqCst);
                lock.unlock();
            }
        };
        thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(work))));
    }

    #[test]
    fn the_lock_ends_with_its_holder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("compute.lock");
        let gone = ComputeLock::open(&path).unwrap();
        gone.lock();
        drop(gone);
        ComputeLock::open(&path).unwrap().lock();
    }

    #[test]
    fn a_file_that_cannot_be_created_is_an_error() {
        assert!(ComputeLock::open(Path::new("/nowhere/compute.lock")).is_err());
    }
}
