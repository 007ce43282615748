"""TTFT of new requests beside 10,000 idle connections and 1,000 slow ones, against a quiet server."""

import argparse
import json
import os
import resource
import sys
import time
from pathlib import Path

from processes import HERE, Child, Server

sys.path.append(str(HERE.parent))
from records.printed import runs, table

TOKENS_PER_S, STREAMS, TOKENS, PAUSE_S = 100, 2, 2, 0.05
ADDRESSES, PROCESSES = 200, 4


def measure(server, seconds):
    users = Child(HERE / "honest.py", server.url, server.honest_key, STREAMS, TOKENS, PAUSE_S)
    time.sleep(seconds)
    return users.end()


def hold(server, idle, slow):
    """The processes that hold the connections, each with its share of them and of the addresses."""
    share = ADDRESSES // PROCESSES
    each = (idle // PROCESSES, slow // PROCESSES)
    script = HERE / "idle.py"
    return [Child(script, server.port, *each, share * number, share) for number in range(PROCESSES)]


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--binary", default=os.environ.get("LOQUENT", "target/release/loquent"))
    options.add_argument("--seconds", type=float, default=60, help="for each of the two phases")
    options.add_argument("--idle", type=int, default=10_000)
    options.add_argument("--slow", type=int, default=1_000)
    options.add_argument("--json", type=Path)
    options = options.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = options.idle + options.slow + 1000
    if hard < most + 500:
        raise SystemExit(f"the server needs {most + 500} descriptors; the limit is {hard} (ulimit -Hn)")
    server = Server(options.binary, TOKENS_PER_S, "--max-connections", str(most))
    try:
        quiet = measure(server, options.seconds)
        holders = hold(server, options.idle, options.slow)
        held = server.descriptors()
        beside = measure(server, options.seconds)
        still_held, memory = server.descriptors(), server.resident_kib()["VmRSS"]
        holders = [one.end() for one in holders]
    finally:
        server.stop()
    figures = {"quiet": quiet, "beside": beside, "descriptors": [held, still_held], "holders": holders}
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(figures, indent=1))
    print(f"the server's descriptors while they are held: {held} to {still_held}, its memory {memory} KiB")
    print(f"connections opened, with those that were ended and opened again: {sum(one['begun'] for one in holders)}")
    lost = {name: len(phase["lost"]) for name, phase in (("quiet", quiet), ("beside", beside))}
    print(f"{options.idle:,} idle and {options.slow:,} slow connections; {options.seconds:.0f} s of each phase")
    ratio = beside["ttft_p99_ms"] / quiet["ttft_p99_ms"]
    table(["measure", "quiet", "beside them", "ratio or count", "target"], [
        ["TTFT p50, ms", f"{quiet['ttft_p50_ms']:.1f}", f"{beside['ttft_p50_ms']:.1f}", "", ""],
        ["TTFT p99, ms", f"{quiet['ttft_p99_ms']:.1f}", f"{beside['ttft_p99_ms']:.1f}", f"{ratio:.2f}", "<= 2"],
        ["requests answered", quiet["whole"], beside["whole"], "", ""],
        ["requests refused", quiet["refused"], beside["refused"], "", ""],
        ["requests lost", lost["quiet"], lost["beside"], lost["beside"], "<= 0"]])
    runs({name: {**phase, "lost": lost[name]} for name, phase in (("quiet", quiet), ("beside", beside))})


if __name__ == "__main__":
    main()
