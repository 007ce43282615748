"""Answers that go on elsewhere: other connections, event streams, repeated requests, and who may not."""

import json
import uuid

import httpx
import pytest

from .checks import rules
from .client.events import ask_events, resume_events
from .client.messages import Code, Type, write_head, write_message
from .client.session import COMPLETIONS, Refused, StreamEnded, connect, request_head
from .client.webtransport import ALPN, WebTransportSession
from .client.wire import EPOCH, Ack, Done, Stop, write_frame
from .conftest import request_of, scenario
from .test_answers import begun, whole

TOKENS = 150


@rules("S-4.5, S-4.7, D-6.1 to D-6.4")
@scenario
async def test_new_connection(target):
    """A connection vanishes without a word; the answer goes on over another, with the bytes that were kept"""
    async with connect(target.url) as first:
        answer, _ = await begun(first, TOKENS)
        first.vanish()
    seen = len(answer.text())
    async with connect(target.url) as second:
        _, path = await second.resume(answer)
        assert await whole(answer, path) == await target.text(request_of(TOKENS))
    assert 0 < seen < len(answer.text())


@rules("S-4.10")
@scenario
async def test_another_port(target):
    """A client that moves to another local port keeps its connection and its answer"""
    async with connect(target.url) as session:
        answer, path = await begun(session, TOKENS)
        await session.move()
        assert answer.outcome is None
        assert await whole(answer, path) == await target.text(request_of(TOKENS))


@rules("S-4.7, S-5.4, D-4.1, D-6.3")
@scenario
async def test_two_readers(target):
    """A second reader gets the whole answer, its packet numbers continue, and the first is not disturbed"""
    async with connect(target.url) as first, connect(target.url) as second:
        answer, path = await begun(first, TOKENS)
        before = answer.receiver.largest
        other, other_path = await second.resume_from(answer.id, answer.token, 0)
        text = await target.text(request_of(TOKENS))
        assert await whole(other, other_path) == text
        assert min(other.receiver.packets) > before
        assert await whole(answer, path) == text


@rules("S-5.4")
@scenario
async def test_two_readers_of_one_connection(target):
    """Two channels of one connection are two readers, each with its own offset"""
    async with connect(target.url) as session:
        answer, path = await begun(session, TOKENS)
        seen, text = answer.offset, answer.text()
        other, other_path = await session.resume_from(answer.id, answer.token, seen)
        whole_text = await target.text(request_of(TOKENS))
        assert text + await whole(other, other_path) == whole_text
        assert await whole(answer, path) == whole_text


@rules("S-5.4, D-6.3")
@scenario
async def test_slow_reader(target):
    """A reader that acknowledges nothing does not hold the others"""
    async with connect(target.url) as first, connect(target.url) as second:
        answer, _ = await begun(first, TOKENS)
        first.vanish()
        _, path = await second.resume(answer)
        assert await whole(answer, path) == await target.text(request_of(TOKENS))


@rules("S-4.5, S-2.6, D-6.6")
@scenario
async def test_stop_for_all(target):
    """A STOP of one reader stops the answer for all, with code 5"""
    async with connect(target.url) as first, connect(target.url) as second:
        answer, path = await begun(first, TOKENS)
        other, other_path = await second.resume_from(answer.id, answer.token, 0)
        await other.until_text(10)
        other_path.stop()
        assert await other_path.ended is Code.STOPPED
        assert await path.ended is Code.STOPPED


@rules("D-6.3, D-2.5")
@scenario
async def test_path_that_is_over(target):
    """STOP and ACK on a path that is over are ignored"""
    async with connect(target.url) as session:
        answer, old_path = await begun(session, TOKENS)
        old_channel = answer.receiver.channel
        old_path.reset(Code.BROKEN_OFF)
        await session.request("GET", "/v1/models")  # the reset has arrived when this is answered
        _, path = await session.resume(answer)
        for frame in (Stop(old_channel), Ack(old_channel, 1000, answer.receiver.cumulative, hidden=True)):
            session.write_datagram(write_frame(frame))
        assert await whole(answer, path) == await target.text(request_of(TOKENS))


