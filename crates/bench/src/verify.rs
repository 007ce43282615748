//! Rejects impossible token totals.
//!
//! A throughput is only as good as its token count. A published example: 4359
//! "tokens" from 40 requests of at most 50, because prompt characters were counted and
//! a server's rate was multiplied by a client's time. Every count here is checked
//! against the request, the text that arrived and the server's other counters.

use crate::record::RequestRecord;

/// Result of checking one run.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Findings {
    /// Impossible totals: the run's figures are rejected.
    pub impossible: Vec<String>,
    /// Remarks for the reader of the figures.
    pub notes: Vec<String>,
}

/// Maximum number of lines printed of each kind; the rest is only counted.
const MAX_LINES: usize = 5;

/// Checks the token counts of all finished requests.
pub fn verify(records: &[RequestRecord]) -> Findings {
    let mut findings = Findings::default();
    let finished: Vec<&RequestRecord> = records.iter().filter(|record| record.finished()).collect();
    let impossible = finished.iter().flat_map(|record| {
        let index = record.index;
        impossible(record).into_iter().map(move |reason| format!("request {index}: {reason}"))
    });
    findings.impossible = shorten(impossible.collect());
    findings.notes = notes(&finished);
    findings
}

fn shorten(mut lines: Vec<String>) -> Vec<String> {
    let more = lines.len().saturating_sub(MAX_LINES);
    if more > 0 {
        lines.truncate(MAX_LINES);
        lines.push(format!("… and {more} more of this kind"));
    }
    lines
}

fn impossible(record: &RequestRecord) -> Option<String> {
    let counted = record.completion_tokens()?;
    let asked = u64::from(record.max_tokens);
    let chunks = record.chunks.len() as u64;
    if counted > asked {
        return Some(format!("{counted} tokens were counted, but at most {asked} were asked for"));
    }
    if chunks > counted {
        return Some(format!(
            "{chunks} chunks carried text, but only {counted} tokens were counted: \
             a token makes at most one chunk"
        ));
    }
    let emitted = record.timings.as_ref().map_or(0, |timings| timings.emit_us.len() as u64);
    if emitted > 0 && emitted != counted {
        return Some(format!("the server emitted {emitted} tokens and reports {counted}"));
    }
    None
}

fn notes(finished: &[&RequestRecord]) -> Vec<String> {
    let mut notes = Vec::new();
    let mut note = |count: usize, what: &str| {
        if count > 0 {
            notes.push(format!("{count} of {} answers {what}", finished.len()));
        }
    };
    let count =
        |of: fn(&RequestRecord) -> bool| finished.iter().filter(|record| of(record)).count();
    note(count(|r| r.completion_tokens().is_none()), "came without a token count (no usage)");
    note(
        count(|r| r.ignore_eos && r.completion_tokens().is_some_and(|n| n < r.max_tokens.into())),
        "are shorter than asked in spite of ignore_eos (not supported, or out of context)",
    );
    note(count(|r| r.chunks.is_empty()), "hold no text");
    let pairs =
        finished.iter().filter_map(|r| Some((r.usage?.completion_tokens, r.recounted_tokens?)));
    let (recounted, server, ours) =
        pairs.fold((0, 0, 0), |(n, a, b), (server, ours)| (n + 1, a + server, b + ours));
    if recounted > 0 {
        // A model may spell a text in other tokens than its tokenizer would, and tokens
        // without text leave no trace in it, so the two need not be equal.
        notes.push(format!(
            "recount of {recounted} answers: the server says {server} tokens, \
             its tokenizer finds {ours} in the text"
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reconcile::tests::record;
    use loquent_client::openai::ServerTimings;

    #[test]
    fn a_plausible_run_passes() {
        let found = verify(&[record(&[1010, 1020], 2), record(&[1010], 8)]);
        assert_eq!(found, Findings::default());
    }

    #[test]
    fn more_tokens_than_asked_are_refused() {
        // The published example: 109 "tokens" per request of at most 50.
        let mut liar = record(&[1010], 109);
        liar.max_tokens = 50;
        let found = verify(&[liar]);
        assert_eq!(
            found.impossible,
            ["request 0: 109 tokens were counted, but at most 50 were asked for"]
        );
    }

    #[test]
    fn more_chunks_than_tokens_are_refused() {
        assert!(verify(&[record(&[1010, 1020, 1030], 2)]).impossible[0].contains("3 chunks"));
    }

    #[test]
    fn a_server_that_contradicts_itself_is_refused() {
        let mut odd = record(&[1010], 3);
        odd.timings = Some(Box::new(ServerTimings { emit_us: vec![1.0], ..Default::default() }));
        assert!(verify(&[odd]).impossible[0].contains("emitted 1 tokens and reports 3"));
    }

    #[test]
    fn long_lists_are_shortened() {
        let liars: Vec<RequestRecord> = (0..20).map(|_| record(&[1010, 1020], 1)).collect();
        let found = verify(&liars);
        assert_eq!(found.impossible.len(), MAX_LINES + 1);
        assert!(found.impossible[MAX_LINES].contains("15 more"));
    }

    #[test]
    fn doubts_are_noted() {
        let mut short = record(&[1010], 3);
        short.max_tokens = 8;
        short.recounted_tokens = Some(2);
        let mut unknown = record(&[1010], 3);
        unknown.usage = None;
        let notes = verify(&[short, unknown]).notes.join("\n");
        for part in ["1 of 2 answers came without", "1 of 2 answers are shorter", "says 3 tokens"] {
            assert!(notes.contains(part), "{part:?} is not in {notes}");
        }
    }
}
