#!/usr/bin/env python3
"""What readers notice when parts of a cluster are killed: replicas behind HAProxy that share a store.

Starts `loquent serve` processes of one model, HAProxy in front of them with the configuration of docs/replicas.md, and
redis-server as their store. Each phase opens all streams at once and kills something once they have a third of their
text:

    undisturbed   nothing: how equal two runs are that nobody disturbs
    replica       a replica, for good (SIGKILL). The others take its answers over
    store         the store (SIGKILL), which has lost everything when it is started again, 2 s later
    stage         a stage of a model that is split in two (SIGKILL), started again 1 s later. One of the replicas
                  computes with these stages, the others have the whole model

Half of the requests are greedy, half are sampled with a seed, all with different prompts. Most streams are read as
event streams by a client that reconnects with the last event id it received; every fourth of these also disconnects on
its own, like a phone. The others (--quic) use QUIC through `loquent connect`. Each text is compared with that of the
same request on one undisturbed replica (exact) and, if it differs, with the answer's log (doubled, lost). A pause is
the longest time without text after the kill.

    bench/replicas.py --loquent target/release/loquent

Two runs of one request are equal bit for bit where Loquent's kernels compute all of it, as they do for the bundled
model. --model takes another:

    shape-model tiny --vocab models/loquent-tiny.gguf --quant Q8_0 --out small.gguf
    bench/replicas.py --loquent target/release/loquent --model small.gguf

It needs haproxy and redis-server (`tools/setup e2e` says how to install them), and takes three minutes with the bundled
model on two cores. Ends with status 1 if an answer broke off, a byte was lost or came twice, or fewer answers are exact
than undisturbed.
"""

import argparse
import collections
import contextlib
import dataclasses
import difflib
import http.client
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

from records.printed import percentile, runs

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
PHASES = ("undisturbed", "replica", "store", "stage")
READY = re.compile(r" on (?:https?://)?(\S+:\d+)")
# Where Debian puts servers, beside the path.
SERVER_PATH = os.pathsep.join([os.environ["PATH"], "/usr/sbin"])
NAME = "model"
# Addresses of docs/replicas.md: the frontend's, and that of the servers' lines.
BIND, SERVER_LINE = "bind :8080", re.compile(r"\n  server \w+ \S+ (.*)")
STAGE_KEY = "demonstration"
# What a phase may take in all, and a reader wait for what comes next.
PHASE_S, SILENCE_S = 100, 45
SUBJECTS = "a river,the sea,streams of tokens,packets,a lighthouse,trains,servers,mountains,letters,rain".split(",")
QUESTIONS = ("Tell me a story about {}.", "Explain {} to a child.", "What do you know about {}?",
             "Write a poem about {}.", "Compare {} with a library.")


class Program:
    """A process whose standard error is read for its address, and for what it says of answers."""

    def __init__(self, command, ready=None, **environment):
        environment = {**os.environ, "LOQUENT_LOG": "info,loquent::requests=off", **environment}
        self.command, self.environment, self.ready = command, environment, ready
        self.lines, self.address, self.threads = [], None, []
        self.start()

    def start(self):
        """Starts it, and waits until it says that it is ready."""
        up = threading.Event()
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                        env=self.environment)
        reader = threading.Thread(target=self.read, args=(self.process, up), daemon=True)
        reader.start()
        if self.ready and not up.wait(60):
            self.kill()
            raise SystemExit(f"replicas: does not start: {' '.join(self.command)}\n{''.join(self.lines)}")
        return self

    def read(self, process, up):
        for line in process.stderr:
            self.lines.append(line)
            found = self.ready and self.ready.search(line)
            if found and not up.is_set():
                self.address = self.address or found[1]
                up.set()
        process.stderr.close()

    def said(self, what):
        return sum(what in line for line in list(self.lines))

    def kill(self):
        self.process.kill()
        self.process.wait()


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def get(address, path):
    with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as response:
        return response.read().decode()


