#!/usr/bin/env python3
"""What is left of a server's speed beside busy programs on the same processors.

Each server decodes alone on a quiet machine, then beside one and beside two programs that compute without a pause, and
then alone again, with one stream and with 16. Ratios are those of tokens/s to the quiet machine's median; TTFT is the
slowest stream's. A busy program is a Python loop of normal priority.

    bench/neighbours.py --loquent target/release/loquent --model ~/.cache/loquent/models/smollm2.gguf
    bench/neighbours.py --loquent target/release/loquent --model M.gguf --llama FOLDER-OF-LLAMA-SERVER

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

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
import servers

#: Tokens of each stream, by the number of streams.
LOADS = {1: 96, 16: 32}
#: Busy programs, in turn; the last shows whether the speed comes back.
NEIGHBOURS = (0, 1, 2, 0)
#: What a busy neighbour should leave of tokens/s.
TARGETS = {1: 0.55, 2: 0.4}
#: A stream that is not over by then is left, and counts as far as it came.
STREAM_LIMIT_S = 30
SLOTS, CONTEXT_TOKENS = 16, 8192


def main():
    options = arguments()
    threads = len(os.sched_getaffinity(0))
    folder = pathlib.Path(tempfile.mkdtemp(prefix="loquent-neighbours-"))
    rows, runs = [], {}
    for name, server in contestants(options, threads, folder):
        with server:
            server.warm_up()
            model = server._json("/v1/models")["data"][0]["id"]
            for streams, tokens in LOADS.items():
                measured = [measure(server, model, streams, tokens, count, options.runs) for count in NEIGHBOURS]
                quiet = statistics.median(measured[0]["tokens/s"])
                for position, (count, values) in enumerate(zip(NEIGHBOURS, measured)):
                    rows.append(row(name, streams, (count, position), values, quiet))
                    runs[f"{name}, {streams} streams, {count} neighbours, part {position + 1}: tokens/s"] = values["tokens/s"]
    print("| server | streams | busy programs | tokens/s | of the quiet machine's | target | slowest TTFT, ms |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    print("\n".join(rows))
    print("runs: " + json.dumps(runs))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loquent", required=True, help="the binary")
    parser.add_argument("--model", type=pathlib.Path, required=True, help="a GGUF file")
    parser.add_argument("--llama", type=pathlib.Path, help="folder of a llama-server, to be measured too")
    parser.add_argument("--runs", type=int, default=3, help="runs of each row [%(default)s]")
    return parser.parse_args()


def contestants(options, threads, folder):
    """The servers, not started yet, each with its name."""
    ours = ["--model", str(options.model), "--max-batch-size", str(SLOTS), "--kv-cells", str(CONTEXT_TOKENS),
            "--context", str(CONTEXT_TOKENS // SLOTS), "--draft-tokens", "off"]
    yield "loquent", servers.loquent(options.loquent, ours, folder / "loquent.log")
    if options.llama:
        theirs = ["-m", str(options.model), "-np", str(SLOTS), "-c", str(CONTEXT_TOKENS), "-t", str(threads),
                  "--cache-ram", "0"]
        yield "llama-server", servers.llama_server(options.llama, theirs, folder / "llama-server.log")


def row(name, streams, part, values, quiet):
    count, position = part
    ratio = statistics.median(values["tokens/s"]) / quiet
    target = f">= {TARGETS[count]}" if count and name == "loquent" else ""
    when = f"{count}, again" if position and not count else str(count)
    speeds, ttft = values["tokens/s"], 1e3 * statistics.median(values["ttft"])
    spread = f"{statistics.median(speeds):.1f} [{min(speeds):.1f}, {max(speeds):.1f}]"
    return f"| {name} | {streams} | {when} | {spread} | {ratio:.2f} | {target} | {ttft:.0f} |"


def measure(server, model, streams, tokens, neighbours, runs):
    """Tokens per second and the slowest first token of each run beside `neighbours` busy programs."""
    with contextlib.ExitStack() as stack:
        for _ in range(neighbours):
            stack.enter_context(busy_program())
        results = [run(server.url, model, streams, tokens, number) for number in range(runs)]
    # The next part begins on a machine that has come to rest.
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
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            first, count = first or time.monotonic() - began, count + 1
            if time.monotonic() - began > STREAM_LIMIT_S:
                break
    return count, first or 2 * STREAM_LIMIT_S


if __name__ == "__main__":
    main()
