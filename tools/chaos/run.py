"""A run: faults by their schedule, clients beside them, then calm; what it saw is in its history."""

import asyncio
import re
import signal
import sys
import time

from .clients import Clients
from .cluster import GRACE_S, KEYS, Cluster
from .plan import REPLICAS, plan
from .processes import Failed

WATCH_S = 0.25
PROGRESS_S = 5
#: What a replica must have given back once nobody reads any more.
GAUGES = re.compile(
    r"^loquent_(delivery_kept_bytes|delivery_active_paths|num_requests_running|num_requests_waiting|"
    r'num_requests_resting|open_streams\{transport="http"\}) (\S+)$',
    re.MULTILINE,
)


class Run:
    """One run in `folder`; `options` are those of the command line."""

    def __init__(self, options, folder, history):
        self.options, self.folder, self.history = options, folder, history
        self.cluster = Cluster(options.binary, folder, history)
        self.clients = Clients(self.cluster, history, options.seed)
        self.struck, self.known_owners, self.background = 0, {}, []

    async def go(self):
        """Runs; whatever happens, SIGTERM too, nothing of it runs afterwards."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asyncio.current_task().cancel)
        try:
            await self.cluster.start()
            self.background = [asyncio.ensure_future(task) for task in (self.watch(), self.progress())]
            await self.phases()
        finally:
            for task in [*self.background, *self.clients.tasks]:
                task.cancel()
            await asyncio.gather(*self.background, *self.clients.tasks, return_exceptions=True)
            await self.clients.http.aclose()
            await self.cluster.close()

    async def phases(self):
        options, clients = self.options, self.clients
        self.phase("faults")
        asking = [asyncio.ensure_future(clients.run(number)) for number in range(options.clients)]
        clients.tasks += asking
        # One that fails ends the run.
        self.background += asking
        await self.strike_all(plan(options.seed, options.seconds, options.faults))
        self.phase("calm")
        clients.is_ending = clients.is_calm = True
        await self.end_readers()
        await self.look_again()
        self.phase("rest")
        await self.rest()
        self.phase("end")

    def phase(self, name):
        self.history.info("phase", phase=name)

    async def strike_all(self, faults):
        """Each fault at its time; those of other targets may still last."""
        begun, striking = time.monotonic(), []
        for fault in [*faults, None]:
            at_s = fault.at_s if fault else self.options.seconds
            waits = asyncio.ensure_future(asyncio.sleep(max(0, begun + at_s - time.monotonic())))
            await asyncio.wait([waits, *self.background], return_when=asyncio.FIRST_COMPLETED)
            self.raise_failures(task for task, _ in striking)
            if fault:
                self.struck += 1
                striking = [(task, target) for task, target in striking if not task.done()]
                striking.append((asyncio.ensure_future(self.strike(fault, list(striking))), fault.target))
        await asyncio.gather(*(task for task, _ in striking))

    async def strike(self, fault, before):
        """A fault, once those `before` it on the same target are over: a busy machine takes longer than planned."""
        await asyncio.gather(*(task for task, target in before if target == fault.target), return_exceptions=True)
        await self.cluster.strike(fault)

    def raise_failures(self, tasks):
        for task in [*tasks, *self.background]:
            if task.done():
                task.result()

    async def end_readers(self):
        """Lets every reader come to its end; who has not within the bound is stuck."""
        deadline = time.monotonic() + self.options.bound
        while time.monotonic() < deadline:
            pending = [task for task in self.clients.tasks if not task.done()]
            if not pending:
                break
            await asyncio.wait(pending, timeout=1)
            self.raise_failures([])
        for task in self.clients.tasks:
            task.cancel()
        ended = await asyncio.gather(*self.clients.tasks, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception) and not isinstance(error, asyncio.CancelledError):
                raise error

    async def look_again(self):
        """After all faults: what was stopped is asked for once more, and what was stored is read, by others too."""
        clients = self.clients
        for answer in clients.answers:
            if answer.is_stopping and answer.id:
                for replica in self.cluster.replicas:
                    call = self.history.invoke("look", a=answer.a, replica=replica.number)
                    url = f"{self.cluster.address(replica.number)}/v1/streams/{answer.id}"
                    status = await clients.status("GET", url, answer.token_header())
                    self.history.ok(call, a=answer.a, status=status)
            if answer.is_stored and answer.object_id:
                await self.look_at_stored(answer)

    async def look_at_stored(self, answer):
        replica = self.cluster.replicas[len(answer.a) % REPLICAS]
        url = f"{self.cluster.address(replica.number)}/v1/chat/completions/{answer.object_id}"
        for key in KEYS:
            is_own = key == answer.key
            call = self.history.invoke("stored" if is_own else "pry", a=answer.a, replica=replica.number, what="key")
            status, said = await self.clients.json("GET", url, headers=answer.headers(key))
            told = {}
            if is_own and said:
                told = dict(text=said["choices"][0]["message"]["content"], usage=said.get("usage"))
            self.history.ok(call, a=answer.a, status=status, **told)

    async def rest(self):
        """Waits until everything is given back; notes what is not after the grace, and what the store still has."""
        deadline = time.monotonic() + GRACE_S + 20
        while True:
            gauges = await asyncio.gather(*(self.gauges(replica) for replica in self.cluster.replicas))
            if not any(any(one.values()) for one in gauges) or time.monotonic() > deadline:
                break
            await asyncio.sleep(1)
        for number, one in enumerate(gauges):
            self.history.info("rest", replica=number, gauges=one)
        await self.look_at_owners([answer for answer in self.clients.answers if answer.id], is_last=True)

    async def gauges(self, replica):
        response = await self.clients.http.get(f"{self.cluster.address(replica.number)}/metrics", timeout=20)
        return {name: float(value) for name, value in GAUGES.findall(response.text)}

    async def watch(self):
        """Notes whenever an answer has another owner in the store, and a replica that ends by itself."""
        while True:
            for replica in self.cluster.crashed():
                code = replica.process.returncode
                self.history.info("exit", replica=replica.number, by="itself", code=code)
                raise Failed(f"replica {replica.number} has ended by itself, with status {code}: {replica.log}")
            await self.look_at_owners([one for one in self.clients.answers if one.id and not one.is_over])
            await asyncio.sleep(WATCH_S)

    async def look_at_owners(self, answers, is_last=False):
        answers = [answer for answer in answers if answer.api != "responses"]
        found = await self.cluster.owners([answer.id for answer in answers])
        for answer, (owner, fence, state, epochs, head, ms) in zip(answers, found or []):
            seen = (owner, fence, state, epochs)
            # An answer that the store has never had is not told; one that it has lost is.
            if is_last or self.known_owners.get(answer.a, (None,) * 4) != seen:
                self.known_owners[answer.a] = seen
                fields = dict(a=answer.a, owner=owner, fence=fence, state=state, epochs=epochs, head=head, ms=ms)
                self.history.info("left" if is_last else "owner", **fields)

    async def progress(self):
        """A line every few seconds: how far the run is."""
        while True:
            await asyncio.sleep(PROGRESS_S)
            print(f"  {self.history.now():6.0f} s  {self.told()}", file=sys.stderr, flush=True)

    def told(self):
        counts = self.clients.counts
        ends = ", ".join(f"{count} {end[8:]}" for end, count in sorted(counts.items()) if end.startswith("readers "))
        done = f"{self.struck} faults, {counts['asked']} answers, {counts['moves']} moves"
        return f"{done}; readers: {ends or 'none yet'}"
