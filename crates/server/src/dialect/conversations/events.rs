//! A conversation's events. Clients count their bytes, so every reader must get the same ones:
//! there are no comments after a silence, and padding depends on the answer alone.

use bytes::Bytes;
use loquent_proto::chunk::ChunkWriter;
use loquent_proto::{Delta, Error};

use crate::error::ApiError;
use crate::event_writer::{COMMENT, EventWriter, write_record};

/// Writes an answer's events, leaving out a number of bytes at the beginning.
pub struct BytesFrom {
    chunks: ChunkWriter,
    /// Number of bytes still to be left out.
    left_out: u64,
    /// Bytes of all events so far.
    total: u64,
    event: Vec<u8>,
}

impl BytesFrom {
    /// Returns a writer at the answer's beginning that leaves out `from` bytes, and the remainder
    /// of the comment that begins the stream.
    pub fn new(chunks: ChunkWriter, from: u64) -> (Self, Vec<u8>) {
        let begin = usize::try_from(from).unwrap_or(usize::MAX).min(COMMENT.len());
        let total = COMMENT.len() as u64;
        let left_out = from.saturating_sub(total);
        (Self { chunks, left_out, total, event: Vec::new() }, COMMENT[begin..].to_vec())
    }

    /// Number of bytes of the stream so far, including those left out.
    pub fn total(&self) -> u64 {
        self.total
    }
}

impl EventWriter for BytesFrom {
    fn write(&mut self, id: Option<u64>, delta: &Delta, out: &mut Vec<u8>) -> Result<(), Error> {
        self.event.clear();
        write_record(&mut self.chunks, id, delta, &mut self.event)?;
        let len = self.event.len() as u64;
        let from = self.left_out.min(len);
        self.left_out -= from;
        self.total += len;
        out.extend_from_slice(&self.event[from as usize..]);
        Ok(())
    }

    fn takes_progress(&self) -> bool {
        true
    }

    fn write_error(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        EventWriter::write_error(&mut self.chunks, error, out);
    }

    fn heartbeat(&self) -> Bytes {
        // A comment would be bytes that no other reader of the answer has.
        Bytes::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(from: u64) -> Vec<u8> {
        let meta = r#"{"id":"a","object":"chat.completion.chunk","created":1,"model":"m"}"#;
        let deltas = [
            Delta::Open { meta: meta.into() },
            Delta::text("Grüße"),
            Delta::Finish { choice: 0, reason: "stop".into() },
            Delta::Done,
        ];
        let (mut writer, mut out) = BytesFrom::new(ChunkWriter::new(), from);
        for (at, delta) in deltas.iter().enumerate() {
            writer.write(Some(at as u64), delta, &mut out).unwrap();
        }
        assert!(from > writer.total() || out.len() as u64 == writer.total() - from);
        out
    }

    #[test]
    fn every_byte_can_be_the_first() {
        let whole = stream(0);
        assert!(whole.starts_with(COMMENT) && whole.ends_with(b"data: [DONE]\n\n"));
        for from in 0..=whole.len() {
            assert_eq!(stream(from as u64), whole[from..], "from {from}");
        }
        assert_eq!(stream(u64::MAX), b"");
    }
}
