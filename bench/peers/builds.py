#!/usr/bin/env python3
"""Two builds of Loquent against each other: `stage15` on a model, and CPU time per delivered token.

    bench/peers/builds.py --old OLD/loquent --new NEW/loquent --model q.gguf

Both servers run side by side and are driven in turn, so that a slow minute slows both. Ratios are new to old.
"""

import argparse
import json
import pathlib
import statistics
import subprocess

import servers

HERE = pathlib.Path(__file__).resolve().parent
SIMULATED = ["--simulate", "100", "--max-batch-size", "64", "--max-inflight-requests", "256", "--no-quic"]
CPU_LOAD = ["--endpoint", "completions", "--prompt", "Hello", "--no-server-timings", "--warmup-runs", "1",
            "--ignore-eos"]
#: Tokens of an answer, requests, and stream intervals: what a token costs, and what a request does.
ANSWERS = [(128, 256, 1), (128, 256, 8), (8, 2048, 8), (512, 64, 8)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", required=True, help="the binary to compare with")
    parser.add_argument("--new", required=True, help="the binary in question, which also drives the load")
    parser.add_argument("--model", help="a GGUF file; stage15 is left out without one")
    parser.add_argument("--runs", type=int, default=7, help="alternating runs [7]")
    parser.add_argument("--out", type=pathlib.Path, default=HERE.parent / "out")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    print("| measure | old | new | new / old [least, most] |\n| --- | --- | --- | --- |")
    if options.model:
        arguments = ["--model", options.model, "--kv-cells", "8192", "--max-batch-size", "16", "--no-quic"]
        load = ["--preset", "cllm-stage15", "--ignore-eos", "-c", "16", "--warmup-runs", "1"]
        compare(options, "stage15, tokens/s", "output_throughput", arguments, load)
    for tokens, requests, interval in ANSWERS:
        load = [*CPU_LOAD, "--max-tokens", str(tokens), "--requests", str(requests), "--stream-interval", str(interval)]
        title = f"CPU us per token, {tokens} tokens, interval {interval}"
        compare(options, title, "server_cpu_us_per_token", SIMULATED, load)


def compare(options, title, metric, arguments, load):
    """Prints one row: both medians, and the ratio run by run."""
    old = servers.loquent(options.old, arguments, options.out / "old.log")
    new = servers.loquent(options.new, arguments, options.out / "new.log")
    old.name, new.name = "old", "new"
    out = options.out / "builds.json"
    command = [options.new, "bench", "load", "--quiet", "--json", str(out), "--repeat-runs", str(options.runs), *load]
    with old, new:
        for server in [old, new]:
            command += ["--url", f"{server.name}={server.url}", "--server-pid", str(server.process.pid)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    groups = json.loads(out.read_text())["groups"]
    before, after = ([run["metrics"][metric] for run in group["runs"]] for group in groups)
    ratios = [b / a for a, b in zip(before, after)]
    print(f"| {title} | {statistics.median(before):.1f} | {statistics.median(after):.1f} | "
          f"{statistics.median(ratios):.3f} [{min(ratios):.3f}, {max(ratios):.3f}] |", flush=True)


if __name__ == "__main__":
    main()
