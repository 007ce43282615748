//! The records of one response, from which its events and its object are made at any time.

use loquent_proto::delta::MAX_RECORD_BYTES;
use loquent_proto::{Delta, Error, Log};

/// Bytes allowed beyond the limit for the records that end a response.
pub const END_RESERVE_BYTES: usize = 2 * 1024;

/// Maximum bytes of records read at once: at least two of the longest.
const PIECE_BYTES: usize = 2 * MAX_RECORD_BYTES + 16;

/// Concatenated records, within a limit.
#[derive(Debug, Clone)]
pub struct RecordLog {
    bytes: Vec<u8>,
    max_bytes: usize,
    is_ended: bool,
}

/// Error: the log has no room for a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogFull;

impl RecordLog {
    /// Returns an empty log of at most `max_bytes`, with a small reserve for its end.
    pub const fn new(max_bytes: usize) -> Self {
        Self { bytes: Vec::new(), max_bytes, is_ended: false }
    }

    /// Returns the same log with the limit `max_bytes` from here on, with a small reserve for its
    /// end.
    pub fn bounded(self, max_bytes: usize) -> Self {
        Self { max_bytes, ..self }
    }

    /// Returns the log in `bytes` from the store, cut off after its last complete record.
    pub fn from_bytes(mut bytes: Vec<u8>) -> Self {
        let (mut end, mut is_ended) = (0, false);
        while !is_ended && let Ok(Some((len, delta))) = Delta::decode(&bytes[end..]) {
            end += len;
            is_ended = delta.is_some_and(|delta| delta.is_last());
        }
        bytes.truncate(end);
        Self { max_bytes: bytes.len(), bytes, is_ended }
    }

    /// Appends `delta`, split into several records if it is too long for one. Does nothing if the
    /// log has ended.
    ///
    /// # Errors
    /// [`LogFull`]; the log is then unchanged.
    pub fn push(&mut self, delta: &Delta) -> Result<(), LogFull> {
        // The rest of a flush that filled the log comes behind the end that says so.
        if self.is_ended {
            return Ok(());
        }
        let before = self.bytes.len();
        if delta.encode(&mut self.bytes) == Err(Error::DeltaTooLong) {
            self.push_split(delta);
        }
        let reserve = if delta.is_last() { END_RESERVE_BYTES } else { 0 };
        if self.bytes.len() > self.max_bytes + reserve {
            self.bytes.truncate(before);
            return Err(LogFull);
        }
        self.is_ended = delta.is_last();
        Ok(())
    }

    /// Appends a delta whose text is split among records as in the protocol's log. JSON that is too
    /// long cannot be split and is left out.
    fn push_split(&mut self, delta: &Delta) {
        let mut pieces = Log::new(usize::MAX / 2);
        if let Ok(range) = pieces.push(delta) {
            pieces.read(range, &mut self.bytes).expect("it was just appended");
        }
    }

    /// Returns all records so far.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns true if the last record ends the response.
    pub const fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Returns bytes from `at` on, which may stop within a record, and whether the response ends
    /// with them.
    pub fn piece(&self, at: usize) -> (&[u8], bool) {
        let end = self.bytes.len().min(at + PIECE_BYTES);
        (&self.bytes[at..end], self.is_ended && end == self.bytes.len())
    }

    /// Passes all records from byte `at` on to `take`.
    pub fn read(&self, at: usize, take: impl FnMut(Delta)) {
        read_records(&self.bytes[at..], take);
    }
}

/// Passes the complete records at the beginning of `bytes` to `take`; returns their length.
pub fn read_records(bytes: &[u8], mut take: impl FnMut(Delta)) -> usize {
    let mut at = 0;
    while let Ok(Some((len, delta))) = Delta::decode(&bytes[at..]) {
        at += len;
        delta.into_iter().for_each(&mut take);
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(log: &RecordLog) -> String {
        let mut all = String::new();
        log.read(0, |delta| {
            if let Delta::Text { text, .. } = delta {
                all.push_str(&text);
            }
        });
        all
    }

    #[test]
    fn long_text_is_divided_and_read_as_it_was() {
        let mut log = RecordLog::new(1 << 20);
        let text = "é".repeat(20_000);
        log.push(&Delta::text(text.as_str())).unwrap();
        log.push(&Delta::text("!")).unwrap();
        assert_eq!(texts(&log), text + "!");
    }

    #[test]
    fn a_full_log_takes_its_end_and_nothing_else() {
        let mut log = RecordLog::new(64);
        while log.push(&Delta::text("some text")).is_ok() {}
        let before = log.bytes().len();
        assert_eq!(log.push(&Delta::text("some text")), Err(LogFull));
        assert_eq!(log.bytes().len(), before);
        log.push(&Delta::Error { code: "c".into(), message: "m".into() }).unwrap();
        assert!(log.is_ended());
        let ended = log.bytes().len();
        log.push(&Delta::Done).unwrap();
        assert_eq!(log.bytes().len(), ended, "nothing follows the end");
    }

    #[test]
    fn a_log_from_a_torn_file_ends_with_its_last_whole_record() {
        let mut log = RecordLog::new(1 << 20);
        log.push(&Delta::text("whole")).unwrap();
        let whole = log.bytes().len();
        log.push(&Delta::text("torn")).unwrap();
        for cut in whole..log.bytes().len() {
            let read = RecordLog::from_bytes(log.bytes()[..cut].to_vec());
            assert_eq!((read.bytes().len(), read.is_ended()), (whole, false));
        }
    }
}
