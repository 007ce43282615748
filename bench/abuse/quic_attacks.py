"""Attacks over QUIC and on its UDP port; they need aioquic, except for the datagrams of garbage."""

import asyncio
import json
import os
import socket
import ssl

try:
    from aioquic.asyncio import connect
    from aioquic.asyncio.protocol import QuicConnectionProtocol
    from aioquic.h3.connection import H3_ALPN, H3Connection
    from aioquic.h3.events import HeadersReceived
    from aioquic.quic.configuration import QuicConfiguration
    from aioquic.quic.connection import QuicConnection
except ImportError:
    connect = None
else:

    class WebTransport(QuicConnectionProtocol):
        """Opens an HTTP/3 connection and keeps the status of its one request."""

        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.h3 = H3Connection(self._quic, enable_webtransport=True)
            self.status = asyncio.get_running_loop().create_future()

        def quic_event_received(self, event):
            for one in self.h3.handle_event(event):
                if isinstance(one, HeadersReceived) and not self.status.done():
                    self.status.set_result(dict(one.headers).get(b":status", b"none").decode())


PATIENCE_S = 20
REQUEST, BODY = 0, 1


def integer(value):
    """A QUIC variable-length integer of four bytes, or of eight."""
    return (value | 2 << 30).to_bytes(4, "big") if value < 1 << 30 else (value | 3 << 62).to_bytes(8, "big")


def message(kind, payload, length=None):
    return bytes([kind]) + integer(len(payload) if length is None else length) + payload


def session(target, alpn="loquent/1", **more):
    configuration = QuicConfiguration(is_client=True, alpn_protocols=[alpn], verify_mode=ssl.CERT_NONE, **more)
    return connect(target.host, target.udp_port, configuration=configuration)


async def ask(target, attack, *messages):
    """Sends messages on a stream of a new connection, and waits for what comes back."""
    async with asyncio.timeout(PATIENCE_S), session(target) as client:
        reader, writer = await client.create_stream()
        for one in messages:
            writer.write(one)
        writer.write_eof()
        answer = await reader.read(1)
        target.count(attack, "answered" if answer else "refused")


async def json_bombs(target, attack):
    """A head that is JSON of many nodes, before any key was shown."""
    nodes = b'{"method":"POST","path":"/v1/completions","headers":{"a":[' + b'{"":0},' * 100_000 + b"0]}}"
    deep = b'{"method":' + b"[" * 300_000
    for head in (nodes, deep):
        try:
            await ask(target, attack, message(REQUEST, head))
        except ConnectionError:
            target.count(attack, "reset")


async def bodies_without_a_key(target, attack):
    head = json.dumps({"method": "POST", "path": "/v1/completions", "key": "wrong"}).encode()
    await ask(target, attack, message(REQUEST, head), message(BODY, b" " * 500_000))


async def lengths_that_lie(target, attack):
    await ask(target, attack, message(REQUEST, b"{", length=1 << 40))


async def silent_streams(target, attack):
    """A connection with many streams that begin a request and never end it."""
    async with session(target) as client:
        for _ in range(100):
            _, writer = await client.create_stream()
            writer.write(bytes([REQUEST]))
        target.count(attack, "held")
        await asyncio.sleep(40)


async def foreign_pages(target, attack):
    """A WebTransport session that a page of another origin asks for."""
    configuration = QuicConfiguration(
        is_client=True, alpn_protocols=H3_ALPN, verify_mode=ssl.CERT_NONE, max_datagram_frame_size=65536
    )
    where = (target.host, target.udp_port)
    async with asyncio.timeout(PATIENCE_S):
        async with connect(*where, configuration=configuration, create_protocol=WebTransport) as client:
            stream = client._quic.get_next_available_stream_id()
            names = [(":method", "CONNECT"), (":protocol", "webtransport"), (":scheme", "https")]
            names += [(":authority", f"127.0.0.1:{target.udp_port}"), (":path", "/loquent/1")]
            names += [("origin", "https://evil.example")]
            client.h3.send_headers(stream, [(name.encode(), value.encode()) for name, value in names])
            client.transmit()
            target.count(attack, await client.status)


async def handshake_flood(target, attack):
    """First packets of handshakes that nobody continues."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _ in range(20):
            configuration = QuicConfiguration(is_client=True, alpn_protocols=["loquent/1"], verify_mode=ssl.CERT_NONE)
            client = QuicConnection(configuration=configuration)
            client.connect((target.host, target.udp_port), now=0)
            for datagram, _ in client.datagrams_to_send(now=0):
                sock.sendto(datagram, (target.host, target.udp_port))
            await asyncio.sleep(0)


async def garbage_datagrams(target, attack):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for size in (1, 20, 100, 1200, 1472):
            for first in (0x00, 0x40, 0xC0, 0xD0, 0xFF):
                version = b"\x00\x00\x00\x01" if first & 0x80 else b""
                datagram = bytes([first]) + version + os.urandom(size)
                sock.sendto(datagram[:1472], (target.host, target.udp_port))


WITHOUT_AIOQUIC = {"garbage datagrams": (garbage_datagrams, 2, 0.05)}
ATTACKS = {
    **WITHOUT_AIOQUIC,
    "QUIC JSON bombs": (json_bombs, 2, 0.5),
    "QUIC bodies, wrong key": (bodies_without_a_key, 2, 0.5),
    "QUIC lengths that lie": (lengths_that_lie, 1, 0.5),
    "QUIC silent streams": (silent_streams, 4, 1),
    "WebTransport of other pages": (foreign_pages, 1, 0.5),
    "QUIC handshake flood": (handshake_flood, 1, 0.5),
}
if connect is None:
    ATTACKS = WITHOUT_AIOQUIC
