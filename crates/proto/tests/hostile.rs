//! Peers that say anything: no panic, no busy loop, no growth.

use loquent_proto::frame::{Ack, Data, Frame};
use loquent_proto::{
    Delta, Error, Micros, Receiver, ReceiverConfig, ReceiverEvent, Sender, SenderConfig, grease,
};
use proptest::prelude::*;

fn any_ack() -> impl Strategy<Value = Ack> {
    let small = || prop_oneof![0u64..40, 0u64..3_000, 0..=(1u64 << 53) - 1];
    let ranges = prop::collection::vec((1u64..300, 1u64..300), 0..=8);
    (
        (small(), small(), prop::option::of(small()), small()),
        small(),
        small(),
        any::<[bool; 2]>(),
        ranges,
    )
        .prop_map(|((number, cumulative, largest, missing), unshown, pace, flags, ranges)| {
            let mut from = cumulative;
            let ranges = ranges.into_iter().map(|(gap, len)| {
                let start = from + gap;
                from = start + len;
                start..from
            });
            Ack {
                channel: 1,
                number,
                cumulative,
                largest: largest.filter(|n| *n < (1 << 53) - 1),
                missing,
                hold: Micros(missing % 1_000_000),
                unshown: unshown % (cumulative + 1),
                pace,
                hidden: flags[0],
                probe: flags[1],
                ranges: ranges.collect(),
            }
        })
}

/// The frame, within a PADDED one if its length is odd.
fn encoded(frame: &Frame<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    frame.encode(false, &mut out);
    if out.len() % 2 == 1 {
        let len = out.len().next_multiple_of(64);
        out.clear();
        frame.encode_padded(false, len, &mut out);
    }
    out
}

/// Sends what is due; returns how many datagrams.
fn drain(sender: &mut Sender, now: Micros) -> usize {
    sender.handle_timeout(now);
    std::iter::from_fn(|| sender.poll_transmit(now, &mut Vec::new())).count()
}

proptest! {
    #[test]
    fn a_sender_survives_any_acknowledgement(
        steps in prop::collection::vec(
            (0u64..3_000, 0usize..300, any_ack(), prop::collection::vec(any::<u8>(), 0..40)), 0..60,
        ),
        resumes in prop::collection::vec(0u64..4_000, 60),
    ) {
        let config = SenderConfig { max_log_bytes: 3_000, ..SenderConfig::default() };
        let mut sender = Sender::new(Micros(0), 1, config);
        let mut now = Micros(0);
        for (i, (wait_ms, text, ack, garbage)) in steps.into_iter().enumerate() {
            now += Micros::from_ms(wait_ms);
            let _ = sender.push(now, &Delta::text("x".repeat(text)));
            let _ = sender.handle_datagram(now, &encoded(&Frame::Ack(ack)));
            let _ = sender.handle_datagram(now, &garbage);
            if i % 7 == 6 {
                let _ = sender.resume(now, 1, resumes[i]);
            }
            prop_assert!(drain(&mut sender, now) <= 8);
            prop_assert!(sender.poll_timeout().is_none_or(|at| at > now));
            prop_assert!(sender.cumulative() <= sender.log().head());
        }
    }

    #[test]
    fn a_sender_never_runs_for_ever(acks in prop::collection::vec(any_ack(), 0..10)) {
        let mut sender = Sender::new(Micros(0), 1, SenderConfig::default());
        let mut now = Micros(0);
        for ack in acks {
            sender.push(now, &Delta::text("token")).unwrap();
            drain(&mut sender, now);
            let _ = sender.handle_datagram(now, &encoded(&Frame::Ack(ack)));
            now += Micros::from_ms(50);
        }
        for _ in 0..1_000 {
            let Some(at) = sender.poll_timeout() else { return Ok(()) };
            now = now.max(at);
            drain(&mut sender, now);
        }
        prop_assert!(false, "still sending at {}", now);
    }

    #[test]
    fn a_receiver_survives_any_data(
        steps in prop::collection::vec(
            (
                0u64..3_000,
                prop_oneof![0u64..30, any::<u64>().prop_map(|n| n >> 12)],
                prop_oneof![0u64..300, any::<u64>().prop_map(|n| n >> 12)],
                prop::collection::vec(prop_oneof![0u8..12, 0x80u8..0x84, any::<u8>()], 0..200),
            ),
            0..60,
        ),
    ) {
        let mut receiver = Receiver::new(Micros(0), 1, 0, ReceiverConfig::default());
        let (mut now, mut ends) = (Micros(0), 0);
        for (wait_ms, packet, offset, bytes) in steps {
            now += Micros::from_ms(wait_ms);
            let data = Data { channel: 1, packet, offset, bytes: &bytes };
            let _ = receiver.handle_datagram(now, &encoded(&Frame::Data(data)));
            let _ = receiver.handle_datagram(now, &bytes);
            let mut unassigned = Vec::new();
            grease::put_frame(offset, 1, &mut unassigned);
            let ignored = receiver.handle_datagram(now, &unassigned);
            prop_assert_eq!(ignored, Err(Error::Malformed));
            receiver.handle_timeout(now);
            while let Some(event) = receiver.poll_event() {
                let end = matches!(event, ReceiverEvent::Complete | ReceiverEvent::Failed(_));
                ends += u32::from(end);
            }
            prop_assert!(ends <= 1, "an answer ends once");
            let mut datagram = Vec::new();
            let sent = std::iter::from_fn(|| receiver.poll_transmit(now, &mut datagram)).count();
            prop_assert!(sent <= 2 && datagram.len() <= 400);
            prop_assert!(receiver.poll_timeout().is_none_or(|at| at > now));
        }
    }
}

/// What a later version may add to a log, anywhere in it, changes nothing for this one (D-3.5).
#[test]
fn grease_between_records_is_skipped() {
    let deltas: Vec<Delta> =
        (0..50).map(|i| Delta::text(format!(" {i}"))).chain([Delta::Done]).collect();
    let mut log = Vec::new();
    for (i, delta) in deltas.iter().enumerate() {
        grease::put_record((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15), &mut log);
        delta.encode(&mut log).expect("short");
    }
    let mut receiver = Receiver::new(Micros(0), 1, 0, ReceiverConfig::default());
    for (packet, piece) in log.chunks(7).enumerate() {
        let (packet, offset) = (packet as u64, 7 * packet as u64);
        let data = Data { channel: 1, packet, offset, bytes: piece };
        receiver.handle_datagram(Micros(packet), &encoded(&Frame::Data(data))).expect("a frame");
    }
    let shown = std::iter::from_fn(|| receiver.poll_event()).filter_map(|event| match event {
        ReceiverEvent::Delta { delta, .. } => Some(delta),
        _ => None,
    });
    assert_eq!(shown.collect::<Vec<_>>(), deltas);
}
