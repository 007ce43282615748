#!/usr/bin/env python3
"""Loquent against other servers on one machine, each at the best settings that were tried, in alternating runs.

    bench/peers/compare.py stage15 --model qwen.gguf
    bench/peers/compare.py stage15 --model smollm2.gguf --only llama-server-clang,ik_llama.cpp
    bench/peers/compare.py --list

Every peer that bench/peers/build.sh has built is compared (--only names some). Its settings are searched first, one
factor at a time, by the measure of the table's first row; the best ones get --tune-runs runs each, and the best median
is taken. Settings for which --tune-minutes are too short are left out and named. Then both servers hold the same model
at once, and `loquent bench load` drives them in turn from one process, so that a drift of the machine touches both.
Prompts are unique and of 100 to 400 tokens. Ratios are run by run, as median [least, most]; bench/records/peer_runs.py
says which count. Needs a quiet machine.

Prints a table for each peer, and after it a line `runs: {JSON}` with the value of every run, by server and measure, and
all settings that were tried.
"""

import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time

import peers
import prompts
import search
import servers
from search import Failed

HERE = pathlib.Path(__file__).resolve().parent

# The same choice of tokens on both sides: the likeliest one. The servers' own defaults may differ with the
# model's family, and so does what they cost.
SAMPLING = ["--temperature", "0"]

# What `loquent bench load` sends, and what the servers are started with. `slots`: sequences at once; `context`: KV
# cells of all together, for each of which a prompt, its answer and a few more must fit; `prompt_tokens`: the least and
# the most; `metrics`: key, meaning, target of ours / theirs, the first decides which settings are best.
THROUGHPUT = ("output_throughput", "completion tokens/s", ">=")
TTFT = ("ttft_p99_ms", "TTFT p99", "<=")
ROSE = ["--preset", "rose-050", "--stream-interval", "1", "--warmup-runs", "0"]
SCENARIOS = {
    "stage15": {
        "about": "40 requests, 16 concurrent, 50 tokens",
        "bench": ["--preset", "cllm-stage15", "--ignore-eos"],
        "slots": 16, "context": 8192, "requests": 40, "prompt_tokens": (100, 400),
        "metrics": [(*THROUGHPUT, 3.5), (*TTFT, 0.5), ("icl_p50_ms", "ICL p50", "<=", None)],
    },
    "one": {
        "about": "one stream of 128 tokens",
        "bench": ["--preset", "cllm-stage15", "--ignore-eos", "-n", "4", "-c", "1", "--max-tokens", "128"],
        # One sequence: a server with more of them keeps the prompts of earlier runs in its cache, and some attend to
        # all that is there.
        "slots": 1, "context": 512, "requests": 4, "prompt_tokens": (100, 300),
        "metrics": [(*THROUGHPUT, 1.6), ("tpot_p50_ms", "TPOT p50", "<=", None), (*TTFT, 1.2)],
    },
    "rose050": {
        "about": "64 requests at once, 128 tokens",
        "bench": ROSE,
        "slots": 64, "context": 32768, "requests": 64, "prompt_tokens": (100, 300),
        "metrics": [(*THROUGHPUT, 1.25), (*TTFT, None)],
    },
    "tiny16": {
        "about": "64 requests, 16 concurrent, 128 tokens",
        "bench": [*ROSE, "-c", "16"],
        "slots": 16, "context": 8192, "requests": 64, "prompt_tokens": (100, 300),
        "metrics": [(*THROUGHPUT, 1.8), (*TTFT, None)],
    },
    "tiny64": {
        "about": "64 requests, 64 concurrent, 128 tokens",
        "bench": [*ROSE, "-c", "64"],
        "slots": 64, "context": 32768, "requests": 64, "prompt_tokens": (100, 300),
        "metrics": [(*THROUGHPUT, 2.0), (*TTFT, None)],
    },
    "inject": {
        "about": "4 streams, a 4,000-token prompt injected",
        "bench": ["--endpoint", "completions", "--requests", "4", "--max-tokens", "256", "--ignore-eos",
                  "--inject-prompt-tokens", "4000", "--inject-at-ms", "2000"],
        "slots": 8, "context": 8192, "requests": 4, "prompt_tokens": (100, 400),
        # A cache of 1,024 cells for each sequence would refuse the prompt.
        "factors": {"cache": [["--kv-unified"]],
                    "batch": [[], ["-ub", "256"], ["-b", "256", "-ub", "256"], ["-b", "128", "-ub", "128"]]},
        "metrics": [("icl_p99_ms", "ICL p99 of the streams", "<=", 0.8),
                    ("injected_ttft_mean_ms", "injected TTFT", "<=", 1.0), (*THROUGHPUT, None)],
    },
}
#: Seconds from start to ready.
READY_S = 0.3
MEMORY = ("server_rss_peak_mib", "memory while serving, MiB", "<=", 0.8)


