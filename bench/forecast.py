"""How well the server tells a client on arrival when its first token will come.

Starts `loquent serve` and sends a mixed load: short and long prompts with short and long answers, arriving at random
(a Poisson process, a little faster than the server answers, so that a queue grows), each with `return_progress`. The
first chunk of each stream has the forecast (`eta_ms`); its first text says what became of it. Prints the mean absolute
and the mean relative error, by how long the wait was. The first answers teach the server and are not counted.
"""

import argparse
import json
import os
import pathlib
import random
import statistics
import sys
import tempfile
import threading
import time

from records.printed import runs
from records.streams import events, post

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
import servers

WORDS = "stream token packet server reader answer queue batch model prompt loss delay path frame".split()
#: Prompt words and answer tokens, and how many of each kind come: a chat, a long document, a short question.
KINDS = [((20, 60), (20, 120), 6), ((250, 600), (20, 80), 2), ((5, 15), (5, 40), 4)]


def request(dice):
    """A question; no two begin alike, so that the prefix cache takes no part."""
    words, tokens, _ = dice.choices(KINDS, [weight for *_, weight in KINDS])[0]
    content = " ".join([str(dice.random()), *dice.choices(WORDS, k=dice.randint(*words))])
    return {
        "messages": [{"role": "user", "content": content}],
        "max_tokens": dice.randint(*tokens),
        "stream": True,
        "return_progress": True,
    }


def ask(port, body):
    """Seconds to the first token, as told and as it was, from when it was told."""
    told_at, told, queued, first = None, None, 0, None
    for at, event in events(post(port, "/v1/chat/completions", body, timeout_s=600)):
        chunk = json.loads(event)
        if "error" in chunk:
            raise RuntimeError(chunk["error"]["message"])
        progress = chunk.get("prompt_progress")
        if progress and told_at is None:
            told_at, queued = at, progress["queued"]
            told = None if progress["eta_ms"] is None else progress["eta_ms"] / 1000
        if first is None and any(choice.get("delta", {}).get("content") for choice in chunk["choices"]):
            first = at
    return told, first - told_at if first else None, queued


def load(port, seconds, rate, dice):
    found, threads, lock = [], [], threading.Lock()

    def one(body):
        told = ask(port, body)
        with lock:
            found.append(told)

    end = time.monotonic() + seconds
    while time.monotonic() < end:
        threads.append(threading.Thread(target=one, args=(request(dice),), daemon=True))
        threads[-1].start()
        time.sleep(dice.expovariate(rate))
    for thread in threads:
        thread.join(600)
    return found


def capacity(port, places, dice):
    """Answers per second with a full batch; many, for at the end the batch is not full."""
    began, count, threads = time.monotonic(), 10 * places, []
    for _ in range(count):
        threads.append(threading.Thread(target=ask, args=(port, request(dice)), daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join(600)
    return count / (time.monotonic() - began)


def table(found):
    rows = [(told, was, queued) for told, was, queued in found if told is not None and was is not None]
    silent = sum(told is None for told, *_ in found)
    print(f"{len(found)} requests, {silent} without a forecast; waits and errors are in seconds")
    print("| wait that it was | requests | mean wait, s | mean absolute error, s | mean relative error | bias, s |")
    print("| --- | --- | --- | --- | --- | --- |")
    bounds = [(0, 0.25), (0.25, 1), (1, 4), (4, float("inf")), (0, float("inf"))]
    for low, high in bounds:
        some = [(told, was) for told, was, _ in rows if low <= was < high]
        if not some:
            continue
        errors = [abs(told - was) for told, was in some]
        relative = statistics.mean(error / max(was, 0.001) for error, (_, was) in zip(errors, some))
        bias = statistics.mean(told - was for told, was in some)
        name = "all" if (low, high) == (0, float("inf")) else f"{low} to {high} s"
        mean = statistics.mean(was for _, was in some)
        print(f"| {name} | {len(some)} | {mean:.2f} | {statistics.mean(errors):.2f} | {relative:.0%} | {bias:+.2f} |")
    runs({"forecast and wait of each request, s": [[round(told, 3), round(was, 3)] for told, was, _ in rows]})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=os.environ.get("LOQUENT", "loquent"))
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--load", type=float, default=1.1, help="of what the server can answer: over 1, a queue grows")
    parser.add_argument("--places", type=int, default=4, help="--max-batch-size of the server")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("serve", nargs="*", help="further arguments of `loquent serve`, behind --")
    args = parser.parse_args()
    dice = random.Random(args.seed)
    flags = ["--no-quic", "--max-batch-size", str(args.places), *args.serve]
    with tempfile.TemporaryDirectory() as folder, \
            servers.loquent(args.binary, flags, pathlib.Path(folder, "loquent.log")) as server:
        answers_per_s = capacity(server.port, args.places, dice)
        print(f"{answers_per_s:.2f} answers/s with a full batch of {args.places}; load {args.load:.0%}", flush=True)
        table(load(server.port, args.seconds, args.load * answers_per_s, dice))


if __name__ == "__main__":
    main()