@rules("D-6.4")
@scenario
async def test_bytes_lost(target):
    """A client that kept nothing resumes from the end of the last record that it has shown"""
    async with connect(target.url) as first:
        answer, _ = await begun(first, TOKENS)
        first.vanish()
    async with connect(target.url) as second:
        rest, path = await second.resume_from(answer.id, answer.token, answer.offset)
        assert answer.text() + await whole(rest, path) == await target.text(request_of(TOKENS))


@rules("S-4.7, D-6.4")
@scenario
async def test_again_from_the_beginning(target):
    """An answer that has ended is kept for the grace period, and read again from offset 0"""
    async with connect(target.url) as session:
        answer, path = await session.ask(request_of(20))
        text = await whole(answer, path)
        again, path = await session.resume_from(answer.id, answer.token, 0)
        assert await whole(again, path) == text


@rules("D-6.4, D-7.2, S-4.6")
@scenario
async def test_from_the_end(target):
    """A RESUME from the end of a log that has its last record is served, and ends at once"""
    async with connect(target.url) as session:
        answer, path = await session.ask(request_of(20))
        await whole(answer, path)
        assert isinstance(answer.records[-1], Done)
        _, path = await session.resume(answer)
        assert await path.ended is None
    async with resume_events(target.url, answer.id, answer.token, answer.offset) as events:
        await events.read()
        assert events.events == []


async def not_found(url, name, token, offset):
    """An event stream from there is refused with 404."""
    with pytest.raises(httpx.HTTPStatusError) as refused:
        async with resume_events(url, name, token, offset):
            pass
    assert refused.value.response.status_code == 404


@rules("D-6.2, D-6.5, S-4.7, S-5.2")
@scenario
async def test_gone(target):
    """A wrong token, an unknown id and an offset beyond the head are GONE, over HTTP 404"""
    async with connect(target.url) as session:
        answer, path = await session.ask(request_of(20))
        await whole(answer, path)
        name, token, end = answer.id, answer.token, answer.offset
        wrong = bytes([token[0] ^ 1]) + token[1:]
        for asked in ((name, wrong, 0), (wrong, token, 0), (name, token, end + 1)):
            with pytest.raises(StreamEnded):
                await session.resume_from(*asked)
            await not_found(target.url, *asked)


@rules("D-6.4, S-5.2")
@scenario
async def test_inside_a_record(target):
    """An offset within a record is served over QUIC, and is 404 over HTTP"""
    async with connect(target.url) as session:
        answer, path = await session.ask(request_of(20))
        await whole(answer, path)
        inside = answer.log[0].offset - 1
        await not_found(target.url, answer.id, answer.token, inside)
        _, path = await session.resume_from(answer.id, answer.token, inside)
        assert (await path.head).offset == inside


@rules("D-6.8, S-4.2, S-5.2")
@scenario
async def test_another_epoch(target):
    """A position of an epoch that the log never had is refused: GONE over QUIC, 404 over HTTP"""
    async with connect(target.url) as session:
        answer, path = await session.ask(request_of(20))
        await whole(answer, path)
        assert (await path.head).epoch == 0
        other = EPOCH + answer.offset
        await not_found(target.url, answer.id, answer.token, other)
        with pytest.raises(StreamEnded):
            await session.resume_from(answer.id, answer.token, other)


@rules("S-5.2, S-5.4, D-6.3")
@scenario
async def test_to_events_and_back(target):
    """From QUIC to an event stream and back: each byte once, and the event stream goes on beside it"""
    async with connect(target.url) as session:
        answer, path = await begun(session, 300)
        path.abandon()  # what arrives from here on is left to the event stream
        begin, offset = answer.text(), answer.offset
        async with resume_events(target.url, answer.id, answer.token, offset) as events:
            middle = await events.read(characters=40)
            rest, path = await session.resume_from(answer.id, answer.token, events.offset)
            end = await whole(rest, path)
            assert await events.read() == middle + end
            assert events.is_complete
        assert begin and middle and begin + middle + end == await target.text(request_of(300))


