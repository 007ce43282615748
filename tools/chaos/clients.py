"""Clients: they ask one question after another, stop some answers, and try what is not theirs."""

import asyncio
import random

from . import dialects
from .cluster import KEYS, PROXIES
from .plan import REFUSED, REPLICAS
from .readers import ALL_EVENTS, Answer, Readers, Reading

#: How an answer is asked for, and how often.
APIS = {"chat": 9, "completions": 3, "connect": 4, "responses": 4, "messages": 2, "ollama": 2}
TOKENS = (100, 400, 800, 1500)
#: How often a question is another key's too, an answer is stored or stopped, or somebody else tries to read it.
SHARED, STORED, STOPPED, PRIED = 0.25, 0.3, 0.12, 0.2


class Clients(Readers):
    """All clients of a run."""

    def __init__(self, cluster, history, seed):
        super().__init__(cluster, history)
        self.seed = seed
        self.answers, self.tasks, self.prompts = [], [], []
        #: Whether clients ask no more.
        self.is_ending = False

    def spawn(self, task):
        self.tasks.append(asyncio.ensure_future(task))
        return self.tasks[-1]

    async def run(self, number):
        """One client: asks one question after another."""
        draw = random.Random(f"{self.seed}/client/{number}")
        key = list(KEYS)[number % len(KEYS)]
        asks = {"responses": self.ask_in_background, "messages": self.ask_plainly, "ollama": self.ask_plainly}
        while not self.is_ending:
            api = draw.choices(list(APIS), list(APIS.values()))[0]
            answer = Answer(f"a{len(self.answers)}", key, api)
            self.answers.append(answer)
            await asks.get(api, self.ask_and_read)(answer, random.Random(f"{self.seed}/answer/{answer.a}"))
            answer.is_over = True
            await asyncio.sleep(draw.uniform(0, 0.5))

    def question(self, answer, draw, replica):
        """Path and body of a question, whose prompt may be one of another key; the call that begins with it."""
        others = [number for number, key in self.prompts[-20:] if key != answer.key]
        number = draw.choice(others) if others and draw.random() < SHARED else len(self.prompts)
        self.prompts.append((number, answer.key))
        sampled = draw.choice([None, {"temperature": 0}, {"temperature": 1.0, "seed": draw.randrange(1000)}])
        tokens = draw.choice(TOKENS)
        answer.is_stored = answer.api == "chat" and draw.random() < STORED
        answer.settings = self.cluster.replicas[replica].settings if isinstance(replica, int) else ""
        path, body = dialects.request(answer.api, dialects.prompt(self.seed, number), tokens, sampled)
        if answer.is_stored:
            body["store"] = True
        told = dict(prompt=number, tokens=tokens, sampled=sampled, stored=answer.is_stored, settings=answer.settings)
        call = self.history.invoke("ask", a=answer.a, key=answer.key, api=answer.api, replica=replica, **told)
        return path, body, call

    def asked(self, call, answer, status):
        """Notes whether a question was taken."""
        if status == 200:
            self.history.ok(call, a=answer.a, id=answer.id, status=status)
            self.counts["asked"] += 1
        else:
            self.history.fail(call, a=answer.a, status=status)

    async def ask_and_read(self, answer, draw):
        """Asks for a resumable answer, and reads it with one to three readers until all have it."""
        is_by_proxy = answer.api == "connect"
        number = draw.randrange(PROXIES if is_by_proxy else REPLICAS)
        url = self.cluster.proxies[number].url if is_by_proxy else self.cluster.address(number)
        where = f"connect{number}" if is_by_proxy else number
        path, body, call = self.question(answer, draw, where)
        reading, readers = Reading(answer, f"{answer.a}.0", draw), []

        def begun(response):
            answer.id, answer.token = (response.headers[f"x-loquent-stream-{name}"] for name in ("id", "token"))
            self.asked(call, answer, 200)
            if is_by_proxy and draw.random() < 0.5:
                self.spawn(self.move(number, draw.uniform(0, 3), draw.randrange(REPLICAS)))
            readers.extend(self.beside(answer, draw))

        leaves_after = self.leaves_after(draw)
        request = dict(json=body, headers=answer.headers())
        status = await self.visit(reading, "POST", f"{url}{path}", where, leaves_after, begun, **request)
        if status == 200:
            await asyncio.gather(self.follow(reading), *readers)
        else:
            self.asked(call, answer, status)

    def beside(self, answer, draw):
        """Begins what happens beside an answer's first reader; returns its further readers."""
        if draw.random() < STOPPED:
            self.spawn(self.stop(answer, draw.uniform(0, 4)))
        if draw.random() < PRIED:
            wrong = answer.token[:-1] + ("0" if answer.token[-1] != "0" else "1")
            headers = {"x-loquent-stream-token": wrong}
            self.spawn(self.pry(answer, f"streams/{answer.id}", "token", headers, random.Random(draw.random())))
        more = [Reading(answer, f"{answer.a}.{r + 1}", random.Random(draw.random())) for r in range(draw.randrange(3))]
        return [self.spawn(self.follow(reading)) for reading in more]

    async def move(self, proxy, after_s, replica):
        await asyncio.sleep(after_s)
        self.cluster.move(proxy, replica)

    async def stop(self, answer, after_s):
        """DELETEs an answer, at whichever replica can be told."""
        await asyncio.sleep(after_s)
        answer.is_stopping = True
        draw = random.Random(f"{self.seed}/stop/{answer.a}")
        while True:
            replica = draw.randrange(REPLICAS)
            call = self.history.invoke("delete", a=answer.a, replica=replica)
            url = f"{self.cluster.address(replica)}/v1/streams/{answer.id}"
            status = await self.status("DELETE", url, answer.token_header())
            if status == 204:
                return self.history.ok(call, a=answer.a, status=status)
            self.history.fail(call, a=answer.a, status=status)
            if status == 404:
                return None
            await asyncio.sleep(0.3)

    async def pry(self, answer, path, what, headers, draw):
        """Tries to read an answer with a token, or a key, that is not its own."""
        await asyncio.sleep(draw.uniform(0, 3))
        replica = draw.randrange(REPLICAS)
        call = self.history.invoke("pry", a=answer.a, replica=replica, what=what)
        status = await self.status("GET", f"{self.cluster.address(replica)}/v1/{path}", headers)
        self.history.ok(call, a=answer.a, status=status)

    async def ask_plainly(self, answer, draw):
        """Asks in an API whose streams cannot be resumed, again and again until an answer is whole."""
        path, body, call = self.question(answer, draw, None)
        self.asked(call, answer, 200)
        reading = Reading(answer, f"{answer.a}.0", draw)
        with self.noted(reading):
            while not reading.end:
                reading.begin_again()
                # An engine of other settings answers otherwise.
                usual = [one.number for one in self.cluster.replicas if one.settings not in REFUSED]
                replica = draw.choice(usual)
                url, request = f"{self.cluster.address(replica)}{path}", dict(json=body, headers=answer.headers())
                status = await self.visit(reading, "POST", url, replica, ALL_EVENTS, **request)
                await asyncio.sleep(0 if status == 200 else draw.uniform(0.1, 0.5))

    async def ask_in_background(self, answer, draw):
        """Asks for a response in the background; polls and streams it until it is complete."""
        replica = draw.randrange(REPLICAS)
        path, body, call = self.question(answer, draw, replica)
        url = f"{self.cluster.address(replica)}{path}"
        status, said = await self.json("POST", url, json=body, headers=answer.headers())
        answer.id = said["id"] if said else ""
        self.asked(call, answer, status)
        if status != 200:
            return
        if draw.random() < PRIED:
            other = draw.choice([key for key in KEYS if key != answer.key])
            headers = answer.headers(other)
            self.spawn(self.pry(answer, f"responses/{answer.id}", "key", headers, random.Random(draw.random())))
        reading = Reading(answer, f"{answer.a}.0", draw)
        with self.noted(reading):
            while not reading.end:
                self.counts["moves"] += 1
                await (self.poll if draw.random() < 0.6 else self.stream_response)(reading)
                await asyncio.sleep(draw.uniform(0.1, 0.8))

    async def poll(self, reading):
        """Looks once at a stored response."""
        answer, replica = reading.answer, reading.draw.randrange(REPLICAS)
        call = self.history.invoke("poll", a=answer.a, r=reading.r, replica=replica)
        url = f"{self.cluster.address(replica)}/v1/responses/{answer.id}"
        status, said = await self.json("GET", url, headers=answer.headers())
        if status != 200:
            self.history.fail(call, a=answer.a, status=status)
            return self.judge(reading, status)
        reading.idle_since = None
        state, text = said["status"], dialects.text_of_response(said)
        told = dict(state=state, text=text, usage=said["usage"], error=said.get("error"))
        self.history.ok(call, a=answer.a, status=status, **told)
        if state in ("completed", "incomplete"):
            reading.end = "whole"
        elif state not in ("queued", "in_progress"):
            reading.end = "failed"
        return None

    async def stream_response(self, reading):
        """Streams a response from where its reader is; 503 where another replica generates it."""
        answer, replica = reading.answer, reading.draw.randrange(REPLICAS)
        after = "" if reading.place is None else f"&starting_after={reading.place}"
        url = f"{self.cluster.address(replica)}/v1/responses/{answer.id}?stream=true{after}"
        leaves_after = self.leaves_after(reading.draw)
        status = await self.visit(reading, "GET", url, replica, leaves_after, headers=answer.headers())
        self.judge(reading, status)
        if status == 410:
            # What was sent last had not been stored.
            reading.begin_again()
