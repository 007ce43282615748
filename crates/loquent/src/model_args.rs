//! The flags that name a model file, for `serve` and `tune`.

use std::path::PathBuf;

use clap::Args;

use crate::bundled;
use crate::hub::{self, HubSpec};

/// Where a model comes from.
#[derive(Debug, Args)]
pub(crate) struct ModelArgs {
    /// Model file in GGUF format [default: the bundled demonstration model]
    #[arg(long, short, env = "LOQUENT_MODEL", value_name = "FILE")]
    pub(crate) model: Option<PathBuf>,
    /// Model on the Hugging Face hub, as OWNER/REPO[@REVISION][:FILE or quantisation]
    #[arg(long, env = "LOQUENT_HF", value_name = "REPO", conflicts_with = "model")]
    pub(crate) hf: Option<HubSpec>,
}

impl ModelArgs {
    /// The path of the model's file, which is downloaded or unpacked first where necessary.
    ///
    /// # Errors
    /// When the download fails, or the bundled model cannot be written to disk.
    pub(crate) fn fetch(&self) -> anyhow::Result<PathBuf> {
        match (&self.model, &self.hf) {
            (Some(path), _) => Ok(path.clone()),
            (None, Some(spec)) => Ok(hub::fetch(spec, &mut hub::progress_bar())?),
            (None, None) => bundled::materialize(),
        }
    }
}
