#!/usr/bin/env python3
"""Loquent against llama-server and the raw engine on one machine, in alternating runs.

    bench/peers/compare.py stage15 --model qwen.gguf
    bench/peers/compare.py --list

Both servers hold the same model at once; `loquent bench load` drives them in turn from one process,
so that a drift of the machine touches both. Each scenario first tries llama-server with several
settings (--tune-runs each) and takes the fastest; what it took is printed. Ratios are run by
run, as median [least, most]. Needs the binaries of bench/peers/build.sh and a quiet machine.
"""

import argparse
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys

import servers

HERE = pathlib.Path(__file__).resolve().parent

# The same choice of tokens on both sides: the likeliest one. The servers' own defaults differ (ours samples
# from all entries at temperature 1, llama-server from forty at 0.8), and so does what they cost.
SAMPLING = ["--temperature", "0"]

# What `loquent bench load` sends, and what the servers are started with. `slots`: sequences at once;
# `context`: KV cells of all together; `metrics`: key, meaning, target of ours / theirs.
THROUGHPUT = ("output_throughput", "completion tokens/s", ">=")
SCENARIOS = {
    "stage15": {
        "about": "40 requests, 16 concurrent, 50 tokens, one prompt",
        "bench": ["--preset", "cllm-stage15", "--ignore-eos"],
        "slots": 16, "context": 8192,
        "metrics": [(*THROUGHPUT, 1.07), ("ttft_p99_ms", "TTFT p99", "<=", 0.5),
                    ("icl_p50_ms", "ICL p50", "<=", None)],
    },
    "one": {
        "about": "one stream of 128 tokens",
        "bench": ["--preset", "cllm-stage15", "--ignore-eos", "-n", "2", "-c", "1", "--max-tokens", "128"],
        "slots": 16, "context": 8192,
        "metrics": [(*THROUGHPUT, 1.0), ("tpot_p50_ms", "TPOT p50", "<=", None)],
    },
    "rose050": {
        "about": "64 requests at once, 128 tokens",
        "bench": ["--preset", "rose-050", "--stream-interval", "1", "--warmup-runs", "0"],
        "slots": 64, "context": 16384,
        "metrics": [(*THROUGHPUT, 1.25), ("ttft_p99_ms", "TTFT p99", "<=", None)],
    },
    "tiny16": {
        "about": "64 requests, 16 concurrent, 128 tokens",
        "bench": ["--preset", "rose-050", "--stream-interval", "1", "--warmup-runs", "0", "-c", "16"],
        "slots": 16, "context": 8192,
        "metrics": [(*THROUGHPUT, 1.8), ("ttft_p99_ms", "TTFT p99", "<=", None)],
    },
    "tiny64": {
        "about": "64 requests, 64 concurrent, 128 tokens",
        "bench": ["--preset", "rose-050", "--stream-interval", "1", "--warmup-runs", "0", "-c", "64"],
        "slots": 64, "context": 16384,
        "metrics": [(*THROUGHPUT, 2.0), ("ttft_p99_ms", "TTFT p99", "<=", None)],
    },
    "inject": {
        "about": "4 streams, a 4,000-token prompt injected",
        "bench": ["--endpoint", "completions", "--requests", "4", "--max-tokens", "256", "--ignore-eos",
                  "--inject-prompt-tokens", "4000", "--inject-at-ms", "2000"],
        "slots": 8, "context": 8192,
        # A cache of 1,024 cells for each sequence would refuse the prompt.
        "choices": [[["--kv-unified"]], [["-ub", "512"], ["-b", "256", "-ub", "256"]]],
        "metrics": [("icl_p99_ms", "ICL p99 of the streams", "<=", 0.8),
                    ("injected_ttft_mean_ms", "injected TTFT", "<=", 1.0), (*THROUGHPUT, None)],
    },
}

# Settings of llama-server that are tried: each line is a choice, all combinations run.
CHOICES = [
    [["--kv-unified"], ["--no-kv-unified"]],
    [["--poll", "50"], ["--poll", "0"]],
]


# Builds of llama-server whose settings are others: what they take in place of CHOICES, and of `--no-ui`.
# ik_llama.cpp has no unified cache and no polling; it may repack weights when it loads them.
KINDS = {"ik_llama": {"choices": [[[], ["-rtr"]]], "fixed": []}}


def main():
    options = arguments()
    if options.list or not options.scenario:
        for name, scenario in SCENARIOS.items():
            print(f"{name:10} {scenario['about']}")
        print("startup    seconds from start to ready")
        return
    options.out.mkdir(parents=True, exist_ok=True)
    if options.scenario == "startup":
        startup(options)
        return
    compare(options)
    for folder in further_peers(options.peers):
        options.llama, options.name = folder, folder.name
        options.label = f"{options.scenario}-{folder.name}"
        compare(options)


