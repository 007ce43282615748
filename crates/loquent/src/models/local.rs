//! A model on this machine, from this or another tool.

use std::fs;
use std::path::{Path, PathBuf};

use crate::hub::CachedModel;

/// Location of a model on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FoundIn {
    /// The folder given with `--models-dir`.
    Folder,
    /// The Hugging Face cache, which `pull` fills.
    HuggingFace,
    Ollama,
    LmStudio,
}

impl FoundIn {
    /// Returns the name for people.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Folder => "folder",
            Self::HuggingFace => "Hugging Face cache",
            Self::Ollama => "Ollama",
            Self::LmStudio => "LM Studio",
        }
    }

    /// Returns the name for programs.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Folder => "folder",
            Self::HuggingFace => "hugging-face",
            Self::Ollama => "ollama",
            Self::LmStudio => "lm-studio",
        }
    }
}

/// A model on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LocalModel {
    /// Name on the command line.
    pub(crate) name: String,
    /// Files of the model; more than one if it is split. Never empty.
    pub(crate) paths: Vec<PathBuf>,
    /// True if all of its parts are present.
    pub(crate) is_complete: bool,
    pub(crate) origin: Origin,
}

/// Location of a model, with the data needed to remove it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    Cached(CachedModel),
    Other(FoundIn),
}

impl LocalModel {
    /// Creates a model of the hub's cache.
    pub(crate) fn cached(model: CachedModel) -> Self {
        Self {
            name: model.name.clone(),
            paths: model.paths.clone(),
            is_complete: model.is_complete,
            origin: Origin::Cached(model),
        }
    }

    pub(crate) fn found_in(&self) -> FoundIn {
        match &self.origin {
            Origin::Cached(_) => FoundIn::HuggingFace,
            Origin::Other(place) => *place,
        }
    }

    /// Returns its file, or the first of several.
    pub(crate) fn path(&self) -> &Path {
        self.paths.first().expect("a model has a file")
    }

    /// Returns the size of its files on disk.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.paths.iter().filter_map(|path| fs::metadata(path).ok()).map(|meta| meta.len()).sum()
    }

    /// Returns true if `name` refers to this model. Case is ignored, and as in Ollama `:latest` may
    /// be left out.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        let own = self.name.as_str();
        let short = own.strip_suffix(":latest").filter(|_| self.found_in() == FoundIn::Ollama);
        own.eq_ignore_ascii_case(name) || short.is_some_and(|own| own.eq_ignore_ascii_case(name))
    }
}