def main():
    options = arguments()
    # Ends the servers too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.list or not options.scenario:
        for name, scenario in SCENARIOS.items():
            print(f"{name:10} {scenario['about']}")
        print("startup    seconds from start to ready")
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    chosen = available(options)
    if options.scenario == "startup":
        return startup(options, chosen)
    scenario = SCENARIOS[options.scenario]
    with_prompts(options, scenario)
    return each(chosen, lambda peer: compare(options, scenario, peer))


def arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", nargs="?", choices=[*SCENARIOS, "startup"])
    parser.add_argument("--list", action="store_true", help="list the scenarios")
    parser.add_argument("--model", type=pathlib.Path, help="GGUF file")
    parser.add_argument("--loquent", default=os.environ.get("LOQUENT", "loquent"))
    parser.add_argument("--llama", help="folder of the peer llama-server [where build.sh puts it]")
    parser.add_argument("--peers", type=pathlib.Path, default=peers.cache(), metavar="DIR",
                        help="folder of the peers; each DIR/NAME/llama-server is one too [$PEERS, or the user's cache]")
    parser.add_argument("--only", metavar="NAMES", help="these peers, separated by commas [all that are built]")
    parser.add_argument("--runs", type=int, default=5, help="alternating runs [5]")
    parser.add_argument("--tune-runs", type=int, default=3, help="runs for each setting that the choice is made of [3]")
    parser.add_argument("--tune-minutes", type=float, default=8, help="time in which further settings of a peer are "
                        "tried, for each scenario; those left out are named [8]")
    parser.add_argument("--quick", action="store_true", help="vary a peer's build and one setting alone")
    parser.add_argument("--peer", metavar="ARGS", help="the peers' settings instead of a search")
    parser.add_argument("--ours", metavar="ARGS", default="", help="further settings of loquent serve")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="compute threads of a peer, at most")
    parser.add_argument("--short-prompts", action="store_true", help="send the published prompt of a scenario instead, "
                        "of some characters and the same for all")
    parser.add_argument("--out", type=pathlib.Path, default=HERE.parent / "out")
    parser.add_argument("--label", help="name of the files under --out [the scenario]")
    options = parser.parse_args(words)
    if options.scenario and not options.model:
        parser.error("--model names the GGUF file")
    options.label = options.label or options.scenario
    options.prompts = None
    return options


def available(options):
    """The peers to compare with. A line says for each that is left out why."""
    known = peers.all_peers(options.peers, options.llama)
    names = [name for name in (options.only or "").split(",") if name]
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"compare: no peer is called {', '.join(unknown)}; there are {', '.join(known)}")
    chosen = []
    for name in names or known:
        if why := known[name].missing(options.model):
            print(f"{name} is left out: {why}.", flush=True)
        else:
            chosen.append(known[name])
    if not chosen:
        raise SystemExit("compare: there is no peer to compare with; bench/peers/build.sh builds some")
    return chosen


def each(chosen, work):
    """Does `work` with each peer; one that fails is reported, and the next one has its turn. The exit status."""
    done = 0
    for peer in chosen:
        try:
            work(peer)
            done += 1
        except (Failed, servers.NotReady) as failure:
            print(f"\n{peer.name} failed: {' '.join(str(failure).split())[-400:]}\n", flush=True)
    return 0 if done else 1


def with_prompts(options, scenario):
    """Writes the scenario's prompts to a file, unless the published one is asked for."""
    if options.short_prompts:
        return
    with ours(options, scenario) as server:
        texts, lengths = prompts.made(scenario["requests"], *scenario["prompt_tokens"], prompts.counter(server.url))
    options.prompts = options.out / f"{options.label}-prompts.txt"
    options.prompts.write_text("\n".join(texts) + "\n")
    options.prompt_lengths = f"{min(lengths)} to {max(lengths)} tokens, {statistics.mean(lengths):.0f} on average"