def further_peers(folder):
    """The folders in `folder` that have a llama-server."""
    return sorted(server.parent for server in pathlib.Path(folder).glob("*/llama-server")) if folder else []


def compare(options):
    """One scenario against one peer, which is asked with several settings first."""
    scenario = SCENARIOS[options.scenario]
    peer = tuned(options, scenario) if options.peer is None else options.peer.split()
    report = alternate(options, scenario, peer)
    rows = ratios(report, scenario["metrics"] + [("server_rss_peak_mib", "memory while serving, MiB", "<=", 0.8)])
    text = render(options, scenario, peer, report, rows)
    print(text)
    (options.out / f"{options.label}.md").write_text(text)


def startup(options):
    """Seconds from the start of the process to ready, in turn, the file in the page cache."""
    scenario = {"slots": 16, "context": 8192}
    times = {"llama-server": [], "loquent": []}
    for run in range(options.runs + 1):
        theirs = peer_arguments(options, scenario, (options.peer or "").split())
        for server in (servers.llama_server(options.llama, theirs, options.out / "llama-server.log"),
                       servers.loquent(options.loquent, our_arguments(options, scenario), options.out / "loquent.log")):
            with server:
                # The first reads the file.
                if run > 0:
                    times[server.name].append(server.ready_s)
    quotients = [b / a for a, b in zip(times["llama-server"], times["loquent"])]
    median = statistics.median
    print(f"{options.runs} alternating runs, the model's file in the page cache.\n\n"
          "| measure | llama-server | Loquent | ratio [least, most] | target |\n| --- | --- | --- | --- | --- |")
    print(f"| start to ready, s | {median(times['llama-server']):.2f} | {median(times['loquent']):.2f} "
          f"| {median(quotients):.2f} [{min(quotients):.2f}, {max(quotients):.2f}] | <= 1.0 |")


def arguments():
    cache = os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", nargs="?", choices=[*SCENARIOS, "startup"])
    parser.add_argument("--list", action="store_true", help="list the scenarios")
    parser.add_argument("--model", help="GGUF file")
    parser.add_argument("--loquent", default=os.environ.get("LOQUENT", "loquent"))
    parser.add_argument("--llama", default=os.path.join(cache, "loquent", "peers", "bin"), help="folder of llama-server")
    parser.add_argument("--peers", default=os.environ.get("PEERS"), metavar="DIR", help="compare with each "
                        "DIR/NAME/llama-server too, such as ik_llama and llama-server-native [$PEERS]")
    parser.add_argument("--runs", type=int, default=5, help="alternating runs [5]")
    parser.add_argument("--tune-runs", type=int, default=1, help="runs for each setting of llama-server [1]")
    parser.add_argument("--peer", metavar="ARGS", help="llama-server's settings instead of trying some")
    parser.add_argument("--ours", metavar="ARGS", default="", help="further settings of loquent serve")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="llama-server's compute threads")
    parser.add_argument("--out", type=pathlib.Path, default=HERE.parent / "out")
    parser.add_argument("--label", help="name of the files under --out [the scenario]")
    options = parser.parse_args()
    options.label, options.name = options.label or options.scenario, "llama-server"
    return options


def peer_arguments(options, scenario, choice):
    """llama-server's command line: the same model, context and places as ours."""
    # Prompts kept on the side cost memory and copying that ours does not have either.
    others = KINDS.get(options.name, {}).get("fixed", ["--no-ui"])
    fixed = ["-m", options.model, *others, "-np", str(scenario["slots"]), "-c", str(scenario["context"]), "--cache-ram", "0"]
    threads = [] if "-t" in choice else ["-t", str(options.threads)]
    return fixed + threads + list(choice)


def our_arguments(options, scenario):
    slots, context = str(scenario["slots"]), str(scenario["context"])
    longest = str(min(scenario["context"], 4096 + 512))
    # Random weights go in circles, and guesses come true there more often than in real text.
    return ["--model", options.model, "--max-batch-size", slots, "--kv-cells", context,
            "--context", longest, "--draft-tokens", "off", *options.ours.split()]


