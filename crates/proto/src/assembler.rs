//! Receiving side of a log: ranges arrive in any order; deltas are delivered in order, exactly
//! once.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;

use crate::Error;
use crate::delta::Delta;

/// Memory limits of an [`Assembler`] (D-7.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AssemblerLimits {
    /// Total bytes: contiguous bytes not yet polled, and ranges beyond a hole.
    pub max_bytes: usize,
    /// Number of ranges beyond a hole.
    pub max_ranges: usize,
}

impl Default for AssemblerLimits {
    /// 128 KiB (a few of the longest records), 16 ranges: more than is ever in flight.
    fn default() -> Self {
        Self { max_bytes: 128 * 1024, max_ranges: 16 }
    }
}

/// Puts byte ranges of a log back in order and decodes its records.
///
/// For any input, in any order and repeated any number of times: memory stays within the limits,
/// every delta is delivered once and in order, and accepted bytes are never replaced by later ones.
#[derive(Debug, Clone)]
pub struct Assembler {
    limits: AssemblerLimits,
    /// Contiguous bytes from `read_off` on.
    ready: Vec<u8>,
    /// Bytes of `ready` that were already decoded as records.
    taken: usize,
    read_off: u64,
    held: BTreeMap<u64, Vec<u8>>,
    held_bytes: usize,
    ended: bool,
    failed: Option<Error>,
}

impl Assembler {
    /// Creates an assembler of a log from `offset` on, which must be the start of a record.
    pub const fn new(offset: u64, limits: AssemblerLimits) -> Self {
        Self {
            limits,
            ready: Vec::new(),
            taken: 0,
            read_off: offset,
            held: BTreeMap::new(),
            held_bytes: 0,
            ended: false,
            failed: None,
        }
    }

    /// Offset below which every byte has arrived: the cumulative acknowledgement (D-5.2).
    pub fn cumulative(&self) -> u64 {
        self.read_off + (self.ready.len() - self.taken) as u64
    }

    /// Offset after the last polled record: the cursor to store for a resume.
    pub const fn cursor(&self) -> u64 {
        self.read_off
    }

    /// Returns true once the last record ([`Delta::is_last`]) was polled.
    pub const fn is_ended(&self) -> bool {
        self.ended
    }

    /// Ranges held beyond the first hole, ascending.
    pub fn held(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.held.iter().map(|(&start, bytes)| start..start + bytes.len() as u64)
    }

    /// Bytes in [`Self::held`].
    pub const fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Discards the ranges beyond the first hole: they may belong to another log.
    pub fn forget_held(&mut self) {
        self.held.clear();
        self.held_bytes = 0;
    }

    /// Stores `bytes` at `offset`; returns true if [`Self::cumulative`] advanced.
    ///
    /// # Errors
    /// [`Error::NoRoom`] if the limits do not allow it (the part that fits contiguously is stored;
    /// the rest counts as lost), [`Error::Malformed`] for a range beyond the largest offset, or the
    /// error that [`Self::poll`] returned.
    pub fn insert(&mut self, offset: u64, bytes: &[u8]) -> Result<bool, Error> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let end = offset.checked_add(bytes.len() as u64).ok_or(Error::Malformed)?;
        let cumulative = self.cumulative();
        if end <= cumulative {
            return Ok(false);
        }
        if offset > cumulative {
            return self.hold(offset, bytes).map(|()| false);
        }
        let news = &bytes[(cumulative - offset) as usize..];
        let room = self.limits.max_bytes.saturating_sub(self.len());
        // Held ranges will be sent again; contiguous bytes must not wait for them.
        if news.len() > room {
            self.forget_held();
        }
        let room = self.limits.max_bytes.saturating_sub(self.len());
        self.append(&news[..news.len().min(room)]);
        self.join_held();
        if news.len() > room && room == 0 { Err(Error::NoRoom) } else { Ok(true) }
    }

    /// Returns the next complete delta and the offset after it; unknown kinds are skipped (D-3.5).
    ///
    /// # Errors
    /// The error in the log. The log cannot be read any further: every later call returns the same
    /// error.
    pub fn poll(&mut self) -> Result<Option<(u64, Delta)>, Error> {
        match self.failed {
            Some(error) => Err(error),
            None => self.next_delta().inspect_err(|error| self.failed = Some(*error)),
        }
    }

    fn next_delta(&mut self) -> Result<Option<(u64, Delta)>, Error> {
        while !self.ended {
            let Some((len, delta)) = Delta::decode(&self.ready[self.taken..])? else {
                break;
            };
            self.taken += len;
            self.read_off += len as u64;
            if let Some(delta) = delta {
                self.ended = delta.is_last();
                return Ok(Some((self.read_off, delta)));
            }
        }
        self.ready.drain(..self.taken);
        self.taken = 0;
        Ok(None)
    }

    fn len(&self) -> usize {
        self.ready.len() - self.taken + self.held_bytes
    }

    fn append(&mut self, news: &[u8]) {
        if self.taken > self.limits.max_bytes {
            self.ready.drain(..self.taken);
            self.taken = 0;
        }
        self.ready.extend_from_slice(news);
    }

    /// Stores the parts of a range beyond a hole that are not held yet.
    fn hold(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let end = offset + bytes.len() as u64;
        let mut at = offset;
        while at < end {
            let before = self.held.range(..=at).next_back();
            if let Some(covered) =
                before.map(|(s, b)| s + b.len() as u64).filter(|covered| *covered > at)
            {
                at = covered;
                continue;
            }
            let stop = self.held.range(at..end).next().map_or(end, |(&start, _)| start);
            let part = &bytes[(at - offset) as usize..(stop - offset) as usize];
            self.hold_part(at, part)?;
            at = stop;
        }
        Ok(())
    }

    /// Stores `part`, joined to the adjacent ranges.
    fn hold_part(&mut self, offset: u64, part: &[u8]) -> Result<(), Error> {
        if self.len() + part.len() > self.limits.max_bytes {
            return Err(Error::NoRoom);
        }
        let before = self.held.range(..offset).next_back();
        let joined = before.filter(|(s, b)| *s + b.len() as u64 == offset).map(|(&s, _)| s);
        if joined.is_none() && self.held.len() >= self.limits.max_ranges {
            return Err(Error::NoRoom);
        }
        let after = self.held.remove(&(offset + part.len() as u64)).unwrap_or_default();
        let range = self.held.entry(joined.unwrap_or(offset)).or_default();
        range.extend_from_slice(part);
        range.extend_from_slice(&after);
        self.held_bytes += part.len();
        Ok(())
    }

    fn join_held(&mut self) {
        while let Some((&start, _)) = self.held.first_key_value() {
            let cumulative = self.cumulative();
            if start > cumulative {
                return;
            }
            let bytes = self.held.remove(&start).unwrap_or_default();
            self.held_bytes -= bytes.len();
            if let Some(news) = bytes.get((cumulative - start) as usize..) {
                self.append(news);
            }
        }
    }
}
