"""The client's codec and receiver against spec/vectors: no server is needed."""

import json
from pathlib import Path

import pytest

from .checks import rules
from .client import wire
from .client.chunks import ChunkWriter
from .client.messages import (
    Code,
    MalformedMessage,
    MessageReader,
    read_answer_head,
    read_discovery,
    read_response_head,
    write_message,
)
from .client.receiver import Complete, Failed, Receiver, Shown, Silent
from .client.session import PADDING_STEP
from .client.wire import Incomplete, WireError

VECTORS = Path(__file__).resolve().parents[2] / "spec" / "vectors"


def cases(name):
    return json.loads((VECTORS / f"{name}.json").read_text())["cases"]


def refused(read, data, error):
    with pytest.raises(WireError) as raised:
        read(data)
    assert raised.value.name == error


@rules("D-1.1, D-1.2")
def test_ints():
    """Integers, read and written"""
    for case in cases("ints"):
        data = bytes.fromhex(case["hex"])
        if "error" in case:
            refused(lambda it: wire.Reader(it).int(), data, case["error"])
            continue
        assert wire.Reader(data).int() == case["value"]
        if case.get("shortest"):
            assert wire.write_int(case["value"]) == data


def as_vector(frame):
    """A frame in the words of frames.json."""
    match frame:
        case wire.Data(channel, packet, offset, log_bytes):
            return {"kind": "data", "channel": channel, "packet": packet, "offset": offset, "bytes": log_bytes.hex()}
        case wire.Ack():
            names = ("channel", "number", "cumulative", "largest", "missing", "unshown", "pace", "hidden", "probe")
            plain = {name: getattr(frame, name) for name in names}
            ranges = [list(pair) for pair in frame.ranges]
            return {"kind": "ack", **plain, "hold_us": frame.hold * wire.HOLD_UNIT_US, "ranges": ranges}
        case wire.Resume(channel, name, token, offset):
            return {"kind": "resume", "channel": channel, "id": name.hex(), "token": token.hex(), "offset": offset}
        case wire.Stop(channel):
            return {"kind": "stop", "channel": channel}
        case wire.Gone(channel):
            return {"kind": "gone", "channel": channel}


@rules("D-2, D-4, D-5, D-6")
def test_frames():
    """Frames, read and written"""
    for case in cases("frames"):
        data, checked = bytes.fromhex(case["hex"]), case.get("checked", False)
        if "error" in case:
            refused(lambda it, checked=checked: wire.read_frame(it, needs_checksum=checked), data, case["error"])
            continue
        frame = wire.read_frame(data, needs_checksum=checked)
        assert as_vector(frame) == case["frame"]
        if case.get("written"):
            padded = case.get("padded_to")
            inner = wire.write_frame(frame, checked and padded is None)
            assert (wire.write_padded(inner, padded, checked) if padded else inner) == data


def record_as_vector(record):
    """A record in the words of records.json."""
    words = {wire.ToolCall: "tool_call"}
    kind = words.get(type(record), type(record).__name__.lower())
    return {"kind": kind, **vars(record)}


@rules("D-3")
def test_records():
    """Records, read and written"""
    for case in cases("records"):
        data = bytes.fromhex(case["hex"])
        if case.get("incomplete"):
            with pytest.raises(Incomplete):
                wire.read_record(data)
        elif "error" in case:
            refused(wire.read_record, data, case["error"])
        else:
            size, record = wire.read_record(data)
            assert size == case["len"]
            assert (record and record_as_vector(record)) == case["delta"]
            if case.get("written"):
                assert wire.write_record(record) == data


@rules("S-2.1, S-2.2")
def test_messages():
    """Messages, read and written"""
    for case in (case for case in cases("messages") if "hex" in case):
        data, reader, messages, error = bytes.fromhex(case["hex"]), MessageReader(case["limit"]), [], None
        try:
            for byte in data:  # cut anywhere
                messages += reader.feed(bytes([byte]))
            reader.end()
        except MalformedMessage as malformed:
            error = malformed.name
        assert error == case.get("error"), case
        assert [{"type": kind.name, "payload": payload.hex()} for kind, payload in messages] == case["messages"], case
        if case.get("written"):
            assert b"".join(write_message(kind, payload) for kind, payload in messages) == data


HEADS = {"ANSWER": read_answer_head, "RESPONSE": read_response_head, "DISCOVERY": read_discovery}


