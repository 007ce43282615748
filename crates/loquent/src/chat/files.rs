//! Text files attached to a question.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// Maximum size of a file: far more than fits into any model's context.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// Minimum length of the fence of a code block in Markdown.
const SHORTEST_FENCE: usize = 3;

/// A file with its contents at the time of reading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AttachedFile {
    name: String,
    text: String,
}

/// Reads a file to attach to a question.
///
/// # Errors
/// If it cannot be read, is too large or is not text. The message contains advice.
pub(super) fn read(path: &Path) -> anyhow::Result<AttachedFile> {
    let path = &home_expanded(path);
    let shown = path.display();
    let file = File::open(path).with_context(|| format!("cannot open {shown}"))?;
    let mut bytes = Vec::new();
    let read = file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes);
    read.with_context(|| format!("cannot read {shown}"))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        bail!("{shown} is larger than {} MiB; send a part of it", MAX_FILE_BYTES >> 20);
    }
    let not_text = "is not text (UTF-8); convert it first, as pdftotext does with a PDF";
    let text = String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'));
    let Some(text) = text else { bail!("{shown} {not_text}") };
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    Ok(AttachedFile { name, text })
}

/// Returns the path with `~` replaced by the user's home folder, as shells do.
pub(super) fn home_expanded(path: &Path) -> PathBuf {
    match (path.strip_prefix("~"), std::env::home_dir()) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path.to_owned(),
    }
}

impl AttachedFile {
    /// Returns the file's name and length, on one line.
    pub(super) fn summary(&self) -> String {
        let lines = self.text.lines().count();
        format!("{} ({lines} {})", self.name, if lines == 1 { "line" } else { "lines" })
    }

    /// Appends the file as a code block below its name.
    fn put(&self, out: &mut String) {
        // Longer than any row of backticks in the file, so that the file cannot end its block.
        let longest = self.text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
        let fence = "`".repeat((longest + 1).max(SHORTEST_FENCE));
        let language = Path::new(&self.name).extension().unwrap_or_default().to_string_lossy();
        let end = if self.text.ends_with('\n') || self.text.is_empty() { "" } else { "\n" };
        *out += &format!("{}:\n\n{fence}{language}\n{}{end}{fence}\n\n", self.name, self.text);
    }
}

/// Returns the question preceded by the files, the order in which models read them best.
pub(super) fn with_files(files: &[AttachedFile], question: &str) -> String {
    let mut message = String::new();
    files.iter().for_each(|file| file.put(&mut message));
    message + question
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, text: &[u8]) -> anyhow::Result<AttachedFile> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        read(&path)
    }

    #[test]
    fn files_stand_before_the_question_in_fences_that_they_cannot_close() {
        let files = [file("a.rs", b"fn f() {}\n").unwrap(), file("b", b"````\nx").unwrap()];
        let expected = "a.rs:\n\n```rs\nfn f() {}\n```\n\nb:\n\n`````\n````\nx\n`````\n\nWhy?";
        assert_eq!(with_files(&files, "Why?"), expected);
        assert_eq!(files[1].summary(), "b (2 lines)");
        assert_eq!(with_files(&[], "Why?"), "Why?");
    }

    #[test]
    fn what_is_not_text_is_refused_with_advice() {
        for bytes in [&b"\xff\xfe"[..], b"a\0b"] {
            let error = file("a.pdf", bytes).unwrap_err().to_string();
            assert!(error.contains("a.pdf") && error.contains("convert it"), "{error}");
        }
        let long = vec![b'a'; MAX_FILE_BYTES as usize + 1];
        assert!(file("long", &long).unwrap_err().to_string().contains("4 MiB"));
        assert!(read(Path::new("/nowhere/at.all")).is_err());
    }
}
