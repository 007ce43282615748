//! A reader: it moves between replicas, and keeps what it has.

use loquent_proto::{Delta, Position};
use tokio::task::AbortHandle;

/// State of a reader.
pub enum ReaderState {
    /// It connects at this time.
    Waits { until_ms: u64 },
    /// It reads at a replica.
    Reads(ReaderConnection),
    /// It has the whole answer.
    Done,
    /// There is no answer to read.
    Gone,
}

/// A reader's connection.
pub struct ReaderConnection {
    /// Number of the connection.
    pub number: u64,
    /// The replica.
    pub replica: usize,
    /// Time when it was made.
    pub since_ms: u64,
    /// Time when the reader leaves in any case.
    pub leaves_ms: u64,
    /// Time when it leaves unless it gets something.
    pub patience_ms: u64,
    /// True if it takes all at once that an event stream has.
    pub takes_all: bool,
    /// True if the store had its place when it connected.
    pub was_there: bool,
    /// Ends it.
    pub task: AbortHandle,
}

/// A reader of an answer.
pub struct SimulatedReader {
    /// Number of the answer.
    pub answer: usize,
    /// State.
    pub state: ReaderState,
    /// Position from which it reads on.
    pub position: Position,
    /// Bytes of a record that is not whole yet.
    partial: Vec<u8>,
    /// Text since it last began.
    pub text: String,
    /// Last record, if it ends the answer.
    pub end: Option<Delta>,
    /// Number of times that its place was refused since it last got anything.
    pub refusals: u32,
}

impl SimulatedReader {
    /// Creates a reader of `answer` that connects at `until_ms`.
    pub fn new(answer: usize, until_ms: u64) -> Self {
        Self {
            answer,
            state: ReaderState::Waits { until_ms },
            position: Position::default(),
            partial: Vec::new(),
            text: String::new(),
            end: None,
            refusals: 0,
        }
    }

    /// True if the reader expects nothing more.
    pub const fn is_over(&self) -> bool {
        matches!(self.state, ReaderState::Done | ReaderState::Gone)
    }

    /// Reads from the beginning again, as clients do whose place is refused.
    pub fn begin_again(&mut self) {
        self.position = Position::default();
        self.partial.clear();
        self.text.clear();
        self.refusals += 1;
    }

    /// Forgets the bytes of a record that is not whole.
    pub fn forget_partial(&mut self) {
        self.position.offset -= self.partial.len() as u64;
        self.partial.clear();
    }

    /// Takes a piece.
    ///
    /// # Errors
    /// Describes how the piece does not continue what the reader has.
    pub fn take(&mut self, position: Position, bytes: &[u8]) -> Result<(), String> {
        let offset = self.position.offset;
        if position.offset != offset {
            return Err(format!("it has {offset} bytes, and gets those from {}", position.offset));
        }
        self.refusals = 0;
        self.position = Position { offset: offset + bytes.len() as u64, ..position };
        self.partial.extend_from_slice(bytes);
        let mut at = 0;
        loop {
            match Delta::decode(&self.partial[at..]) {
                Ok(Some((len, delta))) => {
                    at += len;
                    match delta {
                        Some(Delta::Text { text, .. }) => self.text.push_str(&text),
                        Some(last) if last.is_last() => self.end = Some(last),
                        _ => {}
                    }
                }
                Ok(None) => break,
                Err(error) => return Err(format!("its log cannot be read: {error}")),
            }
        }
        self.partial.drain(..at);
        if at > 0 || self.partial.is_empty() { Ok(()) } else { Err("half a record".to_owned()) }
    }
}
