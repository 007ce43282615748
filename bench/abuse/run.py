"""All attacks at once beside honest streams: rounds of them, and what they cost the server.

Starts `loquent serve --simulate` on loopback, lets 8 honest streams run for a quiet phase, then
several times with all attacks beside them, and compares. Prints a table; `--json` keeps the figures.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

from processes import HERE, Child, Server

sys.path.append(str(HERE.parent))
from records.printed import runs, table

STREAMS, TOKENS, TOKENS_PER_S = 8, 100, 25
#: The attackers' processes, each with its share of the attacks.
ATTACKERS = [("tcp", 0, 3), ("tcp", 1, 3), ("tcp", 2, 3), ("quic", 0, 1)]
#: What a reader left is kept for so long: less than by default, so that it is gone when memory is compared.
GRACE_S = 2
#: Longest wait, after a round, until the server has ended what the attackers left.
SETTLE_S = 60


def honest(server):
    return Child(HERE / "honest.py", server.url, server.honest_key, STREAMS, TOKENS)


def under_attack(server, seconds):
    """One round: what the honest users saw, what became of the attacks, and of /health."""
    reading = honest(server)
    where = (server.port, server.udp_port, server.attackers_key)
    attackers = [Child(HERE / "attackers.py", *way, *where) for way in ATTACKERS]
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
    seen = reading.end()
    return {"honest": seen, "attacks": counts, "failed": failed, "unhealthy": unhealthy, "threads": threads}


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


def measure(server, seconds, rounds_asked):
    quiet_s = seconds / 6
    round_s = (seconds - quiet_s) / rounds_asked
    reading = honest(server)
    time.sleep(quiet_s)
    quiet = reading.end()
    before = state(server)
    rounds, after = [], []
    for _ in range(rounds_asked):
        rounds.append(under_attack(server, round_s))
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
    rows = [[f"honest streams: {name}", *(f"{each[name] or 0:.1f}" for each in (quiet, *(one["honest"] for one in rounds)))]
            for name in names]
    rows += [[f"server: {name}{' KiB' if name[0] in 'VR' else ''}", *(f"{one[name]:.0f}" for one in (before, *after))]
             for name in before]
    table(["", "quiet", *(f"round {at}" for at in range(1, len(rounds) + 1))], rows)
    lost = [len(quiet["lost"]), *(len(one["honest"]["lost"]) for one in rounds)]
    gaps = [one["honest"]["icl_p99_ms"] for one in rounds]
    earlier = max(one["VmRSS"] for one in after[:-1])
    unhealthy = sum(one["unhealthy"] for one in rounds)
    more = after[-1]["descriptors"] - before["descriptors"]
    table(["measure", "quiet or before", "under attack or after", "ratio or count", "target"], [
        ["honest streams lost", lost[0], sum(lost[1:]), sum(lost), "<= 0"],
        ["ICL p99 of the honest streams, ms", f"{quiet['icl_p99_ms']:.1f}", f"{max(gaps):.1f}",
         f"{max(gaps) / quiet['icl_p99_ms']:.2f}", "<= 2"],
        ["memory after the last round and after an earlier one, KiB", earlier, after[-1]["VmRSS"],
         f"{after[-1]['VmRSS'] / earlier:.3f}", "<= 1.05"],
        ["descriptors", before["descriptors"], after[-1]["descriptors"], more, "<= 0"],
        ["health checks unanswered", 0, unhealthy, unhealthy, "<= 0"]])
    runs({"quiet": measured(quiet), "rounds": [measured(one["honest"]) for one in rounds], "before": before, "after": after})
    for one in rounds:
        for lost in one["honest"]["lost"][:5]:
            print(f"lost: {lost}")


def measured(seen):
    """What the honest users saw, without the causes of what they lost."""
    return {**seen, "lost": len(seen["lost"])}


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--binary", default=os.environ.get("LOQUENT", "target/release/loquent"))
    options.add_argument("--seconds", type=float, default=600)
    options.add_argument("--rounds", type=int, default=3, help="rounds of attacks, at least 2 (default 3)")
    options.add_argument("--json", type=Path)
    options = options.parse_args()
    if options.rounds < 2:
        sys.exit("abuse: --rounds must be at least 2: memory after a round is compared with that after an earlier one")
    server = Server(options.binary, TOKENS_PER_S, "--resume-grace-s", str(GRACE_S))
    try:
        figures = measure(server, options.seconds, options.rounds)
    finally:
        server.stop()
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(figures, indent=1))
    print_table(figures)


if __name__ == "__main__":
    main()
