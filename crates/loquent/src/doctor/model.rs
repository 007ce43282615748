//! Checks the model's file: its completeness, its fit into memory, and the kernels that compute it.

use std::path::Path;

use super::diagnosis::Diagnosis;
#[cfg(feature = "llama")]
use super::machine::size;

const CHECK: &str = "model";

/// Checks the model in the file at `path`, on a machine with this much free memory.
#[cfg(feature = "llama")]
pub(super) fn diagnose(path: &Path, free_bytes: Option<u64>) -> Diagnosis {
    use loquent_engine::llama::{LoadError, inspect};
    let found = match inspect(path) {
        Ok(found) => found,
        Err(error) => {
            let advice = match &error {
                LoadError::NotFound(_) => "check the path, or name a model: loquent list",
                LoadError::Unreadable { .. } => "let this user read it (chmod, chown)",
                LoadError::NotGguf(_) => {
                    "use a model in GGUF format, as the hub has for most models"
                }
                _ => "download it again: loquent pull, or --hf",
            };
            return Diagnosis::failure(CHECK, error.to_string(), advice);
        }
    };
    let architecture = found.header.architecture().unwrap_or("of no known architecture");
    let trained = found.header.model_number("context_length").unwrap_or(0);
    let kernels = if found.own_kernels { "Loquent's" } else { "llama.cpp's" };
    let what = format!(
        "{}: {architecture}, {}, trained for {trained} tokens of context, computed with {kernels} \
         kernels",
        path.display(),
        size(found.size_bytes)
    );
    match free_bytes {
        Some(free) if found.size_bytes > free => Diagnosis::failure(
            CHECK,
            format!("{what}; only {} of memory are free", size(free)),
            "use a smaller model or a smaller quantisation, or free memory",
        ),
        Some(free) if found.size_bytes > free / 10 * 9 => Diagnosis::warning(
            CHECK,
            format!("{what}; with {} of memory free, little is left for the cache", size(free)),
            "lower --context and --max-batch-size, or use a smaller quantisation",
        ),
        _ => Diagnosis::fine(CHECK, what),
    }
}

#[cfg(not(feature = "llama"))]
pub(super) fn diagnose(path: &Path, _free_bytes: Option<u64>) -> Diagnosis {
    let what = format!("{}: this build has no engine to check it with", path.display());
    Diagnosis::skipped(CHECK, what)
}

#[cfg(all(test, feature = "llama"))]
mod tests {
    use super::super::diagnosis::Severity;
    use super::*;
    use crate::bundled;

    #[test]
    fn a_whole_model_is_fine_and_half_of_it_is_not() {
        let path = bundled::materialize().unwrap();
        let found = diagnose(&path, Some(1 << 30));
        assert_eq!(found.severity, Severity::Fine, "{found:?}");
        let folder = tempfile::tempdir().unwrap();
        let half = folder.path().join("half.gguf");
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&half, &bytes[..bytes.len() / 2]).unwrap();
        let found = diagnose(&half, None);
        assert_eq!(found.severity, Severity::Failure);
        assert!(found.what.contains("truncated"), "{found:?}");
        for missing in ["no-such-file.gguf", ""] {
            assert_eq!(diagnose(&folder.path().join(missing), None).severity, Severity::Failure);
        }
    }

    #[test]
    fn a_model_larger_than_memory_is_found() {
        let path = bundled::materialize().unwrap();
        assert_eq!(diagnose(&path, Some(1 << 20)).severity, Severity::Failure);
        let size = std::fs::metadata(&path).unwrap().len();
        assert_eq!(diagnose(&path, Some(size)).severity, Severity::Warning);
    }
}
