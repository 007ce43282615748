"""The honest users: streams that are read to their end, one after another, and how they went.

Usage: honest.py URL KEY[,KEY…] STREAMS TOKENS [PAUSE_S]; of several keys each stream takes the next,
and is followed by a pause of up to twice PAUSE_S (default 0). Ends at SIGTERM, when the streams under
way have ended.
"""

import asyncio
import itertools
import json
import pathlib
import random
import signal
import sys
import time
from urllib.parse import urlsplit

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from records.printed import percentile

#: A stream that is silent for longer is lost.
PATIENCE_S = 60


class Users:
    """What the users saw."""

    def __init__(self, url, keys, tokens, pause_s):
        at = urlsplit(url)
        self.where, self.tokens = (at.hostname, at.port), tokens
        self.keys = itertools.cycle(keys.split(","))
        self.pause_s, self.chunks = pause_s, 0
        self.gaps_ms, self.ttft_ms, self.lost, self.refused, self.whole = [], [], [], 0, 0
        self.ending = asyncio.Event()

    def request(self):
        """A completion of a known length; the number makes each prompt a new one."""
        text = f"{self.whole} {time.monotonic_ns()} tokens={self.tokens}"
        counted = {"stream": True, "stream_options": {"include_usage": True}}
        body = json.dumps({"prompt": text, "max_tokens": 2 * self.tokens, **counted}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {self.where[0]}\r\nAuthorization: Bearer {next(self.keys)}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        return head.encode() + body

    async def stream(self):
        """Reads one stream; raises when it is not whole."""
        begun = time.monotonic()
        reader, writer = await asyncio.wait_for(asyncio.open_connection(*self.where), PATIENCE_S)
        try:
            writer.write(self.request())
            status = (await asyncio.wait_for(reader.readline(), PATIENCE_S)).split()[1]
            if status in (b"429", b"503"):
                self.refused += 1
                return await asyncio.sleep(1)
            if status != b"200":
                raise ValueError(f"status {status.decode()}")
            await self.read_events(reader, begun)
            self.whole += 1
        finally:
            writer.close()

    async def read_events(self, reader, begun):
        # The end token counts too.
        last, tokens, ended = None, 0, b'"completion_tokens":%d,' % (self.tokens + 1)
        while True:
            line = await asyncio.wait_for(reader.readline(), PATIENCE_S)
            now = time.monotonic()
            if ended in line:
                return
            if not line:
                raise ValueError(f"ended after {tokens} of {self.tokens} chunks")
            if line.startswith(b"data: {") and b'"finish_reason":null' in line:
                tokens += 1
                self.chunks += not self.ending.is_set()
                into, since = (self.ttft_ms, begun) if last is None else (self.gaps_ms, last)
                into.append((now - since) * 1e3)
                last = now

    async def go_on(self):
        while not self.ending.is_set():
            try:
                await self.stream()
                await asyncio.sleep(random.random() * 2 * self.pause_s)
            except (OSError, ValueError, IndexError, asyncio.TimeoutError) as error:
                self.lost.append(f"{type(error).__name__}: {error}")
                await asyncio.sleep(0.2)


async def run(url, keys, streams, tokens, pause_s):
    users = Users(url, keys, tokens, pause_s)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, users.ending.set)
    print("reading", flush=True)
    await asyncio.gather(*(users.go_on() for _ in range(streams)))
    summary = {
        "whole": users.whole,
        "lost": users.lost,
        "refused": users.refused,
        "chunks": users.chunks,
        "gaps": len(users.gaps_ms),
        "icl_p50_ms": percentile(users.gaps_ms, 0.5),
        "icl_p99_ms": percentile(users.gaps_ms, 0.99),
        "icl_max_ms": max(users.gaps_ms, default=None),
        "ttft_p50_ms": percentile(users.ttft_ms, 0.5),
        "ttft_p99_ms": percentile(users.ttft_ms, 0.99),
    }
    print(json.dumps(summary), flush=True)


if __name__ == "__main__":
    url, keys, streams, tokens, *pause_s = sys.argv[1:]
    asyncio.run(run(url, keys, int(streams), int(tokens), float(*pause_s)))
