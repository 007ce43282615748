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

use std::path::{Path, PathBuf};

pub use bar::progress_bar;
pub use config::{DEFAULT_ENDPOINT, Hub};
pub use error::HubError;
pub use event::{EventHandler, FetchEvent};
pub(crate) use http::system_tls;
pub(crate) use inventory::CachedModel;
pub use spec::{HubSpec, Selector};

use cache::RepoCache;
use listing::{BlobInfo, Listed, Listing};

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

/// A file of the model that is not in the cache, or not whole.
struct MissingFile<'a> {
    listed: &'a Listed,
    content: BlobInfo,
    /// 1-based number of the file.
    number: usize,
}

impl Fetch<'_> {
    fn all_parts(&self, on_event: EventHandler<'_>) -> Result<PathBuf, HubError> {
        let Fetch { hub, agent, cache, spec, listing } = self;
        let names: Vec<&str> = listing.files.iter().map(|file| file.path.as_str()).collect();
        let parts = choose::parts(spec, &names)?;
        let first = cache.snapshot(&listing.commit).join(parts[0]);
        let missing = self.missing(&parts)?;
        self.check_space(&first, &missing)?;
        for MissingFile { listed, content, number } in &missing {
            let part = (*number, parts.len());
            let job = download::Job { hub, agent, spec, commit: &listing.commit, part };
            job.run(cache, &listed.path, content, on_event)?;
        }
        // Written last: offline, a branch must lead to a snapshot that is complete.
        if let Err(error) = cache.write_ref(&spec.revision, &listing.commit) {
            // The model is there: only a start without the network needs the record.
            on_event(FetchEvent::NotRecorded { why: format!("{:#}", anyhow::Error::from(error)) });
        }
        Ok(first)
    }

    fn missing(&self, parts: &[&str]) -> Result<Vec<MissingFile<'_>>, HubError> {
        let Fetch { hub, agent, cache, spec, listing } = self;
        let mut missing = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            let listed = listing.files.iter().find(|file| file.path == *part);
            let listed = listed.expect("a chosen part is one of the listed files");
            let content = hub.content(agent, spec, listing, listed)?;
            if !cache.has(&listing.commit, &listed.path, &content) {
                missing.push(MissingFile { listed, content, number: index + 1 });
            }
        }
        Ok(missing)
    }

    /// Checks that the disk has room for all files, so that no download fails after hours.
    fn check_space(&self, path: &Path, missing: &[MissingFile<'_>]) -> Result<(), HubError> {
        let bytes = missing.iter().map(|file| self.cache.missing_bytes(&file.content));
        let missing_bytes = bytes.fold(0, u64::saturating_add);
        match self.cache.free_bytes() {
            Some(free_bytes) if missing_bytes > free_bytes => {
                let (path, free_bytes) = (path.to_owned(), Some(free_bytes));
                Err(HubError::NoSpace { path, missing_bytes, free_bytes })
            }
            _ => Ok(()),
        }
    }
}
