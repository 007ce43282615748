//! What an answer's task and the store tell each other.

use loquent_proto::hex;
use sha2::{Digest, Sha256};

/// An answer's state in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogState {
    /// Its owner generates it.
    Running,
    /// Its log has its last record.
    Ended,
    /// A client has stopped it, or nobody came back.
    Stopped,
    /// Its owner could not store all of it: it goes on there, and at no other replica.
    Lost,
}

impl LogState {
    /// Its name in the store.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Ended => "ended",
            Self::Stopped => "stopped",
            Self::Lost => "lost",
        }
    }
}

/// What an answer's task has to know of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreNews {
    /// There is room for more, or somebody reads it elsewhere, or does no more.
    Progress,
    /// The store has lost the log.
    Lost,
    /// Another replica owns the answer now.
    Taken,
    /// A client has stopped it at another replica.
    Stopped,
}

/// Why a replica gives an answer back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GivenBack {
    /// It does not generate it any more.
    Unused,
    /// It has another answer to the same request.
    Differs,
}

impl GivenBack {
    /// Its name in the store.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unused => "unused",
            Self::Differs => "differs",
        }
    }
}

/// The task of an answer, which is told what becomes of its log in the store.
pub trait NewsSink: Send + Sync {
    /// Tells it, whenever it has room.
    fn tell(&self, news: StoreNews);

    /// Whether it has ended.
    fn is_gone(&self) -> bool;
}

/// What the store has in place of a token.
pub fn hash_of(token: &[u8]) -> String {
    hex::encode(&Sha256::digest(token))
}
