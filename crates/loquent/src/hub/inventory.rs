//! Lists and removes the models in the cache.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::cache::{INCOMPLETE, MAX_DEPTH, RepoCache, collect_files};
use super::choose;
use super::config::Hub;
use super::error::HubError;
use super::spec::{is_name, is_safe_path};

/// Maximum number of repositories, and of snapshots of one, to examine.
const MAX_FOLDERS: usize = 10_000;

/// A model in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CachedModel {
    /// Name: `owner/repo[@revision]:selector`.
    pub(crate) name: String,
    /// Paths of its files in the cache; more than one if it is split.
    pub(crate) paths: Vec<PathBuf>,
    /// True if all of its parts are present.
    pub(crate) is_complete: bool,
    repo: String,
}

/// Selector of the unfinished downloads of a repository, which no file's name can be.
const UNFINISHED: &str = "unfinished";

impl Hub {
    /// Returns the models in the cache, by name. The downloads of a repository that were not
    /// finished are one incomplete model, so that their space can be seen and freed.
    pub(crate) fn cached_models(&self) -> Vec<CachedModel> {
        let folders = names_in(&self.cache_dir);
        let mut models = Vec::new();
        for repo in folders.iter().filter_map(|folder| repo_of(folder)) {
            models.extend(models_of(&self.cache_dir, &repo));
            models.extend(unfinished(&self.cache_dir, &repo));
        }
        models.sort_by(|a, b| a.name.cmp(&b.name));
        models
    }

    /// Removes a model from the cache. Keeps content that another snapshot of the repository
    /// shares. Returns the number of bytes freed.
    ///
    /// # Errors
    /// [`HubError::Io`] if a file cannot be removed, [`HubError::Downloading`] if another process
    /// is writing it.
    pub(crate) fn remove(&self, model: &CachedModel) -> Result<u64, HubError> {
        let cache = RepoCache::new(&self.cache_dir, &model.repo);
        let mut freed = 0;
        for path in &model.paths {
            freed += match is_incomplete(path) {
                true => remove_unfinished(&cache, path)?,
                false => remove_file(&cache, &self.snapshots(&model.repo), path)?,
            };
        }
        Ok(freed)
    }

    fn snapshots(&self, repo: &str) -> PathBuf {
        self.cache_dir.join(folder_of(repo)).join("snapshots")
    }
}

fn folder_of(repo: &str) -> String {
    format!("models--{}", repo.replace('/', "--"))
}

/// Returns `owner/repo` for a folder `models--owner--repo`.
fn repo_of(folder: &str) -> Option<String> {
    let (owner, name) = folder.strip_prefix("models--")?.split_once("--")?;
    (is_name(owner) && is_name(name)).then(|| format!("{owner}/{name}"))
}

fn models_of(cache_dir: &Path, repo: &str) -> Vec<CachedModel> {
    let folder = cache_dir.join(folder_of(repo));
    let revisions = revisions(&folder.join("refs"));
    let snapshots = folder.join("snapshots");
    let mut found = Vec::new();
    for commit in names_in(&snapshots) {
        let revision = revisions.get(&commit).unwrap_or(&commit);
        let place = if revision == "main" { repo.to_owned() } else { format!("{repo}@{revision}") };
        found.extend(models_in(&snapshots.join(&commit), repo, &place));
    }
    found
}

/// Returns the models in one snapshot, named `place:selector`.
fn models_in(snapshot: &Path, repo: &str, place: &str) -> Vec<CachedModel> {
    let mut files = Vec::new();
    collect_files(snapshot, "", MAX_DEPTH, &mut files);
    let names: Vec<&str> = files.iter().map(String::as_str).filter(|f| is_safe_path(f)).collect();
    let mut models = choose::models(&names);
    // A projector of images cannot be served.
    models.retain(|model| !choose::is_companion(model[0]));
    let cached = models.iter().map(|model| CachedModel {
        name: format!("{place}:{}", choose::selector(&models, model)),
        paths: model.iter().map(|file| snapshot.join(file)).collect(),
        is_complete: choose::is_complete(model),
        repo: repo.to_owned(),
    });
    cached.collect()
}

