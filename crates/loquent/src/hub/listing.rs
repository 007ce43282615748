//! The hub's list of a repository's files, with their sizes and hashes.

use percent_encoding::utf8_percent_encode;
use serde::Deserialize;
use ureq::http::Method;

use super::config::Hub;
use super::content_hash::HashKind;
use super::error::HubError;
use super::http::IN_SEGMENT;
use super::spec::{HubSpec, is_safe_path};

/// Maximum size of a listing; 32 MiB is enough for about 100,000 files.
const MAX_LISTING_BYTES: u64 = 32 << 20;

/// A repository at one commit.
pub(crate) struct Listing {
    pub commit: String,
    pub files: Vec<Listed>,
}

/// One file of the list. Mirrors may leave out sizes and hashes.
pub(crate) struct Listed {
    pub path: String,
    size_bytes: Option<u64>,
    sha256: Option<String>,
    git_id: Option<String>,
}

/// Identity of a file's content.
pub(super) struct BlobInfo {
    /// Hash of the content in lower-case hex, and the blob's name in the cache.
    pub id: String,
    pub size_bytes: u64,
    pub kind: HashKind,
}

#[derive(Deserialize)]
struct RepoInfo {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: Option<String>,
    size: Option<u64>,
}

impl Hub {
    /// Requests `GET /api/models/REPO/revision/REVISION?blobs=true`.
    pub(super) fn list(&self, agent: &ureq::Agent, spec: &HubSpec) -> Result<Listing, HubError> {
        let revision = utf8_percent_encode(&spec.revision, IN_SEGMENT);
        let url =
            format!("{}/api/models/{}/revision/{revision}?blobs=true", self.endpoint, spec.repo);
        let answer = self.send(agent, &Method::GET, &url, None, false);
        let mut answer = answer.map_err(|error| self.unreachable(&error))?;
        match answer.status().as_u16() {
            200 => {}
            // As if there were no connection, so that a copy in the cache is used meanwhile.
            status @ (429 | 500..=599) => {
                return Err(self.unreachable(&format!("HTTP status {status}")));
            }
            _ => return Err(self.refusal(spec, &url, &answer)),
        }
        let bad = |why: String| HubError::BadAnswer { url: url.clone(), why };
        let json = answer.body_mut().with_config().limit(MAX_LISTING_BYTES).read_to_vec();
        Listing::parse(&json.map_err(|error| bad(error.to_string()))?).map_err(bad)
    }

    /// Returns size and hash of one file: from the listing, else from the headers of its URL.
    pub(super) fn content(
        &self,
        agent: &ureq::Agent,
        spec: &HubSpec,
        listing: &Listing,
        file: &Listed,
    ) -> Result<BlobInfo, HubError> {
        let id = file.sha256.clone().or_else(|| file.git_id.clone());
        match (id, file.size_bytes) {
            (Some(id), Some(size_bytes)) => {
                let kind = if file.sha256.is_some() { HashKind::Sha256 } else { HashKind::GitBlob };
                Ok(BlobInfo { id, size_bytes, kind })
            }
            _ => self.probe(agent, spec, &self.file_url(spec, &listing.commit, &file.path)),
        }
    }

    /// Reads the headers of the file's URL before it redirects to the storage: `X-Linked-Etag` and
    /// `X-Linked-Size` describe an LFS file, `ETag` and `Content-Length` any other.
    fn probe(&self, agent: &ureq::Agent, spec: &HubSpec, url: &str) -> Result<BlobInfo, HubError> {
        let answer = self.send(agent, &Method::HEAD, url, None, true);
        let answer = answer.map_err(|error| self.unreachable(&error))?;
        if answer.status().is_client_error() || answer.status().is_server_error() {
            return Err(self.refusal(spec, url, &answer));
        }
        let header = |name: &str| answer.headers().get(name)?.to_str().ok();
        let etag = header("x-linked-etag").or_else(|| header("etag"));
        let etag = etag.map(|tag| tag.trim_start_matches("W/").trim_matches('"').to_lowercase());
        let size = header("x-linked-size")
            .or_else(|| header("content-length").filter(|_| answer.status().is_success()))
            .and_then(|size| size.parse().ok());
        match (etag, size) {
            (Some(id), Some(size_bytes)) if is_hex(&id, 64) => {
                Ok(BlobInfo { id, size_bytes, kind: HashKind::Sha256 })
            }
            (Some(id), Some(size_bytes)) if is_hex(&id, 40) => {
                Ok(BlobInfo { id, size_bytes, kind: HashKind::GitBlob })
            }
            _ => Err(HubError::BadAnswer {
                url: url.to_owned(),
                why: "it has neither size nor hash of the file".to_owned(),
            }),
        }
    }
}

impl Listing {
    /// Parses the hub's JSON; the error describes the problem.
    pub(crate) fn parse(json: &[u8]) -> Result<Self, String> {
        let info: RepoInfo = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        if !is_hex(&info.sha, 40) {
            return Err("it names no commit".to_owned());
        }
        // A name that leads outside the snapshot is dropped: nothing may be written there.
        let files = info.siblings.into_iter().filter(|s| is_safe_path(&s.rfilename));
        Ok(Self { commit: info.sha, files: files.map(Listed::from).collect() })
    }
}

impl From<Sibling> for Listed {
    /// Converts an entry. Keeps a hash only if it is valid, since it becomes a file name.
    fn from(sibling: Sibling) -> Listed {
        let (lfs_hash, lfs_size) = sibling.lfs.map_or((None, None), |lfs| (lfs.sha256, lfs.size));
        let hex = |text: Option<String>, digits| {
            text.map(|t| t.to_lowercase()).filter(|t| is_hex(t, digits))
        };
        let sha256 = hex(lfs_hash, 64);
        // The git id of an LFS file is that of its pointer and says nothing about the content.
        let git_id = if lfs_size.is_none() { hex(sibling.blob_id, 40) } else { None };
        Listed { path: sibling.rfilename, size_bytes: lfs_size.or(sibling.size), sha256, git_id }
    }
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit())
}
