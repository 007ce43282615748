//! Downloads GGUF models from the Hugging Face hub (or a mirror) into its usual local cache.
//!
//! The cache has the layout of the hub's own clients, so models are shared with other tools in both
//! directions: `models--OWNER--REPO/{blobs,refs,snapshots}`, each blob named by its hash, each
//! snapshot a folder of links. An incomplete blob is `blobs/HASH.incomplete`.
//!
//! Reasons not to use the `hf-hub` crate: version 1.0.0 restarts an interrupted download at the
//! first byte, does not check the file's hash, and adds about a hundred crates (the Xet transfer
//! stack). This module needs only one listing and one resumable GET, for which `ureq` (blocking,
//! small, rustls) is enough. It uses the operating system's certificates, so that a company's
//! authority works.

mod bar;
mod cache;
pub(crate) mod choose;
mod config;
mod content_hash;
mod download;
mod error;
mod event;
mod http;
mod inventory;
pub(crate) mod listing;
mod spec;

use std::path::PathBuf;

pub use bar::progress_bar;
pub use config::{DEFAULT_ENDPOINT, Hub};
pub use error::HubError;
pub use event::{EventHandler, FetchEvent};
pub(crate) use http::system_tls;
pub(crate) use inventory::CachedModel;
pub use spec::{HubSpec, Selector};

use cache::RepoCache;
use listing::{Listed, Listing};

/// Fetches a model with the settings of the environment: see [`Hub::from_env`] and
/// [`Hub::fetch`].
///
/// # Errors
/// Errors of [`Hub::from_env`] and [`Hub::fetch`].
pub fn fetch(spec: &HubSpec, on_event: EventHandler<'_>) -> Result<PathBuf, HubError> {
    Hub::from_env()?.fetch(spec, on_event)
}

impl Hub {
    /// Downloads the model of `spec` into the cache, unless it is already there, and returns the
    /// path of its GGUF file (of the first part, if the model is split over several files).
    ///
    /// Continues an incomplete download, and checks a complete file against its size and hash.
    /// Blocks until the model is complete.
    ///
    /// # Errors
    /// Every variant of [`HubError`]. The bytes downloaded so far are kept for the next attempt,
    /// unless they are known to be wrong.
    pub fn fetch(&self, spec: &HubSpec, on_event: EventHandler<'_>) -> Result<PathBuf, HubError> {
        let cache = RepoCache::new(&self.cache_dir, &spec.repo);
        if self.offline {
            return cache.find(spec);
        }
        let agent = self.agent();
        match self.list(&agent, spec) {
            Ok(listing) => Fetch { hub: self, agent, cache, spec, listing }.all_parts(on_event),
            Err(error @ HubError::Unreachable { .. }) => {
                // Without a copy either, the network is what to report.
                let path = cache.find(spec).map_err(|_| error)?;
                on_event(FetchEvent::Unreachable);
                Ok(path)
            }
            Err(error) => Err(error),
        }
    }
}

impl Hub {
    /// Returns the path of the model of `spec` if it is in the cache; does not contact the hub.
    pub fn cached(&self, spec: &HubSpec) -> Option<PathBuf> {
        RepoCache::new(&self.cache_dir, &spec.repo).find(spec).ok()
    }
}

/// Fetch of one model whose repository has been listed.
struct Fetch<'a> {
    hub: &'a Hub,
    agent: ureq::Agent,
    cache: RepoCache,
    spec: &'a HubSpec,
    listing: Listing,
}

impl Fetch<'_> {
    fn all_parts(&self, on_event: EventHandler<'_>) -> Result<PathBuf, HubError> {
        let files = &self.listing.files;
        let names: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
        let parts = choose::parts(self.spec, &names)?;
        for (index, part) in parts.iter().enumerate() {
            let listed = files.iter().find(|file| file.path == *part);
            let listed = listed.expect("a chosen part is one of the listed files");
            self.one_part(listed, (index + 1, parts.len()), on_event)?;
        }
        // Written last: offline, a branch must lead to a snapshot that is complete.
        if let Err(error) = self.cache.write_ref(&self.spec.revision, &self.listing.commit) {
            // The model is there: only a start without the network needs the record.
            on_event(FetchEvent::NotRecorded { why: format!("{:#}", anyhow::Error::from(error)) });
        }
        Ok(self.cache.snapshot(&self.listing.commit).join(parts[0]))
    }

    fn one_part(
        &self,
        listed: &Listed,
        part: (usize, usize),
        on_event: EventHandler<'_>,
    ) -> Result<(), HubError> {
        let Fetch { hub, agent, cache, spec, listing } = self;
        let content = hub.content(agent, spec, listing, listed)?;
        if cache.has(&listing.commit, &listed.path, &content) {
            return Ok(());
        }
        let job = download::Job { hub, agent, spec, commit: &listing.commit, part };
        job.run(cache, &listed.path, &content, on_event)
    }
}
