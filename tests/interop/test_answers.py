"""Answers over native QUIC and WebTransport, through loss, and what ends them."""

import asyncio
import json

import httpx
import pytest

from .checks import rules
from .client.chunks import ChunkWriter
from .client.events import delete_answer, resume_events
from .client.messages import Code
from .client.session import COMPLETIONS, Refused, StreamEnded, connect, discover
from .client.webtransport import ALPN, WebTransportRefused, WebTransportSession
from .client.wire import Data, Usage, read_frame
from .conftest import PACE, request_of, scenario
from .loss import lossy_session


async def whole(answer, path):
    """Waits for an answer's end, and that the server ends its path cleanly (S-4.6)."""
    await answer.until(lambda: answer.outcome is not None or path.ended.done())
    assert answer.is_complete, f"{answer.outcome}, path {path.ended}"
    assert await path.ended is None
    return answer.text()


def webtransport(url):
    return connect(url, create=WebTransportSession, alpn=ALPN)


@rules("S-1.3")
@scenario
async def test_discovery(target):
    """The document tells where QUIC is, without a key, and so does its older name"""
    document = await discover(target.url)
    assert document.path == "/loquent/1" and document.certificate_sha256
    async with httpx.AsyncClient(base_url=target.url) as http:
        paths = ("/.well-known/loquent", "/v1/delivery")
        documents = [(await http.get(path)).json() for path in paths]
    for document in documents:
        document.pop("grease", None)  # S-2.7
    assert documents[0] == documents[1]


@rules("S-4.1 to S-4.6, D-2 to D-5")
@scenario
async def test_native(target):
    """An answer over native QUIC is the text of plain HTTP"""
    body = request_of(120)
    async with connect(target.url) as session:
        answer, path = await session.ask(body)
        assert await whole(answer, path) == await target.text(body)
        assert path.data_frames_in_datagrams > 20
        usage = [record for record in answer.records if isinstance(record, Usage)]
        assert not usage or usage[-1].completion == 120


@rules("S-1.1, S-1.2, S-1.4")
@scenario
async def test_webtransport(target):
    """An answer over WebTransport, and a tunnelled request beside it"""
    body = request_of(120)
    async with webtransport(target.url) as session:
        answer, path = await session.ask(body)
        models = await session.request("GET", "/v1/models")
        assert models.status == 200 and models.json()["data"]
        assert await whole(answer, path) == await target.text(body)
        assert path.data_frames_in_datagrams > 20


#: SETTINGS_WEBTRANSPORT_MAX_SESSIONS (draft-ietf-webtrans-http3-07, 8.2).
MAX_SESSIONS = 0xC671706A


@rules("S-1.1, S-1.2")
@scenario
async def test_webtransport_as_in_safari(target):
    """A session as Safari opens it: without the second draft's header, after the seventh's setting"""

    class Safari(WebTransportSession):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.draft02 = None

    body = request_of(20)
    async with connect(target.url, create=Safari, alpn=ALPN) as session:
        answer, path = await session.ask(body)
        assert await whole(answer, path) == await target.text(body)
        # Without it Safari 26.4 takes its CONNECT back. Above 1 it wants initial credit as well
        # (quic-go/webtransport-go#355).
        assert session.h3.received_settings[MAX_SESSIONS] == 1


@rules("S-1.4")
@pytest.mark.parametrize(
    "origin, at, status",
    [("https://elsewhere.example", None, 403), (None, "/loquent/9", 404)],
    ids=["another origin, 403", "another path, 404"],
)
@scenario
async def test_webtransport_refused(target, origin, at, status):
    """A WebTransport session that the server does not allow is refused"""

    class Stranger(WebTransportSession):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.origin, self.path = origin, at

    with pytest.raises(WebTransportRefused) as refused:
        async with connect(target.url, create=Stranger, alpn=ALPN):
            pass
    assert refused.value.status == status
    if origin:
        # A page shows no error, but reads event streams: only the log tells its operator why.
        assert origin in target.server.heard("--cors-origin")


@rules("S-4.1 to S-4.3")
@scenario
async def test_bundled_model(bundled):
    """The bundled model at temperature 0, two answers at once on one connection"""
    bodies = [
        {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 60}
        for text in ("What is token streaming?", "Who are you?")
    ]
    async with connect(bundled.url) as session:
        paths = [await session.ask(body) for body in bodies]
        for body, (answer, path) in zip(bodies, paths):
            assert await whole(answer, path) == await bundled.text(body)


@rules("D-3.1, D-3.4")
@scenario
async def test_choices(target):
    """Several choices of one request are told apart"""
    async with connect(target.url) as session:
        answer, path = await session.ask(request_of(40, n=2))
        await whole(answer, path)
        assert answer.text(0) and answer.text(1)


