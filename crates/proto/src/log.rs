//! Log of an answer on the generating side: appended records, and byte offsets that serve as resume
//! cursor, SSE event id and acknowledgement.

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

use crate::Error;
use crate::delta::{Delta, MAX_RECORD_BYTES};

/// Bytes beyond a log's bound for the records that end it: an answer whose reader is too slow can
/// still report its failure.
pub const END_RESERVE_BYTES: usize = 2 * 1024;

/// An append-only, bounded log.
///
/// Offsets count from 0 at the answer's first byte and never restart. Acknowledged bytes are kept
/// while there is room, so that a reader that lost its state can resume from the beginning. They
/// are dropped when the bound is reached.
#[derive(Debug, Clone)]
pub struct Log {
    base: u64,
    bytes: VecDeque<u8>,
    acked: u64,
    max_bytes: usize,
    ended: bool,
}

impl Log {
    /// Creates an empty log of at most `max_bytes` (plus [`END_RESERVE_BYTES`] for its end).
    pub const fn new(max_bytes: usize) -> Self {
        Self { base: 0, bytes: VecDeque::new(), acked: 0, max_bytes, ended: false }
    }

    /// Oldest offset that can still be read.
    pub const fn base(&self) -> u64 {
        self.base
    }

    /// Offset after the last byte.
    pub fn head(&self) -> u64 {
        self.base + self.bytes.len() as u64
    }

    /// Offset below which the reader has everything.
    pub const fn acked(&self) -> u64 {
        self.acked
    }

    /// Returns true once the last record ([`Delta::is_last`]) was appended.
    pub const fn is_ended(&self) -> bool {
        self.ended
    }

    /// Appends a delta and returns its byte range. Text too long for a record becomes several
    /// records; the first has the token count.
    ///
    /// # Errors
    /// [`Error::LogFull`], [`Error::LogEnded`], or [`Error::DeltaTooLong`] for a delta that cannot
    /// be split; the log is then unchanged.
    pub fn push(&mut self, delta: &Delta) -> Result<Range<u64>, Error> {
        if self.ended {
            return Err(Error::LogEnded);
        }
        let mut records = Vec::new();
        match split(delta) {
            None => delta.encode(&mut records)?,
            Some(pieces) => pieces.iter().try_for_each(|piece| piece.encode(&mut records))?,
        }
        let reserve = if delta.is_last() { END_RESERVE_BYTES } else { 0 };
        self.make_room(records.len(), self.max_bytes + reserve)?;
        let start = self.head();
        self.bytes.extend(records);
        self.ended = delta.is_last();
        Ok(start..self.head())
    }

    /// Notes that the reader has everything below `offset`; lower offsets than before are ignored.
    ///
    /// # Errors
    /// [`Error::OffsetUnavailable`] beyond the head, where no reader can be.
    pub fn acknowledge(&mut self, offset: u64) -> Result<(), Error> {
        if offset > self.head() {
            return Err(Error::OffsetUnavailable);
        }
        self.acked = self.acked.max(offset);
        Ok(())
    }

    /// Keeps everything from `offset` on again, for a reader that lost what it had beyond.
    ///
    /// # Errors
    /// [`Error::OffsetUnavailable`] if the log does not have `offset` (any more).
    pub fn rewind(&mut self, offset: u64) -> Result<(), Error> {
        self.check(offset)?;
        self.acked = offset;
        Ok(())
    }

    /// Checks that the log can be read from `offset` on.
    ///
    /// # Errors
    /// [`Error::OffsetUnavailable`] if it cannot (any more).
    pub fn check(&self, offset: u64) -> Result<(), Error> {
        let is_kept = self.base <= offset && offset <= self.head();
        is_kept.then_some(()).ok_or(Error::OffsetUnavailable)
    }

    /// Appends the bytes of `range` to `out`.
    ///
    /// # Errors
    /// [`Error::OffsetUnavailable`] if a part was dropped or does not exist yet.
    pub fn read(&self, range: Range<u64>, out: &mut Vec<u8>) -> Result<(), Error> {
        if range.start < self.base || range.end > self.head() || range.start > range.end {
            return Err(Error::OffsetUnavailable);
        }
        let (from, to) = ((range.start - self.base) as usize, (range.end - self.base) as usize);
        let (a, b) = self.bytes.as_slices();
        out.extend_from_slice(&a[from.min(a.len())..to.min(a.len())]);
        out.extend_from_slice(&b[from.saturating_sub(a.len())..to.saturating_sub(a.len())]);
        Ok(())
    }

    fn make_room(&mut self, more: usize, max_bytes: usize) -> Result<(), Error> {
        // No more than that, or a reader that is slower than the one who acknowledged would lose
        // its place long before it must.
        let excess = (self.bytes.len() + more).saturating_sub(max_bytes);
        if excess as u64 > self.acked.saturating_sub(self.base) {
            return Err(Error::LogFull);
        }
        self.bytes.drain(..excess);
        self.base += excess as u64;
        Ok(())
    }
}

/// Splits a delta that is too long for a record, if its text can be split; `None` if it is not
/// needed or not possible.
fn split(delta: &Delta) -> Option<Vec<Delta>> {
    // What a tag, a choice, an index and a token count can take in addition to the text.
    const PIECE_BYTES: usize = MAX_RECORD_BYTES - 64;
    let long = match delta {
        Delta::Text { text, .. } | Delta::Reasoning { text, .. } => text,
        Delta::ToolCall { arguments, .. } => arguments,
        _ => return None,
    };
    if long.len() <= PIECE_BYTES {
        return None;
    }
    let mut pieces = Vec::new();
    let mut rest = long.as_str();
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(char_boundary(rest, PIECE_BYTES));
        pieces.push(piece_of(delta, piece, pieces.is_empty()));
        rest = after;
    }
    Some(pieces)
}

/// Returns the last character boundary of `text` at or before `at`.
fn char_boundary(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0)
}

fn piece_of(delta: &Delta, piece: &str, first: bool) -> Delta {
    let mut copy = match delta {
        Delta::ToolCall { choice, index, .. } if !first => Delta::ToolCall {
            choice: *choice,
            index: *index,
            tokens: 0,
            id: String::new(),
            name: String::new(),
            arguments: String::new(),
        },
        _ => delta.clone(),
    };
    match &mut copy {
        Delta::Text { tokens, text, .. } | Delta::Reasoning { tokens, text, .. } => {
            *text = String::from(piece);
            *tokens = if first { *tokens } else { 0 };
        }
        Delta::ToolCall { arguments, .. } => *arguments = String::from(piece),
        _ => {}
    }
    copy
}
