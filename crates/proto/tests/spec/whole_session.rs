//! `spec/vectors/session.json`: one request and its answer, every message and datagram of it, from
//! REQUEST to the end of the QUIC stream; and the appendix of the Internet-Draft that shows them.
//!
//! The server's side is a script, so that the session stays as it is when the sender's schedule
//! changes; the client's side is the receiver itself.
//! `web/client/test/whole_session.test.mjs` replays the file.

use std::fmt::Write;
use std::ops::Range;

use loquent_proto::frame::{Ack, Data, Frame};
use loquent_proto::message::{MessageKind, put_message};
use loquent_proto::{ACK_STEP_BYTES, Delta, Micros, Receiver, ReceiverConfig, ReceiverEvent};
use serde_json::{Value, json};

use super::draft::{self, Dump};
use super::vector_file::{check, delta_json, hex};

const ABOUT: &str = "A whole session: one request whose answer travels in datagrams. Each step is \
    what `from` sends at `at_ms`, on the QUIC stream (a message, or its end: `fin`) or in a \
    datagram, which arrives at `arrives_ms` unless that is null: then it is lost. `means` says what \
    it is for, `message` or `frame` what is in it, `records` the records in it. `padding_step` is \
    that of D-2.7, `log` the whole log. A receiver of channel 0 with default parameters that pads \
    its ACK frames, to which the server's datagrams arrive at these times, sends just the client's \
    datagrams.";

/// How long anything travels, each way.
const DELAY_MS: u64 = 20;
/// The padding step of this session (D-2.7).
const STEP_BYTES: usize = 24;

const REQUEST: &str = r#"{"key":"sk-1","method":"POST","path":"/v1/chat/completions","channel":0}"#;
const BODY: &str = r#"{"model":"m","messages":[{"role":"user","content":"Or?"}]}"#;
const ANSWER: &str = r#"{"id":"00112233445566778899aabbccddeeff","token":"ffeeddccbbaa99887766554433221100","channel":0,"offset":0}"#;
const META: &str = r#"{"id":"c-1","object":"chat.completion.chunk","created":1767225600,"model":"m","usage":"null"}"#;

struct Step {
    at_ms: u64,
    is_client: bool,
    carrier: Carrier,
    means: &'static str,
}

enum Carrier {
    Message(MessageKind, &'static str),
    Fin,
    Datagram { bytes: Vec<u8>, is_lost: bool },
}

struct Session {
    steps: Vec<Step>,
    receiver: Receiver,
    shown: Vec<Delta>,
    is_complete: bool,
    log: Vec<u8>,
    next_packet: u64,
}

impl Session {
    fn new(deltas: &[Delta]) -> Self {
        let mut log = Vec::new();
        deltas.iter().for_each(|delta| delta.encode(&mut log).expect("a short record"));
        Self {
            steps: Vec::new(),
            receiver: Receiver::new(
                Micros(0),
                0,
                0,
                ReceiverConfig { ack_step_bytes: ACK_STEP_BYTES, ..ReceiverConfig::default() },
            ),
            shown: Vec::new(),
            is_complete: false,
            log,
            next_packet: 0,
        }
    }

    fn step(&mut self, at_ms: u64, is_client: bool, carrier: Carrier, means: &'static str) {
        self.steps.push(Step { at_ms, is_client, carrier, means });
    }

    /// The server sends `range` of the log.
    fn data(&mut self, at_ms: u64, range: Range<usize>, is_lost: bool, means: &'static str) {
        let data = Data {
            channel: 0,
            packet: self.next_packet,
            offset: range.start as u64,
            bytes: &self.log[range],
        };
        self.next_packet += 1;
        let mut bytes = Vec::new();
        Frame::Data(data.clone()).encode(false, &mut bytes);
        // The first byte and the length of the PADDED frame around it.
        let len =
            (bytes.len() + 1 + if bytes.len() < 64 { 1 } else { 2 }).next_multiple_of(STEP_BYTES);
        bytes.clear();
        Frame::Data(data).encode_padded(false, len, &mut bytes);
        assert_eq!(bytes.len() % STEP_BYTES, 0);
        if !is_lost {
            let arrives = Micros::from_ms(at_ms + DELAY_MS);
            self.receiver.handle_datagram(arrives, &bytes).expect("a good frame");
        }
        self.step(at_ms, false, Carrier::Datagram { bytes, is_lost }, means);
    }

