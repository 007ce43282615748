//! The demonstration model inside the binary.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

use anyhow::Context;
use loquent_client::{FileReaders, replace_file_safely};

use crate::user_folder::user_folder;

/// Name of the bundled model in the API.
pub const NAME: &str = "loquent-tiny";

/// Short name of a model that is suggested in its place.
pub(crate) const SUGGESTED: &str = "qwen3:0.6b";

/// Returns a line that says what the bundled model is, and how `loquent COMMAND` gets a better one.
pub fn advice(command: &str) -> String {
    format!("{}; a real model: loquent {command} {SUGGESTED}", description())
}

/// Returns the beginning of a sentence that says what the bundled model is.
pub(crate) fn description() -> String {
    let size = size_bytes() as f64 / 1e6;
    format!("{NAME} ({size:.1} MB) is a demonstration that only knows about streaming")
}

static GGUF: &[u8] = include_bytes!("../../../models/loquent-tiny.gguf");

/// Returns the size of the bundled model's file.
pub fn size_bytes() -> u64 {
    GGUF.len() as u64
}

/// Writes the bundled model to a file that llama.cpp can map, unless that file exists, and returns
/// its path.
///
/// The file's name contains a hash of the content, so that several versions can coexist.
///
/// # Errors
/// If neither the user's cache folder nor the temporary folder can be written.
pub fn materialize() -> anyhow::Result<PathBuf> {
    let name = format!("{NAME}-{:016x}.gguf", fnv1a(GGUF));
    let cache = user_folder("XDG_CACHE_HOME", ".cache");
    let cached = cache.map(|dir| place(&dir.join("loquent"), &name));
    match cached {
        Some(Ok(path)) => Ok(path),
        _ => private_folder(&env::temp_dir())
            .and_then(|folder| place(&folder, &name))
            .context("cannot write the bundled model to disk; name a model file with --model"),
    }
}

/// Returns a folder below the shared folder `parent` that only this user can change. In any other,
/// somebody could replace the model between its check and its use.
#[cfg(unix)]
fn private_folder(parent: &Path) -> io::Result<PathBuf> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};
    let user = nix::unistd::Uid::effective().as_raw();
    let folder = parent.join(format!("loquent-{user}"));
    match fs::DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // Of the name itself: a link leads to wherever its maker wants.
    let found = fs::symlink_metadata(&folder)?;
    if found.is_dir() && found.uid() == user && found.mode() & 0o077 == 0 {
        return Ok(folder);
    }
    let message = format!("{} belongs to somebody else, or others can use it", folder.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
}

/// Returns a folder in the temporary folder, which belongs to the user.
#[cfg(not(unix))]
fn private_folder(parent: &Path) -> io::Result<PathBuf> {
    Ok(parent.join("loquent"))
}

fn place(dir: &Path, name: &str) -> io::Result<PathBuf> {
    let path = dir.join(name);
    // Compared byte by byte: a copy that was damaged, or cut by a full disk, is replaced.
    if fs::read(&path).is_ok_and(|found| found == GGUF) {
        return Ok(path);
    }
    replace_file_safely(&path, GGUF, FileReaders::Usual)?;
    Ok(path)
}

fn fnv1a(bytes: &[u8]) -> u64 {
    let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn only_a_folder_of_ones_own_is_used_in_a_shared_one() {
        use std::os::unix::fs::PermissionsExt;
        let shared = tempfile::tempdir().unwrap();
        let folder = private_folder(shared.path()).unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(private_folder(shared.path()).unwrap(), folder, "it is used again");
        for mode in [0o755, 0o777, 0o770] {
            fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
            assert!(private_folder(shared.path()).is_err(), "others get in: {mode:o}");
        }
        fs::remove_dir(&folder).unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        fs::set_permissions(elsewhere.path(), fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), &folder).unwrap();
        assert!(private_folder(shared.path()).is_err(), "a link leads elsewhere");
    }

    #[test]
    fn a_damaged_copy_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = place(dir.path(), "model.gguf").unwrap();
        fs::write(&path, b"half").unwrap();
        place(dir.path(), "model.gguf").unwrap();
        assert_eq!(fs::read(&path).unwrap(), GGUF);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left behind");
    }
}
