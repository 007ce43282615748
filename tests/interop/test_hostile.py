"""Frames and messages that break the rules, or that only later versions know: the server goes on exactly."""

import asyncio
import json

import pytest

from .checks import rules
from .client import wire
from .client.messages import Code, MessageReader, Type, write_head, write_message
from .client.session import COMPLETIONS, Refused, StreamEnded, connect, request_head
from .client.wire import Ack, Data, Gone, Resume, Stop, write_frame, write_int, write_padded
from .conftest import request_of, scenario
from .test_answers import whole
from .test_vectors import cases

#: Long enough that a hidden page's pace (one packet a second) can be told from the usual one.
BODY = request_of(120)
HIDDEN_FRAMES, USUAL_FRAMES = 6, 10
#: On a busy machine an answer may be over before the frames are sent, or last for many seconds.
ANSWERS = 5


def ack(path, **members):
    """An ACK that, if it were taken, would serve the rest as to a hidden page (D-5.1)."""
    receiver = path.answer.receiver
    fields = {"cumulative": receiver.cumulative, "largest": receiver.largest, "number": 1000, "hidden": True}
    return Ack(receiver.channel, **{**fields, **members})


def acks(**members):
    return lambda path: [write_frame(ack(path, **members))]


def raw_ack(path, tail=b"", flags=1, width=1, **members):
    """An ACK whose fields are written one by one, in integers of at least `width` bytes."""

    def wide(value):
        shortest = write_int(value)
        if len(shortest) >= width:
            return shortest
        return (value | {2: 1, 4: 2, 8: 3}[width] << (8 * width - 2)).to_bytes(width, "big")

    fields = ack(path, **members)
    numbers = (fields.channel, fields.number, fields.cumulative, fields.largest + 1, 0, 0, fields.unshown, 0)
    return bytes([0x11, flags]) + b"".join(map(wide, numbers)) + tail


def broken_checksum(path):
    frame = write_frame(ack(path), checked=True)
    return [frame[:-1] + bytes([frame[-1] ^ 1])]


def far(path):
    return path.answer.receiver.cumulative + 10**6


def channel_of(path):
    return path.answer.receiver.channel


IGNORED_FRAMES = [
    ("D-2.1", "an ACK of version 2", lambda p: [b"\x21" + write_frame(ack(p))[1:]]),
    ("D-2.4", "an ACK with a wrong checksum", broken_checksum),
    ("D-2.5", "an ACK cut at each of its bytes", lambda p: [write_frame(ack(p))[:n] for n in range(9)]),
    ("D-5.9", "an ACK with more unshown than arrived", lambda p: [raw_ack(p, unshown=far(p))]),
    ("D-5.2", "an ACK of bytes that were never sent", lambda p: [write_frame(ack(p, cumulative=far(p)))]),
    ("D-5.2", "an ACK of 2^53 - 1 bytes", acks(cumulative=2**53 - 1)),
    (
        "D-5.2",
        "an ACK with a range that was never sent",
        lambda p: [write_frame(ack(p, ranges=((far(p), far(p) + 9),)))],
    ),
    ("D-5.3", "an ACK of a packet that was never sent", acks(largest=10**6)),
    ("D-1.2", "an ACK with an integer of 2^53", lambda p: [raw_ack(p) + bytes.fromhex("c020000000000000") + b"\1"]),
    ("D-5.6", "an ACK with half a range", lambda p: [raw_ack(p, tail=b"\x05")]),
    ("D-5.6", "an ACK with an empty range", lambda p: [raw_ack(p, tail=b"\x05\x00"), raw_ack(p, tail=b"\x00\x05")]),
    ("D-5.6", "an ACK with nine ranges", lambda p: [raw_ack(p, tail=b"\x01\x01" * 9)]),
    ("D-5.6", "an ACK whose ranges pass 2^53", lambda p: [raw_ack(p, tail=write_int(2**53 - 1) * 2)]),
    ("D-2.5", "an ACK of another channel", lambda p: [write_frame(Ack(99, 1000, 0, hidden=True))]),
    (
        "D-2.5",
        "DATA and GONE",
        lambda p: [write_frame(Data(channel_of(p), 0, 0, b"x")), write_frame(Gone(channel_of(p)))],
    ),
    ("S-4.7", "a RESUME", lambda p: [write_frame(Resume(channel_of(p), p.answer.id, p.answer.token, 0))]),
    ("S-4.7", "a RESUME of a new channel", lambda p: [write_frame(Resume(77, p.answer.id, p.answer.token, 0))]),
    ("D-2.2", "frames of unassigned kinds", lambda p: [b"\x16\x00" + bytes(9), b"\x17\x1b\x00" + bytes(9)]),
    ("D-2.5", "nothing, and 900 bytes of ff", lambda p: [b"", b"\xff" * 900]),
    ("D-2.6", "PADDED within PADDED", lambda p: [write_padded(write_padded(write_frame(ack(p)), 40), 64)]),
    ("D-2.6", "PADDED around a checksum", lambda p: [write_padded(write_frame(ack(p), checked=True), 64)]),
    ("D-2.6", "PADDED whose length passes its end", lambda p: [b"\x15\x3f" + write_frame(ack(p))]),
    ("D-2.6", "PADDED around nothing", lambda p: [write_padded(b"", 64)]),
]

