"""Three replicas, their store and what stands in between; and what each fault does to them."""

import asyncio
import contextlib
import re
import signal

from .forwarder import Forwarder
from .plan import REPLICAS, SETTINGS, STORE
from .processes import Loquent, Redis, RedisError, Sentinel, end_all, until

#: How long an answer is kept for a reader that may come back. Readers here are never away for so long.
GRACE_S = 30
#: Clients, by the names of their API keys.
KEYS = {name: f"sk-chaos-{name}-{'0123456789abcdef' * 2}" for name in ("alice", "bob", "carol")}
PROXIES = 2
FLAGS = {
    "--port": "0",
    "--api-key-file": None,
    "--store": None,
    "--ollama-api": "always",
    "--resume-grace-s": str(GRACE_S),
    "--drain-timeout-s": "20",
    "--context": "2048",
    "--threads": "1",
    "--stream-interval": "1",
}
OWNERS = """
local out = {}
for i, id in ipairs(ARGV) do
    local answer = 'loquent:1:a:' .. id
    out[i] = redis.call('HMGET', answer, 'o', 'f', 's', 'e', 'h')
    out[i][6] = redis.call('PTTL', answer)
end
return out
"""
#: The name that a replica draws at its start, by which the store knows it.
NAME = re.compile(r'replica="(\w+)"')


class Replica(Loquent):
    """A replica with a gate of its own to the store, which can be cut and can stand still."""

    def __init__(self, number, binary, folder, store_address):
        environment = {"LOQUENT_LOG": "info,loquent::requests=off", "LOQUENT_CONFIG": str(folder / "settings.toml")}
        super().__init__([], folder / f"replica-{number}.log", **environment)
        self.number, self.binary, self.folder = number, binary, folder
        self.gate = Forwarder(store_address)
        self.settings, self.name = "", ""

    async def start(self, settings=""):
        self.settings = settings
        flags = {**FLAGS, "--api-key-file": self.folder / "keys.toml", "--store": f"redis://127.0.0.1:{self.gate.port}"}
        words = list(SETTINGS.get(settings, ()))
        flags.update(zip(words[::2], words[1::2]))
        self.command = [str(self.binary), "serve", "--no-profile"]
        self.command += [str(word) for flag in flags.items() for word in flag]
        await super().start()
        # It says so when it opens the store, before it says where it can be reached.
        self.name = NAME.search(self.said())[1]

    async def end(self, number=signal.SIGTERM):
        """Ends it by a signal; returns its exit status."""
        self.url = None
        self.signal(number)
        await self.ended()
        return self.process.returncode