def compare(options, scenario, peer):
    """One scenario against one peer, whose settings are searched first."""
    begun = time.monotonic()
    words, trials, untried = chosen_words(options, scenario, peer)
    searched_s = time.monotonic() - begun
    report = alternate(options, scenario, peer, words)
    metrics = scenario["metrics"] + ([MEMORY] if peer.one_process else [])
    searched = search_told(options, trials, untried, searched_s)
    text = render(options, scenario, peer, words, report, ratios(report, metrics), searched)
    text += "\nruns: " + json.dumps(all_runs(scenario, peer, report, metrics, trials)) + "\n"
    print(text, flush=True)
    (options.out / f"{options.label}-{peer.name}.md").write_text(text)


def chosen_words(options, scenario, peer):
    """The words of the peer's best setting, all trials, and the settings that there was no time for."""
    if options.peer is not None:
        return options.peer.split(), [], []
    key, _, sign, _ = scenario["metrics"][0]
    deadline = time.monotonic() + 60 * options.tune_minutes

    def measure(setting, runs):
        words = search.words(setting)
        values = measured(options, scenario, peer, words, runs, key)
        print(f"{peer.name} {' '.join(words)}: {key} {', '.join(f'{value:.1f}' for value in values)}", file=sys.stderr)
        return values

    best, trials, untried = search.best_setting(
        peer.levels(scenario, options.threads, options.quick), measure, less_is_better=sign == "<=",
        runs=options.tune_runs, has_time=lambda: time.monotonic() < deadline)
    for trial in trials:
        if trial.failure is not None:
            cause = " ".join(trial.failure.split())[-300:]
            print(f"{peer.name} {' '.join(trial.words())} failed: {cause}", file=sys.stderr)
    if best is None:
        raise Failed(f"no setting works; the first: {trials[0].failure}")
    return best.words(), trials, untried


def measured(options, scenario, peer, words, runs, key):
    """The values of one measure over some runs of the peer alone."""
    log = options.out / f"{peer.name}.log"
    try:
        with peer.server(words, scenario, options.model, options.threads, log) as server:
            server.warm_up()
            report = bench(options, scenario, [server], runs, f"{options.label}-tune")
    except servers.NotReady as failure:
        raise Failed(str(failure)) from failure
    if report["failures"]:
        raise Failed(f"requests were lost: {report['failures']}")
    values = [run["metrics"].get(key) for run in report["groups"][0]["runs"]]
    if None in values:
        raise Failed(f"a run has no {key}")
    return values


def ours(options, scenario):
    return servers.loquent(options.loquent, our_arguments(options, scenario), options.out / "loquent.log")


def our_arguments(options, scenario):
    slots, context = str(scenario["slots"]), str(scenario["context"])
    longest = str(min(scenario["context"], 4096 + 512))
    # Random weights go in circles, and guesses come true there more often than in real text.
    return ["--model", str(options.model), "--max-batch-size", slots, "--kv-cells", context,
            "--context", longest, "--draft-tokens", "off", *options.ours.split()]


def alternate(options, scenario, peer, words):
    theirs = peer.server(words, scenario, options.model, options.threads, options.out / f"{peer.name}.log")
    with theirs, ours(options, scenario) as own:
        for server in (theirs, own):
            server.warm_up()
        report = bench(options, scenario, [theirs, own], options.runs, f"{options.label}-{peer.name}")
        report["peak_mib"] = {server.name: server.peak_mib() for server in (theirs, own)}
    return report


def load_arguments(options, scenario):
    """What `loquent bench load` is asked for in this scenario."""
    own_prompts = ["--prompt-file", str(options.prompts), "--unique-prompts"] if options.prompts else []
    return [*scenario["bench"], *own_prompts, *SAMPLING]


def bench(options, scenario, running, runs, label):
    """Runs `loquent bench load` over the servers in turn and gives its JSON report."""
    out = options.out / f"{label}.json"
    command = [options.loquent, "bench", "load", *load_arguments(options, scenario), "--quiet",
               "--repeat-runs", str(runs), "--json", str(out), "--jsonl", str(out.with_suffix(".jsonl"))]
    for server in running:
        command += ["--url", f"{server.name}={server.url}", "--server-pid", str(server.process.pid)]
    out.unlink(missing_ok=True)
    done = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True, errors="replace")
    # 1: some request failed, which the table shows.
    if done.returncode not in (0, 1) or not out.exists():
        raise Failed(f"loquent bench load ended with status {done.returncode}: {done.stderr[-1000:]}")
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
    theirs, own = report["groups"]
    rows = []
    for key, meaning, sign, target in metrics:
        pairs = [(a["metrics"].get(key), b["metrics"].get(key)) for a, b in zip(theirs["runs"], own["runs"])]
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