    /// What the client shows and sends at `at_ms`; its one ACK frame.
    fn ack(&mut self, at_ms: u64, is_lost: bool, means: &'static str) -> Ack {
        let now = Micros::from_ms(at_ms);
        self.receiver.handle_timeout(now);
        while let Some(event) = self.receiver.poll_event() {
            match event {
                ReceiverEvent::Delta { delta, .. } => self.shown.push(delta),
                ReceiverEvent::Complete => self.is_complete = true,
                other => panic!("{other:?}"),
            }
        }
        let mut bytes = Vec::new();
        assert!(self.receiver.poll_transmit(now, &mut bytes).is_some(), "an ACK at {at_ms} ms");
        assert!(self.receiver.poll_transmit(now, &mut Vec::new()).is_none());
        let Ok(Frame::Ack(ack)) = Frame::decode(&bytes, false) else { panic!("{bytes:?}") };
        self.step(at_ms, true, Carrier::Datagram { bytes, is_lost }, means);
        ack
    }
}

fn deltas() -> Vec<Delta> {
    let mut deltas = vec![Delta::Open { meta: META.into() }];
    deltas.extend(["To", " be", " or", " not"].map(Delta::text));
    deltas.push(Delta::Finish { choice: 0, reason: "stop".into() });
    deltas.push(Delta::Usage { prompt: 9, completion: 4, cached: 0, reasoning: 0 });
    deltas.push(Delta::Done);
    deltas
}

/// The log offset after the first `records` records.
fn end(records: usize) -> usize {
    let mut log = Vec::new();
    deltas()[..records].iter().for_each(|delta| delta.encode(&mut log).expect("a short record"));
    log.len()
}

fn play() -> Session {
    let mut session = Session::new(&deltas());
    let message = Carrier::Message;
    let request = "asks for an answer on channel 0";
    session.step(0, true, message(MessageKind::Request, REQUEST), request);
    session.step(0, true, message(MessageKind::Body, BODY), "the request's body");
    session.step(0, true, message(MessageKind::Body, ""), "the request's end");
    let answer = "the answer has begun; id and token are for a resume";
    session.step(30, false, message(MessageKind::Answer, ANSWER), answer);
    session.data(60, 0..end(2), false, "open, and the first token");
    let ack = session.ack(80, false, "all of it has arrived");
    assert_eq!((ack.cumulative, ack.largest, ack.missing), (end(2) as u64, Some(0), 0));
    session.data(110, end(2)..end(3), true, "the second token; lost");
    session.data(160, end(2)..end(4), false, "the third token, and the second again");
    let ack = session.ack(180, false, "both have arrived; packet 1 has not");
    assert_eq!((ack.cumulative, ack.largest, ack.missing), (end(4) as u64, Some(2), 1));
    session.data(210, end(4)..end(5), false, "the fourth token");
    session.ack(230, false, "it has arrived");
    session.data(260, end(5)..end(8), false, "finish, usage, done: the log's end");
    let ack = session.ack(280, true, "everything has arrived; lost");
    assert_eq!(ack.cumulative, end(8) as u64);
    session.data(350, end(5)..end(8), false, "the same again, as its ACK is overdue");
    let ack = session.ack(380, false, "nothing new, so 100 ms after the last ACK (D-9.2)");
    assert_eq!((ack.cumulative, ack.hold), (end(8) as u64, Micros::from_ms(10)));
    session.step(400, false, Carrier::Fin, "the whole log is acknowledged (S-4.6)");
    session.step(420, true, Carrier::Fin, "the client is done, and lingers no more (D-9.1)");
    session
}

const fn type_name(kind: MessageKind) -> &'static str {
    match kind {
        MessageKind::Request => "REQUEST",
        MessageKind::Body => "BODY",
        MessageKind::Response => "RESPONSE",
        MessageKind::Answer => "ANSWER",
        MessageKind::Frame => "FRAME",
    }
}

fn records(log: &[u8]) -> Vec<(usize, Delta)> {
    let (mut at, mut records) = (0, Vec::new());
    while let Some((len, delta)) = Delta::decode(&log[at..]).expect("a good record") {
        at += len;
        records.push((at, delta.expect("a known kind")));
    }
    assert_eq!(at, log.len(), "frames of this session have whole records");
    records
}

fn frame_json(bytes: &[u8]) -> Value {
    match Frame::decode(bytes, false).expect("a good frame") {
        Frame::Data(data) => {
            let records = records(data.bytes);
            json!({
                "kind": "data", "padded": true, "channel": data.channel, "packet": data.packet,
                "offset": data.offset, "bytes": hex(data.bytes),
                "records": records.iter().map(|(_, delta)| delta_json(delta)).collect::<Vec<_>>(),
            })
        }
        Frame::Ack(ack) => json!({
            "kind": "ack", "padded": true, "channel": ack.channel, "number": ack.number,
            "cumulative": ack.cumulative, "largest": ack.largest, "missing": ack.missing,
            "hold_us": ack.hold.0, "unshown": ack.unshown, "pace": ack.pace,
            "hidden": ack.hidden, "probe": ack.probe,
            "ranges": ack.ranges.iter().map(|r| [r.start, r.end]).collect::<Vec<_>>(),
        }),
        other => panic!("{other:?}"),
    }
}

