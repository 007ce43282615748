//! Locations of the hub and of the cache, from the environment.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::error::HubError;

/// The public hub.
pub const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// Source and cache of models. [`Hub::from_env`] reads the variables that the hub's own tools read.
#[derive(Clone)]
pub struct Hub {
    /// Base URL without a trailing slash (`HF_ENDPOINT`).
    pub endpoint: String,
    /// Access token, sent to the endpoint only (`HF_TOKEN`, or the file `HF_HOME/token`).
    pub token: Option<String>,
    /// Folder with the `models--…` folders (`HF_HUB_CACHE`, or `HF_HOME/hub`).
    pub cache_dir: PathBuf,
    /// Disables the network (`HF_HUB_OFFLINE`).
    pub offline: bool,
    /// Consecutive attempts without progress before a download is given up.
    pub max_attempts: u32,
    /// Pause after the first failed attempt; doubles with each further one, up to 10 s.
    pub retry_delay: Duration,
    /// Ends a download early once it is set, between two reads.
    pub stopped: Arc<AtomicBool>,
}

impl Hub {
    /// Reads the settings from the process environment.
    ///
    /// # Errors
    /// [`HubError::NoCacheDir`] if neither a variable nor a home folder determines the cache's
    /// location.
    pub fn from_env() -> Result<Hub, HubError> {
        Hub::from_variables(|name| std::env::var(name).ok())
    }

    /// Reads the settings from any look-up of variables by name; [`Hub::from_env`] passes the
    /// environment.
    ///
    /// # Errors
    /// [`HubError::NoCacheDir`], as for [`Hub::from_env`].
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Hub, HubError> {
        let set =
            |name: &str| variable(name).map(|v| v.trim().to_owned()).filter(|v| !v.is_empty());
        let home = home(&set);
        let cache_dir = set("HF_HUB_CACHE")
            .map(PathBuf::from)
            .or_else(|| home.as_ref().map(|home| home.join("hub")))
            .ok_or(HubError::NoCacheDir)?;
        // As huggingface_hub does: the variable wins over the file that `hf auth login` writes.
        let token_file = set("HF_TOKEN_PATH").map(PathBuf::from).or(home.map(|h| h.join("token")));
        let token = set("HF_TOKEN").or_else(|| {
            let text = std::fs::read_to_string(token_file?).ok()?;
            Some(text.trim().to_owned()).filter(|token| !token.is_empty())
        });
        let endpoint = set("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned());
        let truthy = |v: String| matches!(v.to_lowercase().as_str(), "1" | "true" | "yes" | "on");
        Ok(Hub {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token,
            cache_dir,
            offline: set("HF_HUB_OFFLINE").is_some_and(truthy),
            max_attempts: 6,
            retry_delay: Duration::from_millis(500),
            stopped: Arc::default(),
        })
    }

    /// Checks that a download shall go on.
    ///
    /// # Errors
    /// [`HubError::Stopped`] once [`Self::stopped`] is set.
    pub(super) fn check_wanted(&self) -> Result<(), HubError> {
        if self.stopped.load(Ordering::Relaxed) { Err(HubError::Stopped) } else { Ok(()) }
    }
}

/// Returns the hub's folder of settings and caches: `HF_HOME`, else below the user's cache folder.
fn home(set: &impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let in_cache = |dir: PathBuf| dir.join("huggingface");
    let user_home = || set("HOME").or_else(|| set("USERPROFILE")).map(PathBuf::from);
    set("HF_HOME")
        .map(PathBuf::from)
        .or_else(|| set("XDG_CACHE_HOME").map(|dir| in_cache(dir.into())))
        .or_else(|| user_home().map(|home| in_cache(home.join(".cache"))))
}