TAKEN_FRAMES = [
    ("D-5.1", "the highest number", acks()),
    ("D-1.1", "integers that are not the shortest", lambda p: [raw_ack(p, width=8)]),
    ("D-2.4", "a checksum", lambda p: [write_frame(ack(p), checked=True)]),
    ("D-2.6", "padding", lambda p: [write_padded(write_frame(ack(p)), 128)]),
    ("D-2.6", "padding of other bytes than 0", lambda p: [write_padded(write_frame(ack(p)), 0) + b"\xff" * 30]),
    (
        "D-5.7, S-2.7",
        "flags that nobody knows",
        lambda p: [raw_ack(p, flags=0x81), raw_ack(p, flags=0xFD, number=1001)],
    ),
]


def rows(table):
    return [pytest.param(build, marks=rules(rule), id=name) for rule, name, build in table]


async def frames_after(target, build, send):
    """Sends frames into a running answer, which must stay exact; how many DATA frames came after them."""
    async with connect(target.url) as session:
        answer, path = await session.ask(BODY)
        await answer.until_text(40)
        before = path.data_frames_in_datagrams
        for frame in build(path):
            send(session, path)(frame)
        assert await whole(answer, path) == await target.text(BODY)
        return path.data_frames_in_datagrams - before


@pytest.mark.parametrize("build", rows(IGNORED_FRAMES))
@scenario
async def test_ignored_frames(target, build):
    """Ignored without effect, as a datagram and as a FRAME message"""

    def both_ways(session, path):
        return lambda frame: (session.write_datagram(frame), path.send_frame(frame))

    counts = []
    while not counts or (counts[-1] < USUAL_FRAMES and len(counts) < ANSWERS):
        counts.append(await frames_after(target, build, both_ways))
    assert counts[-1] >= USUAL_FRAMES, counts


@pytest.mark.parametrize("build", rows(TAKEN_FRAMES))
@scenario
async def test_taken_acks(target, build):
    """An ACK is taken with"""
    counts = []
    while not counts or (counts[-1] > HIDDEN_FRAMES and len(counts) < ANSWERS):
        counts.append(await frames_after(target, build, lambda session, _: session.write_datagram))
    assert counts[-1] <= HIDDEN_FRAMES, counts


@rules("D-5.7, D-7.3")
@scenario
async def test_probes(target):
    """500 probes at once get a bounded number of answers"""
    count = await frames_after(
        target,
        lambda path: [write_frame(ack(path, number=1000 + n, hidden=False, probe=True)) for n in range(500)],
        lambda session, _: session.write_datagram,
    )
    assert count < 100


