"""All attacks at once beside honest streams: rounds of them, and what they cost the server.

Starts `loquent serve --simulate` on loopback, lets 4 honest streams and a newcomer now and then run
for a quiet phase, then several times with all attacks beside them, and compares. Prints a table; `--json` keeps the figures.
"""

import argparse
import contextlib
import json
import os
import secrets
import sys
import tempfile
import time
from pathlib import Path

from processes import HERE, Child, Server

sys.path.append(str(HERE.parent))
from records.printed import runs, table

#: The streams are what their key's share is worth: 16 places among the honest key, two of attackers and a newcomer's.
#: More of them would take turns, and their gaps would be those of a key that wants more than its share.
STREAMS, TOKENS, TOKENS_PER_S = 4, 100, 25
#: The attackers' processes, each with its share of the attacks.
ATTACKERS = [("tcp", 0, 3), ("tcp", 1, 3), ("tcp", 2, 3), ("quic", 0, 1), ("pools", 0, 2), ("pools", 1, 2)]
#: Short answers that keys ask for which have nothing under way, one after another; the pause is half a second at most.
NEWCOMERS, NEWCOMERS_TOKENS, NEWCOMERS_PAUSE_S = 100, 5, 0.25
#: What a reader left is kept for so long: less than by default, so that it is gone when memory is compared.
GRACE_S = 2
#: All stored answers, in MiB: less than by default, so that attackers have filled their share of it in the first round.
STORE_MB = 16
#: Longest wait, after a round, until the server has ended what the attackers left.
SETTLE_S = 60


