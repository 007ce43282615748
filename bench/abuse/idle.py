"""One process of clients that hold connections: idle ones after a first response, and slow ones
that send a head one byte at a time. A connection that the server ends is opened again.

Usage: idle.py PORT IDLE SLOW FIRST_ADDRESS ADDRESSES; prints a line when all are open.
"""

import asyncio
import json
import resource
import signal
import socket
import sys

PAUSE_S = 1


class Holder:
    """Connections from addresses of 127/8, and how many there are."""

    def __init__(self, port, first, addresses):
        self.port, self.first, self.addresses = port, first, addresses
        self.held = self.most = self.begun = 0
        self.all_held = asyncio.Event()

    async def connect(self, number):
        address = self.first + number % self.addresses
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)
        sock.bind((f"127.77.{address // 250}.{address % 250 + 1}", 0))
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        return await asyncio.open_connection(sock=sock, limit=1 << 12)

    async def idle(self, reader, writer):
        writer.write(f"GET /health HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n\r\n".encode())
        await reader.readuntil(b"}")
        await self.hold(reader.read())

    async def slow(self, reader, writer):
        writer.write(b"GET /health HTTP/1.1\r\nX-Slow: ")

        async def trickle():
            while not reader.at_eof():
                writer.write(b"a")
                await asyncio.sleep(PAUSE_S)

        await self.hold(trickle())

    async def hold(self, until):
        self.held += 1
        self.most = max(self.most, self.held)
        if self.held >= self.wanted:
            self.all_held.set()
        try:
            await until
        finally:
            self.held -= 1

    async def go_on(self, number, kind):
        await asyncio.sleep(number / 1000)
        while True:
            self.begun += 1
            try:
                reader, writer = await self.connect(number)
                try:
                    await kind(reader, writer)
                finally:
                    writer.transport.abort()
            except (OSError, EOFError):
                pass
            await asyncio.sleep(PAUSE_S)

    async def run(self, idle, slow):
        # Some are always being opened again.
        self.wanted = (idle + slow) * 95 // 100
        ended = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
        kinds = [self.idle] * idle + [self.slow] * slow
        tasks = [asyncio.ensure_future(self.go_on(*one)) for one in enumerate(kinds)]
        await self.all_held.wait()
        print("holding", flush=True)
        await ended.wait()
        print(json.dumps({"held": self.held, "most": self.most, "begun": self.begun}), flush=True)
        for task in tasks:
            task.cancel()


def main():
    port, idle, slow, first, addresses = map(int, sys.argv[1:])
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < idle + slow + 50:
        raise SystemExit(f"{idle + slow} connections need as many descriptors; the limit is {hard} (ulimit -Hn)")

    async def run():
        await Holder(port, first, addresses).run(idle, slow)

    asyncio.run(run())


if __name__ == "__main__":
    main()
