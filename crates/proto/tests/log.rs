//! The delta log and its reassembly: round trips, bounds, hostile input.

use loquent_proto::delta::MAX_RECORD_BYTES;
use loquent_proto::log::END_RESERVE_BYTES;
use loquent_proto::{Assembler, AssemblerLimits, Delta, Error, Log, Progress};
use proptest::prelude::*;

fn any_delta() -> impl Strategy<Value = Delta> {
    let choice = prop_oneof![Just(0u32), 1..20u32, any::<u32>()];
    let tokens = prop_oneof![Just(1u32), 0..9u32, any::<u32>()];
    let count = 0..=(1u64 << 53) - 1;
    let text = any::<String>();
    prop_oneof![
        text.prop_map(|meta| Delta::Open { meta }),
        (choice.clone(), tokens.clone(), text)
            .prop_map(|(choice, tokens, text)| { Delta::Text { choice, tokens, text } }),
        (choice.clone(), tokens.clone(), text)
            .prop_map(|(choice, tokens, text)| { Delta::Reasoning { choice, tokens, text } }),
        (choice.clone(), any::<u32>(), tokens, text, text, text).prop_map(
            |(choice, index, tokens, id, name, arguments)| Delta::ToolCall {
                choice,
                index,
                tokens,
                id,
                name,
                arguments
            }
        ),
        (choice.clone(), text).prop_map(|(choice, json)| Delta::Logprobs { choice, json }),
        (choice.clone(), text).prop_map(|(choice, reason)| Delta::Finish { choice, reason }),
        (choice, text).prop_map(|(choice, json)| Delta::Other { choice, json }),
        text.prop_map(|why| Delta::Pause { why }),
        (proptest::array::uniform5(any::<u32>()), proptest::option::of(0..u32::MAX)).prop_map(
            |([queued, total, cached, processed, elapsed_ms], eta_ms)| {
                Delta::Progress(Progress { queued, eta_ms, total, cached, processed, elapsed_ms })
            }
        ),
        [count.clone(), count.clone(), count.clone(), count].prop_map(
            |[prompt, completion, cached, reasoning]| Delta::Usage {
                prompt,
                completion,
                cached,
                reasoning
            }
        ),
    ]
}

fn log_of(deltas: &[Delta]) -> (Log, Vec<u8>) {
    let mut log = Log::new(1 << 22);
    for delta in deltas {
        log.push(delta).expect("room");
    }
    let mut bytes = Vec::new();
    log.read(0..log.head(), &mut bytes).expect("all of it");
    (log, bytes)
}

fn drain(assembler: &mut Assembler) -> Vec<Delta> {
    std::iter::from_fn(|| assembler.poll().expect("a sound log")).map(|(_, d)| d).collect()
}

#[test]
fn a_token_of_text_costs_one_byte_beside_it() {
    let (_, bytes) = log_of(&[Delta::text("hello")]);
    assert_eq!(bytes, b"\x85hello");
}

#[test]
fn a_full_log_refuses_until_the_reader_acknowledges_but_always_takes_its_end() {
    let mut log = Log::new(100);
    let delta = Delta::text("x".repeat(29));
    for _ in 0..3 {
        log.push(&delta).expect("room");
    }
    assert_eq!(log.push(&delta), Err(Error::LogFull));
    log.acknowledge(30).expect("exists");
    assert_eq!(log.base(), 0, "kept for a resume while there is room");
    assert_eq!(log.push(&delta), Ok(90..120));
    assert_eq!(log.base(), 20, "no more is dropped than must be");
    assert_eq!(log.read(19..40, &mut Vec::new()), Err(Error::OffsetUnavailable));
    let message = "y".repeat(END_RESERVE_BYTES - 20);
    log.push(&Delta::Error { code: "slow".into(), message }).expect("reserved");
    assert_eq!(log.push(&delta), Err(Error::LogEnded));
    assert_eq!(log.acknowledge(log.head() + 1), Err(Error::OffsetUnavailable));
}

