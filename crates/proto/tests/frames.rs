//! Frames: round trips, and that any bytes are read or refused.

use loquent_proto::frame::{Ack, Data, Frame, Resume};
use loquent_proto::wire::put_int;
use loquent_proto::{Error, Micros};
use proptest::prelude::*;

const INT: std::ops::RangeInclusive<u64> = 0..=(1 << 53) - 1;

fn any_ack() -> impl Strategy<Value = Ack> {
    let ranges = prop::collection::vec((1u64..1000, 1u64..1000), 0..=8);
    let fields = (INT, INT, 0u64..1 << 40, prop::option::of(0u64..1 << 40), INT, 0u64..1 << 40);
    (fields, any::<u64>(), INT, any::<[bool; 2]>(), ranges).prop_map(
        |((channel, number, cumulative, largest, missing, hold), unshown, pace, flags, ranges)| {
            let mut from = cumulative;
            let ranges = ranges.into_iter().map(|(gap, len)| {
                let start = from + gap;
                from = start + len;
                start..from
            });
            Ack {
                channel,
                number,
                cumulative,
                largest,
                missing,
                hold: Micros(hold / 125 * 125),
                unshown: unshown % (cumulative + 1),
                pace,
                hidden: flags[0],
                probe: flags[1],
                ranges: ranges.collect(),
            }
        },
    )
}

fn round_trip(frame: &Frame<'_>, checked: bool) -> Result<(), TestCaseError> {
    let mut bytes = vec![];
    frame.encode(checked, &mut bytes);
    let read = Frame::decode(&bytes, checked);
    prop_assert_eq!(read.as_ref(), Ok(frame));
    prop_assert_eq!(Frame::peek_channel(&bytes), Some(frame.channel()));
    // D-2.6: as long as asked for, unless the frame does not fit.
    let plain = bytes.len();
    for len in [0, plain + 2, plain + 6, plain.next_multiple_of(64), 2_000] {
        let mut padded = vec![0xaa]; // what was there before stays
        frame.encode_padded(checked, len, &mut padded);
        let padded = &padded[1..];
        let as_asked = if len >= plain + 3 { len..=len } else { plain..=plain + 3 };
        prop_assert!(as_asked.contains(&padded.len()), "{} for {len}", padded.len());
        let read = Frame::decode(padded, checked);
        prop_assert_eq!(read.as_ref(), Ok(frame));
        prop_assert_eq!(Frame::peek_channel(padded), Some(frame.channel()));
        prop_assert_eq!(padded[0], if checked { 0x1d } else { 0x15 });
    }
    Ok(())
}

#[test]
fn a_usual_data_frame_costs_six_bytes() {
    let frame = Frame::Data(Data { channel: 1, packet: 300, offset: 2000, bytes: b"abc" });
    let mut bytes = Vec::new();
    frame.encode(false, &mut bytes);
    assert_eq!(bytes, b"\x10\x01\x41\x2c\x47\xd0abc");
}

#[test]
fn other_versions_and_kinds_are_refused() {
    assert_eq!(Frame::decode(&[], false), Err(Error::Truncated));
    assert_eq!(Frame::decode(&[0x20, 1, 0, 0], false), Err(Error::UnknownVersion));
    assert_eq!(Frame::decode(&[0x17, 1], false), Err(Error::Malformed));
    assert_eq!(Frame::decode(&[0x13, 1, 0], false), Err(Error::Malformed), "a byte too many");
    assert_eq!(Frame::decode(&[0x13, 1], true), Err(Error::BadChecksum), "none at all");
}

proptest! {
    #[test]
    fn data_round_trips(
        channel in INT, packet in INT, offset in 0u64..1 << 52,
        bytes in prop::collection::vec(any::<u8>(), 0..200), checked in any::<bool>(),
    ) {
        round_trip(&Frame::Data(Data { channel, packet, offset, bytes: &bytes }), checked)?;
    }

    #[test]
    fn acks_round_trip(ack in any_ack(), checked in any::<bool>()) {
        round_trip(&Frame::Ack(ack), checked)?;
    }

    #[test]
    fn control_frames_round_trip(
        channel in INT, offset in INT, id in any::<[u8; 16]>(), token in any::<[u8; 16]>(),
        checked in any::<bool>(),
    ) {
        round_trip(&Frame::Resume(Resume { channel, id, token, offset }), checked)?;
        round_trip(&Frame::Stop { channel }, checked)?;
        round_trip(&Frame::Gone { channel }, checked)?;
    }

    #[test]
    fn any_bytes_are_read_or_refused(
        first in prop_oneof![0x10u8..0x20, any::<u8>()],
        rest in prop::collection::vec(any::<u8>(), 0..100),
        require_check in any::<bool>(),
    ) {
        let mut bytes = vec![first];
        bytes.extend(rest);
        if let Ok(frame) = Frame::decode(&bytes, require_check) {
            let mut again = vec![];
            frame.encode(first & 8 != 0, &mut again);
            prop_assert!(again.len() <= bytes.len(), "what is read is written no longer");
            let read = Frame::decode(&again, require_check);
            prop_assert_eq!(read.as_ref(), Ok(&frame));
        }
    }

    #[test]
    fn flags_that_mean_nothing_are_ignored(ack in any_ack(), flags in any::<u8>()) {
        let mut bytes = vec![];
        Frame::Ack(ack.clone()).encode(false, &mut bytes);
        bytes[1] |= flags & !3; // D-5.7
        let read = Frame::decode(&bytes, false);
        prop_assert_eq!(read, Ok(Frame::Ack(ack)));
    }

    #[test]
    fn kinds_behind_kind_7_are_refused(
        kind in INT, rest in prop::collection::vec(any::<u8>(), 0..40), is_padded in any::<bool>(),
    ) {
        let mut frame = vec![0x17];
        put_int(&mut frame, kind);
        frame.extend(rest);
        if is_padded {
            let mut padded = vec![0x15];
            put_int(&mut padded, frame.len() as u64);
            padded.extend(frame);
            frame = padded;
        }
        prop_assert_eq!(Frame::decode(&frame, false), Err(Error::Malformed));
        prop_assert_eq!(Frame::peek_channel(&frame), None);
    }

    #[test]
    fn one_flipped_bit_is_noticed(
        ack in any_ack(), at in any::<prop::sample::Index>(), bit in 0u32..8,
        is_padded in any::<bool>(),
    ) {
        let mut bytes = vec![];
        match is_padded {
            true => Frame::Ack(ack).encode_padded(true, 256, &mut bytes),
            false => Frame::Ack(ack).encode(true, &mut bytes),
        }
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        prop_assert!(Frame::decode(&bytes, true).is_err());
    }
}
