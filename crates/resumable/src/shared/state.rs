//! Messages between an answer's task and the store.

use loquent_proto::hex;
use sha2::{Digest, Sha256};

/// State of an answer in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogState {
    /// The owner is generating the answer.
    Running,
    /// The log has its last record.
    Ended,
    /// A client has stopped the answer, or nobody came back.
    Stopped,
    /// The owner could not store all of the answer: it continues there, and at no other replica.
    Lost,
}

impl LogState {
    /// Returns the state's name in the store.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Ended => "ended",
            Self::Stopped => "stopped",
            Self::Lost => "lost",
        }
    }
}

/// News from the store for an answer's task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreNews {
    /// More was stored, there is room again, or readers at other replicas came or left.
    Progress,
    /// The store has lost the log.
    Lost,
    /// Another replica owns the answer now.
    Taken,
    /// A client has stopped the answer at another replica.
    Stopped,
}

/// Reason why a replica gives an answer back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GivenBack {
    /// The replica no longer generates the answer.
    Unused,
    /// The replica has another answer to the same request.
    Differs,
}

impl GivenBack {
    /// Returns the reason's name in the store.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unused => "unused",
            Self::Differs => "differs",
        }
    }
}

/// The task of an answer, as the recipient of news about its log in the store.
pub trait NewsSink: Send + Sync {
    /// Sends `news` to the task, which receives it when it has room.
    fn tell(&self, news: StoreNews);

    /// True if the task has ended.
    fn is_gone(&self) -> bool;
}

/// Returns the hash that the store has in place of a token.
pub fn hash_of(token: &[u8]) -> String {
    hex::encode(&Sha256::digest(token))
}