def all_runs(scenario, peer, report, metrics, trials):
    """Every run's values, by server and measure, and what each setting that was tried gave."""
    found = {}
    for name, group in zip((peer.name, "loquent"), report["groups"]):
        found[name] = {meaning: [run["metrics"].get(key) for run in group["runs"]] for key, meaning, *_ in metrics}
    meaning = scenario["metrics"][0][1]
    for trial in trials:
        name = f"{peer.name} {' '.join(trial.words())}".strip() + ", tried"
        found[name] = {meaning: trial.values} if trial.failure is None else {"failed": [trial.failure[-300:]]}
    return found


def search_told(options, trials, untried, seconds):
    """A sentence about the search of a peer's settings."""
    if not trials:
        return "its settings are given"
    told = (f"the best of {len(trials)} settings, searched in {seconds / 60:.1f} min, {options.tune_runs} runs for the "
            "choice")
    if failed := sum(trial.failure is not None for trial in trials):
        told += f"; {failed} of them failed"
    if untried:
        told += f"; no time for {', '.join(' '.join(search.words(setting)) for setting in untried)}"
    return told


def render(options, scenario, peer, words, report, rows, searched):
    lines = [f"### {options.label}: {scenario['about']}", ""]
    # The first two words name the model; a build is no word of the command line.
    shown = peer.command(words, scenario, options.model, options.threads)[1 if peer.kind == "vllm" else 2:]
    build = [word for word in words if word.startswith("build=")]
    sent = f"prompts of {options.prompt_lengths}, each unique" if options.prompts else "one short prompt for all"
    own = " ".join(our_arguments(options, scenario)[2:])
    lines.append(f"{peer.name} ({peer.version()}): `{' '.join([*build, *shown])}`, {searched}; loquent: `{own}`; {sent}; "
                 f"{options.runs} alternating runs, temperature 0.")
    lines += ["", f"| measure | {peer.name} | Loquent | ratio [least, most] | target |",
              "| --- | --- | --- | --- | --- |"]
    for row in rows:
        target = f"{row['sign']} {row['target']}" if row["target"] is not None else ""
        if report["failures"]:
            # Throughput counts what was answered, in the time until the last answer.
            target += " (requests were lost)"
        lines.append(f"| {row['meaning']} | {row['theirs']:.1f} | {row['ours']:.1f} "
                     f"| {row['ratio']:.2f} [{row['least']:.2f}, {row['most']:.2f}] | {target} |")
    if peer.one_process:
        peaks = report["peak_mib"]
        quotient = peaks["loquent"] / peaks[peer.name]
        lines.append(f"| peak memory of its life, MiB | {peaks[peer.name]:.0f} | {peaks['loquent']:.0f} "
                     f"| {quotient:.2f} | <= 0.8 |")
    lines += lost(report)
    return "\n".join(lines) + "\n"


def startup(options, chosen):
    """Seconds from the start of the process to ready, in turn, the file in the page cache."""
    scenario = {"slots": 16, "context": 8192}
    return each(chosen, lambda peer: compare_startup(options, scenario, peer))


def compare_startup(options, scenario, peer):
    words = options.peer.split() if options.peer is not None else peer.usual(scenario)
    times = {peer.name: [], "loquent": []}
    for run in range(options.runs + 1):
        for server in (peer.server(words, scenario, options.model, options.threads, options.out / f"{peer.name}.log"),
                       ours(options, scenario)):
            with server:
                # The first reads the file.
                if run > 0:
                    times[server.name].append(server.ready_s)
    quotients = [b / a for a, b in zip(times[peer.name], times["loquent"])]
    median = statistics.median
    print(f"{peer.name} ({peer.version()}); {options.runs} alternating runs, the model's file in the page cache.\n\n"
          f"| measure | {peer.name} | Loquent | target | ratio [least, most] | target |\n|{' --- |' * 6}")
    print(f"| start to ready, s | {median(times[peer.name]):.2f} | {median(times['loquent']):.2f} | <= {READY_S} "
          f"| {median(quotients):.2f} [{min(quotients):.2f}, {max(quotients):.2f}] | <= 1.0 |\n")
    values = {name: {"start to ready, s": seconds} for name, seconds in times.items()}
    print("runs: " + json.dumps(values) + "\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
