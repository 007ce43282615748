//! `spec/vectors/`: what this implementation reads and writes is what the files say.
//!
//! The files are the contract with other implementations. After a change to the format,
//! `UPDATE_VECTORS=1 cargo test -p loquent-proto vectors` writes them anew.

use std::ops::Range;

use crate::spec::vector_file::{self, delta_json, hex};
use loquent_proto::delta::Delta;
use loquent_proto::frame::{Ack, Data, Frame, Resume};
use loquent_proto::wire::{FieldReader, put_int};
use loquent_proto::{
    Error, Log, Micros, Playout, Progress, Receiver, ReceiverConfig, ReceiverEvent, grease,
};
use serde_json::{Value, json};

fn check(name: &str, about: &str, cases: &[Value]) {
    vector_file::check(name, about, "delivery, version 1", cases);
}

fn error_name(error: Error) -> String {
    format!("{error:?}")
}

fn frame_json(frame: &Frame<'_>) -> Value {
    match frame {
        Frame::Data(Data { channel, packet, offset, bytes }) => json!({
            "kind": "data", "channel": channel, "packet": packet, "offset": offset,
            "bytes": hex(bytes),
        }),
        Frame::Ack(ack) => json!({
            "kind": "ack", "channel": ack.channel, "number": ack.number, "cumulative": ack.cumulative,
            "largest": ack.largest, "missing": ack.missing, "hold_us": ack.hold.0,
            "unshown": ack.unshown, "pace": ack.pace, "hidden": ack.hidden, "probe": ack.probe,
            "ranges": ack.ranges.iter().map(|r| [r.start, r.end]).collect::<Vec<_>>(),
        }),
        Frame::Resume(Resume { channel, id, token, offset }) => json!({
            "kind": "resume", "channel": channel, "id": hex(id), "token": hex(token),
            "offset": offset,
        }),
        Frame::Stop { channel } => json!({ "kind": "stop", "channel": channel }),
        Frame::Gone { channel } => json!({ "kind": "gone", "channel": channel }),
    }
}

#[test]
fn ints() {
    let values = [0, 1, 63, 64, 16_383, 16_384, (1 << 30) - 1, 1 << 30, (1 << 53) - 1];
    let mut cases: Vec<Value> = values.map(written_int).into();
    let unusual: [&[u8]; 6] =
        [b"\x40\x05", b"\x80\0\0\x05", b"", b"\x40", b"\xc0\0\0\0", b"\xc0\x20\0\0\0\0\0\0"];
    cases.extend(unusual.map(|bytes| match FieldReader::new(bytes).int() {
        Ok(value) => json!({ "hex": hex(bytes), "value": value }),
        Err(error) => json!({ "hex": hex(bytes), "error": error_name(error) }),
    }));
    check(
        "ints.json",
        "Integers (D-1.1, D-1.2): `hex` reads as `value` or fails; \
        with `shortest` it is also what a writer writes.",
        &cases,
    );
}

fn written_int(value: u64) -> Value {
    let mut out = Vec::new();
    put_int(&mut out, value);
    assert_eq!(FieldReader::new(&out).int(), Ok(value));
    json!({ "hex": hex(&out), "value": value, "shortest": true })
}

fn progress(queued: u32, eta_ms: Option<u32>, rest: [u32; 4]) -> Delta {
    let [total, cached, processed, elapsed_ms] = rest;
    Delta::Progress(Progress { queued, eta_ms, total, cached, processed, elapsed_ms })
}

