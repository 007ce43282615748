//! Places to look for models: the flags that set them, and the folders of other tools.

use std::path::PathBuf;

use clap::Args;

use super::folder;
use super::local::{FoundIn, LocalModel};
use super::ollama;
use crate::hub::{Hub, HubError};

/// Flags for the places to look for models.
#[derive(Debug, Clone, Default, Args)]
pub struct ModelFolders {
    /// Folder with GGUF files, which can then be named without their path. `serve` without a model
    /// serves all of them
    #[arg(long, env = "LOQUENT_MODELS_DIR", value_name = "FOLDER", hide_short_help = true)]
    pub models_dir: Option<PathBuf>,
    /// Base URL of a mirror of the Hugging Face hub [default: <https://huggingface.co>]
    #[arg(long, env = "HF_ENDPOINT", value_name = "URL", hide_short_help = true)]
    pub hf_endpoint: Option<String>,
}

impl ModelFolders {
    /// Returns the hub, with the settings of the environment and of these flags.
    pub(crate) fn hub(&self) -> Result<Hub, HubError> {
        let hub = Hub::from_env()?;
        let endpoint = self.hf_endpoint.as_deref().map(str::trim).filter(|url| !url.is_empty());
        Ok(match endpoint {
            Some(url) => Hub { endpoint: url.trim_end_matches('/').to_owned(), ..hub },
            None => hub,
        })
    }

    /// Returns the places on this machine, with the settings of the environment and of these flags.
    pub(crate) fn here(&self) -> LocalFolders {
        // Compose files set a variable to nothing where it has no value.
        let folder = self.models_dir.clone().filter(|folder| !folder.as_os_str().is_empty());
        LocalFolders::new(folder, self.hub().ok(), |name| std::env::var(name).ok())
    }
}

/// The places on this machine that can hold models.
pub(crate) struct LocalFolders {
    folder: Option<PathBuf>,
    /// Hub whose cache is searched; `None` if no variable determines its location.
    hub: Option<Hub>,
    ollama: Vec<PathBuf>,
    lm_studio: Vec<PathBuf>,
}

impl LocalFolders {
    /// Collects the user's own folder, the hub's cache, and the folders of other tools according to
    /// the environment `variable`.
    pub(crate) fn new(
        folder: Option<PathBuf>,
        hub: Option<Hub>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Self {
        // A relative path would mean another folder after each `cd`.
        let set = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let home = set("HOME").or_else(|| set("USERPROFILE"));
        let below = |folder: &str| home.as_ref().map(|home| home.join(folder));
        // Where Ollama's service keeps its models, if it runs as a user of its own.
        let service = cfg!(target_os = "linux").then(|| "/usr/share/ollama/.ollama/models".into());
        // Ollama itself looks nowhere else when its variable is set.
        let ollama = match set("OLLAMA_MODELS") {
            Some(chosen) => vec![chosen],
            None => below(".ollama/models").into_iter().chain(service).collect(),
        };
        // The second is where older versions kept them.
        let lm_studio = [".lmstudio/models", ".cache/lm-studio/models"];
        let lm_studio = lm_studio.into_iter().filter_map(below).collect();
        Self { folder, hub, ollama, lm_studio }
    }

    /// Returns all models found, in the order in which names are resolved. Folders that cannot be
    /// read count as empty.
    pub(crate) fn models(&self) -> Vec<LocalModel> {
        // What the user chose comes first, then what this program fetched, then what others did.
        let own = self.folder.iter().flat_map(|folder| folder::models(folder, FoundIn::Folder));
        let cached = self.hub.iter().flat_map(|hub| hub.cached_models()).map(LocalModel::cached);
        let ollama = self.ollama.iter().flat_map(|folder| ollama::models(folder));
        let lm_studio =
            self.lm_studio.iter().flat_map(|folder| folder::models(folder, FoundIn::LmStudio));
        own.chain(cached).chain(ollama).chain(lm_studio).collect()
    }

    /// Returns the places that [`LocalFolders::models`] searches.
    pub(crate) fn folders(&self) -> Vec<(FoundIn, PathBuf)> {
        let own = self.folder.iter().map(|folder| (FoundIn::Folder, folder.clone()));
        let cache = self.hub.iter().map(|hub| (FoundIn::HuggingFace, hub.cache_dir.clone()));
        let ollama = self.ollama.iter().map(|folder| (FoundIn::Ollama, folder.clone()));
        let lm_studio = self.lm_studio.iter().map(|folder| (FoundIn::LmStudio, folder.clone()));
        own.chain(cache).chain(ollama).chain(lm_studio).collect()
    }

    /// Returns the hub whose cache is searched.
    pub(crate) fn hub(&self) -> Option<&Hub> {
        self.hub.as_ref()
    }
}