#[test]
fn long_text_is_split_at_characters_and_counted_once() {
    let text = "é".repeat(MAX_RECORD_BYTES);
    let (_, bytes) = log_of(&[Delta::Text { choice: 3, tokens: 7, text: text.clone() }]);
    let mut assembler = Assembler::new(0, AssemblerLimits::default());
    assembler.insert(0, &bytes).expect("room");
    let (mut joined, mut counted) = (String::new(), 0);
    for delta in drain(&mut assembler) {
        counted += delta.tokens();
        let Delta::Text { choice: 3, text, .. } = delta else { panic!("not text: {delta:?}") };
        joined.push_str(&text);
    }
    assert_eq!((joined, counted), (text, 7));
    let too_long = Delta::Logprobs { choice: 0, json: "1".repeat(MAX_RECORD_BYTES) };
    assert_eq!(Log::new(1 << 20).push(&too_long), Err(Error::DeltaTooLong));
}

#[test]
fn unknown_kinds_are_skipped_and_other_versions_refused() {
    let mut assembler = Assembler::new(0, AssemblerLimits::default());
    assembler.insert(0, b"\x03\x0dxx\x02\x01a").expect("room");
    assert_eq!(assembler.poll(), Ok(Some((7, Delta::text("a")))));
    assembler.insert(7, b"\x02\x00\x02").expect("room");
    assert_eq!(assembler.poll(), Err(Error::UnknownVersion));
    assert_eq!(assembler.insert(10, b"\x02\x01a"), Err(Error::UnknownVersion), "for good");
}

#[test]
fn a_log_ends_with_its_last_record() {
    let mut assembler = Assembler::new(0, AssemblerLimits::default());
    assembler.insert(0, b"\x01\x0a\x02\x01a").expect("room");
    assert_eq!(assembler.poll(), Ok(Some((2, Delta::Done))));
    assert!(assembler.is_ended());
    assert_eq!(assembler.poll(), Ok(None));
}

proptest! {
    #[test]
    fn deltas_round_trip(deltas in prop::collection::vec(any_delta(), 0..20)) {
        let (_, bytes) = log_of(&deltas);
        let mut assembler = Assembler::new(0, AssemblerLimits::default());
        assembler.insert(0, &bytes).unwrap();
        prop_assert_eq!(drain(&mut assembler), deltas);
        prop_assert_eq!(assembler.cursor(), bytes.len() as u64);
    }

    #[test]
    fn any_order_and_any_overlap_give_the_same_deltas(
        deltas in prop::collection::vec(any_delta(), 1..12),
        cuts in prop::collection::vec((any::<prop::sample::Index>(), 1usize..300), 0..200),
    ) {
        let (_, bytes) = log_of(&deltas);
        let mut assembler = Assembler::new(0, AssemblerLimits::default());
        let mut out = Vec::new();
        for (at, len) in cuts {
            let at = at.index(bytes.len());
            let piece = &bytes[at..(at + len).min(bytes.len())];
            let _ = assembler.insert(at as u64, piece);
            out.extend(drain(&mut assembler));
            prop_assert!(assembler.held().count() <= AssemblerLimits::default().max_ranges);
        }
        assembler.insert(0, &bytes).unwrap();
        out.extend(drain(&mut assembler));
        prop_assert_eq!(out, deltas);
        prop_assert_eq!(assembler.held().count(), 0);
    }

    #[test]
    fn hostile_ranges_stay_within_the_limits(
        ranges in prop::collection::vec(
            (prop_oneof![0u64..400, any::<u64>()], prop::collection::vec(any::<u8>(), 0..120)), 0..80,
        ),
        polls in any::<bool>(),
    ) {
        let limits = AssemblerLimits { max_bytes: 500, max_ranges: 4 };
        let mut assembler = Assembler::new(0, limits);
        for (offset, bytes) in ranges {
            let _ = assembler.insert(offset, &bytes);
            if polls { while let Ok(Some(_)) = assembler.poll() {} }
            let held: Vec<_> = assembler.held().collect();
            prop_assert!(held.len() <= 4);
            let waiting = assembler.cumulative() - assembler.cursor();
            prop_assert!(waiting + held.iter().map(|r| r.end - r.start).sum::<u64>() <= 500);
            prop_assert!(held.windows(2).all(|w| w[0].end < w[1].start));
            prop_assert!(held.iter().all(|r| r.start > assembler.cumulative()));
        }
    }

    #[test]
    fn any_body_is_read_or_refused(body in prop::collection::vec(any::<u8>(), 0..80)) {
        if let Ok(Some(delta)) = Delta::decode_body(&body) {
            let mut record = Vec::new();
            delta.encode(&mut record).unwrap();
            prop_assert_eq!(Delta::decode(&record), Ok(Some((record.len(), Some(delta)))));
        }
    }
}