@rules("S-3.1, S-2.3")
@scenario
async def test_tunnel(target):
    """A tunnelled completion, whole and as server-sent events, is what HTTP answers"""
    body = request_of(30)
    async with connect(target.url) as session:
        response = await session.request("POST", COMPLETIONS, json.dumps(body).encode())
        assert response.json()["choices"][0]["message"]["content"] == await target.text(body)
        response = await session.request("POST", COMPLETIONS, json.dumps({**body, "stream": True}).encode())
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.body.endswith(b"data: [DONE]\n\n")
        assert (await session.request("GET", "/no/such/page")).status == 404


@rules("S-2.3, S-2.4, S-4.2")
@scenario
async def test_keys(start):
    """A missing key is refused by 401, `key` and `authorization` count, on every kind of request"""
    target = start("--simulate", "100", "--api-key", "secret")
    bearer = {"authorization": "Bearer secret"}
    body = request_of(10)
    async with connect(target.url) as session:
        with pytest.raises(Refused) as refused:
            await session.ask(body)
        assert refused.value.response.status == 401
        for how in ({"key": "secret"}, {"headers": bearer}):
            answer, path = await session.ask(body, **how)
            assert await whole(answer, path) == await target.text(body, bearer)
            assert (await session.request("GET", "/v1/models", **how)).status == 200


@rules("S-4.1")
@scenario
async def test_body_members(target):
    """`stream` and `resumable` in the body are ignored"""
    body = request_of(20)
    async with connect(target.url) as session:
        for members in ({"stream": False}, {"stream": True, "resumable": False}):
            answer, path = await session.ask({**body, **members})
            assert await whole(answer, path) == await target.text(body)


@rules("S-4.1")
@scenario
async def test_stream_options_without_stream(target):
    """What needs `stream` over HTTP does not need it in a request for an answer by datagram"""
    body = request_of(20)
    async with connect(target.url) as session:
        answer, path = await session.ask({**body, "stream_options": {"include_usage": True}})
        assert await whole(answer, path) == await target.text(body)


@rules("S-6.1 to S-6.5")
@pytest.mark.parametrize(
    "members",
    [{}, {"n": 2}, {"logprobs": True}]
    + [{"stream_options": {"include_usage": True, **more}} for more in ({}, {"continuous_usage_stats": True})],
    ids=["plain", "two choices", "logprobs", "usage", "continuous usage"],
)
@scenario
async def test_chunks(bundled, members):
    """The records of an answer are the chunks and ids of its event stream"""
    url = bundled.url
    body = {"messages": [{"role": "user", "content": "Who are you?"}], "temperature": 0, "max_tokens": 20, **members}
    async with connect(url) as session:
        answer, path = await session.ask(body)
        await whole(answer, path)
    async with resume_events(url, answer.id, answer.token, 0) as events:
        await events.read()
    writer = ChunkWriter()
    written = [event for shown in answer.log for event in writer.write(shown)]
    assert [(event.id, plain(event)) for event in events.events] == [(event.id, plain(event)) for event in written]
    assert events.is_complete


def plain(event):
    """An event without what differs from reading to reading (S-6.6), or that the text leaves open."""
    if event.is_done:
        return event.data
    chunk = event.json()
    chunk.pop("obfuscation", None)
    return chunk


# --- Loss ----------------------------------------------------------------------------------------


@rules("D-2.5, D-5, D-9, section 8")
@pytest.mark.parametrize("seed", [1, 2], ids=["seed 1", "seed 2"])
@scenario
async def test_loss_each_way(lossy, seed):
    """30 % of all UDP datagrams lost each way: exact text"""
    target, relay = lossy("--simulate", "50", loss=0.3, seed=seed)
    body = request_of(150)
    async with connect(target.url) as session:
        answer, path = await session.ask(body)
        assert await whole(answer, path) == await target.text(body)
    assert relay.lost > 50


@rules("S-1.2, D-5, D-9")
@scenario
async def test_webtransport_loss(lossy):
    """30 % of all UDP datagrams lost each way under WebTransport: exact text"""
    target, relay = lossy("--simulate", "50", loss=0.3, seed=3)
    body = request_of(100)
    async with webtransport(target.url) as session:
        answer, path = await session.ask(body)
        assert await whole(answer, path) == await target.text(body)
    assert relay.lost > 30


