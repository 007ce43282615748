#!/usr/bin/env python3
"""Stalls, delay and bytes of token streams over a bad network, several seeds side by side.

    bench/delivery.py [--quick]      as root: network namespaces, TUN devices; --quick about 6 minutes, else 16
    bench/delivery.py --without-root    only what needs no kernel TCP: Eloquent and Loquent over UDP, one seed

The same tokens at the same times cross the same emulated link with the same losses: server-sent events on kernel
TCP (CUBIC, BBR), the same events on one plain QUIC stream, and Loquent over QUIC with padded frames, as it ships.
First the default channel (15 % lost in bursts), which has targets; then channels on which little can be gained:
jitter, bursts that lose everything, and a narrow link. The seeds of a channel run at once, each in namespaces of
its own. Prints Markdown tables, and the figures of every seed as one line `runs: {...}`. Fails if a target is
missed.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
SEEDS = [2024, 2025, 2026]
# Least reduction of the stall ratio against the better TCP, in per cent, by round-trip time.
REDUCTION = {400: 75, 100: 75, 50: 70}
# Most kB per second of one Loquent stream on the default channel, of which padding is up to a quarter.
MOST_KB_PER_S = 4.8
# Most by which a TCP's model may differ from the kernel's, in per cent of its stall ratio.
MODEL_ERROR = 10
TCP = ("cubic", "bbr")
DEFAULT = "the default channel"
CHANNELS = {
    DEFAULT: ["--loss", "default"],
    "80 ms of jitter": ["--loss", "default", "--jitter", "80"],
    "bursts that lose everything": ["--loss", "markov:0.9,0.5,1"],
    "16 kbit/s": ["--loss", "default", "--rate", "16kbit"],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loquent", default=os.environ.get("LOQUENT", "loquent"))
    parser.add_argument("--quick", action="store_true", help="fewer round-trip times and schemes, shorter streams")
    parser.add_argument("--without-root", action="store_true", help="only the schemes on UDP, one seed")
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "out")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.without_root:
        return subprocess.run([
            options.loquent, "bench", "delivery", "--without-root", "--schemes", "eloquent,loquent,loquent-unpadded",
            "--rtt", "400,100,50", "--sessions", "60", "--max-kb-per-s", str(MOST_KB_PER_S)], check=False).returncode
    if os.geteuid() != 0:
        sys.exit("delivery.py: kernel TCP needs network namespaces, and they need root;\n"
                 "             with --without-root the schemes on UDP are measured")
    schemes = ["cubic", "bbr", "quic-stream", "loquent"]
    rtts, seconds = ([400, 100], 15) if options.quick else ([400, 100, 50], 30)
    more = [] if options.quick else ["eloquent", "loquent-unpadded"]
    runs = {DEFAULT: measure(options, {DEFAULT: CHANNELS[DEFAULT]}, rtts, seconds, 30, schemes + more)[DEFAULT]}
    rest = {name: link for name, link in CHANNELS.items() if name != DEFAULT}
    runs |= measure(options, rest, [100], 10 if options.quick else 20, 10, schemes)
    missed = [line for channel in runs for line in report(channel, runs[channel], seconds)]
    print("runs: " + json.dumps(runs, separators=(",", ":")))
    for line in missed:
        print(f"delivery.py: missed: {line}", file=sys.stderr)
    return 1 if missed else 0


def measure(options, channels, rtts, seconds, sessions, schemes):
    """Runs every channel under every seed at once; figures by channel, round-trip time, scheme and seed."""
    running = []
    for number, (channel, link) in enumerate(channels.items()):
        for seed in SEEDS:
            path = options.out / f"delivery-{number}-{rtts[0]}-{seed}.json"
            command = [options.loquent, "bench", "delivery", "--quiet", *link, "--rtt", ",".join(map(str, rtts)),
                       "--sessions", str(sessions), "--duration-s", str(seconds), "--seed", str(seed),
                       "--schemes", ",".join(schemes), "--json", str(path)]
            running.append((channel, seed, path, subprocess.Popen(command)))
    print(f"delivery.py: {', '.join(channels)}: {len(running)} runs of {sessions} streams at once", file=sys.stderr)
    failed = [f"{channel}, seed {seed}" for channel, seed, _, process in running if process.wait() != 0]
    if failed:
        sys.exit(f"delivery.py: did not run: {'; '.join(failed)}")
    found = {}
    for channel, seed, path, _ in running:
        for case in json.loads(path.read_text())["cases"]:
            for scheme in case["schemes"]:
                rtt = found.setdefault(channel, {}).setdefault(f"{case['rtt_ms']:.0f}", {})
                rtt.setdefault(scheme["scheme"], {})[str(seed)] = figures(scheme)
    return found


def figures(scheme):
    measured = scheme["measured"]
    return {"label": scheme["label"], "full": round(measured["full"]["mean"], 4),
            "full_205": round(measured["full_205"]["mean"], 4),
            "model_205": round(scheme["simulated"]["full_205"]["mean"], 4),
            "delay_ms": round(measured["delay_ms"]["mean"], 1),
            "kb_per_s": round(measured["down_kb_s"]["mean"], 3),
            "late_p99_ms": round(scheme["emulator_late_p99_ms"], 2)}


def report(channel, by_rtt, seconds):
    """Prints the table of one channel; returns what missed its target."""
    missed, rows = [], []
    for rtt, schemes in by_rtt.items():
        tcp = min((name for name in TCP if name in schemes), key=lambda name: mean(schemes[name], "full"))
        for name, seeds in schemes.items():
            less = {other: changes(seeds, schemes[other]) for other in (tcp, "quic-stream") if other in schemes}
            ours = name.startswith("loquent")
            target = ""
            if channel == DEFAULT and ours:
                target, faults = targets(int(rtt), less[tcp], mean(seeds, "kb_per_s"))
                missed += [f"RTT {rtt} ms, {label(seeds)}: {fault}" for fault in faults]
            elif channel == DEFAULT and name in TCP:
                target, faults = model_target(seeds)
                missed += [f"RTT {rtt} ms, {label(seeds)}: {fault}" for fault in faults]
            rows.append([f"{rtt} ms", label(seeds), spread(seeds, "full", 3),
                         percents(less.get(tcp)) if ours else "", percents(less.get("quic-stream")) if ours else "",
                         f"{mean(seeds, 'delay_ms'):.0f}", spread(seeds, "kb_per_s", 2), target])
    late = max(seed["late_p99_ms"] for schemes in by_rtt.values() for seeds in schemes.values()
               for seed in seeds.values())
    print(f"\nReal packets over {channel}; {len(SEEDS)} seeds: mean [least, most]; the emulator was late by "
          f"{late:.2f} ms at p99 of the worst run.\n")
    head = ["RTT", "", "stall ratio", "against the better TCP", "against the plain QUIC stream", "delay, ms",
            "kB/s per stream", "target"]
    print(f"| {' | '.join(head)} |\n|{' --- |' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    return missed


def targets(rtt, less, kb_per_s):
    """What a row of ours is held to, and what of it is missed."""
    faults = []
    reduction = -statistics.mean(less)
    if reduction < REDUCTION[rtt]:
        faults.append(f"stalls {reduction:.1f} % less than the better TCP, at least {REDUCTION[rtt]} % wanted")
    if kb_per_s > MOST_KB_PER_S:
        faults.append(f"takes {kb_per_s:.2f} kB/s, at most {MOST_KB_PER_S} wanted")
    text = f"−{REDUCTION[rtt]} %, {MOST_KB_PER_S} kB/s: " + ("missed" if faults else "reached")
    return text, faults


def model_target(seeds):
    """How far the simulator's TCP is from the kernel's."""
    off = 100 * (mean(seeds, "model_205") / mean(seeds, "full_205") - 1)
    faults = [] if abs(off) <= MODEL_ERROR else [f"its model stalls {off:+.1f} %, at most {MODEL_ERROR} % off wanted"]
    return f"model {off:+.1f} % (±{MODEL_ERROR} %): {'missed' if faults else 'reached'}", faults


def label(seeds):
    return next(iter(seeds.values()))["label"]


def mean(seeds, key):
    return statistics.mean(seed[key] for seed in seeds.values())


def changes(seeds, others):
    """The change of the stall ratio in per cent, seed by seed."""
    return [100 * (seeds[seed]["full"] / others[seed]["full"] - 1) for seed in seeds if others[seed]["full"]]


def spread(seeds, key, digits):
    values = [seed[key] for seed in seeds.values()]
    return f"{statistics.mean(values):.{digits}f} [{min(values):.{digits}f}, {max(values):.{digits}f}]"


def percents(values):
    if not values:
        return ""
    text = f"{statistics.mean(values):+.1f} % [{min(values):+.1f}, {max(values):+.1f}]"
    return text.replace("-", "−")


if __name__ == "__main__":
    sys.exit(main())
