//! The flags for the prefix cache on disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, ensure};
use clap::Args;
use loquent_server::{PrefixStore, PrefixStoreConfig};

use super::engine::EngineArgs;

/// Location and size of the prefix cache on disk.
#[derive(Debug, Args)]
#[command(next_help_heading = "Prefix cache on disk")]
pub(crate) struct PrefixCacheArgs {
    /// Folder in which the KV of finished sequences is kept, so that prompts with the same
    /// beginning need not be computed after a restart, after their model was unloaded, or at
    /// another server with the same folder [default: none]
    ///
    /// The folder is created if it does not exist. Only this user can read the files. Models with
    /// sliding windows or recurrent layers are not cached there, and neither are models with
    /// --engine-process or --stages, which are refused.
    #[arg(
        long,
        env = "LOQUENT_PREFIX_CACHE_DIR",
        value_name = "DIR",
        conflicts_with = "no_prefix_cache"
    )]
    prefix_cache_dir: Option<PathBuf>,
    /// Maximum size of that folder in MiB; beyond it, what was not used for longest is deleted
    #[arg(long, env = "LOQUENT_PREFIX_CACHE_MB", default_value_t = 4096, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..))]
    prefix_cache_mb: u32,
}

impl PrefixCacheArgs {
    /// Returns true if prefixes are to be kept on disk.
    pub(crate) fn is_wanted(&self) -> bool {
        self.folder().is_some()
    }

    /// Opens the store of prefixes, if one is wanted for `engine`.
    ///
    /// # Errors
    /// If the folder cannot be used, or `engine` cannot save prefixes.
    pub(super) fn open(&self, engine: &EngineArgs) -> anyhow::Result<Option<Arc<PrefixStore>>> {
        let Some(folder) = self.folder() else { return Ok(None) };
        ensure!(
            !engine.engine_process && !engine.staged.is_wanted(),
            "--prefix-cache-dir is for models in this process: leave it away with \
             --engine-process and --stages"
        );
        let max_bytes = u64::from(self.prefix_cache_mb) << 20;
        let config = PrefixStoreConfig { folder: folder.to_owned(), max_bytes };
        let store = PrefixStore::open(config)
            .with_context(|| format!("--prefix-cache-dir {}", folder.display()))?;
        Ok(Some(Arc::new(store)))
    }

    fn folder(&self) -> Option<&Path> {
        // Compose files set a variable to nothing where it has no value.
        self.prefix_cache_dir.as_deref().filter(|folder| !folder.as_os_str().is_empty())
    }
}
