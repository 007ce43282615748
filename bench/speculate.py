#!/usr/bin/env python3
"""What drafting by prompt lookup gains and costs one stream: servers side by side, alternating requests.

    bench/speculate.py --model model.gguf                       # needs loquent on the PATH, or --loquent FILE
    bench/speculate.py --model model.gguf --modes off,auto,8

Four texts: one that the prompt says several times, continued greedily; one sampled at temperature 1, where a model
without repetition finds nothing to look up; four tokens by chance (by logit bias), where every look-up finds something
that is mostly wrong; and one token for ever, where all draft tokens are accepted, which is the most that can be gained. With
random weights the first says little of real models: give your own with --prompt.
"""

import argparse
import json
import random
import signal
import sys
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).with_name("peers")))
import servers
from records.printed import ratios, runs, spread, table

COUNTERS = ["spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total", "engine_steps_total"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--loquent", default="loquent")
    parser.add_argument("--modes", default="off,auto")
    parser.add_argument("--prompt", default="The server sends every token to every reader. " * 6)
    parser.add_argument("--text", action="append", help="only the text of this name; may be given several times")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    running = {}
    try:
        for mode in options.modes.split(","):
            arguments = ["--model", options.model, "--no-profile", "--no-quic", "--draft-tokens", mode]
            running[mode] = servers.loquent(options.loquent, arguments, "/dev/null").__enter__()
        found = {name: measure(body, running, options) for name, body in texts(options).items()
                 if not options.text or name in options.text}
    finally:
        for server in running.values():
            server.__exit__()
    print_tables(found, options)


def texts(options):
    chance = random.Random(1)
    four = [1000, 2000, 3000, 4000]
    return {
        "greedy": {"prompt": options.prompt, "temperature": 0},
        "temperature 1": {"prompt": options.prompt, "temperature": 1, "seed": 3},
        "four tokens by chance": {
            "prompt": [chance.choice(four) for _ in range(200)], "temperature": 1, "seed": 5,
            "logit_bias": {str(token): 100 for token in four},
        },
        "one token for ever": {"prompt": options.prompt, "temperature": 0, "logit_bias": {"1000": 100}},
    }


def measure(body, running, options):
    """By mode: tokens per second of each run, and of the last one draft tokens, accepted ones and steps; the texts."""
    rates, answers, counted = {mode: [] for mode in running}, {}, {}
    for run in range(options.runs + 1):
        for mode, server in running.items():
            before = counters(server.url)
            seconds, answers[mode] = complete(server.url, {**body, "max_tokens": options.tokens, "ignore_eos": True})
            counted[mode] = [int(b - a) for a, b in zip(before, counters(server.url))]
            if run > 0:  # the first is a warm-up
                rates[mode].append(options.tokens / seconds)
    return rates, counted, answers


def print_tables(found, options):
    print(f"one stream of {options.tokens} tokens; {options.runs} alternating requests of each; ratios to the first mode")
    rows, first = [], options.modes.split(",")[0]
    for name, (rates, counted, _) in found.items():
        for mode, each in rates.items():
            drafted, accepted, steps = counted[mode]
            # What is decided by itself shall cost nothing.
            target = ">= 0.97" if mode == "auto" else ""
            rows.append([name, mode, spread(each), f"{drafted} / {accepted}", steps,
                         spread(ratios(each, rates[first]), ".2f"), target])
    table(["text", "--draft-tokens", "tokens/s", "drafted / accepted", "steps", "ratio [least, most]", "target"], rows)
    same = sum(len(set(answers.values())) == 1 for *_, answers in found.values())
    table(["measure", f"of {len(found)}", "target"], [["texts that are the same in all modes", same, f">= {len(found)}"]])
    runs({name: rates for name, (rates, *_) in found.items()})


def complete(url, body):
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), headers)
    began = time.monotonic()
    with urllib.request.urlopen(request, timeout=300) as answer:
        text = json.load(answer)["choices"][0]["text"]
    return time.monotonic() - began, text


def counters(url):
    with urllib.request.urlopen(url + "/metrics", timeout=10) as answer:
        lines = [line.split() for line in answer.read().decode().splitlines()]
    found = {line[0]: float(line[1]) for line in lines if len(line) == 2}
    return [found["loquent_" + name] for name in COUNTERS]


if __name__ == "__main__":
    main()
