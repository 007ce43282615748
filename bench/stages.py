"""Rows and ratios of one report of stages.sh: stages.py REPORT.json PART CONCURRENT."""

import json
import pathlib
import sys
from statistics import median

# Part and concurrency: our configuration, what it is compared with (the best of these), least ratio.
TARGETS = {
    ("loopback", "2"): ("batched", "serial lanes", 1.05),
    ("loopback", "4"): ("batched", "serial lanes", 1.6),
    ("loopback", "16"): ("batched", "serial lanes", 3.2),
    ("seed-2", "2"): ("batched", "lanes", 1.05),
    ("seed-2", "4"): ("batched", "lanes", 1.6),
    ("seed-4", "2"): ("batched", "lanes", 1.05),
    ("seed-4", "4"): ("batched", "lanes", 1.6),
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


def default_of(names):
    """Ours is chosen before anything is measured: of several configurations the default one."""
    return next((name for name in names if name.endswith("depth-auto")), names[0])


def main(path, part, concurrent):
    groups = json.loads(pathlib.Path(path).read_text())["groups"]
    runs = {group["name"].split(" ")[0]: group["runs"] for group in groups}
    values = lambda name, key: [run["metrics"][key] for run in runs[name]]
    for name in runs:
        speed = spread(values(name, "output_throughput"), ".1f")
        ttft, tpot = (median(values(name, key)) for key in ("ttft_p95_ms", "tpot_p50_ms"))
        print(f"| {name} | {concurrent} | {speed} | | {ttft:.0f} | {tpot:.1f} | |", flush=True)
        print("runs:", json.dumps({f"{part}, {name}, {concurrent} concurrent": {
            key: values(name, key) for key in ("output_throughput", "ttft_p95_ms", "tpot_p50_ms")}}), flush=True)
    if (part, concurrent) in TARGETS:
        ours, theirs, target = TARGETS[part, concurrent]
        ours = default_of([name for name in runs if name.startswith(ours)])
        # The strictest comparison: the best that anybody could have chosen instead.
        others = (name for name in runs if name.startswith(tuple(theirs.split())))
        best = max(others, key=lambda name: median(values(name, "output_throughput")))
        pairs = zip(values(ours, "output_throughput"), values(best, "output_throughput"))
        ratios = spread([a / b for a, b in pairs], ".2f")
        print(f"| {ours} ÷ {best}, {concurrent} at once | {concurrent} | {ratios} | ≥ {target} | | | |", flush=True)
    if part == "one":
        pairs = zip(values("hop-10ms", "tpot_p50_ms"), values("unsplit", "tpot_p50_ms"))
        ratios = spread([a / (b + LINKS * LINK_MS) for a, b in pairs], ".2f")
        print(f"| hop-10ms ÷ (unsplit + links) | 1 | | | | {ratios} | ≤ 1.1 |", flush=True)


main(*sys.argv[1:])