@rules("S-5.4")
@scenario
async def test_events_beside_datagrams(target):
    """An event stream and a QUIC path read one answer at once"""
    async with connect(target.url) as session:
        answer, path = await begun(session, TOKENS)
        async with resume_events(target.url, answer.id, answer.token, 0) as events:
            text = await target.text(request_of(TOKENS))
            assert await events.read() == text
            assert await whole(answer, path) == text


@rules("S-5.1, S-4.7")
@scenario
async def test_events_to_quic(target):
    """An answer that began as an event stream goes on over QUIC"""
    async with ask_events(target.url, request_of(TOKENS)) as events:
        begin = await events.read(characters=30)
    async with connect(target.url) as session:
        rest, path = await session.resume_from(events.id, events.token, events.offset)
        assert begin + await whole(rest, path) == await target.text(request_of(TOKENS))


@rules("S-1.2, S-4.7")
@scenario
async def test_webtransport_to_native(target):
    """An answer that began over WebTransport goes on over native QUIC"""
    async with connect(target.url, create=WebTransportSession, alpn=ALPN) as first:
        answer, _ = await begun(first, TOKENS)
        first.vanish()
    async with connect(target.url) as second:
        _, path = await second.resume(answer)
        assert await whole(answer, path) == await target.text(request_of(TOKENS))


@rules("S-4.9")
@scenario
async def test_repeated_request(target):
    """A request repeated with its idempotency key joins the answer, over QUIC and over HTTP"""
    body = request_of(200)
    headers = {"idempotency-key": uuid.uuid4().hex}
    async with connect(target.url) as session:
        answer, path = await session.ask(body, headers=headers)
        await answer.until_text(10)
        same, same_path = await session.ask(body, headers=headers)
        assert (same.id, same.token) == (answer.id, answer.token)
        await same.until_text(10)
        text = await target.text(body)
        async with ask_events(target.url, body, headers=headers) as events:
            assert (events.id, events.token) == (answer.id, answer.token)
            assert await events.read() == text
            assert events.is_complete
        assert await whole(answer, path) == text
        assert await whole(same, same_path) == text


@rules("S-4.9")
@scenario
async def test_repeated_otherwise(target):
    """A repeated idempotency key with another body is refused with 400"""
    headers = {"idempotency-key": uuid.uuid4().hex}
    async with connect(target.url) as session:
        await session.ask(request_of(50), headers=headers)
        with pytest.raises(Refused) as refused:
            await session.ask(request_of(51), headers=headers)
        assert refused.value.response.status == 400


@rules("S-4.1")
@pytest.mark.parametrize("when", ["in use", "its answer has ended"])
@scenario
async def test_used_channel(target, when):
    """A channel that the connection has used is refused with code 1"""
    async with connect(target.url) as session:
        answer, path = await session.ask(request_of(20))
        if when != "in use":
            await whole(answer, path)
        session.next_channel = answer.receiver.channel
        with pytest.raises(StreamEnded) as ended:
            await session.ask(request_of(20))
        assert ended.value.code is Code.MALFORMED
        session.next_channel = answer.receiver.channel
        with pytest.raises(StreamEnded) as ended:
            await session.resume_from(bytes(16), bytes(16), 0)
        assert ended.value.code is Code.MALFORMED
        await session.ask(request_of(5))


@rules("S-3.2, S-4.5")
@scenario
async def test_tunnelled_events_stopped(target):
    """An event stream in the tunnel is reset, not ended, when another reader stops its answer"""
    body = {**request_of(200), "stream": True, "resumable": True}
    async with connect(target.url) as session:
        exchange = session.open()
        exchange.send(write_head(Type.REQUEST, request_head("POST", COMPLETIONS, None, None)))
        exchange.send(write_message(Type.BODY, json.dumps(body).encode()), end=True)
        response = await exchange.head
        name, token = (bytes.fromhex(response.headers[f"x-loquent-stream-{it}"]) for it in ("id", "token"))
        rest, path = await session.resume_from(name, token, 0)
        await rest.until_text(10)
        path.stop()
        assert await path.ended is Code.STOPPED
        assert await exchange.ended in (Code.BROKEN_OFF, Code.STOPPED)