async def whole_in_time(target, session, answer, path):
    """The answer's text, which is there soon after an event stream beside it has ended.

    How long the server takes for its tokens is the machine's business.
    """

    async def by_events():
        async with resume_events(target.url, answer.id, answer.token, 0) as events:
            await events.read()
            return session.now_us()

    async def by_quic():
        return await whole(answer, path), session.now_us()

    generated_us, (text, whole_us) = await asyncio.gather(by_events(), by_quic())
    behind_s = (whole_us - generated_us) / 1e6
    assert behind_s < 5, f"{behind_s} s behind"
    return text


@rules("S-4.4")
@scenario
async def test_upstream_datagrams_lost(target):
    """All datagrams of the client lost while QUIC lives: the answer is whole, and on time"""
    tokens = 12 * PACE  # longer than the 10 s after which a sender stops (D-7.2)
    body = request_of(tokens)
    async with connect(target.url, create=lossy_session(up=1.0)) as session:
        answer, path = await session.ask(body)
        text = await whole_in_time(target, session, answer, path)
    assert text == await target.text(body)
    assert session.lost_up > 0


@rules("S-4.4")
@scenario
async def test_all_datagrams_lost(target):
    """All datagrams lost both ways while QUIC lives: the log comes in FRAME messages, whole and on time"""
    tokens = 2 * PACE
    body = request_of(tokens)
    async with connect(target.url, create=lossy_session(up=1.0, down=1.0)) as session:
        answer, path = await session.ask(body)
        text = await whole_in_time(target, session, answer, path)
    assert text == await target.text(body)
    assert path.data_frames_on_stream > 0 and path.data_frames_in_datagrams == 0


@rules("S-4.4, S-1.2")
@scenario
async def test_no_datagrams(target):
    """A client that offers no datagrams is served in FRAME messages at once"""
    body = request_of(60)
    async with connect(target.url, datagrams=0) as session:
        answer, path = await session.ask(body)
        await answer.until_text(1)
        assert path.data_frames_on_stream > 0
        assert await whole(answer, path) == await target.text(body)
        numbers = answer.receiver.packets
        assert max(numbers) - min(numbers) < 60, "no number is used for what could not be sent (D-4.1)"


class Mute(lossy_session()):
    """A client that never acknowledges, on any way."""

    def write_datagram(self, data):
        pass


@rules("S-4.11, D-7.2")
@scenario
async def test_never_acknowledging(target):
    """A client that never acknowledges is broken off with code 2, and can resume"""
    body = request_of(3 * PACE)
    async with connect(target.url, create=Mute) as session:
        answer, path = await session.ask(body)
        path.send_frame = lambda frame: None
        code = await path.ended
        assert code is Code.BROKEN_OFF
        del path.send_frame
    async with connect(target.url) as session:
        _, path = await session.resume(answer)
        assert await whole(answer, path) == await target.text(body)


@rules("D-7.6")
@scenario
async def test_small_datagrams(target):
    """A client that takes only small datagrams is sent frames that fit"""
    sizes = []

    class Noting(lossy_session()):
        def handle_datagram(self, data):
            sizes.append(len(data))
            super().handle_datagram(data)

    body = request_of(80)
    async with connect(target.url, create=Noting, datagrams=200) as session:
        answer, path = await session.ask(body)
        assert await whole(answer, path) == await target.text(body)
    assert sizes and max(sizes) <= 200


# --- Padding -------------------------------------------------------------------------------------

#: Of a sender that nobody configured (D-2.7).
PADDING_STEP = 24


async def frame_lengths(target, **members):
    """The lengths of the datagrams that carried log bytes of an answer."""
    lengths = []

    class Noting(lossy_session()):
        def handle_datagram(self, data):
            frame = read_frame(data)
            if isinstance(frame, Data) and frame.bytes:
                lengths.append(len(data))
            super().handle_datagram(data)

    body = request_of(60, **members)
    async with connect(target.url, create=Noting) as session:
        answer, path = await session.ask(body)
        assert await whole(answer, path) == await target.text(request_of(60))
    return lengths


@rules("D-2.6, D-2.7")
@scenario
async def test_padding(target):
    """DATA with log bytes is padded to multiples of the step"""
    lengths = await frame_lengths(target)
    assert len(lengths) > 10 and all(length % PADDING_STEP == 0 for length in lengths), lengths


@rules("D-2.7, S-6.6")
@scenario
async def test_padding_declined(target):
    """A request that declines padding is sent none"""
    lengths = await frame_lengths(target, stream_options={"include_obfuscation": False})
    assert any(length % PADDING_STEP for length in lengths)


# --- Ends ----------------------------------------------------------------------------------------


async def begun(session, tokens=4 * PACE):
    answer, path = await session.ask(request_of(tokens))
    await answer.until_text(10)
    return answer, path


