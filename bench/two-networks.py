#!/usr/bin/env python3
"""Answers over two bad networks at once, beside each of them alone; and a walk from one to the other.

    bench/two-networks.py --binary target/release/loquent

Needs root, for network namespaces: the client's has an interface for each network (wlan0, wwan0), to
which `loquent connect --via` binds, and a third one over which this script asks. Packets of QUIC pass a
relay that delays and loses them, each network by its own conditions and seed, the same for each row.

The stall ratio is the share of the time between an answer's first and last token that is in pauses
of more than 200 ms, as in `loquent bench delivery`. Bytes are those of UDP towards the client, with 28
bytes of headers for each packet. The row `clean` is the noise of the machine: no loss, no walk.
"""

import argparse
import dataclasses
import heapq
import http.client
import itertools
import json
import math
import os
import pathlib
import random
import re
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from records.printed import runs, table
from records.streams import events

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
import servers

SERVER = "10.78.0.1"
NETWORKS = ("wlan0", "wwan0")
#: Address of the client at each network, and at the one over which it is asked.
CLIENT, ASKED = ("10.78.1.2", "10.78.2.2"), "10.78.9.2"
SLOT_S, STALL_S, HEADER_BYTES = 0.1, 0.2, 28


class Network:
    """Conditions of one network: delay each way, losses in slots of a Markov chain, times of absence."""

    def __init__(self, delay_ms, stay_good, stay_bad, seed, absences=()):
        self.delay_s, self.absences = delay_ms / 1000, absences
        self.stay = {False: stay_good, True: stay_bad}
        self.dice = [random.Random(f"{seed} {way}") for way in "du"]
        self.slot, self.bad = [0, 0], [False, False]
        self.bytes = self.packets = 0

    def loses(self, way, at_s):
        """Whether a packet that leaves `at_s` after the beginning is lost: nine of ten in a bad slot."""
        if any(begin <= at_s < end for begin, end in self.absences):
            return True
        dice, now = self.dice[way], int(at_s / SLOT_S)
        for _ in range(now - self.slot[way]):
            self.bad[way] ^= dice.random() >= self.stay[self.bad[way]]
        self.slot[way] = max(self.slot[way], now)
        return self.bad[way] and dice.random() < 0.9


class Relay(threading.Thread):
    """Relays UDP of all networks between the clients and the server, and TCP as it is."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.server, self.networks, self.began = ("127.0.0.1", port), {}, time.monotonic()
        self.front = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.front.bind((SERVER, port))
        self.door = socket.create_server((SERVER, port))
        self.backs, self.pairs, self.flying = {}, {}, []

    def set(self, networks):
        """Gives the client's addresses these networks, and restarts the clock."""
        self.networks, self.began = dict(zip(CLIENT, networks)), time.monotonic()

    def run(self):
        while True:
            clients = {back: client for client, back in self.backs.items()}
            wait = max(0, self.flying[0][0] - time.monotonic()) if self.flying else 1
            for ready in select.select([self.front, self.door, *clients, *self.pairs], [], [], wait)[0]:
                if ready is self.front:
                    data, client = ready.recvfrom(65536)
                    self.carry(1, client, data, self.back(client), self.server)
                elif ready in clients:
                    self.carry(0, clients[ready], ready.recv(65536), self.front, clients[ready])
                elif ready is self.door:
                    client, server = ready.accept()[0], socket.create_connection(self.server)
                    self.pairs |= {client: server, server: client}
                elif ready in self.pairs:
                    self.pass_on(ready)
            while self.flying and self.flying[0][0] <= time.monotonic():
                _, _, data, sock, address = heapq.heappop(self.flying)
                sock.sendto(data, address)

    def back(self, client):
        if client not in self.backs:
            self.backs[client] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self.backs[client].bind(("127.0.0.1", 0))
        return self.backs[client]

    def carry(self, way, client, data, sock, address):
        network, now = self.networks.get(client[0]), time.monotonic()
        if network is None:
            return
        if way == 0:
            network.packets, network.bytes = network.packets + 1, network.bytes + len(data) + HEADER_BYTES
        if not network.loses(way, now - self.began):
            heapq.heappush(self.flying, (now + network.delay_s, id(data), data, sock, address))

    def pass_on(self, source):
        try:
            data = source.recv(65536)
            self.pairs[source].sendall(data)
        except OSError:
            data = b""
        if not data:
            for sock in (source, self.pairs.pop(source)):
                self.pairs.pop(sock, None)
                sock.close()


