"""How the runs beside a peer are read: the tables of bench/peers/compare.py, with the values of each run.

A ratio is the median of the ratios run by run, with two exceptions. A peer that gets slower from run to run has no
median of its own: the number of runs decides it. Its ratio is that of its best run, which favours the peer. And memory
grows while a cache fills, so that of the last run counts, which is the largest.
"""

import itertools

#: A table against a peer; its name stands second.
HEAD = ["measure", "Loquent", "ratio [least, most]", "target"]
MEMORY = "memory while serving, MiB"
#: A peer falls if it loses more than this share from its first run to its last.
FALL = 0.2


def read(record):
    """`record` with its tables against peers as these rules have them."""
    values = iter([runs for runs in record.get("runs", []) if "loquent" in runs])
    found = [reread(table, next(values, {})) if is_comparison(table) else table for table in record["tables"]]
    return {**record, "tables": found}


def is_comparison(table):
    return table[0][:1] + table[0][2:] == HEAD


def more_is_better(measure):
    return measure.endswith("tokens/s")


def falls(values, measure):
    """Whether a peer is worse in each run than in the one before, by more than a fifth in all."""
    speeds = values if more_is_better(measure) else [1 / value for value in values if value]
    steady = len(speeds) > 2 and all(after < before for before, after in itertools.pairwise(speeds))
    return steady and speeds[-1] < (1 - FALL) * speeds[0]


def reread(table, runs):
    """The table with the ratios that count. `runs` has the values of both servers, by measure."""
    head, *rows = table
    theirs, ours = runs.get(head[1], {}), runs.get("loquent", {})
    pairs = {row[0]: [(a, b) for a, b in zip(theirs.get(row[0], []), ours.get(row[0], [])) if a and b is not None]
             for row in rows}
    fallen = [measure for measure, of in pairs.items() if measure != MEMORY and falls([a for a, _ in of], measure)]
    # Where the measure of the first row falls, every other one is of tired runs too.
    whole = rows[0][0] in fallen
    return [head, *(row_of(row, pairs[row[0]], row[0] in fallen, whole) for row in rows)]


def row_of(row, pairs, has_fallen, whole):
    measure, *_, target = row
    if not pairs or (measure != MEMORY and not has_fallen and not whole):
        return row
    why = ""
    if measure == MEMORY:
        theirs, ours = pairs[-1]
    else:
        theirs, ours = (max if more_is_better(measure) else min)(pairs, key=lambda pair: pair[0])
        way = "fall" if more_is_better(measure) else "rise"
        what = f"{way} from {pairs[0][0]:.1f} to {pairs[-1][0]:.1f}" if has_fallen else "get slower"
        why = f" (its runs {what}: by its best)"
    quotients = [b / a for a, b in pairs]
    return [measure, f"{theirs:.1f}", f"{ours:.1f}",
            f"{ours / theirs:.2f} [{min(quotients):.2f}, {max(quotients):.2f}]{why}", target]
