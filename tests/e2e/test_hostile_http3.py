"""HTTP/3 and WebTransport frames that break their rules (RFC 9114, RFC 9204, draft-ietf-webtrans-http3), byte by byte.

Whatever a stranger sends, the server goes on, an honest session is let in at once, and nothing is kept.
"""

import asyncio
import contextlib
import json
import pathlib
import ssl
import sys
import urllib.request

import pytest

from conftest import BINARY, Server

pytest.importorskip("aioquic")
from aioquic.asyncio import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.buffer import encode_uint_var
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, StreamDataReceived

pytestmark = pytest.mark.skipif(not pathlib.Path(BINARY).exists(), reason="the binary is not built")
PATIENCE_S = 20
#: How long a stranger stays to hear what the server makes of its frames.
STAYS_S = 0.2
#: What a server may hold more after all strangers, in KiB.
MOST_KIB = 24 << 10
#: The largest integer of QUIC (RFC 9000, section 16).
LARGEST = (1 << 62) - 1

# Types of streams and frames (RFC 9114, sections 6.2 and 7.2; draft-ietf-webtrans-http3, sections 4.1 and 4.2).
CONTROL, PUSH, ENCODER, DECODER, WEBTRANSPORT_UNI = 0x00, 0x01, 0x02, 0x03, 0x54
DATA, HEADERS, CANCEL_PUSH, SETTINGS, PUSH_PROMISE, GOAWAY, MAX_PUSH_ID = 0x00, 0x01, 0x03, 0x04, 0x05, 0x07, 0x0D
WEBTRANSPORT_BIDI, CLOSE_SESSION, DATAGRAM_CAPSULE = 0x41, 0x2843, 0x00


def ints(*values):
    return b"".join(encode_uint_var(value) for value in values)


def frame(kind, payload=b"", length=None):
    return ints(kind, len(payload) if length is None else length) + payload


def setting(*pairs):
    return frame(SETTINGS, ints(*pairs))


def literal(name, value):
    """A field line with a literal name (RFC 9204, section 4.5.6)."""
    name, value = name.encode(), value.encode()
    length = bytes([0x20 | len(name)]) if len(name) < 7 else bytes([0x27, len(name) - 7])
    return length + name + prefixed(len(value), 7) + value


def prefixed(value, bits):
    """An integer with a prefix of some bits (RFC 7541, section 5.1)."""
    most = (1 << bits) - 1
    if value < most:
        return bytes([value])
    rest, out = value - most, [most]
    while rest >= 128:
        out.append(rest % 128 | 128)
        rest //= 128
    return bytes([*out, rest])


def head(**fields):
    """HEADERS of a WebTransport session, with some fields changed or, where they are nothing, left out."""
    usual = {"method": "CONNECT", "protocol": "webtransport", "scheme": "https", "authority": "127.0.0.1"}
    fields = {**usual, "path": "/loquent/1", **fields}
    lines = [literal(f":{name}", value) for name, value in fields.items() if value is not None]
    return frame(HEADERS, b"\0\0" + b"".join(lines))


def control(*frames):
    """A control stream."""
    return UNI, ints(CONTROL) + b"".join(frames)


def asks(*frames):
    """A stream of a request."""
    return BIDI, b"".join(frames)


