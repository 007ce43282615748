#!/usr/bin/env python3
"""Markdown tables of `loquent bench delivery --json` reports: the figures, and each limit with its target.

Usage: delivery-table.py REPORT.json…   Fails if Loquent delivers less than 0.95 of what SSE does
on a clean link.
"""

import json
import re
import statistics
import sys

from records.printed import runs
from records.printed import table as print_table

# A limit as the report words it: where, whose, what was measured, and what was wanted.
LIMIT = re.compile(r"RTT ([\d.]+) ms: (.+?) (stalls|takes) ([-+]?[\d.]+) (.*); at (least|most) ([\d.]+)(.*)")
TCP = ("cubic", "bbr", "serve-cubic", "serve-bbr")
LOQUENT = ("loquent", "loquent-unpadded", "loquent-udp")
# Of SSE's tokens per second, on a link that loses nothing.
LEAST_THROUGHPUT = 0.95


def tokens_per_s(scheme):
    """All streams together, from the first token's generation to the last one's arrival."""
    traces = [session["trace"] for session in scheme["sessions"]]
    tokens = sum(len(trace["ready_us"]) for trace in traces)
    last_us = max((trace["ready_us"][-1] for trace in traces if trace["ready_us"]), default=0)
    return tokens / (last_us / 1e6) if last_us else 0.0


def row(case, scheme, best_tcp, fastest_sse):
    full, throughput = scheme["measured"]["full"], tokens_per_s(scheme)
    loquent = scheme["scheme"] in LOQUENT
    against = f"{100 * (full['mean'] / best_tcp - 1):+.1f} %" if loquent and best_tcp else ""
    ratio = f" ({throughput / fastest_sse:.3f})" if loquent and fastest_sse else ""
    cpu = scheme.get("server_cpu_us_per_token")
    first = scheme.get("first_token_ms") or []
    cells = [
        f"{case['rtt_ms']:.0f} ms",
        scheme["label"],
        f"{full['mean']:.3f} ±{full['half']:.3f}",
        against,
        f"{scheme['measured']['down_kb_s']['mean']:.2f}",
        f"{scheme['measured']['packets_per_s']['mean']:.1f}",
        f"{statistics.median(first):.1f}" if first else "",
        f"{cpu:.0f}" if cpu else "",
        f"{throughput:.0f}{ratio}",
    ]
    return "| " + " | ".join(cells) + " |"


def limits(report, throughputs):
    """Rows of a report's limits: what is limited, the value, and the target. `throughputs`: label and share of SSE's."""
    for verdict in report["verdicts"]:
        found = LIMIT.fullmatch(verdict["text"])
        if not found:
            yield [verdict["text"], int(verdict["holds"]), ">= 1"]
            continue
        rtt_ms, label, does, value, what, which, limit, more = found.groups()
        # How far a model is off counts in both directions.
        value, off = (value.lstrip("+-"), " off") if "off" in more else (value, "")
        yield [f"{label}, RTT {rtt_ms} ms, {does} {what}{off}", value, f"{'>=' if which == 'least' else '<='} {limit}"]
    for label, share in throughputs:
        yield [f"{label}: tokens/s, of SSE's", f"{share:.3f}", f">= {LEAST_THROUGHPUT}"]


def of_streams(report):
    """Stall ratio and kB/s of every stream."""
    figures = {(case["rtt_ms"], scheme["label"]): [session["figures"] for session in scheme["sessions"]]
               for case in report["cases"] for scheme in case["schemes"]}
    return {f"{label}, RTT {rtt_ms:g} ms": {"stall ratio": [round(one["ready"]["full"], 4) for one in each],
                                           "kB/s": [round(one["down_kb_s"], 3) for one in each]}
            for (rtt_ms, label), each in figures.items()}


def table(path):
    """Prints one report; returns whether Loquent kept up with SSE."""
    with open(path, encoding="utf-8") as file:
        report = json.load(file)
    print(f"\n{report['title']}: {report['sessions']} streams of {report['seconds']:.0f} s, "
          f"{report['tokens_per_s']:.0f} tokens/s each, {report['channel']['kind']} losses\n")
    print("| RTT | | stall ratio | against the better TCP | kB/s | packets/s "
          "| first token, ms | server CPU, µs/token | tokens/s, all (of SSE's) |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    clean, throughputs = report["channel"]["kind"] == "clean", []
    for case in report["cases"]:
        tcp = [scheme for scheme in case["schemes"] if scheme["scheme"] in TCP]
        best = min((scheme["measured"]["full"]["mean"] for scheme in tcp), default=0)
        fastest = max((tokens_per_s(scheme) for scheme in tcp), default=0)
        for scheme in case["schemes"]:
            print(row(case, scheme, best, fastest))
            if clean and fastest and scheme["scheme"] in LOQUENT:
                throughputs.append((scheme["label"], tokens_per_s(scheme) / fastest))
    print()
    if rows := list(limits(report, throughputs)):
        print_table(["limit", "measured", "target"], rows)
    runs({report["title"]: of_streams(report)})
    return all(share >= LEAST_THROUGHPUT for _, share in throughputs)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    results = [table(path) for path in sys.argv[1:]]
    sys.exit(0 if all(results) else "\nLoquent delivers less than 0.95 of SSE's tokens on a clean link.")
