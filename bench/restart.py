#!/usr/bin/env python3
"""What the prefix cache on disk saves after a restart, and what it costs streams: the time to the first token of prompts
of 4,000 tokens, computed and restored, and the gaps between tokens of four streams beside such a prompt.

    cargo build --release -p loquent
    tools/models smollm2
    python3 bench/restart.py target/release/loquent ~/.cache/loquent/models/smollm2.gguf
"""

import json
import re
import subprocess
import sys
import tempfile
import threading
import time

from records.printed import percentile, ratios, runs, spread, table
from records.streams import events, gaps_ms, post

PROMPTS, PROMPT_TOKENS, RESTARTS = 5, 4000, 3
STREAMS, STREAM_TOKENS = 4, 400


class Server:
    def __init__(self, binary, model, folder):
        serve = [binary, "serve", "--port", "0", "--model", model, "--context", "8192", "--prefix-cache-dir", folder,
                 "--draft-tokens", "off"]
        self.process = subprocess.Popen([*serve, *sys.argv[3:]], stderr=subprocess.PIPE, text=True)
        self.port = next(int(at[1]) for line in self.process.stderr if (at := re.search(r"http://\S+:(\d+)", line)))
        # Nobody reads the rest, which must not fill the pipe.
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
        while post(self.port, "/v1/completions", {"prompt": "a", "max_tokens": 1}).status != 200:
            time.sleep(0.05)

    def stream(self, tokens):
        """The time to the first token after `tokens`, in ms, and how many of these were cached."""
        asked = time.monotonic()
        # One token: each further one costs the streams beside it a step over a long context, restored or not.
        body = {"prompt": tokens, "max_tokens": 1, "temperature": 0, "stream": True,
                "stream_options": {"include_usage": True}}
        first = cached = None
        for at, event in events(post(self.port, "/v1/completions", body)):
            first = first or at - asked
            usage = json.loads(event).get("usage")
            cached = usage["prompt_tokens_details"]["cached_tokens"] if usage else cached
        return first * 1e3, cached

    def gaps(self, beside):
        """The median, the 99th percentile and the longest of the gaps between tokens of `STREAMS` streams, in ms, while
        `beside` runs."""
        gaps = []

        def read(number):
            body = {"prompt": f"Story {number}:", "max_tokens": STREAM_TOKENS, "ignore_eos": True, "stream": True,
                    "temperature": 0, "stream_interval": 1}
            gaps.extend(gaps_ms(post(self.port, "/v1/completions", body)))

        threads = [threading.Thread(target=read, args=(number,)) for number in range(STREAMS)]
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        beside()
        for thread in threads:
            thread.join()
        return percentile(gaps, 0.5), percentile(gaps, 0.99), max(gaps)

    def stop(self):
        self.process.terminate()
        assert self.process.wait(60) == 0


def prompt(seed):
    """Token ids that begin like no other prompt's."""
    return [100 + (seed * 7919 + at * 31) % 40_000 for at in range(PROMPT_TOKENS)]


def restart(binary, model, folder, run):
    """One server on the saved prompts: the gaps of streams alone, and beside a prompt that is restored or computed, in an
    order that changes from run to run, and then what restoring the others takes."""
    server = Server(binary, model, folder)
    ways = {"alone": lambda: None, "restored": lambda: server.stream(prompt(run)),
            "computed": lambda: server.stream(prompt(PROMPTS + run))}
    names = list(ways)
    gaps = {way: server.gaps(ways[way]) for way in [*names[run:], *names[:run]]}
    restored = [server.stream(prompt(seed)) for seed in range(PROMPTS) if seed != run]
    server.stop()
    return gaps, restored


def gap_row(name, at, rounds, target):
    """The row of the gaps at index `at` of what `Server.gaps` returns."""
    alone, restored, computed = ([gaps[way][at] for gaps, _ in rounds] for way in ("alone", "restored", "computed"))
    return [f"gap between tokens, {name}, ms", spread(alone), spread(computed), spread(restored),
            spread(ratios(restored, alone), ".2f"), target]


def main():
    binary, model = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as folder:
        first = Server(binary, model, folder)
        computed = [first.stream(prompt(seed)) for seed in range(PROMPTS)]
        began = time.perf_counter()
        first.stop()
        stopping = time.perf_counter() - began
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
