//! Stored objects, their keys, and the bounds and errors of a store.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::shared::address::SharedAddress;

/// Most bytes of an object's id.
pub const MAX_ID_BYTES: usize = 256;

/// What a stored object is: a part of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// A chat completion with `store: true`.
    ChatCompletion = 1,
    /// An answer of `/v1/responses`.
    Response = 2,
}

impl Kind {
    /// The kind that a file has by its number.
    pub fn of_number(number: u8) -> Option<Self> {
        [Self::ChatCompletion, Self::Response].into_iter().find(|kind| *kind as u8 == number)
    }
}

/// To whom objects belong: the holder of an API key, or on a server without keys, everybody. It is
/// the same after a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Owner(pub [u8; 16]);

impl Owner {
    /// The one owner of a server without keys.
    pub const NOBODY: Self = Self([0; 16]);
}

/// Whether an object's answer is still being generated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// It will be stored again. After a restart, nobody does that any more.
    Running,
    /// It was read from a shared store, and the replica that stores it again lives.
    RunningElsewhere,
    /// It stays as it is, until a client changes it.
    Ended,
}

/// An object as its API knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredObject {
    /// Its name within its kind and owner.
    pub id: String,
    /// Unix time in seconds: its age and its place in lists.
    pub created_s: u64,
    /// Whether it is stored again later.
    pub progress: Progress,
    /// Its JSON, in the form of its kind.
    pub json: Bytes,
}

/// Bounds of a store.
#[derive(Debug, Clone, Copy)]
pub struct StoreLimits {
    /// Most bytes of all objects.
    pub bytes: usize,
    /// Most bytes of one owner's objects.
    pub bytes_per_owner: usize,
    /// How old an object may become.
    pub age: Duration,
}

/// Where a store is.
#[derive(Debug, Clone, Default)]
pub enum StoreLocation {
    /// In this process's memory.
    #[default]
    Memory,
    /// In a file.
    File(PathBuf),
    /// At a server that replicas share.
    Shared(SharedAddress),
}

/// Where a store is, and how much it holds.
#[derive(Debug, Clone, Default)]
pub struct StoreConfig {
    /// Where it is.
    pub location: StoreLocation,
    /// Its bounds.
    pub limits: StoreLimits,
}

impl Default for StoreLimits {
    fn default() -> Self {
        let (bytes, age) = (256 << 20, Duration::from_secs(30 * 24 * 60 * 60));
        Self { bytes, bytes_per_owner: bytes / 4, age }
    }
}

/// A number that grows with each replica that takes over the generation of an answer: whoever has a
/// lower one stores nothing of it any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct AnswerFence(pub u64);

impl AnswerFence {
    /// That of the replica that had the request.
    pub const FIRST: Self = Self(1);
}

/// How an object is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteMode {
    /// Whether or not there is an older one with its id.
    Put,
    /// Only in an older one's place.
    Replace,
    /// Once, when its answer is complete: by nobody whose fence is too low, and by nobody who has
    /// taken the answer over and finds it stored. In a store of this process it is [`Self::Put`].
    Complete(AnswerFence),
    /// Again and again while its answer is generated, and when it is complete: by nobody whose
    /// fence is too low. In a store of this process it is [`Self::Put`].
    Checkpoint(AnswerFence),
}

/// Which part of a list to return.
#[derive(Debug, Clone)]
pub struct ListPage {
    /// The id that the page comes after; `None` for the first page.
    pub after: Option<String>,
    /// Most objects of the page; large objects make it shorter.
    pub limit: usize,
    /// Whether the newest object comes first.
    pub newest_first: bool,
}

/// A part of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectList {
    /// Its objects.
    pub objects: Vec<StoredObject>,
    /// Whether more come after it.
    pub has_more: bool,
}

/// Why the store cannot do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// One object alone exceeds its owner's bytes.
    #[error(
        "an object of {bytes} bytes is larger than the store keeps for one owner ({limit} bytes)"
    )]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// What the owner may have.
        limit: usize,
    },
    /// The store's file cannot be opened.
    #[error("{0}")]
    Unusable(Arc<str>),
    /// The store's file cannot be read or written now.
    #[error("the answer store is temporarily unavailable: {0}")]
    Failed(Arc<str>),
    /// The object's id is too long.
    #[error("an id has at most {MAX_ID_BYTES} bytes")]
    LongId,
    /// A thread of the store has failed.
    #[error("the store could not be read: its worker has failed")]
    Unreadable,
    /// A page was asked for that comes after an object that is not there.
    #[error("there is no stored object with this id")]
    UnknownAfter,
}
