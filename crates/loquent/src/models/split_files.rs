//! Models in several files, `NAME-00001-of-00003.gguf` and so on: any part refers to the whole.

use std::path::{Path, PathBuf};

use anyhow::bail;

use super::one_line::on_one_line;
use crate::hub::choose;

/// Maximum number of missing parts listed in an error.
const MAX_NAMED: usize = 5;

/// Returns the files of the model that the file `path` is part of, in order; `path` alone, if it is
/// not called like one of several. They may be missing.
pub(crate) fn parts(path: &Path) -> Vec<PathBuf> {
    let name = path.file_name().and_then(|name| name.to_str());
    // A count of 0 is not llama.cpp's naming: the file is then what it is called.
    let Some((stem, _, count)) = name.and_then(choose::split_of).filter(|it| it.2 > 0) else {
        return vec![path.to_owned()];
    };
    let part = |number| path.with_file_name(format!("{stem}-{number:05}-of-{count:05}.gguf"));
    (1..=count).map(part).collect()
}

/// Returns the file to load for `path`: the first part of a model in several files, else `path`
/// itself.
///
/// # Errors
/// If parts are missing; the message names them.
pub(super) fn first(path: &Path) -> anyhow::Result<PathBuf> {
    let parts = parts(path);
    let count = parts.len();
    let is_missing = |part: &&PathBuf| part.as_path() != path && !part.is_file();
    let missing: Vec<_> = parts.iter().filter(is_missing).collect();
    if missing.is_empty() {
        return Ok(parts[0].clone());
    }
    let names = missing.iter().take(MAX_NAMED).filter_map(|part| part.file_name());
    let names: Vec<_> = names.map(|name| on_one_line(name.display())).collect();
    let more = if missing.len() > MAX_NAMED { ", …" } else { "" };
    bail!(
        "{} is one of {count} files of a model, and these are not beside it: {}{more}; put all of \
         them into one folder",
        on_one_line(path.display()),
        names.join(", "),
    )
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn any_part_stands_for_the_whole() {
        let folder = tempfile::tempdir().unwrap();
        let part = |number| folder.path().join(format!("big-{number:05}-of-00003.gguf"));
        for number in [1, 3] {
            fs::write(part(number), b"GGUF").unwrap();
        }
        let error = first(&part(3)).unwrap_err().to_string();
        assert!(error.contains("big-00002-of-00003.gguf"), "{error}");
        fs::write(part(2), b"GGUF").unwrap();
        assert_eq!(first(&part(3)).unwrap(), part(1));
        let whole = folder.path().join("whole.gguf");
        assert_eq!(first(&whole).unwrap(), whole);
    }
}