def until(holds, what, limit_s=60):
    """Waits until something holds."""
    deadline = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > deadline:
            raise SystemExit(f"replicas: {what}")
        time.sleep(0.05)


def answers(address, path):
    try:
        return bool(get(address, path))
    except OSError:
        return False


def program(name):
    found = shutil.which(name, path=SERVER_PATH)
    if not found:
        raise SystemExit(f"replicas: {name} is not installed (tools/setup e2e)")
    return found


class Cluster:
    """Replicas, their store, the proxy in front of them and, where asked for, two stages."""

    def __init__(self, options, folder, is_staged=False):
        self.options, self.folder, self.programs = options, folder, []
        self.stages = []
        self.store_port = free_port()
        self.store = self.add(Program(self.store_command()))
        until(self.has_store, "the store does not answer")
        flags = ("--store", f"redis://127.0.0.1:{self.store_port}")
        staged = self.start_stages() if is_staged else options.model
        files = [options.model] * (options.replicas - 1) + [staged]
        self.replicas = [self.serve(file, *flags) for file in files]
        self.front = self.start_proxy()
        # Its state is of its own: a proxy of an earlier phase knows another port.
        state = os.path.join(folder, f"connect-{self.front}")
        connect = [options.loquent, "connect", "--url", f"http://{self.front}", "--listen", "127.0.0.1:0",
                   "--state-dir", state]
        self.connect = self.add(Program(connect, READY)) if options.quic else None

    def add(self, one):
        self.programs.append(one)
        return one

    def store_command(self):
        port = str(self.store_port)
        return [program("redis-server"), "--bind", "127.0.0.1", "--port", port, "--save", "", "--dir", self.folder]

    def has_store(self):
        try:
            with socket.create_connection(("127.0.0.1", self.store_port), timeout=5) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(5) == b"+PONG"
        except OSError:
            return False

    def serve(self, file, *flags):
        options = self.options
        files = ["--stages", ",".join(stage.address for stage in self.stages)] if file is None else []
        file = file or self.entry
        # In a cache of its own, a sequence's keys lie in order, whatever else is in the batch.
        cells = str(options.batch * (options.tokens + 256))
        command = [options.loquent, "serve", "--model", file, *files, "--port", "0", "--served-model-name", NAME,
                   "--no-request-log", "--kv-type", options.kv_type, "--max-batch-size", str(options.batch),
                   "--kv-cells", cells, "--kv-layout", "split", "--no-prefix-cache",
                   "--max-inflight-requests", "1024", "--threads", str(options.threads), *flags]
        return self.add(Program(command, READY, LOQUENT_STAGE_KEY=STAGE_KEY))

    def start_stages(self):
        prefix = os.path.join(self.folder, "part")
        split = [self.options.loquent, "split", self.options.model, "--stages", "2", "--out", prefix]
        subprocess.run(split, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.entry = f"{prefix}-entry.gguf"
        for at in (1, 2):
            address = f"127.0.0.1:{free_port()}"
            command = [self.options.loquent, "stage", "--model", f"{prefix}-stage-{at}-of-2.gguf", "--listen", address,
                       "--threads", str(self.options.threads)]
            self.stages.append(self.add(Program(command, READY, LOQUENT_STAGE_KEY=STAGE_KEY)))
        return

    def start_proxy(self):
        """HAProxy as docs/replicas.md has it, with these addresses."""
        text = (REPOSITORY / "docs/replicas.md").read_text(encoding="utf-8")
        text = next(block for block in text.split("```") if "frontend loquent" in block)
        front = f"127.0.0.1:{free_port()}"
        health = SERVER_LINE.search(text)[1]
        lines = [f"\n  server r{at} {replica.address} {health}" for at, replica in enumerate(self.replicas)]
        text = SERVER_LINE.sub("", text.replace(BIND, f"bind {front}")).rstrip() + "".join(lines) + "\n"
        file = os.path.join(self.folder, "haproxy.conf")
        pathlib.Path(file).write_text(text, encoding="utf-8")
        self.add(Program([program("haproxy"), "-db", "-f", file]))
        until(lambda: answers(front, "/ready"), "the proxy does not answer")
        return front

    def busiest(self):
        """The replica that `connect` uses, which has other streams too; otherwise the one with the most."""
        if self.connect:
            port = json.loads(get(self.front, "/.well-known/loquent"))["port"]
            for replica in self.replicas:
                if json.loads(get(replica.address, "/.well-known/loquent"))["port"] == port:
                    return replica
        kept = re.compile(r"^loquent_delivery_kept_bytes (\S+)$", re.M)
        return max(self.replicas, key=lambda replica: float(kept.search(get(replica.address, "/metrics"))[1]))

    def taken_over(self):
        return sum(replica.said("is generated here from now on") for replica in self.replicas)

    def close(self):
        for one in reversed(self.programs):
            one.kill()


def kill_replica(cluster):
    cluster.busiest().kill()


def restart_store(cluster):
    cluster.store.kill()
    time.sleep(2)
    cluster.store.start()


def restart_stage(cluster):
    cluster.stages[0].kill()
    time.sleep(1)
    cluster.stages[0].start()


@dataclasses.dataclass
class Outcome:
    """Whether all answers of a phase came whole and once, and how many were those of the undisturbed run."""

    is_whole: bool
    exact: int


class Lost(Exception):
    """An answer that does not go on."""


class Reader(threading.Thread):
    """Reads one answer as a client does, which comes back until it has all of it."""

    def __init__(self, number, options, address, *, by_proxy=False, leaves=False):
        super().__init__(daemon=True)
        self.number, self.options, self.address, self.by_proxy = number, options, address, by_proxy
        # Whoever leaves by itself does so at this offset.
        self.leaves_at = random.Random(number).randint(100, 600) if leaves else None
        # Readers have addresses of their own, by which the proxy chooses a replica.
        self.source = (f"127.0.{1 + number // 250}.{1 + number % 250}", 0)
        self.parts, self.last, self.handle, self.text = [], 0, None, ""
        self.bytes, self.doubled, self.returns = 0, 0, 0
        # When text came, by this process's clock.
        self.times = []
        self.is_complete, self.broken = False, None

    def body(self):
        dice = random.Random(self.number)
        question = dice.choice(QUESTIONS).format(dice.choice(SUBJECTS))
        body = {"model": NAME, "stream": True, "max_tokens": self.options.tokens, "ignore_eos": True,
                "messages": [{"role": "user", "content": f"Request {self.number}: {question}"}], "temperature": 0}
        if self.number % 2:
            body.update(temperature=0.8, seed=self.number)
        if not self.by_proxy:
            body["resumable"] = True
        return json.dumps(body)

    def run(self):
        deadline = time.monotonic() + PHASE_S
        try:
            while not self.is_complete:
                if time.monotonic() > deadline:
                    raise Lost("it did not end in time")
                self.read_once()
        except Lost as lost:
            self.broken = str(lost)
        self.text = "".join(self.parts)

    def longest_pause_ms(self, since):
        """The longest time without text that ended after `since`."""
        times = [since, *(at for at in self.times if at > since)]
        before = [at for at in self.times if at <= since]
        times[0] = before[-1] if before else since
        return max((1000 * (b - a) for a, b in itertools.pairwise(times)), default=0.0)

    def read_once(self):
        """Reads until the connection ends."""
        connection = http.client.HTTPConnection(self.address, timeout=SILENCE_S, source_address=self.source)
        try:
            self.read(self.open(connection))
        except (OSError, http.client.HTTPException) as error:
            if self.by_proxy:
                raise Lost(f"the local endpoint broke off: {error!r}") from error
            self.returns += 1
            time.sleep(0.1)
        finally:
            connection.close()

    def open(self, connection):
        if self.handle:
            headers = {"x-loquent-stream-token": self.handle[1], "last-event-id": str(self.last)}
            connection.request("GET", f"/v1/streams/{self.handle[0]}", headers=headers)
        else:
            headers = {"content-type": "application/json", "idempotency-key": f"reader-{self.number}"}
            connection.request("POST", "/v1/chat/completions", self.body(), headers)
        response = connection.getresponse()
        if response.status == 404:
            raise Lost(f"404 at offset {self.last}: {response.read(300).decode()}")
        if response.status != 200:
            # The proxy has not noticed yet, or a replica asks for patience.
            raise ConnectionError(f"status {response.status}")
        name = tuple(response.headers.get(f"x-loquent-stream-{part}") for part in ("id", "token"))
        self.handle = self.handle or (name if all(name) else None)
        return response

    def read(self, response):
        event = {}
        while line := response.readline().decode():
            field, _, value = line.rstrip("\r\n").partition(": ")
            if field:
                event[field] = value
                continue
            if "data" in event:
                self.take(event["data"], event.get("id"))
            event = {}
            if self.is_complete:
                return
            if self.leaves_at and self.last >= self.leaves_at:
                self.leaves_at = None
                raise ConnectionError("it leaves")
        raise ConnectionError("the stream ended early")

    def take(self, data, event_id):
        if data == "[DONE]":
            self.is_complete = True
            return
        chunk = json.loads(data)
        if "error" in chunk:
            raise Lost(chunk["error"]["message"])
        choices = chunk.get("choices") or [{}]
        text = choices[0].get("delta", {}).get("content") or ""
        if event_id is not None:
            self.doubled += len(text.encode()) if int(event_id) <= self.last else 0
            self.last = max(self.last, int(event_id))
        if text:
            self.times.append(time.monotonic())
            self.parts.append(text)
            self.bytes += len(text.encode())


def reread(reader, cluster):
    """The answer's log, read in one go by somebody else; `None` if no replica has it any more."""
    for replica in cluster.replicas:
        other = Reader(reader.number, reader.options, replica.address)
        other.handle = reader.handle
        if replica.process.poll() is None:
            other.run()
        if other.is_complete:
            return other.text
    return None


def difference(read, whole):
    """Bytes that were read twice, and that were not read, of a text."""
    if read == whole:
        return 0, 0
    matcher = difflib.SequenceMatcher(None, whole, read, autojunk=False)
    doubled = lost = 0
    for what, a, b, c, d in matcher.get_opcodes():
        if what != "equal":
            doubled += len(read[c:d].encode())
            lost += len(whole[a:b].encode())
    return doubled, lost


def open_readers(options, address, by_quic=None):
    readers = []
    for number in range(options.streams):
        by_proxy = by_quic is not None and number < options.quic
        leaves = by_quic is not None and not by_proxy and number % 4 == 3
        readers.append(Reader(number, options, by_quic if by_proxy else address, by_proxy=by_proxy, leaves=leaves))
    for reader in readers:
        reader.start()
    return readers


def run_readers(readers, at_bytes=0, act=None):
    """Waits for all readers; acts once they have read so many bytes. When that was."""
    acted = time.monotonic()
    while any(reader.is_alive() for reader in readers):
        if act and sum(reader.bytes for reader in readers) >= at_bytes:
            acted = time.monotonic()
            act()
            act = None
        time.sleep(0.02)
    if act:
        raise SystemExit("replicas: all answers ended before anything was killed; ask for more --tokens")
    return acted


def phase(name, options, folder, expected):
    acts = {"replica": kill_replica, "store": restart_store, "stage": restart_stage}
    cluster = Cluster(options, folder, is_staged=name == "stage")
    try:
        act = (lambda: acts[name](cluster)) if name in acts else None
        third = sum(len(text.encode()) for text in expected) // 3
        readers = open_readers(options, cluster.front, cluster.connect.address if cluster.connect else None)
        acted = run_readers(readers, third, act)
        return report(name, readers, expected, acted, cluster)
    finally:
        cluster.close()


def seams(readers, expected, cluster):
    """Bytes that readers read twice, and that they never read."""
    doubled, lost = sum(reader.doubled for reader in readers), 0
    for reader in readers:
        # What is equal to the undisturbed answer is whole, whatever is kept of it.
        if reader.is_complete and reader.text != expected[reader.number]:
            whole = reread(reader, cluster)
            more, less = difference(reader.text, whole) if whole is not None else (0, 0)
            doubled, lost = doubled + more, lost + less
    return doubled, lost


def report(name, readers, expected, acted, cluster):
    """Prints a phase's row."""
    complete = [reader for reader in readers if reader.is_complete]
    exact = sum(reader.text == expected[reader.number] for reader in complete)
    doubled, lost = seams(readers, expected, cluster)
    pauses = sorted(reader.longest_pause_ms(acted) for reader in complete) or [0]
    returns = sum(reader.returns for reader in readers)
    broken = collections.Counter(reader.broken for reader in readers if reader.broken)
    pauses_ms = " / ".join(f"{percentile(pauses, share):.0f}" for share in (0.5, 0.99, 1))
    print(f"| {name} | {len(readers)} | {len(complete)} | >= {len(readers)} | {exact} | {doubled} | <= 0 | {lost} | <= 0 "
          f"| {pauses_ms} | {returns} | {cluster.taken_over()} | {broken.total()} |", flush=True)
    runs({f"{name}: longest pause of each stream, ms": [round(pause) for pause in pauses]})
    for why, count in broken.items():
        print(f"{name}: {count} broken off: {why}", file=sys.stderr)
    return Outcome(len(complete) == len(readers) and not doubled and not lost, exact)


def undisturbed(options, folder):
    """What all requests give at a replica that is alone."""
    cluster = Cluster.__new__(Cluster)
    cluster.options, cluster.folder, cluster.programs = options, folder, []
    server = cluster.serve(options.model)
    readers = open_readers(options, server.address)
    run_readers(readers)
    server.kill()
    if not all(reader.is_complete for reader in readers):
        raise SystemExit(f"replicas: the undisturbed run failed: {next(r.broken for r in readers if r.broken)}")
    return [reader.text for reader in readers]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loquent", default=os.environ.get("LOQUENT", "loquent"), help="the binary")
    parser.add_argument("--model", default=str(REPOSITORY / "models/loquent-tiny.gguf"), help="the model's file")
    parser.add_argument("--replicas", type=int, default=2, help="replicas behind the proxy (2)")
    parser.add_argument("--streams", type=int, default=200, help="streams at once (200)")
    parser.add_argument("--quic", type=int, default=40, help="how many of them come by QUIC (40)")
    parser.add_argument("--tokens", type=int, default=300, help="tokens of each answer (300)")
    parser.add_argument("--batch", type=int, default=32, help="sequences in a replica's batch (32)")
    parser.add_argument("--threads", type=int, default=1, help="compute threads of a replica and of a stage (1)")
    parser.add_argument("--kv-type", default="f16", help="f16 for Loquent's kernels, f32 elsewhere (f16)")
    parser.add_argument("--phases", default=",".join(PHASES), help="a list of: " + ", ".join(PHASES))
    options = parser.parse_args()
    options.phases = options.phases.split(",")
    options.loquent = shutil.which(options.loquent) or parser.error(f"no such binary: {options.loquent}")
    if unknown := set(options.phases) - set(PHASES):
        parser.error(f"unknown phases: {', '.join(unknown)}")
    return options


def main():
    options = arguments()
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(KeyboardInterrupt):
        expected = undisturbed(options, folder)
        print("| killed | streams | complete | target | exact | bytes doubled | target | bytes lost | target "
              "| longest pause p50 / p99 / max, ms | returns | taken over | broken off |")
        print("|" + " --- |" * 13, flush=True)
        outcomes = {name: phase(name, options, folder, expected) for name in options.phases}
        least = outcomes["undisturbed"].exact if "undisturbed" in outcomes else 0
        is_well = all(outcome.is_whole and outcome.exact >= least for outcome in outcomes.values())
        sys.exit(0 if is_well else 1)


if __name__ == "__main__":
    main()
