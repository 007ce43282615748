//! What is known of an answer whatever path it comes on, and the way to its reader.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use loquent_proto::{AnswerHandle, Delta, Receiver};
use tokio::sync::mpsc;

use super::reader::{AnswerItem, AnswerStatus};
use super::reading_again::ReadingAgain;
use super::step::{Content, Step};
use crate::ClientError;
use crate::connections::Connections;

/// How the time on one path ended.
pub(super) enum PathOutcome {
    /// The answer is complete.
    Complete,
    /// It never will be.
    Failed(ClientError),
    /// The path is gone, the answer perhaps not.
    Lost(ClientError),
    /// QUIC has come up: go on there.
    Upgrade,
    /// The reader wants no more.
    Cancelled,
}

impl PathOutcome {
    /// The path ended with `error`. Where the server says that the answer is gone or somebody
    /// else's, it is not looked for (S-2.6).
    pub(super) fn of(error: ClientError) -> Self {
        match error {
            ClientError::Gone | ClientError::Superseded | ClientError::ShuttingDown => {
                Self::Failed(error)
            }
            _ => Self::Lost(error),
        }
    }

    /// The path is gone, for this reason.
    pub(super) fn lost(why: &str) -> Self {
        Self::Lost(ClientError::Broken(why.to_owned()))
    }
}

/// An answer under way, without its path.
pub(super) struct AnswerState {
    pub(super) connections: Connections,
    pub(super) handle: AnswerHandle,
    pub(super) items: mpsc::Sender<AnswerItem>,
    pub(super) status: Arc<AnswerStatus>,
    /// For the reader, in order; nothing is read from the network before it is empty.
    pub(super) waiting: VecDeque<AnswerItem>,
    /// Position from which a chunk writer can go on: after the last step handed over that
    /// is a chunk by itself.
    pub(super) cursor: u64,
    /// Steps up to here were handed out before.
    pub(super) seen_until: u64,
    /// The receiver of earlier QUIC connections, which has what arrived on them.
    pub(super) receiver: Option<Receiver>,
    /// The epoch of the log that the latest of them carried (D-6.8).
    pub(super) epoch: u64,
    /// The message of the log's last record, if that was an error.
    pub(super) server_error: Option<String>,
    /// What was read, for a server that has less of it.
    pub(super) again: ReadingAgain,
}

impl AnswerState {
    /// Hands an item to the reader, or keeps it until there is room.
    pub(super) fn deliver(&mut self, item: AnswerItem) {
        if !self.waiting.is_empty() {
            self.waiting.push_back(item);
            return;
        }
        match self.items.try_send(item) {
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => {}
            Err(mpsc::error::TrySendError::Full(item)) => self.waiting.push_back(item),
        }
    }

    /// Hands a record over that ends at the position with number `offset`; why the answer cannot go
    /// on, if it cannot.
    pub(super) fn deliver_record(&mut self, offset: u64, delta: Delta) -> Option<PathOutcome> {
        let delta = match self.again.rest_of(delta) {
            Ok(Some(delta)) => delta,
            Ok(None) => return None,
            Err(error) => return Some(PathOutcome::Failed(error)),
        };
        let seen = offset <= self.seen_until;
        // Log probabilities belong to the chunk of the text after them (S-6.2), so a chunk
        // writer cannot go on between the two.
        if !matches!(delta, Delta::Logprobs { .. }) {
            self.cursor = self.cursor.max(offset);
        }
        let content = Content::Record(delta);
        self.deliver(AnswerItem::Step(Step { offset, seen, content }));
        None
    }

    /// Hands a chunk over that ends at the position with number `offset`.
    ///
    /// # Errors
    /// Those of [`ReadingAgain::rest_of_chunk`].
    pub(super) fn deliver_chunk(&mut self, offset: u64, data: Bytes) -> Result<(), ClientError> {
        if let Some(data) = self.again.rest_of_chunk(data)? {
            let content = Content::Chunk(data);
            self.deliver(AnswerItem::Step(Step { offset, seen: false, content }));
        }
        Ok(())
    }

    /// Prepares for reading the log from its beginning, since the server has less of it than this
    /// reader; whether that can be done.
    pub(super) fn read_again(&mut self) -> bool {
        if !self.again.begin() {
            return false;
        }
        self.receiver = None;
        // Another server may have cut the text into other records: offsets are told anew.
        (self.cursor, self.seen_until) = (0, 0);
        true
    }
}
