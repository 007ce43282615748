//! Resolves model names: a file, a model downloaded by this or another tool, one on the Hugging
//! Face hub, or the bundled one.
//!
//! `serve`, `tune`, `run`, `bench engine` and `pull` all accept such names, and [`resolve`] turns
//! one into a file.

mod catalogue;
mod folder;
pub mod list;
mod local;
mod ollama;
mod one_line;
mod places;
pub mod pull;
pub mod rm;
pub(crate) mod split_files;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
#[cfg(feature = "llama")]
use std::sync::{Arc, atomic::AtomicBool};

use anyhow::bail;

use crate::bundled;
use crate::hub::{self, HubSpec};
#[cfg(feature = "llama")]
use crate::hub::{EventHandler, Hub};
use local::{FoundIn, LocalModel};

use one_line::on_one_line;

pub use places::ModelFolders;

/// Short name of the bundled model.
pub const BUNDLED: &str = "tiny";

/// Maximum number of similar names in an error.
const MAX_SUGGESTIONS: usize = 5;

/// Returns the GGUF file of the model called `name`; for a model in several files, the first.
///
/// A name is resolved in this order: the path of a file; `tiny`, the bundled model; a model on this
/// machine as listed by `loquent list`; `OWNER/REPO[@REVISION][:QUANT or FILE]` on the Hugging Face
/// hub; or a short name such as `qwen3:0.6b`. A model that is not on this machine is downloaded,
/// with a progress bar on stderr. A local one is used without a check for updates: only `loquent
/// pull` looks for newer versions.
///
/// # Errors
/// If no model has that name, parts of it are missing, or it cannot be downloaded or unpacked. The
/// message contains advice.
pub fn resolve(name: &Path, places: &ModelFolders) -> anyhow::Result<PathBuf> {
    match look_up(name, places)? {
        Source::Here(path) => Ok(path),
        Source::Hub(spec) => Ok(places.hub()?.fetch(&spec, &mut hub::progress_bar())?),
    }
}

/// Checks without the network that [`resolve`] can find a model called `name`. The hub may still
/// lack it.
///
/// # Errors
/// If no model can have that name, or parts of it are missing. The message contains advice.
pub(crate) fn check(name: &Path, places: &ModelFolders) -> anyhow::Result<()> {
    look_up(name, places).map(drop)
}

/// Source of a model.
enum Source {
    /// A file on this machine.
    Here(PathBuf),
    /// The hub, if it has the model.
    Hub(HubSpec),
}

/// Returns the source of the model called `name`, without the network.
fn look_up(name: &Path, places: &ModelFolders) -> anyhow::Result<Source> {
    if let Some(path) = resolve_here(name, places)? {
        return Ok(Source::Here(path));
    }
    if name.is_dir() {
        let folder = on_one_line(name.display());
        bail!("{folder} is a folder; to serve all models in it: --models-dir {folder}");
    }
    let text = name.to_str().filter(|text| !looks_like_a_path(text));
    let Some(spec) = text.and_then(hub_spec) else {
        bail!(unknown(&name.to_string_lossy(), &places.here().models()));
    };
    Ok(Source::Hub(spec))
}

/// Downloads the model called `name`, a name on the hub or a short name, for a client of a server:
/// unlike [`resolve`] it opens no file that only a path names. `stopped` ends it early.
///
/// # Errors
/// If the hub has no such model, or it cannot be downloaded. The message contains advice.
#[cfg(feature = "llama")]
pub(crate) fn download(
    name: &str,
    places: &ModelFolders,
    stopped: &Arc<AtomicBool>,
    on_event: EventHandler<'_>,
) -> anyhow::Result<PathBuf> {
    let Some(spec) = client_spec(name) else { bail!(unknown(name, &[])) };
    let hub = Hub { stopped: stopped.clone(), ..places.hub()? };
    Ok(hub.fetch(&spec, on_event)?)
}

/// Returns the file that [`download`] of `name` left in the cache, if it is there.
#[cfg(feature = "llama")]
pub(crate) fn downloaded(name: &str, places: &ModelFolders) -> Option<PathBuf> {
    places.hub().ok()?.cached(&client_spec(name)?)
}

/// Returns the model's specification on the hub, from its name as other servers' clients write it.
#[cfg(feature = "llama")]
fn client_spec(name: &str) -> Option<HubSpec> {
    let on_hub = ["https://huggingface.co/", "huggingface.co/", "hf.co/"];
    let name = on_hub.iter().find_map(|host| name.strip_prefix(host)).unwrap_or(name);
    hub_spec(name)
}

