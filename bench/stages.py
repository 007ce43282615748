"""Rows and ratios of one report of stages.sh: stages.py REPORT.json PART CONCURRENT."""

import json
import sys
from statistics import median

# Part and concurrency: configurations, what they are compared with (the best of each), least ratio.
TARGETS = {
    ("loopback", "2"): ("batched", "serial lanes", 1.05),
    ("loopback", "4"): ("batched", "serial lanes", 1.6),
    ("loopback", "16"): ("batched", "serial lanes", 3.2),
    ("pinned", "8"): ("depth-auto", "depth-1", 1.4),
    ("four", "16"): ("batched", "lanes", 2.5),
    ("single", "16"): ("batched", "unsplit", 0.9),
    ("rpc", "1"): ("batched", "rpc", 1.3),
    ("rpc", "4"): ("batched", "rpc", 1.5),
    ("rpc", "16"): ("batched", "rpc", 1.15),
    ("rpc-5ms", "1"): ("batched", "rpc", 1.3),
    ("rpc-5ms", "4"): ("batched", "rpc", 1.4),
    ("rpc-5ms", "16"): ("batched", "rpc", 1.2),
}
# Links of `one` and the delay of each in ms.
LINKS, LINK_MS = 2, 10


def spread(values, form):
    shown = (format(x, form) for x in (median(values), min(values), max(values)))
    return "{} [{}, {}]".format(*shown)


def verdict(ratios, target, at_least=True):
    reached = median(ratios) >= target if at_least else median(ratios) <= target
    sign = "≥" if at_least else "≤"
    return f"{spread(ratios, '.2f')}, target {sign} {target}: {'reached' if reached else '**missed**'}"


def main(path, part, concurrent):
    groups = json.load(open(path))["groups"]
    runs = {group["name"].split(" ")[0]: group["runs"] for group in groups}
    values = lambda name, key: [run["metrics"][key] for run in runs[name]]
    for name in runs:
        speed = spread(values(name, "output_throughput"), ".1f")
        ttft, tpot = (median(values(name, key)) for key in ("ttft_p95_ms", "tpot_p50_ms"))
        print(f"| {name} | {concurrent} | {speed} | {ttft:.0f} | {tpot:.1f} |", flush=True)
    if (part, concurrent) in TARGETS:
        *sides, target = TARGETS[part, concurrent]
        ours, best = (
            max(
                (name for name in runs if name.startswith(tuple(side.split()))),
                key=lambda name: median(values(name, "output_throughput")),
            )
            for side in sides
        )
        pairs = zip(values(ours, "output_throughput"), values(best, "output_throughput"))
        ratios = verdict([a / b for a, b in pairs], target)
        print(f"| **{ours} ÷ {best}** | {concurrent} | {ratios} | | |", flush=True)
    if part == "one":
        pairs = zip(values("hop-10ms", "tpot_p50_ms"), values("unsplit", "tpot_p50_ms"))
        ratios = verdict([a / (b + LINKS * LINK_MS) for a, b in pairs], 1.1, at_least=False)
        print(f"| **hop-10ms ÷ (unsplit + links)** | 1 | | | {ratios} |", flush=True)


main(*sys.argv[1:])
