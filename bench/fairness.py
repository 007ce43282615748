#!/usr/bin/env python3
"""The figures of `loquent bench fairness` as a Markdown table with its target. Needs root.

    bench/fairness.py [OPTIONS of loquent bench fairness…]        LOQUENT names the binary

What is measured is in bench/README.md; bench/fairness.sh shows more of each trial.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
from statistics import mean

from records.printed import runs, spread, table

LEAST_RATIO = "0.9"


def main(words):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "fairness.json")
        done = subprocess.run([os.environ.get("LOQUENT", "loquent"), "bench", "fairness", "--min-ratio", LEAST_RATIO,
                               "--json", out, *words], stdout=subprocess.DEVNULL)
        # 1: a ratio is too small, which the table shows.
        if done.returncode not in (0, 1) or not out.exists():
            sys.exit(f"fairness: loquent bench fairness ended with status {done.returncode}")
        report = json.loads(out.read_text())
    print(f"{report['downloads']} downloads beside {report['streams']} token streams of {report['tokens_per_s']:g} tokens/s; "
          f"RTT {report['rtt_ms']:g} ms when empty; {report['length_s']:g} s after {report['warm_up_s']:g} s; "
          f"{report['runs']} runs from seed {report['seed']}; kbit/s are the goodput of all downloads, delay and kB/s those "
          "of a token stream, beside event streams and beside Loquent's")
    table(["rate, queue, downloads", "alone, kbit/s", "beside event streams, kbit/s", "beside Loquent, kbit/s",
           "ratio [least, most]", "target", "delay, ms", "behind, s", "time in stalls", "kB/s"],
          [row(case) for case in report["cases"]])
    late = max(trial["late_p99_ms"] for case in report["cases"] for of in ("nothing", "events", "loquent") for trial in case[of])
    print(f"the emulator was late by {late:.2f} ms at p99 of the worst trial")
    runs({title(case): {of: [goodput(trial) for trial in case[of]] for of in ("nothing", "events", "loquent")}
          for case in report["cases"]})


def title(case):
    of = case["case"]
    return f"{of['rate_kbps']:g} kbit/s, {of['queue_bytes'] / 1e3:g} kB, {of['control'].upper()}"


def goodput(trial):
    return sum(trial["goodput_kbps"])


def row(case):
    of_all = lambda of: spread([goodput(trial) for trial in case[of]], ".0f")
    view = lambda of, key: mean(stream[key] for trial in case[of] for stream in trial["streams"] if stream[key] is not None)
    both = lambda key, form: " and ".join(f"{view(of, key):{form}}" for of in ("events", "loquent"))
    kb_s = [mean(trial["streams_down"]["kb_s"] for trial in case[of]) / len(case[of][0]["streams"]) for of in ("events", "loquent")]
    quotients = [goodput(ours) / goodput(tcp) for ours, tcp in zip(case["loquent"], case["events"])]
    return [title(case), of_all("nothing"), of_all("events"), of_all("loquent"), spread(quotients, ".3f"),
            f">= {LEAST_RATIO}", both("delay_ms", ".0f"), both("behind_s", ".1f"), both("stalled", ".2f"),
            " and ".join(f"{value:.1f}" for value in kb_s)]


if __name__ == "__main__":
    main(sys.argv[1:])
