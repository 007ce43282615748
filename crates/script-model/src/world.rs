//! A state of the model: the store, the replicas, the readers, and what an observer of all knows.

use crate::calls::{Epoch, StoreCall};
use crate::log_text::LogText;
use crate::store::KeyspaceId;

/// The log that an epoch names, however far it has come: `prefix`, which its owner took over, and
/// then the owner's own letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EpochLog {
    /// The epoch's number.
    pub number: u16,
    /// The owner's letter.
    pub letter: u8,
    /// Log that the owner took over.
    pub prefix: LogText,
}

impl EpochLog {
    /// Returns the byte at `offset` of an answer of `bytes`.
    pub fn byte(&self, offset: usize, bytes: usize) -> u8 {
        match self.prefix.text().as_bytes().get(offset) {
            Some(byte) => *byte,
            None if offset + 1 == bytes => self.letter.to_ascii_uppercase(),
            None => self.letter,
        }
    }

    /// True if `log` is the beginning of this one, in an answer of `bytes`.
    pub fn begins_with(&self, log: &LogText, bytes: usize) -> bool {
        let is_same = |(at, byte): (usize, u8)| byte == self.byte(at, bytes);
        log.len() <= bytes && log.text().bytes().enumerate().all(is_same)
    }
}

/// Health of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReplicaHealth {
    /// It works.
    Live,
    /// It stands still, and believes afterwards what it believed before.
    Paused,
    /// It works, and cannot reach the store.
    Cut,
    /// It has ended.
    Dead,
}

/// Last news of a mirror about its log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MirrorNews {
    /// There may be more.
    Follows,
    /// Nobody generates it any more.
    Orphaned,
    /// The store lacks a part of it, or all.
    Missing,
    /// It is whole.
    Whole,
}

/// A log that is read from the store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MirroredLog {
    pub log: LogText,
    pub epochs: Vec<Epoch>,
    pub news: MirrorNews,
}

/// A log that is generated here.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OwnedLog {
    pub fence: u64,
    pub letter: u8,
    pub log: LogText,
    pub epochs: Vec<Epoch>,
    /// Offset below which the store has everything, as the owner believes.
    pub stored: u8,
    /// True if the store said that another replica reads the log.
    pub is_read: bool,
    /// True if the store had lost the owner's lease, and nothing was written since.
    pub has_lapsed: bool,
}

/// Role of a replica for the answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ReplicaRole {
    Idle,
    Mirror(MirroredLog),
    Owner(OwnedLog),
}

/// A call that a replica repeats until it is answered.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RepeatedCall(pub StoreCall);

/// A replica.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ModelReplica {
    pub health: ReplicaHealth,
    pub role: ReplicaRole,
    /// Ticks for which the store has answered without a pause, a lease at most.
    pub worked: u8,
    /// Ticks of a working store for which it has not renewed its lease, a lease at most.
    pub unheard: u8,
    pub repeats: Option<RepeatedCall>,
}

/// A reader, and what it has shown.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ModelReader {
    /// The replica to which it is connected.
    pub at: Option<u8>,
    /// The epoch of its position; the offset is the length of what it has shown.
    pub epoch: u16,
    pub shown: LogText,
}

/// Numbers of faults and of other rare events that may still happen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct FaultBudget {
    /// All of those below but `moves` and `stops` together.
    pub all: u8,
    /// A replica ends without a word.
    pub deaths: u8,
    /// A replica is stopped by SIGTERM: it gives its answers back.
    pub leaves: u8,
    /// A replica stands still.
    pub pauses: u8,
    /// A replica cannot reach the store.
    pub cuts: u8,
    /// The store stands still for a lease.
    pub store_pauses: u8,
    /// The store loses its newest writes.
    pub failovers: u8,
    /// A call is not answered; it runs later, or never.
    pub lost_calls: u8,
    /// A replica that has taken the answer over cannot generate it.
    pub refusals: u8,
    /// A reader goes away from its replica by itself.
    pub moves: u8,
    /// A client stops the answer.
    pub stops: u8,
}

/// A state of the model.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ModelWorld {
    pub store: KeyspaceId,
    /// The store as it is after a failover: without the writes since then.
    pub standby: Option<KeyspaceId>,
    pub replicas: Vec<ModelReplica>,
    pub readers: Vec<ModelReader>,
    /// A call that was not answered and has not run yet.
    pub late: Option<StoreCall>,
    pub budget: FaultBudget,
    /// The logs of all epochs that were ever given out.
    pub epochs: Vec<EpochLog>,
    /// True once the answer was stored: its client may have its id.
    pub is_announced: bool,
    /// True once the store has lost writes.
    pub is_lossy: bool,
    /// True once a client was told that the answer is stopped, unless the store lost that.
    pub is_stopped: bool,
}

impl ModelWorld {
    /// Returns the log of epoch `number`, the first of that number.
    pub fn epoch_log(&self, number: u16) -> Option<&EpochLog> {
        self.epochs.iter().find(|log| log.number == number)
    }

    /// Returns the readers that are connected to replica `at`, without their connection.
    pub fn disconnect(&mut self, at: usize) {
        let here = self.readers.iter_mut().filter(|reader| reader.at == Some(at as u8));
        here.for_each(|reader| reader.at = None);
    }

    /// True if replica `at` owns the answer and has not ended.
    pub fn is_owner(&self, at: usize) -> bool {
        let replica = &self.replicas[at];
        replica.health != ReplicaHealth::Dead && matches!(replica.role, ReplicaRole::Owner(_))
    }
}

/// Returns the name of replica `at` in the store.
pub fn name_of(at: usize) -> char {
    char::from(b'A' + at as u8)
}

/// Returns the number of the epoch whose bytes are appended to a log with `epochs`.
pub fn current(epochs: &[Epoch]) -> u16 {
    epochs.last().map_or(0, |last| last.0)
}

/// Returns the offset up to which the log of epoch `number` equals the one with `epochs`; `None` if
/// it never did.
fn end_of(epochs: &[Epoch], number: u16) -> Option<usize> {
    let is_known = number == 0 || epochs.iter().any(|epoch| epoch.0 == number);
    let later = epochs.iter().filter(|epoch| epoch.0 > number);
    is_known.then(|| later.map(|epoch| usize::from(epoch.1)).min().unwrap_or(usize::MAX))
}

/// True if the log with `epochs` has the position of `reader`, or will have it.
pub fn has_position(epochs: &[Epoch], reader: &ModelReader) -> bool {
    let offset = reader.shown.len();
    offset == 0 || end_of(epochs, reader.epoch).is_some_and(|end| offset <= end)
}

/// True if a log with the epochs `before`, read up to `offset`, goes on in one with `epochs`.
pub fn goes_on(epochs: &[Epoch], before: &[Epoch], offset: usize) -> bool {
    offset == 0 || end_of(epochs, current(before)).is_some_and(|end| offset <= end)
}
