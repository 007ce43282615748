//! Log offsets at which reading can begin, so that a resume by event id finds the records and the
//! state of the chunks without an entry for every record.

use loquent_proto::chunk::ChunkWriter;
use loquent_proto::{Delta, Log};

/// Log bytes between two points: a resume decodes at most this much before its own offset, and
/// a log of 1 MiB has a thousand points.
const SPACING_BYTES: u64 = 1024;

/// The points of one log, and the facts about the log before them that its chunks need.
#[derive(Debug, Default)]
pub struct ResumePoints {
    /// Metadata of the log's Open record.
    meta: String,
    /// Ends of records after which no record waits for another (S-6.5), ascending.
    points: Vec<u64>,
    /// End of each choice's first record with a chunk.
    starts: Vec<(u32, u64)>,
}

impl ResumePoints {
    /// Notes that the records appended from `head` on do not depend on earlier ones.
    pub fn note_point(&mut self, head: u64) {
        let last = self.points.last().copied();
        if last.is_none_or(|last| head >= last + SPACING_BYTES) {
            self.points.push(head);
        }
    }

    /// Notes an appended record that ends at `end`.
    pub fn note_record(&mut self, end: u64, delta: &Delta) {
        let choice = match delta {
            Delta::Open { meta } => {
                self.meta.clone_from(meta);
                return;
            }
            Delta::Text { choice, .. }
            | Delta::Reasoning { choice, .. }
            | Delta::ToolCall { choice, .. }
            | Delta::Finish { choice, .. } => *choice,
            _ => return,
        };
        if !self.starts.iter().any(|(known, _)| *known == choice) {
            self.starts.push((choice, end));
        }
    }

    /// Returns the answer's start, Unix time in seconds; `None` if the log does not contain it.
    pub fn created_s(&self) -> Option<u64> {
        let meta: serde_json::Value = serde_json::from_str(&self.meta).ok()?;
        meta["created"].as_u64()
    }

    /// Returns the state of the chunks at `offset` of `log`; `None` if no record ends there, or the
    /// log no longer reaches back far enough.
    pub fn chunks_at(&self, log: &Log, offset: u64) -> Option<ChunkWriter> {
        if offset == 0 {
            return (log.base() == 0).then(ChunkWriter::new);
        }
        let point = self.points.iter().rev().find(|point| **point <= offset).copied()?;
        if point < log.base() {
            return None;
        }
        let started = self.starts.iter().filter(|(_, end)| *end <= point);
        let mut chunks = match point {
            0 => ChunkWriter::new(),
            _ => ChunkWriter::resume(&self.meta, started.map(|(choice, _)| *choice)).ok()?,
        };
        let mut bytes = Vec::new();
        log.read(point..offset, &mut bytes).ok()?;
        let (mut at, mut unused) = (0, Vec::new());
        while at < bytes.len() {
            let (len, delta) = Delta::decode(&bytes[at..]).ok()??;
            at += len;
            if let Some(delta) = delta {
                chunks.write(None, &delta, &mut unused).ok()?;
                unused.clear();
            }
        }
        Some(chunks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> (Log, ResumePoints, Vec<u64>) {
        let meta = r#"{"id":"a","object":"chat.completion.chunk","created":1,"model":"m"}"#;
        let (mut log, mut points) = (Log::new(1 << 20), ResumePoints::default());
        let mut ends = vec![0];
        let mut push = |delta: Delta| {
            points.note_point(log.head());
            let end = log.push(&delta).unwrap().end;
            points.note_record(end, &delta);
            ends.push(end);
        };
        push(Delta::Open { meta: meta.into() });
        for i in 0..1000 {
            push(Delta::Text { choice: i % 3, tokens: 1, text: format!(" wörd{i}") });
        }
        (log, points, ends)
    }

    #[test]
    fn every_end_of_a_record_is_found_and_nothing_else() {
        let (log, points, ends) = log();
        assert!(points.points.len() > 5 && points.points.len() < 20);
        for offset in 0..=log.head() {
            let found = points.chunks_at(&log, offset).is_some();
            assert_eq!(found, ends.contains(&offset), "offset {offset}");
        }
        assert!(points.chunks_at(&log, log.head() + 1).is_none());
    }

    #[test]
    fn a_resumed_choice_does_not_repeat_its_role() {
        let (log, points, ends) = log();
        for (at, has_role) in [(1, false), (2, true), (700, true)] {
            let mut chunks = points.chunks_at(&log, ends[at]).unwrap();
            let mut out = Vec::new();
            chunks.write(None, &Delta::text("x"), &mut out).unwrap();
            let out = String::from_utf8(out).unwrap();
            assert_eq!(out.contains("assistant"), !has_role, "after record {at}");
        }
    }

    #[test]
    fn what_was_dropped_cannot_be_resumed() {
        let (mut log, points, ends) = log();
        let cut = ends[500];
        log.acknowledge(cut).unwrap();
        let text = "x".repeat(100);
        while log.push(&Delta::text(text.as_str())).is_ok() {}
        assert!((cut - 120..=cut).contains(&log.base()), "as much as may be dropped");
        assert!(points.chunks_at(&log, 0).is_none());
        assert!(points.chunks_at(&log, ends[400]).is_none());
        assert!(points.chunks_at(&log, ends[900]).is_some());
    }
}
