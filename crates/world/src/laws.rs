//! The laws of a run.

use std::collections::BTreeMap;

use loquent_proto::{Delta, Position};

use crate::reader::SimulatedReader;
use crate::store::AcceptedWrite;

/// Bytes and owners seen so far, and the first law that was broken.
#[derive(Default)]
pub struct WorldLaws {
    /// The bytes of each answer and epoch, as far as readers have seen them.
    bytes: BTreeMap<(usize, u64), Vec<Option<u8>>>,
    /// The owner of each answer and epoch.
    owners: BTreeMap<(String, u64), String>,
    broken: Option<String>,
}

impl WorldLaws {
    /// Notes that a law is broken; only the first time counts.
    pub fn breach(&mut self, what: String) {
        self.broken.get_or_insert(what);
    }

    /// Returns the law that was broken first.
    pub fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    /// An epoch and an offset name one byte.
    pub fn note_piece(&mut self, answer: usize, position: Position, bytes: &[u8]) {
        let Position { epoch, offset } = position;
        // A later epoch has the bytes before its beginning under its own number too.
        let known = self.bytes.entry((answer, epoch)).or_default();
        let (from, to) = (offset as usize, offset as usize + bytes.len());
        known.resize(known.len().max(to), None);
        let differs = known[from..to]
            .iter()
            .zip(bytes)
            .any(|(known, byte)| known.is_some_and(|known| known != *byte));
        for (known, byte) in known[from..to].iter_mut().zip(bytes) {
            *known = Some(*byte);
        }
        if differs {
            self.breach(format!(
                "answer {answer} has two bytes between {from} and {to} of epoch {epoch}"
            ));
        }
    }

    /// An epoch has one owner.
    pub fn note_write(&mut self, write: &AcceptedWrite) {
        let AcceptedWrite { id, epoch, owner, .. } = write;
        let known = self.owners.entry((id.clone(), *epoch)).or_insert_with(|| owner.clone());
        if known != owner {
            self.breach(format!("epoch {epoch} of answer {id} has two owners"));
        }
    }

    /// A reader shows a prefix of one of `wholes`, which is complete only if it is whole.
    /// `may_fail` says that it may end with an error.
    pub fn check_reader(&mut self, reader: &SimulatedReader, wholes: &[String], may_fail: bool) {
        let SimulatedReader { answer, text, end, .. } = reader;
        if !wholes.iter().any(|whole| whole.starts_with(text)) {
            self.breach(format!("a reader of answer {answer} shows something else"));
        }
        match end {
            Some(Delta::Done) if !wholes.contains(text) => {
                self.breach(format!("a reader of answer {answer} has a part, and an end"));
            }
            Some(Delta::Error { message, .. }) if !may_fail => {
                self.breach(format!("answer {answer} ends with an error: {message}"));
            }
            _ => {}
        }
    }
}
