//! Downloads one file: continues a partial download, retries a broken connection, checks size and
//! hash.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ureq::http::{Method, Response};

use super::cache::{self, RepoCache};
use super::config::Hub;
use super::content_hash::{ContentHash, HashKind};
use super::error::HubError;
use super::event::{EventHandler, FetchEvent};
use super::listing::BlobInfo;
use super::spec::HubSpec;

/// Bytes read, hashed and written at a time. Chosen by hand: large enough that the cost of system
/// calls is negligible, small enough for a smooth progress bar.
const CHUNK_BYTES: usize = 256 << 10;
/// Maximum pause between two attempts.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(10);

/// The transfer of one file of a repository.
pub(super) struct Job<'a> {
    pub hub: &'a Hub,
    pub agent: &'a ureq::Agent,
    pub spec: &'a HubSpec,
    pub commit: &'a str,
    /// 1-based number of the file, and the number of files.
    pub part: (usize, usize),
}

/// Reason why an attempt ended early.
enum AttemptError {
    /// The connection broke, or the server is overloaded: another attempt may succeed.
    Broken(String),
    /// Another attempt would fail in the same way.
    Final(HubError),
}

impl Job<'_> {
    /// Downloads the file `path` into the cache as the blob named by `content`, unless the blob
    /// exists, and links the snapshot to it. Holds the blob's lock meanwhile.
    pub(super) fn run(
        &self,
        cache: &RepoCache,
        path: &str,
        content: &BlobInfo,
        on_event: EventHandler<'_>,
    ) -> Result<(), HubError> {
        let waiting = || on_event(FetchEvent::Waiting { file: path.to_owned() });
        let _lock = cache.lock(&content.id, waiting)?;
        // The process that held the lock may have downloaded it meanwhile.
        if !cache::has_size(&cache.blob(&content.id), content.size_bytes) {
            self.download(cache, path, content, on_event)?;
        }
        cache.link(self.commit, path, &content.id)
    }

    fn download(
        &self,
        cache: &RepoCache,
        path: &str,
        content: &BlobInfo,
        on_event: EventHandler<'_>,
    ) -> Result<(), HubError> {
        let mut partial =
            Partial::open(cache.incomplete(&content.id), content.size_bytes, content.kind)?;
        on_event(FetchEvent::Started {
            file: path.to_owned(),
            have_bytes: partial.len_bytes,
            total_bytes: content.size_bytes,
            part: self.part,
        });
        self.transfer(path, &mut partial, on_event)?;
        partial.finish(path, content, &cache.blob(&content.id))?;
        on_event(FetchEvent::Verified { file: path.to_owned() });
        Ok(())
    }

    /// Repeats attempts until the file is complete, or until several in a row made no progress.
    fn transfer(
        &self,
        path: &str,
        partial: &mut Partial,
        on_event: EventHandler<'_>,
    ) -> Result<(), HubError> {
        let mut best_bytes = partial.len_bytes;
        let mut failures = 0;
        // Failures are counted from the last progress on: a flaky line may break a hundred times in
        // one large file, and each time the rest is requested.
        while partial.len_bytes < partial.total_bytes {
            self.hub.check_wanted()?;
            let why = match self.attempt(path, partial, on_event) {
                Ok(()) => "the connection was closed early".to_owned(),
                Err(AttemptError::Broken(why)) => why,
                Err(AttemptError::Final(error)) => return Err(error),
            };
            if partial.len_bytes == partial.total_bytes {
                break;
            }
            // Only beyond the best so far is progress: a server that ignores ranges starts over.
            failures = if partial.len_bytes > best_bytes { 1 } else { failures + 1 };
            best_bytes = best_bytes.max(partial.len_bytes);
            if failures >= self.hub.max_attempts {
                return Err(HubError::Interrupted {
                    file: path.to_owned(),
                    have_bytes: partial.len_bytes,
                    total_bytes: partial.total_bytes,
                    why,
                });
            }
            on_event(FetchEvent::Retrying { why });
            let delay = self.hub.retry_delay.saturating_mul(1 << (failures - 1).min(16));
            std::thread::sleep(delay.min(MAX_RETRY_DELAY));
        }
        Ok(())
    }

    /// Requests the missing bytes once.
    fn attempt(
        &self,
        path: &str,
        partial: &mut Partial,
        on_event: EventHandler<'_>,
    ) -> Result<(), AttemptError> {
        let url = self.hub.file_url(self.spec, self.commit, path);
        let range = format!("bytes={}-", partial.len_bytes);
        let range = Some(range.as_str()).filter(|_| partial.len_bytes > 0);
        let answer = self.hub.send(self.agent, &Method::GET, &url, range, false);
        let answer = answer.map_err(|error| AttemptError::Broken(error.to_string()))?;
        self.accept(path, &url, &answer, partial)?;
        let mut reader = answer.into_body().into_reader();
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let n = match reader.read(&mut chunk) {
                Ok(0) => return Ok(()),
                Ok(n) => n,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(AttemptError::Broken(error.to_string())),
            };
            // Before the write: a server that sends without end must not fill the disk.
            if partial.len_bytes + n as u64 > partial.total_bytes {
                return Err(partial.wrong_size(path, partial.len_bytes + n as u64));
            }
            partial.append(&chunk[..n]).map_err(AttemptError::Final)?;
            on_event(FetchEvent::Advanced { have_bytes: partial.len_bytes });
            self.hub.check_wanted().map_err(AttemptError::Final)?;
        }
    }

    /// Checks that the response's body continues the partial file. Empties the file if the server
    /// sends all of it again.
    fn accept(
        &self,
        path: &str,
        url: &str,
        answer: &Response<ureq::Body>,
        partial: &mut Partial,
    ) -> Result<(), AttemptError> {
        let total_bytes = match answer.status().as_u16() {
            200 => {
                partial.restart().map_err(AttemptError::Final)?;
                answer.body().content_length()
            }
            206 => {
                let (from_bytes, total_bytes) = content_range(answer).ok_or_else(|| {
                    AttemptError::Broken(
                        "the server sent a part of the file without a valid Content-Range"
                            .to_owned(),
                    )
                })?;
                if from_bytes != partial.len_bytes {
                    return Err(AttemptError::Broken(
                        "the server sent another part than requested".to_owned(),
                    ));
                }
                total_bytes
            }
            // The partial file is longer than the server's, or not its beginning.
            416 => {
                partial.restart().map_err(AttemptError::Final)?;
                return Err(AttemptError::Broken(
                    "the server refused to continue the file".to_owned(),
                ));
            }
            status @ (408 | 429 | 500..=599) => {
                return Err(AttemptError::Broken(format!("HTTP status {status}")));
            }
            _ => return Err(AttemptError::Final(self.hub.refusal(self.spec, url, answer))),
        };
        match total_bytes {
            Some(total_bytes) if total_bytes != partial.total_bytes => {
                Err(partial.wrong_size(path, total_bytes))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the first byte and the total size of `Content-Range: bytes 5-9/10` (RFC 9110, section
/// 14.4).
fn content_range(answer: &Response<ureq::Body>) -> Option<(u64, Option<u64>)> {
    let text = answer.headers().get("content-range")?.to_str().ok()?;
    let (range, total) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (from, _) = range.split_once('-')?;
    Some((from.trim().parse().ok()?, total.trim().parse().ok()))
}

/// The part of a blob that is on disk so far, and its running hash.
struct Partial {
    path: PathBuf,
    file: File,
    kind: HashKind,
    hash: ContentHash,
    len_bytes: u64,
    total_bytes: u64,
}

impl Partial {
    /// Opens or creates the incomplete blob and hashes its bytes.
    fn open(path: PathBuf, total_bytes: u64, kind: HashKind) -> Result<Partial, HubError> {
        let file = cache::create_parents(&path)
            .and_then(|()| OpenOptions::new().read(true).append(true).create(true).open(&path))
            .map_err(HubError::io(&path))?;
        let hash = ContentHash::start(kind, total_bytes);
        let mut partial = Partial { path, file, kind, hash, len_bytes: 0, total_bytes };
        partial.hash_present().map_err(HubError::io(&partial.path))?;
        if partial.len_bytes > total_bytes {
            partial.restart()?;
        }
        Ok(partial)
    }

    fn hash_present(&mut self) -> std::io::Result<()> {
        let mut chunk = vec![0; CHUNK_BYTES];
        // One byte more than the blob has is enough to see that the file is not its beginning.
        let mut present = (&self.file).take(self.total_bytes.saturating_add(1));
        loop {
            let n = present.read(&mut chunk)?;
            if n == 0 {
                return Ok(());
            }
            self.hash.update(&chunk[..n]);
            self.len_bytes += n as u64;
        }
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), HubError> {
        let missing_bytes = self.total_bytes - self.len_bytes;
        self.file.write_all(bytes).map_err(|source| match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                HubError::NoSpace { path: self.path.clone(), missing_bytes, free_bytes: None }
            }
            _ => HubError::Io { path: self.path.clone(), source },
        })?;
        self.hash.update(bytes);
        self.len_bytes += bytes.len() as u64;
        Ok(())
    }

    fn restart(&mut self) -> Result<(), HubError> {
        if self.len_bytes > 0 {
            self.file.set_len(0).map_err(HubError::io(&self.path))?;
        }
        self.hash = ContentHash::start(self.kind, self.total_bytes);
        self.len_bytes = 0;
        Ok(())
    }

    /// Deletes the file, because the server sends a different size than the hub announced.
    fn wrong_size(&self, path: &str, actual_bytes: u64) -> AttemptError {
        let _ = fs::remove_file(&self.path);
        let expected_bytes = self.total_bytes;
        AttemptError::Final(HubError::WrongSize {
            file: path.to_owned(),
            expected_bytes,
            actual_bytes,
        })
    }

    /// Renames the complete file to the blob if its hash is correct, and deletes it otherwise.
    fn finish(self, path: &str, content: &BlobInfo, blob: &Path) -> Result<(), HubError> {
        assert_eq!(self.len_bytes, self.total_bytes, "only a complete file is finished");
        // Before the rename: after a power failure the blob's name must not lead to missing bytes.
        self.file.sync_all().map_err(HubError::io(&self.path))?;
        let actual = self.hash.finish();
        if actual != content.id {
            fs::remove_file(&self.path).map_err(HubError::io(&self.path))?;
            let expected = content.id.clone();
            return Err(HubError::WrongHash { file: path.to_owned(), expected, actual });
        }
        fs::rename(&self.path, blob).map_err(HubError::io(blob))
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_size_beyond_all_numbers_is_a_size() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.incomplete");
        fs::write(&path, b"abc").unwrap();
        let partial = Partial::open(path, u64::MAX, HashKind::Sha256).unwrap();
        assert_eq!(partial.len_bytes, 3);
    }

    #[test]
    fn a_full_disk_is_reported_as_one() {
        let path = PathBuf::from("/dev/full");
        let file = OpenOptions::new().append(true).open(&path).unwrap();
        let kind = HashKind::Sha256;
        let hash = ContentHash::start(kind, 100);
        let mut partial = Partial { path, file, kind, hash, len_bytes: 40, total_bytes: 100 };
        let error = partial.append(b"0123456789").unwrap_err();
        assert!(matches!(error, HubError::NoSpace { missing_bytes: 60, .. }), "{error}");
        assert_eq!(partial.len_bytes, 40, "what was not written does not count");
    }
}
