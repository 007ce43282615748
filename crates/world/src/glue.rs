//! Faults that are planted outside the scripts: in how a replica calls the product, and on the
//! calls' way to the store.

use script_model::{RedisReply, ScriptName, ScriptTexts};

/// A fault in how a replica, in the place of the server, calls the product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GlueFault {
    /// A takeover does not compare versions.
    SettingsUnchecked,
    /// A request is begun again without its key.
    AskerForgotten,
    /// A request is begun again with another seed.
    SeedForgotten,
    /// A replica that ends stops its engine before it hands its answers over.
    EngineStopsFirst,
    /// A replica that is started again has the name that it had before.
    NameKept,
    /// A reader's epoch is ignored.
    EpochForgotten,
    /// A question takes a second place of its key, and keeps it.
    PlaceKept,
    /// An id is enough to read an answer.
    TokenIgnored,
    /// A deletion is confirmed, and nobody is told.
    StopUntold,
    /// A deletion is confirmed, though the store is away.
    StopWithoutStore,
    /// A deletion is confirmed, and only one replica forgets the answer.
    StopHereOnly,
    /// The readers at a replica take their pieces one after the other.
    ReadersInTurn,
    /// The end of a response is stored once, whatever comes of it (finding 5).
    EndTriedOnce,
    /// A cancellation is confirmed, though the end is not stored.
    CancelWithoutStore,
    /// The number of an event is not compared with those that were stored.
    NumberUnchecked,
    /// The end of an answer does not wait until the chat is stored.
    EndBeforeChat,
    /// A takeover forgets that the chat is to be stored.
    ChatForgotten,
    /// An annotation stores a chat that was deleted meanwhile.
    AnnotationRevives,
}

/// A fault on the way between replicas and the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WireFault {
    /// Leases are a tenth as long.
    LeaseIsShort,
    /// Some appends are not run, and their replies say that they were.
    AppendUnsaid,
    /// Stops are not run, and their replies say that they were.
    StopUnsaid,
    /// Reads and lookups see the store of a second ago.
    ReadsAreOld,
    /// Requests are not stored.
    RequestLost,
    /// A read loses its first byte.
    ByteLost,
    /// Every owner lives.
    OwnersLive,
    /// Every answer is read by another replica (finding 1).
    AlwaysRead,
    /// A new owner is told the fence of the one before.
    FenceIsOld,
    /// Some objects are not stored, and the replies say that they were.
    PutUnsaid,
}

impl WireFault {
    /// Changes the `arguments` of a call.
    pub fn change_call(self, script: ScriptName, arguments: &mut [Vec<u8>]) {
        match (self, script) {
            (Self::LeaseIsShort, ScriptName::Announce) if arguments[2] != b"0" => {
                arguments[2] = b"300".to_vec();
            }
            (Self::LeaseIsShort, ScriptName::Append | ScriptName::Read) => {
                // They renew the lease too.
                arguments[4] = b"300".to_vec();
            }
            (Self::RequestLost, ScriptName::Append) => {
                arguments[5..].chunks_exact_mut(8).for_each(|call| call[6].clear());
            }
            _ => {}
        }
    }

    /// Returns the reply to a call that is not run.
    pub fn reply_unsaid(self, script: ScriptName, arguments: &[Vec<u8>]) -> Option<RedisReply> {
        match (self, script) {
            (Self::PutUnsaid, ScriptName::Put) => Some(RedisReply::Int(1)),
            (Self::StopUnsaid, ScriptName::Stop) => Some(RedisReply::Int(1)),
            (Self::AppendUnsaid, ScriptName::Append) => {
                let replies = arguments[5..].chunks_exact(8).flat_map(|call| {
                    let offset = String::from_utf8_lossy(&call[2]).parse::<i64>().unwrap_or(0);
                    let head = RedisReply::Int(offset + call[5].len() as i64);
                    [RedisReply::Bulk(b"stored".to_vec()), head, RedisReply::Int(0)]
                });
                Some(RedisReply::List(replies.collect()))
            }
            _ => None,
        }
    }

    /// Changes the `reply` to a call.
    pub fn change_reply(self, script: ScriptName, reply: &mut RedisReply) {
        let RedisReply::List(parts) = reply else { return };
        match (self, script) {
            (Self::ByteLost, ScriptName::Read) => {
                // The log's length is told as it is, so the caller takes the rest for all.
                for part in parts.iter_mut().skip(3).step_by(5) {
                    if let RedisReply::Bulk(bytes) = part {
                        bytes.drain(..bytes.len().min(1));
                    }
                }
            }
            (Self::OwnersLive, ScriptName::Read) => {
                let owners = parts.iter_mut().skip(1).step_by(5);
                owners.for_each(|owner| *owner = RedisReply::Bulk(b"lives".to_vec()));
            }
            (Self::AlwaysRead, ScriptName::Append) => {
                let read = parts.iter_mut().skip(2).step_by(3);
                read.for_each(|read| *read = RedisReply::Int(1));
            }
            (Self::FenceIsOld, ScriptName::Take) => {
                if let RedisReply::Int(fence) = &mut parts[1] {
                    *fence -= 1;
                }
            }
            _ => {}
        }
    }
}

/// All that is planted in a run.
#[derive(Debug, Clone, Default)]
pub struct WorldPlanting {
    /// The scripts' texts.
    pub texts: ScriptTexts,
    /// The fault in how replicas call the product.
    pub glue: Option<GlueFault>,
    /// The fault on the way to the store.
    pub wire: Option<WireFault>,
}
