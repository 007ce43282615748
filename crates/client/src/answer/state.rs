//! State of an answer that is independent of its path, and the channel to its reader.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use loquent_proto::{AnswerHandle, Delta, Position, Receiver};
use tokio::sync::mpsc;

use super::reader::{AnswerItem, AnswerStatus};
use super::reading_again::ReplayReader;
use super::step::{Content, Step};
use crate::ClientError;
use crate::connections::Connections;

/// Reason why the answer stopped using a path.
pub(super) enum PathOutcome {
    /// The answer is complete.
    Complete,
    /// The answer can never be completed.
    Failed(ClientError),
    /// The path is lost; the answer may still be available. If it is superseded, perhaps by this
    /// client's own second path, then over one path.
    Lost(ClientError),
    /// QUIC has come up: continue there.
    Upgrade,
    /// The reader cancelled.
    Cancelled,
}

impl PathOutcome {
    /// The path ended with `error`. An answer that the server reports as gone or taken over is not
    /// looked for again (S-2.6).
    pub(super) fn of(error: ClientError) -> Self {
        match error {
            ClientError::Gone | ClientError::Superseded | ClientError::ShuttingDown => {
                Self::Failed(error)
            }
            _ => Self::Lost(error),
        }
    }

    /// The path is lost for the reason `why`.
    pub(super) fn lost(why: &str) -> Self {
        Self::Lost(ClientError::Broken(why.to_owned()))
    }
}

/// An answer in progress, without its path.
pub(super) struct AnswerState {
    pub(super) connections: Connections,
    pub(super) handle: AnswerHandle,
    pub(super) items: mpsc::Sender<AnswerItem>,
    pub(super) status: Arc<AnswerStatus>,
    /// Items for the reader, in order; nothing more is read from the network until it is empty.
    pub(super) waiting: VecDeque<AnswerItem>,
    /// Position from which a chunk writer can resume: after the last delivered step that is a chunk
    /// by itself.
    pub(super) cursor: u64,
    /// Steps up to this position were delivered before.
    pub(super) seen_until: u64,
    /// Receiver carried over from earlier QUIC connections, with the data that arrived on them.
    pub(super) receiver: Option<Receiver>,
    /// Epoch of the log that the latest of those connections carried (D-6.8).
    pub(super) epoch: u64,
    /// True if the server has no room for two readers of it.
    pub(super) has_one_path: bool,
    /// Error message, if the log's last record was an error.
    pub(super) server_error: Option<String>,
    /// Record of the text read so far, for a server that has less of it.
    pub(super) again: ReplayReader,
}

impl AnswerState {
    /// Sends an item to the reader, or queues it until there is room.
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

    /// Delivers a record that ends at position number `offset`; returns an outcome if the answer
    /// cannot continue.
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

    /// Delivers the records that arrived over lost paths and were not due yet, since no other path
    /// brings them. Returns how the answer ends if its last record is among them.
    pub(super) async fn deliver_rest(&mut self) -> Option<Result<(), ClientError>> {
        let rest = self.receiver.as_mut().map(Receiver::take_rest).unwrap_or_default();
        let mut end = None;
        for (offset, delta) in rest {
            end = match &delta {
                Delta::Done => Some(Ok(())),
                Delta::Error { message, .. } => Some(Err(ClientError::Stream(message.clone()))),
                _ => None,
            };
            let position = Position { epoch: self.epoch, offset };
            if let Some(PathOutcome::Failed(error)) = self.deliver_record(position.number(), delta)
            {
                end = Some(Err(error));
                break;
            }
        }
        while let Some(item) = self.waiting.pop_front() {
            let _ = self.items.send(item).await;
        }
        end
    }

    /// Delivers a chunk that ends at position number `offset`.
    ///
    /// # Errors
    /// Same as [`ReplayReader::rest_of_chunk`].
    pub(super) fn deliver_chunk(&mut self, offset: u64, data: Bytes) -> Result<(), ClientError> {
        if let Some(data) = self.again.rest_of_chunk(data)? {
            let content = Content::Chunk(data);
            self.deliver(AnswerItem::Step(Step { offset, seen: false, content }));
        }
        Ok(())
    }

    /// Prepares to read the log from its beginning, because the server has less of it than this
    /// reader. Returns false if that is impossible.
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