/// Returns the unfinished downloads of a repository, if there are any. Nothing says what they are
/// of: their names are hashes.
fn unfinished(cache_dir: &Path, repo: &str) -> Option<CachedModel> {
    let blobs = cache_dir.join(folder_of(repo)).join("blobs");
    let paths = names_in(&blobs).into_iter().map(|name| blobs.join(name));
    let paths: Vec<_> = paths.filter(|path| is_incomplete(path)).collect();
    let name = format!("{repo}:{UNFINISHED}");
    (!paths.is_empty()).then(|| CachedModel {
        name,
        paths,
        is_complete: false,
        repo: repo.to_owned(),
    })
}

fn is_incomplete(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == INCOMPLETE)
}

/// Removes the beginning of a file, unless another process is downloading the rest.
fn remove_unfinished(cache: &RepoCache, path: &Path) -> Result<u64, HubError> {
    let id = path.file_stem().map(|id| id.to_string_lossy().into_owned()).unwrap_or_default();
    let Some(_lock) = cache.try_lock(&id)? else {
        return Err(HubError::Downloading { path: path.to_owned() });
    };
    let bytes = fs::metadata(path).map(|meta| meta.len()).unwrap_or(0);
    fs::remove_file(path).map_err(HubError::io(path))?;
    Ok(bytes)
}

/// Maps each commit to the name of a revision: `main` if that points to it, else the first in
/// order.
fn revisions(refs: &Path) -> BTreeMap<String, String> {
    let mut names = Vec::new();
    collect_files(refs, "", MAX_DEPTH, &mut names);
    names.sort_by_key(|name| (name != "main", name.clone()));
    let mut revisions = BTreeMap::new();
    for name in names.into_iter().take(MAX_FOLDERS) {
        if let Ok(commit) = fs::read_to_string(refs.join(&name)) {
            revisions.entry(commit.trim().to_owned()).or_insert(name);
        }
    }
    revisions
}

/// Removes a link of a snapshot, and its content unless another link points to it too.
fn remove_file(cache: &RepoCache, snapshots: &Path, path: &Path) -> Result<u64, HubError> {
    let content = path.canonicalize().map_err(HubError::io(path))?;
    let id = content.file_name().map(|id| id.to_string_lossy().into_owned()).unwrap_or_default();
    // A download of the same content would otherwise link to what is being removed.
    let _lock = cache.lock(&id, || {})?;
    fs::remove_file(path).map_err(HubError::io(path))?;
    remove_empty(path.parent(), snapshots);
    // A file without a link is a copy, as on systems without links.
    if content != cache.blob(&id).canonicalize().unwrap_or_default() {
        return Ok(0);
    }
    if links(snapshots).any(|link| link == content) {
        return Ok(0);
    }
    let bytes = fs::metadata(&content).map(|meta| meta.len()).unwrap_or(0);
    fs::remove_file(&content).map_err(HubError::io(&content))?;
    Ok(bytes)
}

/// Returns the targets of the links of all snapshots.
fn links(snapshots: &Path) -> impl Iterator<Item = PathBuf> {
    let mut files = Vec::new();
    collect_files(snapshots, "", MAX_DEPTH + 1, &mut files);
    let snapshots = snapshots.to_owned();
    files.into_iter().filter_map(move |file| snapshots.join(file).canonicalize().ok())
}

/// Removes `folder` and its parents below `end`, as long as they are empty.
fn remove_empty(mut folder: Option<&Path>, end: &Path) {
    while let Some(empty) = folder.filter(|it| it.starts_with(end) && *it != end) {
        if fs::remove_dir(empty).is_err() {
            return;
        }
        folder = empty.parent();
    }
}

