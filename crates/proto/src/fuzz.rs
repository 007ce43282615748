//! Fuzz targets of the delivery protocol: input from either end, and event streams.

use alloc::string::String;
use alloc::vec::Vec;

use crate::frame::Frame;
use crate::message::MessageHead;
use crate::sse::Parser;
use crate::{
    Assembler, AssemblerLimits, Delta, Micros, Receiver, ReceiverConfig, ReceiverEvent, Sender,
    SenderConfig, json,
};

#[path = "../../../fuzz/target.rs"]
mod target;
pub use target::{Target, pieces};

/// The targets of this crate.
pub const TARGETS: &[Target] = &[
    Target { name: "assembler", run: assembler, base_kib: 64, per_byte: 16 },
    Target { name: "delta", run: delta, base_kib: 4, per_byte: 16 },
    Target { name: "event_stream", run: event_stream, base_kib: 16, per_byte: 64 },
    Target { name: "frame", run: frame, base_kib: 4, per_byte: 16 },
    Target { name: "receiver", run: receiver, base_kib: 64, per_byte: 64 },
    Target { name: "sender", run: sender, base_kib: 64, per_byte: 512 },
];

/// Any ranges in any order stay within the limits, and no delta is delivered twice.
fn assembler(input: &[u8]) {
    let limits = AssemblerLimits { max_bytes: 1_000, max_ranges: 4 };
    let mut assembler = Assembler::new(0, limits);
    let mut cursor = 0;
    // Each range: offset (two bytes), length (one), bytes.
    let mut rest = input;
    while let [high, low, len, tail @ ..] = rest {
        let (bytes, after) = tail.split_at(tail.len().min(usize::from(*len)));
        rest = after;
        let _ = assembler.insert(u64::from(u16::from_be_bytes([*high, *low])), bytes);
        while let Ok(Some((offset, _))) = assembler.poll() {
            assert!(offset > cursor);
            cursor = offset;
        }
        let waiting = (assembler.cumulative() - assembler.cursor()) as usize;
        assert!(waiting + assembler.held_bytes() <= limits.max_bytes);
        assert!(assembler.held().count() <= limits.max_ranges);
    }
}

/// Any bytes of a log decode or are rejected; a decoded delta encodes to the same meaning.
fn delta(input: &[u8]) {
    let mut rest = input;
    while let Ok(Some((len, delta))) = Delta::decode(rest) {
        assert!(0 < len && len <= rest.len());
        rest = &rest[len..];
        let Some(delta) = delta else { continue };
        let mut again = Vec::new();
        delta.encode(&mut again).expect("what fitted a record fits one again");
        assert!(again.len() <= len);
        assert_eq!(Delta::decode(&again), Ok(Some((again.len(), Some(delta)))));
    }
    let _ = MessageHead::read(input, 1_000);
    if let Ok(text) = core::str::from_utf8(input) {
        let _ = json::members(text);
    }
}

/// An event stream parses the same however it is split, and little of it is buffered.
fn event_stream(input: &[u8]) {
    let whole: Vec<u8> = pieces(input).flatten().copied().collect();
    let events = events(core::iter::once(whole.as_slice()));
    assert_eq!(events, self::events(whole.chunks(1)));
    assert_eq!(events, self::events(pieces(input)));
}

/// Returns data, id and type of each event in `parts`, and whether all of them were parsed.
fn events<'a>(parts: impl Iterator<Item = &'a [u8]>) -> (bool, Vec<[Vec<u8>; 3]>) {
    const LIMIT_BYTES: usize = 256;
    let mut parser = Parser::new(LIMIT_BYTES);
    let mut events = Vec::new();
    for part in parts {
        let outcome = parser.push(part, |event| {
            let parts = [event.data, event.last_event_id, event.event_type];
            events.push(parts.map(<[u8]>::to_vec));
        });
        assert!(parser.buffered_bytes() <= 4 * LIMIT_BYTES);
        if outcome.is_err() {
            return (false, events);
        }
    }
    (true, events)
}

/// Any datagram decodes or is rejected; a decoded frame encodes to the same frame, padded or not.
fn frame(datagram: &[u8]) {
    let (peeked, _) = (Frame::peek_channel(datagram), Frame::decode(datagram, true));
    let Ok(frame) = Frame::decode(datagram, false) else { return };
    assert_eq!(peeked, Some(frame.channel()));
    let checked = datagram[0] & 8 != 0;
    let (mut again, mut padded) = (Vec::new(), Vec::new());
    frame.encode(checked, &mut again);
    assert!(again.len() <= datagram.len());
    assert_eq!(Frame::decode(&again, checked).as_ref(), Ok(&frame));
    frame.encode_padded(checked, again.len() + 3, &mut padded);
    assert!(padded.len() >= again.len() + 3);
    assert_eq!(Frame::peek_channel(&padded), peeked);
    assert_eq!(Frame::decode(&padded, checked), Ok(frame));
}

/// A receiver with any input at any time neither panics nor stays busy.
fn receiver(input: &[u8]) {
    let mut receiver = Receiver::new(Micros(0), 1, 0, ReceiverConfig::default());
    let (mut now, mut complete) = (Micros(0), 0);
    // Each datagram: wait in 10 ms (one byte), length (one), bytes.
    let mut rest = input;
    while let [wait, len, tail @ ..] = rest {
        let (datagram, after) = tail.split_at(tail.len().min(usize::from(*len)));
        rest = after;
        now += Micros::from_ms(u64::from(*wait) * 10);
        let _ = receiver.handle_datagram(now, datagram);
        receiver.handle_timeout(now);
        while let Some(event) = receiver.poll_event() {
            complete += u32::from(event == ReceiverEvent::Complete);
        }
        let mut sent = 0;
        while receiver.poll_transmit(now, &mut Vec::new()).is_some() {
            sent += 1;
        }
        assert!(sent <= 2 && complete <= 1);
        assert!(receiver.poll_timeout().is_none_or(|at| at > now));
    }
}

/// A sender with any input neither panics nor sends without end.
fn sender(input: &[u8]) {
    let config = SenderConfig { max_log_bytes: 2_000, ..SenderConfig::default() };
    let mut sender = Sender::new(Micros(0), 1, config);
    let mut now = Micros(0);
    // Each step: wait in 10 ms (one byte), length of text (one), of a datagram (one), bytes.
    let mut rest = input;
    while let [wait, text, len, tail @ ..] = rest {
        let (datagram, after) = tail.split_at(tail.len().min(usize::from(*len)));
        rest = after;
        now += Micros::from_ms(u64::from(*wait) * 10);
        let text: String = core::iter::repeat_n('x', usize::from(*text)).collect();
        let _ = sender.push(now, &Delta::text(text));
        let _ = sender.handle_datagram(now, datagram);
        sender.handle_timeout(now);
        let mut sent = 0;
        while sender.poll_transmit(now, &mut Vec::new()).is_some() {
            sent += 1;
        }
        assert!(sent <= 8, "{sent} packets at once");
        assert!(sender.poll_timeout().is_none_or(|at| at > now));
    }
}

#[test]
fn corpora() {
    target::run_corpora(TARGETS);
}
