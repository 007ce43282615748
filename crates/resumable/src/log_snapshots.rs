//! Readers of a log without a path: each requests a piece of the log, now or once there is more.

use loquent_proto::chunk::ChunkWriter;
use loquent_proto::{AnswerLog, Log, Position};
use tokio::sync::oneshot;

use crate::event_reader::whole_records;
use crate::log_pump::LogPump;
use crate::shared::epochs::Epochs;

/// Maximum waiting requests. Each has its own connection, and connections are bounded too.
const MAX_WAITING: usize = 1024;

/// A piece of a log. Its places are numbers of positions in the log's last epoch (D-6.8).
#[derive(Debug)]
pub struct LogSnapshot {
    /// The requested place, unchanged if the log does not have it.
    pub from: u64,
    /// Whole records from the requested offset on; empty if no record ends there, or it is no
    /// longer kept.
    pub bytes: Vec<u8>,
    /// State of the chunks at the requested offset; `None` if the log cannot be read there.
    pub chunks: Option<ChunkWriter>,
    /// Place of the oldest byte kept.
    pub base: u64,
    /// Current end of the log.
    pub head: u64,
    /// True if nothing follows.
    pub is_ended: bool,
    /// True if the log ended with an error.
    pub has_failed: bool,
}

/// A request to read a log without a path. A client that polls is as good a reader as one that
/// stays.
pub struct SnapshotRequest {
    /// Number of the position to read from; `u64::MAX` for the log's end.
    pub from: u64,
    /// Maximum bytes to read.
    pub most: usize,
    /// True to wait until there are bytes from there on, or the log has ended.
    pub waits: bool,
    /// Receives the piece read.
    pub reply: oneshot::Sender<LogSnapshot>,
}

/// A request and its log offset.
pub struct PendingSnapshot {
    /// The request.
    pub look: SnapshotRequest,
    /// Log offset to read from; `None` if the log does not have the requested position.
    pub from: Option<u64>,
}

/// Requests that wait for more of one log.
#[derive(Default)]
pub struct PendingSnapshots(Vec<PendingSnapshot>);

impl PendingSnapshots {
    /// Answers a request, or lets it wait.
    pub fn handle(
        &mut self,
        placed: PendingSnapshot,
        pump: &LogPump,
        source: &AnswerLog,
        epochs: &Epochs,
    ) {
        if placed.look.waits && !placed.is_due(source.log()) {
            // Clients that hung up must not count against the bound.
            self.0.retain(|waiting| !waiting.look.reply.is_closed());
            if self.0.len() < MAX_WAITING {
                return self.0.push(placed);
            }
        }
        placed.answer(pump, source, epochs);
    }

    /// Replies to the waiting requests whose data has arrived.
    pub fn check(&mut self, pump: &LogPump, source: &AnswerLog, epochs: &Epochs) {
        for placed in self.0.extract_if(.., |placed| placed.is_due(source.log())) {
            placed.answer(pump, source, epochs);
        }
    }
}

impl PendingSnapshot {
    fn is_due(&self, log: &Log) -> bool {
        self.from.is_none_or(|from| from < log.head()) || log.is_ended()
    }

    fn answer(self, pump: &LogPump, source: &AnswerLog, epochs: &Epochs) {
        let Self { look: SnapshotRequest { from: asked, most, reply, .. }, from } = self;
        let log = source.log();
        let place = |offset| Position { epoch: epochs.current(), offset }.number();
        let chunks = from.and_then(|from| pump.chunks_at(source, from));
        let mut bytes = Vec::new();
        if let Some(from) = from.filter(|_| chunks.is_some()) {
            let end = log.head().min(from.saturating_add(most as u64));
            log.read(from..end, &mut bytes).expect("the chunks' state was found there");
            bytes.truncate(whole_records(&bytes, usize::MAX));
        }
        let look = LogSnapshot {
            from: from.map_or(asked, place),
            bytes,
            chunks,
            base: place(log.base()),
            head: place(log.head()),
            is_ended: log.is_ended(),
            has_failed: pump.has_failed(),
        };
        send(reply, look);
    }
}

fn send(reply: oneshot::Sender<LogSnapshot>, look: LogSnapshot) {
    // Who asked may have left meanwhile.
    let _ = reply.send(look);
}