def ip(*args, inside=None):
    enter = ["nsenter", "-t", str(inside), "-n"] if inside else []
    subprocess.run([*enter, "ip", *args], check=True)


def make_networks():
    """The client's namespace, as the process that holds it open. This script is in the server's."""
    holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
    own = os.readlink("/proc/self/ns/net")
    while os.readlink(f"/proc/{holder.pid}/ns/net") == own:
        time.sleep(0.01)
    ip("link", "set", "lo", "up")
    ip("link", "set", "lo", "up", inside=holder.pid)
    ip("address", "add", f"{SERVER}/32", "dev", "lo")
    for metric, (name, client) in enumerate(zip((*NETWORKS, "asked"), (*CLIENT, ASKED))):
        gate = client.rsplit(".", 1)[0] + ".1"
        ip("link", "add", f"to-{name}", "type", "veth", "peer", "name", name, "netns", str(holder.pid))
        ip("address", "add", f"{gate}/24", "dev", f"to-{name}")
        ip("link", "set", f"to-{name}", "up")
        ip("address", "add", f"{client}/24", "dev", name, inside=holder.pid)
        ip("link", "set", name, "up", inside=holder.pid)
        # Over the first one, unless a socket is bound to another.
        ip("route", "add", "default", "via", gate, "dev", name, "metric", str(metric), inside=holder.pid)
    return holder


def announced(process):
    """The port of the API, by the first line that has it."""
    for line in process.stderr:
        if found := re.search(r"API on http://\S*?:(\d+)", line):
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return int(found[1])
    raise SystemExit("it ended before it listened")


class Connect:
    """A `loquent connect` in the client's namespace."""

    def __init__(self, binary, holder, port, via):
        command = ["nsenter", "-t", str(holder.pid), "-n", binary, "connect", "--url", f"http://{SERVER}:{port}"]
        command += ["--listen", f"{ASKED}:0", "--open", "--state-dir", f"/proc/{holder.pid}/none"]
        command += ["--head-start-ms", "10000", *via]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.port = announced(self.process)

    def ask(self, question, tokens):
        """The text of an answer, and the time of each piece."""
        asked = {"model": "x", "stream": True, "messages": [{"role": "user", "content": f"{question}: tokens={tokens}"}]}
        link = http.client.HTTPConnection(ASKED, self.port, timeout=120)
        link.request("POST", "/v1/chat/completions", json.dumps(asked), {"content-type": "application/json"})
        text, times = "", []
        for at, event in events(link.getresponse()):
            piece = "".join(one["delta"].get("content") or "" for one in json.loads(event)["choices"])
            text, times = text + piece, times + [at] * bool(piece)
        link.close()
        return text, times

    def stop(self):
        self.process.kill()
        self.process.wait()


def figures(times):
    """Stall ratio and longest pause, in seconds, of pieces that came at these times."""
    pauses = [after - before for before, after in itertools.pairwise(times)]
    return sum(pause for pause in pauses if pause > STALL_S) / (times[-1] - times[0]), max(pauses)


@dataclasses.dataclass
class Row:
    """The figures of each answer of a row, and bytes for each token of all."""

    networks: str
    ways: str
    stalls: list
    pauses_ms: list
    bytes_per_token: float

    def cells(self):
        return [self.networks, self.ways, f"{statistics.mean(self.stalls):.3f}", f"{statistics.median(self.pauses_ms):.0f}",
                f"{max(self.pauses_ms):.0f}", f"{self.bytes_per_token:.0f}"]


def measure(row, args, holder, relay, port, expected):
    networks, ways, via, make = row
    client, results, sent = Connect(args.binary, holder, port, via), [], 0
    try:
        relay.set([Network(5, 1, 0, 0), Network(5, 1, 0, 0)])
        client.ask("warm up", 20)
        for number in expected:
            weather = make(number)
            relay.set(weather)
            text, times = client.ask(number, args.tokens)
            assert text == expected[number], f"{networks}, {ways}: answer {number} is another one"
            results.append(figures(times))
            sent += sum(network.bytes for network in weather)
    finally:
        client.stop()
    stalls, pauses = zip(*results)
    print(f"{networks}, {ways}: {statistics.mean(stalls):.3f} stalled", file=sys.stderr, flush=True)
    return Row(networks, ways, list(stalls), [1000 * pause for pause in pauses], sent / args.answers / args.tokens)


