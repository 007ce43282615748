#!/usr/bin/env python3
"""Load tests of `loquent serve` that each start the servers they need.

    bench/loads.py NAME --loquent target/release/loquent
    bench/loads.py --list

The scripts of the same names, such as bench/slow-readers.sh, put the same load on a server that runs already. Prints
Markdown tables with the targets, and the values of all runs.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE / "peers"))
import peers  # noqa: E402
import servers  # noqa: E402
from records.printed import ratios, runs, spread, table  # noqa: E402

RATIO = "ratio [least, most]"


def main():
    options = arguments()
    if options.list or not options.name:
        print("\n".join(f"{name:14} {act.__doc__.splitlines()[0]}" for name, act in LOADS.items()))
        return
    with tempfile.TemporaryDirectory() as folder:
        options.folder = pathlib.Path(folder)
        LOADS[options.name](options)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", choices=LOADS)
    parser.add_argument("--list", action="store_true", help="list the loads")
    parser.add_argument("--loquent", default=os.environ.get("LOQUENT", "loquent"))
    parser.add_argument("--model", help="GGUF file, where the engine is not simulated")
    parser.add_argument("--llama", type=pathlib.Path, help="folder of llama-server, for `upstream`")
    parser.add_argument("--vllm", type=pathlib.Path, help="folder of vLLM's environment instead, beside a checkpoint of "
                        "--model")
    parser.add_argument("--runs", type=int, help="runs of each [3 or 5]")
    parser.add_argument("--requests", type=int, default=160, help="requests of a run of `upstream` [160]")
    return parser.parse_args()


def serving(options, *flags):
    return servers.loquent(options.loquent, [*flags, "--no-quic", "--no-profile"], options.folder / "loquent.log")


def bench(options, urls, usual_runs, *load):
    """Runs `loquent bench load` over the servers in turn and gives the report's groups. `urls`: name and server."""
    out = options.folder / "report.json"
    command = [options.loquent, "bench", "load", "--quiet", "--json", out, "--repeat-runs", str(options.runs or usual_runs)]
    for name, server in urls:
        command += ["--url", f"{name}={server.url}", "--server-pid", str(server.process.pid)]
    done = subprocess.run([*command, *load], stdout=subprocess.DEVNULL)
    # 1: no request of a run was answered, or some failed; the tables say it.
    if done.returncode not in (0, 1):
        raise SystemExit(f"loads: loquent bench load ended with status {done.returncode}")
    return json.loads(out.read_text())["groups"]


def values(group, key):
    """A metric of each run; 0 where a run has none."""
    return [run["metrics"].get(key) or 0.0 for run in group["runs"]]


def kept(groups, keys):
    """The values of these metrics, of all runs of all groups."""
    runs({group["name"]: {key: values(group, key) for key in keys} for group in groups})


def compared(title, groups, rows):
    """A table of two groups. `rows`: metric, meaning, form, target, and whether the ratio is that of the first."""
    first, second = groups
    out = []
    for key, meaning, form, target, upside_down in rows:
        a, b = values(first, key), values(second, key)
        if not all(a) or not all(b):
            out.append([meaning, spread(a, form), spread(b, form), "", target])
            continue
        ratio = spread(ratios(a, b) if upside_down else ratios(b, a), ".3f")
        out.append([meaning, spread(a, form), spread(b, form), ratio, target])
    table([*title, RATIO, "target"], out)


def engine_behind(options):
    """The server that answers for `upstream`, and its settings in words."""
    if options.vllm:
        settings = ["--dtype", "bfloat16", "--generation-config", "vllm", "--max-num-seqs", "16", "--max-model-len", "512"]
        arguments = [str(peers.checkpoint(options.model)), *settings]
        return servers.vllm(options.vllm, arguments, options.folder / "vllm.log", "vllm", os.cpu_count()), settings
    settings = ["-c", "8192", "-np", "16", "-t", str(os.cpu_count()), "--kv-unified", "--cache-ram", "0"]
    arguments = ["--no-ui", "-m", options.model, *settings]
    return servers.llama_server(options.llama, arguments, options.folder / "llama-server.log"), settings


