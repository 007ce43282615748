"""QUIC clients that break the rules of RFC 9000, on aioquic. A check says what the server must do, and by which rule.

    strangers.py PORT FILE    # writes a list of {"id", "holds", "what"} to the file

Frames and messages of Loquent's own protocol are the business of tests/interop, floods that meet Retry of
crates/server/tests/sessions. This is about the transport below them.
"""

import dataclasses
import json
import os
import select
import socket
import ssl
import sys
import time

from aioquic import tls
from aioquic.buffer import Buffer, encode_uint_var
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicPacketType, pull_quic_transport_parameters, push_quic_transport_parameters
from aioquic.quic.packet_builder import QuicPacketBuilder

ALPN = "loquent/1"
PATIENCE_S = 10
#: Longer than the server's limit for a handshake (10 s): what it sends until then counts.
HANDSHAKE_S = 13
#: Handshakes that nobody continues: far more than the server answers without Retry.
HALF_HANDSHAKES = 1500
#: A server may send so many times the bytes that it got from an address it knows nothing of (RFC 9000, section 8.1).
AMPLIFICATION = 3

# Codes of RFC 9000, section 20.1.
FLOW_CONTROL, STREAM_LIMIT, STREAM_STATE, FINAL_SIZE, FRAME_ENCODING, PARAMETER = 3, 4, 5, 6, 7, 8
PROTOCOL_VIOLATION, CRYPTO_BUFFER = 0x0A, 0x0D
NO_APPLICATION_PROTOCOL = 0x178


def integer(*values):
    return b"".join(map(encode_uint_var, values))


class Stranger:
    """A connection without a task of its own: what it sends and hears is done by its caller, in turns."""

    def __init__(self, port, alpn=ALPN, parameters=None):
        self.address = ("127.0.0.1", port)
        self.socket = self.new_socket()
        configuration = QuicConfiguration(
            is_client=True, alpn_protocols=[alpn], verify_mode=ssl.CERT_NONE, max_datagram_frame_size=65536
        )
        configuration.server_name = "localhost"
        self.quic = QuicConnection(configuration=configuration)
        if parameters:
            self._change_parameters(parameters)
        self.sent = self.received = 0
        self.is_connected, self.closed = False, None
        self.streams = {}
        self.quic.connect(self.address, now=time.monotonic())

    def new_socket(self):
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.connect(self.address)
        made.setblocking(False)
        return made

    def _change_parameters(self, changes):
        serialize = self.quic._serialize_transport_parameters

        def changed():
            own = pull_quic_transport_parameters(Buffer(data=serialize()))
            buffer = Buffer(capacity=4096)
            push_quic_transport_parameters(buffer, dataclasses.replace(own, **changes))
            return buffer.data

        self.quic._serialize_transport_parameters = changed

    def flush(self):
        for datagram, _ in self.quic.datagrams_to_send(now=time.monotonic()):
            self.socket.send(datagram)
            self.sent += len(datagram)

    def pump(self, until, seconds=PATIENCE_S):
        """Sends and hears until `until()` holds; returns whether it came to that."""
        end = time.monotonic() + seconds
        self.flush()
        while not until() and (left := end - time.monotonic()) > 0:
            timer = self.quic.get_timer()
            wait = min(left, max(0.0, timer - time.monotonic())) if timer else left
            if select.select([self.socket], [], [], wait)[0]:
                try:
                    datagram = self.socket.recv(65536)
                except ConnectionRefusedError:
                    return False
                self.received += len(datagram)
                self.quic.receive_datagram(datagram, self.address, now=time.monotonic())
            elif timer and timer <= time.monotonic():
                self.quic.handle_timer(now=time.monotonic())
            self._take_events()
            self.flush()
        return until()

    def _take_events(self):
        while (event := self.quic.next_event()) is not None:
            if isinstance(event, events.HandshakeCompleted):
                self.is_connected = True
            elif isinstance(event, events.ConnectionTerminated):
                self.closed = event.error_code
            elif isinstance(event, events.StreamDataReceived):
                self.streams[event.stream_id] = self.streams.get(event.stream_id, b"") + event.data

    def connect(self):
        """Completes the handshake, and waits until both sides know that it is (RFC 9001, section 4.1.2)."""
        if not self.pump(lambda: self.quic._handshake_confirmed or self.closed is not None) or self.closed is not None:
            raise ConnectionError(f"no connection: {self.closed}")
        return self

    def packet(self, *frames):
        """Datagrams with such frames, each as its bytes, encrypted by the connection's keys."""
        builder = QuicPacketBuilder(
            host_cid=self.quic.host_cid,
            is_client=True,
            max_datagram_size=1200,
            packet_number=self.quic._packet_number,
            peer_cid=self.quic._peer_cid.cid,
            version=self.quic._version,
        )
        builder.start_packet(QuicPacketType.ONE_RTT, self.quic._cryptos[tls.Epoch.ONE_RTT])
        for frame in frames:
            kind = Buffer(data=frame).pull_uint_var()
            builder.start_frame(kind, capacity=len(frame)).push_bytes(frame[len(encode_uint_var(kind)) :])
        datagrams, _ = builder.flush()
        self.quic._packet_number = builder.packet_number
        return datagrams

    def send_frames(self, *frames):
        for datagram in self.packet(*frames):
            self.socket.send(datagram)

    def asks(self):
        """Whether a request on a stream of its own is answered: 404, for a path that is not there."""
        stream = self.quic.get_next_available_stream_id()
        head = json.dumps({"method": "GET", "path": "/nothing-here"}).encode()
        self.quic.send_stream_data(stream, b"\0" + integer(len(head)) + head, end_stream=True)
        return self.pump(lambda: b"404" in self.streams.get(stream, b"") or self.closed is not None) and not self.closed

    def close(self):
        self.quic.close()
        self.flush()
        self.socket.close()


