#!/usr/bin/env python3
"""What three servers behind Loquent give, beside the three alone, and what routing by prompt brings.

Throughput: three loads of 16 streams, one on each server, all at once; then one of 48 through Loquent; in turn, with
prompts of which no two begin alike. The servers are simulated engines unless URLs are given. Hit rate: 24 conversations
at once, each of several turns and all with one system prompt, over three simulated engines of which each caches what it
has read; the share of prompt tokens that were found there, by the way in which servers are chosen. Prints two tables.

    bench/upstreams.py [--loquent BINARY] [URL URL URL]
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

from records.printed import runs

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
import servers

WORDS = "stream token packet server reader answer queue batch model prompt loss delay path frame".split()
ROUTINGS = ("prefix", "least-loaded", "round-robin")


@contextlib.contextmanager
def serve(binary, *flags):
    """A server on a free port: its URL."""
    flags = ["--max-inflight-requests", "512", "--no-request-log", *flags]
    with tempfile.TemporaryDirectory() as folder, \
            servers.loquent(binary, flags, os.path.join(folder, "loquent.log"), LOQUENT_LOG="warn") as server:
        yield server.url


def load(binary, url, streams, requests, folder, name):
    """Starts a load on a server, whose figures will be in a file."""
    figures = os.path.join(folder, name + ".json")
    command = [binary, "bench", "load", "--url", url, "--endpoint", "chat", "--prompt", " ".join(WORDS * 4),
               "--unique-prompts", "--max-tokens", "100", "-c", str(streams), "-n", str(requests), "--json", figures]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL), figures


def tokens_per_s(loads):
    """The sum of what loads that run at once get."""
    total = 0.0
    for process, figures in loads:
        if process.wait() != 0:
            raise SystemExit("upstreams: a load failed")
        with open(figures, encoding="utf-8") as file:
            median = json.load(file)["groups"][0]["median"]
        if median["failed_requests"] or median["refused_requests"]:
            raise SystemExit("upstreams: requests were lost")
        total += median["output_throughput"]
    return total


def throughput(options, urls):
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        if not urls:
            flags = ("--simulate", str(options.rate), "--max-batch-size", "32")
            urls = [stack.enter_context(serve(options.loquent, *flags)) for _ in range(3)]
        front = stack.enter_context(serve(options.loquent, "--upstream", "model=" + ",".join(urls)))
        pairs = []
        for run in range(options.repeat + 1):
            each = options.requests // 3
            alone = [load(options.loquent, url, 16, each, folder, f"alone{at}") for at, url in enumerate(urls)]
            alone = tokens_per_s(alone)
            behind = tokens_per_s([load(options.loquent, front, 48, 3 * each, folder, "behind")])
            # The first run warms up.
            if run:
                pairs.append((alone, behind))
    ratios = [behind / alone for alone, behind in pairs]
    print("| 48 streams over three servers | tokens/s, median | ratio, median [least, most] | target |")
    print("| --- | --- | --- | --- |")
    print(f"| three loads of 16, each on a server | {statistics.median(alone for alone, _ in pairs):.0f} | 1 | |")
    print(f"| one of 48 through Loquent | {statistics.median(behind for _, behind in pairs):.0f} "
          f"| {statistics.median(ratios):.3f} [{min(ratios):.3f}, {max(ratios):.3f}] | >= 0.97 |")
    print()
    runs({"tokens/s of the three alone and through Loquent": pairs})


def post(url, body):
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)


def converse(front, seed, turns):
    """One conversation of so many turns, with pauses as readers make them."""
    dice = random.Random(seed)
    messages = [{"role": "system", "content": "You answer in one sentence. " * 20}]
    for turn in range(turns):
        question = " ".join(dice.choices(WORDS, k=dice.randint(20, 120)))
        messages.append({"role": "user", "content": f"{seed} {turn} {question} say=" + " ".join(dice.choices(WORDS, k=30))})
        answer = post(front, {"model": "model", "messages": messages})
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
        time.sleep(dice.uniform(0, 0.3))


def counters(url):
    with urllib.request.urlopen(url + "/metrics", timeout=20) as response:
        text = response.read().decode()
    return [float(re.search(rf"^loquent_prefix_cache_{name}_total (\S+)$", text, re.M)[1]) for name in ("hits", "queries")]


def hit_rate(options, routing):
    with contextlib.ExitStack() as stack:
        flags = ("--simulate", "2000", "--max-batch-size", "16", "--kv-cells", "65536")
        urls = [stack.enter_context(serve(options.loquent, *flags)) for _ in range(3)]
        front = ("--upstream", "model=" + ",".join(urls), "--upstream-routing", routing)
        front = stack.enter_context(serve(options.loquent, *front))
        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            list(pool.map(lambda seed: converse(front, seed, options.turns), range(72)))
        per_server = [counters(url) for url in urls]
    hits, queries = (sum(column) for column in zip(*per_server))
    return hits / queries, max(queries for _, queries in per_server) / (queries / 3)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("urls", nargs="*", metavar="URL", help="three servers of one model, for the throughput")
    parser.add_argument("--loquent", default=os.environ.get("LOQUENT", "loquent"), help="the binary")
    parser.add_argument("--rate", type=float, default=30, help="tokens per second of a simulated stream")
    parser.add_argument("--requests", type=int, default=288, help="requests of a run")
    parser.add_argument("--repeat", type=int, default=3, help="runs, besides the one that warms up")
    parser.add_argument("--turns", type=int, default=6, help="turns of a conversation")
    options = parser.parse_args()
    if len(options.urls) not in (0, 3):
        parser.error("give three URLs, or none")
    throughput(options, options.urls)
    print("| 72 conversations over three servers | prompt tokens found in caches | tokens of the busiest, mean 1 |")
    print("| --- | --- | --- |")
    for routing in ROUTINGS:
        rate, spread = hit_rate(options, routing)
        print(f"| {routing} | {100 * rate:.1f} % | {spread:.2f} |", flush=True)


if __name__ == "__main__":
    main()
