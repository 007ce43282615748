//! Which answers are under way, so that a proxy that was killed can go on with them: a
//! small file with their ids and tokens, readable by its owner alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use loquent_client::{AnswerHandle, replace_file};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// Answers that are noted; the oldest is forgotten for a new one.
const MAX_ANSWERS: usize = 256;
/// A longer file is not ours.
const MAX_FILE_BYTES: u64 = 256 * 1024;
/// No server keeps an answer for longer.
const MAX_AGE: Duration = Duration::from_secs(3600);
/// The file is written at most so often.
const WRITE_GAP: Duration = Duration::from_secs(1);

/// One answer as the file has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    token: String,
    /// Log offset up to which it was passed on.
    offset: u64,
    /// When it began, in seconds since 1970.
    began_s: u64,
}

/// The answers under way, by id.
pub struct Ledger {
    file: Option<PathBuf>,
    answers: Mutex<BTreeMap<String, Entry>>,
    changed: Notify,
}

impl Ledger {
    /// What the file of an earlier run says, as far as it can be read; without a file, a
    /// ledger that lasts as long as this process.
    pub fn open(file: Option<PathBuf>, now: SystemTime) -> Arc<Ledger> {
        let text = file.as_deref().and_then(read_bounded).unwrap_or_default();
        let mut answers: BTreeMap<String, Entry> = serde_json::from_str(&text).unwrap_or_default();
        let now_s = seconds(now);
        answers.retain(|id, entry| {
            let young = entry.began_s.saturating_add(MAX_AGE.as_secs()) > now_s;
            young && AnswerHandle::parse(id, &entry.token).is_some()
        });
        while answers.len() > MAX_ANSWERS {
            answers.pop_first();
        }
        Arc::new(Ledger { file, answers: Mutex::new(answers), changed: Notify::new() })
    }

    /// Notes that an answer has begun.
    pub fn begin(self: &Arc<Self>, handle: AnswerHandle, now: SystemTime) -> Line {
        let entry = Entry { token: handle.token_hex(), offset: 0, began_s: seconds(now) };
        let mut answers = self.lock();
        if answers.len() >= MAX_ANSWERS {
            let oldest = answers.iter().min_by_key(|(_, entry)| entry.began_s);
            if let Some(oldest) = oldest.map(|(id, _)| id.clone()) {
                answers.remove(&oldest);
            }
        }
        answers.insert(handle.id_hex(), entry);
        drop(answers);
        self.changed.notify_one();
        Line { ledger: Arc::clone(self), id: handle.id_hex() }
    }

    /// The handle to the answer `id`, if it is noted.
    pub fn handle(&self, id: &str) -> Option<AnswerHandle> {
        AnswerHandle::parse(id, &self.lock().get(id)?.token)
    }

    /// The ids of all noted answers, and how far each was passed on.
    pub fn answers(&self) -> Vec<(String, u64)> {
        self.lock().iter().map(|(id, entry)| (id.clone(), entry.offset)).collect()
    }

    /// Writes changes to the file, for ever.
    pub async fn write_changes(self: Arc<Self>) {
        loop {
            self.changed.notified().await;
            let ledger = Arc::clone(&self);
            let _ = tokio::task::spawn_blocking(move || ledger.write()).await;
            tokio::time::sleep(WRITE_GAP).await;
        }
    }

    /// Writes the file now.
    pub fn write(&self) {
        let Some(file) = &self.file else { return };
        let text = serde_json::to_string(&*self.lock()).expect("strings and numbers become JSON");
        if let Err(error) = replace_file(file, text.as_bytes()) {
            tracing::warn!("cannot write {}: {error}", file.display());
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        // Each holder makes one change, which is whole or not made.
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The entry of an answer under way.
pub struct Line {
    ledger: Arc<Ledger>,
    id: String,
}

impl Line {
    /// It was passed on up to log `offset`.
    pub fn note(&self, offset: u64) {
        if let Some(entry) = self.ledger.lock().get_mut(&self.id) {
            entry.offset = offset;
        }
        self.ledger.changed.notify_one();
    }

    /// It has ended, one way or the other: nobody will ask for it.
    pub fn strike(self) {
        self.ledger.lock().remove(&self.id);
        self.ledger.changed.notify_one();
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn read_bounded(path: &Path) -> Option<String> {
    use std::io::Read;
    let mut text = String::new();
    let file = std::fs::File::open(path).ok()?;
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
        let ledger = Ledger::open(file.clone(), now);
        let (one, two) = (ledger.begin(handle(1), now), ledger.begin(handle(2), now));
        one.note(7);
        two.strike();
        ledger.write();
        let later = Ledger::open(file.clone(), now);
        assert_eq!(later.answers(), [(handle(1).id_hex(), 7)]);
        assert_eq!(later.handle(&handle(1).id_hex()), Some(handle(1)));
        assert_eq!(later.handle(&handle(2).id_hex()), None);
        assert!(Ledger::open(file, now + MAX_AGE).answers().is_empty());
    }

    #[test]
    fn any_file_is_read_and_nothing_grows() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("answers.json");
        let now = SystemTime::now();
        let id = handle(1).id_hex();
        for bad in [
            String::new(),
            "[]".into(),
            r#"{"x":{"token":"y","offset":0,"began_s":18446744073709551615}}"#.into(),
            format!(r#"{{"{id}":{{"token":"{id}","offset":-1,"began_s":0}}}}"#),
            " ".repeat(MAX_FILE_BYTES as usize + 1),
        ] {
            std::fs::write(&file, bad).unwrap();
            assert!(Ledger::open(Some(file.clone()), now).answers().is_empty());
        }
        let ledger = Ledger::open(None, now);
        for n in 0..=255 {
            ledger.begin(handle(n), now);
        }
        let mut another = handle(1);
        another.id[0] = 2;
        ledger.begin(another, now + Duration::from_secs(1));
        assert_eq!(ledger.answers().len(), MAX_ANSWERS);
        assert_eq!(ledger.handle(&another.id_hex()), Some(another));
    }
}
