//! Encoded messages decode to the same message; anything else is an error, whatever the bytes.

use loquent_infer::runner::{RunError, Sampled, Slot, Span};
use loquent_infer::sampling::{Logprobs, SampledToken, Sampling};
use loquent_infer::token::RowError;
use proptest::prelude::*;

use super::*;
use crate::KvType;
use crate::staged::StageSizes;
use crate::staged::auth::PROOF_BYTES;
use loquent_formats::gguf::split::StageKeys;

const FORMAT: RowFormat = RowFormat { dtype: Dtype::F32, width: 4, batch_tokens: 64 };

fn frame(message: &StageMessage, format: &RowFormat) -> Vec<u8> {
    let mut out = Vec::new();
    message.encode(format, &mut out);
    let len = u32::from_le_bytes(*out.first_chunk().unwrap()) as usize;
    assert_eq!(len, out.len() - 4);
    out.split_off(4)
}

fn spans(lens: &[usize]) -> Vec<Span> {
    let mut end = 0;
    let mut span = |(i, &len): (usize, &usize)| {
        let tokens = end..end + len;
        end += len;
        Span { slot: Slot(i as u16 * 3), start: i as u32 * 7, tokens, draft: 0, sample: i % 2 == 0 }
    };
    lens.iter().enumerate().map(&mut span).collect()
}

fn messages() -> impl Strategy<Value = StageMessage> {
    let timings = prop::collection::vec(any::<(u32, u32)>(), 0..4).prop_map(|timings| {
        timings
            .into_iter()
            .map(|(wait_us, compute_us)| StageTiming { wait_us, compute_us })
            .collect::<Vec<_>>()
    });
    let rows = (any::<u64>(), prop::collection::vec(1usize..8, 0..6), timings.clone()).prop_map(
        |(id, lens, timings)| {
            let floats = lens.iter().sum::<usize>() * FORMAT.width;
            let rows = (0..floats).map(|i| i as f32 * 0.5 - 3.0).collect();
            let failed = vec![(Slot(9), RowError::OutOfStep), (Slot(1), RowError::NonFiniteLogits)];
            StageMessage::Rows(Rows { id, spans: spans(&lens), failed, timings, rows })
        },
    );
    let top = prop::collection::vec((any::<u32>(), -9.0f32..0.0), 0..5);
    let sampled =
        (any::<u16>(), any::<u32>(), prop::option::of(top)).prop_map(|(slot, token, top)| {
            let logprobs = top.map(|top| Box::new(Logprobs { chosen: -1.5, top }));
            Sampled { slot: Slot(slot), outcome: Ok(SampledToken { token, logprobs }) }
        });
    let done = (any::<u64>(), prop::collection::vec(sampled, 0..6), timings.clone()).prop_map(
        |(id, rows, timings)| StageMessage::Done(Done { id, timings, outcome: Ok(rows) }),
    );
    let assign = (prop::collection::vec((any::<u32>(), -5.0f32..5.0), 0..5), any::<u64>())
        .prop_map(|(logit_bias, seed)| {
            let logprobs = seed.is_multiple_of(2).then_some(seed as u8);
            let logit_bias = logit_bias.into();
            let repeat_last_n = seed as u32;
            let sampling =
                Sampling { logit_bias, seed, logprobs, repeat_last_n, ..Sampling::default() };
            let (seen, latest) = (vec![(3, 1), (9, 4)], vec![9, 3, 9]);
            let sampler = SamplerParts { sampling, generated: seed / 3, seen, latest };
            StageMessage::Assign { slot: Slot(4), sampler: Box::new(sampler) }
        });
    let open = (any::<u16>(), any::<bool>(), "[a-z.:0-9]{0,40}").prop_map(
        |(index, next_is_inside, next)| {
            StageMessage::Open(Box::new(OpenSession {
                index,
                count: index / 2,
                next,
                next_is_inside,
                dtype: Dtype::Q8,
                slots: 8,
                kv_cells: 4096,
                context_tokens: 512,
                batch_tokens: 64,
                kv_type: KvType::F16,
                delay_us: 10_000,
                bytes_per_s: 1 << 40,
            }))
        },
    );
    let allow = (any::<u16>(), prop::collection::vec(any::<u32>(), 0..9))
        .prop_map(|(slot, allowed)| StageMessage::Allow { slot: Slot(slot), allowed });
    let aborted = (any::<u64>(), timings, ".{0,40}").prop_map(|(id, timings, text)| {
        StageMessage::Aborted { id, timings, error: RunError::Backend(text) }
    });
    let refused = ".{0,80}".prop_map(StageMessage::Refused);
    prop_oneof![rows, done, assign, open, allow, aborted, refused, handshakes(), short_messages()]
}

fn handshakes() -> impl Strategy<Value = StageMessage> {
    let bytes = any::<[u8; PROOF_BYTES]>;
    let role = prop_oneof![Just(DialerRole::Runner), Just(DialerRole::Peer)];
    let hello =
        (role, any::<u64>(), bytes(), bytes()).prop_map(|(role, session, proof, challenge)| {
            StageMessage::Hello { role, session, proof, challenge }
        });
    let opened = (any::<u64>(), 8u32.., any::<u16>(), any::<bool>()).prop_map(
        |(fingerprint, size, slots, shares_prefix)| {
            let keys = StageKeys { fingerprint, first_layer: 3, layers: 5, all_layers: size };
            StageMessage::Opened(StageSizes {
                keys,
                width: 64,
                vocab: size / 2,
                slots,
                kv_cells: size / 3,
                context_tokens: size / 4,
                batch_tokens: size / 5,
                shares_prefix,
            })
        },
    );
    prop_oneof![
        bytes().prop_map(StageMessage::Greeting),
        bytes().prop_map(StageMessage::Welcome),
        hello,
        opened,
    ]
}

