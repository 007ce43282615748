"""Readers: each goes on at random replicas until it has the whole answer, and notes each of its visits."""

import asyncio
import collections
import contextlib
import dataclasses
import random
import time

import httpx

from . import dialects
from .cluster import KEYS
from .history import digest
from .plan import REFUSED, REPLICAS

#: APIs whose streams are resumed by `Last-Event-ID`.
RESUMED = ("chat", "completions", "connect")
#: How long a reader comes back that gets 404 everywhere, or nothing of an answer that only one replica can generate.
LOST_S = 25
#: Silence after which a reader tries another replica: least and most. A server sends comments while it waits.
SILENCE_S = (4, 12)
SILENCE_CALM_S = 30
#: After how many events a reader leaves for another replica.
ALL_EVENTS = 10**9
LEAVES_AFTER = (5, 40, 200, ALL_EVENTS, ALL_EVENTS)
#: Seconds between two events that a reader takes: most are quick.
PACES_S = (0, 0, 0, 0.003, 0.01)


@dataclasses.dataclass
class Answer:
    """An answer that a client has asked for."""

    a: str
    key: str
    api: str
    id: str = ""
    token: str = ""
    #: The id of what is stored of a chat.
    object_id: str = ""
    is_stored: bool = False
    #: Of the replica that began it.
    settings: str = ""
    is_stopping: bool = False
    is_over: bool = False

    def headers(self, key=None):
        """The headers of a request by its key, or by another one."""
        return {"authorization": f"Bearer {KEYS[key or self.key]}"}

    def token_header(self):
        return {"x-loquent-stream-token": self.token}


@dataclasses.dataclass
class Reading:
    """What one reader has of an answer."""

    answer: Answer
    r: str
    draw: random.Random
    text: str = ""
    place: int = None
    idle_since: float = None
    end: str = ""

    def begin_again(self):
        """Forgets what it has: it reads from the beginning, and the checker compares what comes."""
        self.place, self.text = None, ""


@dataclasses.dataclass
class Got:
    """What one visit gives a reader."""

    text: str = ""
    places: list = dataclasses.field(default_factory=list)
    end: str = "clean"
    finish: str = None
    usage: dict = None
    usages: int = 0
    error: str = None
    last_t: float = None


