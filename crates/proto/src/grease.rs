//! Values without meaning that either end may send, so that the other keeps skipping unknown
//! values: rule S-2.7 of `spec/session.md`.
//!
//! These values will never be assigned a meaning. `draw` is a random number from the caller that
//! picks one of them.

use alloc::vec::Vec;

use crate::frame::{ack_flags, put_unassigned};
use crate::wire::{put_bytes, put_int};

/// Member name allowed in any JSON object.
pub const JSON_MEMBER: &str = "grease";

/// Unassigned bit of an ACK frame's flags (D-5.7).
pub const ACK_FLAG: u8 = 0x80;

const FIRST: u64 = 27;
const STEP: u64 = 31;

/// Number of kinds of frames and records to pick from: too many for a receiver to list.
const KINDS: u64 = 1 << 16;

/// Returns a message type above 64: receivers skip the message (S-2.1).
pub const fn message_type(draw: u64) -> u8 {
    // 31 n + 27 for n from 2 to 7: what a byte holds.
    (FIRST + STEP * (2 + draw % 6)) as u8
}

/// Appends a message that receivers skip (S-2.1).
pub fn put_message(draw: u64, out: &mut Vec<u8>) {
    out.push(message_type(draw));
    put_bytes(out, &draw.to_be_bytes()[..(draw >> 61) as usize]);
}

/// Returns a kind of frames behind kind 7 (D-2.2), or of records behind kind 15 (D-3.1).
pub const fn kind(draw: u64) -> u64 {
    FIRST + STEP * (draw % KINDS)
}

/// Appends a frame of `channel` that receivers ignore (D-2.2, D-2.5), with up to 15 bytes of
/// fields.
pub fn put_frame(draw: u64, channel: u64, out: &mut Vec<u8>) {
    // Of another length each time, so that nobody can take the fields for something.
    let fields = draw.to_be_bytes().repeat(2);
    let len = (draw >> 60) as usize;
    put_unassigned(kind(draw), channel, &fields[..len], out);
}

/// Appends a record that receivers skip (D-3.5), with up to 15 bytes of fields. Such a log differs
/// from the generated one, so servers write no such records; only tests do.
pub fn put_record(draw: u64, out: &mut Vec<u8>) {
    const TAG: u8 = 0x0f; // choice 0, kind 15
    let mut body = Vec::from([TAG]);
    put_int(&mut body, kind(draw));
    body.extend_from_slice(&draw.to_be_bytes().repeat(2)[..(draw >> 60) as usize]);
    put_bytes(out, &body);
}

/// Sets [`ACK_FLAG`] in `frame` if it is an ACK frame without checksum, as sent over QUIC.
pub fn mark_ack(frame: &mut [u8]) {
    if let Some(flags) = ack_flags(frame) {
        *flags |= ACK_FLAG;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Ack, Frame};
    use crate::message::MessageHead;
    use crate::{Delta, Error};

    const DRAWS: [u64; 5] = [0, 1, 7, 0x7fff_ffff_ffff_ffff, u64::MAX];

    #[test]
    fn every_value_is_one_of_the_reserved_and_of_a_kind_to_skip() {
        for draw in DRAWS {
            assert!(message_type(draw) >= 64 && message_type(draw) % 31 == 27);
            assert!(kind(draw) >= 16 && kind(draw) % 31 == 27);
        }
        assert_eq!([message_type(0), message_type(5), message_type(6)], [89, 244, 89]);
    }

    #[test]
    fn a_grease_message_is_skipped() {
        for draw in DRAWS {
            let mut message = Vec::new();
            put_message(draw, &mut message);
            let head = MessageHead::read(&message, 64).unwrap().expect("it is whole");
            assert_eq!((head.kind, head.whole_len()), (None, message.len()), "{message:02x?}");
        }
    }

    #[test]
    fn a_grease_frame_is_refused_and_its_channel_is_not_looked_up() {
        for draw in DRAWS {
            let mut frame = Vec::new();
            put_frame(draw, 3, &mut frame);
            assert_eq!(Frame::decode(&frame, false), Err(Error::Malformed), "{frame:02x?}");
            assert_eq!(Frame::peek_channel(&frame), None);
        }
    }

    #[test]
    fn a_grease_record_is_skipped() {
        for draw in DRAWS {
            let mut record = Vec::new();
            put_record(draw, &mut record);
            assert_eq!(Delta::decode(&record), Ok(Some((record.len(), None))), "{record:02x?}");
        }
    }

    #[test]
    fn a_marked_ack_means_the_same_and_nothing_else_is_marked() {
        let ack = Frame::Ack(Ack { channel: 300, cumulative: 9, hidden: true, ..Ack::default() });
        let mut frame = Vec::new();
        ack.encode(false, &mut frame);
        mark_ack(&mut frame);
        assert_eq!(frame[1], 0x81);
        assert_eq!(Frame::decode(&frame, false), Ok(ack.clone()));
        let mut padded = Vec::new();
        ack.encode_in_steps(false, 32, &mut padded);
        mark_ack(&mut padded);
        assert_eq!((padded.len(), padded[3]), (32, 0x81));
        assert_eq!(Frame::decode(&padded, false), Ok(ack.clone()));
        for (other, checked) in [(ack, true), (Frame::Stop { channel: 1 }, false)] {
            let mut frame = Vec::new();
            other.encode(checked, &mut frame);
            let before = frame.clone();
            mark_ack(&mut frame);
            assert_eq!(frame, before);
        }
        mark_ack(&mut []);
    }
}