@rules("S-2.7")
@scenario
async def test_grease(target):
    """Unknown types, kinds, flags and members are skipped wherever they stand"""
    async with connect(target.url) as session:
        path = session.open_answer()
        grease = write_message(31 * 2 + 27, b"anything") + write_message(31 * 6 + 27)
        head = {**request_head("POST", COMPLETIONS, None, None), "channel": path.channel, "grease": {"any": [1]}}
        path.send(grease + write_head(Type.REQUEST, head) + grease)
        path.send(write_message(Type.BODY, json.dumps({**BODY, "grease": None}).encode()) + grease)
        path.send(write_message(Type.BODY) + grease)
        await path.head
        answer = path.answer
        await answer.until_text(20)
        path.send(grease)
        for kind in (27, 58, 31 * 40 + 27):
            session.write_datagram(b"\x17" + write_int(kind) + bytes(20))
            path.send_frame(b"\x17" + write_int(kind) + bytes(20))
        session.write_datagram(raw_ack(path, flags=0x80, number=answer.receiver.ack_number))
        assert await whole(answer, path) == await target.text(BODY)


@rules("D-3.5, S-2.1, S-2.7")
def test_grease_of_the_server():
    """The client skips records and messages of kinds that it does not know"""
    body = b"\x0f" + write_int(27) + b"anything"
    assert wire.read_record(write_int(len(body)) + body) == (len(body) + 1, None)
    stream = write_message(89, b"x") + write_message(Type.BODY, b"y") + write_message(213)
    assert list(MessageReader().feed(stream)) == [(Type.BODY, b"y")]


# --- Messages ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param(write_message(9), id="of an unknown type"),
        pytest.param(write_head(Type.REQUEST, request_head("GET", "/v1/models", None, None)), id="REQUEST"),
        pytest.param(write_message(Type.BODY, b"late"), id="BODY after its end"),
        pytest.param(write_message(Type.ANSWER, b"{}"), id="ANSWER"),
    ],
)
@rules("S-2.1, S-2.6")
@scenario
async def test_out_of_order(target, messages):
    """A message out of order within an answer resets the stream with code 1, and the answer can be resumed"""
    async with connect(target.url) as session:
        answer, path = await session.ask(BODY)
        await answer.until_text(20)
        path.send(messages)
        assert await path.ended is Code.MALFORMED
        assert path.writing_stopped in (None, Code.MALFORMED)
        _, path = await session.resume(answer)
        assert await whole(answer, path) == await target.text(BODY)


@rules("S-2.1, S-4.1")
@scenario
async def test_end_of_the_clients_side(target):
    """The end of the client's side is without effect after the request, and an error within a message"""
    async with connect(target.url) as session:
        answer, path = await session.ask(BODY)
        await answer.until_text(20)
        path.send(b"", end=True)
        assert await whole(answer, path) == await target.text(BODY)
        answer, path = await session.ask(BODY)
        await answer.until_text(20)
        path.send(b"\x04\x09\x11", end=True)
        assert await path.ended is Code.MALFORMED


def request(channel=0, **members):
    return write_head(Type.REQUEST, {**request_head("POST", COMPLETIONS, None, None), "channel": channel, **members})


def request_heads(wrong):
    """Heads of requests among the vectors: their JSON."""
    heads = [case for case in cases("messages") if case.get("head") == "REQUEST"]
    return [case["json"] for case in heads if ("error" in case) == wrong]


FIRST_MESSAGES = [
    ("BODY", write_message(Type.BODY, b"x")),
    ("RESPONSE", write_message(Type.RESPONSE, b'{"status":200,"headers":{}}')),
    ("ANSWER", write_message(Type.ANSWER, b"{}")),
    ("a FRAME with ACK", write_message(Type.FRAME, write_frame(Ack(0, 0, 0)))),
    ("a FRAME with STOP", write_message(Type.FRAME, write_frame(Stop(0)))),
    ("a FRAME with half a RESUME", write_message(Type.FRAME, write_frame(Resume(0, bytes(16), bytes(16), 0))[:20])),
    ("a length of 2^53 - 1", bytes([Type.REQUEST]) + write_int(2**53 - 1)),
    ("a length of 2^60", bytes([Type.REQUEST]) + (3 << 62 | 1 << 60).to_bytes(8, "big")),
    ("a head of 65 KiB", write_message(Type.REQUEST, b" " * 65 * 1024)),
    ("an unknown type below 64", write_message(63, b"x")),
]


