"""TLS records and handshakes that break their rules (RFC 8446, sections 4 and 5), before any key is agreed on."""

import contextlib
import pathlib
import random
import socket
import ssl
import struct
import sys

import httpx
import pytest

from conftest import Server

CHANGE_CIPHER, ALERT, HANDSHAKE, APPLICATION_DATA, HEARTBEAT = 20, 21, 22, 23, 24
CLIENT_HELLO, FINISHED, KEY_UPDATE = 1, 20, 24
#: Longest wait for the server to end a connection whose bytes cannot be TLS.
PATIENCE_S = 20
#: What the server may hold more after all strangers have come again, in KiB.
MOST_KIB = 16 << 10


def record(kind, payload, length=None, version=0x0301):
    return struct.pack(">BHH", kind, version, len(payload) if length is None else length) + payload


def message(kind, payload, length=None):
    return bytes([kind]) + (len(payload) if length is None else length).to_bytes(3, "big") + payload


def client_hello():
    """What Python's own client sends first."""
    context = ssl.create_default_context()
    sent = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost").do_handshake()
    return sent.read()


HELLO = client_hello()
OLD_HELLO = message(CLIENT_HELLO, b"\x03\x01" + bytes(32) + b"\0" + b"\0\x02\x00\x2f" + b"\x01\0")


def mutated(seed):
    """The first bytes of a handshake, some of them others."""
    draw, hello = random.Random(seed), bytearray(HELLO)
    for _ in range(draw.choice((1, 2, 8))):
        hello[draw.randrange(len(hello))] = draw.randrange(256)
    return bytes(hello)


STRANGERS = {
    "cleartext": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "a hello of SSL 2": b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10" + bytes(37),
    "a hello of TLS 1.0": record(HANDSHAKE, OLD_HELLO),
    "a record of unknown type": record(99, bytes(100)),
    "a record that is too long": record(HANDSHAKE, bytes(65535)),
    "a record of another version": record(HANDSHAKE, HELLO[5:], version=0x0900),
    "records of nothing": record(HANDSHAKE, b"") * 10_000,
    "a hello of 16 MiB": record(HANDSHAKE, message(CLIENT_HELLO, b"", 0xFFFFFF) + bytes(16000)) * 200,
    "a hello of nothing": record(HANDSHAKE, message(CLIENT_HELLO, b"")),
    "a hello in pieces of one byte": b"".join(record(HANDSHAKE, bytes([byte])) for byte in OLD_HELLO),
    "two hellos": HELLO * 2,
    "many hellos": HELLO * 500,
    "another message first": record(HANDSHAKE, message(FINISHED, bytes(32))),
    "an update of keys first": record(HANDSHAKE, message(KEY_UPDATE, b"\1")),
    "data first": record(APPLICATION_DATA, bytes(1000)),
    "data after a hello": HELLO + record(APPLICATION_DATA, bytes(16000)) * 100,
    "changes of the cipher": HELLO + record(CHANGE_CIPHER, b"\1") * 10_000,
    "warnings": record(ALERT, b"\x01\x64") * 10_000,
    "warnings after a hello": HELLO + record(ALERT, b"\x01\x64") * 10_000,
    "an alert of one byte": record(ALERT, b"\x02"),
    "a heartbeat that asks for more": HELLO + record(HEARTBEAT, b"\x01\x40\x00"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    running = Server("--simulate", "inf", "--no-quic", "--tls-self-signed", "--tls-dir", str(folder)).wait_announced()
    running.context = ssl.create_default_context(cafile=folder / "cert.pem")
    yield running
    running.stop()


def visit(server, sent):
    """Sends bytes, and reads until the server ends the connection or waits for more; returns what came."""
    address = ("127.0.0.1", int(server.url.rsplit(":", 1)[1]))
    came = b""
    with socket.create_connection(address, timeout=PATIENCE_S) as stranger:
        # A server that refuses early does not read the rest.
        with contextlib.suppress(OSError):
            stranger.sendall(sent)
            stranger.shutdown(socket.SHUT_WR)
            while piece := stranger.recv(1 << 16):
                came += piece
    return came


def serves(server):
    with httpx.Client(verify=server.context, timeout=PATIENCE_S) as client:
        return client.get(f"{server.url}/health").status_code == 200


def test_the_hello_that_strangers_change_is_answered_as_it_is(server):
    assert visit(server, HELLO)[0] == HANDSHAKE


@pytest.mark.parametrize("sent", STRANGERS.values(), ids=STRANGERS)
def test_an_honest_client_is_served_after_a_stranger(server, sent):
    came = visit(server, sent)
    # A whole hello may be answered; whatever else comes is an alert, and no word of HTTP.
    assert not came or came[0] in (ALERT, HANDSHAKE), came[:100]
    assert serves(server) and server.process.poll() is None
    assert not [line for line in server.log if "panic" in line]


def test_hellos_with_other_bytes_and_cut_ones_harm_nobody(server):
    for seed in range(300):
        visit(server, mutated(seed))
    for end in range(0, len(HELLO), 7):
        visit(server, HELLO[:end])
    assert serves(server)
    assert not [line for line in server.log if "panic" in line]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read in /proc")
def test_strangers_who_come_again_leave_nothing_behind(server):
    def resident_kib():
        status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])

    def all_of_them():
        for sent in STRANGERS.values():
            visit(server, sent)

    all_of_them()
    before = resident_kib()
    for _ in range(5):
        all_of_them()
    assert resident_kib() - before < MOST_KIB
    assert serves(server)
