#!/usr/bin/env python3
"""Draws the ratios to other servers that bench/results holds: bench/peers/plot.py > docs/img/llama-server-ratios.svg

One line per peer and measure that has a target: Loquent / the peer as a dot with the range of its runs, the
target as a bar across it. The scale is logarithmic; green dots reach their target. `bench/results.py`
draws it anew with its tables.
"""

import html
import json
import math
import pathlib
import re
import sys

BENCH = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(BENCH))
from records import peer_runs  # noqa: E402

RECORDS = BENCH / "results"
LEFT, RIGHT, TOP, STEP = 430, 990, 60, 30
LEAST, MOST = 0.1, 8.0


def measures(records):
    """What of the tables of `records`, by name, is a ratio with a target: label, ratio, least, most, sign, target."""
    for name, figures in sorted(records.items()):
        for head, *rows in filter(peer_runs.is_comparison, figures["tables"]):
            for row in rows:
                ratio = re.match(r"([\d.]+) \[([\d.]+), ([\d.]+)\]", row[3])
                target = re.match(r"([<>]=) ([\d.]+)", row[4])
                if ratio and target:
                    yield f"{name}, {head[1]}: {row[0]}", *map(float, ratio.groups()), target[1], float(target[2])


def x(ratio):
    place = math.log(min(max(ratio, LEAST), MOST) / LEAST) / math.log(MOST / LEAST)
    return LEFT + place * (RIGHT - LEFT)


def line(measure, y):
    label, ratio, least, most, sign, target = measure
    reached = ratio >= target if sign == ">=" else ratio <= target
    colour = "#1a7f37" if reached else "#cf222e"
    better = "more is better" if sign == ">=" else "less is better"
    return (
        f'<text x="{LEFT - 14}" y="{y + 4}" text-anchor="end">{html.escape(label)}</text>'
        f'<text x="{RIGHT + 12}" y="{y + 4}" fill="#6e7781">{ratio:.2f} ({better})</text>'
        f'<line x1="{x(least):.1f}" x2="{x(most):.1f}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="3"/>'
        f'<line x1="{x(target):.1f}" x2="{x(target):.1f}" y1="{y - 9}" y2="{y + 9}" stroke="#24292f" stroke-width="2"/>'
        f'<circle cx="{x(ratio):.1f}" cy="{y}" r="5" fill="{colour}" stroke="#fff"/>'
    )


def svg(records):
    rows = list(measures(records))
    bottom = TOP + STEP * len(rows)
    body = [line(row, TOP + 12 + STEP * i) for i, row in enumerate(rows)]
    for tick in (0.1, 0.2, 0.5, 1, 2, 4, 8):
        body.insert(0, f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{TOP - 8}" y2="{bottom}" stroke="#e6e9ed"/>'
                       f'<text x="{x(tick):.1f}" y="{bottom + 16}" text-anchor="middle" fill="#6e7781">{tick}</text>')
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1170 {bottom + 40}" width="1170" height="{bottom + 40}" '
            'font-family="system-ui, \'Segoe UI\', \'DejaVu Sans\', sans-serif" font-size="12">'
            '<rect width="100%" height="100%" fill="#fff"/>'
            '<text x="20" y="26" font-size="15" fill="#24292f">Loquent / other servers, same model, alternating runs'
            '</text>'
            '<text x="20" y="44" fill="#6e7781">dot: median, or as RESULTS.md says; line: all runs; black bar: target</text>')
    return "\n".join([head, *body]) + "</svg>\n"


if __name__ == "__main__":
    print(svg({path.stem: peer_runs.read(json.loads(path.read_text())) for path in RECORDS.glob("*.json")}), end="")