def is_served(port):
    """Whether an honest client connects and is answered, within the patience of one."""
    begun = time.monotonic()
    try:
        client = Stranger(port).connect()
        served = client.asks()
        client.close()
    except (ConnectionError, OSError) as error:
        return False, str(error)
    return served, f"an honest client was {'' if served else 'not '}served in {time.monotonic() - begun:.2f} s"


def exchange(port, datagrams, seconds=1.0):
    """Sends datagrams from a socket of its own; what comes back within the time after the last one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("127.0.0.1", port))
        for datagram in datagrams:
            sock.send(datagram)
        sock.settimeout(seconds)
        heard, end = [], time.monotonic() + seconds
        try:
            while time.monotonic() < end:
                heard.append(sock.recv(65536))
        except (TimeoutError, ConnectionRefusedError):
            pass
        return heard


def first_flight(port, alpn=ALPN):
    """The first datagrams of a handshake."""
    stranger = Stranger(port, alpn)
    datagrams = [datagram for datagram, _ in stranger.quic.datagrams_to_send(now=time.monotonic())]
    stranger.socket.close()
    return datagrams


def long_header(version, destination, source, rest=b"", first=0xC3):
    header = bytes([first]) + version.to_bytes(4, "big")
    return header + bytes([len(destination)]) + destination + bytes([len(source)]) + source + rest


# Each check is a generator of (id, holds, what).


def version_negotiation(port):
    destination, source = os.urandom(8), os.urandom(8)
    strange = long_header(0x1A2A3A4A, destination, source).ljust(1200, b"\0")
    heard = exchange(port, [strange])
    answer = heard[0] if heard else b""
    versions = [answer[at : at + 4] for at in range(23, len(answer), 4)]
    is_negotiation = answer[1:5] == bytes(4) and answer[6:14] == source and answer[15:23] == destination
    holds = len(heard) == 1 and is_negotiation and b"\0\0\0\1" in versions and len(answer) <= 1200
    yield "an unknown version is answered with the known ones", holds, f"{len(heard)} datagrams, {len(answer)} bytes"
    small = exchange(port, [strange[:1199], strange[:60]])
    holds = sum(map(len, small)) <= AMPLIFICATION * 1259
    yield "a small one is not amplified", holds, f"{sum(map(len, small))} bytes for 1259"
    negotiation = long_header(0, destination, source, b"\0\0\0\1\x1a\x2a\x3a\x4a")
    heard = exchange(port, [negotiation])
    yield "Version Negotiation is never answered (6.1)", not heard, f"{len(heard)} datagrams"


def malformed_initials(port):
    whole = first_flight(port)[0]
    destination = whole[6 : 6 + whole[5]]
    body = whole[6 + whole[5] :]  # from the length of the source's id on
    after_ids = body[1 + body[0] :]  # token length, length, packet number, payload
    ids, source = whole[: 6 + whole[5]], body[: 1 + body[0]]
    malformed = {
        # Not its last byte: behind the packet the datagram is padded, and that may be anything.
        "a wrong byte": whole[:200] + bytes([whole[200] ^ 0xFF]) + whole[201:],
        "less than 1200 bytes (14.1)": whole[:1199],
        "a token length beyond the packet": ids + source + b"\x7f\xff" + after_ids[1:],
        "a length beyond the packet": ids + source + b"\0\x7f\xff" + after_ids[3:],
        "a destination id of 21 bytes (17.2)": long_header(1, os.urandom(21), b"", after_ids).ljust(1200, b"\0"),
        "a destination id of 7 bytes (7.2)": long_header(1, os.urandom(7), os.urandom(8), after_ids).ljust(1200, b"\0"),
        "a source id of 21 bytes (17.2)": long_header(1, destination, os.urandom(21), after_ids).ljust(1200, b"\0"),
        "no fixed bit": bytes([whole[0] & ~0x40]) + whole[1:],
        "a Handshake packet first": bytes([0xE3]) + whole[1:],
        "a 0-RTT packet first": bytes([0xD3]) + whole[1:],
        "a Retry packet (17.2.5)": bytes([0xF3]) + whole[1:],
    }
    for name, datagram in malformed.items():
        heard = exchange(port, [datagram], 0.3)
        size = sum(map(len, heard))
        yield f"an Initial with {name} is not amplified", size <= AMPLIFICATION * len(datagram), f"{size} bytes"
    cuts = [whole[:length] for length in range(0, 1200, 7)]
    heard = exchange(port, cuts, 1)
    holds = sum(map(len, heard)) <= AMPLIFICATION * sum(map(len, cuts))
    yield "an Initial cut at each seventh byte is not amplified", holds, f"{sum(map(len, heard))} bytes"
    yield "and after malformed Initials others are served", *is_served(port)


def amplification(port):
    for name, datagrams in (
        ("an address that says no more", first_flight(port)),
        ("one with an unknown ALPN", first_flight(port, alpn="nothing/1")),
    ):
        heard = exchange(port, datagrams, HANDSHAKE_S)
        sent, came = sum(map(len, datagrams)), sum(map(len, heard))
        what = f"{came} bytes in {len(heard)} datagrams for {sent}: {came / sent:.2f} times"
        yield f"{name} gets at most three times its bytes (8.1)", came <= AMPLIFICATION * sent, what


def half_handshakes(port):
    flights = [first_flight(port)[0] for _ in range(50)]
    sockets, sent, came = [], 0, 0
    for number in range(HALF_HANDSHAKES):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setblocking(False)
        # Many ports, and addresses of their own, so that no bound on one address is what is seen.
        sock.bind((f"127.66.{number % 4}.{1 + number % 200}", 0))
        datagram = flights[number % len(flights)]
        sock.sendto(datagram, ("127.0.0.1", port))
        sent += len(datagram)
        sockets.append(sock)
        if len(sockets) > 200:
            came += drained(sockets.pop(0))
    yield "an honest client is served beside half handshakes", *is_served(port)
    time.sleep(0.5)  # lets what is still on its way come: it is counted, not waited for
    came += sum(map(drained, sockets))
    yield "half handshakes are not amplified", came <= AMPLIFICATION * sent, f"{came} bytes for {sent}"


def drained(sock):
    came = 0
    try:
        while True:
            came += len(sock.recv(65536))
    except (BlockingIOError, ConnectionRefusedError):
        sock.close()
        return came


def stateless_resets(port):
    for size in (21, 43, 100, 1200):
        heard = exchange(port, [bytes([0x40 | os.urandom(1)[0] & 0x3F]) + os.urandom(size - 1)], 0.3)
        holds = all(len(datagram) < size for datagram in heard) and len(heard) <= 1
        yield f"a reset is smaller than the packet of {size} bytes (10.3.3)", holds, f"{[len(it) for it in heard]}"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("127.0.0.1", port))
        sock.settimeout(0.5)
        datagram, echoes = b"\x41" + os.urandom(1199), 0
        try:
            while echoes < 100:
                sock.send(datagram)
                datagram, echoes = sock.recv(65536), echoes + 1
        except TimeoutError:
            pass
    yield "resets that are sent back come to an end (10.3.3)", echoes < 100, f"{echoes} answers"


STREAM_OFF_LEN = 0x0E  # STREAM with an offset and a length
FORBIDDEN_FRAMES = [
    ("an unknown type", [integer(0x3F) + b"abc"], {FRAME_ENCODING}, "12.4"),
    ("STREAM beyond the stream's window", [integer(STREAM_OFF_LEN, 0, 2**40, 1) + b"x"], {FLOW_CONTROL}, "4.1"),
    ("STREAM whose end is beyond 2^62", [integer(STREAM_OFF_LEN, 0, 2**62 - 1, 9) + b"x" * 9],
     {FLOW_CONTROL, FRAME_ENCODING}, "19.8"),
    ("STREAM on a stream beyond the limit", [integer(STREAM_OFF_LEN, 4 * 2**40, 0, 1) + b"x"], {STREAM_LIMIT}, "4.6"),
    ("STREAM longer than its packet", [integer(STREAM_OFF_LEN, 0, 0, 9000) + b"x"], {FRAME_ENCODING}, "12.4"),
    ("STREAM that moves its end", [integer(0x0F, 0, 0, 4) + b"abcd", integer(0x0F, 0, 2, 4) + b"abcd"],
     {FINAL_SIZE}, "4.5"),
    ("RESET_STREAM of a stream of the server's that is not", [integer(0x04, 4 * 500 + 1, 0, 0)],
     {STREAM_STATE, STREAM_LIMIT}, "19.4"),
    ("STOP_SENDING of a stream that the server never opened", [integer(0x05, 4 * 500 + 1, 0)], {STREAM_STATE}, "19.5"),
    ("MAX_STREAM_DATA for a stream that only the server reads", [integer(0x11, 2, 9)], {STREAM_STATE}, "19.10"),
    ("CRYPTO far ahead", [integer(0x06, 2**30, 4) + b"abcd"], {CRYPTO_BUFFER}, "7.5"),
    ("MAX_STREAMS above 2^60", [integer(0x12, 2**60 + 1)], {FRAME_ENCODING}, "19.11"),
    ("ACK of packets that were never sent", [integer(0x02, 2**20, 0, 0, 0)], {PROTOCOL_VIOLATION}, "13.1"),
    ("ACK whose first range is below zero", [integer(0x02, 3, 0, 0, 9)], {FRAME_ENCODING}, "19.3.1"),
    ("HANDSHAKE_DONE from a client", [integer(0x1E)], {PROTOCOL_VIOLATION}, "19.20"),
    ("NEW_TOKEN from a client", [integer(0x07, 4) + b"abcd"], {PROTOCOL_VIOLATION}, "19.7"),
    ("NEW_CONNECTION_ID that retires itself", [integer(0x18, 5, 6, 8) + b"c" * 24], {FRAME_ENCODING}, "19.15"),
    ("NEW_CONNECTION_ID with an id of 30 bytes", [integer(0x18, 5, 0, 30) + b"c" * 46], {FRAME_ENCODING}, "19.15"),
    ("RETIRE_CONNECTION_ID that was never issued", [integer(0x19, 4000)], {PROTOCOL_VIOLATION}, "19.16"),
    ("DATAGRAM longer than its packet", [integer(0x31, 9000) + b"x"], {FRAME_ENCODING}, "12.4"),
]


def forbidden_frames(port):
    for name, frames, codes, section in FORBIDDEN_FRAMES:
        client = Stranger(port).connect()
        client.send_frames(*frames)
        client.pump(lambda client=client: client.closed is not None, 5)
        came = "no close" if client.closed is None else f"error {client.closed:#x}"
        yield f"{name} ends the connection ({section})", client.closed in codes, came
        client.socket.close()
    yield "and after forbidden frames others are served", *is_served(port)


def forbidden_parameters(port):
    changes = {
        "max_udp_payload_size of 1199": {"max_udp_payload_size": 1199},
        "ack_delay_exponent of 21": {"ack_delay_exponent": 21},
        "max_ack_delay of 2^14": {"max_ack_delay": 2**14},
        "active_connection_id_limit of 1": {"active_connection_id_limit": 1},
        "initial_max_streams_bidi above 2^60": {"initial_max_streams_bidi": 2**60 + 1},
        "another initial_source_connection_id": {"initial_source_connection_id": b"another!"},
        "no initial_source_connection_id": {"initial_source_connection_id": None},
        "a stateless_reset_token from a client": {"stateless_reset_token": bytes(16)},
        "an original_destination_connection_id from a client": {"original_destination_connection_id": bytes(8)},
    }
    for name, change in changes.items():
        client = Stranger(port, parameters=change)
        client.pump(lambda client=client: client.closed is not None, 5)
        came = "no close" if client.closed is None else f"error {client.closed:#x}"
        yield f"{name} is refused (18.2, 7.4)", client.closed in {PARAMETER, PROTOCOL_VIOLATION}, came
        client.socket.close()
    client = Stranger(port, alpn="nothing/1")
    client.pump(lambda: client.closed is not None, 5)
    yield "an unknown ALPN is refused (RFC 9001, 8.1)", client.closed == NO_APPLICATION_PROTOCOL, f"{client.closed}"
    client.socket.close()


def floods_of_frames(port):
    floods = {
        "PATH_CHALLENGE": lambda number: integer(0x1A) + number.to_bytes(8, "big"),
        "NEW_CONNECTION_ID": lambda number: integer(0x18, number, number, 8) + number.to_bytes(8, "big") + bytes(16),
        "PING": lambda number: integer(0x01),
        "MAX_DATA": lambda number: integer(0x10, 2**20 + number),
        # Within the 16 streams that a stranger has: beyond them it is a forbidden frame.
        "RESET_STREAM": lambda number: integer(0x04, 4 * (number % 16), 0, 0),
        "DATAGRAM of one byte": lambda number: integer(0x31, 1) + b"x",
    }
    for name, frame in floods.items():
        client = Stranger(port).connect()
        before = client.received
        for number in range(1, 1001):
            if client.closed is not None:
                break  # the server may end such a connection; what counts is the others
            client.send_frames(*[frame(number)] * 5 if name == "PING" else [frame(number)])
            if number % 50 == 0:
                client.pump(lambda: False, 0.02)
        client.pump(lambda client=client: client.closed is not None, 0.5)
        served, what = is_served(port)
        ended = "" if client.closed is None else f"closed by {client.closed:#x}; "
        what = f"{ended}{client.received - before} bytes came back; {what}"
        yield f"a thousand of {name} hold nobody up", served, what
        client.close()


def another_address(port):
    """Packets of a connection that come from an address which is not its client's (RFC 9000, section 9.3)."""
    client = Stranger(port).connect()
    holds = client.asks()
    other = client.new_socket()
    sent = 0
    for _ in range(20):
        for datagram in client.packet(integer(0x01), bytes(40)):
            sent += len(datagram)
            other.send(datagram)
    time.sleep(1.5)  # until every probe of the new path that could come has come
    came = drained(other)
    yield "a path that does not answer gets at most three times its bytes", came <= AMPLIFICATION * sent, (
        f"{came} bytes for {sent}"
    )
    yield "and its client is still served (9.3.2)", holds and client.asks(), f"closed: {client.closed}"
    captured = client.packet(integer(0x01))
    client.socket.send(captured[0])
    other = client.new_socket()
    for _ in range(20):
        other.send(captured[0])
    time.sleep(0.5)
    came = drained(other)
    yield "a packet that is repeated from elsewhere moves nothing", came == 0 and client.asks(), f"{came} bytes"
    client.close()


CHECKS = [
    version_negotiation,
    malformed_initials,
    stateless_resets,
    forbidden_parameters,
    forbidden_frames,
    floods_of_frames,
    another_address,
    half_handshakes,
    amplification,
]


def main():
    port, out, made = int(sys.argv[1]), sys.argv[2], []
    for check in CHECKS:
        name = check.__name__.replace("_", " ")
        print(f"{name} …", flush=True)
        try:
            for what, holds, saw in check(port):
                made.append({"id": f"{name}/{what}", "holds": bool(holds), "what": saw})
        except (OSError, AssertionError) as error:
            made.append({"id": f"{name}/ends early", "holds": False, "what": f"{type(error).__name__}: {error}"})
    with open(out, "w") as file:
        json.dump(made, file, indent=1)


if __name__ == "__main__":
    main()