fn deltas() -> Vec<Delta> {
    let text = |text: &str| text.to_owned();
    let tool = |tokens, id: &str, name: &str, arguments: &str| Delta::ToolCall {
        choice: 0,
        index: 1,
        tokens,
        id: id.into(),
        name: name.into(),
        arguments: arguments.into(),
    };
    vec![
        Delta::Open { meta: text(r#"{"id":"chatcmpl-1","model":"m"}"#) },
        Delta::text(" hello"),
        Delta::text(""),
        Delta::text("语言"),
        Delta::text("x".repeat(127)),
        Delta::text("x".repeat(128)),
        Delta::Text { choice: 0, tokens: 4, text: text(" four of them") },
        Delta::Text { choice: 14, tokens: 1, text: text("a") },
        Delta::Text { choice: 15, tokens: 1, text: text("a") },
        Delta::Text { choice: 300, tokens: 0, text: text("") },
        Delta::Text { choice: u32::MAX, tokens: u32::MAX, text: text("the largest") },
        Delta::Text { choice: 0, tokens: 2, text: "x".repeat(300) },
        Delta::Reasoning { choice: 0, tokens: 1, text: text("hm") },
        Delta::Reasoning { choice: 2, tokens: 70, text: text("let me see") },
        tool(3, "call_7", "weather", r#"{"ci"#),
        tool(2, "", "", r#"ty":"Oslo"}"#),
        Delta::Logprobs { choice: 0, json: text(r#"{"content":[]}"#) },
        Delta::Finish { choice: 0, reason: text("tool_calls") },
        Delta::Usage { prompt: 12, completion: 345, cached: 8, reasoning: 70_000 },
        Delta::Usage { prompt: (1 << 32) - 1, completion: 0, cached: 64, reasoning: 0 },
        Delta::Error { code: text("engine_failed"), message: text("the engine stopped") },
        Delta::Other { choice: 0, json: text(r#"{"refusal":null}"#) },
        progress(3, Some(2_050), [4096, 0, 0, 12]),
        progress(0, None, [4096, 1024, 1536, 70_000]),
        progress(0, Some(u32::MAX - 1), [u32::MAX; 4]),
        Delta::Done,
    ]
}

/// Records that no writer of this version writes so: to be skipped, not complete, or wrong.
const READ_ONLY_RECORDS: [&[u8]; 40] = [
    b"\x03\x0dxx", // an unknown kind
    b"",
    b"\x85hell",
    b"\x05\x07sto",
    b"\x40",
    b"\x40\x02\x01a", // a longer length than needed
    b"\x00",          // a body has a tag
    b"\x80\0\x40\0",  // a short record without text
    b"\x82\xff\xfe",
    b"\x03\x01\xff\xfe",
    b"\x02\x00\x02", // another version of the log
    b"\x01\x00",
    b"\x01\x05",
    b"\x02\x0a\x00", // a byte too many
    b"\x02\x08\x01",
    b"\x03\x09\x05a", // less than the length says
    b"\x02\xf1\x40",
    // The choice: 15 says that an integer follows, even one below 15.
    b"\x03\xf1\x05a",
    b"\x04\xf1\x40\x05a",
    b"\x01\xf1",
    b"\x09\xf1\xc0\0\0\x01\0\0\0\0", // 2^32
    // It is ignored where it says nothing, but must be there.
    b"\x01\x3a",
    b"\x02\xfa\x14",
    b"\x01\xfa",
    b"\x05\x28\x01\x02\0\0",
    b"\x04\x20\x01{}",
    b"\x03\xfd\x14x",
    b"\x01\xfd",
    // Counts and indices are below 2^32.
    b"\x09\x02\xc0\0\0\x01\0\0\0\0",
    b"\x0c\x05\xc0\0\0\x01\0\0\0\0\x01\0\0",
    b"\x0e\x0c\xc0\0\0\x01\0\0\0\0\0\0\0\0\0",
    // Progress with a field too few, and one too many.
    b"\x06\x0c\0\0\0\0\0",
    b"\x08\x0c\0\0\0\0\0\0\0",
    // Kind 15: the kind follows the choice, and is at least 16.
    b"\x02\x0f\x10",
    b"\x05\x0f\x40\x10ab",
    b"\x03\xff\x14\x1b",
    b"\x02\x0f\x0f",
    b"\x01\x0f",
    b"\x02\xff\x14",
    b"\x09\x0f\xc0\x20\0\0\0\0\0\0", // a kind of 2^53
];

fn read_record(bytes: &[u8]) -> Value {
    match Delta::decode(bytes) {
        Ok(None) => json!({ "hex": hex(bytes), "incomplete": true }),
        Ok(Some((len, delta))) => json!({
            "hex": hex(bytes), "len": len, "delta": delta.as_ref().map(delta_json),
        }),
        Err(error) => json!({ "hex": hex(bytes), "error": error_name(error) }),
    }
}

#[test]
fn records() {
    let mut cases: Vec<Value> = deltas().iter().map(written_record).collect();
    cases.extend(READ_ONLY_RECORDS.map(read_record));
    let greased = |draw| {
        let mut out = Vec::new();
        grease::put_record(draw, &mut out);
        read_record(&out)
    };
    cases.extend([0, 1, 0x7000_0000_0000_ffff].map(greased));
    check(
        "records.json",
        "Records (section 3): `hex` reads as `delta` (null: skipped), is \
        incomplete, or fails; with `written` it is also what a writer writes.",
        &cases,
    );
}

fn written_record(delta: &Delta) -> Value {
    let mut out = Vec::new();
    delta.encode(&mut out).expect("short");
    assert_eq!(Delta::decode(&out), Ok(Some((out.len(), Some(delta.clone())))));
    json!({ "hex": hex(&out), "len": out.len(), "delta": delta_json(delta), "written": true })
}

/// Frames as a writer writes them: with a checksum or not, and padded to how many bytes.
fn written_frames() -> Vec<(Frame<'static>, bool, Option<usize>)> {
    let ack = Ack { channel: 1, number: 0, ..Ack::default() };
    let full = Ack {
        channel: 70_000,
        number: 300,
        cumulative: 5_000,
        largest: Some(412),
        missing: 0b1011,
        hold: Micros(12_500),
        unshown: 90,
        pace: 120,
        hidden: true,
        probe: true,
        ranges: vec![5_010..5_100, 5_200..5_201],
    };
    let resume = Resume { channel: 2, id: [0xab; 16], token: *b"0123456789abcdef", offset: 777 };
    let hello = Data { channel: 1, packet: 0, offset: 0, bytes: b"\x85hello" };
    let eight = (0..8).map(|i| 6_000 + 20 * i..6_010 + 20 * i).collect();
    let most = (1 << 53) - 1;
    let largest = Ack {
        channel: most,
        number: most,
        cumulative: most,
        largest: Some(most - 1),
        missing: most,
        hold: Micros(0),
        unshown: most,
        pace: most,
        hidden: false,
        probe: true,
        ranges: Vec::new(),
    };
    vec![
        (Frame::Data(hello.clone()), false, None),
        (Frame::Data(Data { channel: 1, packet: 300, offset: 20_000, bytes: b"" }), false, None),
        (Frame::Data(Data { channel: 1, packet: 1, offset: 6, bytes: b"\x85 you." }), true, None),
        (Frame::Data(Data { channel: 1, packet: 9, offset: most - 1, bytes: b"x" }), false, None),
        (Frame::Ack(ack.clone()), false, None),
        (Frame::Ack(Ack { cumulative: 6, largest: Some(0), ..ack }), false, None),
        (Frame::Ack(full.clone()), false, None),
        (Frame::Ack(full.clone()), true, None),
        (Frame::Ack(Ack { ranges: eight, ..full.clone() }), false, None),
        (Frame::Ack(largest), false, None),
        (Frame::Resume(resume), false, None),
        (Frame::Stop { channel: 9 }, false, None),
        (Frame::Gone { channel: 64 }, true, None),
        (Frame::Data(hello.clone()), false, Some(64)),
        (Frame::Data(hello.clone()), true, Some(64)),
        (Frame::Data(hello), false, Some(12)), // just fits
        (
            Frame::Data(Data { channel: 1, packet: 2, offset: 12, bytes: &[b'x'; 90] }),
            false,
            Some(128),
        ),
        (Frame::Ack(full), true, Some(96)),
        (Frame::Gone { channel: 64 }, false, Some(8)),
    ]
}

/// Frames that a reader takes though no writer of this version writes them so.
const UNUSUAL_FRAMES: [(&[u8], bool); 6] = [
    (b"\x11\xfc\x01\0\x05\0\0\0\0\0", false), // every flag that means nothing
    (b"\x11\x83\x01\0\x05\0\0\0\0\0", false), // those that do, and the grease bit
    (b"\x10\x40\x01\x80\0\0\x02\x41\0a", false), // longer integers than needed
    (b"\x15\x02\x13\x09\xde\xad\xbe\xef", false), // padding that is not 0
    (b"\x15\x40\x02\x13\x09\0", false),       // a longer length than needed
    (b"\x15\x02\x13\x09", false),             // no padding at all
];

/// What a reader refuses, and whether it requires checksums.
const WRONG_FRAMES: [(&[u8], bool); 34] = [
    (b"", false),
    (b"\x20\x01\0\0", false),                              // another version
    (b"\x00\x01\0\0", false),
    (b"\x16\x01", false),                                   // kind 6 is unassigned
    (b"\x17\x1b\x01", false),                               // kind 27 behind kind 7: grease
    (b"\x17\x40\x5a\x01\x02\x03", false),                  // kind 90
    (b"\x17\x05\x01", false),                               // a kind behind kind 7 is at least 8
    (b"\x17", false),                                        // a missing kind
    (b"\x10\x01", false),
    (b"\x13\x01\x01", false),                               // a byte too many
    (b"\x13", false),
    (b"\x13\x01", true),                                    // no checksum where they are required
    (b"\x1b\x01\0\0\0\0", false),                          // a wrong checksum
    (b"\x1b\x01\0\0", false),                              // half a checksum
    (b"\x10\xc0\x20\0\0\0\0\0\0\0\0", false),             // a channel of 2^53
    (b"\x10\x01\0\xc0\x1f\xff\xff\xff\xff\xff\xffx", false), // the end at 2^53
    (b"\x11\0\x01\0\x05\0\0\0\x06\0", false),             // more unshown than arrived
    (b"\x11\0\x01\0\x05\0\0\0\0\0\x01", false),           // half a range
    (b"\x11\0\x01\0\x05\0\0\0\0\0\0\x01", false),         // a range without distance
    (b"\x11\0\x01\0\x05\0\0\0\0\0\x01\0", false),         // a range without length
    (b"\x11\0\x01\0\x05\0\0\0\0\0\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01", false), // nine
    (b"\x11\0\x01\0\xc0\x1f\xff\xff\xff\xff\xff\xfe\0\0\0\0\x01\x01", false), // a range to 2^53
    (b"\x11\0\x01\0\0\0\xc0\x20\0\0\0\0\0\0\0\0\0", false), // 54 bits of missing packets
    (b"\x12\x01\xab\xab", false),                          // half an id
    (b"\x15", false),                                        // PADDED without a length
    (b"\x15\0", false),                                     // nothing within
    (b"\x15\x03\x13\x09", false),                          // less within than the length says
    (b"\x15\x02\x13", false),
    (b"\x15\xc0\x1f\xff\xff\xff\xff\xff\xff\x13\x09", false),
    (b"\x15\x04\x15\x02\x13\x09", false),                  // PADDED within PADDED
    (b"\x15\x06\x1b\x09\0\0\0\0", false),                 // a checksum within
    (b"\x15\x02\x17\x1b\0", false),                        // an unassigned kind within
    (b"\x15\x02\x23\x09\0", false),                        // another version within
    (b"\x15\x02\x13\x09\0", true),                         // padded, but no checksum
];

fn read_frame(bytes: &[u8], require_check: bool) -> Value {
    match Frame::decode(bytes, require_check) {
        Ok(frame) => {
            json!({ "hex": hex(bytes), "checked": require_check, "frame": frame_json(&frame) })
        }
        Err(error) => {
            json!({ "hex": hex(bytes), "checked": require_check, "error": error_name(error) })
        }
    }
}

#[test]
fn frame_vectors() {
    let mut cases = Vec::new();
    for (frame, checked, padded_to) in written_frames() {
        let mut out = Vec::new();
        match padded_to {
            Some(len) => frame.encode_padded(checked, len, &mut out),
            None => frame.encode(checked, &mut out),
        }
        assert_eq!(Frame::decode(&out, checked).as_ref(), Ok(&frame));
        let mut case = read_frame(&out, checked);
        case["written"] = json!(true);
        if let Some(len) = padded_to {
            assert_eq!(out.len(), len, "{frame:?}");
            case["padded_to"] = json!(len);
        }
        cases.push(case);
    }
    for (bytes, checked) in UNUSUAL_FRAMES {
        assert!(Frame::decode(bytes, checked).is_ok(), "{bytes:02x?}");
        cases.push(read_frame(bytes, checked));
    }
    for (bytes, checked) in WRONG_FRAMES {
        assert!(Frame::decode(bytes, checked).is_err(), "{bytes:02x?}");
        cases.push(read_frame(bytes, checked));
    }
    check(
        "frames.json",
        "Frames (sections 2, 4, 5, 6): a reader that requires checksums if `checked` reads `hex` \
        as `frame`, or fails. With `written` it is also what a writer writes, with a checksum if \
        `checked`, within a PADDED frame of `padded_to` bytes if that is given.",
        &cases,
    );
}

/// Plays a receiver and notes what it shows and sends after each step.
struct Script {
    receiver: Receiver,
    from: u64,
    steps: Vec<Value>,
    log: Vec<u8>,
    packet: u64,
}

impl Script {
    fn new(config: ReceiverConfig, deltas: &[Delta]) -> Self {
        Self::resumed(config, deltas, 0)
    }

    /// A new receiver goes on from log offset `from`.
    fn resumed(config: ReceiverConfig, deltas: &[Delta], from: u64) -> Self {
        let mut log = Log::new(1 << 20);
        deltas.iter().for_each(|delta| assert!(log.push(delta).is_ok()));
        let mut bytes = Vec::new();
        log.read(0..log.head(), &mut bytes).expect("all of it");
        let receiver = Receiver::new(Micros(0), 1, from, config);
        Self { receiver, from, steps: Vec::new(), log: bytes, packet: 0 }
    }

    /// Log bytes of `range` arrive at `ms`, in the next packet; `skip` packets were lost.
    fn data(&mut self, ms: u64, range: Range<usize>, skip: u64) {
        let datagram = self.next_frame(range, skip, None);
        self.datagram(ms, &datagram);
    }

    /// The same within a PADDED frame of `len` bytes.
    fn padded(&mut self, ms: u64, range: Range<usize>, len: usize) {
        let datagram = self.next_frame(range, 0, Some(len));
        self.datagram(ms, &datagram);
    }

    fn next_frame(&mut self, range: Range<usize>, skip: u64, padded: Option<usize>) -> Vec<u8> {
        self.packet += skip;
        let bytes = &self.log[range.start..range.end.min(self.log.len())];
        let offset = range.start as u64;
        let frame = Frame::Data(Data { channel: 1, packet: self.packet, offset, bytes });
        let mut datagram = Vec::new();
        match padded {
            Some(len) => frame.encode_padded(false, len, &mut datagram),
            None => frame.encode(false, &mut datagram),
        }
        self.packet += 1;
        datagram
    }

    fn datagram(&mut self, ms: u64, datagram: &[u8]) {
        let error = self.receiver.handle_datagram(Micros::from_ms(ms), datagram).err();
        let step = json!({ "at_ms": ms, "do": "datagram", "hex": hex(datagram) });
        self.note(ms, step, error);
    }

    fn hidden(&mut self, ms: u64, hidden: bool) {
        self.receiver.set_hidden(Micros::from_ms(ms), hidden);
        self.note(ms, json!({ "at_ms": ms, "do": "hidden", "hidden": hidden }), None);
    }

    fn wait(&mut self, ms: u64) {
        self.note(ms, json!({ "at_ms": ms, "do": "timeout" }), None);
    }

    fn note(&mut self, ms: u64, mut step: Value, error: Option<Error>) {
        let now = Micros::from_ms(ms);
        self.receiver.handle_timeout(now);
        let events = std::iter::from_fn(|| self.receiver.poll_event()).map(event_json);
        step["events"] = events.collect();
        let mut sent = Vec::new();
        let mut datagram = Vec::new();
        while self.receiver.poll_transmit(now, &mut datagram).is_some() {
            sent.push(hex(&datagram));
            datagram.clear();
        }
        step["sent"] = json!(sent);
        step["cumulative"] = json!(self.receiver.cumulative());
        step["wake_us"] = json!(self.receiver.poll_timeout().map(|at| at.0));
        if let Some(error) = error {
            step["error"] = json!(error_name(error));
        }
        self.steps.push(step);
    }

    fn case(self, name: &str, playout: Playout) -> Value {
        let shown = json!({
            "buffer_us": playout.buffer.0, "max_tokens_per_s": playout.max_tokens_per_s,
        });
        json!({
            "name": name, "channel": 1, "from": self.from, "playout": shown, "steps": self.steps,
        })
    }
}

fn event_json(event: ReceiverEvent) -> Value {
    match event {
        ReceiverEvent::Delta { offset, delta } => {
            json!({ "event": "delta", "offset": offset, "delta": delta_json(&delta) })
        }
        ReceiverEvent::Complete => json!({ "event": "complete" }),
        ReceiverEvent::Failed(error) => {
            json!({ "event": "failed", "error": error.map(error_name) })
        }
        ReceiverEvent::Silent => json!({ "event": "silent" }),
    }
}

fn answer() -> Vec<Delta> {
    let mut deltas = vec![Delta::Open { meta: "{}".into() }];
    deltas.extend([" To", " be", " or", " not", " 是"].map(Delta::text));
    deltas.push(Delta::Finish { choice: 0, reason: "stop".into() });
    deltas.push(Delta::Done);
    deltas
}

fn lossy_session() -> Value {
    let mut script = Script::new(ReceiverConfig::default(), &answer());
    script.data(0, 0..9, 0); // open and a text
    script.data(100, 13..18, 1); // the packet before was lost: a hole
    script.data(105, 18..20, 0); // half a record beyond the hole
    script.data(110, 5..14, 0); // closes the hole
    script.data(111, 5..14, 0); // nothing new: acknowledged 100 ms after the last time
    script.wait(209);
    script.wait(210);
    script.hidden(240, true);
    script.datagram(245, b"\x10\x02\x07\x00"); // another channel
    script.datagram(246, b"\x30\x01\x07\x00"); // another version
    script.data(250, 14..200, 0); // the rest
    script.data(260, 0..200, 0);
    script.wait(350);
    script.wait(3_250); // the end of lingering
    script.case("loss, reordering, repetition, a hidden page, the end", Playout::IMMEDIATE)
}

fn silent_session() -> Value {
    let mut script = Script::new(ReceiverConfig::default(), &answer());
    script.data(0, 0..9, 0);
    for ms in [2_000, 4_000, 8_000, 10_000, 16_000, 32_000] {
        script.wait(ms);
    }
    script.data(40_000, 0..200, 0);
    script.case("silence, probes, and a late answer", Playout::IMMEDIATE)
}

fn broken_sessions() -> [Value; 3] {
    let mut unreadable = Script::new(ReceiverConfig::default(), &[]);
    unreadable.datagram(0, b"\x10\x01\0\0\x82\xff\xfe");
    unreadable.wait(5_000);
    let mut gone = Script::new(ReceiverConfig::default(), &answer());
    gone.data(0, 0..9, 0);
    gone.datagram(10, b"\x14\x01");
    let error = Delta::Error { code: "engine_failed".into(), message: "stopped".into() };
    let mut failed = Script::new(ReceiverConfig::default(), &[Delta::text("a"), error]);
    failed.data(0, 0..100, 0);
    [
        unreadable.case("a log that cannot be read", Playout::IMMEDIATE),
        gone.case("a channel that the sender does not have", Playout::IMMEDIATE),
        failed.case("an answer that failed", Playout::IMMEDIATE),
    ]
}

/// The log is read from the end of its second record on; the older path had 61 packets.
fn resumed_session() -> Value {
    let mut script = Script::resumed(ReceiverConfig::default(), &answer(), 9);
    script.wait(2_000); // the first frame was lost: a probe
    script.data(2_100, 0..14, 61); // older bytes travel with the new ones
    script.data(2_120, 13..18, 0);
    script.data(2_140, 18..200, 1);
    script.wait(5_140);
    script.case("a resume at offset 9, whose packets go on at 61", Playout::IMMEDIATE)
}

fn holes_session() -> Value {
    let texts: Vec<Delta> = (0..40).map(|i| Delta::text(format!(" {i:02}"))).collect();
    let mut script = Script::new(ReceiverConfig::default(), &texts);
    for i in 0..10 {
        script.data(10 * i as u64, 4 + 8 * i..8 + 8 * i, 1); // every second record
    }
    script.data(200, 0..4, 60); // joins the first range; most packets are out of the report
    script.data(210, 8..12, 200); // all of them are
    script.datagram(230, b"\x10\x01\x41\x40\xc0\0\x01\0\0\0\0\0xyz"); // beyond its bounds
    script.data(240, 0..160, 0);
    script.case("more holes than an ACK reports, packets beyond its window", Playout::IMMEDIATE)
}

/// What a receiver looks through, ignores and skips.
fn greased_session() -> Value {
    let mut script = Script::new(ReceiverConfig::default(), &answer());
    let at = script.log.len() - 2;
    let mut record = Vec::new();
    grease::put_record(0x3000_0000_0000_0001, &mut record);
    script.log.splice(at..at, record); // before the last record
    script.padded(0, 0..9, 64);
    script.padded(20, 9..14, 14);
    let mut greased = Vec::new();
    grease::put_frame(0x2000_0000_0000_0005, 1, &mut greased);
    script.datagram(30, &greased);
    script.datagram(40, b"\x16\x01");
    script.datagram(50, b"\x15\x04\x15\x02\x14\x01"); // PADDED within PADDED
    script.datagram(60, b"\x11\0\x01\0\0\0\0\0\0\0"); // ACK, which receivers never get
    script.datagram(70, b"\x15\x02\x14\x07\0\0"); // GONE of another channel
    script.padded(80, 14..200, 128);
    script.case("padded frames, and what must be ignored or skipped", Playout::IMMEDIATE)
}

fn paced_session() -> Value {
    let playout = Playout { buffer: Micros::ZERO, max_tokens_per_s: Some(10) };
    let mut script =
        Script::new(ReceiverConfig { playout, ..ReceiverConfig::default() }, &answer());
    script.data(0, 0..200, 0);
    for ms in [50, 100, 200, 300, 400] {
        script.wait(ms);
    }
    script.case("a reader of ten tokens per second", playout)
}

#[test]
fn sessions() {
    let mut cases = vec![lossy_session(), silent_session(), paced_session()];
    cases.extend(broken_sessions());
    cases.extend([resumed_session(), holes_session(), greased_session()]);
    check(
        "receiver.json",
        "Sessions of a receiver with default parameters. After each step at \
        `at_ms` (a datagram arrives, the page is hidden or shown, or only time has passed) it \
        shows `events` and sends `sent`; then `cumulative` bytes have arrived and it next wakes at \
        `wake_us`. A step with `error` had no effect.",
        &cases,
    );
}