def even_answers(client, args):
    """Texts by question, of answers that come without a pause of their own: some characters take several tokens."""
    texts, numbers = {}, itertools.count()
    while len(texts) < args.answers:
        number = next(numbers)
        text, times = client.ask(number, args.tokens)
        if figures(times)[1] < STALL_S / 2 or number > 10 * args.answers:
            texts[number] = text
    return texts


def rows(args):
    """Networks, ways over them, flags, and the networks' conditions by the number of the answer."""
    def bad(number):
        return [Network(delay, args.stay_good, args.stay_bad, f"{number} {delay}") for delay in (50, 70)]

    def walk(number):
        span = args.tokens / args.rate
        gone = [(span * 0.3, span * 0.6)]
        return [Network(15, 1, 0, number, gone), Network(30, 1, 0, number)]

    def clean(_):
        return [Network(15, 1, 0, 0), Network(30, 1, 0, 0)]

    alone = [(f"{name} alone", ["--via", name]) for name in NETWORKS]
    both = ["--via", ",".join(NETWORKS)]
    backup, redundant = ("both, backup", both), ("both, redundant", [*both, "--via-mode", "redundant"])
    yield from (("clean", *way, clean) for way in (alone[0], backup))
    yield from (("both bad", *way, bad) for way in (*alone, backup, redundant))
    yield from (("a walk", *way, walk) for way in (alone[0], backup, redundant))


def show(measured):
    """The figures of all rows, and what is promised of two networks."""
    table(["networks", "over", "time in pauses above 200 ms", "longest pause of an answer, median, ms", "of all, ms",
           "bytes per token"], [row.cells() for row in measured])
    stalls = {(row.networks, row.ways): statistics.mean(row.stalls) for row in measured}
    # A run too short to have pauses alone shows nothing.
    better = min(stalls["both bad", f"{name} alone"] for name in NETWORKS) or math.nan
    walks = {row.ways: max(row.pauses_ms) for row in measured if row.networks == "a walk"}
    both = ("both, backup", "both, redundant")
    table(["measure", "both, backup", "target", "both, redundant", "target"], [
        ["two bad networks: time in pauses beside the better one alone",
         *itertools.chain(*((f"{stalls['both bad', way] / better:.2f}", "<= 0.3") for way in both))],
        ["a walk: longest pause, ms", *itertools.chain(*((f"{walks[way]:.0f}", "<= 200") for way in both))],
    ])
    runs({f"{row.networks}, {row.ways}": {"stall ratios": [round(ratio, 4) for ratio in row.stalls],
                                          "longest pauses, ms": [round(pause) for pause in row.pauses_ms]}
          for row in measured})


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--binary", default="target/release/loquent")
    parser.add_argument("--answers", type=int, default=6, help="answers of each row [6]")
    parser.add_argument("--tokens", type=int, default=200, help="tokens of an answer")
    parser.add_argument("--rate", type=int, default=20, help="tokens a second")
    parser.add_argument("--stay-good", type=float, default=0.9, help="chance that a good 100 ms is followed by another")
    parser.add_argument("--stay-bad", type=float, default=0.5, help="chance that a bad 100 ms is followed by another")
    args = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("network namespaces need root")
    if os.environ.get("TWO_NETWORKS_INSIDE") is None:
        os.environ["TWO_NETWORKS_INSIDE"] = "1"
        os.execvp("unshare", ["unshare", "--net", sys.executable, *sys.argv])
    holder = make_networks()
    flags = ["--simulate", str(args.rate), "--allowed-host", SERVER]
    try:
        with tempfile.TemporaryDirectory() as folder, \
                servers.loquent(args.binary, flags, pathlib.Path(folder, "loquent.log")) as server:
            relay = Relay(server.port)
            relay.start()
            plain = Connect(args.binary, holder, server.port, ["--no-quic"])
            expected = even_answers(plain, args)
            plain.stop()
            show([measure(row, args, holder, relay, server.port, expected) for row in rows(args)])
    finally:
        holder.kill()
        holder.wait()


if __name__ == "__main__":
    main()
