#!/usr/bin/env python3
"""Bursts of readers of a real model, a third of them on a lossy link: by need, and first come, first served.

    bench/qoe.py --model smollm2.gguf --loquent target/release/loquent

All clients are real, each over a QUIC connection of its own, at a round trip of 100 ms; a third lose 15 % of their
packets as in the paper's channel. Each batch size is tried with both orders of service, and the best batch size of each
counts. QoE is that of Andes (docs/scheduling.md). Needs root for the links; about seven minutes. The clients compute on
the same machine.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
import servers
from records.printed import percentile, runs

ORDERS = {"first come, first served": [], "by need": ["--reading-speed", "10"]}
#: How many times as many readers are to be served by need.
MORE_READERS = 1.5
LINKS = {"clean": [], "lossy": ["--loss", "default"]}


def main():
    options = arguments()
    found = {}
    for batch in options.batches.split(","):
        for order, flags in ORDERS.items():
            serve = ["--model", options.model, "--no-prefix-cache", "--no-request-log", "--context", "1024",
                     "--kv-cells", "65536", "--max-batch-size", batch, *flags]
            with tempfile.TemporaryDirectory() as folder, \
                    servers.loquent(options.loquent, serve, pathlib.Path(folder, "loquent.log")) as server:
                for readers in map(int, options.readers.split(",")):
                    found[batch, order, readers] = burst(options, server.port, readers)
    print("| readers | order of service | best batch size | mean QoE | of those on the lossy link | "
          "readers of QoE 0.95 | TTFT P99, s |")
    print("|" + " --- |" * 7)
    most = dict.fromkeys(ORDERS, 0)
    for readers in map(int, options.readers.split(",")):
        for order in ORDERS:
            tried = {batch: found[batch, order, readers] for batch in options.batches.split(",")}
            batch, best = max(tried.items(), key=lambda one: one[1]["qoe"])
            most[order] = readers if best["qoe"] >= 0.95 else most[order]
            print(f"| {readers} | {order} | {batch} | {best['qoe']:.3f} | {best['lossy']:.3f} | {best['good']:.0%} | "
                  f"{best['ttft_p99']:.2f} |")
    print("\n| | first come, first served | by need | ratio | target |\n|" + " --- |" * 5)
    first_come, by_need = most.values()
    ratio = f"{by_need / first_come:.2f}" if first_come else ""
    print(f"| most readers at mean QoE 0.95 | {first_come} | {by_need} | {ratio} | >= {MORE_READERS} |")
    runs({f"batch size {batch}, {order}, {readers} readers": each for (batch, order, readers), each in found.items()})


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loquent", default="loquent")
    parser.add_argument("--model", required=True)
    parser.add_argument("--batches", default="16,48", help="--max-batch-size of the server [16,48]")
    parser.add_argument("--readers", default="12,18,24,30,36,42,48", help="sizes of bursts, multiples of three "
                        "[12,18,24,30,36,42,48]")
    parser.add_argument("--prompt-tokens", default="256", help="tokens of a prompt [256]")
    return parser.parse_args()


def burst(options, port, readers):
    """What the readers of one burst got, as their means."""
    with tempfile.TemporaryDirectory() as folder:
        started = {}
        for name, flags in LINKS.items():
            part = readers // 3 if name == "lossy" else readers - readers // 3
            report = pathlib.Path(folder, name)
            bench = [options.loquent, "bench", "burst", "--url", f"http://127.0.0.1:{port}", "--prompt-tokens",
                     options.prompt_tokens, "--readers", str(part), "--quiet", "--json", report]
            link = [options.loquent, "link", "--quiet", "--rtt", "100", *flags, "--to", f"127.0.0.1:{port}", "--"]
            started[report] = subprocess.Popen([*link, *bench], stdout=subprocess.DEVNULL)
        # Status 1: not enough of them were content.
        if any(process.wait() not in (0, 1) for process in started.values()):
            raise SystemExit("qoe: loquent bench burst failed")
        of_link = {report.name: json.loads(report.read_text())["bursts"][0] for report in started}
    if failed := [cause for one in of_link.values() for cause in one["failures"]]:
        raise SystemExit(f"qoe: {len(failed)} answers failed: {failed[0]}")
    of = {link: one["experience"] for link, one in of_link.items()}
    everyone = [reader for readers in of.values() for reader in readers]
    mean = lambda readers: sum(reader["qoe"] for reader in readers) / len(readers)
    first = [reader["ttft_s"] for reader in everyone]
    return {"qoe": mean(everyone), "lossy": mean(of["lossy"]), "ttft_p99": percentile(first, 0.99),
            "good": sum(reader["qoe"] >= 0.95 for reader in everyone) / len(everyone)}


if __name__ == "__main__":
    main()
