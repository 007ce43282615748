//! The models downloaded by Ollama.
//!
//! Its store contains one JSON manifest for each tag, `manifests/HOST/NAMESPACE/MODEL/TAG`, which
//! refers to blobs by their hash, `blobs/sha256-…`. One of them is the GGUF file.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::local::{FoundIn, LocalModel, Origin};

/// Media type of the layer with the model's GGUF file.
const MODEL_LAYER: &str = "application/vnd.ollama.image.model";
/// Depth of a manifest's path: host, namespace, model, tag.
const MANIFEST_DEPTH: usize = 4;
/// Maximum number of manifests to read, and of folders to examine.
const MAX_MANIFESTS: usize = 10_000;
/// Maximum size of a manifest; the usual size is about a kilobyte.
const MAX_MANIFEST_BYTES: u64 = 1 << 20;

#[derive(Deserialize)]
struct Manifest {
    layers: Vec<Layer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Layer {
    media_type: String,
    digest: String,
}

/// Returns the models of the store in `root`, by name.
pub(super) fn models(root: &Path) -> Vec<LocalModel> {
    let mut tags = vec![Vec::new()];
    for _ in 0..MANIFEST_DEPTH {
        tags = tags.iter().flat_map(|tag| below(&root.join("manifests"), tag)).collect();
        tags.truncate(MAX_MANIFESTS);
    }
    let mut models: Vec<_> = tags.iter().filter_map(|tag| model(root, tag)).collect();
    models.sort_by(|a, b| a.name.cmp(&b.name));
    models
}

/// Returns the paths one level deeper than `steps`.
fn below(manifests: &Path, steps: &[String]) -> Vec<Vec<String>> {
    let folder = steps.iter().fold(manifests.to_owned(), |path, step| path.join(step));
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().take(MAX_MANIFESTS);
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.map(|name| [steps, &[name]].concat()).collect()
}

fn model(root: &Path, tag: &[String]) -> Option<LocalModel> {
    let manifest = tag.iter().fold(root.join("manifests"), |path, step| path.join(step));
    let path = root.join("blobs").join(blob(&read(&manifest)?)?);
    let model = LocalModel {
        name: name(tag)?,
        // Ollama writes the manifest last: without its blob, somebody has deleted that.
        is_complete: path.is_file(),
        paths: vec![path],
        origin: Origin::Other(FoundIn::Ollama),
    };
    Some(model)
}

fn read(manifest: &Path) -> Option<Manifest> {
    let file = File::open(manifest).ok()?;
    let mut json = Vec::new();
    // Cut off, a larger file is no JSON, and so no manifest.
    file.take(MAX_MANIFEST_BYTES).read_to_end(&mut json).ok()?;
    serde_json::from_slice(&json).ok()
}

/// Returns the file name of the blob that contains the model.
fn blob(manifest: &Manifest) -> Option<PathBuf> {
    let mut layers = manifest.layers.iter();
    let digest = &layers.find(|layer| layer.media_type == MODEL_LAYER)?.digest;
    // It becomes a file name: nothing but a hash may.
    let hash = digest.strip_prefix("sha256:").filter(|hash| hash.len() == 64)?;
    let is_hex = hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| PathBuf::from(format!("sha256-{hash}")))
}

/// Returns Ollama's name of the model, without the default host and namespace.
fn name(tag: &[String]) -> Option<String> {
    let [host, namespace, model, tag] = tag else {
        return None;
    };
    let place = match (host.as_str(), namespace.as_str()) {
        ("registry.ollama.ai", "library") => String::new(),
        ("registry.ollama.ai", namespace) => format!("{namespace}/"),
        (host, namespace) => format!("{host}/{namespace}/"),
    };
    Some(format!("{place}{model}:{tag}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";

    fn store(manifests: &[(&str, &str)]) -> tempfile::TempDir {
        let store = tempfile::tempdir().unwrap();
        for (tag, json) in manifests {
            let path = store.path().join("manifests").join(tag);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, json).unwrap();
        }
        fs::create_dir_all(store.path().join("blobs")).unwrap();
        fs::write(store.path().join("blobs").join(format!("sha256-{HASH}")), b"GGUF").unwrap();
        store
    }

    fn manifest(digest: &str) -> String {
        format!(
            r#"{{"schemaVersion": 2, "config": {{}}, "layers": [
                {{"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:0"}},
                {{"mediaType": "{MODEL_LAYER}", "digest": "{digest}", "size": 4}}]}}"#
        )
    }

    #[test]
    fn models_have_the_names_that_ollama_gives_them() {
        let good = manifest(&format!("sha256:{HASH}"));
        let store = store(&[
            ("registry.ollama.ai/library/qwen3/0.6b", &good),
            ("registry.ollama.ai/acme/tuned/latest", &good),
            ("hf.co/acme/Small-GGUF/Q8_0", &good),
        ]);
        let models = models(store.path());
        let names: Vec<_> = models.iter().map(|model| model.name.as_str()).collect();
        assert_eq!(names, ["acme/tuned:latest", "hf.co/acme/Small-GGUF:Q8_0", "qwen3:0.6b"]);
        assert!(models.iter().all(|model| model.path().is_file() && model.is_complete));
        assert!(models[0].is_called("acme/tuned") && models[2].is_called("Qwen3:0.6B"));
        assert!(!models[2].is_called("qwen3"));
    }

    #[test]
    fn a_digest_leads_nowhere_else() {
        let missing = format!("sha256:{}", "0".repeat(64));
        let store = store(&[
            ("registry.ollama.ai/library/a/1", &manifest("sha256:../../../../etc/passwd")),
            ("registry.ollama.ai/library/b/1", "{"),
            ("registry.ollama.ai/library/c/1", &manifest(&missing)),
        ]);
        let models = models(store.path());
        assert_eq!(models.len(), 1);
        assert_eq!((models[0].name.as_str(), models[0].is_complete), ("c:1", false));
    }
}