@rules("S-1.3, S-1.6, S-2.2, S-4.2")
def test_heads():
    """Heads and the document that a client reads"""
    for case in (case for case in cases("messages") if case.get("head") in HEADS):
        read, data = HEADS[case["head"]], case["json"].encode()
        if "error" in case:
            with pytest.raises(MalformedMessage) as raised:
                read(data)
            assert raised.value.name == case["error"], case
            continue
        head = {name: it.hex() if isinstance(it, bytes) else it for name, it in vars(read(data)).items()}
        assert {name: head[name] for name in case["value"]} == case["value"], case


@rules("S-2.6")
def test_codes():
    """Codes, known and unknown"""
    for case in (case for case in cases("messages") if "code" in case):
        assert Code(case["code"]).name == case["means"].upper().replace(" ", "_")


def event_as_vector(event):
    match event:
        case Shown(offset, record):
            return {"event": "delta", "offset": offset, "delta": record_as_vector(record)}
        case Complete():
            return {"event": "complete"}
        case Failed(error):
            return {"event": "failed", "error": error}
        case Silent():
            return {"event": "silent"}


def do_step(receiver, step, now_us):
    match step["do"]:
        case "datagram" if "error" in step:
            refused(lambda data: receiver.handle_datagram(data, now_us), bytes.fromhex(step["hex"]), step["error"])
        case "datagram":
            receiver.handle_datagram(bytes.fromhex(step["hex"]), now_us)
        case "hidden":
            receiver.set_hidden(step["hidden"], now_us)
        case other:
            assert other == "timeout"


@rules("D-9")
@pytest.mark.parametrize("case", cases("receiver"), ids=lambda case: case["name"])
def test_receiver(case):
    """A receiver"""
    assert not case["playout"]["buffer_us"], "the text leaves smoothing to the receiver (D-9.8)"
    rate = case["playout"]["max_tokens_per_s"]
    receiver = Receiver(case["channel"], 0, offset=case["from"], tokens_per_s=rate)
    for step in case["steps"]:
        now_us = step["at_ms"] * 1000
        do_step(receiver, step, now_us)
        receiver.handle_timeout(now_us)
        events, receiver.events = receiver.events, []
        transmits, receiver.transmits = receiver.transmits, []
        assert [event_as_vector(event) for event in events] == step["events"], step
        assert [transmit.frame.hex() for transmit in transmits] == step["sent"], step
        assert (receiver.cumulative, receiver.wake_us()) == (step["cumulative"], step["wake_us"]), step


@rules("D-9, S-4.1 to S-4.6")
@pytest.mark.parametrize("case", cases("session"), ids=lambda case: case["name"])
def test_session(case):
    """A whole session, the client's side of it"""
    receiver = Receiver(case["channel"], 0)
    sent = []

    def pass_time(until_us):
        while (wake_us := receiver.wake_us()) is not None and wake_us <= until_us:
            receiver.handle_timeout(wake_us)
            note(wake_us)

    def note(at_us):
        sent.extend((at_us, wire.pad_to_step(it.frame, PADDING_STEP).hex()) for it in receiver.transmits)
        receiver.transmits.clear()

    arriving = [step for step in case["steps"] if step["from"] == "server" and step["arrives_ms"] is not None]
    for step in arriving:
        now_us = step["arrives_ms"] * 1000
        pass_time(now_us)
        if step["on"] == "datagram":
            receiver.handle_datagram(bytes.fromhex(step["hex"]), now_us)
        elif step.get("fin"):
            receiver.end_path()
        note(now_us)
    datagrams = [step for step in case["steps"] if step["from"] == "client" and step["on"] == "datagram"]
    assert sent == [(step["at_ms"] * 1000, step["hex"]) for step in datagrams]
    assert receiver.wake_us() is None
    log = b"".join(wire.write_record(event.record) for event in receiver.events if isinstance(event, Shown))
    assert log.hex() == case["log"]


@rules("S-6")
@pytest.mark.parametrize("case", cases("events"), ids=lambda case: f"{case['name']}, from {case['from']}")
def test_events(case):
    """From records to event streams"""
    log, at, written = bytes.fromhex(case["log"]), 0, []
    writer = ChunkWriter()
    for record in case["records"]:
        size, read = wire.read_record(log[at:])
        at += size
        assert (at, read and record_as_vector(read)) == (record["end"], record["delta"])
        events = writer.write(Shown(at, read)) if read else []
        written += events if at > case["from"] else []
    events = [{"id": event.id, "data": "[DONE]" if event.is_done else event.json()} for event in written]
    assert events == case["events"]
