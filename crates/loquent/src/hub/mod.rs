//! Downloads GGUF models from the Hugging Face hub (or a mirror) into its usual local cache.
//!
//! The cache has the layout that the hub's own clients use, so a model that another tool fetched
//! is found and the other way round: `models--OWNER--REPO/{blobs,refs,snapshots}`, each blob named
//! by its hash, each snapshot a folder of links. An unfinished blob is `blobs/HASH.incomplete`.
//!
//! Why not the `hf-hub` crate: its 1.0.0 starts an interrupted plain HTTP download again from the
//! first byte, compares no hash, and brings the whole Xet transfer stack with it. What is needed
//! here is one listing and one resumable GET, which `ureq` (blocking, small, rustls) does well;
//! the certificates are the operating system's, so that a company's own authority works.

mod bar;
mod cache;
mod choose;
mod download;
mod error;
mod listing;
mod spec;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use bar::progress_bar;
pub use error::HubError;
pub use spec::{HubSpec, Selector};

use ureq::http::{Method, Request, Response, Uri};

use cache::RepoCache;
use listing::{Listed, Listing};

/// The public hub.
pub const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// The hub redirects once to its storage, and once more for a renamed repository.
const MAX_REDIRECTS: usize = 8;

/// What happens while a model is fetched, for a progress display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The hub cannot be reached; a copy in the cache is used.
    Unreachable,
    /// Another process is fetching this file; its lock is awaited.
    Waiting {
        /// Path in the repository.
        file: String,
    },
    /// The transfer of one file begins.
    Started {
        /// Path in the repository.
        file: String,
        /// Bytes already here from an earlier attempt.
        have_bytes: u64,
        /// Size of the whole file.
        total_bytes: u64,
        /// 1-based number of this file and how many there are (split models have several).
        part: (usize, usize),
    },
    /// The file now has this many bytes here.
    Advanced {
        /// Bytes of the file that are on disk.
        have_bytes: u64,
    },
    /// The connection broke; the rest is asked for again.
    Retrying {
        /// What went wrong.
        why: String,
    },
    /// The file is complete and its hash is right.
    Verified {
        /// Path in the repository.
        file: String,
    },
}

/// Receives each [`Event`] in turn.
pub type Progress<'a> = &'a mut dyn FnMut(Event);

/// Where and how to fetch. [`Hub::from_env`] reads the variables that the hub's own tools read.
#[derive(Clone)]
pub struct Hub {
    /// Base URL without a slash at its end (`HF_ENDPOINT`).
    pub endpoint: String,
    /// Access token, sent to the endpoint only (`HF_TOKEN`, or the file `HF_HOME/token`).
    pub token: Option<String>,
    /// Folder that holds `models--…` folders (`HF_HUB_CACHE`, or `HF_HOME/hub`).
    pub cache_dir: PathBuf,
    /// Never use the network (`HF_HUB_OFFLINE`).
    pub offline: bool,
    /// Attempts in a row that bring no byte before a download is given up.
    pub max_attempts: u32,
    /// Pause after the first failed attempt; it doubles with each further one, up to 10 s.
    pub retry_delay: Duration,
}

/// Fetches by the settings of the environment: see [`Hub::from_env`] and [`Hub::fetch`].
///
/// # Errors
/// Those of [`Hub::from_env`] and [`Hub::fetch`].
pub fn fetch(spec: &HubSpec, progress: Progress<'_>) -> Result<PathBuf, HubError> {
    Hub::from_env()?.fetch(spec, progress)
}

impl Hub {
    /// Settings from the process environment.
    ///
    /// # Errors
    /// [`HubError::NoCacheDir`] where no variable and no home folder says where the cache is.
    pub fn from_env() -> Result<Hub, HubError> {
        Hub::from_variables(|name| std::env::var(name).ok())
    }