def upstream(options):
    """an upstream server asked directly and through `loquent serve --upstream`"""
    engine, settings = engine_behind(options)
    with engine as behind, serving(options, "--upstream", behind.url) as front:
        groups = bench(options, [("direct", behind), ("through", front)], 3, "--preset", "cllm-stage15", "--ignore-eos",
                       "--requests", str(options.requests), "--warmup-runs", "1", "--temperature", "0")
    keys = ("output_throughput", "ttft_p50_ms", "successful_requests", "failed_requests", "refused_requests")
    print(f"{engine.name}: `{' '.join(settings)}`; {options.requests} requests, 16 at once")
    direct, through = groups
    compared(["measure", "direct", "through Loquent"], groups, [
        ("output_throughput", "output tokens/s", ".1f", ">= 0.97", False)])
    later = [b - a for a, b in zip(values(direct, "ttft_p50_ms"), values(through, "ttft_p50_ms"))]
    lost = [options.requests - n for n in values(through, "successful_requests")]
    lost_direct = [options.requests - n for n in values(direct, "successful_requests")]
    table(["measure", "direct", "through Loquent", "more", "target"],
          [["TTFT p50, ms", spread(values(direct, "ttft_p50_ms")), spread(values(through, "ttft_p50_ms")), spread(later),
            "<= 3"],
           # What llama-server itself loses when it is asked directly is not Loquent's.
           [f"requests lost of {options.requests}", spread(lost_direct, ".0f"), spread(lost, ".0f"),
            f"{max(0.0, max(lost) - max(lost_direct)):.0f}", "<= 0"]])
    kept(groups, keys)


def interval(options):
    """stream interval 1 against 8 and auto with 64 streams: chunks, CPU per token, TTFT, equal texts"""
    with serving(options, "--simulate", "200", "--max-batch-size", "64") as server:
        groups = bench(options, [("loquent", server)], 5, "--preset", "rose-050", "--stream-interval", "1,8,auto",
                       "--temperature", "0", "--seed", "1")
    one, eight, auto = groups
    print("64 streams of 128 tokens, 200 tokens/s for each")
    compared(["measure", "interval 1", "interval 8"], (one, eight), [
        ("chunks", "chunks with text, 1 / 8", ".0f", ">= 6", True),
        ("server_cpu_us_per_token", "server's CPU per token, µs", ".1f", "<= 1", False),
        ("ttft_p50_ms", "TTFT p50, ms", ".1f", "<= 1.05", False)])
    compared(["measure", "interval 1", "interval auto"], (one, auto), [
        ("chunks", "chunks with text", ".0f", "", False),
        ("server_cpu_us_per_token", "server's CPU per token, µs", ".1f", "", False),
        ("ttft_p50_ms", "TTFT p50, ms", ".1f", "", False)])
    same = [group["texts_equal_to_first_group"] for group in (eight, auto)]
    share = min(each["equal"] / max(each["of"], 1) for each in same)
    table(["measure", "share", "target"], [["texts that equal those of interval 1", f"{share:.3f}", ">= 1"]])
    kept(groups, ("chunks", "server_cpu_us_per_token", "ttft_p50_ms"))


def slow_readers(options):
    """32 streams with and without 32 readers that stop reading"""
    with serving(options, "--simulate", "200", "--max-batch-size", "64") as server:
        groups = bench(options, [("loquent", server)], 3, "--endpoint", "completions", "--requests", "32", "--max-tokens",
                       "2048", "--ignore-eos", "--slow-readers", "32", "--slow-reader-max-tokens", "4096", "--control")
    print("32 streams of 2,048 tokens, 200 tokens/s for each")
    compared(["measure", "alone", "beside 32 that stop"], groups, [
        ("icl_p99_ms", "ICL p99, ms", ".1f", "<= 2", False), ("itl_p99_ms", "ITL p99 at the engine, ms", ".1f", "", False),
        ("server_rss_peak_mib", "memory of the server, MiB", ".1f", "", False)])
    failed = [a + b for a, b in zip(values(groups[1], "failed_requests"), values(groups[1], "refused_requests"))]
    table(["measure", "of 32", "target"], [["other streams lost", spread(failed, ".0f"), "<= 0"]])
    kept(groups, ("icl_p99_ms", "itl_p99_ms", "server_rss_peak_mib", "successful_requests"))