def tuned(options, scenario):
    """The fastest of llama-server's settings by one short measurement each."""
    best, key = None, scenario["metrics"][0][0]
    less_is_better = scenario["metrics"][0][2] == "<="
    kind = KINDS.get(options.name, {})
    choices = list(kind.get("choices") or scenario.get("choices", CHOICES))
    if "tiny" in options.scenario:
        choices.append([["-t", str(n)] for n in range(1, options.threads + 1)])
    for combination in itertools.product(*choices):
        choice = [word for part in combination for word in part]
        log = options.out / "llama-server.log"
        with servers.llama_server(options.llama, peer_arguments(options, scenario, choice), log,
                                  options.name) as peer:
            report = bench(options, scenario, [peer], options.tune_runs, "tune")
        value = report["groups"][0]["median"][key]
        print(f"{options.name} {' '.join(choice)}: {key} {value:.1f}", file=sys.stderr)
        if best is None or (value < best[0]) == less_is_better:
            best = (value, choice)
    return best[1]


def alternate(options, scenario, peer):
    log = options.out
    theirs = servers.llama_server(options.llama, peer_arguments(options, scenario, peer), log / "llama-server.log",
                                  options.name)
    ours = servers.loquent(options.loquent, our_arguments(options, scenario), log / "loquent.log")
    with theirs, ours:
        report = bench(options, scenario, [theirs, ours], options.runs, options.label)
        report["peak_mib"] = {server.name: server.peak_mib() for server in (theirs, ours)}
    return report


def bench(options, scenario, running, runs, label):
    """Runs `loquent bench load` over the servers in turn and gives its JSON report."""
    out = options.out / f"{label}.json"
    command = [options.loquent, "bench", "load", *scenario["bench"], *SAMPLING, "--quiet", "--repeat-runs", str(runs),
               "--json", str(out), "--jsonl", str(out.with_suffix(".jsonl"))]
    for server in running:
        command += ["--url", f"{server.name}={server.url}", "--server-pid", str(server.process.pid)]
    done = subprocess.run(command, check=False)
    # 1: some request failed, which the table shows.
    if done.returncode not in (0, 1):
        raise SystemExit(f"loquent bench load ended with status {done.returncode}")
    report = json.loads(out.read_text())
    report["failures"] = failures(out.with_suffix(".jsonl").read_text().splitlines())
    return report


def failures(lines):
    """By server: how many requests of all runs failed, by cause. `lines` has one request each."""
    found = {}
    for line in lines:
        request = json.loads(line)
        if isinstance(request["outcome"], dict):
            failure = request["outcome"]["failed"]
            by_cause = found.setdefault(request["group"], {})
            cause = f"{failure['kind']}: {failure['message']}"
            by_cause[cause] = by_cause.get(cause, 0) + 1
    return found


def lost(report):
    """Rows for the requests that failed. They are no ratio: what is lost is nobody's merit."""
    cell = lambda text: " ".join(text.replace("|", "/").split())[:200]
    rows = []
    for server, causes in sorted(report["failures"].items()):
        rows += [f"| **{server} lost {count} of all runs' requests** | {cell(cause)} | | | |"
                 for cause, count in sorted(causes.items())]
    return rows


def ratios(report, metrics):
    """Per metric: theirs, ours, the ratio ours / theirs run by run, its target."""
    theirs, ours = report["groups"]
    rows = []
    for key, meaning, sign, target in metrics:
        pairs = [
            (a["metrics"].get(key), b["metrics"].get(key)) for a, b in zip(theirs["runs"], ours["runs"])
        ]
        pairs = [(a, b) for a, b in pairs if a and b is not None]
        if pairs:
            quotients = [b / a for a, b in pairs]
            median = statistics.median
            rows.append({
                "key": key, "meaning": meaning, "sign": sign, "target": target,
                "theirs": median(a for a, _ in pairs), "ours": median(b for _, b in pairs),
                "ratio": median(quotients), "least": min(quotients), "most": max(quotients),
            })
    return rows


def render(options, scenario, peer, report, rows):
    lines = [f"### {options.label}: {scenario['about']}", ""]
    lines.append(f"{options.name}: `{' '.join(peer_arguments(options, scenario, peer)[2:])}`; "
                 f"loquent: `{' '.join(our_arguments(options, scenario)[2:])}`; {options.runs} alternating runs, "
                 "temperature 0.")
    lines += ["", f"| measure | {options.name} | Loquent | ratio [least, most] | target |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        target = f"{row['sign']} {row['target']}" if row["target"] is not None else ""
        if report["failures"]:
            # Throughput counts what was answered, in the time until the last answer.
            target += " (requests were lost)"
        lines.append(f"| {row['meaning']} | {row['theirs']:.1f} | {row['ours']:.1f} "
                     f"| {row['ratio']:.2f} [{row['least']:.2f}, {row['most']:.2f}] | {target} |")
    peaks = report["peak_mib"]
    quotient = peaks["loquent"] / peaks[options.name]
    lines.append(f"| peak memory of its life, MiB | {peaks[options.name]:.0f} | {peaks['loquent']:.0f} | {quotient:.2f} | <= 0.8 |")
    lines += lost(report)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