UNI, BIDI, DATAGRAM = "uni", "bidi", "datagram"
#: CONNECT with a protocol, datagrams, and WebTransport as the second draft and the seventh call it.
USUAL = control(setting(0x08, 1, 0x33, 1, 0x2B603742, 1, 0xC671706A, 1))
MANY = 400
STRANGERS = {
    "settings twice": [control(setting(), setting())],
    "settings of HTTP/2": [control(setting(0x02, 1, 0x03, 1, 0x04, 1, 0x05, 1))],
    "one setting in many values": [control(setting(*(0x33, 1) * 5000))],
    "settings of unlimited length": [control(frame(SETTINGS, bytes(1000), LARGEST))],
    "half a setting": [control(frame(SETTINGS, b"\x40"))],
    "the largest settings": [control(setting(LARGEST, LARGEST, 0x06, LARGEST, 0x07, LARGEST, 0x01, LARGEST))],
    "no settings": [control(frame(GOAWAY, ints(0)))],
    "data on the control stream": [control(setting(), frame(DATA, b"x"))],
    "two control streams": [USUAL, USUAL],
    "a push stream": [USUAL, (UNI, ints(PUSH, 0) + head())],
    "a promise of a client": [USUAL, asks(frame(PUSH_PROMISE, ints(0)))],
    "GOAWAY that grows": [control(setting(), frame(GOAWAY, ints(0)), frame(GOAWAY, ints(LARGEST)))],
    "pushes that nobody promised": [control(setting(), frame(CANCEL_PUSH, ints(9)) * 1000)],
    "MAX_PUSH_ID that shrinks": [control(setting(), frame(MAX_PUSH_ID, ints(9)), frame(MAX_PUSH_ID, ints(1)))],
    "instructions of an encoder": [USUAL, (UNI, ints(ENCODER) + b"\x3f" + b"\xff" * 1000)],
    "instructions of a decoder": [USUAL, (UNI, ints(DECODER) + b"\xff" * 1000)],
    "streams of unknown types": [USUAL, *[(UNI, ints(0x21 + 31 * n) + bytes(100)) for n in range(MANY)]],
    "streams without a type": [USUAL, *[(UNI, b"\xc0")] * MANY],
    "data before the head": [USUAL, asks(frame(DATA, b"x"))],
    "a head of unlimited length": [USUAL, asks(frame(HEADERS, bytes(1000), LARGEST))],
    "a head of a megabyte": [USUAL, asks(frame(HEADERS, b"\0\0" + literal("a", "b" * 1_000_000)))],
    "a head of many fields": [USUAL, asks(frame(HEADERS, b"\0\0" + literal("a", "b") * 50_000))],
    "heads of garbage": [USUAL, *[asks(frame(HEADERS, said)) for said in (b"\xff" * 200, b"\0\0\x80", b"")]],
    "heads that wait for a table": [USUAL, *[asks(frame(HEADERS, b"\x05\x80\x10"))] * 50],
    "a length of a string beyond its head": [USUAL, asks(frame(HEADERS, b"\0\0\x27" + b"\xff" * 8 + b"\x7f"))],
    "two heads": [USUAL, asks(head(), head())],
    "frames that are skipped without end": [USUAL, asks(frame(0x21, bytes(1000)) * 1000)],
    "a frame that is skipped, of unlimited length": [USUAL, asks(frame(0x21, bytes(1000), LARGEST))],
    "frames of HTTP/2": [USUAL, *[asks(frame(kind, bytes(4))) for kind in (0x02, 0x06, 0x08, 0x09)]],
    "no session but a request": [USUAL, asks(head(method="GET", protocol=None))],
    "CONNECT without a protocol": [USUAL, asks(head(protocol=None))],
    "CONNECT of another protocol": [USUAL, asks(head(protocol="connect-udp"))],
    "sessions without an authority": [USUAL, *[asks(head(authority=it)) for it in (None, "", "a b")]],
    "sessions without a path": [USUAL, *[asks(head(path=it)) for it in (None, "", "\0")]],
    "sessions of another scheme": [USUAL, *[asks(head(scheme=it)) for it in (None, "ftp")]],
    "sessions of one connection": [USUAL, *[asks(head())] * 50],
    "a capsule of unlimited length": [USUAL, asks(head(), frame(DATA, ints(0x3F, LARGEST) + bytes(1000)))],
    "many small capsules": [USUAL, asks(head(), frame(DATA, ints(DATAGRAM_CAPSULE, 1) + b"x") * 2000)],
    "a close in too many words": [USUAL, asks(head(), frame(DATA, ints(CLOSE_SESSION, 1 << 20) + bytes(100_000)))],
    "a close in half a word": [USUAL, asks(head(), frame(DATA, ints(CLOSE_SESSION, 2) + b"xx"))],
    "streams of no session": [USUAL, *[(UNI, ints(WEBTRANSPORT_UNI, 4 * n) + bytes(100)) for n in range(MANY)],
                              *[asks(ints(WEBTRANSPORT_BIDI, 4 * n), bytes(100)) for n in range(90)]],
    "streams of impossible sessions": [USUAL, (UNI, ints(WEBTRANSPORT_UNI, LARGEST)),
                                       *[asks(ints(WEBTRANSPORT_BIDI, number)) for number in (LARGEST, 3)]],
    "streams of a session that begin nothing": [USUAL, asks(head()), *[asks(ints(WEBTRANSPORT_BIDI, 0))] * 90],
    "datagrams of no session": [USUAL, *[(DATAGRAM, ints(n) + b"x" * 100) for n in range(MANY)]],
    "datagrams without a number": [USUAL, *[(DATAGRAM, said) for said in (b"", b"\xff", ints(LARGEST))] * 50],
    "datagrams of nothing": [USUAL, asks(head()), *[(DATAGRAM, ints(0))] * MANY],
}


