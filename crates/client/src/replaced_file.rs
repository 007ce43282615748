//! Files that are written whole or not at all: under another name, which is then changed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process;

/// Most names that are tried for a draft.
const MAX_DRAFTS: u32 = 1000;

/// Users who may read a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileReaders {
    /// Its owner only.
    Owner,
    /// All whom the process's umask allows.
    Usual,
}

/// Replaces the file at `path` with `bytes` atomically: a reader finds the old file or the new one,
/// also if several processes write it at once. Only the user may read it.
///
/// # Errors
/// Errors of the file system.
pub fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace(path, bytes, FileReaders::Owner, |_| Ok(()))
}

/// Replaces the file at `path` like [`replace_file`]; after a power failure too there is the old
/// file or the new one. `readers` may read it.
///
/// # Errors
/// Errors of the file system.
pub fn replace_file_safely(path: &Path, bytes: &[u8], readers: FileReaders) -> io::Result<()> {
    replace(path, bytes, readers, File::sync_all)
}

fn replace(
    path: &Path,
    bytes: &[u8],
    readers: FileReaders,
    sync: fn(&File) -> io::Result<()>,
) -> io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
    let (draft, mut file) = create_draft(path, readers)?;
    let written = file.write_all(bytes).and_then(|()| sync(&file));
    written.and_then(|()| fs::rename(&draft, path)).inspect_err(|_| {
        let _ = fs::remove_file(&draft);
    })
}

/// Creates a file beside `path`. One that exists is never written to: it may be another process's,
/// or in a shared folder somebody's link.
fn create_draft(path: &Path, readers: FileReaders) -> io::Result<(PathBuf, File)> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, mode_of(readers));
    #[cfg(not(unix))]
    let _ = readers;
    // A killed process leaves its draft, and in a container the next one has the same number.
    for number in 0..MAX_DRAFTS {
        let draft = path.with_file_name(format!(".loquent-{}-{number}.draft", process::id()));
        match options.open(&draft) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            opened => return Ok((draft, opened?)),
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

#[cfg(unix)]
const fn mode_of(readers: FileReaders) -> u32 {
    match readers {
        FileReaders::Owner => 0o600,
        FileReaders::Usual => 0o666,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_in(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn writers_at_once_do_not_mix_their_contents() {
        let folder = tempfile::tempdir().unwrap();
        let path = &folder.path().join("file");
        std::thread::scope(|scope| {
            for writer in 0..8_u8 {
                scope.spawn(move || {
                    for _ in 0..20 {
                        replace_file(path, &[writer; 10_000]).unwrap();
                        let found = fs::read(path).unwrap();
                        assert_eq!(found, [found[0]; 10_000]);
                    }
                });
            }
        });
        assert_eq!(names_in(folder.path()), ["file"]);
    }

    #[test]
    fn a_write_that_fails_leaves_no_draft() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::create_dir(&path).unwrap();
        replace_file_safely(&path, b"text", FileReaders::Usual).unwrap_err();
        assert_eq!(names_in(folder.path()), ["file"]);
    }

    #[test]
    fn a_draft_that_a_killed_process_left_is_in_nobodys_way() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let (draft, _) = create_draft(&path, FileReaders::Usual).unwrap();
        replace_file_safely(&path, b"text", FileReaders::Owner).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"text");
        assert_eq!(fs::read(&draft).unwrap(), b"", "it may be another process's");
    }
}
