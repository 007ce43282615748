#!/usr/bin/env python3
"""What each of 500 readers of one answer costs the server, by event stream.

    bench/readers.py --loquent target/release/loquent

Starts `loquent serve` with a simulated engine of 10 tokens per second. A first reader asks for an answer of 150 tokens;
the others join it at once, each over a connection of its own, and read it from its beginning. Prints a table of the
server's processor time and memory, and fails if a reader misses a byte. bench/readers.sh measures QUIC too.
"""

import argparse
import asyncio
import json
import os
import pathlib
import re
import sys
import tempfile
import time
import urllib.request

from records.printed import runs, spread, table

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
import servers

TOKENS, JOINING_S = 150, 10
TICKS = os.sysconf("SC_CLK_TCK")


def main():
    options = arguments()
    counts = [1, options.readers]
    found = {count: [] for count in counts}
    for _ in range(options.runs):
        for count in counts:
            with tempfile.TemporaryDirectory() as folder, serving(options.loquent, count, folder) as server:
                found[count].append(asyncio.run(one_answer(server.url, server.process.pid, count)))
    print(f"one answer of {TOKENS} tokens, 10 per second; {options.runs} runs of each; every reader got the whole text")
    table(["readers beside the first", f"processor time of the first {JOINING_S} s, joining included",
           "afterwards, of a core", "per token delivered", "memory per reader, connection included",
           "answers generated", "target"],
          [row(count, each) for count, each in found.items()])
    runs({f"{count} readers": each for count, each in found.items()})


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loquent", default=os.environ.get("LOQUENT", "loquent"))
    parser.add_argument("--readers", type=int, default=500)
    parser.add_argument("--runs", type=int, default=3)
    return parser.parse_args()


def row(count, each):
    values = lambda key: [one[key] for one in each]
    # One reader is no more than noise of the first one's.
    of_each = [f"{spread(values('us_per_token'))} µs", f"{spread(values('kib_per_reader'))} KiB"] if count > 1 else ["", ""]
    return [f"{count} reader{'s' * (count > 1)}", f"{spread(values('joining_ms'), '.0f')} ms", f"{spread(values('core_percent'))} %", *of_each,
            f"{spread(values('answers'), '.2f')}", "<= 1"]


def serving(binary, readers, folder):
    """A server with room for so many readers, not started yet."""
    most = str(2 * readers + 100)
    flags = ["--simulate", "10", "--no-quic", "--no-request-log", "--max-connections", most]
    return servers.loquent(binary, flags, pathlib.Path(folder, "loquent.log"), LOQUENT_LOG="warn")


async def one_answer(url, pid, readers):
    """One answer with so many readers beside the first; what they cost the server."""
    generated, memory, cpu = generated_tokens(url), resident_kib(pid), cpu_s(pid)
    begun = time.monotonic()
    first, writer, head = await request(url, "POST", "/v1/chat/completions", {
        "stream": True, "resumable": True, "max_tokens": 2 * TOKENS,
        "messages": [{"role": "user", "content": f"tokens={TOKENS}"}]})
    name = {key: re.search(rf"x-loquent-stream-{key}: (\S+)", head, re.I)[1] for key in ("id", "token")}
    path = f"/v1/streams/{name['id']}?token={name['token']}"
    others = [asyncio.create_task(read_whole(url, path)) for _ in range(readers)]
    whole = asyncio.create_task(text_of(first))
    await asyncio.sleep(JOINING_S)
    busy, joined, cpu_joined = resident_kib(pid), time.monotonic(), cpu_s(pid)
    text, others = await whole, await asyncio.gather(*others)
    writer.close()
    took, rest = time.monotonic() - joined, cpu_s(pid) - cpu_joined
    if not text or any(other != text for other in others):
        raise SystemExit(f"readers: {sum(other != text for other in others)} of {readers} read another text than the first")
    tokens = (readers + 1) * TOKENS * took / (time.monotonic() - begun)
    return {"joining_ms": 1e3 * (cpu_joined - cpu), "core_percent": 100 * rest / took, "us_per_token": 1e6 * rest / tokens,
            "kib_per_reader": (busy - memory) / (readers + 1), "answers": (generated_tokens(url) - generated) / (TOKENS + 1)}


async def request(url, method, path, body=None):
    """Sends a request; the connection behind its head, and the head."""
    host = url.split("//")[1]
    reader, writer = await asyncio.open_connection(*host.split(":"))
    body = json.dumps(body).encode() if body else b""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Content-Type: application/json", "Connection: close",
             f"Content-Length: {len(body)}"]
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    if not head.startswith("HTTP/1.1 200"):
        raise SystemExit(f"readers: {method} {path.partition('?')[0]}: {head.splitlines()[0]}")
    return reader, writer, head


async def read_whole(url, path):
    reader, writer, _ = await request(url, "GET", path)
    try:
        return await text_of(reader)
    finally:
        writer.close()


async def text_of(reader):
    """The text of an event stream; nothing if it did not come to its end."""
    text, done = [], False
    async for line in reader:
        if line.startswith(b"data: {"):
            text += [choice["delta"].get("content") or "" for choice in json.loads(line[6:])["choices"]]
        done |= line.startswith(b"data: [DONE]")
    return "".join(text) if done else ""


def cpu_s(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident_kib(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1])


def generated_tokens(url):
    with urllib.request.urlopen(url + "/metrics", timeout=20) as response:
        return float(re.search(r"^loquent_generation_tokens_total(?:{.*})? (\S+)", response.read().decode(), re.M)[1])


if __name__ == "__main__":
    main()
