#!/usr/bin/env python3
"""The largest burst of readers of which nearly all are content: by need, and first come, first served.

    bench/burst.py --loquent target/release/loquent

The server's engine is simulated and takes as long as loquent-tiny does (plans/burst.toml); its clients are real, each
over a QUIC connection of its own. Each batch size is tried with both orders of service, and the best batch size of each
counts. Prints a Markdown table; about five minutes. The engine sleeps, so a busy machine disturbs little.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
import servers
from records.printed import runs

ORDERS = {"first come, first served": [], "by need": ["--reading-speed", "10"]}


def main():
    options = arguments()
    print("| batch size | " + " | ".join(f"most readers that are content, {order}" for order in ORDERS) + " |")
    print("|" + " --- |" * (1 + len(ORDERS)), flush=True)
    found = []
    for batch in options.batches.split(","):
        found.append([largest(options, batch, flags) for flags in ORDERS.values()])
        print(f"| {batch} | {' | '.join(map(str, found[-1]))} |", flush=True)
    first_come, by_need = (max(column) for column in zip(*found))
    ratio = f" ({by_need / first_come:.2f} times)" if first_come else ""
    print(f"| the best | {first_come} | {by_need}{ratio} |")
    runs({f"batch size {batch}": dict(zip(ORDERS, each)) for batch, each in zip(options.batches.split(","), found)})


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loquent", default="loquent")
    parser.add_argument("--batches", default="16,32,64,128", help="--max-batch-size of the server [16,32,64,128]")
    parser.add_argument("--readers", default="16,24,32,40,48,56,64,72", help="sizes of bursts [16,24,…,72]")
    parser.add_argument("--prompt-tokens", default="256", help="tokens of a prompt [256]")
    parser.add_argument("--steps", default="0+0.4+0.1", metavar="MS",
                        help="milliseconds of a step, of a row and of a prompt token [0+0.4+0.1]")
    return parser.parse_args()


def largest(options, batch, flags):
    """The most readers that a server with these settings keeps content."""
    serve = ["--simulate", options.steps, "--no-prefix-cache", "--kv-cells", "131072", "--no-request-log",
             "--max-batch-size", batch, *flags]
    with tempfile.TemporaryDirectory() as folder, \
            servers.loquent(options.loquent, serve, pathlib.Path(folder, "loquent.log")) as server:
        report = pathlib.Path(folder, "burst.json")
        # Status 1: of no burst enough readers were content.
        done = subprocess.run([options.loquent, "bench", "burst", "--url", server.url, "--prompt-tokens",
                               options.prompt_tokens, "--readers", options.readers, "--quiet", "--json", report])
        if done.returncode not in (0, 1):
            raise SystemExit(f"burst: loquent bench burst ended with {done.returncode}")
        return json.loads(report.read_text())["largest"] or 0


if __name__ == "__main__":
    main()