@rules("S-2.1, S-2.3, S-4.1, S-2.5")
@pytest.mark.parametrize("message", [pytest.param(message, id=name) for name, message in FIRST_MESSAGES])
@scenario
async def test_first_messages(target, message):
    """Reset with code 1 as first message, and the connection stays usable"""
    async with connect(target.url) as session:
        exchange = session.open()
        exchange.send(message)
        assert await exchange.ended is Code.MALFORMED
        session.next_channel = 10
        answer, path = await session.ask(request_of(10))
        assert await whole(answer, path) == await target.text(request_of(10))


@rules("S-2.2, S-2.3, S-4.1")
@scenario
async def test_wrong_heads(target):
    """Each wrong head of a request among the vectors is reset with code 1"""
    async with connect(target.url) as session:
        for head in request_heads(wrong=True):
            exchange = session.open()
            exchange.send(write_message(Type.REQUEST, head.encode()), end=True)
            assert await exchange.ended is Code.MALFORMED, head


@rules("S-2.2, S-2.3")
@scenario
async def test_right_heads(target):
    """Each right head of a tunnelled request among the vectors is responded to"""
    async with connect(target.url) as session:
        for head in request_heads(wrong=False):
            if json.loads(head).get("channel") is None:
                exchange = session.open()
                exchange.send(write_message(Type.REQUEST, head.encode()), end=True)
                assert (await exchange.head).status == 200, head
                assert await exchange.ended is None


@rules("S-2.1")
@pytest.mark.parametrize("size", [1, 30], ids=["1 byte", "30 bytes"])
@scenario
async def test_cut_request(target, size):
    """A request that the end of the QUIC stream cuts short is reset with code 1"""
    async with connect(target.url) as session:
        exchange = session.open()
        exchange.send(request()[:size], end=True)
        assert await exchange.ended is Code.MALFORMED


@rules("S-2.1, S-2.4")
@scenario
async def test_oversized_body(target):
    """A body beyond the server's limit is refused with 413 or code 1, and the connection stays usable"""
    async with connect(target.url) as session:
        try:
            await session.ask({**BODY, "user": "x" * 9 * 1024 * 1024})
            raise AssertionError("a body of 9 MiB was taken")
        except Refused as refused:
            assert refused.response.status == 413
        except StreamEnded as ended:
            assert ended.code is Code.MALFORMED
        answer, path = await session.ask(BODY)
        assert await whole(answer, path) == await target.text(BODY)


@rules("S-4.2")
@scenario
async def test_refused_by_response(target):
    """A body that is no JSON and a path without answers are refused by a RESPONSE"""
    async with connect(target.url) as session:
        with pytest.raises(Refused) as refused:
            await session.ask([])
        assert refused.value.response.status == 400
        with pytest.raises(Refused) as refused:
            await session.ask(BODY, path="/v1/models")
        assert refused.value.response.status in (400, 404, 405)


@rules("S-7.1")
@scenario
async def test_many_streams(target):
    """A hundred requests at once on one connection are answered or refused, each for itself"""
    async with connect(target.url) as session:

        async def one():
            try:
                answer, path = await session.ask(request_of(5))
                return await whole(answer, path)
            except (Refused, StreamEnded) as refused:
                return refused

        results = await asyncio.gather(*(one() for _ in range(100)))
        expected = await target.text(request_of(5))
        assert expected in results
        assert all(result == expected for result in results if isinstance(result, str))
        assert all(r.response.status == 429 for r in results if isinstance(r, Refused))
