//! Cuts batches so that one broken sequence cannot break others.
//!
//! A sequence whose numbers overflow writes NaN into its KV cells. llama.cpp's attention masks
//! other sequences' cells by adding negative infinity, which leaves NaN unchanged. Its kernel for
//! many queries reads 64 cells at once, masked ones included, and so gives NaN to every sequence
//! with a cell next to a broken one, even after the broken sequence was freed. Its kernel for fewer
//! queries skips masked cells. Batches are therefore cut into small ones while broken cells may
//! exist. This is taken from the source of the CPU back end with flash attention, and was verified
//! on it. Without flash attention every sequence of a unified cache reads every cell, and nothing
//! helps; other back ends were not tried.

use std::ops::Range;

use loquent_infer::runner::Batch;

/// Maximum tokens of a batch whose attention skips masked cells: below the 64 at which llama.cpp
/// switches to the kernel that does not.
pub(crate) const SAFE_TOKENS: usize = 32;

/// A small batch cut from a larger one, with the spans of the larger one that end in it.
pub(crate) struct SubBatch {
    pub(crate) batch: Batch,
    /// For each span of `batch`: its number in the whole batch, if this part has its end.
    pub(crate) ends: Vec<Option<usize>>,
}

/// Cuts the spans numbered `spans` of `batch` into parts of at most [`SAFE_TOKENS`], in
/// order.
pub(crate) fn cut(batch: &Batch, spans: &[usize]) -> Vec<SubBatch> {
    let mut parts: Vec<SubBatch> = Vec::new();
    for &index in spans {
        let span = &batch.spans[index];
        // Drafts are left out: only what must be computed is computed twice.
        let mut rest: Range<usize> = span.tokens.start..span.tokens.end - span.draft;
        while !rest.is_empty() {
            let part = match parts.last_mut() {
                Some(part) if part.batch.tokens.len() < SAFE_TOKENS => part,
                _ => {
                    parts.push(SubBatch { batch: Batch::default(), ends: Vec::new() });
                    parts.last_mut().expect("just pushed")
                }
            };
            let room = SAFE_TOKENS - part.batch.tokens.len();
            let tokens = rest.start..rest.end.min(rest.start + room);
            let start = span.start + (tokens.start - span.tokens.start) as u32;
            let is_end = tokens.end == rest.end;
            rest.start = tokens.end;
            part.batch.push(span.slot, start, &batch.tokens[tokens], is_end && span.sample);
            part.ends.push(is_end.then_some(index));
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    //! Parts hold every token once, in order, and know their ends.
    use loquent_infer::runner::Slot;

    use super::*;

    #[test]
    fn parts_cover_the_spans() {
        let mut batch = Batch::default();
        let tokens: Vec<u32> = (0..100).collect();
        batch.push(Slot(0), 5, &tokens[..1], true);
        batch.push(Slot(1), 0, &tokens[1..90], false);
        batch.push(Slot(2), 7, &tokens[90..], true);
        let parts = cut(&batch, &[0, 1, 2]);
        let joined: Vec<u32> = parts.iter().flat_map(|p| p.batch.tokens.clone()).collect();
        assert_eq!(joined, tokens);
        assert!(parts.iter().all(|part| part.batch.tokens.len() <= SAFE_TOKENS));
        let ends: Vec<usize> =
            parts.iter().flat_map(|p| p.ends.iter().flatten().copied()).collect();
        assert_eq!(ends, [0, 1, 2]);
        let second = &parts[1].batch.spans[0];
        assert_eq!((second.slot, second.start, second.sample), (Slot(1), 31, false));
        assert_eq!(cut(&batch, &[2])[0].batch.tokens, tokens[90..]);
    }
}
