"""Clients: they ask, read on at random replicas until an answer is whole, stop some answers, and try what is not theirs."""

import asyncio
import collections
import dataclasses
import random
import time

import httpx

from . import dialects
from .cluster import KEYS, PROXIES
from .history import digest
from .plan import REFUSED, REPLICAS

#: How an answer is asked for, and how often.
APIS = {"chat": 9, "completions": 3, "connect": 4, "responses": 4, "messages": 2, "ollama": 2}
PLAIN = ("messages", "ollama")
RESUMED = ("chat", "completions", "connect")
TOKENS = (100, 400, 800, 1500)
#: How long a reader comes back that gets 404 everywhere, or nothing of an answer that only one replica can generate.
LOST_S = 25
#: Silence after which a reader tries another replica: least and most. A server sends comments while it waits.
SILENCE_S = (4, 12)
SILENCE_CALM_S = 30
MOST_EVENTS = 10**9


@dataclasses.dataclass
class Answer:
    """An answer that a client has asked for."""

    a: str
    key: str
    api: str
    id: str = ""
    token: str = ""
    object_id: str = ""
    is_stored: bool = False
    #: Of the replica that began it.
    settings: str = ""
    is_stopping: bool = False
    is_over: bool = False


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


class Clients:
    """All clients of a run, and what they share."""

    def __init__(self, cluster, history, seed):
        self.cluster, self.history, self.seed = cluster, history, seed
        self.counts = collections.Counter()
        self.http = httpx.AsyncClient(
            trust_env=False, limits=httpx.Limits(max_connections=None, max_keepalive_connections=0)
        )
        self.answers, self.tasks = [], []
        #: Whether clients ask no more, and whether all faults are over.
        self.is_ending, self.is_calm = False, False
        self.prompts = []

    def headers(self, answer, key=None):
        return {"authorization": f"Bearer {KEYS[key or answer.key]}"}

    async def run(self, number):
        """One client: asks one question after another."""
        draw = random.Random(f"{self.seed}/client/{number}")
        key = list(KEYS)[number % len(KEYS)]
        while not self.is_ending:
            api = draw.choices(list(APIS), list(APIS.values()))[0]
            answer = Answer(f"a{len(self.answers)}", key, api)
            self.answers.append(answer)
            own = random.Random(f"{self.seed}/answer/{answer.a}")
            if api in PLAIN:
                await self.ask_plainly(answer, own)
            elif api == "responses":
                await self.ask_in_background(answer, own)
            else:
                await self.ask_and_read(answer, own)
            answer.is_over = True
            await asyncio.sleep(draw.uniform(0, 0.5))

    def question(self, answer, draw):
        """A question: its prompt, which may be one of another key too, and its parameters."""
        others = [number for number, key in self.prompts[-20:] if key != answer.key]
        number = draw.choice(others) if others and draw.random() < 0.25 else len(self.prompts)
        self.prompts.append((number, answer.key))
        sampled = draw.choice([None, {"temperature": 0}, {"temperature": 1.0, "seed": draw.randrange(1000)}])
        tokens = draw.choice(TOKENS)
        answer.is_stored = answer.api == "chat" and draw.random() < 0.3
        api = "chat" if answer.api == "connect" else answer.api
        path, body = dialects.request(api, dialects.prompt(self.seed, number), tokens, sampled)
        if answer.is_stored:
            body["store"] = True
        return path, body, dict(prompt=number, tokens=tokens, sampled=sampled, stored=answer.is_stored)

    async def ask_and_read(self, answer, draw):
        """Asks for a resumable answer, and reads it with one to three readers until all have it."""
        path, body, told = self.question(answer, draw)
        reading = Reading(answer, f"{answer.a}.0", draw)
        proxy = draw.randrange(PROXIES) if answer.api == "connect" else None
        replica = draw.randrange(REPLICAS)
        url = self.cluster.proxies[proxy].url if proxy is not None else self.cluster.address(replica)
        answer.settings = "" if proxy is not None else self.cluster.replicas[replica].settings
        where = f"connect{proxy}" if proxy is not None else replica
        fields = dict(a=answer.a, key=answer.key, api=answer.api, replica=where, settings=answer.settings, **told)
        call = self.history.invoke("ask", **fields)
        readers = []

        def begun(response):
            answer.id = response.headers.get("x-loquent-stream-id", "")
            answer.token = response.headers.get("x-loquent-stream-token", "")
            self.history.ok(call, a=answer.a, id=answer.id, status=response.status_code)
            self.counts["asked"] += 1
            self.tasks += [asyncio.ensure_future(task) for task in self.beside(answer, draw)]
            readers.extend(self.tasks[-1:])

        request = ("POST", f"{url}{path}", dict(json=body, headers=self.headers(answer)))
        status = await self.visit(reading, request, where, self.leaves_after(draw), begun)
        if status != 200:
            self.history.fail(call, a=answer.a, status=status)
            self.counts[f"not asked: {status}"] += 1
            return
        if proxy is not None and draw.random() < 0.5:
            self.cluster.move(proxy, draw.randrange(REPLICAS))
        await asyncio.gather(self.follow(reading), *readers)

    def beside(self, answer, draw):
        """What happens beside an answer's first reader. The last of it reads."""
        if draw.random() < 0.12:
            yield self.stop(answer, draw.uniform(0, 4))
        if draw.random() < 0.15:
            yield self.pry(answer, random.Random(draw.random()))
        more = [Reading(answer, f"{answer.a}.{r + 1}", random.Random(draw.random())) for r in range(draw.randrange(3))]
        yield self.follow_all(more)

    async def follow_all(self, readings):
        await asyncio.gather(*(self.follow(reading) for reading in readings))

    def leaves_after(self, draw):
        """After how many events a reader leaves for another replica."""
        return MOST_EVENTS if self.is_calm else draw.choice([5, 40, 200, MOST_EVENTS, MOST_EVENTS])

    async def follow(self, reading):
        """Reads on, at random replicas, until the answer is whole, stopped, failed or lost."""
        answer, draw = reading.answer, reading.draw
        try:
            while not reading.end:
                replica = draw.randrange(REPLICAS)
                headers = {"x-loquent-stream-token": answer.token}
                if reading.place is not None:
                    headers["last-event-id"] = str(reading.place)
                request = ("GET", f"{self.cluster.address(replica)}/v1/streams/{answer.id}", dict(headers=headers))
                self.counts["moves"] += 1
                chars = len(reading.text)
                status = await self.visit(reading, request, replica, self.leaves_after(draw))
                self.judge(reading, status, len(reading.text) > chars)
                if not reading.end and len(reading.text) == chars:
                    await asyncio.sleep(draw.uniform(0.1, 0.5))
        finally:
            reading.end = reading.end or "stuck"
            self.counts[f"readers {reading.end}"] += 1
            self.history.info("reader", a=answer.a, r=reading.r, end=reading.end)

    def judge(self, reading, status, is_going_on=True):
        """What a reader makes of a visit: it gives up when it was refused, or got nothing, everywhere and for long."""
        answer = reading.answer
        if status == 404:
            self.counts["404"] += 1
            if answer.is_stopping:
                reading.end = reading.end or "stopped"
            # Its place is unknown: it reads the answer again, from its beginning.
            reading.place, reading.text = None, ""
        elif status != 200:
            return
        if status == 200 and (is_going_on or answer.settings not in REFUSED):
            reading.idle_since = None
            return
        reading.idle_since = reading.idle_since or time.monotonic()
        if time.monotonic() - reading.idle_since > LOST_S:
            reading.end = reading.end or "lost"

    async def visit(self, reading, request, replica, leave_after, begun=None, silence_s=None):
        """Reads over one connection; returns the status, or 0 if there was none."""
        method, url, more = request
        answer, draw = reading.answer, reading.draw
        silence_s = silence_s or (SILENCE_CALM_S if self.is_calm else draw.uniform(*SILENCE_S))
        pace_s = 0 if self.is_calm else draw.choice([0, 0, 0, 0.003, 0.01])
        # What a place names is counted from the beginning: text that was read before it is not repeated here.
        fields = dict(a=answer.a, r=reading.r, replica=replica, place=reading.place, chars=len(reading.text))
        call = self.history.invoke("read", **fields)
        got = Got(reading)
        status = 0
        try:
            timeout = httpx.Timeout(5, read=silence_s)
            async with self.http.stream(method, url, timeout=timeout, **more) as response:
                status = response.status_code
                if status != 200:
                    said = (await response.aread())[:200].decode(errors="replace")
                    self.history.fail(call, a=answer.a, status=status, said=said)
                    return status
                if begun:
                    begun(response)
                await got.take(response, leave_after, pace_s)
        except httpx.ReadTimeout:
            got.end = "silent"
        except (httpx.TransportError, httpx.InvalidURL) as error:
            got.end, got.error = got.error and "error" or "broken", got.error or type(error).__name__
        except asyncio.CancelledError:
            got.end = "cancelled"
            raise
        finally:
            if status in (0, 200):
                self.finish(call, got, status, replica)
        return status

    def finish(self, call, got, status, replica):
        """Notes what a visit gave."""
        reading = got.reading
        if status == 0:
            self.history.fail(call, a=reading.answer.a, why=got.error or got.end)
            return
        seen = dict(text=got.text, places=got.places, digest=digest(reading.text), end=got.end, last_t=got.last_t)
        told = dict(finish=got.finish, usage=got.usage, usages=got.usages, error=got.error)
        self.history.ok(call, a=reading.answer.a, status=status, **seen, **told)
        if got.end == "done":
            reading.end = "whole"
            self.counts["chars"] += len(reading.text)
        elif got.end == "error" and isinstance(replica, int) and reading.answer.api in RESUMED:
            # A proxy's error, or that of a stream that cannot be resumed, is not the answer's last word; and what has
            # become of a response is in the store.
            reading.end = "failed"

    async def stop(self, answer, after_s):
        """DELETEs an answer, at whichever replica can be told."""
        await asyncio.sleep(after_s)
        answer.is_stopping = True
        draw = random.Random(f"{self.seed}/stop/{answer.a}")
        while True:
            replica = draw.randrange(REPLICAS)
            call = self.history.invoke("delete", a=answer.a, replica=replica)
            url = f"{self.cluster.address(replica)}/v1/streams/{answer.id}"
            status = await self.status("DELETE", url, headers={"x-loquent-stream-token": answer.token})
            if status == 204:
                self.history.ok(call, a=answer.a, status=status)
                self.counts["stopped"] += 1
                return
            self.history.fail(call, a=answer.a, status=status)
            if status == 404:
                return
            await asyncio.sleep(0.3)

    async def pry(self, answer, draw):
        """Tries to read an answer with a token that is not its own."""
        wrong = answer.token[:-1] + ("0" if answer.token[-1:] != "0" else "1")
        await asyncio.sleep(draw.uniform(0, 3))
        replica = draw.randrange(REPLICAS)
        call = self.history.invoke("pry", a=answer.a, replica=replica, what="token")
        url = f"{self.cluster.address(replica)}/v1/streams/{answer.id}"
        status = await self.status("GET", url, headers={"x-loquent-stream-token": wrong})
        self.history.ok(call, a=answer.a, status=status)

    async def status(self, method, url, **more):
        """The status of a request, or 0 if there was none."""
        try:
            async with self.http.stream(method, url, timeout=httpx.Timeout(5), **more) as response:
                return response.status_code
        except (httpx.TransportError, httpx.InvalidURL):
            return 0

    async def ask_plainly(self, answer, draw):
        """Asks in an API whose streams cannot be resumed, again and again until an answer is whole."""
        path, body, told = self.question(answer, draw)
        call = self.history.invoke("ask", a=answer.a, key=answer.key, api=answer.api, replica=None, settings="", **told)
        self.history.ok(call, a=answer.a, id="", status=200)
        self.counts["asked"] += 1
        reading = Reading(answer, f"{answer.a}.0", draw)
        try:
            while not reading.end:
                # Each time from the beginning; an engine of other settings answers otherwise.
                reading.text = ""
                usual = [one for one in self.cluster.replicas if one.settings not in REFUSED]
                server = draw.choice(usual)
                request = ("POST", f"{self.cluster.address(server.number)}{path}", dict(json=body, headers=self.headers(answer)))
                status = await self.visit(reading, request, server.number, MOST_EVENTS)
                await asyncio.sleep(0 if status == 200 else draw.uniform(0.1, 0.5))
        finally:
            reading.end = reading.end or "stuck"
            self.counts[f"readers {reading.end}"] += 1
            self.history.info("reader", a=answer.a, r=reading.r, end=reading.end)

    async def ask_in_background(self, answer, draw):
        """Asks for a response in the background; polls and streams it until it is complete."""
        path, body, told = self.question(answer, draw)
        replica = draw.randrange(REPLICAS)
        server = self.cluster.replicas[replica]
        fields = dict(a=answer.a, key=answer.key, api=answer.api, replica=replica, settings=server.settings, **told)
        call = self.history.invoke("ask", **fields)
        status, said = await self.json("POST", f"{self.cluster.address(replica)}{path}", json=body, headers=self.headers(answer))
        if status != 200:
            self.history.fail(call, a=answer.a, status=status)
            self.counts[f"not asked: {status}"] += 1
            return
        answer.id = said["id"]
        self.history.ok(call, a=answer.a, id=answer.id, status=status)
        self.counts["asked"] += 1
        if draw.random() < 0.3:
            self.tasks.append(asyncio.ensure_future(self.pry_response(answer, random.Random(draw.random()))))
        reading = Reading(answer, f"{answer.a}.0", draw)
        try:
            while not reading.end:
                await (self.poll if draw.random() < 0.6 else self.stream_response)(reading)
                await asyncio.sleep(draw.uniform(0.1, 0.8))
        finally:
            reading.end = reading.end or "stuck"
            self.counts[f"readers {reading.end}"] += 1
            self.history.info("reader", a=answer.a, r=reading.r, end=reading.end)

    async def poll(self, reading):
        """Looks once at a stored response."""
        answer, replica = reading.answer, reading.draw.randrange(REPLICAS)
        call = self.history.invoke("poll", a=answer.a, r=reading.r, replica=replica)
        url = f"{self.cluster.address(replica)}/v1/responses/{answer.id}"
        status, said = await self.json("GET", url, headers=self.headers(answer))
        self.counts["moves"] += 1
        if status != 200:
            self.history.fail(call, a=answer.a, status=status)
            self.judge(reading, status)
            return
        reading.idle_since = None
        state = said["status"]
        text = dialects.text_of_response(said)
        error = said.get("error")
        self.history.ok(call, a=answer.a, status=status, state=state, text=text, usage=said["usage"], error=error)
        if state in ("completed", "incomplete"):
            reading.end = "whole"
        elif state not in ("queued", "in_progress"):
            reading.end = "failed"

    async def stream_response(self, reading):
        """Streams a response from where its reader is; 503 where another replica generates it."""
        answer, replica = reading.answer, reading.draw.randrange(REPLICAS)
        after = "" if reading.place is None else f"&starting_after={reading.place}"
        url = f"{self.cluster.address(replica)}/v1/responses/{answer.id}?stream=true{after}"
        request = ("GET", url, dict(headers=self.headers(answer)))
        self.counts["moves"] += 1
        status = await self.visit(reading, request, replica, self.leaves_after(reading.draw))
        self.judge(reading, status)
        if status == 410:
            # What was sent last had not been stored.
            reading.place, reading.text = None, ""

    async def pry_response(self, answer, draw):
        """Tries to read a response with another key."""
        await asyncio.sleep(draw.uniform(0, 3))
        replica = draw.randrange(REPLICAS)
        call = self.history.invoke("pry", a=answer.a, replica=replica, what="key")
        other = draw.choice([key for key in KEYS if key != answer.key])
        url = f"{self.cluster.address(replica)}/v1/responses/{answer.id}"
        self.history.ok(call, a=answer.a, status=await self.status("GET", url, headers=self.headers(answer, other)))

    async def json(self, method, url, **more):
        """Status and JSON of a response; 0 and nothing if there was none."""
        try:
            response = await self.http.request(method, url, timeout=httpx.Timeout(8), **more)
            return response.status_code, response.json() if response.status_code == 200 else None
        except (httpx.TransportError, httpx.InvalidURL, ValueError):
            return 0, None


class Got:
    """What one visit gives a reader."""

    def __init__(self, reading):
        self.reading = reading
        self.text, self.places, self.end = "", [], "clean"
        self.finish = self.usage = self.error = self.last_t = None
        self.usages = 0

    async def take(self, response, leave_after, pace_s):
        """Takes pieces until the stream ends, or the reader leaves."""
        reading, begun, events = self.reading, time.monotonic(), 0
        async for piece in dialects.pieces(response):
            events += 1
            reading.answer.object_id = piece.object_id or reading.answer.object_id
            self.text += piece.text
            reading.text += piece.text
            if piece.place is not None:
                reading.place = piece.place
                self.places.append([piece.place, len(reading.text)])
            self.finish = piece.finish or self.finish
            if piece.usage:
                self.usage, self.usages = piece.usage, self.usages + 1
            if piece.text:
                self.last_t = round(time.monotonic() - begun, 3)
            if piece.is_done or piece.error:
                self.end, self.error = ("done" if piece.is_done else "error"), piece.error
                return
            if events >= leave_after:
                self.end = "left"
                return
            if pace_s:
                await asyncio.sleep(pace_s)