def long_prompt(options):
    """8 streams with and without a 4,000-token prompt that comes after 2 s"""
    with serving(options, "--model", options.model, "--context", "9000", "--max-batch-size", "9", "--draft-tokens", "off") \
            as server:
        groups = bench(options, [("loquent", server)], 3, "--endpoint", "completions", "--requests", "8", "--max-tokens",
                       "400", "--ignore-eos", "--temperature", "0", "--inject-prompt-tokens", "4000", "--inject-at-ms",
                       "2000", "--control")
    print("8 streams of 400 tokens")
    compared(["measure", "alone", "beside the prompt"], groups, [
        ("icl_p99_ms", "ICL p99, ms", ".1f", "<= 2", False),
        ("output_throughput", "tokens/s of the streams", ".1f", "", False)])
    # A prompt that comes after the streams' end disturbs none of them.
    beside = values(groups[1], "icl_during_p99_ms")
    table(["measure", "beside the prompt"], [
        ["TTFT of the prompt, s", spread([ms / 1e3 for ms in values(groups[1], "injected_ttft_mean_ms")])],
        ["ICL p99 while it was read, ms", spread(beside)]])
    if not all(beside):
        raise SystemExit("loads: the prompt came after the streams' end")
    kept(groups, ("icl_p99_ms", "output_throughput", "injected_ttft_mean_ms", "icl_during_p99_ms"))


def admission(options):
    """64 requests alone, then 256 at once, against a server that admits 64"""
    load = ["--endpoint", "completions", "--max-tokens", "128", "--ignore-eos"]
    with serving(options, "--simulate", "100", "--max-batch-size", "64", "--max-inflight-requests", "64",
                 "--max-inflight-per-key", "64") as server:
        [alone] = bench(options, [("64", server)], 3, *load, "--requests", "64")
        [beside] = bench(options, [("256", server)], 3, *load, "--requests", "256")
    print("100 tokens/s for each")
    compared(["measure", "64 at once", "256 at once"], (alone, beside), [
        ("ttft_p99_ms", "TTFT p99 of the admitted, ms", ".1f", "<= 2", False)])
    served, refused, failed = (values(beside, f"{kind}_requests") for kind in ("successful", "refused", "failed"))
    table(["measure", "of 256", "target"], [["finished", spread(served, ".0f"), ">= 64"],
                                          ["refused with 429", spread(refused, ".0f"), "<= 192"],
                                          ["failed", spread(failed, ".0f"), "<= 0"]])
    kept([alone, beside], ("ttft_p99_ms", "successful_requests", "refused_requests", "failed_requests"))


def two_thousand(options):
    """2,000 streams of 300 tokens at 10 tokens/s: none lost, memory of each, CPU per token at intervals 1, 8 and auto"""
    flags = ["--simulate", "10", "--max-batch-size", "2000", "--max-inflight-requests", "2100", "--max-inflight-per-key",
             "2100", "--max-queued-tokens", "10000000"]
    streams = ["--endpoint", "completions", "--requests", "2000", "--submit-interval-ms", "2", "--max-tokens", "300",
               "--ignore-eos", "--recount", "16"]
    options.runs = options.runs or 1
    with serving(options, *flags) as server:
        [memory] = bench(options, [("memory", server)], 1, *streams, "--no-server-timings")
        groups = bench(options, [("loquent", server)], 1, *streams, "--stream-interval", "1,8,auto")
    print("the server's memory grows by so much for each stream, without the timings that a benchmark asks for")
    table(["measure", "KiB"], [["memory of a stream", spread(values(memory, "server_rss_growth_per_stream_kib"))]])
    rows = []
    for name, group in zip(("1", "8", "auto"), groups, strict=True):
        lost = [2000 - n for n in values(group, "successful_requests")]
        same = group["texts_equal_to_first_group"]
        rows.append([name, spread(values(group, "server_cpu_us_per_token")), spread(values(group, "ttft_p99_ms"), ".0f"),
                     spread(values(group, "flush_to_arrival_p99_ms"), ".0f"), f"{same['equal']} of {same['of']}",
                     spread(lost, ".0f"), "<= 0"])
    table(["interval", "server's CPU per token, µs", "TTFT p99, ms", "flush to arrival p99, ms",
           "texts equal to interval 1's", "lost", "target"], rows)
    kept([memory, *groups], ("server_cpu_us_per_token", "ttft_p99_ms", "flush_to_arrival_p99_ms", "successful_requests",
                             "server_rss_growth_per_stream_kib"))


