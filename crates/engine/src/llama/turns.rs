//! Stages of one machine that compute one after the other, each with all of its threads.
//!
//! Threads of one computation wait for each other spinning. Two computations on the same processors
//! therefore take much longer than one after the other: the spinning threads of one hold what the other's need.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

/// A place in the queue of all stages that name the same file; the system gives it up with the process.
#[derive(Debug)]
pub struct Turns {
    file: File,
}

impl Turns {
    /// The queue of `path`, which is made where there is none. Every stage needs a `Turns` of its own.
    ///
    /// # Errors
    /// When the file can neither be opened nor made.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self { file })
    }

    /// Waits until no other stage computes.
    pub(super) fn take(&self) {
        if let Err(error) = self.file.lock() {
            tracing::warn!(%error, "stages cannot take turns: they may disturb each other");
        }
    }

    /// Lets the next one compute.
    pub(super) fn give(&self) {
        // What cannot be locked says so above.
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
        let path = folder.path().join("turns");
        let computing = AtomicUsize::new(0);
        let work = || {
            let turns = Turns::open(&path).unwrap();
            for _ in 0..200 {
                turns.take();
                assert_eq!(computing.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                thread::yield_now();
                computing.fetch_sub(1, Ordering::SeqCst);
                turns.give();
            }
        };
        thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(work))));
    }

    #[test]
    fn a_turn_ends_with_its_holder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("turns");
        let gone = Turns::open(&path).unwrap();
        gone.take();
        drop(gone);
        Turns::open(&path).unwrap().take();
    }

    #[test]
    fn a_file_that_cannot_be_made_is_an_error() {
        assert!(Turns::open(Path::new("/nowhere/turns")).is_err());
    }
}
