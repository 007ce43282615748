//! What can go wrong on the way to a model, each with what to do about it.

use std::path::PathBuf;

/// Why a model could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The argument of `--hf` is not `owner/repo[@revision][:file-or-quant]`.
    #[error("`{spec}` does not name a model as owner/repo[:file-or-quant]: {why}")]
    BadSpec {
        /// As given.
        spec: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Neither a variable nor a home folder says where the cache is.
    #[error("no cache folder: set HF_HOME or HF_HUB_CACHE")]
    NoCacheDir,
    /// The hub has no such repository or revision (or hides a private one).
    #[error(
        "{endpoint} has no model `{repo}` at revision `{revision}`: check the spelling{}",
        if *.with_token { "" } else { "; if it is private, set HF_TOKEN to an access token" }
    )]
    RepoNotFound {
        /// Base URL asked.
        endpoint: String,
        /// `owner/repo`.
        repo: String,
        /// Branch, tag or commit.
        revision: String,
        /// Whether a token was sent.
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
        /// Base URL asked.
        endpoint: String,
        /// `owner/repo`.
        repo: String,
        /// HTTP status, 401 or 403.
        status: u16,
        /// Whether a token was sent.
        with_token: bool,
    },
    /// The repository holds no GGUF.
    #[error("`{repo}` holds no GGUF file: look for a repository whose name ends in -GGUF")]
    NoGguf {
        /// `owner/repo`.
        repo: String,
    },
    /// The repository has other GGUF files only.
    #[error("`{repo}` has no GGUF for `{wanted}`; it has:{}", bullets(.available))]
    FileNotFound {
        /// `owner/repo`.
        repo: String,
        /// File name or quantisation asked for.
        wanted: String,
        /// The GGUF files there are.
        available: Vec<String>,
    },
    /// More than one file fits.
    #[error("several files of `{repo}` fit; name one as {repo}:FILE{}", bullets(.candidates))]
    Ambiguous {
        /// `owner/repo`.
        repo: String,
        /// The files that fit.
        candidates: Vec<String>,
    },
    /// Offline, and the cache has no copy.
    #[error("`{wanted}` is not in the cache at {} and the network is not used (HF_HUB_OFFLINE)", .cache.display())]
    NotCached {
        /// The spec.
        wanted: String,
        /// Cache folder of the repository.
        cache: PathBuf,
    },
    /// No connection to the hub, and the cache has no copy.
    #[error("cannot reach {endpoint}: {why}")]
    Unreachable {
        /// Base URL asked.
        endpoint: String,
        /// The transport's error.
        why: String,
    },
    /// An answer with a status that means neither success nor one of the cases above.
    #[error("{url} answered with HTTP status {status}")]
    Status {
        /// Asked URL.
        url: String,
        /// HTTP status.
        status: u16,
    },
    /// An answer that makes no sense, or is unsafe to act on.
    #[error("{url} gave an answer that cannot be used: {why}")]
    BadAnswer {
        /// Asked URL.
        url: String,
        /// What is wrong with it.
        why: String,
    },
    /// The connection broke too often; the bytes so far are kept.
    #[error(
        "the download of {file} broke off at {have_bytes} of {total_bytes} bytes ({why}); run the command again to continue"
    )]
    Interrupted {
        /// Path in the repository.
        file: String,
        /// Bytes on disk.
        have_bytes: u64,
        /// Size of the whole file.
        total_bytes: u64,
        /// The last failure.
        why: String,
    },
    /// The content served has another size than the hub announced; what was stored is deleted.
    #[error(
        "{file} should have {expected_bytes} bytes and has {actual_bytes}; the download was deleted"
    )]
    WrongSize {
        /// Path in the repository.
        file: String,
        /// Announced size.
        expected_bytes: u64,
        /// Size served.
        actual_bytes: u64,
    },
    /// The content served has another SHA-256 than the hub announced; what was stored is deleted.
    #[error(
        "{file} is damaged: its SHA-256 is {actual}, and should be {expected}; the download was deleted, run the command again"
    )]
    WrongHash {
        /// Path in the repository.
        file: String,
        /// Announced hash, in hex.
        expected: String,
        /// Hash of what came, in hex.
        actual: String,
    },
    /// The disk is full.
    #[error("no space left on the disk of {}: {missing_bytes} more bytes are needed", .path.display())]
    NoSpace {
        /// File being written.
        path: PathBuf,
        /// Bytes that were still to be written.
        missing_bytes: u64,
    },
    /// A file of the cache cannot be read or written.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
}

impl HubError {
    /// For `map_err` on operations on one file.
    pub(super) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> HubError {
        let path = path.into();
        move |source| HubError::Io { path, source }
    }
}

/// One name per line; a repository may hold hundreds, of which the first say enough.
fn bullets(names: &[String]) -> String {
    const SHOWN: usize = 40;
    let mut text: String = names.iter().take(SHOWN).map(|name| format!("\n  {name}")).collect();
    if names.len() > SHOWN {
        text.push_str(&format!("\n  … and {} more", names.len() - SHOWN));
    }
    text
}
