#!/usr/bin/env python3
"""CPU time per delivered token: Loquent against FastAPI/uvicorn, and as concurrency grows.

    bench/peers/delivery.py --python VENV/bin/python

Both servers give every stream the same simulated tokens at the same rate; `loquent bench load` drives
them in turn and reads their CPU clocks. Loquent is driven twice: over a connection for each stream, as
FastAPI is, and over one HTTP/2 connection for all, as gateways do. VENV needs `pip install fastapi uvicorn uvloop httptools`.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys

import servers

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
from records.printed import runs  # noqa: E402

KEY = "server_cpu_us_per_token"
#: Of FastAPI's at interval 1, over as many connections as it has.
TARGETS = {"loquent, interval 1": "<= 0.3", "loquent, interval 8": "<= 0.08"}
STREAMS = [1, 16, 64, 256]
# A loop that any other work interrupts.
IDLE_LOOP = "import os; os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile True: pass"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has FastAPI")
    parser.add_argument("--loquent", default=os.environ.get("LOQUENT", "loquent"))
    parser.add_argument("--generator", help="the binary that drives the load [that of --loquent]")
    parser.add_argument("--rate", type=float, default=100.0, help="tokens/s of each stream [100]")
    parser.add_argument("--runs", type=int, default=5, help="alternating runs [5]")
    parser.add_argument("--awake", action="store_true", help="keep the processors from sleeping between tokens: "
                        "an idle-priority loop on each, so that CPU clocks measure work more than waking up")
    parser.add_argument("--only-fastapi", action="store_true", help="leave out how the cost grows with the streams")
    parser.add_argument("--out", type=pathlib.Path, default=HERE.parent / "out")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rate = str(options.rate)
    # Kept prefixes would make later runs differ from the first.
    arguments = ["--simulate", rate, "--max-batch-size", "256", "--max-inflight-requests", "1024"]
    theirs = servers.fastapi(options.python, options.out / "fastapi.log", rate=rate)
    ours = servers.loquent(options.loquent, arguments, options.out / "loquent.log")
    with awake() if options.awake else contextlib.nullcontext(), theirs, ours:
        against_fastapi(options, theirs, ours)
        if not options.only_fastapi:
            by_concurrency(options, ours)


@contextlib.contextmanager
def awake():
    """Keeps every processor busy with nothing while it lasts."""
    pin = "import os; os.sched_setaffinity(0, [{}]); "
    loops = [subprocess.Popen([sys.executable, "-c", pin.format(cpu) + IDLE_LOOP]) for cpu in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def against_fastapi(options, theirs, ours):
    """64 streams at interval 1 and 8; the base is FastAPI's at 1."""
    report = bench(options, [theirs, ours], "fastapi", "--requests", "64", "--stream-interval", "1,8",
                   "--url", f"loquent-http2={ours.url}", "--server-pid", str(ours.process.pid),
                   "--http2", "loquent-http2")
    groups = {group["name"]: [run["metrics"][KEY] for run in group["runs"]] for group in report["groups"]}
    base = next(values for name, values in groups.items() if name.startswith("fastapi") and not name.endswith("8"))
    print(f"64 streams of 128 tokens, {options.rate:.0f} tokens/s for each; {options.runs} alternating runs")
    print("| server | CPU us per token | / FastAPI at 1 [least, most] | target |\n| --- | --- | --- | --- |")
    for name, values in groups.items():
        quotients = [value / of_base for value, of_base in zip(values, base)]
        target = TARGETS.get(name, "")
        print(f"| {name} | {statistics.median(values):.1f} | {spread(quotients, 3)} | {target} |")
    runs(groups)


def by_concurrency(options, ours):
    print("\n| streams | CPU us per token |\n| --- | --- |")
    for streams in STREAMS:
        # The CPU clock counts nanoseconds: some hundred tokens are enough for one stream.
        requests = max(streams, 64) if streams > 1 else 6
        count = ["--requests", str(requests), "-c", str(streams)]
        report = bench(options, [ours], f"streams-{streams}", *count)
        values = [run["metrics"][KEY] for run in report["groups"][0]["runs"]]
        print(f"| {streams} | {spread(values, 1)} |")


def spread(values, digits):
    return f"{statistics.median(values):.{digits}f} [{min(values):.{digits}f}, {max(values):.{digits}f}]"


def bench(options, running, label, *load):
    out = options.out / f"delivery-{label}.json"
    command = [options.generator or options.loquent, "bench", "load", "--quiet", "--endpoint", "completions", "--max-tokens", "128", "--ignore-eos",
               "--prompt", "Hello", "--warmup-runs", "1", "--repeat-runs", str(options.runs), "--no-server-timings",
               "--json", str(out)]
    for server in running:
        command += ["--url", f"{server.name}={server.url}", "--server-pid", str(server.process.pid)]
    command += load
    subprocess.run(command, check=True)
    return json.loads(out.read_text())


if __name__ == "__main__":
    main()