    /// Settings from any look-up of variables by name; [`Hub::from_env`] passes the environment.
    ///
    /// # Errors
    /// [`HubError::NoCacheDir`], as for [`Hub::from_env`].
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Hub, HubError> {
        let set =
            |name: &str| variable(name).map(|v| v.trim().to_owned()).filter(|v| !v.is_empty());
        let home = cache::home(&set);
        let cache_dir = set("HF_HUB_CACHE")
            .map(PathBuf::from)
            .or_else(|| home.as_ref().map(|home| home.join("hub")))
            .ok_or(HubError::NoCacheDir)?;
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
        })
    }

    /// Makes sure that the model of `spec` is in the cache and gives the path of its GGUF (of the
    /// first part, where the model is split over several).
    ///
    /// What is there already is not asked for again, an unfinished download is continued, and a
    /// finished file has been checked against its size and SHA-256. Blocks until done.
    ///
    /// # Errors
    /// Every variant of [`HubError`]; after one, what was downloaded so far is kept for the next
    /// attempt unless it is known to be wrong.
    pub fn fetch(&self, spec: &HubSpec, progress: Progress<'_>) -> Result<PathBuf, HubError> {
        let cache = RepoCache::new(&self.cache_dir, &spec.repo);
        if self.offline {
            return cache.find(spec);
        }
        let agent = self.agent();
        match self.list(&agent, spec) {
            Ok(listing) => self.fetch_listed(&agent, &cache, spec, &listing, progress),
            Err(error @ HubError::Unreachable { .. }) => {
                let path = cache.find(spec).map_err(|_| error)?;
                progress(Event::Unreachable);
                Ok(path)
            }
            Err(error) => Err(error),
        }
    }

    fn fetch_listed(
        &self,
        agent: &ureq::Agent,
        cache: &RepoCache,
        spec: &HubSpec,
        listing: &Listing,
        progress: Progress<'_>,
    ) -> Result<PathBuf, HubError> {
        let names: Vec<&str> = listing.files.iter().map(|file| file.path.as_str()).collect();
        let parts = choose::parts(spec, &names)?;
        for (index, part) in parts.iter().enumerate() {
            let listed = listing.files.iter().find(|file| file.path == *part);
            let listed = listed.expect("a chosen part is one of the listed files");
            let place = (index + 1, parts.len());
            self.fetch_part(agent, cache, spec, listing, listed, place, progress)?;
        }
        cache.write_ref(&spec.revision, &listing.commit)?;
        Ok(cache.snapshot(&listing.commit).join(parts[0]))
    }

    #[expect(clippy::too_many_arguments, reason = "one call site; a struct would only rename them")]
    fn fetch_part(
        &self,
        agent: &ureq::Agent,
        cache: &RepoCache,
        spec: &HubSpec,
        listing: &Listing,
        listed: &Listed,
        part: (usize, usize),
        progress: Progress<'_>,
    ) -> Result<(), HubError> {
        let content = self.content(agent, spec, listing, listed)?;
        if cache.has(&listing.commit, &listed.path, &content) {
            return Ok(());
        }
        let job = download::Job { hub: self, agent, spec, commit: &listing.commit, part };
        job.run(cache, &listed.path, &content, progress)
    }

    /// An HTTP client that never hangs for ever: a minute without a byte counts as a broken line.
    fn agent(&self) -> ureq::Agent {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ureq::tls::TlsConfig::builder()
            .root_certs(ureq::tls::RootCerts::PlatformVerifier)
            .unversioned_rustls_crypto_provider(provider)
            .build();
        ureq::Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(Duration::from_secs(20)))
            .timeout_recv_response(Some(Duration::from_secs(60)))
            .timeout_per_read(Some(Duration::from_secs(60)))
            .user_agent(concat!("loquent/", env!("CARGO_PKG_VERSION")))
            .build()
            .new_agent()
    }

    /// Sends a request without a body and follows redirects itself: the token goes to the
    /// endpoint's own origin and nowhere else (`ureq`'s notion of the same host ignores the port).
    /// With `describing`, an answer that already describes the file is not followed further.
    fn send(
        &self,
        agent: &ureq::Agent,
        method: &Method,
        url: &str,
        range: Option<&str>,
        describing: bool,
    ) -> Result<Response<ureq::Body>, ureq::Error> {
        let mut url = url.to_owned();
        for _ in 0..MAX_REDIRECTS {
            let mut request = Request::builder().method(method).uri(&url);
            if let Some(token) =
                self.token.as_ref().filter(|_| origin(&url) == origin(&self.endpoint))
            {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            if let Some(range) = range {
                request = request.header("range", range);
            }
            let answer = agent.run(request.body(())?)?;
            let header = |name: &str| answer.headers().get(name)?.to_str().ok();
            let Some(to) = header("location").filter(|_| answer.status().is_redirection()) else {
                return Ok(answer);
            };
            if describing && header("x-linked-etag").is_some() {
                return Ok(answer);
            }
            let relative = to.starts_with('/') && !to.starts_with("//");
            let base = origin(&url).filter(|_| relative).unwrap_or_default();
            url = format!("{base}{to}");
        }
        Err(ureq::Error::TooManyRedirects)
    }
}

/// `scheme://host:port` of a URL, none if it is not one.
fn origin(url: &str) -> Option<String> {
    let uri: Uri = url.parse().ok()?;
    Some(format!("{}://{}", uri.scheme_str()?, uri.authority()?))
}