/// Returns the names in a folder, in order; none if it cannot be read.
fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name()).map(OsString::into_string);
    let mut names: Vec<_> = names.filter_map(Result::ok).take(MAX_FOLDERS).collect();
    names.sort_unstable();
    names
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::symlink;
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    const OLD: &str = "1111111111111111111111111111111111111111";
    const NEW: &str = "2222222222222222222222222222222222222222";

    /// Creates a repository with two snapshots that share one of two files.
    fn hub(folder: &Path) -> Hub {
        let repo = folder.join("models--acme--Small--GGUF");
        for (commit, file, blob) in [
            (OLD, "s-Q4_K_M.gguf", "aa"),
            (NEW, "s-Q4_K_M.gguf", "aa"),
            (NEW, "s-Q8_0-00001-of-00002.gguf", "bb"),
            (NEW, "mmproj-s-F16.gguf", "cc"),
        ] {
            fs::create_dir_all(repo.join("blobs")).unwrap();
            fs::create_dir_all(repo.join("snapshots").join(commit)).unwrap();
            fs::write(repo.join("blobs").join(blob), b"GGUF").unwrap();
            let link = repo.join("snapshots").join(commit).join(file);
            symlink(format!("../../blobs/{blob}"), link).unwrap();
        }
        fs::create_dir_all(repo.join("refs")).unwrap();
        fs::write(repo.join("refs/main"), NEW).unwrap();
        Hub {
            endpoint: String::new(),
            token: None,
            cache_dir: folder.to_owned(),
            offline: true,
            max_attempts: 1,
            retry_delay: Duration::ZERO,
            stopped: Arc::default(),
        }
    }

    #[test]
    fn models_are_named_as_they_are_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let hub = hub(folder.path());
        let models = hub.cached_models();
        let found: Vec<_> = models.iter().map(|it| (it.name.as_str(), it.is_complete)).collect();
        let old = format!("acme/Small--GGUF@{OLD}:Q4_K_M");
        let expected = [
            ("acme/Small--GGUF:Q4_K_M", true),
            ("acme/Small--GGUF:Q8_0", false),
            (old.as_str(), true),
        ];
        assert_eq!(found, expected);
        for model in models.iter().filter(|model| model.is_complete) {
            let spec = model.name.parse().unwrap();
            assert_eq!(hub.cached(&spec).as_ref(), model.paths.first(), "{}", model.name);
        }
    }

    #[test]
    fn shared_content_is_removed_with_its_last_model() {
        let folder = tempfile::tempdir().unwrap();
        let hub = hub(folder.path());
        let blob = folder.path().join("models--acme--Small--GGUF/blobs/aa");
        let models = hub.cached_models();
        assert_eq!(hub.remove(&models[0]).unwrap(), 0);
        assert!(blob.exists(), "the older snapshot leads there");
        assert_eq!(hub.remove(&models[2]).unwrap(), 4);
        assert!(!blob.exists());
        assert_eq!(hub.cached_models().len(), 1);
        assert!(!folder.path().join("models--acme--Small--GGUF/snapshots").join(OLD).exists());
    }

    #[test]
    fn an_unfinished_download_is_seen_and_removed_unless_it_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let hub = hub(folder.path());
        let partial = folder.path().join("models--acme--Small--GGUF/blobs/dd.incomplete");
        fs::write(&partial, b"GGUF and half").unwrap();
        let models = hub.cached_models();
        let unfinished = models.iter().find(|it| it.name == "acme/Small--GGUF:unfinished").unwrap();
        assert!(!unfinished.is_complete);
        assert_eq!(unfinished.paths, std::slice::from_ref(&partial));

        let download = RepoCache::new(folder.path(), "acme/Small--GGUF").lock("dd", || {}).unwrap();
        let refused = hub.remove(unfinished).unwrap_err();
        assert!(matches!(refused, HubError::Downloading { .. }), "{refused}");
        assert!(partial.exists());
        drop(download);
        assert_eq!(hub.remove(unfinished).unwrap(), 13);
        assert!(!partial.exists());
        assert_eq!(hub.cached_models().len(), models.len() - 1);
    }
}
