#!/usr/bin/env python3
"""Runs many worlds of replicas on all processors, and keeps what they showed.

    tools/worlds.py BINARY FIRST COUNT             COUNT seeds from FIRST on; a broken law prints its history
    tools/worlds.py BINARY FIRST COUNT --record    keeps the run in tools/worlds.json and docs/world.md
    tools/worlds.py BINARY FIRST COUNT --jobs 1    on one processor

BINARY is target/release/replica-world; `make world` builds it and calls this.

Exit status: 0, no law is broken; 1, one is.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import time

from chaos.record import with_section

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "bench"))
from records import history  # noqa: E402

RECORD, PAGE = ROOT / "tools/worlds.json", ROOT / "docs/world.md"
#: Worlds in one process, which take about ten seconds: progress is shown often, and all processors finish together.
PART = 500
SAID = re.compile(r"(\d+) worlds from seed \d+: (\d+) readers whole, (\d+) excused, (\d+) takeovers, (\d+) clients")
COUNTS = ("worlds", "whole", "excused", "takeovers", "clients")
#: The same, and their sum, in the order of the table's columns.
SHOWN = ("worlds", "sessions", "whole", "excused", "clients", "takeovers")
#: The headings of the section, and of the one behind it.
TITLE, NEXT = "## Recorded runs\n", "## Planted faults\n"
HEAD = """
`make world SEEDS=128000 FIRST=… ARGS=--record` keeps a run in `tools/worlds.json`, from which this table is
made. A session is a reader of an answer or a client of a background response. *Whole* are readers that got all of their
answer, *excused* those whose answer was deleted, or lost with the store's data.

| first seed | worlds | sessions | whole | excused | clients of responses | takeovers | broken laws | tree | date |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""


def run_part(binary, first, count):
    """The counts of some worlds, and what the program said if a law is broken."""
    command = [binary, str(first), str(count)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    counts = SAID.search(done.stdout)
    if done.returncode or not counts:
        return None, done.stdout
    return dict(zip(COUNTS, map(int, counts.groups()))), None


def run(binary, first, count, jobs):
    """The counts of all worlds. Ends the program with the history of one that breaks a law."""
    parts = [(at, min(PART, first + count - at)) for at in range(first, first + count, PART)]
    total, begun = dict.fromkeys(COUNTS, 0), time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        running = [pool.submit(run_part, binary, *part) for part in parts]
        for done in concurrent.futures.as_completed(running):
            counts, broken = done.result()
            if broken is not None:
                pool.shutdown(cancel_futures=True)
                print(broken)
                sys.exit(1)
            total = {name: total[name] + counts[name] for name in COUNTS}
            seconds = time.monotonic() - begun
            left = seconds * (count / total["worlds"] - 1)
            print(f"worlds: {total['worlds']:,} of {count:,}, {seconds:.0f} s, {left:.0f} s to go", file=sys.stderr)
    return total


def sessions(run):
    return run["whole"] + run["excused"] + run["clients"]


def row(run):
    counts = " | ".join(f"{run[name]:,}" for name in SHOWN)
    return f"| {run['first']} | {counts} | none | {run['tree']} | {run['date']} |\n"


def with_table(text, record):
    """The page's text with the section of the record."""
    return with_section(text, TITLE, HEAD + "".join(map(row, record)), NEXT)


def keep(run, path=RECORD, page=PAGE):
    """Adds a run to the record, and makes the table again."""
    record = (json.loads(path.read_text()) if path.exists() else []) + [run]
    path.write_text(json.dumps(record, indent=1) + "\n")
    page.write_text(with_table(page.read_text(), record))


def tree():
    """The tree that the worlds are of. Ends the program where it is in no commit."""
    if changed := history.dirty(ROOT):
        raise SystemExit(f"worlds: a recorded run is of a commit, and these differ from it: {', '.join(changed)}")
    return history.tree(ROOT)[:8]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at once [one for each processor]")
    parser.add_argument("--record", action="store_true", help="keep the run")
    options = parser.parse_args()
    of_tree = tree() if options.record else None
    total = run(options.binary.absolute(), options.first, options.count, options.jobs)
    made = {"first": options.first, **total, "sessions": sessions(total)}
    print(", ".join(f"{made[name]:,} {name}" for name in ("worlds", "sessions", *COUNTS[1:])) + ": no law is broken")
    if options.record:
        keep({**made, "tree": of_tree, "date": time.strftime("%Y-%m-%d")})


if __name__ == "__main__":
    main()