class Cluster:
    """All processes of a run."""

    def __init__(self, binary, folder, history):
        self.history, self.folder = history, folder
        (folder / "keys.toml").touch(mode=0o600)
        tables = [f'[[key]]\nname = "{name}"\nkey = "{key}"\n' for name, key in KEYS.items()]
        (folder / "keys.toml").write_text("\n".join(tables))
        # Nobody's own settings.
        (folder / "settings.toml").touch()
        self.store, self.copy = Redis(folder, "redis-a"), Redis(folder, "redis-b")
        self.replicas = [Replica(number, binary, folder, lambda: self.store.address) for number in range(REPLICAS)]
        self.proxies, self.fronts, self.others = [], [], []
        self.next_replica = [number % REPLICAS for number in range(PROXIES)]
        self.binary = binary

    async def start(self):
        await asyncio.gather(self.store.start(), self.copy.start())
        await self.copy.copy(self.store.port)
        for replica in self.replicas:
            await replica.gate.start()
        await asyncio.gather(*(self.begin(replica) for replica in self.replicas))
        for number in range(PROXIES):
            front = await Forwarder(lambda number=number: self.address_for(number)).start()
            self.fronts.append(front)
            words = ["connect", "--url", f"http://127.0.0.1:{front.port}", "--listen", "127.0.0.1:0"]
            words += ["--state-dir", self.folder / f"connect-{number}", "--resume-limit-s", "60"]
            log = self.folder / f"connect-{number}.log"
            environment = {"LOQUENT_LOG": "info,loquent_client=debug"}
            environment["LOQUENT_CONFIG"] = str(self.folder / "settings.toml")
            proxy = Loquent([self.binary, *words], log, **environment)
            self.proxies.append(await proxy.start())
        return self

    def address_for(self, proxy):
        """The replica that a proxy's next connection gets: a balancer passes over those that do not answer."""
        for turn in range(REPLICAS):
            replica = self.replicas[(self.next_replica[proxy] + turn) % REPLICAS]
            if replica.url and replica.is_running():
                return "127.0.0.1", int(replica.url.rsplit(":", 1)[1])
        return None

    def move(self, proxy, replica):
        """Sends a proxy to another replica: its connections there break off."""
        self.next_replica[proxy] = replica
        self.fronts[proxy].drop()

    async def strike(self, fault):
        """Does a fault, and undoes it when its time is over."""
        fields = dict(kind=fault.kind, target=fault.target, lasts=fault.lasts_s, settings=fault.settings)
        call = self.history.invoke("fault", **fields)
        does = getattr(self, fault.kind.replace("-", "_"))
        if fault.target == STORE:
            await does(fault.lasts_s)
        elif fault.kind == "settings":
            await does(self.replicas[fault.target], fault.lasts_s, fault.settings)
        else:
            await does(self.replicas[fault.target], fault.lasts_s)
        self.history.ok(call)

    async def begin(self, replica, settings=""):
        await replica.start(settings)
        self.history.info("start", replica=replica.number, name=replica.name, settings=settings)

    async def end(self, replica, number=signal.SIGTERM):
        self.history.info("exit", replica=replica.number, by=number.name, code=await replica.end(number))

    async def kill(self, replica, lasts_s):
        await self.end(replica, signal.SIGKILL)
        await asyncio.sleep(lasts_s)
        await self.begin(replica)

    async def term(self, replica, _):
        await self.end(replica)
        await self.begin(replica)

    async def settings(self, replica, lasts_s, settings):
        await self.end(replica)
        await self.begin(replica, settings)
        await asyncio.sleep(lasts_s)
        await self.end(replica)
        await self.begin(replica)

    async def pause(self, process, lasts_s):
        process.signal(signal.SIGSTOP)
        await asyncio.sleep(lasts_s)
        process.signal(signal.SIGCONT)

    async def cut(self, replica, lasts_s):
        replica.gate.cut()
        await asyncio.sleep(lasts_s)
        replica.gate.heal()

    async def stall(self, replica, lasts_s):
        replica.gate.stall()
        await asyncio.sleep(lasts_s)
        replica.gate.heal()

    async def store_pause(self, lasts_s):
        await self.pause(self.store, lasts_s)

    async def client_pause(self, lasts_s):
        await self.store.ask("CLIENT", "PAUSE", int(lasts_s * 1000))
        await asyncio.sleep(lasts_s)

    async def store_restart(self, lasts_s):
        with contextlib.suppress(OSError):
            await self.store.ask("SHUTDOWN", "SAVE")
        await self.store.ended()
        await asyncio.sleep(lasts_s)
        await self.store.start()

    async def store_empty(self, lasts_s):
        await asyncio.gather(self.store.kill(), self.copy.kill())
        await asyncio.sleep(lasts_s)
        await asyncio.gather(self.store.start(is_empty=True), self.copy.start(is_empty=True))
        await self.copy.copy(self.store.port)

    async def failover(self, lag_s):
        """The copy gets nothing of the last `lag_s` seconds, and then is the store."""
        old, new = self.store, self.copy
        sentinel = Sentinel(self.folder, old.port)
        self.others.append(sentinel)
        await sentinel.start()
        if lag_s > 0.1:
            # Its link to the store goes nowhere; what it has it keeps.
            await new.ask("REPLICAOF", "127.0.0.1", 1)
            await asyncio.sleep(lag_s)
        await old.kill()

        async def has_switched():
            return await sentinel.store_port() == new.port

        await until(has_switched, f"the sentinel does not make the copy the store: {sentinel.log}")
        self.store, self.copy = new, old
        await sentinel.kill()
        await old.start(is_empty=True)
        await old.copy(new.port)

    def crashed(self):
        """Replicas that have ended though nobody ended them."""
        return [one for one in self.replicas if one.url and not one.is_running()]

    async def owners(self, ids):
        """What the store knows of answers, or nothing while it is away.

        For each: owner, fence, state, epochs, length of the log, and milliseconds until it is forgotten.
        """
        try:
            return await self.store.ask("EVAL", OWNERS, 0, *ids, limit_s=2) if ids else []
        except (OSError, RedisError):
            return None

    def address(self, replica):
        """The URL of a replica; of one that is not there, one that nobody serves."""
        return self.replicas[replica].url or "http://127.0.0.1:1"

    async def close(self):
        """Ends everything."""
        end_all([*self.replicas, *self.proxies, *self.others, self.store, self.copy])
        for forwarder in [*self.fronts, *(replica.gate for replica in self.replicas)]:
            if forwarder.server:
                await forwarder.close()
