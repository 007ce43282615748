//! Checks the model's file: its completeness, its fit into memory, and the kernels that compute it.

use std::path::Path;

use super::diagnosis::Diagnosis;
#[cfg(feature = "llama")]
use super::machine::size;
#[cfg(feature = "llama")]
use crate::model_part::part_of_model;

const CHECK: &str = "model";

/// Checks the model in the file at `path`, on a machine with this much free memory.
#[cfg(feature = "llama")]
pub(super) fn diagnose(path: &Path, free_bytes: Option<u64>) -> Diagnosis {
    use loquent_engine::llama::{LoadError, inspect, own_kernels_lack};
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
    if let Some(refusal) = refusal(path, &found.header) {
        return refusal;
    }
    let architecture = found.header.architecture().unwrap_or("of no known architecture");
    let trained = match found.header.model_number("context_length").unwrap_or(0) {
        0 => String::new(),
        tokens => format!("trained for {tokens} tokens of context, "),
    };
    let kernels = match own_kernels_lack(&found.header) {
        None => "Loquent's kernels".to_owned(),
        Some(why) => format!("llama.cpp's kernels, because {why}"),
    };
    let what = format!(
        "{}: {architecture}, {}, {trained}computed with {kernels}",
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

/// Returns the finding about a file that `loquent serve` would not serve by itself: a part of a
/// model, or a model that llama.cpp does not know.
#[cfg(feature = "llama")]
fn refusal(path: &Path, header: &loquent_formats::gguf::Header) -> Option<Diagnosis> {
    use loquent_engine::llama::{LlamaModel, LoadOptions};
    if let Some(part) = part_of_model(header) {
        let what = format!("{} is {}", path.display(), part.what);
        return Some(match part.is_entry {
            true => Diagnosis::fine(CHECK, format!("{what}; {}", part.advice)),
            false => Diagnosis::failure(CHECK, what, part.advice),
        });
    }
    // Without its weights, which takes no memory and little time.
    let memory_bytes = Some(u64::MAX);
    let options = LoadOptions { vocab_only: true, memory_bytes, ..LoadOptions::default() };
    let error = LlamaModel::load(path, &options, |_| true).err()?;
    let advice = "use another model, or a newer version of Loquent";
    Some(Diagnosis::failure(CHECK, error.to_string(), advice))
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
    fn what_cannot_be_served_is_not_fine() {
        use loquent_formats::gguf::{GgufWriter, Value};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("it.gguf");
        let stage = |layers: u32| {
            let numbers =
                [("version", 1), ("fingerprint", 7), ("first_layer", 0), ("layers", layers)];
            let numbers = numbers.into_iter().chain([("all_layers", 4)]);
            let numbers = numbers.map(|(key, it)| (format!("loquent.stage.{key}"), Value::u32(it)));
            numbers.collect::<Vec<_>>()
        };
        let text = |key: &str, it: &str| vec![(key.to_owned(), Value::string(it))];
        for (metadata, severity, says) in [
            (text("general.architecture", "clip"), Severity::Failure, "projector"),
            (text("general.type", "mmproj"), Severity::Failure, "projector"),
            (text("general.architecture", "fantasy"), Severity::Failure, "fantasy"),
            (stage(2), Severity::Failure, "layers 1 to 2 of 4"),
            (stage(0), Severity::Fine, "entry file"),
        ] {
            let bytes = GgufWriter::start(Vec::new(), &metadata, &[]).unwrap().finish().unwrap();
            std::fs::write(&path, bytes).unwrap();
            let found = diagnose(&path, None);
            assert_eq!(found.severity, severity, "{found:?}");
            assert!(found.what.contains(says), "{found:?}");
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
