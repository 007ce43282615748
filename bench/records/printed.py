"""What a bench prints: percentiles, tables, spreads, and the values of each run."""

import json
from statistics import median


def spread(values, form=".1f"):
    """The median, and the least and the most where they differ as shown: 1.50 [1.20, 1.70]."""
    shown = [f"{value:{form}}" for value in (median(values), min(values), max(values))]
    return shown[0] if len(set(shown)) == 1 else f"{shown[0]} [{shown[1]}, {shown[2]}]"


def percentile(values, share):
    """The percentile `share` (0 to 1), interpolated linearly between ranks, as `loquent bench` and NumPy have it: that
    of 0.5 is the median. None of no values."""
    ordered = sorted(values)
    if not ordered:
        return None
    place = (len(ordered) - 1) * share
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def ratios(ours, theirs):
    """Run by run."""
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def table(head, rows):
    print("\n".join(f"| {' | '.join(map(str, row))} |" for row in (head, ["---"] * len(head), *rows)), end="\n\n", flush=True)


def runs(values):
    """The values of each run, by measure, for `bench/results.py`, which keeps them."""
    print(f"runs: {json.dumps(values, ensure_ascii=False)}", flush=True)