fn step_json(step: &Step) -> Value {
    let from = if step.is_client { "client" } else { "server" };
    let arrives = step.at_ms + DELAY_MS;
    match &step.carrier {
        Carrier::Message(kind, payload) => {
            let mut bytes = Vec::new();
            put_message(*kind, payload.as_bytes(), &mut bytes);
            let payload = serde_json::from_str::<Value>(payload).ok();
            json!({
                "at_ms": step.at_ms, "from": from, "on": "stream", "hex": hex(&bytes),
                "arrives_ms": arrives, "means": step.means,
                "message": { "type": type_name(*kind), "payload": payload },
            })
        }
        Carrier::Fin => json!({
            "at_ms": step.at_ms, "from": from, "on": "stream", "fin": true, "hex": "",
            "arrives_ms": arrives, "means": step.means,
        }),
        Carrier::Datagram { bytes, is_lost } => json!({
            "at_ms": step.at_ms, "from": from, "on": "datagram", "hex": hex(bytes),
            "arrives_ms": (!is_lost).then_some(arrives), "means": step.means,
            "frame": frame_json(bytes),
        }),
    }
}

#[test]
fn the_session_is_what_the_file_says() {
    let session = play();
    assert_eq!(session.shown, deltas());
    assert!(session.is_complete);
    let case = json!({
        "name": "an answer of four tokens; a token and an ACK are lost",
        "channel": 0, "padding_step": STEP_BYTES, "log": hex(&session.log),
        "steps": session.steps.iter().map(step_json).collect::<Vec<_>>(),
    });
    check("session.json", ABOUT, "delivery and session, version 1", &[case]);
}

/// One step as the draft shows it: a line of what it is, then its bytes, field by field.
fn put_step(step: &Step, out: &mut String) {
    let from = if step.is_client { "client" } else { "server" };
    let mut dump = Dump::new(out);
    match &step.carrier {
        Carrier::Message(kind, payload) => {
            dump.title(step.at_ms, from, "QUIC stream", step.means);
            let mut bytes = Vec::new();
            put_message(*kind, payload.as_bytes(), &mut bytes);
            let mut rest = dump.bytes(&bytes, 1, type_name(*kind));
            rest = dump.int(rest, "Length").1;
            dump.text(rest);
        }
        Carrier::Fin => {
            dump.title(step.at_ms, from, "QUIC stream", step.means);
            dump.note("FIN");
        }
        Carrier::Datagram { bytes, .. } => {
            dump.title(step.at_ms, from, "datagram", step.means);
            put_frame(bytes, &mut dump);
        }
    }
}

fn put_frame(bytes: &[u8], dump: &mut Dump<'_>) {
    match bytes[0] {
        0x15 => {
            let rest = dump.bytes(bytes, 1, "PADDED");
            let (len, rest) = dump.int(rest, "Length");
            let (frame, padding) = rest.split_at(len as usize);
            dump.indented(|dump| put_frame(frame, dump));
            dump.bytes(padding, padding.len(), "Padding");
        }
        0x10 => {
            let mut rest = dump.bytes(bytes, 1, "DATA");
            for field in ["Channel", "Packet Number", "Offset"] {
                rest = dump.int(rest, field).1;
            }
            let mut from = 0;
            for (to, delta) in records(rest) {
                dump.bytes(&rest[from..], to - from, draft::record_name(&delta));
                from = to;
            }
        }
        0x11 => {
            let mut rest = dump.bytes(bytes, 1, "ACK");
            rest = dump.bytes(rest, 1, "Flags");
            for field in [
                "Channel",
                "Number",
                "Cumulative",
                "Largest Plus One",
                "Missing",
                "Hold",
                "Unshown",
                "Pace",
            ] {
                rest = dump.int(rest, field).1;
            }
            assert!(rest.is_empty(), "no ranges in this session");
        }
        other => panic!("{other}"),
    }
}

#[test]
fn the_draft_shows_the_session() {
    let session = play();
    let mut text = String::new();
    let _ = writeln!(
        text,
        "A client asks for an answer, whose log has {} bytes. Everything takes {DELAY_MS} ms to arrive; one DATA frame\n\
         and one ACK frame are lost. DATA frames are padded in steps of {STEP_BYTES} bytes, ACK frames of {ACK_STEP_BYTES}. Bytes are\n\
         hexadecimal, in pairs; beside them stands the field, and the value of an integer. The file session.json of\n\
         {{{{vectors}}}} has the same session.\n",
        session.log.len(),
    );
    text.push_str("~~~\n");
    for (at, step) in session.steps.iter().enumerate() {
        if at > 0 {
            text.push('\n');
        }
        put_step(step, &mut text);
    }
    text.push_str("~~~\n{: #session-dump title=\"A Whole Session\"}\n");
    draft::check_part("whole_session.rs", &text);
}
