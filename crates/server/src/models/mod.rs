//! The models that a server answers with, by name.
//!
//! A request's `model` picks the entry that answers it. A server with one model answers with that
//! model whatever the request calls it, unless its operator wants names to be exact. An entry is
//! either permanent (an upstream server, or the only model), or a [`Keeper`] loads it on demand and
//! unloads it when its memory is needed.
//!
//! A client that manages the server can have it download further models from a hub
//! ([`ModelDownloads`]); they join the list once they are complete.
//!
//! A request holds a [`model_use::ModelUse`] for as long as it needs the model: no model is
//! unloaded before its last answer has ended.

mod catalog;
mod downloads;
mod growing_list;
mod keeper;
mod model_use;
mod residency;
mod stats;

pub use catalog::{ModelEntry, OnDemand, ServedModels};
pub use downloads::{Download, DownloadEnd, DownloadProgress, ModelDownloader, ModelDownloads};
pub use keeper::{EngineSource, Keeper, KeeperConfig, KeeperContext, KeptEngine, KeptModel};
pub use model_use::ModelUse;
pub use residency::ResidencyLimits;
pub use stats::ModelStats;