class Readers:
    """What all readers of a run share."""

    def __init__(self, cluster, history):
        self.cluster, self.history = cluster, history
        self.counts = collections.Counter()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self.http = httpx.AsyncClient(trust_env=False, limits=limits)
        #: Whether all faults are over.
        self.is_calm = False

    @contextlib.contextmanager
    def noted(self, reading):
        """Notes how a reader ends; one that is ended from outside is stuck."""
        try:
            yield
        finally:
            reading.end = reading.end or "stuck"
            self.counts[f"readers {reading.end}"] += 1
            self.history.info("reader", a=reading.answer.a, r=reading.r, end=reading.end)

    def leaves_after(self, draw):
        return ALL_EVENTS if self.is_calm else draw.choice(LEAVES_AFTER)

    async def follow(self, reading):
        """Reads on, at random replicas, until the answer is whole, stopped, failed or lost."""
        answer, draw = reading.answer, reading.draw
        with self.noted(reading):
            while not reading.end:
                replica = draw.randrange(REPLICAS)
                headers = answer.token_header()
                if reading.place is not None:
                    headers["last-event-id"] = str(reading.place)
                url = f"{self.cluster.address(replica)}/v1/streams/{answer.id}"
                self.counts["moves"] += 1
                chars = len(reading.text)
                leaves_after = self.leaves_after(draw)
                status = await self.visit(reading, "GET", url, replica, leaves_after, headers=headers)
                has_more = len(reading.text) > chars
                self.judge(reading, status, has_more)
                if not reading.end and not has_more:
                    await asyncio.sleep(draw.uniform(0.1, 0.5))

    def judge(self, reading, status, has_more=True):
        """What a reader makes of a visit: it gives up when it was refused, or got nothing, everywhere and for long."""
        answer = reading.answer
        if status == 404:
            self.counts["404"] += 1
            if answer.is_stopping:
                reading.end = reading.end or "stopped"
            reading.begin_again()
        elif status != 200:
            return
        elif has_more or answer.settings not in REFUSED:
            reading.idle_since = None
            return
        reading.idle_since = reading.idle_since or time.monotonic()
        if time.monotonic() - reading.idle_since > LOST_S:
            reading.end = reading.end or "lost"

    async def visit(self, reading, method, url, replica, leaves_after, begun=None, **request):
        """Reads over one connection; returns the status, or 0 if there was none."""
        a, draw = reading.answer.a, reading.draw
        silence_s = SILENCE_CALM_S if self.is_calm else draw.uniform(*SILENCE_S)
        pace_s = 0 if self.is_calm else draw.choice(PACES_S)
        fields = dict(a=a, r=reading.r, replica=replica, place=reading.place, chars=len(reading.text))
        call = self.history.invoke("read", **fields)
        got, status = Got(), 0
        try:
            timeout = httpx.Timeout(5, read=silence_s)
            async with self.http.stream(method, url, timeout=timeout, **request) as response:
                status = response.status_code
                if status != 200:
                    said = (await response.aread())[:200].decode(errors="replace")
                    self.history.fail(call, a=a, status=status, said=said)
                    return status
                if begun:
                    begun(response)
                await self.take(reading, got, response, leaves_after, pace_s)
        except httpx.ReadTimeout:
            got.end = "silent"
        except httpx.TransportError as error:
            got.end, got.error = "broken", type(error).__name__
        except asyncio.CancelledError:
            got.end = "cancelled"
            raise
        finally:
            if status == 0:
                self.history.fail(call, a=a, why=got.error or got.end)
            elif status == 200:
                self.note(call, reading, got, replica)
        return status

    async def take(self, reading, got, response, leaves_after, pace_s):
        """Takes pieces until the stream ends, or the reader leaves."""
        begun, slept, events = time.monotonic(), 0.0, 0
        async for piece in dialects.pieces(response):
            events += 1
            reading.answer.object_id = piece.object_id or reading.answer.object_id
            got.text += piece.text
            reading.text += piece.text
            if piece.place is not None:
                reading.place = piece.place
                got.places.append([piece.place, len(reading.text)])
            got.finish = piece.finish or got.finish
            if piece.usage:
                got.usage, got.usages = piece.usage, got.usages + 1
            if piece.text:
                # A slow reader's text may have come long before it takes it.
                got.last_t = round(time.monotonic() - begun - slept, 3)
            if piece.is_done or piece.error:
                got.end, got.error = ("done" if piece.is_done else "error"), piece.error
                return
            if events >= leaves_after:
                got.end = "left"
                return
            if pace_s:
                rests = time.monotonic()
                await asyncio.sleep(pace_s)
                slept += time.monotonic() - rests

    def note(self, call, reading, got, replica):
        """Notes what a visit gave, and whether the reader is at its end."""
        answer = reading.answer
        self.history.ok(call, a=answer.a, status=200, digest=digest(reading.text), **dataclasses.asdict(got))
        if got.end == "done":
            reading.end = "whole"
        elif got.end == "error" and isinstance(replica, int) and answer.api in RESUMED:
            # A proxy's error is not the answer's last word; and what has become of a response is in the store.
            reading.end = "failed"

    async def status(self, method, url, headers):
        """The status of a request, or 0 if there was none."""
        with contextlib.suppress(httpx.TransportError):
            async with self.http.stream(method, url, timeout=httpx.Timeout(5), headers=headers) as response:
                return response.status_code
        return 0

    async def json(self, method, url, **request):
        """Status and JSON of a response; 0 and nothing if there was none."""
        with contextlib.suppress(httpx.TransportError, ValueError):
            response = await self.http.request(method, url, timeout=httpx.Timeout(8), **request)
            return response.status_code, response.json() if response.status_code == 200 else None
        return 0, None
