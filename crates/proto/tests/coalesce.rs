//! The stream interval: what is flushed when, and that nothing is lost.

use loquent_proto::{Coalescer, Error, Micros, StreamInterval};
use proptest::prelude::*;

fn every(n: u32) -> StreamInterval {
    n.to_string().parse().expect("a positive interval")
}

/// Runs `pieces` (one per token; empty: no text) and returns what was flushed, with the
/// number of the token at which it left; the end flushes the rest.
fn run(mut c: Coalescer, pieces: &[&str], clear: impl Fn(usize) -> bool) -> Vec<(usize, String)> {
    let (mut held, mut out) = (String::new(), Vec::new());
    for (i, piece) in pieces.iter().enumerate() {
        held.push_str(piece);
        if c.on_token(Micros::from_ms(i as u64), !piece.is_empty(), clear(i)) {
            out.push((i, std::mem::take(&mut held)));
            c.on_flush();
        }
    }
    c.on_flush();
    if !held.is_empty() {
        out.push((pieces.len(), held));
    }
    out
}

#[test]
fn intervals_are_read_and_written() {
    for text in ["1", "8", "4294967295", "auto"] {
        assert_eq!(text.parse::<StreamInterval>().map(|i| i.to_string()), Ok(text.to_owned()));
    }
    for text in ["0", "-1", "", "Auto", "1.5", "4294967296", " 1"] {
        assert_eq!(text.parse::<StreamInterval>(), Err(Error::BadInterval), "{text:?}");
    }
    assert_eq!(StreamInterval::default(), every(1));
}

#[test]
fn first_text_leaves_at_once_then_every_fourth_token() {
    let pieces = ["", "a", "b", "c", "d", "e", "", "", "", "f"];
    let flushed = run(Coalescer::new(every(4), None), &pieces, |_| true);
    let expected = [(1, "a"), (5, "bcde"), (9, "f")];
    assert_eq!(flushed, expected.map(|(i, s)| (i, s.to_owned())));
}

#[test]
fn tokens_without_text_count_but_flush_nothing() {
    let pieces = ["a", "", "", "", "", "b", "c"];
    let flushed = run(Coalescer::new(every(3), None), &pieces, |_| true);
    assert_eq!(flushed, [(0, "a"), (5, "b"), (7, "c")].map(|(i, s)| (i, s.to_owned())));
}

#[test]
fn auto_merges_only_under_backlog() {
    let pieces = ["a", "b", "c", "d", "e"];
    let flushed = run(Coalescer::new(StreamInterval::Auto, None), &pieces, |i| i != 1 && i != 2);
    let expected = [(0, "a"), (3, "bcd"), (4, "e")];
    assert_eq!(flushed, expected.map(|(i, s)| (i, s.to_owned())));
    let mut c = Coalescer::new(StreamInterval::Auto, None);
    assert!(c.on_token(Micros(0), true, false), "the first text waits for nothing");
    c.on_flush();
    assert!(!c.on_clear(), "nothing is held");
    assert!(!c.on_token(Micros(1), true, false));
    assert!(c.on_clear());
}

#[test]
fn max_delay_bounds_what_is_held() {
    let mut c = Coalescer::new(every(100), Some(Micros::from_ms(50)));
    assert!(c.on_token(Micros(0), true, true));
    c.on_flush();
    assert_eq!(c.deadline(), None);
    assert!(!c.on_token(Micros::from_ms(10), false, true));
    assert_eq!(c.deadline(), None, "a token without content holds nothing");
    assert!(!c.on_token(Micros::from_ms(20), true, true));
    assert!(!c.on_token(Micros::from_ms(30), true, true));
    assert_eq!(c.deadline(), Some(Micros::from_ms(70)));
    assert!(c.on_token(Micros::from_ms(70), false, true), "overdue at a later token");
}

proptest! {
    #[test]
    fn joined_text_is_identical_and_flushes_are_rare(
        pieces in prop::collection::vec("[a-z]{0,3}", 0..60),
        n in 1u32..12,
        auto in any::<bool>(),
        clear in prop::collection::vec(any::<bool>(), 60),
    ) {
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        let interval = if auto { StreamInterval::Auto } else { every(n) };
        let flushed = run(Coalescer::new(interval, None), &pieces, |i| clear[i]);
        let joined: String = flushed.iter().map(|(_, s)| s.as_str()).collect();
        prop_assert_eq!(joined, pieces.concat());
        let first = pieces.iter().position(|p| !p.is_empty());
        prop_assert_eq!(flushed.first().map(|f| f.0), first);
        if !auto {
            let ends = flushed.iter().take_while(|f| f.0 < pieces.len());
            let at: Vec<usize> = ends.map(|f| f.0).collect();
            prop_assert!(at.windows(2).all(|w| w[1] - w[0] >= n as usize));
        }
    }

    #[test]
    fn nothing_is_held_beyond_the_delay(
        gaps in prop::collection::vec((0u64..40, any::<bool>(), any::<bool>()), 1..80),
        n in 1u32..50,
        auto in any::<bool>(),
    ) {
        let max_delay = Micros::from_ms(60);
        let interval = if auto { StreamInterval::Auto } else { every(n) };
        let mut c = Coalescer::new(interval, Some(max_delay));
        let (mut now, mut oldest) = (Micros(0), None);
        for (gap_ms, payload, clear) in gaps {
            let next = now + Micros::from_ms(gap_ms);
            if let Some(deadline) = c.deadline().filter(|d| *d < next) {
                prop_assert!(deadline.since(oldest.unwrap()) <= max_delay);
                c.on_flush();
                oldest = None;
            }
            now = next;
            if payload { oldest = oldest.or(Some(now)); }
            if c.on_token(now, payload, clear) {
                c.on_flush();
                oldest = None;
            }
            prop_assert_eq!(c.is_holding(), oldest.is_some());
        }
    }
}