class Stranger(QuicConnectionProtocol):
    """A connection that sends what it is told, and does not read HTTP/3: it keeps what its first request is told."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.heard, self.is_told = b"", asyncio.Event()

    def quic_event_received(self, event):
        if isinstance(event, StreamDataReceived) and event.stream_id == 0:
            self.heard += event.data
            self.is_told.set()

    def send(self, way, data):
        if way == DATAGRAM:
            self._quic.send_datagram_frame(data)
        else:
            self._quic.send_stream_data(self._quic.get_next_available_stream_id(way == UNI), data)


class Honest(QuicConnectionProtocol):
    """An HTTP/3 client that opens a WebTransport session."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.h3 = H3Connection(self._quic, enable_webtransport=True)
        self.status = asyncio.get_running_loop().create_future()

    def quic_event_received(self, event):
        if isinstance(event, ConnectionTerminated) and not self.status.done():
            self.status.set_exception(ConnectionError(event.reason_phrase))
        for one in self.h3.handle_event(event):
            if isinstance(one, HeadersReceived) and not self.status.done():
                self.status.set_result(int(dict(one.headers)[b":status"]))

    async def session(self, authority):
        fields = {":method": "CONNECT", ":protocol": "webtransport", ":scheme": "https", ":authority": authority}
        fields |= {":path": "/loquent/1", "sec-webtransport-http3-draft02": "1"}
        stream = self._quic.get_next_available_stream_id()
        self.h3.send_headers(stream, [(name.encode(), value.encode()) for name, value in fields.items()])
        self.transmit()
        return await asyncio.wait_for(self.status, PATIENCE_S)


class Port:
    """The server's UDP port, and its process."""

    def __init__(self, server):
        self.server = server
        with urllib.request.urlopen(f"{server.url}/.well-known/loquent") as response:
            self.number = json.load(response)["port"]

    def connect(self, client):
        settings = {"is_client": True, "alpn_protocols": H3_ALPN, "verify_mode": ssl.CERT_NONE}
        configuration = QuicConfiguration(max_datagram_frame_size=65536, **settings)
        return connect("127.0.0.1", self.number, configuration=configuration, create_protocol=client)

    async def visit(self, sent):
        """A stranger's visit; that the server ends its connection is its right."""
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(PATIENCE_S), self.connect(Stranger) as stranger:
                for way, data in sent:
                    stranger.send(way, data)
                stranger.transmit()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(stranger.wait_closed(), STAYS_S)

    async def serves(self):
        async with asyncio.timeout(PATIENCE_S), self.connect(Honest) as honest:
            return await honest.session(f"127.0.0.1:{self.number}")

    def resident_kib(self):
        status = pathlib.Path(f"/proc/{self.server.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])


@pytest.fixture(scope="module")
def port():
    server = Server("--simulate", "100").wait()
    yield Port(server)
    server.stop()


def test_the_head_that_strangers_change_is_taken_as_it_is(port):
    async def visit():
        async with asyncio.timeout(PATIENCE_S), port.connect(Stranger) as stranger:
            stranger.send(*USUAL)
            stranger.send(*asks(head(authority=f"127.0.0.1:{port.number}")))
            stranger.transmit()
            await stranger.is_told.wait()
            return stranger.heard

    heard = asyncio.run(visit())
    # Entry 25 of QPACK's static table is ":status: 200" (RFC 9204, appendix A).
    assert heard[0] == HEADERS and 0xC0 | 25 in heard, heard


@pytest.mark.parametrize("sent", STRANGERS.values(), ids=STRANGERS)
def test_an_honest_session_is_let_in_after_a_stranger(port, sent):
    asyncio.run(port.visit(sent))
    assert asyncio.run(port.serves()) == 200
    assert port.server.process.poll() is None
    assert not [line for line in port.server.log if "panic" in line]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read in /proc")
def test_strangers_who_come_again_leave_nothing_behind(port):
    async def all_of_them():
        for sent in STRANGERS.values():
            await port.visit(sent)

    asyncio.run(all_of_them())
    before = port.resident_kib()
    for _ in range(2):
        asyncio.run(all_of_them())
    assert port.resident_kib() - before < MOST_KIB
    assert asyncio.run(port.serves()) == 200

