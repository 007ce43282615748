//! Remembers answers in progress, so that a proxy that was killed can resume them: a small file
//! with their ids and tokens that only its owner can read. Proxies of one user for one server
//! share the file: each writes its own entries, under a lock, beside those of the others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use loquent_client::{AnswerHandle, replace_file};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// Maximum answers in the store; a further one replaces the oldest.
pub(crate) const MAX_ANSWERS: usize = 256;
/// Maximum size of a file to read, in bytes: far more than the store ever writes.
const MAX_FILE_BYTES: u64 = 256 * 1024;
/// Age after which answers are dropped: no server keeps one for longer.
const MAX_AGE: Duration = Duration::from_secs(3600);
/// Minimum time between two writes of the file.
const WRITE_GAP: Duration = Duration::from_secs(1);
/// Attempts to lock the file, and the pause between them. A process that is stopped while it holds
/// the lock must not stop this one.
const LOCK_ATTEMPTS: usize = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// An answer's entry in the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredAnswer {
    token: String,
    /// Log offset up to which the proxy has relayed the answer.
    offset: u64,
    /// Start of the answer, in seconds since 1970.
    began_s: u64,
}

type Answers = BTreeMap<String, StoredAnswer>;

/// Answers in progress, by id.
pub struct ResumeStore {
    file: Option<PathBuf>,
    answers: Mutex<KnownAnswers>,
    changed: Notify,
}

/// Answers known to one proxy.
#[derive(Default)]
struct KnownAnswers {
    /// Answers that this process passes on.
    own: Answers,
    /// Answers of other processes, as the file had them at the start.
    found: Answers,
    /// Own answers that have ended since the file was last written.
    ended: BTreeSet<String>,
}

impl KnownAnswers {
    fn get(&self, id: &str) -> Option<&StoredAnswer> {
        self.own.get(id).or_else(|| self.found.get(id))
    }

    /// Returns the next content of the file, which holds `others`.
    fn merged(&self, mut others: Answers) -> Answers {
        others.retain(|id, _| !self.ended.contains(id));
        others.extend(self.own.clone());
        drop_oldest(&mut others, MAX_ANSWERS);
        others
    }
}

impl ResumeStore {
    /// Reads the valid entries of an earlier run's file. Without a file the store lasts as long as
    /// this process.
    pub fn open(file: Option<PathBuf>, now: SystemTime) -> Arc<ResumeStore> {
        let found = file.as_deref().map(|file| read(file, now)).unwrap_or_default();
        let answers = Mutex::new(KnownAnswers { found, ..KnownAnswers::default() });
        Arc::new(ResumeStore { file, answers, changed: Notify::new() })
    }

    /// Adds an answer that has started.
    pub fn begin(self: &Arc<Self>, handle: AnswerHandle, now: SystemTime) -> ResumeEntry {
        let entry = StoredAnswer { token: handle.token_hex(), offset: 0, began_s: seconds(now) };
        let mut answers = self.lock();
        drop_oldest(&mut answers.own, MAX_ANSWERS - 1);
        answers.own.insert(handle.id_hex(), entry);
        answers.ended.remove(&handle.id_hex());
        drop(answers);
        self.changed.notify_one();
        ResumeEntry { store: Arc::clone(self), id: handle.id_hex() }
    }

    /// Returns the handle of the answer `id`, if it is in the store.
    pub fn handle(&self, id: &str) -> Option<AnswerHandle> {
        AnswerHandle::parse(id, &self.lock().get(id)?.token)
    }

    /// Returns the ids of all answers in the store, with the log offset up to which each was
    /// relayed.
    pub fn answers(&self) -> Vec<(String, u64)> {
        let answers = self.lock();
        let all = answers.merged(answers.found.clone());
        all.into_iter().map(|(id, entry)| (id, entry.offset)).collect()
    }

