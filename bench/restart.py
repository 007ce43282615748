#!/usr/bin/env python3
"""What the prefix cache on disk saves after a restart, and what it costs streams: the time to the first token of prompts
of 4,000 tokens, computed and restored, and the gaps between tokens of four streams beside such a prompt.

    cargo build --release -p loquent
    tools/models smollm2
    python3 bench/restart.py target/release/loquent ~/.cache/loquent/models/smollm2.gguf
"""

import contextlib
import json
import pathlib
import sys
import tempfile
import threading
import time

from records.printed import percentile, ratios, runs, spread, table
from records.streams import events, gaps_ms, post

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
import servers

PROMPTS, PROMPT_TOKENS, RESTARTS = 5, 4000, 3
STREAMS, STREAM_TOKENS = 4, 400


@contextlib.contextmanager
def serving(binary, model, folder):
    """A server that keeps its prefix cache in `folder`, and has answered once."""
    cache = pathlib.Path(folder, "cache")
    cache.mkdir(mode=0o700, exist_ok=True)
    flags = ["--model", model, "--context", "8192", "--prefix-cache-dir", str(cache), "--draft-tokens", "off"]
    with servers.loquent(binary, [*flags, *sys.argv[3:]], pathlib.Path(folder, "loquent.log")) as server:
        assert post(server.port, "/v1/completions", {"prompt": "a", "max_tokens": 1}).status == 200
        yield server


def stream(port, tokens):
    """The time to the first token after `tokens`, in ms, and how many of these were cached."""
    asked = time.monotonic()
    # One token: each further one costs the streams beside it a step over a long context, restored or not.
    body = {"prompt": tokens, "max_tokens": 1, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}}
    first = cached = None
    for at, event in events(post(port, "/v1/completions", body)):
        first = first or at - asked
        usage = json.loads(event).get("usage")
        cached = usage["prompt_tokens_details"]["cached_tokens"] if usage else cached
    return first * 1e3, cached


def gaps_beside(port, beside):
    """The median, the 99th percentile and the longest of the gaps between tokens of `STREAMS` streams, in ms, while
    `beside` runs."""
    gaps = []

    def read(number):
        body = {"prompt": f"Story {number}:", "max_tokens": STREAM_TOKENS, "ignore_eos": True, "stream": True,
                "temperature": 0, "stream_interval": 1}
        gaps.extend(gaps_ms(post(port, "/v1/completions", body)))

    threads = [threading.Thread(target=read, args=(number,)) for number in range(STREAMS)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    beside()
    for thread in threads:
        thread.join()
    return percentile(gaps, 0.5), percentile(gaps, 0.99), max(gaps)


def stop(server):
    """Ends a server in time for all that it has to save: how long that takes, in seconds."""
    began = time.perf_counter()
    server.process.terminate()
    assert server.process.wait(60) == 0
    return time.perf_counter() - began


def prompt(seed):
    """Token ids that begin like no other prompt's."""
    return [100 + (seed * 7919 + at * 31) % 40_000 for at in range(PROMPT_TOKENS)]


def restart(binary, model, folder, run):
    """One server on the saved prompts: the gaps of streams alone, and beside a prompt that is restored or computed, in an
    order that changes from run to run, and then what restoring the others takes."""
    with serving(binary, model, folder) as server:
        ways = {"alone": lambda: None, "restored": lambda: stream(server.port, prompt(run)),
                "computed": lambda: stream(server.port, prompt(PROMPTS + run))}
        names = list(ways)
        gaps = {way: gaps_beside(server.port, ways[way]) for way in [*names[run:], *names[:run]]}
        restored = [stream(server.port, prompt(seed)) for seed in range(PROMPTS) if seed != run]
        stop(server)
    return gaps, restored


def gap_row(name, at, rounds, target):
    """The row of the gaps at index `at` of what `gaps_beside` returns."""
    alone, restored, computed = ([gaps[way][at] for gaps, _ in rounds] for way in ("alone", "restored", "computed"))
    return [f"gap between tokens, {name}, ms", spread(alone), spread(computed), spread(restored),
            spread(ratios(restored, alone), ".2f"), target]


def main():
    binary, model = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as folder:
        with serving(binary, model, folder) as first:
            computed = [stream(first.port, prompt(seed)) for seed in range(PROMPTS)]
            stopping = stop(first)
        rounds = [restart(binary, model, folder, run) for run in range(RESTARTS)]
    restored = [one for _, each in rounds for one in each]
    times = [[one for one, _ in each] for each in (computed, restored)]
    # The prompts that each restart restored alone, beside the same ones computed.
    pairs = [times[0][seed] for run in range(RESTARTS) for seed in range(PROMPTS) if seed != run]
    print(f"Prompts of {PROMPT_TOKENS} tokens before and after {RESTARTS} restarts, and {STREAMS} streams beside one; the "
          "ratio of gaps is that beside a restored prompt to alone")
    table(["measure", "computed", "restored", "ratio", "target"], [
        ["time to first token, ms", *map(spread, times), spread(ratios(times[1], pairs), ".3f"), "<= 0.1"],
        ["tokens of the prompt that were cached", *(spread([cached for _, cached in each], ".0f")
                                                    for each in (computed, restored)), "", ""]])
    table(["measure", "alone", "beside a computed prompt", "beside a restored prompt", "ratio", "target"], [
        gap_row("median", 0, rounds, ""),
        gap_row("p99", 1, rounds, "<= 1.1"),
        gap_row("longest", 2, rounds, ""),
        ["stopping the server with five prompts to save, s", "", "", f"{stopping:.1f}", "", ""]])
    runs({"computed": times[0], "restored": times[1],
          "gaps": {way: [gaps[way] for gaps, _ in rounds] for way in ("alone", "computed", "restored")}})


if __name__ == "__main__":
    main()