async def assert_gone(target, answer):
    """The answer is unknown over QUIC and over HTTP alike."""
    async with connect(target.url) as session:
        with pytest.raises(StreamEnded):
            await session.resume_from(answer.id, answer.token, 0)
    with pytest.raises(httpx.HTTPStatusError) as refused:
        async with resume_events(target.url, answer.id, answer.token, 0):
            pass
    assert refused.value.response.status_code == 404


@rules("S-4.5")
@scenario
async def test_cancel_by_reset(target):
    """A reset with code 3 cancels: the answer is gone"""
    async with connect(target.url) as session:
        answer, path = await begun(session)
        path.reset(Code.CANCELLED)
        await session.request("GET", "/v1/models")  # the reset has arrived when this is answered
        await until_gone(target, answer)


async def until_gone(target, answer):
    """Waits until the server has forgotten an answer; the test's own limit ends it otherwise."""
    while True:
        try:
            await assert_gone(target, answer)
            return
        except pytest.fail.Exception:
            await asyncio.sleep(0.05)


@rules("S-4.5, S-2.6")
@pytest.mark.parametrize("way", ["in a FRAME message", "in a datagram"])
@scenario
async def test_stop(target, way):
    """A STOP frame ends the path with code 5, and the answer is gone"""
    async with connect(target.url) as session:
        answer, path = await begun(session)
        if way == "in a datagram":
            path.send_frame = session.write_datagram
        path.stop()
        assert await path.ended is Code.STOPPED
        await until_gone(target, answer)


@rules("S-5.3, S-2.6")
@scenario
async def test_delete(target):
    """DELETE of an answer that travels over QUIC ends its path with code 5"""
    async with connect(target.url) as session:
        answer, path = await begun(session)
        assert await delete_answer(target.url, answer.id, answer.token) == 204
        assert await path.ended is Code.STOPPED
        await until_gone(target, answer)


@rules("S-2.6, S-4.5")
@pytest.mark.parametrize("code", [0, 2, 77], ids=["code 0", "code 2", "code 77"])
@scenario
async def test_reset_without_cancelling(target, code):
    """A reset with another code keeps the answer for a resume"""
    async with connect(target.url) as session:
        answer, path = await begun(session, 120)
        path.reset(code)
        _, path = await session.resume(answer)
        assert await whole(answer, path) == await target.text(request_of(120))


@rules("S-4.5")
@scenario
async def test_stop_sending(target):
    """STOP_SENDING does not cancel"""
    async with connect(target.url) as session:
        answer, path = await begun(session, 120)
        session._quic.stop_stream(path.stream_id, Code.CANCELLED)
        session.transmit()
        await answer.until(lambda: answer.outcome is not None)
        assert answer.text() == await target.text(request_of(120))


@rules("S-2.6")
@scenario
async def test_shutdown(start):
    """A server that ends says so with code 6 where it cannot finish"""
    target = start("--simulate", "20", "--drain-timeout-s", "1")
    async with connect(target.url) as session:
        answer, path = await begun(session, 2000)
        target.server.terminate()
        await answer.until(lambda: answer.outcome is not None or path.ended.done())
        assert not answer.is_complete
        if answer.outcome is None:
            assert await path.ended is Code.SHUTTING_DOWN


@rules("S-4.8, D-5.7, section 8")
@scenario
async def test_hidden(target):
    """A hidden page is served rarely, and whole once it is seen again"""
    body = request_of(8 * PACE)
    async with connect(target.url) as session:
        answer, path = await session.ask(body)
        await answer.until_text(20)
        path.set_hidden(True)
        # How many frames had come before each silence of half a second.
        silences, last = [], [path.data_frames_in_datagrams, session.now_us()]

        def three_silences():
            frames, now_us = path.data_frames_in_datagrams, session.now_us()
            if frames > last[0]:
                if now_us - last[1] >= 500_000:
                    silences.append(last[0])
                last[:] = frames, now_us
            return len(silences) == 3 or answer.outcome is not None

        await answer.until(three_silences)
        assert answer.outcome is None, f"only {len(silences)} silences"
        assert silences[2] - silences[0] <= 8, "about one a second, and repetitions"
        path.set_hidden(False)
        assert await whole(answer, path) == await target.text(body)


@rules("D-5.9, D-9.8")
@scenario
async def test_paced_reader(target):
    """A reader that shows text slowly gets it whole and later"""
    body = request_of(60)
    async with connect(target.url) as session:
        answer, _ = await session.ask(body, tokens_per_s=50)
        began_us = session.now_us()
        await answer.until(lambda: answer.outcome is not None)
        assert answer.text() == await target.text(body)
        assert session.now_us() - began_us > 1_000_000