fn short_messages() -> impl Strategy<Value = StageMessage> {
    let slot = || any::<u16>().prop_map(Slot);
    let totals = any::<[u64; 8]>().prop_map(|[a, b, c, d, e, f, g, h]| StageTotals {
        batches: a,
        spans: b,
        busy_us: c,
        wait_us: d,
        longest_wait_us: e,
        most_spans: f,
        sent_bytes: g,
        up_us: h,
    });
    prop_oneof![
        (slot(), slot(), any::<u32>()).prop_map(|(from, to, len)| StageMessage::Fork {
            from,
            to,
            len
        }),
        (slot(), any::<u32>()).prop_map(|(slot, len)| StageMessage::Truncate { slot, len }),
        Just(StageMessage::Wipe),
        any::<u64>().prop_map(StageMessage::Ping),
        (any::<u64>(), totals).prop_map(|(number, totals)| StageMessage::Pong(number, totals)),
    ]
}

#[test]
fn a_stage_cannot_claim_layers_that_the_model_does_not_have() {
    for (first_layer, layers, all_layers) in [(u32::MAX, 1, 5), (1, u32::MAX, 5), (3, 3, 5)] {
        let keys = StageKeys { fingerprint: 1, first_layer, layers, all_layers };
        let sizes = StageSizes {
            keys,
            width: 64,
            vocab: 9,
            slots: 1,
            kv_cells: 1,
            context_tokens: 1,
            batch_tokens: 1,
            shares_prefix: true,
        };
        let bytes = frame(&StageMessage::Opened(sizes), &FORMAT);
        let wrong = StageMessage::decode(&bytes, &FORMAT);
        assert_eq!(wrong, Err(Malformed("layers that the model does not have")));
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(message in messages()) {
        prop_assert_eq!(StageMessage::decode(&frame(&message, &FORMAT), &FORMAT), Ok(message));
    }

    #[test]
    fn every_cut_and_every_addition_is_an_error(message in messages(), share in 0.0f64..1.0) {
        let whole = frame(&message, &FORMAT);
        let cut = ((whole.len() - 1) as f64 * share) as usize;
        prop_assert!(StageMessage::decode(&whole[..cut], &FORMAT).is_err());
        prop_assert!(StageMessage::decode(&[&whole[..], &[0]].concat(), &FORMAT).is_err());
    }

    #[test]
    fn no_bytes_make_it_panic(
        kind in 0u8..40,
        bytes in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let frame = [&[kind][..], &bytes].concat();
        let _ = StageMessage::decode(&frame, &FORMAT);
        let _ = StageMessage::decode(&frame, &RowFormat { dtype: Dtype::Q8, ..FORMAT });
        let _ = StageMessage::decode(&frame, &RowFormat::CLOSED);
    }

    #[test]
    fn changed_bytes_never_panic(message in messages(), at in 0usize..200, value: u8) {
        let mut bytes = frame(&message, &FORMAT);
        let at = at % bytes.len();
        bytes[at] = value;
        let _ = StageMessage::decode(&bytes, &FORMAT);
    }

    #[test]
    fn rounding_stays_within_its_step(floats in prop::collection::vec(-300.0f32..300.0, 1..100)) {
        let most = floats.iter().fold(0f32, |most, x| most.max(x.abs()));
        let steps = [0.0, most / 1024.0, most / 127.0];
        for (dtype, step) in [Dtype::F32, Dtype::F16, Dtype::Q8].into_iter().zip(steps) {
            let mut bytes = Vec::new();
            dtype.encode(&floats, &mut bytes);
            prop_assert_eq!(bytes.len(), dtype.bytes(floats.len()));
            let read = dtype.decode(&bytes, floats.len()).unwrap();
            for (x, y) in floats.iter().zip(&read) {
                prop_assert!((x - y).abs() <= step * 0.51, "{dtype:?} made {y} of {x}");
            }
        }
    }
}

#[test]
fn broken_numbers_stay_broken_and_large_ones_finite() {
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Q8] {
        let mut bytes = Vec::new();
        dtype.encode(&[1.0, f32::NAN, 2.0], &mut bytes);
        assert!(dtype.decode(&bytes, 3).unwrap()[1].is_nan(), "{dtype:?}");
        bytes.clear();
        dtype.encode(&[1e9, -1e9], &mut bytes);
        assert!(dtype.decode(&bytes, 2).unwrap().iter().all(|x| x.is_finite()), "{dtype:?}");
    }
}

#[test]
fn spans_beyond_the_batch_and_huge_counts_are_refused() {
    let rows = |spans| {
        StageMessage::Rows(Rows { id: 1, spans, failed: vec![], timings: vec![], rows: vec![] })
    };
    let long = Span { slot: Slot(0), start: 0, tokens: 0..65, draft: 0, sample: true };
    assert!(StageMessage::decode(&frame(&rows(vec![long]), &FORMAT), &FORMAT).is_err());
    let mut bytes = frame(&rows(vec![]), &FORMAT);
    // The count of timings is after kind and number.
    bytes[9..13].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(
        StageMessage::decode(&bytes, &FORMAT),
        Err(Malformed("a list longer than its message"))
    );
}
