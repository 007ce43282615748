#!/usr/bin/env python3
"""What is left of a server's speed beside busy programs on the same processors, and within a container's quota.

Each server decodes alone on a quiet machine, then beside one and beside two programs that compute without a pause, and
then alone again, with one stream and with 16. Last, it is restarted in a control group whose quota is three quarters
of the processors, which needs root. Ratios are those to the quiet machine's median; TTFT is the slowest stream's. A
busy program is a Python loop of normal priority.

    bench/neighbours.py --loquent target/release/loquent --model ~/.cache/loquent/models/smollm2.gguf
    bench/neighbours.py --loquent target/release/loquent --model M.gguf --peers ~/.cache/loquent/peers

It is a bench, not a test: the system's scheduler decides what each program gets, and no two runs are equal.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

from records.printed import runs, spread, table
from records.streams import events

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
import compare
import servers

#: Tokens of each stream, by the number of streams.
LOADS = {1: 96, 16: 32}
#: Busy programs, in turn; the last shows whether the speed comes back.
PARTS = {"quiet": 0, "one busy program": 1, "two busy programs": 2, "quiet again": 0}
QUOTA = "three quarters of the processors"
#: What is to be left of the quiet machine's tokens/s, and how many times its TTFT may grow.
TARGETS = {"one busy program": 0.55, "two busy programs": 0.4, "quiet again": 0.99, QUOTA: 0.65}
MOST_TTFT = 3
#: A stream that is not over by then is left, and counts as far as it came.
STREAM_LIMIT_S = 30
SLOTS, CONTEXT_TOKENS = 16, 8192
CGROUPS = pathlib.Path("/sys/fs/cgroup")


def main():
    options = arguments()
    rows, values = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for name, server in contestants(options, pathlib.Path(folder)):
            for streams, found in contest(server, options.runs).items():
                rows += [row(name, streams, part, measured, found["quiet"]) for part, measured in found.items()]
                values |= {f"{name}, {streams} streams, {part}": measured for part, measured in found.items()}
    table(["server and streams", "beside", "tokens/s", "of the quiet tokens/s", "target", "slowest TTFT, ms",
           "of the quiet TTFT", "target"], rows)
    runs(values)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loquent", required=True, help="the binary")
    parser.add_argument("--model", type=pathlib.Path, required=True, help="a GGUF file")
    parser.add_argument("--peers", type=pathlib.Path, metavar="DIR", help="folder of servers to be measured too, as "
                        "bench/peers/build.sh makes it")
    parser.add_argument("--only", metavar="NAMES", help="these peers, separated by commas [all that are built]")
    parser.add_argument("--runs", type=int, default=3, help="runs of each row [%(default)s]")
    return parser.parse_args()


def contestants(options, folder):
    """The servers, not started yet, each with its name."""
    ours = ["--model", str(options.model), "--max-batch-size", str(SLOTS), "--kv-cells", str(CONTEXT_TOKENS),
            "--context", str(CONTEXT_TOKENS // SLOTS), "--draft-tokens", "off"]
    yield "loquent", servers.loquent(options.loquent, ours, folder / "loquent.log")
    if options.peers:
        options.llama = None
        scenario, threads = {"slots": SLOTS, "context": CONTEXT_TOKENS}, len(os.sched_getaffinity(0))
        for peer in compare.available(options):
            yield peer.name, peer.server(peer.usual(scenario), scenario, options.model, threads, folder / "peer.log")


def contest(server, runs):
    """What each run of each part gave, by the number of streams."""
    found = {streams: {} for streams in LOADS}
    with server:
        for streams in LOADS:
            for part, neighbours in PARTS.items():
                found[streams][part] = measure(server, streams, neighbours, runs)
    with contextlib.ExitStack() as stack:
        try:
            group = stack.enter_context(quota())
        except OSError as error:
            print(f"quota is not measured: no control group can be made: {error}")
            return found
        server.command = ["sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', str(group), *server.command]
        with server:
            for streams in LOADS:
                found[streams][QUOTA] = measure(server, streams, 0, runs)
    return found


@contextlib.contextmanager
def quota():
    """A control group of version 2, or of 1 where that has the processors, whose quota is three quarters of them."""
    is_old = (CGROUPS / "cpu").is_dir()
    group = (CGROUPS / "cpu" if is_old else CGROUPS) / f"loquent-neighbours-{os.getpid()}"
    group.mkdir()
    try:
        most_us = str(75_000 * os.cpu_count())
        if is_old:
            (group / "cpu.cfs_period_us").write_text("100000")
            (group / "cpu.cfs_quota_us").write_text(most_us)
        else:
            (group / "cpu.max").write_text(f"{most_us} 100000")
        yield group
    finally:
        group.rmdir()


def row(name, streams, part, measured, quiet):
    speeds, slowest = measured["tokens/s"], [1e3 * seconds for seconds in measured["ttft"]]
    speed, ttft = (statistics.median(measured[key]) / statistics.median(quiet[key]) for key in ("tokens/s", "ttft"))
    is_judged = name == "loquent" and part in TARGETS
    return [f"{name}, {streams} stream{'s' * (streams > 1)}", part, spread(speeds), f"{speed:.2f}",
            f">= {TARGETS[part]}" if is_judged else "", spread(slowest, ".0f"), f"{ttft:.2f}",
            f"<= {MOST_TTFT}" if is_judged else ""]


def measure(server, streams, neighbours, runs):
    """Tokens per second and the slowest first token of each run beside `neighbours` busy programs."""
    server.warm_up()
    model = server._json("/v1/models")["data"][0]["id"]
    with contextlib.ExitStack() as stack:
        for _ in range(neighbours):
            stack.enter_context(busy_program())
        results = [run(server.url, model, streams, LOADS[streams], number) for number in range(runs)]
    # The next part begins on a machine at rest.
    time.sleep(1.5)
    return {"tokens/s": [speed for speed, _ in results], "ttft": [ttft for _, ttft in results]}


@contextlib.contextmanager
def busy_program():
    program = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        program.kill()
        program.wait()


def run(url, model, streams, tokens, number):
    """One run: (tokens per second of all streams, seconds to the slowest stream's first token)."""
    results, began = [], time.monotonic()
    prompts = [f"Story {number} of {stream}: once upon a time there was" for stream in range(streams)]
    readers = [threading.Thread(target=lambda prompt=prompt: results.append(stream(url, model, prompt, tokens)))
               for prompt in prompts]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    if len(results) < streams:
        raise SystemExit(f"neighbours: {streams - len(results)} of {streams} streams failed")
    return sum(count for count, _ in results) / (time.monotonic() - began), max(ttft for _, ttft in results)


def stream(url, model, prompt, tokens):
    """Reads one answer: (its tokens, seconds to the first)."""
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    began, first, count = time.monotonic(), None, 0
    with urllib.request.urlopen(request, timeout=2 * STREAM_LIMIT_S) as answer:
        for at, _ in events(answer):
            first, count = first or at - began, count + 1
            if at - began > STREAM_LIMIT_S:
                break
    return count, first or 2 * STREAM_LIMIT_S


if __name__ == "__main__":
    main()
