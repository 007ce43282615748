//! News from replicas for their readers and clients.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use loquent_proto::{AnswerHandle, Error, Position};
use loquent_resumable::Unreachable;
use serde_json::Value;

/// News for a reader.
#[derive(Debug)]
pub enum ReaderNews {
    /// The answer has begun, and has this handle.
    Begun(AnswerHandle),
    /// The answer cannot be read here.
    Refused(Unreachable),
    /// The question is refused.
    Rejected,
    /// A piece of the log.
    Piece { position: Position, bytes: Vec<u8>, is_last: bool },
    /// The path has ended.
    Ended,
    /// The log that came by datagrams cannot be read.
    Unreadable(Error),
    /// The attempt to delete the answer has this outcome.
    Stopped(Result<(), Unreachable>),
    /// News of a background response.
    Response(ResponseNews),
    /// News of a stored chat.
    Chat(ChatNews),
}

/// News for a client of a background response. An error is its HTTP status.
#[derive(Debug)]
pub enum ResponseNews {
    /// The response is created.
    Created(Result<(), u16>),
    /// The response's object.
    Object(Result<Value, u16>),
    /// An event of its stream.
    Event(Value),
    /// The stream has ended, cleanly or not.
    Ended(Result<(), u16>),
    /// The response's object after it was cancelled.
    Cancelled(Result<Value, u16>),
    /// The response is deleted, if there was one.
    Deleted(Result<bool, u16>),
}

/// News for a client of a stored chat. An error is its HTTP status.
#[derive(Debug)]
pub enum ChatNews {
    /// The completion.
    Completion(Result<Value, u16>),
    /// Its metadata is replaced.
    Annotated(Result<(), u16>),
    /// It is deleted.
    Deleted(Result<(), u16>),
}

/// News of all readers, each with the number of its connection.
pub type NewsQueue = Arc<Mutex<VecDeque<(u64, ReaderNews)>>>;

/// Sends news to one reader.
pub struct NewsSender {
    /// Number of the reader's connection.
    pub connection: u64,
    /// News of all readers.
    pub queue: NewsQueue,
}

impl NewsSender {
    /// Sends `news`.
    pub fn send(&self, news: ReaderNews) {
        let mut queue = self.queue.lock().expect("nothing panics under this lock");
        queue.push_back((self.connection, news));
    }
}
