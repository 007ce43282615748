#!/usr/bin/env python3
"""What embeddings cost streams: the gaps between tokens of four streams, alone and while clients embed
without a pause, on one model that does both.

    cargo build --release -p loquent -p shape-model
    target/release/shape-model qwen3-0.6b --layers 8 --vocab-size 20000 --out /tmp/shape.gguf
    python3 bench/embeddings.py target/release/loquent /tmp/shape.gguf
"""

import json
import pathlib
import sys
import tempfile
import threading
import time

from records.printed import percentile, runs, table
from records.streams import gaps_ms, post

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
import servers

STREAMS, TOKENS, CLIENTS = 4, 200, 2
TEXT = "a stream of tokens reaches its reader one by one and never all at once "


def stream(port, gaps):
    body = {"prompt": TEXT, "max_tokens": TOKENS, "ignore_eos": True, "stream": True, "temperature": 0}
    gaps.extend(gaps_ms(post(port, "/v1/completions", body)))


def embed(port, stop, counts):
    while not stop.is_set():
        answer = json.load(post(port, "/v1/embeddings", {"input": [TEXT * 8] * 32}))
        counts.append(answer["usage"]["prompt_tokens"])


def run(port, clients):
    stop, counts, gaps = threading.Event(), [], []
    embedders = [threading.Thread(target=embed, args=(port, stop, counts)) for _ in range(clients)]
    streams = [threading.Thread(target=stream, args=(port, gaps)) for _ in range(STREAMS)]
    began = time.perf_counter()
    for thread in embedders + streams:
        thread.start()
    for thread in streams:
        thread.join()
    took = time.perf_counter() - began
    stop.set()
    for thread in embedders:
        thread.join()
    return percentile(gaps, 0.5), percentile(gaps, 0.99), sum(counts) / took


def main():
    binary, model = sys.argv[1:3]
    flags = ["--model", model, "--embeddings", "last", *sys.argv[3:]]
    with tempfile.TemporaryDirectory() as folder, \
            servers.loquent(binary, flags, pathlib.Path(folder, "loquent.log")) as server:
        assert post(server.port, "/v1/completions", {"prompt": TEXT, "max_tokens": 20}).status == 200
        found = {clients: run(server.port, clients) for clients in (0, CLIENTS)}
    alone, beside = found.values()
    print(f"{STREAMS} streams, alone and beside {CLIENTS} clients that embed without a pause")
    table(["measure", "alone", "beside", "ratio", "target"], [
        ["gap between tokens, median, ms", f"{alone[0]:.1f}", f"{beside[0]:.1f}", f"{beside[0] / alone[0]:.2f}", "<= 2"],
        ["gap between tokens, p99, ms", f"{alone[1]:.1f}", f"{beside[1]:.1f}", f"{beside[1] / alone[1]:.2f}", ""],
        ["tokens embedded per second", f"{alone[2]:.0f}", f"{beside[2]:.0f}", "", ""]])
    runs({f"{clients} clients": each for clients, each in found.items()})


if __name__ == "__main__":
    main()
