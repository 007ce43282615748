#!/usr/bin/env python3
"""openai-python over `loquent.Client` and over httpx, on the same lossy link: time to the first token, longest pause,
time in pauses.

    target/python/venv/bin/python bench/python-client.py --loquent target/release/loquent

The client's environment is what `make test-python-client` makes. Server and clients are in two network namespaces
between which `loquent link` loses packets, so that httpx has the kernel's TCP; that needs root. Both clients ask in
turn. About two minutes.
"""

import argparse
import os
import pathlib
import shlex
import statistics
import sys
import time

import httpx2
import loquent
import openai

from records.printed import runs, table

PORT = 8080
STALL_S = 0.1  # a pause beyond it is a stall
MOST_STALLED = 0.5  # of httpx's


def measure(sdk, question, tokens):
    """One answer: text, seconds to its first token, of its longest pause, and stalled in all."""
    asked = [{"role": "user", "content": f"Question {question}: tokens={tokens}"}]
    began = last = time.monotonic()
    text, first, pauses = "", None, []
    for chunk in sdk.chat.completions.create(model="x", messages=asked, stream=True, temperature=0):
        if not (chunk.choices and chunk.choices[0].delta.content):
            continue
        now = time.monotonic()
        if first is None:
            first = now - began
        else:
            pauses.append(now - last)
        last, text = now, text + chunk.choices[0].delta.content
    stalled = sum(pause - STALL_S for pause in pauses if pause > STALL_S)
    return text, {"TTFT": first, "longest pause": max(pauses), "in pauses": stalled}


def received():
    """Bytes that came over the link so far."""
    lines = pathlib.Path("/proc/self/net/dev").read_text().splitlines()[2:]
    devices = dict(line.split(":", 1) for line in lines)
    return sum(int(figures.split()[0]) for name, figures in devices.items() if name.strip() != "lo")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loquent", default=os.environ.get("LOQUENT", "loquent"), help="the binary")
    parser.add_argument("--answers", type=int, default=30, help="answers of each client [30]")
    parser.add_argument("--tokens", type=int, default=80, help="tokens of an answer [80]")
    parser.add_argument("--rate", type=int, default=50, help="tokens a second [50]")
    parser.add_argument("--loss", default="5%", help="packets lost each way, as `loquent link` has it [5%%]")
    parser.add_argument("--rtt", default="60", help="round-trip time in ms [60]")
    parser.add_argument("--url", help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    args = arguments()
    if args.url:
        return compare(args)
    serve = [args.loquent, "serve", "--host", "0.0.0.0", "--open", "--port", str(PORT), "--simulate", str(args.rate),
             "--no-request-log"]
    link = [args.loquent, "link", "--quiet", "--rtt", args.rtt, "--loss", args.loss, "--wait", str(PORT),
            "--server", f"exec {shlex.join(serve)}", "--"]
    os.execvp(link[0], [*link, sys.executable, *sys.argv, "--url", f"http://10.77.0.2:{PORT}"])


def compare(args):
    clients = {"httpx": httpx2.Client(), "loquent.Client": loquent.Client(args.url, head_start=10)}
    transport = clients["loquent.Client"].warm_up()
    found, texts, bytes_of = {name: [] for name in clients}, {}, dict.fromkeys(clients, 0)
    for question in range(args.answers):
        for name, client in clients.items():
            sdk = openai.OpenAI(base_url=f"{args.url}/v1", api_key="none", max_retries=0, http_client=client)
            before = received()
            text, figures = measure(sdk, question, args.tokens)
            bytes_of[name] += received() - before
            texts.setdefault(question, set()).add(text)
            found[name].append(figures)
    for client in clients.values():
        client.close()
    print(f"{args.answers} answers of {args.tokens} tokens, {args.rate} tokens/s; {args.loss} of the packets are lost "
          f"each way, round trip {args.rtt} ms; `loquent.Client` has them over {transport}, httpx over the kernel's TCP")
    show(found, bytes_of, args.answers)
    equal = sum(len(both) == 1 for both in texts.values())
    table(["measure", "answers", "target"], [[f"equal texts of {args.answers}", equal, f">= {args.answers}"]])
    runs(found)


def show(found, bytes_of, answers):
    """The table of both clients. Pauses are averaged: most answers may have none."""
    rows = []
    for key, meaning, middle, target in (
            ("TTFT", "TTFT, ms, median", statistics.median, ""),
            ("longest pause", "longest pause of an answer, ms, median", statistics.median, ""),
            ("in pauses", "time in pauses beyond 100 ms, ms of an answer", statistics.mean, f"<= {MOST_STALLED}")):
        theirs, ours = (1e3 * middle(one[key] for one in figures) for figures in found.values())
        rows.append([meaning, f"{theirs:.0f}", f"{ours:.0f}", f"{ours / theirs:.2f}" if theirs else "", target])
    theirs, ours = (each / answers / 1e3 for each in bytes_of.values())
    rows.append(["kB of an answer", f"{theirs:.1f}", f"{ours:.1f}", f"{ours / theirs:.2f}", ""])
    table(["measure", *found, "ratio", "target"], rows)


if __name__ == "__main__":
    main()
