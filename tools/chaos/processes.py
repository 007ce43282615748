"""The programs of a run: `loquent`, Redis and its sentinel. All are on loopback, on free ports."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import time

READY = re.compile(r"on (https?://\S+)")
START_S, END_S = 60, 60


class Failed(Exception):
    """The run itself cannot go on: something does not start, or does not end."""


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


async def until(holds, what, limit_s=START_S, every_s=0.05):
    """Waits until something holds; `holds` may be a coroutine function."""
    deadline = time.monotonic() + limit_s
    while True:
        found = holds()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        if time.monotonic() > deadline:
            raise Failed(what)
        await asyncio.sleep(every_s)


class Process:
    """A program whose output goes to a file."""

    def __init__(self, command, log, **environment):
        self.command, self.log = [str(word) for word in command], log
        self.environment = {**os.environ, **environment}
        self.process = None

    def spawn(self):
        with open(self.log, "ab") as log:
            self.said_from = log.tell()
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment
            )

    def said(self):
        """What it has printed since it was started."""
        with open(self.log, "rb") as log:
            log.seek(self.said_from)
            return log.read().decode(errors="replace")

    def is_running(self):
        return self.process is not None and self.process.poll() is None

    def signal(self, number):
        if self.is_running():
            self.process.send_signal(number)

    async def ended(self, limit_s=END_S):
        await until(lambda: self.process.poll() is not None, f"{self.command[:2]} does not end", limit_s)

    async def kill(self):
        if self.is_running():
            # What is stopped dies of SIGKILL, too.
            self.process.kill()
            await self.ended()


class Loquent(Process):
    """A `loquent` process that says where it can be reached: `serve` or `connect`."""

    url = None

    async def start(self):
        self.url = None
        self.spawn()

        def announced():
            if not self.is_running():
                raise Failed(f"{' '.join(self.command)} has ended:\n{self.said()[-2000:]}")
            return READY.search(self.said())

        self.url = (await until(announced, f"{self.command} does not start"))[1]
        return self


class Redis(Process):
    """A Redis server. It writes no file of its own accord: killed, it has lost everything."""

    def __init__(self, folder, name, port=None):
        self.port = port or free_port()
        self.folder = folder / name
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = ["--bind", "127.0.0.1", "--port", self.port, "--save", "", "--dir", self.folder]
        # A copy must be able to follow at once.
        settings += ["--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"]
        super().__init__(["redis-server", *settings], folder / f"{name}.log")

    @property
    def address(self):
        return ("127.0.0.1", self.port)

    async def start(self, is_empty=False):
        if is_empty:
            (self.folder / "dump.rdb").unlink(missing_ok=True)
        self.spawn()
        await until(self.answers, f"redis-server does not start: {self.log}")
        return self

    async def answers(self):
        try:
            return await self.ask("PING") == "PONG"
        except (OSError, RedisError):
            return False

    async def ask(self, *words, limit_s=5):
        return await ask(self.port, *words, limit_s=limit_s)

    async def copy(self, port):
        """Makes it the copy of the server at `port`, and waits until it has what that one has."""
        await self.ask("REPLICAOF", "127.0.0.1", str(port))

        async def follows():
            return "master_link_status:up" in await self.ask("INFO", "replication")

        await until(follows, "the copy of the store does not follow")


class Sentinel(Process):
    """A sentinel that watches one Redis server: started for one failover, and ended after it."""

    def __init__(self, folder, watched_port):
        self.port = free_port()
        file = folder / "sentinel.conf"
        file.write_text(
            f"bind 127.0.0.1\nport {self.port}\ndir {folder}\n"
            f"sentinel monitor chaos 127.0.0.1 {watched_port} 1\n"
            "sentinel down-after-milliseconds chaos 500\nsentinel failover-timeout chaos 5000\n"
        )
        super().__init__(["redis-server", file, "--sentinel"], folder / "sentinel.log")

    async def start(self):
        self.spawn()

        async def knows_the_copy():
            with contextlib.suppress(OSError, RedisError):
                return len(await ask(self.port, "SENTINEL", "REPLICAS", "chaos")) == 1

        await until(knows_the_copy, "the sentinel does not find the copy of the store")

    async def store_port(self):
        """The port of the server that is the store by the sentinel's word."""
        return int((await ask(self.port, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", "chaos"))[1])


class RedisError(Exception):
    """An error that Redis answers."""


async def ask(port, *words, limit_s=5):
    """Redis's reply to one command, on a connection of its own: a text, a number, a list or nothing."""

    async def call():
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            coded = [str(word).encode() for word in words]
            writer.write(b"*%d\r\n" % len(coded) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in coded))
            return await reply(reader)
        finally:
            writer.transport.abort()

    try:
        return await asyncio.wait_for(call(), limit_s)
    except (asyncio.TimeoutError, asyncio.IncompleteReadError, ValueError) as error:
        raise OSError(f"Redis does not answer: {error!r}") from error


async def reply(reader):
    line = (await reader.readuntil(b"\r\n"))[:-2].decode()
    kind, rest = line[0], line[1:]
    if kind == "-":
        raise RedisError(rest)
    if kind == ":":
        return int(rest)
    if kind == "$":
        return None if rest == "-1" else (await reader.readexactly(int(rest) + 2))[:-2].decode(errors="replace")
    if kind == "*":
        return [await reply(reader) for _ in range(int(rest))]
    return rest


def end_all(processes):
    """Ends every process of the run that still is there."""
    for process in processes:
        process.signal(signal.SIGKILL)
    for process in processes:
        if process.process is not None:
            process.process.wait()
