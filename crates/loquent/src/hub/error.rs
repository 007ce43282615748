//! Errors of fetching a model, with advice for the user.

use std::path::PathBuf;

/// Reason why a model could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The argument of `--hf` is not `owner/repo[@revision][:file-or-quant]`.
    #[error("`{spec}` does not name a model as owner/repo[:file-or-quant]: {why}")]
    BadSpec {
        /// The argument as typed.
        spec: String,
        /// Description of the mistake.
        why: &'static str,
    },
    /// Neither a variable nor a home folder determines the location of the cache.
    #[error("no cache folder: set HF_HOME or HF_HUB_CACHE")]
    NoCacheDir,
    /// The hub has no such repository or revision (or hides a private one).
    #[error(
        "{endpoint} has no model `{repo}` at revision `{revision}`: check the spelling{}",
        if *.with_token { "" } else { "; if it is private, set HF_TOKEN to an access token" }
    )]
    RepoNotFound {
        /// Base URL of the hub or mirror.
        endpoint: String,
        /// `owner/repo`.
        repo: String,
        /// Branch, tag or commit.
        revision: String,
        /// True if a token was sent.
        with_token: bool,
    },
    /// The repository needs a token, or its terms were not accepted.
    #[error(
        "{endpoint} refuses access to `{repo}` ({status}): {}",
        if *.with_token {
            "accept the model's terms on its page with the account of your token, or use a token that may read it"
        } else {
            "accept the model's terms on its page if it has any, then set HF_TOKEN to an access token"
        }
    )]
    AccessDenied {
        /// Base URL of the hub or mirror.
        endpoint: String,
        /// `owner/repo`.
        repo: String,
        /// HTTP status, 401 or 403.
        status: u16,
        /// True if a token was sent.
        with_token: bool,
    },
    /// The repository has no GGUF file.
    #[error("`{repo}` has no GGUF file; look for a repository whose name ends in -GGUF")]
    NoGguf {
        /// `owner/repo`.
        repo: String,
    },
    /// The repository has GGUF files, but not this one.
    #[error("`{repo}` has no GGUF for `{wanted}`; it has:{}", bullets(.available))]
    FileNotFound {
        /// `owner/repo`.
        repo: String,
        /// Requested file name or quantisation.
        wanted: String,
        /// GGUF files in the repository.
        available: Vec<String>,
    },
    /// Several files match.
    #[error("several files of `{repo}` match; name one as {repo}:FILE{}", bullets(.candidates))]
    Ambiguous {
        /// `owner/repo`.
        repo: String,
        /// Matching files.
        candidates: Vec<String>,
    },
    /// Offline, and the cache has no copy.
    #[error("`{wanted}` is not in the cache at {}, and HF_HUB_OFFLINE forbids downloading it; unset it to download", .cache.display())]
    NotCached {
        /// The spec in its canonical form.
        wanted: String,
        /// Cache folder of the repository.
        cache: PathBuf,
    },
    /// No connection to the hub, and the cache has no copy.
    #[error(
        "cannot reach {endpoint}: {why}; check the network, HTTPS_PROXY and NO_PROXY behind a proxy, and HF_ENDPOINT if you use a mirror"
    )]
    Unreachable {
        /// Base URL of the hub or mirror.
        endpoint: String,
        /// The error of the HTTP client, and the proxy if there is one.
        why: String,
    },
    /// A response with a status that means neither success nor one of the cases above.
    #[error("{url} answered with HTTP status {status}")]
    Status {
        /// URL of the request, without its query.
        url: String,
        /// HTTP status of the response.
        status: u16,
    },
    /// A response that is malformed, or unsafe to act on.
    #[error("{url} sent an unusable answer: {why}")]
    BadAnswer {
        /// URL of the request, without its query.
        url: String,
        /// Description of the problem.
        why: String,
    },
    /// [`Hub::stopped`](super::Hub::stopped) was set; the bytes so far are kept.
    #[error("the download was stopped")]
    Stopped,
    /// The connection broke too often; the bytes so far are kept.
    #[error(
        "the download of {file} stopped at {have_bytes} of {total_bytes} bytes ({why}); run the command again to continue it"
    )]
    Interrupted {
        /// Path in the repository.
        file: String,
        /// Bytes on disk so far.
        have_bytes: u64,
        /// Size of the whole file.
        total_bytes: u64,
        /// Error of the last attempt.
        why: String,
    },
    /// The content served has a different size than the hub announced; the stored bytes are
    /// deleted.
    #[error(
        "{file} should have {expected_bytes} bytes but has {actual_bytes}; the download was deleted, run the command again"
    )]
    WrongSize {
        /// Path in the repository.
        file: String,
        /// Size announced by the hub.
        expected_bytes: u64,
        /// Size served by the storage.
        actual_bytes: u64,
    },
    /// The content served has a different hash than the hub announced; the stored bytes are
    /// deleted.
    #[error(
        "{file} is damaged: its hash is {actual} and should be {expected}; the download was deleted, run the command again"
    )]
    WrongHash {
        /// Path in the repository.
        file: String,
        /// Hash announced by the hub, in hex.
        expected: String,
        /// Hash of the bytes received, in hex.
        actual: String,
    },
    /// The disk of the cache is full.
    #[error("no space left for {}: {missing_bytes} more bytes are needed{}; free some, or set HF_HUB_CACHE to another disk", .path.display(), and_free(*.free_bytes))]
    NoSpace {
        /// File to write.
        path: PathBuf,
        /// Bytes still to be written; before a transfer, of all files of the model.
        missing_bytes: u64,
        /// Free bytes of the disk; `None` if it was full.
        free_bytes: Option<u64>,
    },
    /// Another process is writing the file.
    #[error("{} is being downloaded; stop that download first", .path.display())]
    Downloading {
        /// File that is being written.
        path: PathBuf,
    },
    /// A file of the cache cannot be read or written.
    #[error("cannot use {} in the cache", .path.display())]
    Io {
        /// File or folder of the operation.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
}

impl HubError {
    /// Returns a converter of errors on one file, for `map_err`.
    pub(super) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> HubError {
        let path = path.into();
        move |source| HubError::Io { path, source }
    }
}

fn and_free(bytes: Option<u64>) -> String {
    bytes.map_or_else(String::new, |bytes| format!(", and {bytes} are free"))
}

/// Formats one name per line. A repository may have hundreds of files, of which only the first are
/// listed.
fn bullets(names: &[String]) -> String {
    const SHOWN: usize = 40;
    let mut text: String = names.iter().take(SHOWN).map(|name| format!("\n  {name}")).collect();
    if names.len() > SHOWN {
        text.push_str(&format!("\n  … and {} more", names.len() - SHOWN));
    }
    text
}
