//! The flags for several models that share a machine.

use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use clap::Args;

/// Limits on the models kept in memory.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Several models")]
pub(crate) struct KeepArgs {
    /// Unload a model that nobody has used for this many seconds [default: it stays until another
    /// one needs its memory]
    #[arg(long, env = "LOQUENT_MODEL_IDLE_S", value_name = "S")]
    model_idle_s: Option<NonZeroU32>,
    /// Maximum number of models in memory at the same time [default: as many as fit]
    #[arg(long, env = "LOQUENT_MAX_LOADED_MODELS", value_name = "N")]
    max_loaded_models: Option<NonZeroU32>,
    /// Maximum memory of all loaded models together in MiB, counted as their files and KV caches
    /// [default: nine tenths of what is free when the server starts]
    #[arg(long, env = "LOQUENT_MODELS_MEMORY_MIB", value_name = "MIB")]
    models_memory_mib: Option<NonZeroU64>,
}

impl KeepArgs {
    /// Returns the idle time after which a model is unloaded.
    pub(crate) fn idle(&self) -> Option<Duration> {
        self.model_idle_s.map(|seconds| Duration::from_secs(seconds.get().into()))
    }

    /// Returns the maximum number of models in memory.
    pub(crate) fn max_loaded(&self) -> usize {
        self.max_loaded_models.map_or(usize::MAX, |most| most.get() as usize)
    }

    /// Returns the maximum bytes of all models together, if set.
    pub(crate) fn memory_bytes(&self) -> Option<u64> {
        self.models_memory_mib.map(|mebibytes| mebibytes.get().saturating_mul(1 << 20))
    }
}
