"""A TCP forwarder in front of a server: it can be cut, can stand still, and follows its server to another address."""

import asyncio
import contextlib

CONNECT_S = 5
PIECE_BYTES = 65536


class Forwarder:
    """Forwards what comes to a port of its own to the address that `target` returns for each new connection.

    `target()` is (host, port), or nothing if there is no server now: then the connection is closed.
    """

    def __init__(self, target):
        self.target = target
        self.is_cut = False
        self.flows = asyncio.Event()
        self.flows.set()
        self.server, self.port, self.writers, self.tasks = None, None, set(), set()

    async def start(self):
        self.server = await asyncio.start_server(self.accept, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def accept(self, reader, writer):
        self.tasks.add(asyncio.current_task())
        self.writers.add(writer)
        try:
            await self.forward(reader, writer)
        except (OSError, asyncio.TimeoutError):
            pass
        finally:
            writer.transport.abort()
            self.writers.discard(writer)
            self.tasks.discard(asyncio.current_task())

    async def forward(self, reader, writer):
        address = self.target()
        if self.is_cut or not address:
            return
        there, to_there = await asyncio.wait_for(asyncio.open_connection(*address), CONNECT_S)
        self.writers.add(to_there)
        pumps = [asyncio.ensure_future(self.pump(*way)) for way in ((reader, to_there), (there, writer))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            to_there.transport.abort()
            self.writers.discard(to_there)

    async def pump(self, source, sink):
        with contextlib.suppress(OSError):
            while piece := await source.read(PIECE_BYTES):
                await self.flows.wait()
                sink.write(piece)
                await sink.drain()

    def drop(self):
        """Closes all connections, without a word of goodbye; new ones are taken."""
        for writer in list(self.writers):
            writer.transport.abort()

    def cut(self):
        """Closes all connections, and new ones at once."""
        self.is_cut = True
        self.drop()

    def stall(self):
        """Lets nothing pass in either direction, and closes nothing."""
        self.flows.clear()

    def heal(self):
        """Undoes `cut` and `stall`: what was held back passes now."""
        self.is_cut = False
        self.flows.set()

    async def close(self):
        self.server.close()
        self.cut()
        self.flows.set()
        # Their connections are gone, and so they end by themselves.
        await asyncio.gather(*self.tasks, return_exceptions=True)