def hand_over(options):
    """what one step costs the engine's thread beside computing, at 1, 8 and 64 streams"""
    with serving(options, "--simulate", "200", "--max-batch-size", "64", "--no-prefix-cache") as server:
        found = {streams: steps_of(options, server, streams) for streams in (1, 8, 64)}
    costs = list(found[1])
    table(["streams", *(f"{cost} per step" for cost in costs)],
          [[streams, *(f"{each[cost]:.2f}" for cost in costs)] for streams, each in found.items()])
    table(["measure", "1 stream", "64 streams", "more", "target"],
          [[f"{cost} per step", f"{found[1][cost]:.2f}", f"{found[64][cost]:.2f}",
            f"{found[64][cost] - found[1][cost]:.2f}", "<= 0.1"] for cost in costs])
    runs({str(streams): each for streams, each in found.items()})


def steps_of(options, server, streams):
    """Hand-overs, sleeps and, with strace, futex calls for each step under a load of so many streams."""
    engine = engine_thread(server.process.pid)
    load = [options.loquent, "bench", "load", "--quiet", "--url", server.url, "--endpoint", "completions", "--requests",
            str(streams), "--max-tokens", "1000", "--ignore-eos", "--stream-interval", "8", "--recount", "1"]

    def during(count, act=contextlib.nullcontext()):
        steps, before = counter(server, "engine_steps_total"), count()
        with act:
            subprocess.run(load, check=True, stdout=subprocess.DEVNULL)
        return (count() - before) / (counter(server, "engine_steps_total") - steps)

    found = {"hand-overs": during(lambda: counter(server, "hand_over_seconds_count")),
             "sleeps": during(lambda: sleeps(engine))}
    if shutil.which("strace"):
        # Traced apart: tracing slows every step down.
        log = options.folder / "futex"
        found["futex calls"] = during(lambda: len(log.read_text().splitlines()) if log.exists() else 0,
                                      traced(engine, log))
        log.unlink()
    return found


def engine_thread(pid):
    tasks = pathlib.Path(f"/proc/{pid}/task").glob("*")
    return next(task for task in tasks if (task / "comm").read_text() == "engine\n")


def sleeps(thread):
    return int(re.search(r"^voluntary_ctxt_switches:\s+(\d+)", (thread / "status").read_text(), re.M)[1])


def counter(server, name):
    with urllib.request.urlopen(server.url + "/metrics", timeout=20) as response:
        text = response.read().decode()
    return float(re.search(rf"^loquent_{name}(?:{{.*}})? (\S+)", text, re.M)[1])


@contextlib.contextmanager
def traced(thread, log):
    command = ["strace", "-qq", "-e", "trace=futex", "-p", thread.name, "-o", log]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as tracer:
        try:
            yield
        finally:
            tracer.send_signal(signal.SIGTERM)


LOADS = {"upstream": upstream, "interval": interval, "slow-readers": slow_readers, "long-prompt": long_prompt,
         "admission": admission, "two-thousand": two_thousand, "hand-over": hand_over}


if __name__ == "__main__":
    main()
