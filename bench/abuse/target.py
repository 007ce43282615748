"""What attackers know of the server, and how they reach it."""

import asyncio
import collections
import itertools
import json
import random
import socket
import struct

#: Attackers come from these many addresses of 127/8, so that no bound on one address holds them all.
ADDRESSES = 50
#: A client that waits longer than this for a response gives up.
PATIENCE_S = 20


class Target:
    """A server under attack, and counts of what became of each attack."""

    def __init__(self, port, udp_port, key):
        self.host, self.port, self.udp_port, self.key = "127.0.0.1", port, udp_port, key
        self._addresses = itertools.cycle(f"127.66.0.{number}" for number in range(1, ADDRESSES + 1))
        self.counts = collections.defaultdict(collections.Counter)

    def count(self, attack, what):
        self.counts[attack][what] += 1

    def address(self):
        """The next attacker's own address."""
        return next(self._addresses)

    async def connect(self, receive_bytes=None, limit=1 << 16):
        """A TCP connection from an attacker's address."""
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)
        if receive_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        try:
            sock.bind((self.address(), 0))
        except OSError:
            pass  # macOS has no other loopback addresses: then all attackers share one
        try:
            await asyncio.wait_for(asyncio.get_running_loop().sock_connect(sock, (self.host, self.port)), PATIENCE_S)
            return await asyncio.open_connection(sock=sock, limit=limit)
        except BaseException:
            sock.close()
            raise

    def head(self, path, length, method="POST", key=None, more=""):
        """A request's head."""
        key = f"Authorization: Bearer {key or self.key}\r\n"
        body = f"Content-Type: application/json\r\nContent-Length: {length}\r\n" if length is not None else ""
        return f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n{key}{body}{more}\r\n".encode()

    def request(self, path, body, **more):
        """A whole request."""
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.head(path, len(body), **more) + body


def abort(writer):
    """Ends a connection with a reset, as a process that dies does."""
    sock = writer.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def status_of(reader):
    """The status of the response that comes."""
    line = await asyncio.wait_for(reader.readline(), PATIENCE_S)
    parts = line.split()
    return parts[1].decode() if len(parts) > 1 else "closed"


async def send(target, attack, request, read_all=False):
    """Sends a request, counts the status of its response, and hangs up."""
    reader, writer = await target.connect()
    try:
        writer.write(request)
        # A server that refuses early does not read the rest, so that nothing waits for that.
        status = await status_of(reader)
        target.count(attack, status)
        while read_all and status == "200" and await asyncio.wait_for(reader.read(1 << 16), PATIENCE_S):
            pass
    finally:
        abort(writer)


async def repeat(target, attack, step, at_once, pause_s):
    """Runs `step` over and over, `at_once` times beside each other."""

    async def one():
        await asyncio.sleep(random.random() * pause_s)
        while True:
            target.count(attack, "begun")
            try:
                await step(target, attack)
            except asyncio.TimeoutError:
                target.count(attack, "no response")
            except (OSError, EOFError, ValueError):
                target.count(attack, "closed")
            await asyncio.sleep(pause_s)

    await asyncio.gather(*(one() for _ in range(at_once)))
