//! One request from both sides: when the engine emitted a token, when the server flushed
//! it, and when it arrived here.
//!
//! The server's clock starts at the request's arrival there, which is unknown here. The offset is
//! chosen so that the request's fastest flush took no time. The extra time of the others is
//! queueing on the way, which this module measures.

use crate::record::{RequestRecord, ms};

/// Gap above which it counts as a stall, in milliseconds.
pub const STALL_MS: f64 = 200.0;
/// Time after its generation at which a shown token counts as late, in milliseconds.
pub const LATE_MS: f64 = 400.0;

/// Both sides of one request, in milliseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Reconciled {
    /// Per token: emission to flush, by the server's clock.
    pub emit_to_flush_ms: Vec<f64>,
    /// Per flush: flush to arrival, beyond the request's fastest.
    pub flush_to_arrival_ms: Vec<f64>,
    /// Per token: emission to arrival.
    pub emit_to_arrival_ms: Vec<f64>,
    /// Tokens of each chunk.
    pub tokens_per_chunk: Vec<f64>,
    /// First emission on our clock, since the run's start.
    pub first_emit_ms: f64,
}

/// Joins the two sides; returns `None` if the server's timings are absent or do not match the
/// chunks that arrived.
pub fn reconcile(record: &RequestRecord) -> Option<Reconciled> {
    let timings = record.timings.as_deref()?;
    let chunks = &record.chunks;
    // The flush of the finish may carry no text and so have no chunk.
    let extra = timings.flush_us.len().checked_sub(chunks.len())?;
    if extra > 1 || chunks.is_empty() || timings.emit_us.is_empty() {
        return None;
    }
    let flushes = &timings.flush_us[..chunks.len()];
    let delay_ms = |(chunk, flush): (&crate::record::ChunkMark, &(f64, f64))| {
        ms(chunk.at_us) - ms(record.submitted_us) - flush.1 / 1e3
    };
    let delays: Vec<f64> = chunks.iter().zip(flushes).map(delay_ms).collect();
    let fastest = delays.iter().copied().fold(f64::INFINITY, f64::min);
    let mut joined = Reconciled {
        emit_to_flush_ms: Vec::new(),
        flush_to_arrival_ms: delays.iter().map(|delay| delay - fastest).collect(),
        emit_to_arrival_ms: Vec::new(),
        tokens_per_chunk: Vec::new(),
        first_emit_ms: ms(record.submitted_us) + fastest + timings.emit_us[0] / 1e3,
    };
    let mut emitted = 0;
    for (&(upto, flushed_us), on_the_way) in flushes.iter().zip(&joined.flush_to_arrival_ms) {
        let upto = (upto as usize).min(timings.emit_us.len());
        let tokens = timings.emit_us.get(emitted..upto)?;
        joined.tokens_per_chunk.push(tokens.len() as f64);
        for emit_us in tokens {
            let held = (flushed_us - emit_us) / 1e3;
            joined.emit_to_flush_ms.push(held);
            joined.emit_to_arrival_ms.push(held + on_the_way);
        }
        emitted = upto;
    }
    Some(joined)
}

/// Stalls of one answer as shares of its span.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stall {
    /// Σ g over gaps g > 200 ms, divided by the span (the paper's ratio).
    pub full: f64,
    /// Σ (g − 200 ms)+ divided by the span.
    pub ex: f64,
}

/// Computes the stalls among the render times `shown_ms`. The span begins at `from_ms`: the first
/// generation plus half a round trip, or the first arrival if that is unknown.
pub fn stall(from_ms: f64, shown_ms: impl IntoIterator<Item = f64>) -> Option<Stall> {
    let (mut last, mut full, mut ex) = (from_ms, 0.0, 0.0);
    for shown in shown_ms {
        let gap = shown - last;
        if gap > STALL_MS {
            full += gap;
            ex += gap - STALL_MS;
        }
        last = shown;
    }
    let span = last - from_ms;
    (span > 0.0).then(|| Stall { full: full / span, ex: ex / span })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::record::{ChunkMark, RequestOutcome, RequestRole};
    use loquent_client::openai::{ServerTimings, Usage};

    /// Returns a finished request, sent at 1 s, whose chunks arrived at `at_ms`.
    pub(crate) fn record(at_ms: &[u64], tokens: u64) -> RequestRecord {
        let chunks = at_ms.iter().map(|at| ChunkMark { at_us: at * 1000, text_bytes: 1 });
        RequestRecord {
            index: 0,
            role: RequestRole::Measured,
            scheduled_us: 1_000_000,
            submitted_us: 1_000_000,
            accepted_us: Some(1_001_000),
            chunks: chunks.collect(),
            ended_us: at_ms.last().map_or(0, |at| at * 1000),
            outcome: RequestOutcome::Finished,
            max_tokens: tokens as u32,
            ignore_eos: true,
            text: "x".repeat(at_ms.len()),
            finish_reason: Some("length".into()),
            usage: Some(Usage { prompt_tokens: 1, completion_tokens: tokens }),
            timings: None,
            recounted_tokens: None,
            wire: Default::default(),
        }
    }

    fn near(seen: &[f64], expected: &[f64]) {
        assert_eq!(seen.len(), expected.len(), "{seen:?} against {expected:?}");
        for (a, b) in seen.iter().zip(expected) {
            assert!((a - b).abs() < 1e-6, "{seen:?} against {expected:?}");
        }
    }

    #[test]
    fn both_sides_are_joined_per_token() {
        // Flushes at 10, 30 and 60 ms; they arrive 2, 2 and 7 ms later.
        let mut record = record(&[1012, 1032, 1067], 4);
        record.timings = Some(Box::new(ServerTimings {
            emit_us: vec![9_000.0, 20_000.0, 30_000.0, 59_000.0],
            flush_us: vec![(1.0, 10_000.0), (3.0, 30_000.0), (4.0, 60_000.0), (4.0, 61_000.0)],
            ..ServerTimings::default()
        }));
        let joined = reconcile(&record).unwrap();
        near(&joined.emit_to_flush_ms, &[1.0, 10.0, 0.0, 1.0]);
        near(&joined.flush_to_arrival_ms, &[0.0, 0.0, 5.0]);
        near(&joined.emit_to_arrival_ms, &[1.0, 10.0, 0.0, 6.0]);
        near(&joined.tokens_per_chunk, &[1.0, 2.0, 1.0]);
        near(&[joined.first_emit_ms], &[1011.0]);
    }

    #[test]
    fn timings_that_do_not_match_are_not_used() {
        let mut odd = record(&[1012, 1032], 2);
        assert_eq!(reconcile(&odd), None);
        let flushes = |flush_us| ServerTimings {
            emit_us: vec![1.0, 2.0],
            flush_us,
            ..ServerTimings::default()
        };
        odd.timings = Some(Box::new(flushes(vec![(2.0, 1.0)])));
        assert_eq!(reconcile(&odd), None);
        // Offsets that run backwards.
        odd.timings = Some(Box::new(flushes(vec![(2.0, 1.0), (1.0, 2.0)])));
        assert_eq!(reconcile(&odd), None);
    }

    #[test]
    fn stalls_follow_their_definition() {
        // Gaps 100, 300 and 600 ms over a span of 1000 ms.
        let stalls = stall(0.0, [100.0, 400.0, 1000.0]).unwrap();
        near(&[stalls.full, stalls.ex], &[0.9, 0.5]);
        assert_eq!(stall(5.0, [5.0]), None);
        assert_eq!(stall(0.0, [200.0]), Some(Stall { full: 0.0, ex: 0.0 }));
    }
}
