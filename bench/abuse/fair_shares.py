"""Fair shares between keys: one that asks for 64 answers at once and one that asks now and then,
and two greedy ones with different weights."""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from processes import HERE, Child, Server

sys.path.append(str(HERE.parent))
from records.printed import runs, table

#: A batch with far less room than the greedy key wants, and steps of 10 ms.
BATCH, TOKENS_PER_S = 16, 100
STEP_MS = 1000 / TOKENS_PER_S
GREEDY = (64, 200)
NOW_AND_THEN = (1, 5, 0.1)
WEIGHTS = {"light": 1, "heavy": 3}


def ask(server, key, *how):
    return Child(HERE / "honest.py", server.url, key, *how)


def during(seconds, *children):
    time.sleep(seconds)
    # All at once: a child's end lasts as long as its streams under way.
    for child in children:
        child.terminate()
    return [child.end() for child in children]


def start(binary, *more):
    return Server(binary, TOKENS_PER_S, "--max-batch-size", str(BATCH), *more)


def delays(binary, seconds):
    """The second key's figures alone, and beside the greedy one."""
    server = start(binary)
    try:
        [alone] = during(seconds, ask(server, server.honest_key, *NOW_AND_THEN))
        greedy = ask(server, server.attackers_key, *GREEDY)
        time.sleep(2)
        [beside] = during(seconds, ask(server, server.honest_key, *NOW_AND_THEN))
        greedy.end()
    finally:
        server.stop()
    return alone, beside


def shares(binary, seconds):
    """Chunks for each key while both want more than the batch holds."""
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.toml"
        keys.write_text("".join(KEY.format(name=name, weight=weight) for name, weight in WEIGHTS.items()))
        keys.chmod(0o600)
        server = start(binary, "--api-key-file", str(keys))
        try:
            children = [ask(server, f"secret-of-{name}", *GREEDY) for name in WEIGHTS]
            figures = during(seconds, *children)
        finally:
            server.stop()
    return {name: one["chunks"] for name, one in zip(WEIGHTS, figures)}


#: One key of a keys file.
KEY = '[[key]]\nname = "{name}"\nkey = "secret-of-{name}"\nweight = {weight}\n\n'


def print_table(alone, beside, chunks):
    lost = len(beside["lost"])
    print(f"a key that asks now and then, alone and beside one that asks for {GREEDY[0]} answers at once; steps of "
          f"{STEP_MS:.0f} ms")
    table(["measure", "alone", "beside", "ratio or count", "target"], [
        ["TTFT p50, ms", f"{alone['ttft_p50_ms']:.1f}", f"{beside['ttft_p50_ms']:.1f}", "", ""],
        ["TTFT p99, ms", f"{alone['ttft_p99_ms']:.1f}", f"{beside['ttft_p99_ms']:.1f}",
         f"{beside['ttft_p99_ms'] / alone['ttft_p99_ms']:.2f}", "<= 2"],
        ["answers", alone["whole"], beside["whole"], "", ""],
        ["answers lost", len(alone["lost"]), lost, lost, "<= 0"]])
    total, weights = sum(chunks.values()), sum(WEIGHTS.values())
    shares = {name: (chunks[name] / total, weight / weights) for name, weight in WEIGHTS.items()}
    table(["greedy key", "share that is due", "share", "off by, %", "target"], [
        [f"weight {WEIGHTS[name]}", f"{due:.3f}", f"{share:.3f}", f"{100 * abs(share / due - 1):.1f}", "<= 5"]
        for name, (share, due) in shares.items()])
    runs({"alone": {**alone, "lost": len(alone["lost"])}, "beside": {**beside, "lost": lost}, "chunks": chunks})


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--binary", default=os.environ.get("LOQUENT", "target/release/loquent"))
    options.add_argument("--seconds", type=float, default=60, help="for each of the three phases")
    options.add_argument("--json", type=Path)
    options = options.parse_args()
    alone, beside = delays(options.binary, options.seconds)
    chunks = shares(options.binary, options.seconds)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"alone": alone, "beside": beside, "chunks": chunks}, indent=1))
    print_table(alone, beside, chunks)


if __name__ == "__main__":
    main()