/// Like [`resolve`], but without the network: returns `None` for a model that is not on this
/// machine.
///
/// # Errors
/// If parts of the model are missing, or the bundled model cannot be unpacked.
pub fn resolve_here(name: &Path, places: &ModelFolders) -> anyhow::Result<Option<PathBuf>> {
    // First, so that no name of a place can hide a file that the user points at.
    if name.is_file() {
        if name.extension().is_some_and(|it| it.eq_ignore_ascii_case("safetensors")) {
            bail!(
                "{} is in safetensors format; use a file in GGUF format, which the hub has for \
                 most models, in repositories whose name ends with GGUF",
                on_one_line(name.display())
            );
        }
        return split_files::first(name).map(Some);
    }
    if is_bundled(name) {
        return bundled::materialize().map(Some);
    }
    // A name that is not UTF-8 can only be a path, and there is no such file.
    let Some(name) = name.to_str() else {
        return Ok(None);
    };
    let models = places.here().models();
    match find(&models, name) {
        Some(model) if model.is_complete => split_files::first(model.path()).map(Some),
        Some(model) if model.found_in() == FoundIn::Ollama => {
            let name = on_one_line(&model.name);
            bail!(
                "the file of {name} is missing from Ollama's store; get it by: ollama pull {name}"
            )
        }
        // The hub has the rest of what it began to send; of others, the missing parts are named.
        Some(model) if model.found_in() != FoundIn::HuggingFace => {
            split_files::first(model.path()).map(Some)
        }
        _ => Ok(hub_spec(name).and_then(|spec| places.hub().ok()?.cached(&spec))),
    }
}

/// Returns true if `name` refers to the model inside the binary. A file of that name has
/// precedence.
pub fn is_bundled(name: &Path) -> bool {
    !name.is_file() && (name == Path::new(BUNDLED) || name == Path::new(bundled::NAME))
}

/// Returns the model's specification on the hub, from its name there or its short name here.
fn hub_spec(name: &str) -> Option<HubSpec> {
    catalogue::find(name).unwrap_or(name).parse().ok()
}

/// Returns the model called `name`; among several, a complete one, in the order of the places.
fn find<'a>(models: &'a [LocalModel], name: &str) -> Option<&'a LocalModel> {
    let mut called: Vec<_> = models.iter().filter(|model| model.is_called(name)).collect();
    // Stable: among complete ones the first place wins.
    called.sort_by_key(|model| !model.is_complete);
    called.first().copied()
}

/// Returns true if `name` can only refer to a file, even if none exists.
fn looks_like_a_path(name: &str) -> bool {
    // `OWNER/REPO:FILE.gguf` names a file of the hub.
    let is_gguf = name.to_ascii_lowercase().ends_with(".gguf") && !name.contains(':');
    is_gguf || name.starts_with(['.', '/', '~', '\\'])
}

/// Returns the message that there is no such model, with similar names.
fn unknown(name: &str, models: &[LocalModel]) -> String {
    if looks_like_a_path(name) {
        return format!("model file not found: {}", on_one_line(name));
    }
    let word = name.split([':', '/']).next_back().unwrap_or(name);
    let words = [word, name.split([':', '/']).next().unwrap_or(name)];
    // A typing error is mostly in the size or in the family, seldom in both.
    let words: Vec<_> = words.iter().map(|word| word.to_lowercase()).collect();
    let is_similar = |other: &str| {
        let other = other.to_lowercase();
        // One letter is in nearly every name.
        words.iter().any(|word| word.len() > 1 && other.contains(word.as_str()))
    };
    let here = models.iter().map(|model| model.name.clone());
    let known = here.chain(catalogue::all().map(|(name, _)| name.to_owned()));
    let mut similar: Vec<_> = known.filter(|other| is_similar(other)).collect();
    // A model that is here may have a well-known name.
    let mut seen = BTreeSet::new();
    similar.retain(|name| seen.insert(name.clone()));
    similar.truncate(MAX_SUGGESTIONS);
    let similar: Vec<_> = similar.iter().map(|name| format!("\n  {}", on_one_line(name))).collect();
    let hint = if similar.is_empty() { "" } else { "\nDid you mean one of these?" };
    format!(
        "there is no model {:?} here; name a GGUF file, OWNER/REPO[:QUANT] on the Hugging Face hub, \
         or a model that loquent list shows{hint}{}",
        on_one_line(name),
        similar.concat(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_meant_as_a_file_is_not_looked_for_on_the_hub() {
        for path in ["models/a.gguf", "./owner/repo", "/a/b", "~/a", "A.GGUF"] {
            assert!(looks_like_a_path(path), "{path}");
        }
        for name in ["owner/repo", "owner/repo:file.gguf", "qwen3:0.6b", "tiny"] {
            assert!(!looks_like_a_path(name), "{name}");
        }
    }

    #[test]
    fn a_folder_and_a_file_of_another_format_get_advice() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model.safetensors");
        std::fs::write(&file, "").unwrap();
        let places = ModelFolders::default();
        let error = |path: &Path| resolve(path, &places).unwrap_err().to_string();
        assert!(error(folder.path()).contains("--models-dir"));
        assert!(error(&file).contains("GGUF format"));
    }

    #[test]
    fn an_unknown_name_gets_suggestions() {
        let text = unknown("qwen3:99b", &[]);
        assert!(text.contains("Did you mean") && text.contains("qwen3:0.6b"), "{text}");
        let text = unknown("zzz", &[]);
        assert!(!text.contains("Did you mean") && text.contains("loquent list"), "{text}");
        assert_eq!(unknown("no/such.gguf", &[]), "model file not found: no/such.gguf");
    }
}
