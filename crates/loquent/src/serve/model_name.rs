//! The name of a model in the API, which is the same however the model is served: what the operator
//! says, else what its file is called.

use std::path::Path;

use crate::bundled;

/// Maximum length of a model's name, in characters: it is part of every chunk of an answer.
const MAX_CHARS: usize = 256;
/// Beginning of a file's name in Ollama's store, which is a hash.
const OLLAMA_BLOB: &str = "sha256-";

/// Returns the name of the model in the file at `path`, in which it is called `inner`.
pub(super) fn of_file(path: &Path, inner: Option<&str>) -> String {
    let stem = stem(path);
    let inner = inner.map(|name| without_spaces(&one_line(name))).filter(|name| !name.is_empty());
    match inner {
        // Their files have a hash in their names.
        Some(name) if is_bundled(&stem, &name) || stem.starts_with(OLLAMA_BLOB) => name,
        _ => stem,
    }
}

/// Returns `name` as an id: clients put ids into URLs and commands.
fn without_spaces(name: &str) -> String {
    name.split_whitespace().collect::<Vec<_>>().join("-")
}

/// Returns true for the file that the bundled model was written to; copies have their own names.
fn is_bundled(stem: &str, inner: &str) -> bool {
    inner == bundled::NAME && stem.starts_with(bundled::NAME)
}

/// Returns the name of the file at `path` without its ending and the numbers of parts.
pub(super) fn stem(path: &Path) -> String {
    let stem = path.file_stem().map(|stem| stem.to_string_lossy()).unwrap_or_default();
    let name = part_of(&stem).map_or(&*stem, |(name, _)| name);
    one_line(name.strip_suffix("-entry").filter(|name| !name.is_empty()).unwrap_or(name))
}

/// Returns the name and the number of a file of a model in several files, `NAME-00001-of-00003`.
pub(super) fn part_of(stem: &str) -> Option<(&str, &str)> {
    let (before, count) = stem.rsplit_once("-of-")?;
    let (name, part) = before.rsplit_once('-')?;
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(count) && is_number(part)).then_some((name, part))
}

/// Returns a name that is safe in every answer and on terminals, whatever the file contains.
pub(super) fn one_line(name: &str) -> String {
    name.chars().filter(|char| !char.is_control()).take(MAX_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_called_as_its_file_is() {
        for (path, inner, expected) in [
            ("/m/SmolLM2-135M.Q4_1.gguf", Some("Smollm2 135M 8k Lc100K"), "SmolLM2-135M.Q4_1"),
            ("big-00001-of-00003.gguf", Some("Big"), "big"),
            ("qwen-entry.gguf", Some("Qwen"), "qwen"),
            ("/c/loquent-tiny-5c76.gguf", Some("loquent-tiny"), "loquent-tiny"),
            ("/c/mine.gguf", Some("loquent-tiny"), "mine"),
            ("/o/blobs/sha256-ab12", Some("Qwen3 0.6B"), "Qwen3-0.6B"),
            ("/o/blobs/sha256-ab12", None, "sha256-ab12"),
            ("a\u{1b}[2J.gguf", None, "a[2J"),
        ] {
            assert_eq!(of_file(Path::new(path), inner), expected, "{path}");
        }
        assert_eq!(stem(Path::new(&"x".repeat(999))).len(), MAX_CHARS);
    }
}