    /// Writes changes to the file until aborted.
    pub async fn write_changes(self: Arc<Self>) {
        loop {
            self.changed.notified().await;
            let store = Arc::clone(&self);
            let _ = tokio::task::spawn_blocking(move || store.write()).await;
            tokio::time::sleep(WRITE_GAP).await;
        }
    }

    /// Writes the file now: what it has of other processes, and this one's answers.
    pub fn write(&self) {
        let Some(file) = &self.file else { return };
        let _lock = lock(&file.with_extension("lock"));
        let others = read(file, SystemTime::now());
        let answers = {
            let mut answers = self.lock();
            let merged = answers.merged(others);
            answers.ended.clear();
            merged
        };
        let text = serde_json::to_string(&answers).expect("strings and numbers become JSON");
        if let Err(error) = replace_file(file, text.as_bytes()) {
            tracing::warn!("cannot write {}: {error}", file.display());
        }
    }

    fn lock(&self) -> MutexGuard<'_, KnownAnswers> {
        // Each holder makes one change, which a panic cannot cut in half.
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Locks `path`, a file beside the store's. `None` if that fails: the next write may then lose the
/// latest entries of another process.
fn lock(path: &Path) -> Option<File> {
    std::fs::create_dir_all(path.parent()?).ok()?;
    let file = File::options().create(true).truncate(false).write(true).open(path).ok()?;
    let locked = (0..LOCK_ATTEMPTS).any(|attempt| {
        if attempt > 0 {
            std::thread::sleep(LOCK_PAUSE);
        }
        file.try_lock().is_ok()
    });
    locked.then_some(file)
}

/// Drops the oldest of `answers` beyond `most`.
fn drop_oldest(answers: &mut Answers, most: usize) {
    while answers.len() > most {
        let oldest = answers.iter().min_by_key(|(_, entry)| entry.began_s);
        let Some(oldest) = oldest.map(|(id, _)| id.clone()) else { return };
        answers.remove(&oldest);
    }
}

/// The store's entry of one answer in progress.
pub struct ResumeEntry {
    store: Arc<ResumeStore>,
    id: String,
}

impl ResumeEntry {
    /// Records that the answer was relayed up to log `offset`.
    pub fn set_offset(&self, offset: u64) {
        if let Some(entry) = self.store.lock().own.get_mut(&self.id) {
            entry.offset = offset;
        }
        self.store.changed.notify_one();
    }