class Keys:
    """Keys beside the server's own: of the attackers of its pools, and of newcomers."""

    def __init__(self):
        self.pools, *self.newcomers = (secrets.token_hex(8) for _ in range(1 + NEWCOMERS))

    @contextlib.contextmanager
    def in_file(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "keys.txt"
            file.touch(mode=0o600)
            file.write_text("\n".join([self.pools, *self.newcomers]))
            yield str(file)


class Users:
    """Honest streams of one key, and newcomers beside them: each with a key that has asked nothing for long."""

    def __init__(self, server, newcomers):
        self.reading = Child(HERE / "honest.py", server.url, server.honest_key, STREAMS, TOKENS)
        how = (1, NEWCOMERS_TOKENS, NEWCOMERS_PAUSE_S)
        self.arriving = Child(HERE / "honest.py", server.url, ",".join(newcomers), *how)

    def end(self):
        for child in (self.reading, self.arriving):
            child.terminate()
        return {"honest": self.reading.end(), "newcomers": self.arriving.end()}


def under_attack(server, keys, seconds):
    """One round: what the honest users saw, what became of the attacks, and of /health."""
    users = Users(server, keys.newcomers)
    where = (server.port, server.udp_port)
    # What fills the pools is not held up by what its own key is refused for other attacks.
    key_of = {"pools": keys.pools}
    attackers = [Child(HERE / "attackers.py", *way, *where, key_of.get(way[0], server.attackers_key))
                 for way in ATTACKERS]
    unhealthy, threads, end = 0, 0, time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            server.get("/health")
        except OSError:
            unhealthy += 1
        threads = max(threads, server.threads())
        time.sleep(0.5)
    for one in attackers:
        one.terminate()
    counts, failed = {}, []
    for one in attackers:
        ended = one.end()
        counts |= ended["counts"]
        failed += ended["failed"]
    return {**users.end(), "attacks": counts, "failed": failed, "unhealthy": unhealthy, "threads": threads}


def state(server):
    return {"descriptors": server.descriptors(), "threads": server.threads(), **server.gauges(), **server.resident_kib()}


def settle(server, before, pause_s):
    """Waits until the server holds no more than before the attacks, and then for QUIC's timeouts."""
    end = time.monotonic() + SETTLE_S
    counted = ("descriptors", "num_requests_running", "num_requests_waiting", "delivery_kept_bytes")
    while any(state(server)[name] > before[name] for name in counted) and time.monotonic() < end:
        time.sleep(0.2)
    time.sleep(pause_s)
    return state(server)


def measure(server, keys, seconds, rounds_asked):
    quiet_s = seconds / 6
    round_s = (seconds - quiet_s) / rounds_asked
    users = Users(server, keys.newcomers)
    time.sleep(quiet_s)
    quiet = users.end()
    before = state(server)
    rounds, after = [], []
    for _ in range(rounds_asked):
        rounds.append(under_attack(server, keys, round_s))
        after.append(settle(server, before, seconds / 15))
    alive = server.process.poll() is None and json.loads(server.get("/health"))["status"] == "ok"
    return {"quiet": quiet, "before": before, "rounds": rounds, "after": after, "alive": alive}


def print_attacks(rounds):
    print(f"{'attack':30} {'begun':>8}  what became of it (last round)")
    for name, counts in rounds[-1]["attacks"].items():
        others = ", ".join(f"{what}: {n}" for what, n in sorted(counts.items()) if what != "begun")
        print(f"{name:30} {counts.get('begun', 0):8}  {others}")


def print_table(figures):
    quiet, before, after = figures["quiet"], figures["before"], figures["after"]
    rounds = figures["rounds"]
    print_attacks(rounds)
    print(f"\n{STREAMS} honest streams of {TOKENS} tokens, {TOKENS_PER_S} per second; {len(rounds)} rounds")
    names = ("whole", "refused", "icl_p50_ms", "icl_p99_ms", "icl_max_ms", "ttft_p50_ms", "ttft_p99_ms")
    rows = [[f"{who}: {name}", *(f"{each[users][name] or 0:.1f}" for each in (quiet, *rounds))]
            for who, users in (("honest streams", "honest"), ("newcomers", "newcomers")) for name in names]
    rows += [[f"server: {name}{' KiB' if name[0] in 'VR' else ''}", *(f"{one[name]:.0f}" for one in (before, *after))]
             for name in before]
    table(["", "quiet", *(f"round {at}" for at in range(1, len(rounds) + 1))], rows)
    print_measures(figures)
    runs({"quiet": measured(quiet), "rounds": [measured(one) for one in rounds], "before": before, "after": after})
    for one in rounds:
        for lost in [*one["honest"]["lost"][:5], *one["newcomers"]["lost"][:5]]:
            print(f"lost: {lost}")


def print_measures(figures):
    """What the run is about, each with its target; of several rounds, the worst."""
    quiet, before, after, rounds = (figures[name] for name in ("quiet", "before", "after", "rounds"))
    gaps = [one["honest"]["icl_p99_ms"] for one in rounds]
    waits = [one["newcomers"]["ttft_p99_ms"] or 0 for one in rounds]
    earlier = max(one["VmRSS"] for one in after[:-1])
    unhealthy = sum(one["unhealthy"] for one in rounds)
    more = after[-1]["descriptors"] - before["descriptors"]
    table(["measure", "quiet or before", "under attack or after", "ratio or count", "target"], [
        counted("honest streams lost", quiet, rounds, lambda one: len(one["honest"]["lost"])),
        counted("newcomers lost or refused", quiet, rounds,
                lambda one: len(one["newcomers"]["lost"]) + one["newcomers"]["refused"]),
        compared("ICL p99 of the honest streams, ms", quiet["honest"]["icl_p99_ms"], max(gaps)),
        compared("TTFT p99 of newcomers, ms", quiet["newcomers"]["ttft_p99_ms"], max(waits)),
        ["memory after the last round and after an earlier one, KiB", earlier, after[-1]["VmRSS"],
         f"{after[-1]['VmRSS'] / earlier:.3f}", "<= 1.05"],
        ["descriptors", before["descriptors"], after[-1]["descriptors"], more, "<= 0"],
        ["health checks unanswered", 0, unhealthy, unhealthy, "<= 0"]])


def counted(what, quiet, rounds, count):
    """A row of what may not happen at all."""
    before, under = count(quiet), sum(count(one) for one in rounds)
    return [what, before, under, before + under, "<= 0"]


def compared(what, quiet_ms, worst_ms):
    """A row of a time that may double."""
    return [what, f"{quiet_ms:.1f}", f"{worst_ms:.1f}", f"{worst_ms / quiet_ms:.2f}", "<= 2"]


def measured(seen):
    """What the honest users saw, without the causes of what they lost."""
    return {who: {**seen[who], "lost": len(seen[who]["lost"])} for who in ("honest", "newcomers")}


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--binary", default=os.environ.get("LOQUENT", "target/release/loquent"))
    options.add_argument("--seconds", type=float, default=600)
    options.add_argument("--rounds", type=int, default=3, help="rounds of attacks, at least 2 (default 3)")
    options.add_argument("--json", type=Path)
    options = options.parse_args()
    if options.rounds < 2:
        sys.exit("abuse: --rounds must be at least 2: memory after a round is compared with that after an earlier one")
    keys = Keys()
    with keys.in_file() as file:
        bounds = ("--resume-grace-s", str(GRACE_S), "--store-mb", str(STORE_MB))
        server = Server(options.binary, TOKENS_PER_S, *bounds, "--api-key-file", file)
        try:
            figures = measure(server, keys, options.seconds, options.rounds)
        finally:
            server.stop()
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(figures, indent=1))
    print_table(figures)


if __name__ == "__main__":
    main()
