#!/usr/bin/env python3
"""Draws the ratios that compare.py left in a folder: bench/peers/plot.py bench/out > ratios.svg

One line per measure: Loquent / llama-server as a dot with the range of its runs, the target as a
bar across it. The scale is logarithmic; green dots reach their target.
"""

import html
import json
import math
import pathlib
import sys

LEFT, RIGHT, TOP, STEP = 300, 860, 60, 30
LEAST, MOST = 0.1, 8.0


def x(ratio):
    place = math.log(min(max(ratio, LEAST), MOST) / LEAST) / math.log(MOST / LEAST)
    return LEFT + place * (RIGHT - LEFT)


def line(row, label, y):
    target, ratio = row["target"], row["ratio"]
    reached = ratio >= target if row["sign"] == ">=" else ratio <= target
    colour = "#1a7f37" if reached else "#cf222e"
    better = "more is better" if row["sign"] == ">=" else "less is better"
    name = html.escape(f"{label}: {row['meaning']}")
    return (
        f'<text x="{LEFT - 14}" y="{y + 4}" text-anchor="end">{name}</text>'
        f'<text x="{RIGHT + 12}" y="{y + 4}" fill="#6e7781">{ratio:.2f} ({better})</text>'
        f'<line x1="{x(row["least"]):.1f}" x2="{x(row["most"]):.1f}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="3"/>'
        f'<line x1="{x(target):.1f}" x2="{x(target):.1f}" y1="{y - 9}" y2="{y + 9}" stroke="#24292f" stroke-width="2"/>'
        f'<circle cx="{x(ratio):.1f}" cy="{y}" r="5" fill="{colour}" stroke="#fff"/>'
    )


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "bench/out")
    rows = []
    for path in sorted(folder.glob("*.ratios.json")):
        label = path.name.removesuffix(".ratios.json")
        rows += [(row, label) for row in json.loads(path.read_text()) if row["target"] is not None]
    bottom = TOP + STEP * len(rows)
    body = [line(row, label, TOP + 12 + STEP * i) for i, (row, label) in enumerate(rows)]
    for tick in (0.1, 0.2, 0.5, 1, 2, 4, 8):
        body.insert(0, f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{TOP - 8}" y2="{bottom}" stroke="#e6e9ed"/>'
                       f'<text x="{x(tick):.1f}" y="{bottom + 16}" text-anchor="middle" fill="#6e7781">{tick}</text>')
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1040 {bottom + 40}" width="1040" height="{bottom + 40}" '
          'font-family="system-ui, \'Segoe UI\', \'DejaVu Sans\', sans-serif" font-size="12">'
          '<rect width="100%" height="100%" fill="#fff"/>'
          f'<text x="20" y="26" font-size="15" fill="#24292f">Loquent / llama-server, same model, alternating runs</text>'
          '<text x="20" y="44" fill="#6e7781">dot: median; line: all runs; black bar: target</text>')
    print("\n".join(body) + "</svg>")


if __name__ == "__main__":
    main()