    /// Removes the entry: the answer has ended, and nobody will resume it.
    pub fn remove(self) {
        let mut answers = self.store.lock();
        answers.own.remove(&self.id);
        answers.found.remove(&self.id);
        // Only a write to the file takes it out again.
        if self.store.file.is_some() {
            answers.ended.insert(self.id);
        }
        drop(answers);
        self.store.changed.notify_one();
    }
}

/// Parses a file's text; returns the answers that a server may still have.
pub(crate) fn parse(text: &str, now: SystemTime) -> Answers {
    let entries: BTreeMap<String, serde_json::Value> =
        serde_json::from_str(text).unwrap_or_default();
    // One that is damaged costs the others nothing.
    let sound = |(id, entry)| Some((id, serde_json::from_value::<StoredAnswer>(entry).ok()?));
    let mut answers: Answers = entries.into_iter().filter_map(sound).collect();
    let now_s = seconds(now);
    answers.retain(|id, entry| {
        let young = entry.began_s.saturating_add(MAX_AGE.as_secs()) > now_s;
        young && AnswerHandle::parse(id, &entry.token).is_some()
    });
    drop_oldest(&mut answers, MAX_ANSWERS);
    answers
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Reads the answers of a file; none if it cannot be read.
fn read(file: &Path, now: SystemTime) -> Answers {
    parse(&read_bounded(file).unwrap_or_default(), now)
}

fn read_bounded(path: &Path) -> Option<String> {
    use std::io::Read;
    let mut text = String::new();
    let file = File::open(path).ok()?;
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).ok()?;
    (text.len() as u64 <= MAX_FILE_BYTES).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(n: u8) -> AnswerHandle {
        AnswerHandle { id: [n; 16], token: [n ^ 0xff; 16] }
    }

    #[test]
    fn a_later_run_finds_what_was_under_way() {
        let folder = tempfile::tempdir().unwrap();
        let file = Some(folder.path().join("deep/answers.json"));
        let now = SystemTime::now();
        let store = ResumeStore::open(file.clone(), now);
        let (one, two) = (store.begin(handle(1), now), store.begin(handle(2), now));
        one.set_offset(7);
        two.remove();
        store.write();
        let later = ResumeStore::open(file.clone(), now);
        assert_eq!(later.answers(), [(handle(1).id_hex(), 7)]);
        assert_eq!(later.handle(&handle(1).id_hex()), Some(handle(1)));
        assert_eq!(later.handle(&handle(2).id_hex()), None);
        assert!(ResumeStore::open(file, now + MAX_AGE).answers().is_empty());
    }

    #[test]
    fn proxies_that_share_a_file_keep_each_others_answers() {
        let folder = tempfile::tempdir().unwrap();
        let file = Some(folder.path().join("answers.json"));
        let now = SystemTime::now();
        let (one, two) =
            (ResumeStore::open(file.clone(), now), ResumeStore::open(file.clone(), now));
        let (first, second) = (one.begin(handle(1), now), two.begin(handle(2), now));
        first.set_offset(7);
        one.write();
        two.write();
        let after = |file: &Option<PathBuf>| ResumeStore::open(file.clone(), now).answers();
        assert_eq!(after(&file), [(handle(1).id_hex(), 7), (handle(2).id_hex(), 0)]);
        // One that starts later knows the first one's answer, and writes no older state of it.
        let three = ResumeStore::open(file.clone(), now);
        let third = three.begin(handle(3), now);
        first.set_offset(9);
        one.write();
        three.write();
        assert_eq!(after(&file)[0], (handle(1).id_hex(), 9));
        first.remove();
        one.write();
        three.write();
        second.remove();
        two.write();
        assert_eq!(after(&file), [(handle(3).id_hex(), 0)]);
        third.remove();
    }

    #[test]
    fn any_file_is_read_and_nothing_grows() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("answers.json");
        let now = SystemTime::now();
        let id = handle(1).id_hex();
        let read = |text: String| {
            std::fs::write(&file, text).unwrap();
            ResumeStore::open(Some(file.clone()), now).answers()
        };
        let sound = format!(
            r#""{id}":{{"token":"{}","offset":5,"began_s":{}}}"#,
            handle(1).token_hex(),
            seconds(now)
        );
        let damaged = [
            r#""x":{"token":"y","offset":0,"began_s":18446744073709551615}"#.to_owned(),
            format!(r#""{}":{{"token":"{id}","offset":-1,"began_s":0}}"#, handle(2).id_hex()),
            format!(r#""{}":[]"#, handle(3).id_hex()),
        ];
        for bad in &damaged {
            assert!(read(format!("{{{bad}}}")).is_empty(), "{bad}");
            assert_eq!(read(format!("{{{bad},{sound}}}")), [(id.clone(), 5)], "{bad}");
        }
        let long = " ".repeat(MAX_FILE_BYTES as usize);
        for no_list in
            [String::new(), "[]".into(), format!("{{{sound}"), format!("{{{sound}}}{long}")]
        {
            assert!(read(no_list).is_empty());
        }
        let store = ResumeStore::open(None, now);
        for n in 0..=255 {
            store.begin(handle(n), now);
        }
        let mut another = handle(1);
        another.id[0] = 2;
        store.begin(another, now + Duration::from_secs(1));
        assert_eq!(store.answers().len(), MAX_ANSWERS);
        assert_eq!(store.handle(&another.id_hex()), Some(another));
    }
}
